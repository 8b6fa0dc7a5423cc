"""What the score of a returned passage means, and what sorting and thresholds make of it downstream."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.retrieval_world import HISTORY, QUERY, REPLIES, Way, every_way, ids, transforming

REWRITE = {"rewrite": REPLIES["rewrite"]["rewrite"]}


def row(name: str, score: float, text: str = "A report on cats") -> dict[str, Any]:
    return {"id": name, "score": score, "text": text}


OWN = [row("a", 0.9), row("b", 0.87), row("c", 0.85, "Jaco has no health concerns"), row("d", 0.6)]
OTHER = [row("e", 0.99, "Jaco: health concerns"), row("a", 0.95), row("f", 0.85)]


def respond(query: str, top_k: int) -> list[dict[str, Any]]:
    return (OWN if query == QUERY else OTHER)[:top_k]


@every_way
def test_a_score_is_the_backends_own_for_the_users_question(way: Way) -> None:
    retrieval = way.wrap(respond, config=transforming("rewrite"), script=REWRITE).retrieve(
        QUERY, top_k=6
    )
    own = {it["id"]: it["score"] for it in OWN}
    assert {"a", "e"} <= set(ids(retrieval))
    for shown, match in zip(retrieval.response, retrieval.matches, strict=True):
        # What only the variant found has a number for another text: it is not known, and shown as
        # the question's worst.
        assert match.score == own.get(shown["id"])
        assert shown["score"] == own.get(shown["id"], 0.6)
        assert match.raw in (*OWN, *OTHER)
    assert OTHER[0]["score"] == 0.99


@pytest.mark.parametrize("threshold", [0.88, 0.86, 0.6])
def test_a_threshold_keeps_what_it_keeps_of_the_plain_list(threshold: float) -> None:
    searched = Way("sync").wrap(respond, config=transforming("rewrite"), script=REWRITE)
    got = searched.retrieve(QUERY, top_k=7).response
    kept = {it["id"] for it in got if it["score"] > threshold}
    assert kept == {it["id"] for it in OWN if it["score"] > threshold}


@every_way
def test_sorting_by_the_backends_scores_gives_the_backends_order_back(way: Way) -> None:
    got = way.wrap(respond).call(QUERY, top_k=4)
    assert got[0] is OWN[2]
    assert sorted(got, key=lambda it: it["score"], reverse=True) == OWN


@every_way
def test_fused_scores_fall_with_the_order_so_sorting_changes_nothing(way: Way) -> None:
    config = transforming("rewrite", scores="fused")
    retrieval = way.wrap(respond, config=config, script=REWRITE).retrieve(QUERY, top_k=6)
    scores = [it["score"] for it in retrieval.response]
    assert all(one > other for one, other in pairwise(scores))
    assert scores == [match.fused_score for match in retrieval.matches]
    # A threshold on the best of them keeps the best ones, whoever found them.
    assert [it["id"] for it in retrieval.response if it["score"] >= scores[1]] == ids(retrieval)[:2]
    assert {match.id: match.score for match in retrieval.matches}["c"] == 0.85


def test_fused_scores_are_given_where_nothing_is_weighed_too() -> None:
    config = {"keywordEvidence": {"enabled": False}, "scores": "fused"}
    rising = [row("a", 0.1), row("b", 0.1), row("c", 0.5)]
    got = qtm.middleware(lambda query: rising, config=config)(QUERY)
    assert [it["id"] for it in got] == ["a", "b", "c"]
    assert got[0]["score"] > got[1]["score"] > got[2]["score"]
    assert rising[0]["score"] == 0.1


def test_fused_scores_follow_a_reranker() -> None:
    config = {"scores": "fused", "rerank": {"enabled": True, "rerankTopK": 3}}
    qm = qtm.QueryMiddleware(config, reranker=lambda _, texts: [*range(-len(texts) + 1, 1)])
    retrieval = qm.wrap(lambda query, top_k=4: OWN[:top_k]).retrieve(QUERY)
    scores = [it["score"] for it in retrieval.response]
    assert scores == sorted(scores, reverse=True)
    assert [match.rerank_score for match in retrieval.matches] == [0, -1, -2, None]


@every_way
def test_in_a_conversation_the_score_is_that_of_the_standalone_question(way: Way) -> None:
    def found(query: str, top_k: int) -> list[dict[str, Any]]:
        return (
            [row("a", 0.2), row("b", 0.1)] if query == "And he?" else [row("c", 0.9), row("a", 0.8)]
        )

    config = transforming("rewrite")
    searched = way.wrap(
        found,
        config=config,
        script={"standalone": "What does Jaco eat?", "rewrite": "Jaco's food?"},
    )
    retrieval = searched.retrieve("And he?", top_k=3, history=HISTORY)
    assert {match.id: match.score for match in retrieval.matches} == {"c": 0.9, "a": 0.8, "b": None}
    assert {it["id"]: it["score"] for it in retrieval.response} == {"c": 0.9, "a": 0.8, "b": 0.8}


@every_way
def test_distances_stay_distances(way: Way) -> None:
    def found(query: str, top_k: int) -> list[dict[str, Any]]:
        far = [row("a", 0.1), row("b", 0.2)] if query == QUERY else [row("e", 0.01), row("a", 0.05)]
        return [{"id": it["id"], "distance": it["score"], "text": it["text"]} for it in far]

    got = way.wrap(found, config=transforming("rewrite"), script=REWRITE).call(QUERY, top_k=3)
    assert {it["id"]: it["distance"] for it in got} == {"a": 0.1, "b": 0.2, "e": 0.2}
