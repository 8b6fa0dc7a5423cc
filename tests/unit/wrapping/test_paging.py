"""A function with pages: its pages hold what they hold without the middleware, and the caller is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import QUERY, WIDE, scripted

CONFIGS: Final[Mapping[str, Any]] = {
    **{name: name for name in ("rules", "words", "thorough", "research")},
    **{name: {"transformationType": name} for name in ("rewrite", "all")},
    "rerank": {"rerank": True},
}
PATIENT: Final = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
ROWS: Final = [{"id": str(n), "score": 1 - n / 200, "text": f"Note {n} on dogs"} for n in range(97)]
PLANTED: Final = 7
ROWS[PLANTED]["text"] = "Jaco has no health concerns"


def middleware(name: str = "rules", **more: Any) -> qtm.QueryMiddleware:
    config = qtm.Config.load(CONFIGS[name]).overridden({"limits": PATIENT, **more})
    return qtm.QueryMiddleware(
        config, client=ScriptedModel(scripted), reranker=lambda query, texts: [*map(len, texts)]
    )


class Calls:
    """A function with pages of *limit* rows, and how it was called."""

    def __init__(self, rows: Sequence[Any] = ROWS) -> None:
        self.rows, self.seen = rows, list[tuple[str, int, int]]()

    def search(self, query: str, limit: int = 5, offset: int = 0) -> list[Any]:
        self.seen.append((query, limit, offset))
        return list(self.rows[offset : offset + limit])

    async def asearch(self, query: str, limit: int = 5, offset: int = 0) -> list[Any]:
        return self.search(query, limit, offset)


# --- what is a page -------------------------------------------------------------------------------


def find_width(signature: str, *args: Any, wrap: str = "search", **kwargs: Any) -> tuple[int, str]:
    """The number of passages a function of these parameters is asked for, and the page it was."""
    names: dict[str, Any] = {"widths": [], "ROWS": ROWS, "partial": partial}
    exec(f"def search({signature}): widths.append(limit); return ROWS[:limit]", names)
    fn, _, options = wrap.partition("; ")
    wrapped = middleware().wrap(eval(fn, names), **eval(f"dict({options})", {}))
    retrieval = wrapped.retrieve(QUERY, *args, **kwargs)
    reasons = [it.detail for it in retrieval.degradations if it.reason == "paged"]
    return names["widths"][0], "".join(reasons).partition("` ")[0].strip("`")


NAMES: Final = (
    *("offset", "skip", "start", "page", "cursor", "page_token", "next_token", "after"),
    *("pageToken", "page_number", "pagination"),
)
VALUES: Final = (0, 20, np.int64(20), "eyJpZCI6IDR9", "", None, {"offset": 20})


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_with_the_name_of_a_page_is_one_in_every_call(name: str) -> None:
    assert find_width(f"query, limit=4, *, {name}=0") == (4, name)
    for value in VALUES:
        assert find_width(f"query, limit=4, *, {name}=None", **{name: value}) == (4, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", date(2024, 1, 1)),
        ("after", datetime(2024, 1, 1)),  # noqa: DTZ001
        ("cursor", sqlite3.connect(":memory:").cursor()),
        ("skip", True),
        ("paginate", False),
        ("starting", 4),
        ("from_", 4),
        ("scroll_id", "abc"),
    ],
)
def test_a_date_a_database_cursor_a_switch_or_another_name_is_none(name: str, value: Any) -> None:
    for signature in (f"query, limit=4, {name}=None", "query, limit=4, **kwargs"):
        assert find_width(signature, **{name: value}) == (WIDE, "")


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "page"),
    [
        ("query, limit=4, page=None", (), {}, "page"),
        ("query, offset, /, limit=4, page=None", (20,), {}, "offset"),
        ("query, start, /, limit=4, page=None", (date(2024, 1, 1), 4, 2), {}, "page"),
        ("query, limit=4, **kwargs", (), {}, ""),
        ("query, limit=4, **kwargs", (), {"offset": 0}, "offset"),
        ("query, limit=4, **kwargs", (), {"offset": None}, ""),
        ("query, limit=4, **kwargs", (), {"filter": {"page": 3}}, ""),
        ("*args, limit=4, **kwargs", (), {"after": 10}, "after"),
    ],
)
def test_a_page_is_found_wherever_it_is_passed(
    signature: str, args: Any, kwargs: Any, page: str
) -> None:
    assert find_width(signature, *args, **kwargs) == (4 if page else WIDE, page)


# --- what comes of it -----------------------------------------------------------------------------


def turn_pages(
    wrapped: Any, size: int, *, is_async: bool, count: int = 4, **more: Any
) -> list[list[Any]]:
    pages = []
    for offset in range(0, count * size, size):
        found = wrapped(QUERY, limit=size, offset=offset, **more)
        pages.append(asyncio.run(found) if is_async else found)
    return pages


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=8, deadline=None)
@given(size=st.integers(1, 30), count=st.integers(0, 97))
def test_all_pages_together_are_the_plain_ones_without_repeats(
    name: str, is_async: bool, size: int, count: int
) -> None:
    calls = Calls(ROWS[:count])
    wrapped = middleware(name).wrap(calls.asearch if is_async else calls.search)
    pages = turn_pages(wrapped, size, is_async=is_async)
    for number, page in enumerate(pages):
        assert Counter(row["id"] for row in page) == Counter(
            row["id"] for row in calls.rows[number * size :][:size]
        )
    assert len(calls.seen) == len(pages), "one search for each page"
    assert {(query, limit) for query, limit, _ in calls.seen} == {(QUERY, size)}, "as it was called"


def test_a_models_words_put_a_page_in_order_without_a_search() -> None:
    model = ScriptedModel({"rewrite": "Which medical conditions or health concerns has the dog?"})
    config = {
        "transformationType": "rewrite",
        "limits": PATIENT,
        "fusion": {"weights": {"original": 0}},
    }
    rows = [*ROWS[20:24], {"id": "x", "score": 0.5, "text": "medical conditions"}]
    calls = Calls(rows)
    found = (
        qtm.QueryMiddleware(config, client=model)
        .wrap(calls.search)
        .retrieve(QUERY, limit=5, offset=0)
    )
    assert calls.seen == [(QUERY, 5, 0)]
    assert [variant.kind for variant in found.variants] == ["original"]
    assert found.matches[0].id == "x"
    assert (found.trace.searches, found.trace.llm_calls) == (1, 1)


@pytest.mark.parametrize(
    "more",
    [
        {"transformationType": "stepback"},
        {"transformationType": "rewrite", "keywordEvidence": {"enabled": False}},
    ],
)
def test_a_model_whose_words_do_not_count_is_not_asked(more: dict[str, Any]) -> None:
    model = ScriptedModel(scripted)
    calls = Calls()
    qm = qtm.QueryMiddleware({"limits": PATIENT, **more}, client=model)
    found = qm.wrap(calls.search).retrieve(QUERY)
    assert (model.prompts, found.trace.decision.reason) == ([], "paged")
    qm.wrap(calls.search, page_arg=False).retrieve(QUERY)
    assert model.prompts


def test_any_keywords_are_remembered_by_the_function_alone() -> None:
    limits = list[int]()

    def search(query: str, limit: int = 5, **more: Any) -> Any:
        limits.append(limit)
        return ROWS[more.get("offset", 0) :][:limit]

    qm = middleware()
    one, other = qm.wrap(search), qm.wrap(search)
    one(QUERY)
    one(QUERY, offset=5)
    one(QUERY)
    other(QUERY)
    assert limits == [WIDE, 5, 5, WIDE]


# --- what is said of it ---------------------------------------------------------------------------


DETAIL: Final = (
    "`offset` selects a page, so the passages of the plain call are only reordered;"
    " wrap with page_arg=False if it does not select a page"
)
NOTE: Final = ("query", "`offset` selects a page: the plain call's passages in a new order")


def test_it_is_said_in_each_result_and_logged_once_for_a_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = middleware().wrap(Calls().search)
    found = [search.retrieve(QUERY) for _ in range(3)]
    assert {(*it.degradations, it.status) for it in found} == {
        (qtm.Degradation("query", "paged", DETAIL), "degraded")
    }
    assert "paged" in repr(found[0])
    assert NOTE in found[0].trace.notes
    assert caplog.messages == [f"Calls.search(): {DETAIL}, with page_arg='offset' if it does"]
