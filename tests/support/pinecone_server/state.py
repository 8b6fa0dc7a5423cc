"""What the indexes of vectors hold, and how it is searched."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import Any, Literal

from tests.support.pinecone_server import filtering, models
from tests.support.pinecone_server.errors import Refused

Kind = Literal["dense", "sparse"]
ORDER = {"cosine": -1.0, "dotproduct": -1.0, "euclidean": 1.0}


@dataclass(frozen=True)
class Stored:
    """One record: its values, and its metadata as they are given back."""

    values: tuple[float, ...] = ()
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
    text_field: str = "text"
    namespaces: dict[str, dict[str, Stored]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock, repr=False)

    def put(self, namespace: str, records: dict[str, Stored]) -> None:
        for id_, record in records.items():
            if len(record.values) != self.dimension:
                raise Refused(
                    f"Vector dimension {len(record.values)} does not match the dimension of the index {self.dimension}"
                )
            if not any(record.values):
                raise Refused(f"Dense vectors must contain at least one non-zero value: {id_}")
        with self.lock:
            self.namespaces.setdefault(namespace, {}).update(records)

    def embedded(self, text: str) -> tuple[float, ...]:
        if not self.model:
            raise Refused("Integrated inference is not configured for this index")
        return tuple(models.dense(text, self.dimension))

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
        vector: tuple[float, ...],
        top_k: int,
        condition: dict[str, Any] | None,
    ) -> list[tuple[str, float, Stored]]:
        if len(vector) != self.dimension:
            raise Refused(
                f"Query vector dimension {len(vector)} does not match the dimension of the index {self.dimension}"
            )
        with self.lock:
            held = list(self.namespaces.get(namespace, {}).items())
        kept = [
            (id_, one)
            for id_, one in held
            if condition is None or filtering.meets(one.metadata, condition)
        ]
        scores = self._scores(vector, [one for _, one in kept])
        found = [(id_, score, one) for (id_, one), score in zip(kept, scores, strict=True)]
        found.sort(key=lambda one: (ORDER[self.metric] * one[1], one[0]))
        return found[:top_k]

    def _scores(self, vector: tuple[float, ...], kept: list[Stored]) -> list[float]:
        if not kept:
            return []
        import numpy as np

        wanted = np.array(vector)
        held = np.stack([one.array for one in kept])
        scores = ((held - wanted) ** 2).sum(axis=1) if self.metric == "euclidean" else held @ wanted
        if self.metric == "cosine":
            lengths = np.linalg.norm(held, axis=1) * np.linalg.norm(wanted)
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
        return [round(float(score), 6) for score in scores]
