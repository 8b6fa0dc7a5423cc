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
from qtmiddleware.kit.evaluation.measures import FEW
from qtmiddleware.protocols import Passage
from tests.support.report_world import comparison, score

WORSE = Rule()
values = st.sampled_from([0.0, 0.25, 0.5, 0.63, 0.75, 1.0])
runs = st.dictionaries(
    st.sampled_from([f"q{number}" for number in range(40)]), st.tuples(values, values), max_size=40
)
seeds = st.integers(0, 3)


def compare_one(
    before: Mapping[str, float], after: Mapping[str, float], rule: Rule = WORSE, *, seed: int = 0
) -> Change:
    (change,) = measure_changes({"rules": before}, {"rules": after}, rule, seed=seed)
    return change


def shifted(
    worse: int, better: int = 0, *, by: float = 0.25, of: int = 100
) -> tuple[dict[str, float], dict[str, float]]:
    """Two runs of which so many questions got worse and better *by* as much."""
    before = {f"q{number}": 0.5 for number in range(of)}
    changes = [-by] * worse + [by] * better + [0.0] * (of - worse - better)
    return before, {id_: 0.5 + change for id_, change in zip(before, changes, strict=True)}


# --- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worse", "better", "of", "verdict"),
    [
        (20, 2, 100, "worse"),
        (8, 0, 8, "worse"),
        (0, 20, 100, "not worse"),
        (8, 5, 100, "not worse"),
        (3, 0, 100, "not worse"),
        (0, 0, FEW, "not worse"),
        (3, 1, 8, "inconclusive"),
        (0, 0, FEW - 1, "inconclusive"),
    ],
)
def test_a_loss_that_is_more_than_chance_is_worse(
    worse: int, better: int, of: int, verdict: str
) -> None:
    assert compare_one(*shifted(worse, better, of=of)).verdict == verdict


def test_the_mean_and_the_number_of_questions_are_tested() -> None:
    before = dict.fromkeys((f"q{number}" for number in range(100)), 0.5)
    pairs = enumerate(before)
    many = {id_: 0.45 if n < 40 else 1.0 if n < 45 else 0.5 for n, id_ in pairs}
    by_number = compare_one(before, many)
    assert (by_number.verdict, by_number.difference.gain > 0) == ("worse", True)
    large = {id_: 0.0 if n < 12 else 0.51 if n < 26 else 0.5 for n, id_ in enumerate(before)}
    by_mean = compare_one(before, large)
    assert (by_mean.verdict, by_mean.worse_count < by_mean.better_count) == ("worse", True)


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
    beside_still = measure_changes({"rules": before, **still}, {"rules": after, **still}, WORSE)[0]
    beside_moved = measure_changes({"rules": before, **still}, {"rules": after, **moved}, WORSE)[0]
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


@settings(max_examples=30, deadline=None)
@given(runs, seeds, st.randoms(use_true_random=False))
def test_equal_runs_better_ones_and_other_orders_are_never_worse(
    pairs: dict[str, tuple[float, float]], seed: int, chance: Any
) -> None:
    before, after = ({id_: pair[side] for id_, pair in pairs.items()} for side in (0, 1))
    same = compare_one(before, dict(before), seed=seed)
    assert same.verdict == ("not worse" if len(before) >= FEW else "inconclusive")
    assert (same.worse_count, same.difference.p_holm, same.sign_p) == (0, 1.0, 1.0)
    best = {id_: max(pair) for id_, pair in pairs.items()}
    assert compare_one(before, best, seed=seed).verdict != "worse"
    there, back = compare_one(before, after, seed=seed), compare_one(after, before, seed=seed)
    assert there.sign_p == back.sign_p
    assert there.difference.gain == pytest.approx(-back.difference.gain, abs=1e-12)
    ids = list(pairs)
    chance.shuffle(ids)
    mixed = compare_one({id_: before[id_] for id_ in ids}, {id_: after[id_] for id_ in ids[::-1]})
    assert mixed == compare_one(before, after)


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_may_have_a_bound_however_it_is_written(measure: str) -> None:
    for text in (f"{measure} -0.02", f" {measure.lower()}   -2e-2 ", f"{measure.upper()} -.02"):
        assert (Rule.parse(text).measure, Rule.parse(text).bound) == (measure, -0.02)
    assert Rule.parse(" Worse ") == WORSE


@pytest.mark.parametrize(
    "text", ["", "better", "ndcg@5 -0.01", "ndcg@10", "ndcg@10 0.01", "ndcg@10 -5", "ndcg@10 nan", "worse -0.01"]
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(ConfigError, match=r'--fail-if must be worse, .* "nDCG@10 -0\.01" .* AP'):
        Rule.parse(text)


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
        assert (read.fingerprints, read.model) == (DATA.fingerprints, "m")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: None, "cannot be read: No such file"),
        (lambda file: file.write_text(json.dumps(plain())[:-40]), "is no JSON, or was cut"),
        (lambda file: file.write_bytes(b"\xff\xfe\xfa"), "is not UTF-8"),
        (lambda file: file.write_text("[" * 100_000), "is no JSON, or was cut"),
        (lambda file: file.write_text("[]"), "must hold what qtm bench --json prints"),
        (lambda file: file.write_text(json.dumps(plain(systems=None))), "must hold what qtm bench"),
        (lambda file: file.write_text(json.dumps(plain(systems=[]))), "must hold judged questions"),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    file = tmp_path / "base.json"
    make(file)
    with pytest.raises(ConfigError) as raised:
        Baseline.read(file)
    assert said in str(raised.value)
    assert str(file) in str(raised.value)
    assert "qtm bench ... --json > base.json" in str(raised.value)


@pytest.mark.parametrize("value", [True, "0.5", None, -0.1, 1.5, float("nan"), []])
def test_a_value_that_no_measure_has_is_refused(value: Any) -> None:
    systems = [{"name": "off", "perQuery": {PRIMARY: {"a": value}}}]
    with pytest.raises(ConfigError, match="must hold what qtm bench --json prints"):
        Baseline.from_report(plain(systems=systems), "base.json")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (replace(DATA, passages=DATA.passages[:1]), "other passages,"),
        (replace(DATA, qrels={"a": {"p1": 2}, "b": {"p2": 1}}), "other judgements,"),
        (DATA.only({"a"}), "other questions and judgements,"),
    ],
)
def test_other_data_is_refused_and_named(data: Dataset, said: str) -> None:
    baseline = Baseline.from_report(plain(), "base.json")
    baseline.check_dataset(replace(DATA, questions=DATA.questions[::-1]))
    with pytest.raises(ConfigError, match=f"{said}.* Use the same --function, --data"):
        baseline.check_dataset(data)


def test_a_baseline_without_the_system_the_measure_or_with_other_questions_is_refused() -> None:
    baseline = Baseline.from_report(plain(), "base.json")
    with pytest.raises(ConfigError, match="must hold one of the systems mine, not off and rules"):
        baseline.check_systems(["mine"], WORSE)
    with pytest.raises(ConfigError, match="has no R@10; write it with"):
        baseline.check_systems(["off"], Rule.parse("r@10 -0.1"))
    found = comparison(score("rules", many(0.1)))
    with pytest.raises(ConfigError, match=r"has 2 questions that this run does not .*'a'"):
        compare_with_baseline(baseline, found, WORSE)


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
        WORSE,
        model_name="b",
    )


def test_the_systems_in_both_are_compared_and_the_others_named() -> None:
    found = gate(many(0.2), many(0.1), model="a")
    assert [change.name for change in found.changes] == ["off", "rules"]
    assert (found.verdict, found.missing, found.new) == ("worse", ("old",), ("new",))
    assert found.notes == ("The baseline was measured with the model a, this run with b.",)
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["systems"][1]["worst"][0] == {"id": "q0", "gain": pytest.approx(-0.1)}


def test_questions_that_failed_are_told() -> None:
    found = gate(many(0.2), many(0.2, 38))
    assert found.notes == ("In this run, 2 questions failed. A question that failed counts as 0.",)
    assert found.headline.startswith("Found no loss that is more than chance.")


@pytest.mark.parametrize(
    ("worse", "better", "of", "rule", "said"),
    [
        (20, 2, 100, "worse", "Retrieval got worse with “rules”."),
        (3, 1, 8, "worse", "8 questions are too few to tell whether retrieval got worse."),
        (4, 0, 100, "ndcg@10 -0.01", "No system lost more than the allowed 1.0 points."),
        (5, 0, 100, "ndcg@10 -0.01", "This is more than the allowed loss of 1.0 points."),
        (0, 20, 100, "worse", "This is more than chance."),
        (3, 3, 100, "worse", "A loss of up to 1.2 points with “rules” cannot be ruled out."),
        (9, 1, 100, "worse", "of 100 questions, 9 got worse and 1 got better."),
    ],
)
def test_the_sentences_say_how_much_changed_and_whether_that_may_be_chance(
    worse: int, better: int, of: int, rule: str, said: str
) -> None:
    parsed = Rule.parse(rule)
    change = compare_one(*shifted(worse, better, of=of), parsed)
    assert said in " ".join(GateResult("base.json", parsed, (change,)).sentences)
