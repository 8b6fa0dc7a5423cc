"""Which texts are searched beside the question, and how much each weighs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import FusionSettings, FusionWeights
from qtmiddleware.retrieval.searching import build_variants
from qtmiddleware.types import Transformation

WEIGHTS = FusionWeights(standalone=1.1, rewrite=0.7, hyde=0.9, sub_queries=1.2, paraphrases=0.8, step_back=0.3)
OPTIONS = FusionSettings(weights=WEIGHTS)
QUESTION = "Does the old dog have health concerns?"


def shown(made: Transformation) -> list[tuple[str, str, float]]:
    return [(it.kind, it.text, it.weight) for it in build_variants(made, QUESTION, OPTIONS)[0]]


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


def test_nothing_made_is_nothing_searched() -> None:
    assert shown(Transformation()) == []
    assert shown(Transformation(keywords=("only", "keywords"))) == []


def test_an_empty_text_is_not_searched() -> None:
    assert shown(Transformation(rewrite="", standalone=None, hyde="hip arthritis")) == [("hyde", "hip arthritis", 0.9)]


def test_a_text_that_says_the_same_as_another_or_the_question_is_dropped() -> None:
    made = Transformation(
        standalone=QUESTION, rewrite="animal illnesses", hyde="animal illnesses", step_back="pet care"
    )
    assert [(kind, text) for kind, text, _ in shown(made)] == [
        ("rewrite", "animal illnesses"),
        ("step_back", "pet care"),
    ]


@pytest.mark.parametrize(
    ("made", "kind", "whole"),
    [
        (Transformation(sub_queries=("medication", "medication", "vaccines", QUESTION)), "sub_query", 1.2),
        (Transformation(paraphrases=(QUESTION, "sick pet", "sick pet", "vet visits")), "paraphrase", 0.8),
    ],
)
def test_those_that_are_searched_share_the_whole_weight_of_their_kind(
    made: Transformation, kind: str, whole: float
) -> None:
    # The setting says "all sub-queries together": one that is dropped as a repetition leaves its share to the others.
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
    made = Transformation(rewrite="does the old dog have health concerns", sub_queries=("vaccination dates",))
    alone = FusionSettings(include_original=False)
    assert [it.kind for it in build_variants(made, QUESTION, FusionSettings())[0]] == ["sub_query"]
    assert [it.kind for it in build_variants(made, QUESTION, alone)[0]] == ["rewrite", "sub_query"]
    dropped = Transformation(sub_queries=("vaccination dates",), notes=(("rewrite", "dropped: same as the query"),))
    assert [it.text for it in build_variants(dropped, QUESTION, alone)[0]] == [QUESTION, "vaccination dates"]
    assert [it.kind for it in build_variants(dropped, QUESTION, FusionSettings())[0]] == ["sub_query"]


def test_what_is_not_searched_is_noted_with_what_it_repeats() -> None:
    made = Transformation(
        rewrite="Which vaccination dates does Jaco have?", paraphrases=(QUESTION.upper(), "vaccination dates of Rex")
    )
    again = replace(made, sub_queries=("which vaccination dates does Jaco have",))
    assert build_variants(made, QUESTION, FusionSettings())[1] == (
        ("paraphrase", "not searched: says the same as the original"),
    )
    assert build_variants(again, QUESTION, FusionSettings())[1] == (
        ("sub_query", "not searched: says the same as the rewrite"),
        ("paraphrase", "not searched: says the same as the original"),
    )
