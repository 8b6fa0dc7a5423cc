"""Whether a measurement is worse than its baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.gate import (
    Baseline,
    Change,
    GateResult,
    compare_with_baseline,
    measure_changes,
)
from qtmiddleware.kit.evaluation.measures import FEW, PRIMARY
from qtmiddleware.protocols import Passage
from tests.support.report_world import comparison, score

values = st.sampled_from([0.0, 0.25, 0.5, 0.63, 0.75, 1.0])
runs = st.dictionaries(
    st.sampled_from([f"q{number}" for number in range(40)]), st.tuples(values, values), max_size=40
)


def compare_one(
    before: Mapping[str, float], after: Mapping[str, float], *, seed: int = 0
) -> Change:
    (change,) = measure_changes({"rules": before}, {"rules": after}, seed=seed)
    return change


def shifted(
    worse: int, better: int = 0, *, by: float = 0.25, of: int = 100
) -> tuple[dict[str, float], dict[str, float]]:
    """Two runs of which so many questions got worse and better *by* as much."""
    before = {f"q{number}": 0.5 for number in range(of)}
    changes = [-by] * worse + [by] * better + [0.0] * (of - worse - better)
    return before, {id_: 0.5 + change for id_, change in zip(before, changes, strict=True)}


@pytest.mark.parametrize(
    ("worse", "better", "of", "verdict", "said"),
    [
        (20, 2, 100, "worse", "Retrieval got worse with “rules”."),
        (9, 1, 100, "worse", "of 100 questions, 9 got worse and 1 got better."),
        (0, 20, 100, "not worse", "This is more than chance."),
        (3, 3, 100, "not worse", "A loss of up to 1.2 points with “rules” cannot be"),
        (3, 0, 100, "not worse", "may be chance"),
        (3, 1, 8, "inconclusive", "8 questions are too few to tell whether retrieval"),
        (0, 0, FEW - 1, "inconclusive", "29 questions are too few"),
    ],
)
def test_a_loss_that_is_more_than_chance_is_worse(
    worse: int, better: int, of: int, verdict: str, said: str
) -> None:
    change = compare_one(*shifted(worse, better, of=of))
    assert change.verdict == verdict
    assert said in " ".join(GateResult("base.json", (change,)).sentences)


def test_every_system_that_changed_is_corrected_for_and_no_other() -> None:
    before, after = shifted(9, 1)
    still, moved = (
        {f"system {number}": values for number in range(5)} for values in (before, after)
    )
    alone = compare_one(before, after)
    beside_still = measure_changes({"rules": before, **still}, {"rules": after, **still})[0]
    beside_moved = measure_changes({"rules": before, **still}, {"rules": after, **moved})[0]
    assert beside_still == alone
    assert beside_moved.difference.p_holm == pytest.approx(6 * alone.difference.p, rel=0.05)
    assert (alone.verdict, beside_moved.verdict) == ("worse", "not worse")


@settings(max_examples=30, deadline=None)
@given(runs, st.integers(0, 3), st.randoms(use_true_random=False))
def test_equal_runs_better_ones_and_other_orders_are_never_worse(
    pairs: dict[str, tuple[float, float]], seed: int, chance: Any
) -> None:
    before, after = ({id_: pair[side] for id_, pair in pairs.items()} for side in (0, 1))
    same = compare_one(before, dict(before), seed=seed)
    assert same.verdict == ("not worse" if len(before) >= FEW else "inconclusive")
    assert (same.difference.worse, same.difference.p_holm) == (0, 1.0)
    best = {id_: max(pair) for id_, pair in pairs.items()}
    assert compare_one(before, best, seed=seed).verdict != "worse"
    ids = list(pairs)
    chance.shuffle(ids)
    mixed = compare_one({id_: before[id_] for id_ in ids}, {id_: after[id_] for id_ in ids[::-1]})
    assert mixed == compare_one(before, after)


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


def write_systems(value: Any) -> Callable[[Path], object]:
    systems = [{"name": "off", "perQuery": {PRIMARY: {"a": value}}}]
    return lambda file: file.write_text(json.dumps(plain(systems=systems)))


def test_a_baseline_is_read_from_what_a_comparison_writes(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_text(json.dumps(plain(model="m")), encoding=encoding)
        read = Baseline.read(file)
        assert read.values == {"off": {"a": 0.5, "b": 0.5}, "rules": {"a": 0.6, "b": 0.5}}
        assert (read.fingerprints, read.model) == (DATA.fingerprints, "m")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: None, "cannot be read: No such file"),
        (lambda file: file.write_text(json.dumps(plain())[:-40]), "is no JSON, or was cut"),
        (lambda file: file.write_bytes(b"\xff\xfe\xfa"), "is not UTF-8"),
        (lambda file: file.write_text("[]"), "must hold what qtm bench --json prints"),
        (lambda file: file.write_text(json.dumps(plain(systems=[]))), "must hold judged questions"),
        *(
            (write_systems(value), "must hold what qtm bench")
            for value in ("high", None, 2, math.nan)
        ),
    ],
)
def test_a_file_that_is_no_baseline_is_refused_with_what_to_do(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    file = tmp_path / "base.json"
    make(file)
    with pytest.raises(ConfigError) as raised:
        Baseline.read(file)
    for words in (said, str(file), "qtm bench ... --json > base.json"):
        assert words in str(raised.value)


def test_a_baseline_of_other_data_or_systems_is_refused() -> None:
    baseline = Baseline.from_report(plain(), "base.json")
    baseline.check_dataset(replace(DATA, questions=DATA.questions[::-1]))
    for data, said in (
        (replace(DATA, passages=DATA.passages[:1]), "other passages,"),
        (replace(DATA, qrels={"a": {"p1": 2}, "b": {"p2": 1}}), "other judgements,"),
        (DATA.only({"a"}), "other questions and judgements,"),
    ):
        with pytest.raises(ConfigError, match=f"{said}.* Use the same --function, --data"):
            baseline.check_dataset(data)
    with pytest.raises(ConfigError, match="must hold one of the systems mine, not off and rules"):
        baseline.check_systems(["mine"])
    found = comparison(score("rules", {"q0": 0.1}))
    with pytest.raises(ConfigError, match=r"has 2 questions that this run does not .*'a'"):
        compare_with_baseline(baseline, found)


def test_the_systems_in_both_are_compared_and_what_else_changed_is_told() -> None:
    before = {f"q{number}": 0.2 for number in range(40)}
    after = {f"q{number}": 0.1 for number in range(38)}
    old = comparison(score("rules", before), score("old", before)).to_dict()
    now = comparison(score("rules", after), score("new", after))
    found = compare_with_baseline(
        Baseline.from_report({**old, "model": "a"}, "base.json"),
        replace(now, asked=frozenset(before)),
        model_name="b",
    )
    assert [change.name for change in found.changes] == ["off", "rules"]
    assert found.verdict == "worse"
    assert found.notes == (
        "Only in the baseline: “old”.",
        "The baseline was measured with the model a, this run with b.",
        "In this run, 2 questions failed. A question that failed counts as 0.",
    )
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    rules = told["systems"][1]
    assert (rules["worse"], rules["better"]) == (40, 0)
    # Questions that failed counted 0.7 before, the others lost a tenth.
    assert [it["gain"] for it in rules["worst"][1:3]] == pytest.approx([-0.7, -0.1])
