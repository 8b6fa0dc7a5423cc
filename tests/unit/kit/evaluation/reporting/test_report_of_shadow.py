"""The report of what shadow mode logged: its sentence and its Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.reporting import shadow_markdown
from qtmiddleware.kit.evaluation.reporting.shadow import format_shadow_headline_and_details
from qtmiddleware.kit.evaluation.shadow import ShadowReport
from tests.support.shadow_world import build_question, build_shadow_report


def test_the_first_sentence_says_for_how_many_questions_another_passage_would_come_first() -> None:
    headline, beside = format_shadow_headline_and_details(build_shadow_report())
    assert (
        headline
        == "Another passage would come first for 2 of 4 questions; 1 would get the same list."
    )
    assert beside == (
        "2 would get other passages and 1 would get the same passages in another order. "
        "Half of the questions would take 90 ms or less, instead of 40 ms. "
        "A question would take 2.00 searches and 1.00 model calls, for $2.00 per 1,000 questions."
    )


@pytest.mark.parametrize(
    ("lists", "headline"),
    [
        (["abc"], "The same passage would come first for the 1 question, in the same list."),
        (
            ["abc", "abc"],
            "The same passage would come first for all 2 questions, in the same list.",
        ),
        (
            ["abc", "acb"],
            "The same passage would come first for all 2 questions; 1 would get the same list.",
        ),
        (
            ["bac"],
            "Another passage would come first for 1 of 1 question; none would get the same list.",
        ),
    ],
)
def test_where_nothing_or_everything_changes_the_sentence_says_so(
    lists: list[str], headline: str
) -> None:
    report = ShadowReport(tuple(build_question("abc", ours) for ours in lists))
    assert format_shadow_headline_and_details(report)[0] == headline


def test_markdown_tells_everything() -> None:
    report = build_shadow_report(unreadable=3)
    told = shadow_markdown(report, report.pick_examples(2)).replace("\\", "")
    for said in (
        "Another passage would come first for 2 of 4 questions; 1 would get the same list.",
        "not whether it would be better", "3 lines of the log could not be read",
        "the same passages in another order", "50%", "90 ms", "$2.00",
        "What about all?", "What about one?", "passage x",
    ):  # fmt: skip
        assert said in told
    assert "What about order?" not in told


def test_what_a_judge_prefers_stands_with_each_question_and_in_sum() -> None:
    questions = (
        build_question("abc", "xyz", better="ours"),
        build_question("abc", "dab", better="failed"),
    )
    report = ShadowReport(questions, judge="judge-1", judge_cost_usd=0.1)
    text = shadow_markdown(report, questions)
    assert "3 new, another first; the judge prefers ours" in text
    assert "1 new, another first; the judge failed" in text
    assert "not whether it would be better" not in text
    assert "| ours | 1 |\n| plain | 0 |\n| neither | 0 |\n| failed | 1 |" in shadow_markdown(report)


def test_a_price_that_is_not_known_is_told_as_unknown() -> None:
    report = ShadowReport((build_question("abc", "bac", cost_usd=None),))
    assert "at an unknown price" in format_shadow_headline_and_details(report)[1]


def test_a_log_without_a_question_is_no_report() -> None:
    with pytest.raises(ConfigError, match="needs a question that was retrieved in shadow mode"):
        shadow_markdown(ShadowReport(()))


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=40))
def test_no_text_becomes_markdown(words: str) -> None:
    report = build_shadow_report(words=words)
    text = shadow_markdown(report, report.questions)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    kinds = {it.type for token in tokens for it in (token, *(token.children or ()))}
    assert not kinds & {
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "em_open",
        "code_inline",
        "fence",
    }
    assert sum(token.type == "heading_open" for token in tokens) == 1 + len(report.questions)
