"""Write to and search a Pinecone index, and record the embedding model of its vectors."""

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
    build_record,
    check_passage_id,
    convert_filter,
    is_valid_passage_id,
    restore_integer,
    sort_records,
    split_into_batches,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

NAMESPACE: Final = "qtmiddleware.about"
_DEFAULT: Final = "__default__"
_log = get_logger("qtmiddleware.stores")


def count_vectors(index_stats: Any, namespace: str) -> int:
    """Return the number of vectors in *namespace*; 0 if the namespace does not exist.

    *index_stats* are the index's statistics from Pinecone, which may list the default namespace as
    ``""`` or ``"__default__"``.
    """
    namespaces: Mapping[str, Any] = getattr(index_stats, "namespaces", None) or {}
    names = DEFAULT_NAMESPACES if namespace in DEFAULT_NAMESPACES else (namespace,)
    return max(
        (int(namespaces[name].vector_count or 0) for name in names if name in namespaces), default=0
    )


class ModelRecord:
    """A record in a Pinecone index that names the embedding model used for one namespace.

    The record is read before the first use of the index. Several threads may read the record at the
    same time, but only one thread writes it.

    Args:
        calls: the object that sends requests to the index.
        namespace: the namespace that the record describes.
        vector_type: the required type of vectors, ``dense`` or ``sparse``; ``""`` allows both.
        model: the embedding model in use; ``""`` if the index embeds texts itself.
        dimension: the length of the model's vectors.
        write_record: a function that takes a namespace, an id and metadata, and writes a record.
    """

    def __init__(
        self,
        calls: Calls,
        namespace: str,
        *,
        vector_type: str,
        model: str,
        dimension: int,
        write_record: Callable[[str, str, dict[str, Any]], None],
    ) -> None:
        self._calls = calls
        self._namespace = namespace
        self._vector_type = vector_type
        self._model = model
        self._dimension = dimension
        self._write_record = write_record
        self._lock = ForkLock()
        self._is_checked = False
        self._token = ""
        self._vector_count = 0
        self.metric = ""

    def check_embedding_model_once(self) -> None:
        """On the first call, check that the vectors in the index are from the model in use.

        Raises `StoreError` if the vectors are from another model, or have another type or
        dimension. If the index has no record of the model, only the type and the dimension are
        checked. Later calls do nothing.
        """
        if self._is_checked:
            return
        stats = self._calls("describe_index_stats", "opened")
        self._check_vector_type_and_dimension(stats)
        answer = self._calls(
            "fetch", "opened", ids=[self._record_id], namespace=NAMESPACE, may_be_missing=True
        )
        record = None if answer is None else answer.vectors.get(self._record_id)
        self._vector_count = count_vectors(stats, self._namespace)
        if record is not None:
            self._check_recorded_model(record.metadata or {})
        elif self._vector_count:
            _log.info(
                "%s has no record of its embedding model; only its dimension was checked",
                self._description,
                event="index_unrecorded",
            )
        self._is_checked = True

    def claim_namespace(self) -> None:
        """Check the embedding model before a write, and create the model record if it is missing.

        Raises `StoreError` if the namespace has vectors of another or unknown model.
        """
        self.check_embedding_model_once()
        if not self._token and self._vector_count and self._model:
            raise StoreError(
                f"{self._description} holds {self._vector_count:,} vectors of an embedding model"
                " that is not recorded there; vectors of two models cannot stand together. Use"
                " another store.namespace to write to"
            )
        self._create_record()

    def ensure_record_exists(self) -> None:
        """Create a missing model record, unless the namespace has vectors of an unknown model.

        Raises `StoreError` if the record names another model.
        """
        self.check_embedding_model_once()
        if not self._vector_count or not self._model:
            self._create_record()

    @property
    def identity(self) -> str:
        """The index's host, the namespace, and the record's random token, if any, as one text."""
        return f"pinecone:{self._calls.host}/{self._namespace_key}#{self._token}"

    @property
    def _record_id(self) -> str:
        """The id of the model record: a hash of the namespace."""
        # A namespace may contain spaces, but Pinecone cannot fetch ids with spaces.
        return sha256(self._namespace_key.encode()).hexdigest()

    @property
    def _namespace_key(self) -> str:
        return _DEFAULT if self._namespace in DEFAULT_NAMESPACES else self._namespace

    @property
    def _description(self) -> str:
        return f"the namespace {self._namespace_key!r} of {self._calls.subject}"

    def _check_vector_type_and_dimension(self, index_stats: Any) -> None:
        """Check that the index has vectors of the required type and dimension.

        *index_stats* are the index's statistics from Pinecone. Raises `StoreError` if the type or
        the dimension differs.
        """
        vector_type, dimension = (
            getattr(index_stats, "vector_type", None),
            getattr(index_stats, "dimension", None),
        )
        self.metric = getattr(index_stats, "metric", None) or ""
        if self._vector_type and vector_type and vector_type != self._vector_type:
            raise StoreError(
                f"{self._calls.subject} holds {vector_type} vectors; this needs an index of"
                f" {self._vector_type} ones"
            )
        if self._vector_type == "dense" and dimension and dimension != self._dimension:
            raise StoreError(
                f"{self._calls.subject} holds vectors of {dimension} numbers and cannot be used"
                f" with {self._model!r}, which makes {self._dimension}. Use the model it was made"
                " for, or an index of that dimension"
            )

    def _check_recorded_model(self, record_metadata: Mapping[str, Any]) -> None:
        """Check that the model record names the model and dimension in use, and save its token.

        *record_metadata* is the record's metadata. Raises `StoreError` if the model or the
        dimension differs.
        """
        model, dimension = (
            str(record_metadata.get("embedding_model") or ""),
            int(restore_integer(record_metadata.get("dimension")) or 0),
        )
        if (model, dimension) != (self._model, self._dimension):
            raise StoreError(
                f"{self._description} was made {_describe_model(model, dimension)}, not"
                f" {_describe_model(self._model, self._dimension)}: their vectors mean different"
                " things. Use it as it was made, or ingest again into another store.namespace"
            )
        self._token = str(record_metadata.get("identity", ""))

    def _create_record(self) -> None:
        """Write the model record, with a new random token, unless the record exists."""
        with self._lock.lock:
            # Another thread may have written the record while this thread waited for the lock.
            if self._token:
                return
            token = uuid4().hex
            facts = {
                "namespace": self._namespace_key,
                "embedding_model": self._model,
                "dimension": self._dimension,
            }
            self._write_record(NAMESPACE, self._record_id, {**facts, "identity": token})
            self._token = token


def _describe_model(model: str, dimension: int) -> str:
    """Describe the embedding *model* in a phrase, such as ``with the embedding model 'm'``.

    The description includes the dimension, unless the dimension is 0, as for a sparse index.
    """
    if not model:
        return "by the index itself (store.integrated)"
    return f"with the embedding model {model!r}" + (
        f" ({dimension} numbers a vector)" if dimension else ""
    )


WRITING: Final = "written to"
"""The action in the error messages of failed writes: the index could not be written to."""


class PineconeBase(ClosingStore):
    """Base class of stores that use one namespace of a Pinecone index.

    Pinecone is eventually consistent: searches and `count` see a write or a removal a little later.
    """

    atomic: Final = False
    _max_batch_rows = MOST_VECTORS
    _vector_type = ""

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
        # Some clients use None for the default namespace.
        namespace = namespace or ""
        if namespace and not is_valid_passage_id(namespace):
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
        self._calls = Calls(index, timeout_seconds=timeout_seconds, resources=opened)
        self._model_record = ModelRecord(
            self._calls,
            namespace,
            vector_type=self._vector_type,
            model=embedding_model,
            dimension=dimension,
            write_record=self._write_model_record,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.host!r}, namespace={self._namespace!r})"

    @property
    def identity(self) -> str:
        """The index's host, the namespace, and a random token that is saved in the index.

        Reading this property creates a missing token, unless another program wrote the vectors. The
        first use calls Pinecone, and may raise `StoreError`.
        """
        self._model_record.ensure_record_exists()
        return self._model_record.identity

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, then remove the passages with the ids in *delete*.

        A passage replaces the stored passage with the same id. If an id is in both *passages* and
        *delete*, the passage is written. *passages* are sent batch by batch, so they need not fit
        in memory.

        The write is not atomic: readers may see some batches before others, and new passages before
        outdated ones are removed. After a failure, the batches already sent stay in the index, and
        the error message says how many passages they contain. Repeat the write to complete it.
        """
        self._write_rows(self._build_rows(passages), delete)

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages* with their *vectors*. A passage replaces a stored one with the same id.

        The method checks all passages before it sends the first one.
        """
        self._write_rows(list(self._build_rows(pair_vectors(passages, vectors))), ())

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages with these *ids*, 1,000 per request. Unknown ids are ignored."""
        # An id that Pinecone cannot store is not stored there either.
        storable_ids = [id_ for id_ in dict.fromkeys(ids) if is_valid_passage_id(id_)]
        if storable_ids:
            self._model_record.check_embedding_model_once()
        for start in range(0, len(storable_ids), MOST_IDS):
            self._remove_ids(storable_ids[start : start + MOST_IDS])

    def count(self) -> int:
        """Return the number of passages; recent writes may not be counted yet."""
        self._model_record.check_embedding_model_once()
        return count_vectors(self._calls("describe_index_stats", "read"), self._namespace)

    def close(self) -> None:
        """Close the connections that the store opened. An index that you passed in stays open."""
        self._calls.close()

    def _write_rows(self, rows: Iterable[Row], ids_to_delete: Sequence[str]) -> None:
        """Send *rows* in batches, then remove those *ids_to_delete* that no row has."""
        stale_ids = dict.fromkeys(ids_to_delete)
        sent = 0
        try:
            for batch in split_into_batches(rows, self._max_batch_rows):
                # A write without passages must not claim the namespace.
                if not sent:
                    self._model_record.claim_namespace()
                self._send_batch(batch)
                sent += len(batch)
                for row in batch:
                    # A passage that was written is not removed, even if its id is in both.
                    stale_ids.pop(row.passage.id, None)
            # Outdated passages are removed last, so that readers never miss a replaced passage.
            self.delete(list(stale_ids))
        except StoreError as error:
            if not sent:
                raise
            raise StoreError(
                f"{error}; {sent:,} passages had been written by then"
            ) from error.__cause__

    def _build_rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        """Check each passage, and yield the row to send to Pinecone for it."""
        for passage, vector in passages:
            check_passage_id(passage.id)
            yield self._build_row(passage, vector)

    def _build_row(self, passage: Passage, vector: Sequence[float]) -> Row:
        raise NotImplementedError

    def _send_batch(self, batch: list[Row]) -> None:
        raise NotImplementedError

    def _write_model_record(self, namespace: str, record_id: str, metadata: dict[str, Any]) -> None:
        raise NotImplementedError

    def _remove_ids(self, ids: list[str]) -> None:
        self._calls("delete", WRITING, ids=ids, namespace=self._namespace, may_be_missing=True)

    def _upsert_vectors(self, records: list[dict[str, Any]], namespace: str) -> None:
        """Write the vectors in *records* to *namespace*.

        Raises `StoreError` if Pinecone does not confirm that all records are written.
        """
        answer = self._calls("upsert", WRITING, vectors=records, namespace=namespace)
        accepted_count = getattr(answer, "upserted_count", None)
        if accepted_count != len(records):
            raise StoreError(
                f"{self._calls.subject} took {accepted_count} of {len(records)} vectors that were"
                " sent"
            )

    def _query_vectors(
        self,
        top_k: int,
        filter: Filter | None,  # noqa: A002
        **query_arguments: Any,
    ) -> list[Record]:
        """Return the *top_k* records nearest to the query vector that meet *filter*, best first.

        *query_arguments* contains the query vector, as ``vector`` or ``sparse_vector``.
        """
        condition = convert_filter(filter)
        if top_k < 1:
            return []
        if condition:
            query_arguments["filter"] = condition
        answer = self._calls(
            "query",
            "searched",
            top_k=min(top_k, MOST_MATCHES),
            namespace=self._namespace,
            include_metadata=True,
            include_values=False,
            **query_arguments,
        )
        # A Euclidean index returns distances, so the smallest is the best. With other metrics, the
        # greatest score is the best.
        sign = -1.0 if self._model_record.metric == "euclidean" else 1.0
        return sort_records(
            [
                build_record(
                    match.id, sign * (match.score or 0.0), match.metadata, self._text_field
                )
                for match in answer.matches
            ]
        )
