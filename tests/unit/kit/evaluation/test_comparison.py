from __future__ import annotations

import json
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import (
    Comparison,
    Dataset,
    Percentiles,
    Question,
    Run,
    measure,
)
from qtmiddleware.protocols import Passage

IDS = "abcde"
DATA = Dataset(
    "five",
    tuple(Passage(id_, f"text {id_}") for id_ in IDS),
    tuple(Question(id_, f"what is {id_}?") for id_ in IDS),
    {id_: {id_: 1} for id_ in IDS},
)


def raw(question: Question) -> Run:
    """The right passage second."""
    return Run(("x", question.id))


def better(question: Question, *, cost_usd: float | None = 0.002) -> Run:
    """Better for a, b and c, worse for d, much worse for e; the model is asked about a to d."""
    ids = {"d": ("x", "y", "z", "d"), "e": ()}.get(question.id, (question.id,))
    asked = question.id != "e"
    return Run(ids, 0.5, int(asked), not asked, 100, 10, cost_usd if asked else 0.0)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return measure({"off": raw, "better": better}, DATA, baseline="off", notes=["a note"], seed=3)


def test_rates_are_shares_of_the_questions(found: Comparison) -> None:
    score = found["better"]
    assert (score.helped_rate, score.hurt_rate, score.call_rate) == (0.6, 0.4, 0.8)
    assert score.degraded == 1


def test_money_is_told_for_a_thousand_questions(found: Comparison) -> None:
    score = found["better"]
    assert score.cost_usd == pytest.approx(0.008)
    assert score.usd_per_thousand == pytest.approx(1.6)
    assert found["off"].usd_per_thousand == 0.0


def test_what_nobody_knows_the_price_of_has_none() -> None:
    score = measure({"off": raw, "m": lambda it: better(it, cost_usd=None)}, DATA, baseline="off")[
        "m"
    ]
    assert (score.cost_usd, score.usd_per_thousand) == (None, None)


def test_the_worst_questions_come_with_what_they_lost_the_worst_first(found: Comparison) -> None:
    worst = found["better"].worst()
    assert [id_ for id_, _ in worst] == ["e", "d"]
    assert worst[0][1] < worst[1][1] < 0
    assert found["better"].worst(1) == worst[:1]
    assert found["off"].worst() == []


def test_the_outcome_is_plain_data_that_names_what_it_was_measured_on(found: Comparison) -> None:
    plain = found.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert (plain["seed"], plain["notes"][0]) == (3, "a note")
    assert plain["fingerprints"] == DATA.fingerprints
    assert [row["id"] for row in plain["systems"][1]["worst"]] == ["e", "d"]
    assert plain["systems"][1]["callRate"] == 0.8
    assert [score.name for score in found.challengers] == ["better"]


def test_no_text_is_in_a_repr(found: Comparison) -> None:
    assert "what is" not in repr(found)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_percentiles_are_values_that_so_many_do_not_exceed(values: list[float]) -> None:
    for share, value in zip(
        (0.5, 0.95),
        (Percentiles.of(values).p50, Percentiles.of(values).p95),
        strict=True,
    ):
        assert value in values
        assert sum(it <= value for it in values) >= ceil(share * len(values))
        assert sum(it < value for it in values) < share * len(values)


def test_percentiles_of_nothing_are_0() -> None:
    assert Percentiles.of([]) == Percentiles(0.0, 0.0)
