"""A function with pages: a page keeps its passages, and the caller is told."""

from __future__ import annotations

import sqlite3
from datetime import date
from typing import Any, Final

import numpy as np
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import QUERY, WIDE, scripted, transforming

ROWS: Final = [{"id": str(n), "score": 1 - n / 200, "text": f"Note {n} on dogs"} for n in range(97)]


class Calls:
    """A function with pages of *limit* rows, and how it was called."""

    def __init__(self, rows: list[dict[str, Any]] = ROWS) -> None:
        self.rows, self.seen = rows, list[tuple[str, int, int]]()

    def search(self, query: str, limit: int = 5, offset: int = 0) -> list[Any]:
        self.seen.append((query, limit, offset))
        return self.rows[offset : offset + limit]


def find_width(signature: str, *args: Any, **kwargs: Any) -> tuple[int, str]:
    """The number of passages a function of these parameters is asked for, and the page it was."""
    names: dict[str, Any] = {"widths": [], "ROWS": ROWS}
    exec(f"def search({signature}): widths.append(limit); return ROWS[:limit]", names)
    retrieval = qtm.QueryMiddleware("rules").wrap(names["search"]).retrieve(QUERY, *args, **kwargs)
    reasons = [it.detail for it in retrieval.degradations if it.reason == "paged"]
    return names["widths"][0], "".join(reasons).partition("` ")[0].strip("`")


@pytest.mark.parametrize("value", [0, np.int64(20), "eyJpZCI6IDR9", "", None, {"offset": 20}])
def test_a_parameter_with_the_name_of_a_page_is_one_in_every_call(value: Any) -> None:
    assert find_width("query, limit=4, *, page=None", page=value) == (4, "page")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", date(2024, 1, 1)),
        ("cursor", sqlite3.connect(":memory:").cursor()),
        ("skip", True),
        ("starting", 4),
    ],
)
def test_a_date_a_database_cursor_a_switch_or_another_name_is_none(name: str, value: Any) -> None:
    for signature in (f"query, limit=4, {name}=None", "query, limit=4, **kwargs"):
        assert find_width(signature, **{name: value}) == (WIDE, "")


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "page"),
    [
        ("query, offset, /, limit=4, page=None", (20,), {}, "offset"),
        ("query, start, /, limit=4, page=None", (date(2024, 1, 1), 4, 2), {}, "page"),
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


def test_no_model_is_asked_for_a_page() -> None:
    model = ScriptedModel(scripted)
    qm = qtm.QueryMiddleware(transforming("rewrite"), client=model)
    found = qm.wrap(Calls().search).retrieve(QUERY)
    assert (model.prompts, found.trace.decision.reason) == ([], "paged")
    qm.wrap(Calls().search, page_arg=False).retrieve(QUERY)
    assert model.prompts


def test_any_keywords_are_remembered_by_the_function_alone() -> None:
    limits = list[int]()

    def search(query: str, limit: int = 5, **more: Any) -> Any:
        limits.append(limit)
        return ROWS[more.get("offset", 0) :][:limit]

    qm = qtm.QueryMiddleware("rules")
    one, other = qm.wrap(search), qm.wrap(search)
    for wrapped, page in ((one, {}), (one, {"offset": 5}), (one, {}), (other, {})):
        wrapped(QUERY, **page)
    assert limits == [WIDE, 5, 5, WIDE]


def test_it_is_said_in_each_result_and_logged_once_for_a_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    search = qtm.QueryMiddleware("rules").wrap(Calls().search)
    found = [search.retrieve(QUERY) for _ in range(3)]
    details = {it.detail for retrieval in found for it in retrieval.degradations}
    (detail,) = details
    assert "`offset` selects a page" in detail
    assert "page_arg=False" in detail
    assert caplog.messages == [f"Calls.search(): {detail}, with page_arg='offset' if it does"]
