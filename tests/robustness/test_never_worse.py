"""The one law: whatever call the plain function answers, the wrapped one answers with as many passages, and helps."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.laws.shapes import SHAPES, Row, Shape
from tests.laws.world import decorate
from tests.support.retrieval_world import HISTORY, QUERY, Way, scripted, transforming

NAMES: Final = ("dicts", "query response", "pairs", "columns", "documents and scores")
"""The shapes that differ most in how passages are told apart."""
ANSWER: Final = "Jaco: health concerns of a dog"
PLANTED: Final = 6
"""Where the answer stands among what is found, counted from 0."""


def judge(query: str, texts: Sequence[str]) -> list[float]:
    """A reranker of one's own; it likes short texts."""
    return [-float(len(text)) for text in texts]


EVIDENCE_OFF: Final = {"keywordEvidence": {"enabled": False}}
ALONE: Final = {"weights": {"original": 0}}
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "rules": {},
    "few candidates": {"keywordEvidence": {"candidates": 8}},
    "many candidates": {"keywordEvidence": {"candidates": 200}},
    "fused scores": {"scores": "fused"},
    "stripped text": {"preprocess": {"applyTo": "both"}},
    "off, fused scores": {**EVIDENCE_OFF, "scores": "fused"},
    "rerank": {"rerank": {"enabled": True, "rerankTopK": 12}},
    "rerank alone": {**EVIDENCE_OFF, "rerank": {"enabled": True}},
    "combined": transforming("combined"),
    "combined, fused scores": transforming("combined", scores="fused"),
    "combined, auto": transforming("combined", escalation={"mode": "auto"}),
    "combined, reranked": transforming("combined", rerank={"enabled": True}),
    "all": transforming("all"),
    "hyde": transforming("hyde"),
    "keywords": transforming("keywords"),
    "decompose, two a sub-query": transforming("decompose", fusion={"subQueryTopK": 2}),
    "rrf": transforming("combined", fusion={"method": "rrf"}),
    "weighted rrf": transforming("combined", fusion={"method": "weighted_rrf"}),
    "max": transforming("combined", fusion={"method": "max"}),
    "concat": transforming("combined", fusion={"method": "concat"}),
    "variants alone": transforming("combined", fusion=ALONE),
    "variants alone, max": transforming("decompose", fusion=ALONE | {"method": "max"}),
    "variants alone, concat": transforming("decompose", fusion=ALONE | {"method": "concat"}),
    "variants alone, two a sub-query": transforming(
        "decompose", fusion=ALONE | {"subQueryTopK": 2, "minSuccesses": 1}
    ),
    "a silent original": transforming("combined", fusion={"weights": {"original": 0.0}}),
}
# Where nothing but the rules speaks, the answer that holds the keywords must rise.
RULES: Final = ("rules", "few candidates", "many candidates", "fused scores")


@dataclass(frozen=True)
class Index:
    """A corpus in which each text finds a list of its own, best first: a longer one begins with a shorter one.

    The question finds the share *found_by_question* of the corpus, any other text the share
    *found*.
    """

    size: int
    seed: int = 0
    repeats: float = 0.0
    found: float = 1.0
    found_by_question: float = 1.0
    rising: bool = False

    def rows(self, text: str) -> list[Row]:
        # A config may have the keywords searched in place of the question.
        is_question = text in (QUERY, qtm.preprocess(QUERY))
        chance = random.Random(f"{self.seed} {'' if is_question else text}")
        order = list(range(self.size))
        chance.shuffle(order)
        share = self.found_by_question if is_question else self.found
        order = order[: round(self.size * share)]
        rows: list[Row] = []
        for place, number in enumerate(order):
            if rows and chance.random() < self.repeats:
                number = int(rows[-1].id or 0)
            score = place / len(order) if self.rising else 1.0 - place / len(order)
            rows.append(Row(str(number), f"Passage {number} of a report on cats", score, 1))
        if is_question and len(rows) > PLANTED and not self.repeats:
            rows[PLANTED] = rows[PLANTED]._replace(text=ANSWER)
        return rows


SEED: Final = st.integers(0, 5)
REPEATS: Final = st.sampled_from([0.0, 0.0, 0.3])
IN_CONVERSATION: Final = st.sampled_from([None, None, HISTORY])
A_CONFIG: Final = st.sampled_from(sorted(CONFIGS))
both_ways: Final = pytest.mark.parametrize("way", [Way("sync"), Way("async")], ids=repr)


def wrap(way: Way, search: Callable[..., Any], config: Mapping[str, Any]) -> Any:
    """*search*, made a coroutine function for an async *way*, behind a middleware."""
    search = decorate(search, is_async=True) if way.name == "async" else search
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(scripted), reranker=judge)
    return qm.wrap(search)


def keys(shape: Shape, response: Any) -> list[str | None]:
    return [row.name for row in shape.read(response)]


def make_function(index: Index, shape: Shape, *, takes_top_k: bool = True) -> Any:
    def search(query: str, top_k: int = 4) -> Any:
        return shape.build(index.rows(query)[:top_k])

    def search_all(query: str) -> Any:
        return shape.build(index.rows(query))

    return search if takes_top_k else search_all


@both_ways
@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    config=A_CONFIG,
    k=st.one_of(st.integers(1, 12), st.integers(1, 500), st.sampled_from([4, 49, 50, 51, 97, 100])),
    takes_top_k=st.sampled_from([True, True, False]),
    index=st.builds(
        Index,
        size=st.one_of(st.integers(0, 12), st.integers(0, 520), st.just(97)),
        seed=SEED,
        repeats=REPEATS,
        found=st.sampled_from([0.0, 0.2, 1.0]),
        # With less than all of them, other texts find passages that the question does not.
        found_by_question=st.sampled_from([1.0, 1.0, 0.4, 0.1]),
        rising=st.booleans(),
    ),
    history=IN_CONVERSATION,
)
def test_nothing_is_lost_nothing_made_up_nothing_doubled_and_the_answer_rises(
    name: str, way: Way, config: str, k: int, takes_top_k: bool, index: Index, history: Any
) -> None:
    shape = SHAPES[name]
    given_k = {"top_k": k} if takes_top_k else {}
    rows = index.rows(QUERY)
    plain = keys(shape, shape.build(rows[: k if takes_top_k else None]))
    search = make_function(index, shape, takes_top_k=takes_top_k)
    wrapped = wrap(way, search, CONFIGS[config])
    retrieval = way.retrieve(wrapped, QUERY, history=history, **given_k)
    response = retrieval.response if history else way.call(wrapped, QUERY, **given_k)

    got = keys(shape, retrieval.response)
    assert retrieval.status == "full"
    if not config.startswith("combined, auto"):
        assert keys(shape, response) == got
    assert type(retrieval.response) is type(shape.build(rows))
    assert len(got) >= min(k, len(plain)) if takes_top_k else len(got) >= len(plain)
    searched = {QUERY, *(variant.text for variant in retrieval.variants)}
    found = [row for text in searched for row in index.rows(text)]
    assert set(got) <= set(keys(shape, shape.build(found)))
    assert not takes_top_k or len(got) <= k
    doubled = Counter(got) - Counter(set(got))
    assert all(Counter(plain)[key] > count for key, count in doubled.items())
    if not takes_top_k or len(plain) < k:
        assert set(plain) <= set(got)
    assert [match.fused_score is not None for match in retrieval.matches] == [True] * len(got)
    assert len(retrieval.matches) == len(got)

    own = keys(shape, shape.build(rows))
    answer = own[PLANTED] if len(rows) > PLANTED and not index.repeats else None
    if config in RULES and answer in plain and not history:
        assert got.index(answer) < PLANTED
