"""A measurement beside its baseline, in sentences and as a pull request's comment."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from qtmiddleware.kit.evaluation.gate import GateResult, Rule, measure_changes
from qtmiddleware.kit.evaluation.reporting import write_comment, write_headline, write_sentences
from tests.unit.kit.evaluation.reporting.test_report_markdown import HOSTILE, cells, tokens


def gate(
    gains: Mapping[str, Mapping[str, float]],
    rule: Rule | None = None,
    *,
    count: int = 40,
    name: str = "base.json",
) -> GateResult:
    """The gate of systems that had 0.5 on *count* questions and the ids in *gains*, which gained that."""
    ids = [f"q{number}" for number in range(count)]
    before = {system: dict.fromkeys([*ids, *moved], 0.5) for system, moved in gains.items()}
    after = {
        system: {id_: 0.5 + gains[system].get(id_, 0.0) for id_ in found}
        for system, found in before.items()
    }
    return GateResult(name, rule or Rule(), measure_changes(before, after, rule))


def lost(count: int, by: float = -0.2) -> dict[str, float]:
    return {f"q{number}": by - number / 1000 for number in range(count)}


def test_a_comment_begins_with_the_verdict_and_has_a_row_for_each_system() -> None:
    text = write_comment(gate({"raw": {}, "rules": lost(20)}))
    assert text.splitlines()[0] == "**Retrieval got worse with “rules”.**"
    assert (
        "of 40 questions, 20 got worse and 0 got better. nDCG@10 fell from 0.500 to 0.395, by 10.5 points"
        in text
    )
    head, raw, rules = cells(text)
    assert head == ["system", "before", "after", "change [95%]", "better", "worse", "verdict"]
    assert raw == ["raw", "0.500", "0.500", "0.0 [0.0, 0.0]", "0", "0", "not worse"]
    assert (rules[:3], rules[4:]) == (["rules", "0.500", "0.395"], ["0", "20", "worse"])


def test_a_comment_names_the_five_worst_questions_by_their_ids() -> None:
    text = write_comment(gate({"rules": lost(20)}))
    assert "- rules: q19 (-21.9), q18 (-21.8), q17 (-21.7), q16 (-21.6), q15 (-21.5)\n" in text


def test_a_comment_on_a_harmless_change_says_so_and_names_what_lost() -> None:
    text = write_comment(gate({"rules": {"q1": -0.1, "q2": 0.2}}))
    assert text.splitlines()[0] == (
        "**Found no loss that is more than chance. A loss of up to 0.7 points with “rules” cannot be ruled out.**"
    )
    assert "- rules: q1 (-10.0)\n" in text
    assert "got worse" not in text.splitlines()[0]


def test_what_of_it_is_more_than_chance_is_said() -> None:
    assert "Both are more than chance." in write_sentences(gate({"rules": lost(20)}))[1]
    few = dict.fromkeys((f"q{number}" for number in range(40)), -0.01) | {
        f"q{number}": 0.5 for number in range(3)
    }
    assert (
        "So many worse questions are more than chance." in write_sentences(gate({"rules": few}))[1]
    )
    assert "This may be chance." in write_sentences(gate({"rules": lost(2)}))[1]
    assert "The gain is more than chance." in write_sentences(gate({"rules": lost(20, 0.3)}))[1]
    assert write_sentences(gate({"rules": {}}))[1] == "“rules”: no change in 40 questions."


def test_a_bound_is_told_in_points() -> None:
    rule = Rule.parse("ndcg@10 -0.01")
    assert (
        "more than the allowed loss of 1.0 points"
        in write_sentences(gate({"rules": lost(20)}, rule))[1]
    )
    assert (
        "within the allowed loss of 1.0 points"
        in write_sentences(gate({"rules": lost(1)}, rule))[1]
    )


def test_few_questions_are_told_to_be_too_few() -> None:
    assert write_headline(gate({"rules": lost(2)}, count=8)) == (
        "8 questions are too few to tell whether retrieval got worse. Use at least 30."
    )
    assert write_headline(gate({"rules": {"q0": -0.1}}, count=1)).startswith(
        "1 question is too few to tell"
    )


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30) | st.just(HOSTILE), st.text(max_size=30) | st.just(HOSTILE))
def test_no_name_and_no_id_is_markup(name: str, id_: str) -> None:
    text = write_comment(gate({name: {id_: -0.3}}, name=name))
    kinds = {it.type for it in tokens(text)}
    assert kinds.isdisjoint(
        {
            "html_inline",
            "html_block",
            "link_open",
            "image",
            "code_inline",
            "em_open",
            "heading_open",
        }
    )
    assert len(cells(text)) == 2
    assert MarkdownIt("commonmark").enable("table").parse(text)[0].type == "paragraph_open"
