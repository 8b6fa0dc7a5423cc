"""What observers hear: every operation twice, with what it is part of and how it ended; and that they cost nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.protocols import Observer
from qtmiddleware.testing import RecordingObserver, ScriptedModel
from qtmiddleware.types import Operation
from tests.support.retrieval_world import QUERY, REPLIES, scripted, search
from tests.support.waiting import PATIENCE, await_until, wait_until, with_enough_time

REWRITE = {"transformationType": "rewrite"}


def plain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


async def aplain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


def observed(
    fn: Callable[..., Any] = plain, config: Any = None, **given: Any
) -> tuple[Any, RecordingObserver]:
    """*fn* wrapped, and who observes it."""
    observer = RecordingObserver()
    given.setdefault("client", ScriptedModel(scripted, name="small"))
    options = {"embed": given.pop("embed")} if "embed" in given else {}
    qm = qtm.QueryMiddleware(REWRITE if config is None else config, observers=(observer,), **given)
    return qm.wrap(fn, **options), observer


def label(it: Operation) -> str:
    return f"{it.kind} {it.name}".strip()


def ends(observer: RecordingObserver) -> dict[str, str]:
    """How each operation ended; each that started has ended, once and after its start."""
    assert sorted(it.id for it in observer.started) == sorted(it.id for it in observer.ended)
    for it in observer.started:
        assert (it.outcome, it.seconds, it.result) == ("running", 0.0, None)
    return {label(it): f"{it.outcome} {it.reason}".strip() for it in observer.ended}


def parents(observer: RecordingObserver) -> dict[str, str]:
    return {label(it): label(it.parent) if it.parent else "" for it in observer.ended}


def by_label(observer: RecordingObserver) -> dict[str, Operation]:
    return {label(it): it for it in observer.ended}


def check_whole_retrieval(observer: RecordingObserver) -> None:
    assert ends(observer) == dict.fromkeys(
        ("retrieval", "search original", "model rewrite", "search rewrite"), "ok"
    )
    assert parents(observer) == {
        "retrieval": "",
        "search original": "retrieval",
        "model rewrite": "retrieval",
        "search rewrite": "retrieval",
    }
    heard = by_label(observer)
    whole = heard["retrieval"]
    assert dict(whole.counts) == {
        "passages": 4, "degradations": 0, "searches": 2, "llm_calls": 1, "input_tokens": 0, "output_tokens": 0,
    }  # fmt: skip
    assert (heard["search original"].weight, heard["search rewrite"].weight) == (1.0, 0.6)
    assert heard["model rewrite"].model == "small"
    assert heard["model rewrite"].counts["llm_calls"] == 1
    for it in heard.values():
        assert whole.began <= it.began <= time.time()
        assert 0 <= it.seconds <= whole.seconds
    assert (whole.content, heard["search original"].content) == (
        QUERY,
        whole.result.variants[0].text,
    )
    assert len(whole.result.matches) == 4


def test_a_retrieval_is_told_with_everything_it_is_made_of() -> None:
    wrapped, observer = observed()
    wrapped.retrieve(QUERY)
    check_whole_retrieval(observer)


async def test_so_is_one_that_is_awaited() -> None:
    wrapped, observer = observed(aplain)
    await wrapped.aretrieve(QUERY)
    check_whole_retrieval(observer)


async def test_embedding_is_part_of_the_original_search_and_one_batch_for_the_variants() -> None:
    def nearest(vector: list[float], top_k: int = 4) -> Any:
        return search(QUERY, top_k)

    for way in ("retrieve", "aretrieve"):
        wrapped, observer = observed(nearest, embed=lambda texts: [[0.0, 1.0]] * len(texts))
        found = getattr(wrapped, way)(QUERY)
        if way == "aretrieve":
            await found
        ends(observer)
        embeddings = [
            (label(it.parent), it.counts, it.outcome)
            for it in observer.ended
            if it.kind == "embedding"
        ]
        expected = [("search original", {"texts": 1}, "ok"), ("retrieval", {"texts": 1}, "ok")]
        assert sorted(embeddings, key=str) == sorted(expected, key=str)


# --- what does not go well ------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_search_that_fails_is_told_as_failed(is_async: bool) -> None:
    def failing(query: str, top_k: int = 4) -> Any:
        if query == REPLIES["rewrite"]["rewrite"]:
            raise OSError("no route to host")
        return search(query, top_k)

    async def afailing(query: str, top_k: int = 4) -> Any:
        return failing(query, top_k)

    wrapped, observer = observed(afailing if is_async else failing)
    found = await wrapped.aretrieve(QUERY) if is_async else wrapped.retrieve(QUERY)
    assert found.status == "degraded"
    assert ends(observer)["search rewrite"] == "failed OSError"
    assert ends(observer)["retrieval"] == "ok"
    assert by_label(observer)["retrieval"].counts["degradations"] == len(found.degradations)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_late_model_is_told_as_late_while_it_still_hangs(is_async: bool) -> None:
    begun, leave = threading.Event(), threading.Event()

    def hanging(_: Any) -> str:
        begun.set()
        leave.wait(PATIENCE)
        return "{}"

    def ask(seconds: float) -> tuple[Any, Any]:
        begun.clear()
        limits = {"llmTimeoutMs": int(1e3 * seconds), "deadlineMs": 600_000}
        wrapped, observer = observed(
            config={**REWRITE, "limits": limits, "breaker": {"failures": 0}}, client=hanging
        )
        found = asyncio.run(wrapped.aretrieve(QUERY)) if is_async else wrapped.retrieve(QUERY)
        assert [it.reason for it in found.degradations] == ["timeout"]
        return wrapped, observer

    def lasts(asked: tuple[Any, Any]) -> bool:
        return begun.is_set() and by_label(asked[1])["model rewrite"].seconds >= 0.04

    try:
        wrapped, observer = with_enough_time(ask, lasts)
        # Not only when the call returns.
        assert ends(observer)["model rewrite"] == "late"
        assert by_label(observer)["model rewrite"].seconds >= 0.04
    finally:
        leave.set()
    wait_until(lambda: not wrapped.middleware.health().threads.in_use)
    assert len(ends(observer)) == len(observer.ended)


async def test_what_is_cancelled_is_told_as_cancelled_with_its_children() -> None:
    begun = asyncio.Event()

    async def slow(query: str, top_k: int = 4) -> Any:
        begun.set()
        await asyncio.sleep(600)

    model = ScriptedModel(scripted, name="small", seconds=600)
    wrapped, observer = observed(slow, client=model)
    task = asyncio.ensure_future(wrapped.aretrieve(QUERY))
    await begun.wait()
    await await_until(lambda: model.prompts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    expected = dict.fromkeys(("retrieval", "search original", "model rewrite"), "cancelled")
    assert ends(observer) == expected


def test_an_interrupt_in_the_original_search_ends_all() -> None:
    model = ScriptedModel(scripted, name="small", seconds=600)

    def interrupted(query: str, top_k: int = 4) -> Any:
        wait_until(lambda: model.prompts)
        raise KeyboardInterrupt

    wrapped, observer = observed(interrupted, client=model)
    with pytest.raises(KeyboardInterrupt):
        wrapped.retrieve(QUERY)
    assert set(ends(observer).values()) == {"cancelled"}
    assert {it.kind for it in observer.ended} == {"retrieval", "search", "model"}


# --- answers --------------------------------------------------------------------------------------

ANSWER = {"answer": {"timeoutMs": 60_000}}
CITED = "Jaco is healthy [1]."


def answering(
    config: Any = ANSWER, script: Any = CITED, fn: Any = plain
) -> tuple[Any, RecordingObserver]:
    return observed(fn, config, client=ScriptedModel(script, name="small"))


ANSWERED = {
    "answer": "",
    "retrieval": "answer",
    "search original": "retrieval",
    "model answer": "answer",
}


def check_answer(observer: RecordingObserver) -> None:
    assert parents(observer) == ANSWERED
    assert set(ends(observer).values()) == {"ok"}
    whole = by_label(observer)["answer"]
    assert (whole.counts["citations"], whole.result.text) == (1, CITED)
    assert by_label(observer)["model answer"].model == "small"


async def test_an_answer_is_told_with_its_retrieval_and_its_call_however_it_is_had() -> None:
    wrapped, observer = answering()
    wrapped.answer(QUERY)
    check_answer(observer)

    wrapped, observer = answering()
    await wrapped.aanswer(QUERY)
    check_answer(observer)

    wrapped, observer = answering()
    with wrapped.stream_answer(QUERY) as pieces:
        assert "".join(pieces) == CITED
    check_answer(observer)

    wrapped, observer = answering()
    async with wrapped.astream_answer(QUERY) as pieces:
        assert "".join([piece async for piece in pieces]) == CITED
    check_answer(observer)

    wrapped, observer = answering()
    assert "".join([piece async for piece in wrapped.astream_answer(QUERY)]) == CITED
    check_answer(observer)


async def test_a_stream_that_is_closed_early_is_told_as_cancelled() -> None:
    wrapped, observer = answering(script=["Jaco ", PATIENCE, "is fit [1]."])
    with wrapped.stream_answer(QUERY) as pieces:
        next(pieces)
    assert (ends(observer)["answer"], ends(observer)["retrieval"]) == ("cancelled", "ok")
    assert ends(observer)["model answer"] == "cancelled"

    wrapped, observer = answering()
    with wrapped.stream_answer(QUERY):
        pass
    assert ends(observer) == {"search original": "ok", "retrieval": "ok", "answer": "cancelled"}

    wrapped, observer = answering(script=["Jaco ", PATIENCE, "is fit [1]."])
    async with wrapped.astream_answer(QUERY) as apieces:
        await anext(apieces)
    assert ends(observer)["model answer"] == "cancelled"
    assert ends(observer)["answer"] == "cancelled"


async def test_what_an_observer_sets_for_a_call_is_seen_by_the_model_and_never_by_the_reader_of_a_stream() -> (
    None
):
    class Setting:
        def on_start(self, operation: Operation) -> None:
            if operation.kind == "model":
                current.set("set by the observer")

        def on_end(self, operation: Operation) -> None:
            pass

    def model(messages: Any) -> str:
        seen.append(current.get())
        return CITED

    async def amodel(messages: Any) -> str:
        return model(messages)

    current: ContextVar[str] = ContextVar("current", default="nothing")
    seen: list[str] = []
    for client in (model, amodel):
        wrapped = qtm.QueryMiddleware(ANSWER, client=client, observers=(Setting(),)).wrap(plain)
        for piece in wrapped.stream_answer(QUERY):
            assert (piece, current.get()) == (CITED, "nothing")
        async for piece in wrapped.astream_answer(QUERY):
            assert (piece, current.get()) == (CITED, "nothing")
    assert seen == ["set by the observer"] * 4


def test_sub_answers_are_part_of_the_answer() -> None:
    def script(prompt: Any) -> Any:
        return scripted(prompt) if prompt.mode in REPLIES else CITED

    wrapped, observer = answering({"answer": {"mode": "synthesis"}}, script)
    wrapped.answer(QUERY)
    ends(observer)
    (whole,) = (it for it in observer.ended if it.kind == "answer")
    below = [it for it in observer.ended if it.parent is not None and it.parent.id == whole.id]
    assert [it.kind for it in below].count("retrieval") == 3
    assert sorted(it.name for it in below if it.kind == "model") == [
        "sub_answer",
        "sub_answer",
        "synthesis",
    ]
    retrievals = {it.id for it in below if it.kind == "retrieval"}
    searches = [it for it in observer.ended if it.kind == "search"]
    # The question and each part are searched for in a retrieval of their own.
    assert len(searches) == 3
    assert {it.parent.id for it in searches if it.parent} == retrievals


# --- the observer itself --------------------------------------------------------------------------


class Broken:
    def on_start(self, operation: Operation) -> None:
        raise ValueError(QUERY)

    def on_end(self, operation: Operation) -> None:
        raise ValueError(QUERY)


def test_an_observer_that_raises_changes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = RecordingObserver()
    qm = qtm.QueryMiddleware(REWRITE, client=ScriptedModel(scripted), observers=(Broken(), heard))
    unobserved = (
        qtm.QueryMiddleware(REWRITE, client=ScriptedModel(scripted)).wrap(plain).retrieve(QUERY)
    )
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        for _ in range(3):
            retrieval = qm.wrap(plain).retrieve(QUERY)
            assert (retrieval.response, retrieval.status) == (unobserved.response, "full")
    assert [it.getMessage() for it in caplog.records] == ["the observer Broken failed: ValueError"]
    assert len(heard.ended) == len(heard.started) > 0


def test_what_is_no_observer_is_refused() -> None:
    with pytest.raises(qtm.ConfigError, match="an observer must have on_start and on_end"):
        qtm.QueryMiddleware(observers=([],))  # type: ignore[arg-type]
    assert isinstance(RecordingObserver(), Observer)


def test_operations_are_printed_without_what_users_and_passages_say() -> None:
    wrapped, observer = answering(
        REWRITE, lambda prompt: scripted(prompt) if prompt.mode in REPLIES else CITED
    )
    wrapped.answer(QUERY)
    printed = repr(observer.started) + repr(observer.ended)
    for text in (QUERY, REPLIES["rewrite"]["rewrite"], CITED, "Jaco", "vet"):
        assert text not in printed
