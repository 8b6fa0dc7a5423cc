"""Which texts are searched beside the question, and how much each weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from qtmiddleware.config.settings import DEFAULT_WEIGHTS, FusionSettings
from qtmiddleware.retrieval.searching import (
    build_variants,
    select_variants,
)
from qtmiddleware.types import Trace, Transformation, Variant

WEIGHTS = {
    **DEFAULT_WEIGHTS,
    "standalone": 1.1,
    "rewrite": 0.7,
    "hyde": 0.9,
    "sub_queries": 1.2,
    "paraphrases": 0.8,
    "step_back": 0.3,
}
OPTIONS = FusionSettings(weights=WEIGHTS)
QUESTION = "Does the old dog have health concerns?"


def build(
    made: Transformation, options: FusionSettings = OPTIONS, keywords: str = ""
) -> Sequence[Variant]:
    return build_variants(made, QUESTION, options, Trace(), keywords)


def shown(made: Transformation) -> list[tuple[str, str, float]]:
    return [(it.kind, it.text, round(it.weight, 4)) for it in build(made)]


FORMS = Transformation(
    rewrite="medical history of the animal",
    hyde="The veterinarian found arthritis in both hips.",
    sub_queries=("current medication list", "vaccination dates"),
    step_back="common geriatric conditions of large breeds",
)
ALONE = "What illnesses has Jaco got?"


def test_each_kind_speaks_with_its_own_weight_and_lists_share_theirs() -> None:
    paraphrases = ("sick pet symptoms", "chronic disease diagnosis", QUESTION, "sick pet symptoms")
    made = replace(FORMS, standalone=ALONE, paraphrases=paraphrases, keywords=("not", "searched"))
    assert shown(made) == [
        ("standalone", ALONE, 1.1),
        ("rewrite", FORMS.rewrite, 0.7),
        ("hyde", FORMS.hyde, 0.9),
        *(("sub_query", text, 1.2 / 2) for text in FORMS.sub_queries),
        # What is dropped as a repetition leaves its share to the others.
        *(("paraphrase", text, 0.8 / 2) for text in paraphrases[:2]),
        ("step_back", FORMS.step_back, 0.3),
    ]


# --- a budget of searches -------------------------------------------------------------------------


def choose(made: Transformation, count: int | None) -> list[tuple[str, str, float]]:
    chosen = select_variants(build(made), QUESTION, count, Trace())
    return [(it.kind, it.text, it.weight) for it in chosen]


def test_the_last_search_of_a_budget_is_the_question_and_all_that_is_left_as_one_text() -> None:
    rest = f"{QUESTION} {FORMS.rewrite} current medication list vaccination dates"
    assert choose(FORMS, 2) == [("hyde", FORMS.hyde, 0.9), ("joined", rest, 1.2)]
    # What weighs nothing is no part of it.
    silent = FusionSettings(weights={**WEIGHTS, "rewrite": 0.0})
    (joined,) = select_variants(build(FORMS, silent), QUESTION, 1, Trace())
    assert FORMS.rewrite not in joined.text
    (only,) = choose(FORMS, 1)
    assert only == (
        "joined",
        f"{QUESTION} {FORMS.rewrite} {FORMS.hyde} current medication list vaccination dates",
        1.2,
    )


# --- what is not about the question ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "weights"),
    [
        (Transformation(rewrite="Health of the old", hyde="An old dog."), [0.7, 0.9]),
        (
            Transformation(rewrite="How is beer brewed?", hyde="Many old recipes are known."),
            [0.0, 0.9 * 0.25 / 0.4],
        ),
        (Transformation(sub_queries=("dog illnesses", "age in years", "old age")), [0.4] * 3),
    ],
    ids=["about the question", "another question and a distant one", "judged together"],
)
def test_a_text_weighs_less_the_fewer_keywords_it_holds(
    made: Transformation, weights: list[float]
) -> None:
    variants = build(made, keywords="old dog health concerns")
    assert [it.weight for it in variants] == pytest.approx(weights)
