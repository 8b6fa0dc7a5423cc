"""Functions that a user might have, each with another kind of search and another response."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from tests.golden.cases import Collection
from tests.golden.vectors import StoredVectors

TOP_K: Final = 5
FUSED_DEPTH: Final = 50
RRF_K: Final = 60
# A Chinese character is a word; everything else is written with spaces between words.
_WORD: Final = re.compile(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+")

Retrieve = Callable[..., Any]
Hits = list[tuple[int, float]]
"""Places of passages with their scores, best first."""


class WordScores:
    """BM25 (Robertson and Zaragoza 2009) with its usual constants, over all the words of a text."""

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(_split_words(text)) for text in texts]
        lengths = [sum(count.values()) for count in counts]
        mean = sum(lengths) / len(lengths)
        self._scores: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for place, count in enumerate(counts):
            reduced = k1 * (1 - b + b * lengths[place] / mean)
            for word, frequency in count.items():
                score = frequency * (k1 + 1) / (frequency + reduced)
                self._scores[word].append((place, score))
        self._rarity = {
            word: math.log(1 + (len(texts) - len(held) + 0.5) / (len(held) + 0.5))
            for word, held in self._scores.items()
        }

    def find(self, query: str, count: int) -> Hits:
        """The best *count* texts that hold any word of *query*."""
        sums: Counter[int] = Counter()
        for word in sorted(self._rarity.keys() & set(_split_words(query))):
            for place, score in self._scores[word]:
                sums[place] += self._rarity[word] * score
        return _take_best(list(sums.items()), count)


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _take_best(hits: Hits, count: int) -> Hits:
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:count]


def build_functions(collection: Collection, vectors: StoredVectors) -> dict[str, Retrieve]:
    """The functions over the passages of *collection*, by kind."""
    passages = collection.passages
    matrix = np.stack([vectors.find(passage.text) for passage in passages])
    words = WordScores([passage.text for passage in passages])

    def find_nearest(query: str, count: int) -> Hits:
        return _take_best(list(enumerate((matrix @ vectors.find(query)).tolist())), count)

    def find_by_both(query: str, count: int) -> Hits:
        sums: Counter[int] = Counter()
        for hits in (find_nearest(query, FUSED_DEPTH), words.find(query, FUSED_DEPTH)):
            for rank, (place, _) in enumerate(hits, start=1):
                sums[place] += 1 / (RRF_K + rank)
        return _take_best(list(sums.items()), count)

    def search_vectors(query: str, top_k: int = TOP_K) -> dict[str, Any]:
        matches = [
            {
                "id": passages[place].id,
                "score": score,
                "metadata": {**passages[place].metadata, "text": passages[place].text},
            }
            for place, score in find_nearest(query, top_k)
        ]
        return {"matches": matches, "namespace": "golden", "usage": {"read_units": 1}}

    def search_words(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        return [
            {"id": passages[place].id, "score": score, "text": passages[place].text}
            for place, score in words.find(query, top_k)
        ]

    def search_both(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        return [
            {"id": passages[place].id, "score": score, "content": passages[place].text}
            for place, score in find_by_both(query, top_k)
        ]

    def search_without_scores(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        return [
            {"id": passages[place].id, "text": passages[place].text}
            for place, _ in find_nearest(query, top_k)
        ]

    return {
        "dense": search_vectors,
        "words": search_words,
        "hybrid": search_both,
        "no scores": search_without_scores,
    }
