"""What is alike in every store on Pinecone: writing in batches, removing, counting, closing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, TypeVar

from qtmiddleware.errors import StoreError
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers.stores.checks import paired
from qtmiddleware.providers.stores.pinecone.about import NAMESPACE, About, vectors_in
from qtmiddleware.providers.stores.pinecone.calls import PATIENCE, Calls
from qtmiddleware.providers.stores.pinecone.records import (
    MOST_IDS,
    MOST_MATCHES,
    MOST_VECTORS,
    Row,
    as_record,
    as_sent,
    batches,
    checked_id,
    in_order,
    is_id,
)

S = TypeVar("S", bound="PineconeBase")
WRITING: Final = "written to"


class PineconeBase:
    """One namespace of one index.

    Pinecone is eventually consistent: what was written or removed is seen by searches and by `count` a little later.
    """

    atomic: Final = False
    _most = MOST_VECTORS
    _kind = ""

    def __init__(
        self,
        index: Any,
        *,
        embedding_model: str,
        dimension: int,
        namespace: str,
        text_field: str,
        timeout_seconds: float = PATIENCE,
        opened: ExitStack | None = None,
    ) -> None:
        # Some clients say None for the default namespace.
        namespace = namespace or ""
        if namespace and not is_id(namespace):
            raise StoreError("a Pinecone namespace is at most 512 ASCII characters, without NUL; use another one")
        if namespace == NAMESPACE:
            raise StoreError(f"the namespace {NAMESPACE!r} is kept for notes on the others; use another one")
        self._namespace = namespace
        self._text_field = text_field
        self._calls = Calls(index, seconds=timeout_seconds, opened=opened)
        self._about = About(
            self._calls,
            namespace,
            kind=self._kind,
            model=embedding_model,
            dimension=dimension,
            patience=timeout_seconds,
            put=self._put_note,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.host!r}, namespace={self._namespace!r})"

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """The host, the namespace and a mark that is left in the index the first time it is asked for or written to.

        Vectors that something else has written carry no such mark. Asks Pinecone the first time; raises `StoreError`.
        """
        return self._about.identity()

    def write(self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()) -> None:
        """Write *passages*, replacing those of the same id, then remove those of *delete* that were not written.

        *passages* may be more than fits in memory: they are sent one batch after the other. It is not one change:
        readers see each batch as it comes, new ones before stale ones go. A failure leaves what was written before it
        and says how much that is; writing the same again completes it.
        """
        self._write(self._rows(passages), delete)

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all are checked before the first is sent."""
        self._write(list(self._rows(paired(passages, vectors))), ())

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages of these *ids*, up to a thousand in a request; unknown ones are no error."""
        # An id that Pinecone cannot hold is one that it does not hold.
        wanted = [id_ for id_ in dict.fromkeys(ids) if is_id(id_)]
        if wanted:
            self._about.look()
        for start in range(0, len(wanted), MOST_IDS):
            self._remove(wanted[start : start + MOST_IDS])

    def count(self) -> int:
        """How many passages there are, as far as Pinecone has counted: what was just written may still be missing."""
        self._about.look()
        return vectors_in(self._calls("describe_index_stats", "read"), self._namespace)

    def close(self) -> None:
        """Let go of the connections that were opened for this store; an index that was given stays open."""
        self._calls.close()

    def _write(self, rows: Iterable[Row], delete: Sequence[str]) -> None:
        stale = dict.fromkeys(delete)
        sent = 0
        try:
            for batch in batches(rows, self._most):
                if not sent:
                    self._about.claim()
                self._send(batch)
                sent += len(batch)
                for row in batch:
                    stale.pop(row.passage.id, None)
            self.delete(list(stale))
        except StoreError as error:
            if not sent:
                raise
            raise StoreError(f"{error}; {sent:,} passages had been written by then") from error.__cause__

    def _rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        """*passages* as they will be sent, each checked."""
        for passage, vector in passages:
            checked_id(passage.id)
            yield self._row(passage, vector)

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:
        raise NotImplementedError

    def _send(self, batch: list[Row]) -> None:
        raise NotImplementedError

    def _put_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def _remove(self, ids: list[str]) -> None:
        self._calls("delete", WRITING, ids=ids, namespace=self._namespace, missing=None)

    def _upsert_vectors(self, records: list[dict[str, Any]], namespace: str) -> None:
        answer = self._calls("upsert", WRITING, vectors=records, namespace=namespace)
        taken = getattr(answer, "upserted_count", None)
        if taken != len(records):
            raise StoreError(f"{self._calls.subject} took {taken} of {len(records)} vectors that were sent")

    def _query(self, top_k: int, filter: Filter | None, **query: Any) -> list[Record]:  # noqa: A002
        """The matches of a query by vector."""
        condition = as_sent(filter)
        if top_k < 1:
            return []
        answer = self._calls(
            "query",
            "searched",
            top_k=min(top_k, MOST_MATCHES),
            namespace=self._namespace,
            include_metadata=True,
            include_values=False,
            **({"filter": condition} if condition else {}),
            **query,
        )
        # A Euclidean index answers distances, the least first; everywhere here greater is better.
        sign = -1.0 if self._about.metric == "euclidean" else 1.0
        return in_order(
            [as_record(it.id, sign * (it.score or 0.0), it.metadata, self._text_field) for it in answer.matches]
        )
