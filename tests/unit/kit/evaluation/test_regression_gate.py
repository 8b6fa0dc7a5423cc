"""Whether a measurement is worse than its baseline."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import MEASURES, PRIMARY, Dataset, Question
from qtmiddleware.kit.evaluation.gate import (
    Baseline,
    Change,
    GateResult,
    Rule,
    compare_with_baseline,
    measure_changes,
)
from qtmiddleware.kit.evaluation.measures import FEW, compute_sign_test_p_value
from qtmiddleware.protocols import Passage
from tests.support.report_world import comparison, score

QUESTIONS = [f"q{number}" for number in range(40)]
values = st.sampled_from([0.0, 0.25, 0.5, 0.63, 0.75, 1.0])
runs = st.dictionaries(st.sampled_from(QUESTIONS), st.tuples(values, values), max_size=40)
seeds = st.integers(0, 3)


def compare_one(
    before: Mapping[str, float],
    after: Mapping[str, float],
    rule: Rule | None = None,
    *,
    seed: int = 0,
) -> Change:
    (change,) = measure_changes({"rules": before}, {"rules": after}, rule, seed=seed)
    return change


def shifted(
    worse: int, better: int = 0, *, by: float = 0.25, of: int = 100
) -> tuple[dict[str, float], dict[str, float]]:
    """Two runs of which so many questions got worse and better *by* as much."""
    before = {f"q{number}": 0.5 for number in range(of)}
    after = dict(before)
    for number in range(worse):
        after[f"q{number}"] -= by
    for number in range(worse, worse + better):
        after[f"q{number}"] += by
    return before, after


# --- the rule -------------------------------------------------------------------------------------


def test_a_significant_loss_is_worse() -> None:
    change = compare_one(*shifted(20, 2))
    assert (change.verdict, change.worse_count, change.better_count) == ("worse", 20, 2)
    assert change.has_significant_loss
    assert change.difference.high < 0


def test_many_questions_that_lose_a_little_are_worse_although_a_few_gain_much() -> None:
    before = {f"q{number}": 0.5 for number in range(100)}
    after = {
        id_: 0.45 if number < 40 else 1.0 if number < 45 else 0.5
        for number, (id_, _) in enumerate(before.items())
    }
    change = compare_one(before, after)
    assert (change.verdict, change.has_significant_loss, change.has_mostly_losses) == (
        "worse",
        False,
        True,
    )
    assert change.difference.gain > 0


def test_a_few_large_losses_among_many_small_gains_are_worse_by_the_mean_alone() -> None:
    before = dict.fromkeys((f"q{number}" for number in range(60)), 0.9)
    after = {
        id_: 0.0 if number < 12 else 0.91 if number < 26 else 0.9
        for number, id_ in enumerate(before)
    }
    change = compare_one(before, after)
    assert (change.verdict, change.has_significant_loss, change.has_mostly_losses) == (
        "worse",
        True,
        False,
    )


def test_a_gain_and_what_may_be_chance_are_not_worse() -> None:
    for worse, better in ((0, 20), (8, 5), (3, 0)):
        assert compare_one(*shifted(worse, better)).verdict == "not worse"


def test_with_few_questions_what_is_not_found_worse_is_inconclusive() -> None:
    assert compare_one(*shifted(3, 1, of=8)).verdict == "inconclusive"
    assert compare_one(*shifted(0, 0, of=FEW - 1)).verdict == "inconclusive"
    assert compare_one(*shifted(0, 0, of=FEW)).verdict == "not worse"
    assert compare_one(*shifted(8, 0, of=8)).verdict == "worse"


def test_a_fixed_bound_allows_exactly_that_loss_of_the_mean() -> None:
    rule = Rule.parse("ndcg@10 -0.01")
    assert compare_one(*shifted(4), rule).verdict == "not worse"
    assert compare_one(*shifted(5), rule).verdict == "worse"
    assert compare_one(*shifted(1, of=8), rule).verdict == "worse"


def test_both_tests_of_every_system_that_changed_are_corrected_for_and_no_other() -> None:
    before, after = shifted(9, 1)
    still, moved = (
        {f"system {number}": values for number in range(5)} for values in (before, after)
    )
    alone = compare_one(before, after)
    beside_still = measure_changes({"rules": before, **still}, {"rules": after, **still})[0]
    beside_moved = measure_changes({"rules": before, **still}, {"rules": after, **moved})[0]
    assert alone.sign_p == pytest.approx(2 * compute_sign_test_p_value(1, 9), rel=0.05)
    assert beside_still == alone
    assert beside_moved.sign_p == pytest.approx(6 * alone.sign_p, rel=0.05)
    assert (alone.verdict, beside_moved.verdict) == ("worse", "not worse")


def test_a_question_that_failed_counts_as_0_on_its_side() -> None:
    before, after = shifted(0)
    for number in range(12):
        del after[f"q{number}"]
    change = compare_one(before, after)
    assert (change.verdict, change.worse_count, len(change.gains)) == ("worse", 12, 100)
    assert change.after == pytest.approx(0.44)


@settings(max_examples=40, deadline=None)
@given(runs, seeds)
def test_equal_runs_are_never_worse(pairs: dict[str, tuple[float, float]], seed: int) -> None:
    before = {id_: value for id_, (value, _) in pairs.items()}
    change = compare_one(before, dict(before), seed=seed)
    assert change.verdict == ("not worse" if len(before) >= FEW else "inconclusive")
    assert (change.worse_count, change.better_count, change.difference.p_holm, change.sign_p) == (
        0,
        0,
        1.0,
        1.0,
    )


@settings(max_examples=40, deadline=None)
@given(runs, seeds)
def test_the_way_back_is_the_way_there_with_its_signs_turned(
    pairs: dict[str, tuple[float, float]], seed: int
) -> None:
    before, after = ({id_: pair[side] for id_, pair in pairs.items()} for side in (0, 1))
    there, back = compare_one(before, after, seed=seed), compare_one(after, before, seed=seed)
    assert (there.worse_count, there.better_count) == (back.better_count, back.worse_count)
    assert there.sign_p == back.sign_p
    assert there.difference.gain == pytest.approx(-back.difference.gain, abs=1e-12)
    assert (there.difference.low, there.difference.high) == pytest.approx(
        (-back.difference.high, -back.difference.low), abs=1e-9
    )
    assert there.difference.p_holm == pytest.approx(back.difference.p_holm, abs=0.02)
    assert not (
        there.verdict == back.verdict == "worse"
        and there.has_significant_loss
        and back.has_significant_loss
    )


@settings(max_examples=40, deadline=None)
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_the_questions_has_no_influence(
    pairs: dict[str, tuple[float, float]], chance: Any
) -> None:
    before, after = ({id_: pair[side] for id_, pair in pairs.items()} for side in (0, 1))
    ids = list(pairs)
    chance.shuffle(ids)
    mixed = compare_one(
        {id_: before[id_] for id_ in ids}, {id_: after[id_] for id_ in reversed(ids)}
    )
    assert mixed == compare_one(before, after)
    assert mixed.worst() == compare_one(before, after).worst()


@settings(max_examples=20, deadline=None)
@given(runs)
def test_better_everywhere_is_never_worse(pairs: dict[str, tuple[float, float]]) -> None:
    before = {id_: min(pair) for id_, pair in pairs.items()}
    after = {id_: max(pair) for id_, pair in pairs.items()}
    assert compare_one(before, after).verdict != "worse"


# --- what is written after --fail-if --------------------------------------------------------------


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_may_have_a_bound_however_it_is_written(measure: str) -> None:
    for text in (f"{measure} -0.02", f" {measure.lower()}   -2e-2 ", f"{measure.upper()} -.02"):
        assert (Rule.parse(text).measure, Rule.parse(text).bound) == (measure, -0.02)
    assert Rule.parse(" Worse ") == Rule()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--fail-if must be worse, or a measure and a change"),
        ("better", "not 'better'. The measures are nDCG@10, R@10, MRR@10, P@5, AP"),
        ("ndcg@5 -0.01", "not 'ndcg@5 -0.01'"),
        ("ndcg@10", "must have a change from -1 to 0 after the measure"),
        ("ndcg@10 0.01", "must have a change from -1 to 0"),
        ("ndcg@10 -5", "must have a change from -1 to 0"),
        ("ndcg@10 -1 %", "must have a change from -1 to 0"),
        ("ndcg@10 nan", "must have a change from -1 to 0"),
        ("worse -0.01", "--fail-if must be worse"),
    ],
)
def test_what_is_no_rule_is_refused_with_one_that_is(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Rule.parse(text)
    assert said in str(raised.value)
    assert "-0.01" in str(raised.value)


# --- the file -------------------------------------------------------------------------------------

DATA = Dataset(
    "set",
    (Passage("p1", "one"), Passage("p2", "two")),
    (Question("a", "What?"), Question("b", "Why?")),
    {"a": {"p1": 1}, "b": {"p2": 1}},
)


def plain(**changes: Any) -> dict[str, Any]:
    """A baseline as it is written, with other things in it."""
    found = comparison(score("rules", {"a": 0.1, "b": 0.0}))
    known = replace(found, fingerprints=DATA.fingerprints)
    return {**json.loads(json.dumps(known.to_dict())), **changes}


def test_a_baseline_is_read_from_what_a_comparison_writes(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_text(json.dumps(plain(model="m")), encoding=encoding)
        read = Baseline.read(file)
        assert read.values[PRIMARY] == {"off": {"a": 0.5, "b": 0.5}, "rules": {"a": 0.6, "b": 0.5}}
        assert (read.fingerprints, read.model, read.version) == (DATA.fingerprints, "m", "0.1.0")


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: None, "cannot be read: No such file"),
        (lambda file: file.mkdir(), "cannot be read: Is a directory"),
        (lambda file: file.write_text(""), "is no JSON, or was cut"),
        (lambda file: file.write_text(json.dumps(plain())[:-40]), "is no JSON, or was cut"),
        (lambda file: file.write_bytes(b"\xff\xfe\xfa"), "is not UTF-8"),
        (lambda file: file.write_text("[" * 100_000), "is no JSON, or was cut"),
        (lambda file: file.write_text("[]"), "must hold what qtm bench --json prints"),
        (lambda file: file.write_text('"text"'), "must hold what qtm bench --json prints"),
        (lambda file: file.write_text('{"systems": []}'), "must hold what qtm bench --json prints"),
        (
            lambda file: file.write_text(json.dumps({"systems": [{"name": "off", "means": {}}]})),
            "must hold what",
        ),
        (lambda file: file.write_text(json.dumps(plain(systems=None))), "must hold what qtm bench"),
        (
            lambda file: file.write_text(json.dumps(plain(systems=plain()["systems"] * 2))),
            "must hold what qtm bench",
        ),
        (
            lambda file: file.write_text(json.dumps(plain(fingerprints={"questions": 1}))),
            "must hold what qtm bench",
        ),
        (lambda file: file.write_text(json.dumps(plain(systems=[]))), "must hold judged questions"),
        (
            lambda file: file.write_text(
                json.dumps(plain(systems=[{"name": "off", "perQuery": {PRIMARY: {}}}]))
            ),
            "must hold judged questions",
        ),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_what_to_do(
    tmp_path: Path, make: Break, said: str
) -> None:
    file = tmp_path / "base.json"
    make(file)
    with pytest.raises(ConfigError) as raised:
        Baseline.read(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)
    assert "qtm bench ... --json > base.json" in str(raised.value)
    assert raised.value.path == "--baseline"


@pytest.mark.parametrize(
    "value", [True, "0.5", None, -0.1, 1.5, float("nan"), float("inf"), [], {}]
)
def test_a_value_that_no_measure_has_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="must hold what qtm bench --json prints"):
        Baseline.from_report(
            plain(systems=[{"name": "off", "perQuery": {PRIMARY: {"a": value}}}]), "base.json"
        )


junk = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["systems", "name", "perQuery", PRIMARY, "a", "fingerprints", "version"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(junk)
def test_any_json_is_a_baseline_or_refused(value: Any) -> None:
    try:
        found = Baseline.from_report(value, "base.json")
    except ConfigError:
        return
    assert any(found.values[PRIMARY].values())


def test_what_was_measured_on_the_same_data_in_another_order_is_compared() -> None:
    turned = replace(
        DATA,
        passages=DATA.passages[::-1],
        questions=DATA.questions[::-1],
        qrels=dict(reversed(DATA.qrels.items())),
    )
    Baseline.from_report(plain(), "base.json").check_dataset(turned)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (replace(DATA, passages=DATA.passages[:1]), "other passages,"),
        (replace(DATA, passages=()), "other passages,"),
        (
            replace(DATA, questions=(Question("a", "Where?"), Question("b", "Why?"))),
            "other questions,",
        ),
        (replace(DATA, qrels={"a": {"p1": 2}, "b": {"p2": 1}}), "other judgements,"),
        (DATA.only({"a"}), "other questions and judgements,"),
    ],
)
def test_other_data_is_refused_and_named(data: Dataset, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        Baseline.from_report(plain(), "base.json").check_dataset(data)
    assert "Use the same --function, --data" in str(raised.value)


def test_that_no_system_is_in_both_is_refused() -> None:
    baseline = Baseline.from_report(plain(), "base.json")
    baseline.check_systems(["mine", "rules"], Rule())
    with pytest.raises(ConfigError, match="must hold one of the systems mine, not off and rules"):
        baseline.check_systems(["mine"], Rule())


def test_a_measure_that_was_not_taken_is_refused() -> None:
    baseline, rule = Baseline.from_report(plain(), "base.json"), Rule.parse("r@10 -0.1")
    with pytest.raises(ConfigError, match="has no R@10; write it with"):
        baseline.check_systems(["off"], rule)


def test_questions_that_this_run_does_not_have_are_refused_and_not_taken_for_failed_ones() -> None:
    found = comparison(score("rules", many(0.1)))
    report = found.to_dict()
    report["systems"][0]["perQuery"][PRIMARY]["invented"] = 1.0
    baseline = Baseline.from_report(report, "base.json")
    with pytest.raises(ConfigError, match=r"has 1 question that this run does not .*'invented'"):
        compare_with_baseline(baseline, found)
    failed = replace(found, asked=frozenset({*many(0.1), "invented"}))
    assert compare_with_baseline(baseline, failed).question_count == 41


def test_a_file_that_has_no_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read: it is not a file"):
        Baseline.read("/dev/zero")


# --- both together --------------------------------------------------------------------------------


def many(gain: float, count: int = 40) -> dict[str, float]:
    return {f"q{number}": gain for number in range(count)}


def gate(before: Mapping[str, float], after: Mapping[str, float], **known: Any) -> GateResult:
    """The gate of a system ``rules`` that gained *before* over off, and now gains *after*."""
    old = {**comparison(score("rules", before), score("old", before)).to_dict(), **known}
    now = comparison(score("rules", after), score("new", after))
    return compare_with_baseline(
        Baseline.from_report(old, "base.json"),
        replace(now, asked=frozenset({*before, *after})),
        model_name="b",
    )


def test_the_systems_in_both_are_compared_and_the_others_named() -> None:
    found = gate(many(0.2), many(0.1))
    assert [change.name for change in found.changes] == ["off", "rules"]
    assert (found.verdict, found.missing, found.new, found.question_count) == (
        "worse",
        ("old",),
        ("new",),
        40,
    )
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["systems"][1]["worst"][0] == {"id": "q0", "gain": pytest.approx(-0.1)}


def test_another_version_model_or_settings_are_told_and_compared() -> None:
    found = gate(many(0.2), many(0.2), version="0.0.1", model="a", settingsHash={"rules": "x"})
    assert found.verdict == "not worse"
    assert "The baseline is from qtmiddleware 0.0.1, this run from 0.1.0." in found.notes
    assert "The baseline was measured with the model a, this run with b." in found.notes


def test_settings_that_changed_are_told() -> None:
    old = Baseline.from_report(
        {**comparison(score("rules", many(0.1))).to_dict(), "settingsHash": {"rules": "x"}},
        "b.json",
    )
    new = replace(comparison(score("rules", many(0.1))), settings={"off": "r", "rules": "y"})
    assert compare_with_baseline(old, new).notes == ("The settings of rules changed.",)


def test_questions_that_failed_are_told() -> None:
    found = gate(many(0.2), many(0.2, 38))
    assert "In this run, 2 questions failed. A question that failed counts as 0." in found.notes
    assert found.headline.startswith("Found no loss that is more than chance.")


@pytest.mark.parametrize(
    ("worse", "better", "of", "rule", "said"),
    [
        (20, 2, 100, None, "Retrieval got worse with “rules”."),
        (3, 1, 8, None, "8 questions are too few to tell whether retrieval got worse."),
        (4, 0, 100, "ndcg@10 -0.01", "No system lost more than the allowed 1.0 points."),
        (5, 0, 100, "ndcg@10 -0.01", "This is more than the allowed loss of 1.0 points."),
        (0, 20, 100, None, "This is more than chance."),
        (3, 3, 100, None, "A loss of up to 1.2 points with “rules” cannot be ruled out."),
        (9, 1, 100, None, "of 100 questions, 9 got worse and 1 got better."),
    ],
)
def test_the_sentences_say_how_much_changed_and_whether_that_may_be_chance(
    worse: int, better: int, of: int, rule: str | None, said: str
) -> None:
    parsed = Rule() if rule is None else Rule.parse(rule)
    change = compare_one(*shifted(worse, better, of=of), parsed)
    assert said in " ".join(GateResult("base.json", parsed, (change,)).sentences)
