"""What the indexes of vectors hold, and how it is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import Any, Literal

from tests.support.pinecone_server import models
from tests.support.pinecone_server.errors import Refused
from tests.support.pinecone_server.filtering import meets

Kind = Literal["dense", "sparse"]


@dataclass(frozen=True)
class Stored:
    """One record: its values, and its metadata as they are given back."""

    values: list[float]
    metadata: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def array(self) -> Any:
        import numpy as np

        return np.array(self.values)


@dataclass
class Index:
    """An index of vectors, a sparse one of which holds nothing; one with a *model* embeds texts by itself."""

    name: str
    dimension: int = 0
    kind: Kind = "dense"
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

    def embedded(self, text: str) -> list[float]:
        if not self.model:
            raise Refused("Integrated inference is not configured for this index")
        return models.dense(text, self.dimension)

    def remove(self, namespace: str, ids: list[str]) -> None:
        with self.lock:
            if namespace not in self.namespaces:
                raise Refused("Namespace not found", 404)
            held = self.namespaces[namespace]
            for id_ in ids:
                held.pop(id_, None)
            if not held:
                del self.namespaces[namespace]

    def nearest(
        self,
        namespace: str,
        vector: list[float],
        top_k: int,
        condition: dict[str, Any],
    ) -> list[tuple[str, float, Stored]]:
        if len(vector) != self.dimension:
            raise Refused(f"the vector must have {self.dimension} values")
        meets({}, condition)
        with self.lock:
            held = list(self.namespaces.get(namespace, {}).items())
        kept = [(id_, one) for id_, one in held if meets(one.metadata, condition)]
        scores = self._scores(vector, [one for _, one in kept])
        found = [(id_, score, one) for (id_, one), score in zip(kept, scores, strict=True)]
        sign = 1 if self.metric == "euclidean" else -1
        return sorted(found, key=lambda it: (sign * it[1], it[0]))[:top_k]

    def _scores(self, vector: list[float], kept: list[Stored]) -> list[float]:
        if not kept:
            return []
        import numpy as np

        wanted, held = np.array(vector), np.stack([one.array for one in kept])
        scores = held @ wanted
        if self.metric == "euclidean":
            scores = ((held - wanted) ** 2).sum(axis=1)
        if self.metric == "cosine":
            lengths = np.linalg.norm(held, axis=1) * np.linalg.norm(wanted)
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
        return [round(float(score), 6) for score in scores]
