from __future__ import annotations

from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question, Run, SystemScore, measure
from qtmiddleware.kit.evaluation.tuning import Budget


def scored(
    *,
    calls: int = 0,
    cost_usd: float | None = 0.0,
    seconds: float = 0.0,
    hurt: int = 0,
    questions: int = 100,
    searches: int | None = 1,
) -> SystemScore:
    """A system on so many *questions*: *calls* of them asked the model, *hurt* of them did worse than raw."""
    asked = tuple(Question(str(number), str(number)) for number in range(questions))
    data = Dataset("some", (), asked, {question.id: {"p": 1} for question in asked})

    def run(question: Question) -> Run:
        number = int(question.id)
        ids = ("x", "p") if number < hurt else ("p",)
        return Run(
            ids,
            seconds_added=seconds,
            llm_calls=int(number < calls),
            cost_usd=cost_usd,
            searches=searches,
        )

    return measure({"raw": lambda _: [("p", 1.0)], "it": run}, data, baseline="raw")["it"]


@pytest.mark.parametrize(
    ("budget", "within", "beyond", "told"),
    [
        (
            Budget(max_call_rate=0.35),
            {"calls": 35},
            {"calls": 36},
            "36.0% of the questions, the budget is 35.0%",
        ),
        (Budget(max_added_ms=800), {"seconds": 0.8}, {"seconds": 0.9}, "adds 900 ms"),
        (
            Budget(max_usd_per_thousand=2),
            {"cost_usd": 0.001},
            {"cost_usd": 0.003},
            "cost $3, the budget is $2",
        ),
        (
            Budget(max_searches=2),
            {"searches": 2},
            {"searches": 3},
            "makes 3 searches per question, the budget is 2",
        ),
        (Budget(max_searches=9), {}, {"searches": None}, "not known"),
        (Budget(max_hurt_rate=0.05), {"hurt": 5}, {"hurt": 6}, "6.0% of the questions get worse"),
    ],
)
def test_a_limit_is_what_may_just_be_reached(
    budget: Budget, within: dict[str, Any], beyond: dict[str, Any], told: str
) -> None:
    assert budget.broken_by(scored(**within)) == ()
    (why,) = budget.broken_by(scored(**beyond))
    assert told in why


def test_every_limit_that_is_broken_is_told() -> None:
    budget = Budget(
        max_call_rate=0.0, max_added_ms=0.0, max_usd_per_thousand=0.0, max_hurt_rate=0.0
    )
    assert len(budget.broken_by(scored(calls=1, seconds=1.0, cost_usd=1.0, hurt=1))) == 4


def test_without_limits_nothing_is_beyond_them() -> None:
    assert Budget().broken_by(scored(calls=100, seconds=99.0, cost_usd=None, hurt=100)) == ()


def test_a_cost_that_is_not_known_is_beyond_any_limit() -> None:
    assert Budget(max_usd_per_thousand=1e9).broken_by(scored(cost_usd=None)) == (
        "its cost is not known",
    )


def test_a_gate_may_be_beyond_the_limit_by_chance_alone() -> None:
    budget = Budget(max_call_rate=0.35)
    assert budget.broken_by(scored(calls=42), kept_rate=0.35) == ()
    assert budget.broken_by(scored(calls=46), kept_rate=0.35)
    assert budget.broken_by(scored(calls=42), kept_rate=0.4)


def test_the_chance_is_known_of_thousands_of_questions_too() -> None:
    budget = Budget(max_call_rate=0.35)
    assert budget.broken_by(scored(calls=1_060, questions=3_000), kept_rate=0.35) == ()
    assert len(budget.broken_by(scored(calls=1_200, questions=3_000), kept_rate=0.35)) == 1


@pytest.mark.parametrize(
    "limits",
    [
        {"max_call_rate": 1.5},
        {"max_hurt_rate": -0.1},
        {"max_searches": 0.5},
        {"max_added_ms": -1.0},
        {"max_added_ms": float("nan")},
        {"max_usd_per_thousand": float("inf")},
    ],
)
def test_impossible_limits_are_refused_by_name(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(limits))} must be a (finite )?number"):
        Budget(**limits)


def test_the_limits_are_plain_data() -> None:
    assert Budget(max_call_rate=0.35).to_dict() == {
        "maxCallRate": 0.35,
        "maxAddedMs": None,
        "maxUsdPerThousand": None,
        "maxSearches": None,
        "maxHurtRate": None,
    }
