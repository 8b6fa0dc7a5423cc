"""What observers hear: every operation twice, with what it is part of and how it ended; and that they cost nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import RecordingObserver, ScriptedModel
from qtmiddleware.types import Operation
from tests.support.retrieval_world import QUERY, scripted, search
from tests.support.waiting import PATIENCE

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


@pytest.mark.parametrize("fn", [plain, aplain])
async def test_a_retrieval_is_told_with_everything_it_is_made_of(fn: Any) -> None:
    wrapped, observer = observed(fn)
    await wrapped.aretrieve(QUERY) if fn is aplain else wrapped.retrieve(QUERY)
    names = ("search original", "model rewrite", "search rewrite")
    assert ends(observer) == dict.fromkeys(("retrieval", *names), "ok")
    heard = {label(operation): operation for operation in observer.ended}
    whole = heard["retrieval"]
    assert {heard[name].parent for name in names} == {observer.started[0]}
    assert (heard["search original"].weight, heard["search rewrite"].weight) == (1.0, 0.6)
    assert heard["model rewrite"].model == "small"
    for it in heard.values():
        assert whole.began <= it.began <= time.time()
        assert 0 <= it.seconds <= whole.seconds
    question = whole.result.variants[0].text
    assert (whole.content, heard["search original"].content) == (QUERY, question)


# --- answers --------------------------------------------------------------------------------------

ANSWER = {"answer": {"timeoutMs": 60_000}}
CITED = "Jaco is healthy [1]."


def answering(
    config: Any = ANSWER, script: Any = CITED, fn: Any = plain
) -> tuple[Any, RecordingObserver]:
    return observed(fn, config, client=ScriptedModel(script, name="small"))


async def test_a_stream_that_is_closed_early_is_told_as_cancelled() -> None:
    for way in ("sync", "async"):
        wrapped, observer = answering(script=["Jaco ", PATIENCE, "is fit [1]."])
        if way == "sync":
            with wrapped.stream_answer(QUERY) as pieces:
                next(pieces)
        else:
            async with wrapped.astream_answer(QUERY) as apieces:
                await anext(apieces)
        cancelled = {"answer": "cancelled", "model answer": "cancelled"}
        assert ends(observer) == {"search original": "ok", "retrieval": "ok", **cancelled}


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


class Broken:
    def on_start(self, operation: Operation) -> None:
        raise ValueError(QUERY)

    on_end = on_start


def test_an_observer_that_raises_changes_nothing_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = RecordingObserver()
    qm = qtm.QueryMiddleware(REWRITE, client=ScriptedModel(scripted), observers=(Broken(), heard))
    for _ in range(3):
        assert qm.wrap(plain).retrieve(QUERY).status == "full"
    assert caplog.messages == ["observer failed: Broken (ValueError)"]
    assert len(heard.ended) == len(heard.started) > 0
    with pytest.raises(qtm.ConfigError, match="an observer must have on_start and on_end"):
        qtm.QueryMiddleware(observers=([],))  # type: ignore[arg-type]
    with pytest.raises(qtm.ConfigError, match="observers= must be a list of observers, not int"):
        qtm.QueryMiddleware(observers=5)  # type: ignore[arg-type]
