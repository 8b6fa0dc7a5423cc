"""From several lists to one result in the function's own shape."""

from __future__ import annotations

from typing import Any

import qtmiddleware as qtm
from tests.support.retrieval_world import (
    QUERY,
    REPLIES,
    Way,
    every_way,
    ids,
    kinds,
    scripted,
    search,
    transforming,
)

SUBS = REPLIES["decompose"]["sub_queries"]


def plain(**fusion: Any) -> dict[str, Any]:
    return transforming("decompose", keywordEvidence={"enabled": False}, fusion=fusion)


@every_way
def test_concat_takes_turns_and_keeps_every_list_beside_the_result(way: Way) -> None:
    retrieval = way.wrap(config=transforming("decompose", fusion={"method": "concat"})).retrieve(
        QUERY, top_k=3
    )
    lists = [[row["id"] for row in search(text, 3)] for text in (QUERY, *SUBS)]
    in_turn = dict.fromkeys(name for row in zip(*lists, strict=True) for name in row)
    assert ids(retrieval) == list(in_turn)[:3]
    assert [[found.id for found in it.passages] for it in retrieval.rankings] == lists


@every_way
def test_without_the_original_its_list_takes_no_part(way: Way) -> None:
    retrieval = way.wrap(config=plain(weights={"original": 0})).retrieve(QUERY, top_k=8)
    assert [it.variant.kind for it in retrieval.rankings] == ["sub_query", "sub_query"]
    assert kinds(retrieval) == ["original", "sub_query", "sub_query"]
    assert {kind for match in retrieval.matches for kind in match.found_by} == {"sub_query"}


@every_way
def test_without_the_original_it_is_still_the_answer_where_nothing_else_is(way: Way) -> None:
    searched = way.wrap(
        lambda query, top_k: search(query, top_k) if query == QUERY else [],
        config=plain(weights={"original": 0}),
    )
    retrieval = searched.retrieve(QUERY, top_k=3)
    assert retrieval.response == search(QUERY, 3)
    assert retrieval.status == "full"


# --- words as evidence ----------------------------------------------------------------------------


def weigh(second: str, query: str = QUERY, script: Any = scripted, **config: Any) -> qtm.Retrieval:
    """What is retrieved where the text that stands closely behind the first one is *second*."""
    rows = [
        {"id": "a", "score": 0.9, "text": "Cats sleep"},
        {"id": "b", "score": 0.89, "text": second},
        {"id": "c", "score": 0.1, "text": "The fee"},
    ]
    searched = Way("sync").wrap(lambda query, top_k: rows, config=config, script=script)
    return searched.retrieve(query, top_k=3)


def test_words_are_silent_around_a_function_whose_order_follows_them() -> None:
    texts = ["health concerns " * (20 - place) + "and cats " * place for place in range(20)]
    rows = [
        {"id": str(n), "score": 0.9 - 0.0173 * n, "metadata": {"text": text}}
        for n, text in enumerate(texts)
    ]
    found = Way("sync").wrap(lambda query, top_k: rows).retrieve(QUERY)
    assert [it.id for it in found.matches] == [str(n) for n in range(len(found.matches))]
    assert found.evidence is not None
    assert found.evidence.weight == 0.0


def test_the_models_keywords_count_as_evidence() -> None:
    assert ids(weigh("Seen by a vet")) == ["a", "b", "c"]
    found = weigh("Seen by a vet", **transforming("keywords"))
    assert (ids(found), kinds(found)) == (["b", "a", "c"], ["original"])
