"""Functions with habits of their own: what they do to their arguments, how they answer, and what they cannot bear."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.waiting import PATIENCE

QUERY: Final = "lamp 3"
ROWS: Final = [
    {"id": f"{tenant}{n}", "score": 1 - n / 99, "text": f"{tenant} note {n} lamp", "tenant": tenant}
    for n in range(30)
    for tenant in "ab"
]
SETTINGS: Final = ("rules", "balanced")
every_setting: Final = pytest.mark.parametrize("setting", SETTINGS)


def wrap(setting: Any, search: Callable[..., Any], **options: Any) -> Any:
    model = ScriptedModel({"rewrite": "a note on lamps", "hyde": "The lamp is lit."})
    return qtm.QueryMiddleware(setting, client=model).wrap(search, **options)


@every_setting
@pytest.mark.parametrize("most", [2, 20, 60])
def test_what_a_function_takes_out_of_its_arguments_is_there_in_every_call(
    setting: str, most: int
) -> None:
    def search(query: str, top_k: int = 4, where: Any = None) -> Any:
        tenant = where["only"].pop("tenant", None)
        found = [row for row in ROWS if tenant in (None, row["tenant"])]
        if top_k > most:
            raise ValueError("too many")
        return found[:top_k]

    wrapped = wrap(setting, search)
    for top_k in (1, 2, 2):
        found = wrapped(QUERY, top_k, where={"only": {"tenant": "a"}})
        assert [row["tenant"] for row in found] == ["a"] * top_k


@every_setting
def test_what_can_be_read_only_once_is_read_by_one_call(setting: str) -> None:
    def search(query: str, ids: Iterator[str], top_k: int = 4) -> Any:
        wanted = set(ids)
        return [row for row in ROWS if row["id"] in wanted][:top_k]

    retrieval = wrap(setting, search).retrieve(QUERY, (f"a{n}" for n in range(9)))
    assert len(retrieval.matches) == 4
    assert [problem.reason for problem in retrieval.degradations] == ["iterator"]


@every_setting
@pytest.mark.parametrize("turns", [[], [("user", "hello")]])
def test_a_function_gets_its_own_history_even_if_it_is_empty(setting: str, turns: Any) -> None:
    def search(query: str, history: Any, top_k: int = 4) -> Any:
        assert history == turns
        return ROWS[:top_k]

    assert len(wrap(setting, search).retrieve(QUERY, history=turns).matches) == 4


def test_a_function_that_bears_one_call_at_a_time_never_fails_for_it() -> None:
    busy, failed = threading.Event(), threading.Event()

    def search(query: str, top_k: int = 4) -> Any:
        if query != QUERY:
            busy.set()
            assert failed.wait(PATIENCE)
            busy.clear()
        elif not failed.is_set():
            # The variant's search holds the connection by now.
            assert busy.wait(PATIENCE)
        if busy.is_set():
            failed.set()
            raise RuntimeError("another operation is in progress")
        return ROWS[:top_k]

    wrapped = wrap({"transformationType": "rewrite", "keywordEvidence": False}, search)
    retrieval = wrapped.retrieve(QUERY)
    assert (len(retrieval.matches), retrieval.trace.searches) == (4, 3)
    assert ("original", "failed beside other searches; repeated alone") in retrieval.trace.notes


@dataclass
class Found:
    results: list[dict[str, Any]]
    count: int
    took: int = 7


def as_mapping(rows: list[dict[str, Any]]) -> Any:
    return {"results": rows, "context": "\n".join(row["text"] for row in rows), "took": 3}


RESPONSES: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "a context": (as_mapping, lambda it: it["context"].count("note")),
    "sources": (
        lambda rows: {"results": rows, "sources": [{"doc": row["id"]} for row in rows]},
        lambda it: len(it["sources"]),
    ),
    "a count": (lambda rows: Found(rows, len(rows)), lambda it: it.count),
    "a count one level up": (
        lambda rows: {"hits": {"hits": rows}, "num_results": len(rows)},
        lambda it: it["num_results"],
    ),
}


@every_setting
@pytest.mark.parametrize("name", RESPONSES)
def test_what_a_response_says_of_its_passages_stays_true(setting: str, name: str) -> None:
    build, count = RESPONSES[name]
    wrapped = wrap(setting, lambda query, top_k=4: build(ROWS[:top_k]))
    with pytest.warns(qtm.SetupWarning, match="depends on their number"):
        assert count(wrapped(QUERY)) == 4
    assert count(wrapped(QUERY)) == 4


def test_a_count_stays_true_if_the_first_result_was_small() -> None:
    supply = iter([4, 4])

    def search(query: str, top_k: int = 4) -> Any:
        rows = ROWS[: min(top_k, next(supply, 60))]
        return {"results": rows, "count": len(rows)}

    wrapped = wrap("rules", search)
    with pytest.warns(qtm.SetupWarning, match="'count'"):
        found = [wrapped(QUERY) for _ in range(4)]
    assert all(len(each["results"]) == each["count"] for each in found)


def test_arguments_that_others_change_meanwhile_and_that_refer_to_themselves_are_passed_on() -> (
    None
):
    shared: dict[str, Any] = {str(n): [n] for n in range(500)}
    shared["self"] = shared
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            shared["more"] = []
            del shared["more"]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wrapped = wrap("balanced", lambda query, top_k=4, cache=None: ROWS[:top_k])
        assert all(len(wrapped(QUERY, cache=shared)) == 4 for _ in range(100))
    finally:
        is_over.set()
        writer.join()


def test_a_field_that_only_looks_like_a_count_costs_one_call_and_no_candidates() -> None:
    numbers = []

    def search(query: str, top_k: int = 4) -> Any:
        numbers.append(top_k)
        return {"results": ROWS[:top_k], "length": 50, "limit": top_k, "facets": ["blue"] * 50}

    wrapped = wrap("rules", search)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [len(wrapped(QUERY)["results"]) for _ in range(3)] == [4, 4, 4]
    assert numbers == [50, 4, 50, 50]


@pytest.mark.parametrize("write", ["returns nothing", "raises"])
def test_a_write_that_is_wrong_costs_no_result_and_is_named(write: str) -> None:
    def change(response: Any, items: Any) -> Any:
        if write == "raises":
            raise KeyError("payload")
        response["payload"] = items

    def search(query: str, top_k: int = 4) -> Any:
        rows = [{"id": "x", "score": 1.0, "text": "cats"}, {"id": "y", "score": 0.9, "text": QUERY}]
        return {"payload": rows[:top_k]}

    wrapped = wrap("rules", search, read=lambda response: response["payload"], write=change)
    with pytest.warns(qtm.SetupWarning):
        retrieval = wrapped.retrieve(QUERY)
    assert len(retrieval.response["payload"]) == 2
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("response", "unreadable")]


@every_setting
def test_an_empty_mapping_is_an_empty_result(setting: str) -> None:
    answers = iter([{}, {"matches": ROWS[:4]}])
    wrapped = wrap(setting, lambda query, top_k=4: next(answers, {"matches": ROWS[:4]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = wrapped.retrieve(QUERY)
    assert (found.status, wrapped._function.learned.is_unreadable) == ("full", False)


@dataclass
class Ask:
    question: str


def test_a_request_object_that_is_not_read_is_told_with_the_fix() -> None:
    wrapped = wrap("rules", lambda ask: ROWS[:2])
    with pytest.warns(qtm.SetupWarning, match="query_arg='ask.question'"):
        assert len(wrapped(Ask(QUERY))) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed = wrap("rules", lambda ask: ROWS[:2], query_arg="ask.question")
        assert fixed.retrieve(Ask(QUERY)).degradations == ()


class Odd(Exception):
    @property
    def status_code(self) -> int:
        return self.args[0]  # type: ignore[no-any-return]


@every_setting
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_error_that_cannot_be_read_is_raised_as_it_is(setting: str, way: str) -> None:
    def search(query: str, top_k: int = 4) -> Any:
        raise Odd

    wrapped = wrap(setting, search)
    with pytest.raises(Odd):
        asyncio.run(wrapped.aretrieve(QUERY)) if way == "async" else wrapped.retrieve(QUERY)


@pytest.mark.parametrize("texts", ["none", "questions"])
def test_passages_without_an_id_leave_no_text_in_the_log(texts: str, tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    wrapped = wrap(
        {"log": {"path": str(path), "texts": texts}},
        lambda query, top_k=4: [("Anna earns 90,000 euros", 0.9), ("Noon", 0.8)],
    )
    assert len(wrapped("Who earns what?")) == 2
    assert "90,000" not in path.read_text()
    assert "Noon" not in path.read_text()
