"""The comparison that ships with the project, measured on its own text."""

from __future__ import annotations

from functools import cache

import pytest

from qtmiddleware.kit.demo import load_dataset, load_recorded_model
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import (
    TOP_K,
    USUAL,
    Comparison,
    chosen,
    index_system,
    measure_systems,
)
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers.embedding import CallableEmbedder

pytestmark = pytest.mark.thorough


def embedding_once(embedder: Embedder) -> Embedder:
    """*embedder*, but for a text it has embedded before: most systems search the same ones."""
    embedded = cache(lambda text: embedder.embed([text])[0])
    return CallableEmbedder(
        lambda texts: list(map(embedded, texts)), name=embedder.name, dimension=embedder.dimension
    )


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    data = load_dataset()
    embedder = embedding_once(find_embedder("all-MiniLM-L6-v2"))
    with open_index(data, tmp_path_factory.mktemp("demo"), embedder) as store:
        system = index_system(store, embedder, load_recorded_model(), top_k=TOP_K)
        return measure_systems(system, data, chosen(USUAL))


def test_no_default_does_worse_than_the_raw_query(comparison: Comparison) -> None:
    raw = comparison["off"].means["nDCG@10"]
    for name in ("rules", "balanced", "auto", "all"):
        assert comparison[name].means["nDCG@10"] > raw, name


def test_one_combined_call_a_question_helps_more_than_it_hurts(comparison: Comparison) -> None:
    combined = comparison["balanced"]
    assert combined.llm_calls <= comparison.questions
    assert combined.helped_rate > 5 * combined.hurt_rate


def test_auto_asks_the_model_for_a_part_of_the_questions(comparison: Comparison) -> None:
    assert 0 < comparison["auto"].llm_calls < comparison["balanced"].llm_calls


def test_no_recorded_reply_is_lost_on_the_way_but_one_that_lost_a_negation(
    comparison: Comparison,
) -> None:
    # The recorded rewrite of q21 speaks of "not at home" no more, where the question says "nobody".
    assert {score.name: score.degraded for score in comparison.systems if score.degraded} == {
        "rewrite": 1
    }
