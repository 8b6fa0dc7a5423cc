from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from qtmiddleware.kit.evaluation import Comparison, Dataset
from qtmiddleware.kit.evaluation.reporting import headings, markdown, verdict
from qtmiddleware.preprocessing.text import clean_text
from tests.support.report_world import comparison, data, run, score, several

HOSTILE = "a | b\n\n# c <script>alert(1)</script> [d](javascript:e) `f` *g* &lt; \\| ~~h~~ ![i](http://j) - k 1. l\u202em"


def tokens(text: str) -> list[Token]:
    """Everything a reader of Markdown makes of *text*, with tables and HTML."""
    parsed = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return [it for token in parsed for it in (token, *(token.children or ()))]


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, as they are read."""
    rows: list[list[str]] = []
    inside = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        inside = token.type in ("th_open", "td_open") or (inside and token.type == "inline")
        if inside and token.type == "inline":
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def named(name: str) -> tuple[Comparison, Dataset]:
    """A comparison in which everything that others wrote is *name*."""
    runs = {name: run(name, text=name, ids=(name, "p1"), variants=[("hyde", name, 0.5)])}
    found = comparison(
        score(f"{name}!", {name: -0.2}, runs=runs, stages={name: (1.0, 2.0)}),
        notes=(name,),
        name=name,
    )
    return found, data(found, words=name)


def test_it_tells_the_verdict_the_notes_the_figures_the_stages_and_the_worst_questions() -> None:
    found = several()
    text = markdown(found, data(found))
    headline, _, lede, *_ = text.replace("\\", "").splitlines()
    assert f"{headline.removeprefix('# ')} {lede}" == verdict(found)
    assert headline.startswith(
        "# The right passage comes first for 26 of 40 questions instead of 0; "
    )
    assert "> **Note:** Replies are recorded." in text
    table = cells(text)
    assert table[0] == headings(found, wide=True)
    assert [row[0] for row in table[1:8]] == [system.name for system in found.systems]
    assert "- system 1: search.original 12 / 20, transform.rewrite 300 / 500" in text
    assert "words of question q0" in text
    assert "rewrite, weight 0.70: rewritten q" in text
    assert "seed 7, corrected for 6 comparisons after Holm" in text


def test_it_says_that_questions_are_synthetic_even_where_nobody_noted_it() -> None:
    found = several()
    asked = data(found)
    first = replace(asked.questions[0], metadata={"synthetic": True})
    assert "> **Note:** The questions are synthetic" in markdown(
        found, replace(asked, questions=(first, *asked.questions[1:]))
    )


def test_it_needs_no_data_and_no_stages() -> None:
    text = markdown(comparison(score("ours", {"q1": -0.1})))
    assert "what about q1?" in text
    assert "Time of each stage" not in text


def test_hostile_texts_are_read_as_texts_alone() -> None:
    found, asked = named(HOSTILE)
    text = markdown(found, asked)
    kinds = {token.type for token in tokens(text)}
    assert not kinds & {
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "s_open",
        "em_open",
        "code_inline",
        "fence",
    }
    table = cells(text)
    assert {len(row) for row in table[:3]} == {len(headings(found, wide=True))}
    assert table[2][0].startswith("a | b # c <script>alert(1)</script> [d](javascript:e)")
    assert "\u202e" not in text


@settings(deadline=None, max_examples=50)
@given(st.text(min_size=1, max_size=50))
def test_no_text_breaks_a_table_or_becomes_markup(name: str) -> None:
    found, asked = named(name)
    text = markdown(found, asked)
    parsed = tokens(text)
    assert not {token.type for token in parsed} & {
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "em_open",
        "code_inline",
    }
    table = cells(text)
    assert [len(row) for row in table] == [len(headings(found, wide=True))] * 3
    assert table[2][0] == clean_text(f"{name}!")
    assert sum(token.type == "heading_open" for token in parsed) == 4
