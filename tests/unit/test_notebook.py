"""What a notebook and a prompt show of a retrieval."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm

QUESTION = "Does Jaco have any health concerns?"
ROWS = [
    {"id": "dogs", "score": 0.9, "text": "Dogs bark."},
    {"id": "cats", "score": 0.8, "text": "Cats purr."},
    {"id": "jaco", "score": 0.7, "text": "Jaco has no health concerns."},
]


def retrieve(query: str, rows: Any = ROWS) -> qtm.Retrieval:
    return qtm.QueryMiddleware().wrap(lambda query: rows).retrieve(query)


class Cells(HTMLParser):
    """The cells of a table as texts, row by row, and every tag there is."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_row_says_where_a_passage_stands_where_it_stood_and_why() -> None:
    rows = Cells(retrieve(QUESTION)._repr_html_()).rows
    assert rows[:2] == [
        ["place", "before", "passage", "why"],
        [
            "1",
            "3",
            "jaco: Jaco has no health concerns.",
            "from 3rd to 1st: holds 'jaco', 'health' and 'concerns'",
        ],
    ]
    assert [row[:2] for row in rows[2:]] == [["2", "1"], ["3", "2"]]


def test_a_repr_is_one_short_line_without_any_text_that_says_why_it_is_degraded() -> None:
    said = r"Retrieval\(matches=3, status='full', degradations=\[\], confidence=None, trace=Trace"
    assert re.fullmatch(rf"{said}\(.*\)\)", repr(retrieve(QUESTION)))
    for shown in (repr(retrieve(" ")), retrieve(" ")._repr_html_()):
        assert "query blank" in shown


@given(st.text(), st.text())
def test_no_text_becomes_markup(text: str, name: str) -> None:
    found = retrieve("a question", [{"id": name or "x", "text": text}])
    assert Cells(found._repr_html_()).tags <= {"p", "table", "tr", "td"}


def test_a_table_shows_what_hidden_characters_a_passage_holds() -> None:
    shown = retrieve("a question", [{"id": "x", "text": "safe\u202eevil\u200b"}])._repr_html_()
    assert not {"\u202e", "\u200b"} & {*shown}
