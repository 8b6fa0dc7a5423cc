"""The hosted models: the same words always give the same numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from zlib import crc32

DENSE = {"multilingual-e5-large": 1024, "llama-text-embed-v2": 1024}
RERANKERS = {
    "bge-reranker-v2-m3": (100, 1024),
    "pinecone-rerank-v0": (100, 512),
    "cohere-rerank-3.5": (200, 40_000),
}
"""The most documents in a request and the most words that are read of a query with a document."""


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _place(word: str) -> int:
    return crc32(word.encode("utf-8", "replace"))


def dense(text: str, dimension: int) -> list[float]:
    """A bag of words, hashed, of length 1; a text without words points the first way."""
    vector = [0.0] * dimension
    for word in words(text) or [""]:
        vector[_place(word) % dimension] += 1.0
    length = math.hypot(*vector)
    return [number / length for number in vector]


def sparse(text: str, kind: str) -> dict[int, float]:
    """The weight of each word of four letters or more: more often in a passage is more, of a query each counts once."""
    counts = Counter(word for word in words(text) if len(word) > 3)
    return {
        _place(word): 1.0 if kind == "query" else 1.0 + math.log(count)
        for word, count in counts.items()
    }


def relevance(query: str, text: str) -> float:
    """The share of the query's words that the text has."""
    wanted = set(words(query))
    return len(wanted & set(words(text))) / len(wanted) if wanted else 0.0
