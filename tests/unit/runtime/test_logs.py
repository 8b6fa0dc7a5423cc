"""What the package logs: once where something changes, sampled where it goes on, and never at an answer's cost."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.logs import LogSampler, get_logger
from qtmiddleware.testing import ScriptedModel
from tests.support.clock import Clock

NO_KEY: Final = (
    "the key for the language model is missing: set OPENAI_API_KEY, or QTM_LLM_BASE_URL (llm.baseUrl) for a server that"
    " needs no key"
)
QUERY: Final = "Does Jaco have any health concerns?"
PACKAGE: Final = Path(qtm.__file__).parent


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    texts = ("Cats sleep", "Jaco: health concerns", "The fee is due")
    return [
        {"id": str(at), "score": 0.9 - at / 10, "metadata": {"text": it}}
        for at, it in enumerate(texts)
    ]


def rewriting(**settings: Any) -> dict[str, Any]:
    limits = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
    return {
        "transformationType": "rewrite",
        "limits": limits,
        "breaker": {"failures": 0},
        **settings,
    }


def failing(config: dict[str, Any] | None = None) -> qtm.QueryMiddleware:
    return qtm.QueryMiddleware(
        config or rewriting(), client=ScriptedModel(ModelError("unavailable"))
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every middleware's samples."""
    clock = Clock()
    monkeypatch.setattr("qtmiddleware.wrapping.engine.LogSampler", partial(LogSampler, clock=clock))
    return clock


# --- a kind of degradation ------------------------------------------------------------------------


def test_degraded_queries_are_one_record_a_minute_and_none_is_lost(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    qm = failing()
    wrapped = [qm.wrap(search), qm.wrap(lambda query, top_k=3: search(query, top_k))]
    for turn in range(413):
        wrapped[turn % 2].retrieve(QUERY)
    clock.now += 75
    for turn in range(3):
        wrapped[turn % 2].retrieve(QUERY)
    qm.close()
    assert [re.sub("[0-9a-f]{16}", "ID", it) for it in caplog.messages] == [
        "retrieval ID degraded: transform.rewrite unavailable",
        "retrieval degraded 412 more times in the last 75 s: transform.rewrite unavailable",
        "retrieval ID degraded: transform.rewrite unavailable",
        "retrieval degraded 2 more times in the last 0 s: transform.rewrite unavailable",
    ]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (rewriting(), f"transform.rewrite unauthorized ({NO_KEY})"),
        (
            {"rerank": {"enabled": True, "model": "pinecone/bge-reranker-v2-m3"}},
            "rerank failed (the key for Pinecone is missing: set PINECONE_API_KEY in the environment)",
        ),
    ],
    ids=["model", "reranker"],
)
def test_the_record_of_a_missing_key_says_what_to_set(
    config: dict[str, Any],
    sentence: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "PINECONE_API_KEY", "OPENAI_BASE_URL", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    qtm.QueryMiddleware(config).wrap(search)(QUERY)
    (message,) = caplog.messages
    assert message.endswith(f"degraded: {sentence}")


def test_records_name_the_line_that_wrote_them(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    failing().wrap(search).retrieve(QUERY)
    get_logger("qtmiddleware").warning("from here")
    LogSampler().log(get_logger("qtmiddleware"), "from here", ["too"])
    assert [(it.filename, it.funcName) for it in caplog.records] == [
        ("flow.py", "_build_retrieval"),
        *[("test_logs.py", "test_records_name_the_line_that_wrote_them")] * 2,
    ]


# --- the circuit breaker --------------------------------------------------------------------------


def try_once(breaker: Breaker, *, works: bool) -> bool:
    attempt = breaker.begin_attempt()
    if attempt is not None:
        attempt.end(has_failed=not works)
    return attempt is not None


def test_a_breaker_is_logged_when_it_opens_and_when_it_closes_but_not_for_each_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    breaker = Breaker(3, 30, clock=clock, name="gpt-6-luna")
    for _ in range(50):
        try_once(breaker, works=False)
    for works in (False, False, True, True):
        clock.now += 31
        assert try_once(breaker, works=works)
    assert caplog.messages == [
        "the circuit breaker opened: gpt-6-luna (no calls for 30 s, then one test call)",
        "the circuit breaker closed: gpt-6-luna (calls are allowed again)",
    ]
    said = {"model": "gpt-6-luna", "counts": {"gpt-6-luna": 1}}
    assert about(caplog) == [
        {"event": "breaker_opened", "seconds": 30.0, **said},
        {"event": "breaker_closed", "seconds": 0.0, **said},
    ]
    assert {it.levelname for it in caplog.records} == {"WARNING"}


# --- handlers and filters that raise --------------------------------------------------------------


class raising:  # noqa: N801
    """Calls *does* with every record of the package, as a handler or as a filter, and counts them."""

    def __init__(self, does: Any, *, place: str = "handler") -> None:
        self._does = does
        self._place = place
        self._seen: list[logging.LogRecord] = []
        self._logger = logging.getLogger("qtmiddleware")
        self._level = self._logger.level
        self._handler = logging.Handler()
        self._handler.emit = self._take  # type: ignore[method-assign]

    def _take(self, record: logging.LogRecord) -> bool:
        self._seen.append(record)
        self._does(record)
        return True

    def __enter__(self) -> list[logging.LogRecord]:
        self._logger.setLevel(logging.DEBUG)
        if self._place == "handler":
            self._logger.addHandler(self._handler)
        else:
            self._logger.addFilter(self._take)
        return self._seen

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
        self._logger.removeHandler(self._handler)
        self._logger.removeFilter(self._take)


def raises(_: logging.LogRecord) -> None:
    raise RuntimeError("no room for records")


async def asearch(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return search(query, top_k)


@pytest.fixture(params=["handler", "filter"])
def seen(request: pytest.FixtureRequest) -> Iterator[list[logging.LogRecord]]:
    with raising(raises, place=request.param) as seen:
        yield seen


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(
    "trouble",
    ["none", "model", "log", "defect", "unreadable", "answer", "bug in the model", "breaker"],
)
def test_a_handler_or_filter_that_raises_costs_nobody_an_answer(
    way: str,
    trouble: str,
    seen: list[logging.LogRecord],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_: Any) -> str:
        raise TypeError("a bug") if trouble == "bug in the model" else ModelError("unavailable")

    def answers(_: Any) -> str:
        return (
            "Ill. [1] [7]"
            if trouble == "answer"
            else json.dumps({"rewrite": "Which illness does Jaco have?"})
        )

    config = rewriting(breaker={"failures": 1}) if trouble == "breaker" else rewriting()
    if trouble == "log":
        config["log"] = {"path": str(tmp_path / "missing" / "queries.jsonl")}
    is_model = trouble in ("model", "bug in the model", "breaker")
    if trouble == "defect":
        monkeypatch.setattr("qtmiddleware.retrieval.plan.prepare_query", fails)
    qm = qtm.QueryMiddleware(config, client=fails if is_model else answers)
    odd: Any = {"odd": 1}
    if way == "sync":
        wrapped: Any = qm.wrap((lambda query, top_k=3: odd) if trouble == "unreadable" else search)
        ask, reply = wrapped.retrieve, wrapped.answer
    else:

        async def aodd(query: str, top_k: int = 3) -> Any:
            return odd

        wrapped = qm.wrap(aodd if trouble == "unreadable" else asearch)
        ask = lambda query: asyncio.run(wrapped.aretrieve(query))  # noqa: E731
        reply = lambda query: asyncio.run(wrapped.aanswer(query))  # noqa: E731
    if trouble == "answer":
        assert reply(QUERY).text.startswith("Ill.")
    else:
        found = ask(QUERY)
        assert found.response == odd if trouble == "unreadable" else len(found.matches) == 3
        assert found.status == ("full" if trouble == "none" else "degraded")
        if trouble in ("model", "breaker"):
            assert {it.reason for it in found.degradations} == {"unavailable"}
    qm.close()
    assert seen


# --- what a record says for programs --------------------------------------------------------------


def about(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [it.qtm for it in caplog.records]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("clock")
def test_a_degraded_retrieval_says_which_it_was_where_it_failed_why_and_what_it_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    qm = failing()
    retrieval = qm.wrap(search).retrieve(QUERY)
    qm.wrap(search)(QUERY)
    qm.close()
    first, rest = about(caplog)
    assert first == {
        "event": "retrieval_degraded",
        "query_id": retrieval.trace.query_id,
        "stage": "transform.rewrite",
        "reason": "unavailable",
        "counts": {"transform.rewrite unavailable": 1},
        "seconds": round(retrieval.trace.total_ms / 1e3, 6),
        "searches": 1,
        "llm_calls": 1,
    }
    assert rest == {"event": "retrieval_degraded", "counts": {"transform.rewrite unavailable": 1}}


def test_what_the_rules_make_of_a_query_is_a_record_at_debug_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrapped = qtm.middleware(search)
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        wrapped(QUERY)
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, "qtmiddleware"):
        wrapped(QUERY)
    assert caplog.messages[0] == f'Query preprocessing: "{QUERY}" -> "jaco health concerns"'
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "qtmiddleware"):
        qtm.middleware(config={"preprocess": False})(search)(QUERY)
    assert not [it for it in caplog.messages if "preprocessing" in it]


def test_every_record_of_the_package_names_its_event() -> None:
    nameless = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) in ("logger", "_log")
        and call.func.attr in ("debug", "info", "warning", "error", "log")
        # Either by name or as part of `**about`.
        and not any(it.arg in ("event", None) for it in call.keywords)
    ]
    assert nameless == []
