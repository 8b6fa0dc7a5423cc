"""Plain searches over one data set, as a user's function returns their passages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from benchmarks.quality.sets import Prepared

WIDE = 50
RRF_K = 60
Records = list[dict[str, Any]]
Search = Callable[..., Records]


def build_searches(prepared: Prepared, *, with_metadata: bool = False) -> dict[str, Search]:
    """Return the search by cosine, by BM25 over all words, and by the reciprocal ranks of both."""
    passages = {passage.id: passage for passage in prepared.data.passages}

    def describe(id_: str) -> dict[str, Any]:
        return {"metadata": dict(passages[id_].metadata)} if with_metadata else {}

    def show(scores: dict[str, float], top_k: int) -> Records:
        best = sorted(scores, key=lambda id_: -scores[id_])[:top_k]
        return [
            {"id": id_, "score": scores[id_], "text": passages[id_].text, **describe(id_)}
            for id_ in best
        ]

    @cache
    def find_nearest(query: str) -> dict[str, float]:
        vector = prepared.vectors([query])[0]
        return {passage["id"]: passage["score"] for passage in prepared.store.search(vector, WIDE)}

    @cache
    def find_words(query: str) -> dict[str, float]:
        found = prepared.store.keyword_search(query, WIDE)  # type: ignore[attr-defined]
        return {passage["id"]: passage["score"] for passage in found}

    @cache
    def fuse_ranks(query: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for scores in (find_nearest(query), find_words(query)):
            for rank, id_ in enumerate(scores, start=1):
                sums[id_] = sums.get(id_, 0.0) + 1.0 / (RRF_K + rank)
        return sums

    return {
        "vectors, cosine": lambda query, top_k=10: show(find_nearest(query), top_k),
        "words, BM25": lambda query, top_k=10: show(find_words(query), top_k),
        "hybrid, RRF": lambda query, top_k=10: show(fuse_ranks(query), top_k),
    }
