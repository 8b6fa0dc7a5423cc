"""What the package logs: once where something changes, sampled where it goes on, and never at an answer's cost."""

from __future__ import annotations

import asyncio
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
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.testing import ScriptedModel
from tests.support.clock import Clock

QUERY: Final = "Does Jaco have any health concerns?"


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


def test_degraded_queries_are_one_record_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    qm = failing()
    wrapped = [qm.wrap(search), qm.wrap(lambda query, top_k=3: search(query, top_k))]
    for turn in range(13):
        wrapped[turn % 2].retrieve(QUERY)
    clock.now += 75
    for turn in range(3):
        wrapped[turn % 2].retrieve(QUERY)
    assert [re.sub("[0-9a-f]{16}", "ID", it) for it in caplog.messages] == [
        "retrieval ID degraded: transform.rewrite unavailable"
    ] * 2


def test_a_breaker_is_logged_when_it_opens_and_when_it_closes_but_not_for_each_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    breaker = Breaker(3, 30, clock=clock, name="gpt-6-luna")
    for has_failed in (True, True, True, True, True, False, False):
        attempt = breaker.begin_attempt()
        assert attempt is not None
        attempt.end(has_failed=has_failed)
        clock.now += 31
    assert caplog.messages == [
        "the circuit breaker opened: gpt-6-luna (no calls for 30 s)",
        "the circuit breaker closed: gpt-6-luna",
    ]


@pytest.fixture
def seen() -> Iterator[list[logging.LogRecord]]:
    """The records that a filter gets, which then raises."""
    records: list[logging.LogRecord] = []

    def take(record: logging.LogRecord) -> bool:
        records.append(record)
        raise RuntimeError("no room for records")

    logger = logging.getLogger("qtmiddleware")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addFilter(take)
    yield records
    logger.setLevel(level)
    logger.removeFilter(take)


async def asearch(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


@pytest.mark.parametrize("function", [search, asearch])
@pytest.mark.parametrize("trouble", ["none", "bug", "log", "answer"])
def test_a_handler_or_filter_that_raises_costs_nobody_an_answer(
    function: Any, trouble: str, seen: list[logging.LogRecord], tmp_path: Path
) -> None:
    def reply(_: Any) -> str:
        if trouble == "bug":
            raise TypeError("a bug")
        return "Ill. [1] [7]" if trouble == "answer" else '{"rewrite": "Is the dog Jaco ill?"}'

    config = rewriting(breaker={"failures": 1})
    if trouble == "log":
        config["log"] = {"path": str(tmp_path / "missing" / "queries.jsonl")}
    with qtm.QueryMiddleware(config, client=reply) as qm:
        wrapped: Any = qm.wrap(function)
        if trouble == "answer":
            answer = wrapped.answer(QUERY) if function is search else wrapped.aanswer(QUERY)
            answer = answer if function is search else asyncio.run(answer)
            assert answer.text.startswith("Ill.")
        else:
            found = wrapped.retrieve(QUERY) if function is search else wrapped.aretrieve(QUERY)
            found = found if function is search else asyncio.run(found)
            assert len(found.matches) == 3
            assert found.status == ("full" if trouble == "none" else "degraded")
    assert seen


@pytest.mark.usefixtures("clock")
def test_the_record_of_a_degraded_retrieval_says_where_it_failed_why_and_what_to_set(
    caplog: pytest.LogCaptureFixture, bare_environment: None
) -> None:
    retrieval = qtm.QueryMiddleware(rewriting()).wrap(search).retrieve(QUERY)
    (record,) = caplog.records
    assert "missing: set OPENAI_API_KEY" in record.getMessage()
    assert record.qtm == {  # type: ignore[attr-defined]
        "event": "retrieval_degraded",
        "query_id": retrieval.trace.query_id,
        "stage": "transform.rewrite",
        "reason": "unauthorized",
        "seconds": round(retrieval.trace.total_ms / 1e3, 6),
        "searches": 1,
        "llm_calls": retrieval.trace.llm_calls,
    }
