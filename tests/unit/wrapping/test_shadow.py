"""Shadow mode: callers get the plain result; a share is retrieved beside it and logged."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.shadow import MOST_AT_ONCE
from tests.support.log_lines import log_lines
from tests.support.waiting import PATIENCE, await_until, wait_until

QUERY = "What is Nike's strategy in Europe?"
TEXTS = {
    "a": "Nike sells shoes",
    "b": "Adidas earnings grew",
    "c": "Puma opened shops",
    "d": "The strategy of Nike in Europe",
    "e": "Shoes are worn",
}


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    found = list(TEXTS.items())[:top_k]
    return [
        {"id": name, "score": 0.9 - n / 20, "metadata": {"text": text}}
        for n, (name, text) in enumerate(found)
    ]


async def asearch(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return search(query, top_k)


def ids(response: Any) -> list[str]:
    return [it["id"] for it in response]


def await_shadows(qm: qtm.QueryMiddleware, count: int) -> None:
    wait_until(lambda: qm.health()["shadow"]["finished"] >= count)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "queries.jsonl"


def middleware(log: Path, share: float = 1.0, client: Any = None, **config: Any) -> Any:
    settings = {"shadow": share, "log": {"path": str(log)}, **config}
    return qtm.QueryMiddleware(settings, client=client)


def test_the_caller_gets_the_plain_functions_own_object_and_the_difference_is_logged(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    responses: list[Any] = []

    def plain(query: str, top_k: int = 3) -> list[dict[str, Any]]:
        responses.append(search(query, top_k))
        return responses[-1]  # type: ignore[no-any-return]

    qm = middleware(log)
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        response = qm.wrap(plain)(QUERY)
        assert response is responses[0]
        await_shadows(qm, 1)
    (record,) = log_lines(log)
    shadow = record["shadow"]
    assert ids(shadow["plain"]) == ["a", "b", "c"]
    assert "d" in ids(record["retrieval_steps"]["final"])
    measured = [shadow[name] for name in ("kept", "same_first", "same_order", "dropped")]
    assert measured == [2, False, False, 0]
    assert "text" not in shadow["plain"][0]
    (said,) = [it for it in caplog.records if getattr(it, "qtm", {}).get("event") == "shadow"]
    assert "2 of 3 passages as in the plain result" in said.getMessage()
    assert QUERY not in caplog.text
    assert len(responses) == 2


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_retrieval_is_the_plain_one_and_says_so(log: Path, is_async: bool) -> None:
    qm = middleware(log)
    found = await qm.wrap(asearch if is_async else search).aretrieve(QUERY)
    assert (found.status, ids(found.response)) == ("full", ["a", "b", "c"])
    assert [it.id for it in found.matches] == ["a", "b", "c"]
    assert found.trace.notes == [("original", "shadow mode: the plain function's result")]
    await await_until(lambda: qm.health()["shadow"]["finished"])
    assert [it["shadow"]["kept"] for it in log_lines(log)] == [2]


def test_work_that_piles_up_is_dropped_and_counted_and_told_in_the_log(log: Path) -> None:
    release = threading.Event()
    main = threading.get_ident()

    def slow_beside(query: str, top_k: int = 3) -> Any:
        if threading.get_ident() != main:
            release.wait(PATIENCE)
        return search(query, top_k)

    qm = middleware(log, limits={"deadlineMs": 60_000})
    wrapped = qm.wrap(slow_beside)
    for _ in range(MOST_AT_ONCE + 7):
        assert ids(wrapped(QUERY)) == ["a", "b", "c"]
    assert (qm.health()["shadow"]["running"], qm.health()["shadow"]["dropped"]) == (MOST_AT_ONCE, 7)
    release.set()
    await_shadows(qm, MOST_AT_ONCE)
    assert sum(it["shadow"]["dropped"] for it in log_lines(log)) == 7


def test_a_model_is_asked_in_the_shadow_alone_and_an_answer_comes_from_the_plain_passages(
    log: Path,
) -> None:
    model = ScriptedModel('{"rewrite": "strategy of Nike for Europe"}')
    qm = middleware(log, client=model, transformationType="rewrite")
    wrapped = qm.wrap(search)
    found = wrapped.retrieve(QUERY)
    assert (found.trace.llm_calls, found.trace.searches) == (0, 1)
    await_shadows(qm, 1)
    assert [it["trace"]["llm_calls"] for it in log_lines(log)] == [1]
    assert [it.id for it in wrapped.answer(QUERY).matches] == ["a", "b", "c"]
