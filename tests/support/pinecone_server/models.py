"""The hosted models: the same words always give the same numbers."""

from __future__ import annotations

import math
import re
from zlib import crc32

DENSE = {"multilingual-e5-large": 1024, "llama-text-embed-v2": 1024, "test-embed": 16}
MOST_INPUTS = 96
RERANKERS = {
    "bge-reranker-v2-m3": (100, 1024),
    "pinecone-rerank-v0": (100, 512),
    "cohere-rerank-3.5": (200, 40_000),
}
"""The most documents in a request and the most words that are read of a query with a document."""
UNKNOWN_WORDS = frozenset(
    {"a", "an", "and", "are", "do", "does", "have", "in", "is", "it", "of", "on", "the", "to"}
)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def dense(text: str, dimension: int) -> list[float]:
    """A bag of words, hashed, of length 1; a text without words points the first way."""
    vector = [0.0] * dimension
    for word in words(text):
        vector[crc32(word.encode("utf-8", "replace")) % dimension] += 1.0
    length = math.sqrt(sum(number * number for number in vector))
    return [number / length for number in vector] if length else [1.0] + [0.0] * (dimension - 1)


def sparse(text: str, kind: str) -> dict[int, float]:
    """The weight of each known word: more often in a passage is more, of a query each counts once."""
    found: dict[int, float] = {}
    for word in words(text):
        if word not in UNKNOWN_WORDS:
            index = crc32(word.encode("utf-8", "replace"))
            found[index] = found.get(index, 0.0) + 1.0
    return {at: 1.0 if kind == "query" else 1.0 + math.log(count) for at, count in found.items()}


def relevance(query: str, text: str) -> float:
    """The share of the query's words that the text has."""
    wanted, held = set(words(query)), set(words(text))
    return len(wanted & held) / len(wanted) if wanted else 0.0
