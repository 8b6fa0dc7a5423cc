"""Write to and search one namespace of a dense Pinecone index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.passages import ClosingStore, pair_vectors
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, Calls
from qtmiddleware.kit.stores.pinecone.records import (
    DEFAULT_NAMESPACES,
    FRAME_BYTES,
    MOST_IDS,
    MOST_MATCHES,
    NUMBER_BYTES,
    Row,
    build_fields_and_size,
    build_record,
    check_passage_id,
    convert_filter,
    convert_vector,
    is_valid_passage_id,
    sort_records,
    split_into_batches,
)
from qtmiddleware.protocols import Filter, Passage, Record

_WRITING: Final = "written to"
"""The action in the error messages of failed writes: the index could not be written to."""


class PineconeStore(ClosingStore):
    """Keeps passages in one namespace of a dense Pinecone index, with vectors of your own embedder.

    The first use checks the type and the dimension of the index's vectors. Pinecone does not record
    which model made them, so use one model per namespace.

    Pinecone's limits:

    - Ids are 1 to 512 ASCII characters.
    - A metadata value is a text, a number, a boolean or a list of texts. ``None`` is left out, and
      whole numbers come back as integers.
    - The text and metadata of one passage have at most 40 KB together. A vector may not be all
      zeros.
    - A response has at most 4 MB. If Pinecone rejects a search because of this limit, ask for fewer
      passages.
    - Pinecone is eventually consistent: searches and `count` see a write or a removal a little
      later.

    Thread-safe. Methods raise `StoreError`, and `InvalidQuery` for an invalid filter.

    Args:
        index: an index of the ``pinecone`` client, or any object with the same methods.
        embedding_model: the model of all vectors, for error messages.
        dimension: the length of all vectors.
        namespace: the namespace; ``""`` and ``"__default__"`` are the same.
        text_field: the metadata field that contains the text.
        timeout_seconds: the timeout of one request, in seconds, including the client's own retries.
            The store itself does not retry.
        opened: resources that are closed together with the store.
        reopen: opens the index again in a forked process, and adds what to close to a stack.
    """

    atomic: Final = False
    embeds: Final = False

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
        reopen: Callable[[ExitStack], Any] | None = None,
    ) -> None:
        # Some clients use None for the default namespace.
        namespace = namespace or ""
        if namespace and not is_valid_passage_id(namespace):
            raise StoreError(
                "a Pinecone namespace is at most 512 ASCII characters, without NUL; use another"
                " namespace"
            )
        self._namespace = namespace
        self._embedding_model = embedding_model
        self._dimension = dimension
        self._text_field = text_field
        self._calls = Calls(index, timeout_seconds=timeout_seconds, resources=opened, reopen=reopen)
        self._metric: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._calls.host!r}, namespace={self._namespace!r})"

    @property
    def identity(self) -> str:
        """The index's host and the namespace as one text."""
        name = "__default__" if self._namespace in DEFAULT_NAMESPACES else self._namespace
        return f"pinecone:{self._calls.host}/{name}"

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
        for start in range(0, len(storable_ids), MOST_IDS):
            batch = storable_ids[start : start + MOST_IDS]
            self._calls(
                "delete", _WRITING, ids=batch, namespace=self._namespace, may_be_missing=True
            )

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that meet *filter*, best first.

        Returns at most 10,000 passages. The score depends on the index's metric, and greater is
        better: a Euclidean distance is negated. Raises `StoreError` if *query* is a text.
        """
        if isinstance(query, str):
            raise StoreError("this store does not embed texts; search it with the query's vector")
        vector = convert_vector(query, self._dimension, "the query")
        metric = self._check_index_once()
        condition = convert_filter(filter)
        restriction: dict[str, Any] = {"filter": condition} if condition else {}
        if top_k < 1:
            return []
        answer = self._calls(
            "query",
            "searched",
            vector=vector,
            top_k=min(top_k, MOST_MATCHES),
            namespace=self._namespace,
            include_metadata=True,
            include_values=False,
            **restriction,
        )
        # A Euclidean index returns distances, so the smallest is the best. With other metrics, the
        # greatest score is the best.
        sign = -1.0 if metric == "euclidean" else 1.0
        return sort_records(
            [
                build_record(
                    match.id, sign * (match.score or 0.0), match.metadata, self._text_field
                )
                for match in answer.matches
            ]
        )

    def count(self) -> int:
        """Return the number of passages; recent writes may not be counted yet."""
        self._check_index_once()
        stats = self._calls("describe_index_stats", "read")
        namespaces: Mapping[str, Any] = getattr(stats, "namespaces", None) or {}
        # Pinecone may list the default namespace under either name.
        is_default = self._namespace in DEFAULT_NAMESPACES
        names = DEFAULT_NAMESPACES if is_default else (self._namespace,)
        counts = [int(namespaces[name].vector_count or 0) for name in names if name in namespaces]
        return max(counts, default=0)

    def close(self) -> None:
        """Close the connections that the store opened. An index that you passed in stays open."""
        self._calls.close()

    def _check_index_once(self) -> str:
        """Return the index's metric. The first call checks the index's type and dimension.

        Raises `StoreError` if the index has no dense vectors of this store's dimension.
        """
        if self._metric is None:
            stats = self._calls("describe_index_stats", "opened")
            vector_type = getattr(stats, "vector_type", None)
            dimension = getattr(stats, "dimension", None)
            if vector_type and vector_type != "dense":
                raise StoreError(
                    f"{self._calls.subject} holds {vector_type} vectors; use a dense index"
                )
            if dimension and dimension != self._dimension:
                raise StoreError(
                    f"{self._calls.subject} holds vectors of {dimension} numbers and cannot be used"
                    f" with {self._embedding_model!r}, which makes {self._dimension}. Use the model"
                    " it was made for, or an index of that dimension"
                )
            self._metric = getattr(stats, "metric", None) or ""
        return self._metric

    def _write_rows(self, rows: Iterable[Row], ids_to_delete: Sequence[str]) -> None:
        """Send *rows* in batches, then remove those *ids_to_delete* that no row has."""
        stale_ids = dict.fromkeys(ids_to_delete)
        sent = 0
        try:
            for batch in split_into_batches(rows):
                self._check_index_once()
                self._send_batch(batch)
                sent += len(batch)
                for row in batch:
                    # A passage that was written is not removed, even if its id is in both.
                    stale_ids.pop(row.id, None)
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
            id_ = check_passage_id(passage.id)
            fields, size = build_fields_and_size(passage, self._text_field)
            values = convert_vector(vector, self._dimension, f"the passage {id_!r}")
            if not any(values):
                raise StoreError(
                    f"the vector of the passage {id_!r} is all zeros, which Pinecone does not"
                    " accept"
                )
            record = {"id": id_, "values": values, "metadata": fields}
            yield Row(id_, record, size + len(values) * NUMBER_BYTES + len(id_) + FRAME_BYTES)

    def _send_batch(self, batch: list[Row]) -> None:
        """Write the records of *batch*.

        Raises `StoreError` if Pinecone does not confirm that all records are written.
        """
        records = [row.record for row in batch]
        answer = self._calls("upsert", _WRITING, vectors=records, namespace=self._namespace)
        accepted_count = getattr(answer, "upserted_count", None)
        if accepted_count != len(records):
            raise StoreError(
                f"{self._calls.subject} took {accepted_count} of {len(records)} vectors that were"
                " sent"
            )
