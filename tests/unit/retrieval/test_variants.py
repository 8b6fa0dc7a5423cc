"""Which texts are searched beside the question, and how much each weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import DEFAULT_WEIGHTS, FusionSettings
from qtmiddleware.retrieval.searching import (
    build_variants,
    prefer_hypothetical_passage,
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
    return [(it.kind, it.text, it.weight) for it in build(made)]


def test_each_kind_speaks_with_its_own_weight_and_lists_share_theirs() -> None:
    made = Transformation(
        standalone="What illnesses has Jaco got",
        rewrite="medical history of the animal",
        hyde="The veterinarian found arthritis in both hips last spring.",
        sub_queries=("current medication list", "vaccination dates"),
        paraphrases=(
            "sick pet symptoms",
            "chronic disease diagnosis",
            "wellbeing check results",
            "physical complaints",
        ),
        step_back="common geriatric conditions of large breeds",
        keywords=("not", "searched"),
    )
    assert shown(made) == [
        ("standalone", made.standalone, 1.1),
        ("rewrite", made.rewrite, 0.7),
        ("hyde", made.hyde, 0.9),
        ("sub_query", made.sub_queries[0], 1.2 / 2),
        ("sub_query", made.sub_queries[1], 1.2 / 2),
        ("paraphrase", made.paraphrases[0], 0.8 / 4),
        ("paraphrase", made.paraphrases[1], 0.8 / 4),
        ("paraphrase", made.paraphrases[2], 0.8 / 4),
        ("paraphrase", made.paraphrases[3], 0.8 / 4),
        ("step_back", made.step_back, 0.3),
    ]


def test_a_text_that_says_the_same_as_another_or_the_question_is_dropped() -> None:
    made = Transformation(
        standalone=QUESTION,
        rewrite="animal illnesses",
        hyde="animal illnesses",
        step_back="pet care",
    )
    assert [(kind, text) for kind, text, _ in shown(made)] == [
        ("rewrite", "animal illnesses"),
        ("step_back", "pet care"),
    ]


@pytest.mark.parametrize(
    ("made", "kind", "whole"),
    [
        (
            Transformation(sub_queries=("medication", "medication", "vaccines", QUESTION)),
            "sub_query",
            1.2,
        ),
        (
            Transformation(paraphrases=(QUESTION, "sick pet", "sick pet", "vet visits")),
            "paraphrase",
            0.8,
        ),
    ],
)
def test_those_that_are_searched_share_the_whole_weight_of_their_kind(
    made: Transformation, kind: str, whole: float
) -> None:
    # The setting says "all sub-queries together": one that is dropped as a repetition leaves its
    # share to the others.
    variants = shown(made)
    assert [it[0] for it in variants] == [kind, kind]
    assert sum(weight for _, _, weight in variants) == pytest.approx(whole)


@given(
    st.lists(st.text(), max_size=5).map(tuple),
    st.lists(st.text(), max_size=5).map(tuple),
    st.one_of(st.none(), st.text()),
)
def test_weights_are_positive_and_texts_are_those_that_were_made(
    sub_queries: tuple[str, ...], paraphrases: tuple[str, ...], rewrite: str | None
) -> None:
    made = Transformation(sub_queries=sub_queries, paraphrases=paraphrases, rewrite=rewrite)
    variants = shown(made)
    texts = [text for _, text, _ in variants]
    candidates = iter([*([rewrite] if rewrite else []), *sub_queries, *paraphrases])
    assert all(any(text == candidate for candidate in candidates) for text in texts)
    assert all(text.strip() for text in texts)
    assert len(set(texts)) == len(texts)
    assert all(weight > 0 for _, _, weight in variants)


def test_what_repeats_the_question_is_searched_where_the_question_itself_does_not_count() -> None:
    made = Transformation(
        rewrite="does the old dog have health concerns", sub_queries=("vaccination dates",)
    )
    alone = FusionSettings(weights={**DEFAULT_WEIGHTS, "original": 0.0})
    assert [it.kind for it in build(made, FusionSettings())] == ["sub_query"]
    assert [it.kind for it in build(made, alone)] == [
        "rewrite",
        "sub_query",
    ]
    dropped = Transformation(
        sub_queries=("vaccination dates",), notes=(("rewrite", "dropped: same as the query"),)
    )
    assert [it.text for it in build(dropped, alone)] == [
        QUESTION,
        "vaccination dates",
    ]
    assert [it.kind for it in build(dropped, FusionSettings())] == ["sub_query"]


# --- a budget of searches -------------------------------------------------------------------------

FORMS = Transformation(
    rewrite="medical history of the animal",
    hyde="The veterinarian found arthritis in both hips.",
    sub_queries=("current medication list", "vaccination dates"),
    step_back="common geriatric conditions of large breeds",
)


def choose(made: Transformation, count: int | None) -> list[tuple[str, str, float]]:
    chosen = select_variants(build(made), QUESTION, count, Trace())
    return [(it.kind, it.text, it.weight) for it in chosen]


def test_the_last_search_of_a_budget_is_the_question_and_all_that_is_left_as_one_text() -> None:
    rest = f"{QUESTION} {FORMS.rewrite} current medication list vaccination dates"
    assert choose(FORMS, 2) == [("hyde", FORMS.hyde, 0.9), ("joined", rest, 1.2)]
    (only,) = choose(FORMS, 1)
    assert only == (
        "joined",
        f"{QUESTION} {FORMS.rewrite} {FORMS.hyde} current medication list vaccination dates",
        1.2,
    )


ALONE = "What illnesses has Jaco got?"


def test_a_follow_up_short_of_searches_is_one_text_that_begins_with_its_standalone_form() -> None:
    made = replace(FORMS, standalone=ALONE)
    for count in (0, 1, 2, 4):
        ((kind, text, weight),) = choose(made, count)
        assert (kind, weight) == ("joined", 1.2)
        assert text.startswith(f"{ALONE} medical history")
    assert choose(Transformation(standalone=ALONE, step_back="large breeds"), 1) == [
        ("standalone", ALONE, 1.1)
    ]
    assert choose(made, 6) == shown(made)


@given(st.integers(0, 12), st.lists(st.text(min_size=1), max_size=6), st.text(), st.text())
def test_no_budget_is_exceeded(count: int, parts: list[str], rewrite: str, hyde: str) -> None:
    made = Transformation(rewrite=rewrite, hyde=hyde, sub_queries=tuple(parts))
    assert len(choose(made, count)) <= count


# --- what is not about the question ---------------------------------------------------------------


def weigh(made: Transformation) -> dict[str, float]:
    variants = build(made, keywords="old dog health concerns")
    return {it.text: round(it.weight, 4) for it in variants}


def test_a_text_that_holds_enough_of_the_keywords_has_its_whole_weight() -> None:
    assert weigh(Transformation(rewrite="Health of the old", hyde="An old dog.")) == {
        "Health of the old": 0.7,
        "An old dog.": 0.9,
    }


def test_a_reply_to_another_question_has_no_weight_and_a_distant_one_little() -> None:
    made = Transformation(rewrite="How is beer brewed?", hyde="Many old recipes are known.")
    assert weigh(made) == {
        "How is beer brewed?": 0.0,
        "Many old recipes are known.": round(0.9 * 0.25 / 0.4, 4),
    }


def test_sub_queries_are_judged_together() -> None:
    assert weigh(
        Transformation(sub_queries=("dog illnesses", "age in years", "old age concerns"))
    ) == {
        "dog illnesses": 0.4,
        "age in years": 0.4,
        "old age concerns": 0.4,
    }


# --- who leads a follow-up ------------------------------------------------------------------------


def lead(hyde: str | None, standalone: str | None = ALONE) -> list[tuple[str, float]]:
    made = replace(FORMS, hyde=hyde, standalone=standalone)
    variants = build_variants(made, "And now?", OPTIONS, Trace(), "illnesses old jaco got")
    left = prefer_hypothetical_passage(variants, OPTIONS, Trace())
    return [(it.kind, round(it.weight, 4)) for it in left]


def test_without_a_passage_or_a_standalone_form_nobody_leads() -> None:
    assert [kind for kind, _ in lead(None)] == [
        "standalone",
        "rewrite",
        "sub_query",
        "sub_query",
        "step_back",
    ]
    assert ("rewrite", 0.0) in lead("Old Jaco has got two illnesses.", standalone=None)
    silent = FusionSettings(weights={**WEIGHTS, "hyde": 0.0})
    variants = build_variants(replace(FORMS, standalone=ALONE), "And now?", silent, Trace())
    assert prefer_hypothetical_passage(variants, silent, Trace()) == variants
