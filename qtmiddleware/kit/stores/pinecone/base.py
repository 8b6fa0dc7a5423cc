"""What is alike in every store on Pinecone: its record of the embedding model, writing, removing, counting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.passages import ClosingStore, pair_vectors
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, Calls
from qtmiddleware.kit.stores.pinecone.records import (
    DEFAULT_NAMESPACES,
    MOST_IDS,
    MOST_MATCHES,
    MOST_VECTORS,
    Row,
    check_id,
    is_id,
    plain_filter,
    read_record,
    restore_integer,
    sort_records,
    split_batches,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

NAMESPACE: Final = "qtmiddleware.about"
_DEFAULT: Final = "__default__"
_log = get_logger("qtmiddleware.stores")


def count_vectors(stats: Any, namespace: str) -> int:
    """How many vectors *stats* counts in *namespace*; the default one goes by two names."""
    held: Mapping[str, Any] = getattr(stats, "namespaces", None) or {}
    names = DEFAULT_NAMESPACES if namespace in DEFAULT_NAMESPACES else (namespace,)
    return max((int(held[name].vector_count or 0) for name in names if name in held), default=0)


class ModelRecord:
    """The record that says which model made the vectors of *namespace*, looked for once, before anything else.

    *kind* is what the index must hold, ``dense`` or ``sparse``, ``""`` for either. *put* writes the
    record, given its namespace, its id and its metadata. With *model* ``""`` the index embeds by
    itself. Threads that come at once may all look, so that none waits for another's request; one of
    them writes.
    """

    def __init__(
        self,
        calls: Calls,
        namespace: str,
        *,
        kind: str,
        model: str,
        dimension: int,
        put: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._kind = kind
        self._model = model
        self._dimension = dimension
        self._put = put
        self._lock = ForkLock()
        self._has_looked = False
        self._token = ""
        self._foreign = 0
        self.metric = ""

    def look(self) -> None:
        """Read the record, the first time; raises `StoreError` where the vectors are not of this model."""
        if self._has_looked:
            return
        stats = self._calls("describe_index_stats", "opened")
        self._check_index(stats)
        answer = self._calls(
            "fetch", "opened", ids=[self._id], namespace=NAMESPACE, may_be_missing=True
        )
        found = None if answer is None else answer.vectors.get(self._id)
        self._foreign = count_vectors(stats, self._namespace)
        if found is not None:
            self._check_model(found.metadata or {})
        elif self._foreign:
            _log.info(
                "%s has no record of its embedding model; only its dimension was checked",
                self._where,
                event="index_unrecorded",
            )
        self._has_looked = True

    def claim(self) -> None:
        """As `look`, and write the record where nothing is in the namespace yet.

        Raises `StoreError` where somebody else's vectors are in it: which model made them is not
        known.
        """
        self.look()
        if not self._token and self._foreign and self._model:
            raise StoreError(
                f"{self._where} holds {self._foreign:,} vectors of an embedding model that is not"
                " recorded there; vectors of two models cannot stand together. Use another"
                " store.namespace to write to"
            )
        self._write()

    def ensure_recorded(self) -> None:
        """Write the record if it is missing, unless vectors are there whose model is not known."""
        self.look()
        if not self._foreign or not self._model:
            self._write()

    @property
    def identity(self) -> str:
        """The name of this index and namespace, with the mark of the record as far as it is known here."""
        return f"pinecone:{self._calls.host}/{self._key}#{self._token}"

    @property
    def _id(self) -> str:
        """The record's own id: names of namespaces may hold blanks, which ids that are fetched may not."""
        return sha256(self._key.encode()).hexdigest()

    @property
    def _key(self) -> str:
        return _DEFAULT if self._namespace in DEFAULT_NAMESPACES else self._namespace

    @property
    def _where(self) -> str:
        return f"the namespace {self._key!r} of {self._calls.subject}"

    def _check_index(self, stats: Any) -> None:
        kind, dimension = getattr(stats, "vector_type", None), getattr(stats, "dimension", None)
        self.metric = getattr(stats, "metric", None) or ""
        if self._kind and kind and kind != self._kind:
            raise StoreError(
                f"{self._calls.subject} holds {kind} vectors; this needs an index of {self._kind}"
                " ones"
            )
        if self._kind == "dense" and dimension and dimension != self._dimension:
            raise StoreError(
                f"{self._calls.subject} holds vectors of {dimension} numbers and cannot be used"
                f" with {self._model!r}, which makes {self._dimension}. Use the model it was made"
                " for, or an index of that dimension"
            )

    def _check_model(self, held: Mapping[str, Any]) -> None:
        model, dimension = (
            str(held.get("embedding_model") or ""),
            int(restore_integer(held.get("dimension")) or 0),
        )
        if (model, dimension) != (self._model, self._dimension):
            raise StoreError(
                f"{self._where} was made {_describe_model(model, dimension)}, not"
                f" {_describe_model(self._model, self._dimension)}: their vectors mean different"
                " things. Use it as it was made, or ingest again into another store.namespace"
            )
        self._token = str(held.get("identity", ""))

    def _write(self) -> None:
        with self._lock.free:
            if self._token:
                return
            token = uuid4().hex
            facts = {
                "namespace": self._key,
                "embedding_model": self._model,
                "dimension": self._dimension,
            }
            self._put(NAMESPACE, self._id, {**facts, "identity": token})
            self._token = token


def _describe_model(model: str, dimension: int) -> str:
    """Who makes the vectors, for people; the model of a sparse index gives them no length."""
    if not model:
        return "by the index itself (store.integrated)"
    return f"with the embedding model {model!r}" + (
        f" ({dimension} numbers a vector)" if dimension else ""
    )


WRITING: Final = "written to"


class PineconeBase(ClosingStore):
    """One namespace of one index.

    Pinecone is eventually consistent: what was written or removed is seen by searches and by
    `count` a little later.
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
        namespace: str = "",
        text_field: str = "text",
        timeout_seconds: float = TIMEOUT_SECONDS,
        opened: ExitStack | None = None,
    ) -> None:
        # Some clients say None for the default namespace.
        namespace = namespace or ""
        if namespace and not is_id(namespace):
            raise StoreError(
                "a Pinecone namespace is at most 512 ASCII characters, without NUL; use another"
                " namespace"
            )
        if namespace == NAMESPACE:
            raise StoreError(
                f"the namespace {NAMESPACE!r} is reserved for facts about the other namespaces;"
                " choose another one"
            )
        self._namespace = namespace
        self._dimension = dimension
        self._text_field = text_field
        self._calls = Calls(index, seconds=timeout_seconds, opened=opened)
        self._about = ModelRecord(
            self._calls,
            namespace,
            kind=self._kind,
            model=embedding_model,
            dimension=dimension,
            put=self._write_note,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.host!r}, namespace={self._namespace!r})"

    @property
    def identity(self) -> str:
        """The host, the namespace and a mark that is left in the index the first time it is asked for or written to.

        Vectors that something else has written carry no such mark. Asks Pinecone the first time;
        raises `StoreError`.
        """
        self._about.ensure_recorded()
        return self._about.identity

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, replacing those of the same id, then remove those of *delete* that were not written.

        *passages* may be more than fits in memory: they are sent one batch after the other. It is
        not one change: readers see each batch as it comes, new ones before stale ones go. A failure
        leaves what was written before it and says how much that is; writing the same again
        completes it.
        """
        self._write(self._rows(passages), delete)

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all are checked before the first is sent."""
        self._write(list(self._rows(pair_vectors(passages, vectors))), ())

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
        return count_vectors(self._calls("describe_index_stats", "read"), self._namespace)

    def close(self) -> None:
        """Let go of the connections that were opened for this store; an index that was given stays open."""
        self._calls.close()

    def _write(self, rows: Iterable[Row], delete: Sequence[str]) -> None:
        stale = dict.fromkeys(delete)
        sent = 0
        try:
            for batch in split_batches(rows, self._most):
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
            raise StoreError(
                f"{error}; {sent:,} passages had been written by then"
            ) from error.__cause__

    def _rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        """*passages* as they will be sent, each checked."""
        for passage, vector in passages:
            check_id(passage.id)
            yield self._row(passage, vector)

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:
        raise NotImplementedError

    def _send(self, batch: list[Row]) -> None:
        raise NotImplementedError

    def _write_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def _remove(self, ids: list[str]) -> None:
        self._calls("delete", WRITING, ids=ids, namespace=self._namespace, may_be_missing=True)

    def _upsert_vectors(self, records: list[dict[str, Any]], namespace: str) -> None:
        answer = self._calls("upsert", WRITING, vectors=records, namespace=namespace)
        taken = getattr(answer, "upserted_count", None)
        if taken != len(records):
            raise StoreError(
                f"{self._calls.subject} took {taken} of {len(records)} vectors that were sent"
            )

    def _query(self, top_k: int, filter: Filter | None, **query: Any) -> list[Record]:  # noqa: A002
        """The matches of a query by vector."""
        condition = plain_filter(filter)
        if top_k < 1:
            return []
        if condition:
            query["filter"] = condition
        answer = self._calls(
            "query",
            "searched",
            top_k=min(top_k, MOST_MATCHES),
            namespace=self._namespace,
            include_metadata=True,
            include_values=False,
            **query,
        )
        # A Euclidean index answers distances, the least first; everywhere here greater is better.
        sign = -1.0 if self._about.metric == "euclidean" else 1.0
        return sort_records(
            [
                read_record(it.id, sign * (it.score or 0.0), it.metadata, self._text_field)
                for it in answer.matches
            ]
        )
