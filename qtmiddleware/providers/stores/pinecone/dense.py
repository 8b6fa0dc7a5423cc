"""Vectors of the user's own embedder on Pinecone, alone or with a second index for words."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers.stores.pinecone.base import PineconeBase
from qtmiddleware.providers.stores.pinecone.calls import PATIENCE
from qtmiddleware.providers.stores.pinecone.records import (
    FRAME_BYTES,
    NUMBER_BYTES,
    Row,
    checked_fields,
    checked_vector,
)
from qtmiddleware.providers.stores.pinecone.sparse import SparseLeg
from qtmiddleware.providers.stores.pinecone.text import PineconeTextStore


class PineconeStore(PineconeBase):
    """Keeps passages with vectors of your own embedder in a dense Pinecone index, and finds the nearest.

    *index* is an index of the ``pinecone`` client, or anything with its methods. *namespace* ``""`` and
    ``"__default__"`` are the same. The text is kept in the metadata, under *text_field*. *embedding_model* and
    *dimension* are kept in the index, in the namespace ``qtmiddleware.about``, and compared before anything else is
    done: vectors of another model raise `StoreError`. Vectors that something else has written can be searched, where
    the dimension is right, but not added to.

    Ids are 1 to 512 ASCII characters. A metadata value is a text, a number, true, false or a list of texts; one of
    ``None`` is left out, and whole numbers come back as integers. Text and metadata of one passage are at most 40 KB,
    and the vector may not be all zeros. An answer of more than 4 MB is refused by Pinecone: ask for fewer passages.
    Pinecone is eventually consistent: what was written or removed shows a little later.

    *timeout_seconds* is the longest one request may take, with the client's own retries; nothing is retried here.
    *opened* holds what is closed with the store.
    Safe to share among threads. Raises `StoreError`, and
    `InvalidQuery` for an impossible filter.
    """

    embeds: Final = False
    _kind = "dense"

    def __init__(
        self,
        index: Any,
        *,
        embedding_model: str,
        dimension: int,
        namespace: str = "",
        text_field: str = "text",
        timeout_seconds: float = PATIENCE,
        opened: ExitStack | None = None,
    ) -> None:
        self._dimension = dimension
        super().__init__(
            index,
            embedding_model=embedding_model,
            dimension=dimension,
            namespace=namespace,
            text_field=text_field,
            timeout_seconds=timeout_seconds,
            opened=opened,
        )

    def search(self, query: Sequence[float] | str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The nearest passages that meet *filter*, best first; at most 10,000.

        The score is Pinecone's own, by the metric of the index; of a Euclidean distance the negative, so that greater
        is better.
        """
        if isinstance(query, str):
            raise StoreError("this store keeps vectors and embeds nothing itself: search it by the query's vector")
        vector = checked_vector(query, self._dimension, "the query")
        self._about.look()
        return self._query(top_k, filter, vector=vector)

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:
        fields, size = checked_fields(passage, self._text_field)
        values = checked_vector(vector, self._dimension, f"the passage {passage.id!r}")
        if not any(values):
            raise StoreError(f"the vector of the passage {passage.id!r} is all zeros, which Pinecone does not take")
        record = {"id": passage.id, "values": values, "metadata": fields}
        return Row(passage, record, size + len(values) * NUMBER_BYTES + len(passage.id) + FRAME_BYTES)

    def _send(self, batch: list[Row]) -> None:
        self._upsert_vectors([row.record for row in batch if row.record], self._namespace)

    def _put_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        direction = [1.0] + [0.0] * (self._dimension - 1)
        self._upsert_vectors([{"id": id_, "values": direction, "metadata": metadata}], namespace)


class HybridPineconeStore(PineconeStore):
    """A `PineconeStore` that also finds passages by their words, in a second index *sparse*.

    *sparse* is a `SparseLeg`, or a `PineconeTextStore` over a sparse index that embeds by itself; *options* are those
    of a `PineconeStore`. Each batch is written to and removed from both, the dense index first; a failure between the
    two leaves them apart until the same is written again. *sparse* is closed with this store.
    """

    def __init__(self, index: Any, *, sparse: SparseLeg | PineconeTextStore, **options: Any) -> None:
        super().__init__(index, **options)
        self._words = sparse

    @property
    def identity(self) -> str:
        """As of a `PineconeStore`, with that of the sparse index: another one is another store."""
        return f"{super().identity}+{self._words.identity}"

    def keyword_search(self, text: str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The passages that share the weightiest words with *text* and meet *filter*, best first."""
        return self._words.search(text, top_k, filter=filter)

    def close(self) -> None:
        """Close both."""
        self._words.close()
        super().close()

    def _send(self, batch: list[Row]) -> None:
        super()._send(batch)
        self._words.write([(row.passage, ()) for row in batch])

    def _remove(self, ids: list[str]) -> None:
        super()._remove(ids)
        self._words.delete(ids)
