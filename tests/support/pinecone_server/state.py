"""What the indexes of vectors hold, and how it is searched; the hosted model gives the same words the same numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from operator import mul
from threading import RLock
from typing import Any
from zlib import crc32

from tests.support.pinecone_server.filtering import meets
from tests.support.pinecone_server.rules import Refused

HOSTED = "multilingual-e5-large"
HOSTED_DIMENSION = 1024


def split_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def embed(text: str, dimension: int = HOSTED_DIMENSION) -> list[float]:
    """A bag of words, hashed, of length 1; a text without words points the first way."""
    vector = [0.0] * dimension
    for word in split_words(text) or [""]:
        vector[crc32(word.encode("utf-8", "replace")) % dimension] += 1.0
    length = math.hypot(*vector)
    return [number / length for number in vector]


@dataclass(frozen=True)
class Stored:
    """One record: its values, and its metadata as they are given back."""

    values: list[float]
    metadata: dict[str, Any] = field(default_factory=dict)


def score(metric: str, one: list[float], other: list[float]) -> float:
    if metric == "euclidean":
        return math.dist(one, other) ** 2
    product = sum(map(mul, one, other))
    length = math.hypot(*one) * math.hypot(*other) if metric == "cosine" else 1.0
    return product / length if length else 0.0


@dataclass
class Index:
    """An index of vectors, a sparse one of which holds nothing; one with a *model* embeds texts by itself."""

    name: str
    dimension: int = 0
    kind: str = "dense"
    metric: str = "cosine"
    model: str = ""
    namespaces: dict[str, dict[str, Stored]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock, repr=False)

    def put(self, namespace: str, records: dict[str, Stored]) -> None:
        for id_, record in records.items():
            if len(record.values) != self.dimension or not any(record.values):
                raise Refused(f"{id_} must have {self.dimension} values, not all of them 0")
        with self.lock:
            self.namespaces.setdefault(namespace, {}).update(records)

    def embed(self, text: str) -> list[float]:
        if not self.model:
            raise Refused("Integrated inference is not configured for this index")
        return embed(text, self.dimension)

    def remove(self, namespace: str, ids: list[str]) -> None:
        with self.lock:
            if namespace not in self.namespaces:
                raise Refused("Namespace not found", 404)
            held = self.namespaces[namespace]
            for id_ in ids:
                held.pop(id_, None)
            if not held:
                del self.namespaces[namespace]

    def find_nearest(
        self, namespace: str, vector: list[float], top_k: int, condition: dict[str, Any]
    ) -> list[tuple[str, float, Stored]]:
        if len(vector) != self.dimension:
            raise Refused(f"the vector must have {self.dimension} values")
        meets({}, condition)
        with self.lock:
            held = list(self.namespaces.get(namespace, {}).items())
        found = [
            (id_, round(score(self.metric, vector, one.values), 6), one)
            for id_, one in held
            if meets(one.metadata, condition)
        ]
        sign = 1 if self.metric == "euclidean" else -1
        return sorted(found, key=lambda it: (sign * it[1], it[0]))[:top_k]
