"""What the indexes hold, and how it is searched."""

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
    """One record: its dense or its sparse values, and its metadata as they are given back."""

    values: tuple[float, ...] = ()
    sparse: dict[int, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def array(self) -> Any:
        import numpy as np

        return np.array(self.values)


@dataclass
class Index:
    """An index of one kind of vectors; one with a *model* embeds texts by itself."""

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
            if self.kind == "sparse" and (record.values or not record.sparse):
                raise Refused("Sparse indexes take sparse vectors alone")
            if self.kind == "dense" and len(record.values) != self.dimension:
                raise Refused(
                    f"Vector dimension {len(record.values)} does not match the dimension of the index {self.dimension}"
                )
            if self.kind == "dense" and not any(record.values):
                raise Refused(f"Dense vectors must contain at least one non-zero value: {id_}")
        with self.lock:
            self.namespaces.setdefault(namespace, {}).update(records)

    def embedded(self, text: str, kind: str) -> Stored:
        if not self.model:
            raise Refused("Integrated inference is not configured for this index")
        if self.kind == "sparse":
            return Stored(sparse=models.sparse(text, kind))
        return Stored(values=tuple(models.dense(text, self.dimension)))

    def remove(
        self, namespace: str, ids: list[str] | None, condition: dict[str, Any] | None
    ) -> None:
        """Remove those *ids*, those that meet *condition*, or all."""
        with self.lock:
            if namespace not in self.namespaces:
                raise Refused("Namespace not found", 404)
            held = self.namespaces[namespace]
            for id_ in list(held) if ids is None else ids:
                if id_ in held and (
                    condition is None or filtering.meets(held[id_].metadata, condition)
                ):
                    del held[id_]
            if not held:
                del self.namespaces[namespace]

    def nearest(
        self, namespace: str, query: Stored, top_k: int, condition: dict[str, Any] | None
    ) -> list[tuple[str, float, Stored]]:
        if self.kind == "dense" and len(query.values) != self.dimension:
            raise Refused(
                f"Query vector dimension {len(query.values)} does not match the dimension of the index {self.dimension}"
            )
        if self.kind == "sparse" and (query.values or not query.sparse):
            raise Refused("Sparse indexes are queried by sparse vectors")
        with self.lock:
            held = list(self.namespaces.get(namespace, {}).items())
        kept = [
            (id_, one)
            for id_, one in held
            if condition is None or filtering.meets(one.metadata, condition)
        ]
        found = [
            (id_, score, one)
            for (id_, one), score in zip(kept, self._scores(query, kept), strict=True)
        ]
        if self.kind == "sparse":
            found = [one for one in found if one[1] != 0.0]
        found.sort(key=lambda one: (ORDER[self.metric] * one[1], one[0]))
        return found[:top_k]

    def _scores(self, query: Stored, kept: list[tuple[str, Stored]]) -> list[float]:
        if self.kind == "sparse":
            return [
                round(sum(w * one.sparse.get(at, 0.0) for at, w in query.sparse.items()), 6)
                for _, one in kept
            ]
        if not kept:
            return []
        import numpy as np

        wanted = query.array
        held = np.stack([one.array for _, one in kept])
        scores = ((held - wanted) ** 2).sum(axis=1) if self.metric == "euclidean" else held @ wanted
        if self.metric == "cosine":
            lengths = np.linalg.norm(held, axis=1) * np.linalg.norm(wanted)
            scores = np.divide(scores, lengths, out=np.zeros_like(scores), where=lengths > 0)
        return [round(float(score), 6) for score in scores]
