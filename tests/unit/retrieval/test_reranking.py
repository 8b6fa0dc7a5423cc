"""Reranking in the flow: what it may change, and what stays when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm

QUESTION = "Which lamp is red?"
PASSAGES = [
    {
        "id": f"p{number}",
        "score": 1.0 - number / 10,
        "text": f"passage {number}",
        "metadata": {"n": number},
    }
    for number in range(8)
]
CONFIG: dict[str, Any] = {"rerank": True, "keywordEvidence": False}


class Judge:
    """A reranker that scores by a table and remembers what it was asked."""

    name = "judge"

    def __init__(self, answer: Callable[[Sequence[str]], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, list[str]]] = []

    def rerank(self, query: str, texts: Sequence[str]) -> Any:
        self.asked.append((query, list(texts)))
        return self.answer(texts)


def by_number(texts: Sequence[str]) -> list[float]:
    return [float(text.split()[-1]) for text in texts]


def retrieved(
    judge: Any, settings: dict[str, Any] | None = None, top_k: int = 8, **options: Any
) -> qtm.Retrieval:
    def search(query: str, top_k: int = 8) -> list[dict[str, Any]]:
        return PASSAGES[:top_k]

    wrapped = qtm.QueryMiddleware({**CONFIG, **(settings or {})}, reranker=judge).wrap(search)
    return wrapped.retrieve(QUESTION, top_k=top_k, **options)


def ids(found: qtm.Retrieval) -> list[str | None]:
    return [match.id for match in found.matches]


def test_the_order_becomes_the_rerankers_and_the_backends_scores_stay() -> None:
    judge = Judge(by_number)
    found = retrieved(judge)
    assert ids(found) == [f"p{number}" for number in reversed(range(8))]
    assert [match.rerank_score for match in found.matches] == [*map(float, reversed(range(8)))]
    assert [match.score for match in found.matches] == [row["score"] for row in reversed(PASSAGES)]
    assert found.response == list(reversed(PASSAGES))
    assert found.status == "full"


def test_one_call_may_turn_it_off_or_on() -> None:
    judge = Judge(by_number)
    assert ids(retrieved(judge, None, config={"rerank": False}))[0] == "p0"
    assert ids(retrieved(judge, {"rerank": False}, config={"rerank": True}))[0] == "p7"
    assert len(judge.asked) == 1


@given(blank=st.sets(st.integers(0, 7)))
def test_passages_without_text_keep_their_places(blank: set[int]) -> None:
    rows = [{**row, "text": ""} if number in blank else row for number, row in enumerate(PASSAGES)]

    def search(query: str, top_k: int = 8) -> list[dict[str, Any]]:
        return rows

    judge = Judge(by_number)
    found = qtm.QueryMiddleware(CONFIG, reranker=judge).wrap(search).retrieve(QUESTION)
    assert {place for place, id_ in enumerate(ids(found)) if int(str(id_)[1:]) in blank} == blank
    assert sorted(map(str, ids(found))) == [row["id"] for row in PASSAGES]
    assert found.status == "full"
    assert all("" not in texts for _, texts in judge.asked)


def test_a_reranker_that_returns_something_else_is_told_what_is_expected() -> None:
    found = retrieved(Judge(lambda texts: [1.0]))
    (problem,) = found.degradations
    assert problem.detail == "the reranker must return one finite number for each of 8 passages"
    assert ("rerank", problem.detail) in found.trace.notes
    assert found.response == PASSAGES
