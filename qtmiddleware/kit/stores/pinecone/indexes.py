"""The kinds of index on Pinecone: embedding by itself, sparse for words, dense, and dense beside sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from math import isfinite
from typing import Any, Final, Literal

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.pinecone.base import WRITING, PineconeBase
from qtmiddleware.kit.stores.pinecone.calls import TIMEOUT_SECONDS, call_within, status_of
from qtmiddleware.kit.stores.pinecone.records import (
    FRAME_BYTES,
    MOST_MATCHES,
    MOST_SPARSE_VALUES,
    MOST_TEXTS,
    NUMBER_BYTES,
    Row,
    check_fields,
    check_id,
    check_vector,
    plain_filter,
    read_record,
    sort_records,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates


class PineconeTextStore(PineconeBase):
    """Keeps passages in a Pinecone index with integrated embedding, dense or sparse; it is searched by text.

    *index* is an index of the ``pinecone`` client; *text_field* is the field its ``field_map``
    names. *namespace* ``""`` and ``"__default__"`` are the same; the other *options* and the limits
    are those of a `PineconeStore`; a request takes 96 passages. Vectors that come with passages are
    ignored. Raises `StoreError`, and `InvalidQuery` for an impossible filter.
    """

    embeds: Final = True
    _most = MOST_TEXTS

    def __init__(self, index: Any, *, namespace: str = "", **options: Any) -> None:
        # Here the client takes no empty name.
        super().__init__(
            index, embedding_model="", dimension=0, namespace=namespace or "__default__", **options
        )

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The passages nearest to the text *query* that meet *filter*, best first; at most 10,000."""
        if not isinstance(query, str):
            raise StoreError("this index embeds texts itself; search it with the query's text")
        self._about.look()
        if top_k < 1 or not query.strip():
            return []
        asked: dict[str, Any] = {
            "inputs": {"text": replace_surrogates(query)},
            "top_k": min(top_k, MOST_MATCHES),
        }
        if condition := plain_filter(filter):
            asked["filter"] = condition
        answer = self._call("search", "searched", namespace=self._namespace, query=asked)
        hits = answer.result.hits
        return sort_records(
            [read_record(_id(hit), _score(hit), hit["fields"], self._text_field) for hit in hits]
        )

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:  # noqa: ARG002
        fields, size = check_fields(passage, self._text_field, reserved=("id", "_id"))
        return Row(passage, {"_id": passage.id, **fields}, size + len(passage.id) + FRAME_BYTES)

    def _send(self, batch: list[Row]) -> None:
        records = [row.record for row in batch]
        self._call("upsert_records", WRITING, records=records, namespace=self._namespace)

    def _write_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        note = {"_id": id_, self._text_field: "about this index", **metadata}
        self._call("upsert_records", WRITING, records=[note], namespace=namespace)

    def _call(self, method: str, doing: str, **arguments: Any) -> Any:
        """What *method* of the index returns; a refusal says what it mostly comes of."""
        try:
            return self._calls(method, doing, **arguments)
        except StoreError as error:
            if error.__cause__ is None or status_of(error.__cause__) != 400:
                raise
            raise StoreError(
                f"{error}. Is it an index that embeds texts itself (store.integrated), and is"
                f" {self._text_field!r} the field it takes them from (store.textField)?"
            ) from error.__cause__


# Older clients know the underscored names alone, newer ones prefer the plain.


def _id(hit: Any) -> str:
    return str(getattr(hit, "id", None) or hit["_id"])


def _score(hit: Any) -> float:
    score = getattr(hit, "score", None)
    return float(hit["_score"] if score is None else score)


TextKind = Literal["passage", "query"]
SparseVector = tuple[Sequence[int], Sequence[float]]
SparseEncoder = Callable[[Sequence[str], TextKind], Sequence[SparseVector]]
"""From texts to the indices and weights of their words, one pair a text; a text without known words has none."""

_HIGHEST_INDEX: Final = 2**32 - 1


class PineconeSparseEncoder:
    """Sparse vectors made by a model that Pinecone hosts; *client* is a ``pinecone.Pinecone``.

    It takes at most 96 texts at once; what a text has beyond the model's length is cut off.
    *timeout_seconds* is the longest one request may take. Raises `StoreError`.
    """

    def __init__(
        self,
        client: Any,
        model: str = "pinecone-sparse-english-v0",
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._client = client
        self._seconds = timeout_seconds
        self.name = model

    def __repr__(self) -> str:
        return f"PineconeSparseEncoder({self.name!r})"

    def __call__(self, texts: Sequence[str], kind: TextKind) -> list[SparseVector]:
        """The indices and weights of the words of each of *texts*; a blank one has none and is not sent."""
        worded = [text for text in texts if text.strip()]
        vectors = iter(self._embed(worded, kind) if worded else ())
        return [next(vectors) if text.strip() else ((), ()) for text in texts]

    def _embed(self, texts: list[str], kind: TextKind) -> list[SparseVector]:
        subject, options = f"Pinecone's model {self.name}", {"input_type": kind, "truncate": "END"}
        answer = call_within(
            self._seconds,
            lambda: self._client.inference.embed(model=self.name, inputs=texts, parameters=options),
            subject,
            "asked for sparse vectors",
        )
        made = [
            (getattr(it, "sparse_indices", None), getattr(it, "sparse_values", None))
            for it in answer.data
        ]
        if len(made) != len(texts) or any(
            indices is None or values is None for indices, values in made
        ):
            raise StoreError(
                f"{subject} must give one sparse vector per text; set store.sparseModel to such a"
                " model"
            )
        return made  # type: ignore[return-value]


class SparsePineconeStore(PineconeBase):
    """Keeps passages by the words of their texts in a sparse Pinecone index; it is searched by text.

    *encoder* makes the sparse vectors: a `PineconeSparseEncoder` or any function of texts and
    ``"passage"`` or ``"query"`` that returns one (indices, weights) pair a text, of which the 2,048
    weightiest words are kept. Its ``name`` is kept in the index and compared, as the embedding
    model of a dense one is. The words of a text in the metadata's ``context`` count as the
    passage's own. A passage without a word the encoder knows is not kept: nothing could find it.
    Vectors that come with passages are ignored. *options* and limits are those of a
    `PineconeStore`.

    Raises `StoreError`, and `InvalidQuery` for an impossible filter; what *encoder* raises passes
    through.
    """

    embeds: Final = True
    _kind = "sparse"

    def __init__(self, index: Any, encoder: SparseEncoder, **options: Any) -> None:
        self._encoder = encoder
        name = (
            getattr(encoder, "name", "")
            or getattr(encoder, "__qualname__", "")
            or type(encoder).__qualname__
        )
        super().__init__(index, embedding_model=str(name), dimension=0, **options)

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The passages that share the weightiest words with the text *query* and meet *filter*, best first."""
        if not isinstance(query, str):
            raise StoreError("this store is searched by keywords; search it with the query's text")
        self._about.look()
        if top_k < 1 or not query.strip():
            return []
        plain_filter(filter)
        (vector,) = self._encode([query], "query")
        return self._query(top_k, filter, sparse_vector=vector) if vector else []

    def _rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        source = iter(passages)
        while part := [passage for passage, _ in islice(source, MOST_TEXTS)]:
            checked = [(check_id(it.id), *check_fields(it, self._text_field)) for it in part]
            vectors = self._encode([_words_of(it) for it in part], "passage")
            for passage, (id_, fields, size), vector in zip(part, checked, vectors, strict=True):
                if vector is None:
                    yield Row(passage, None)
                    continue
                # Older clients insist on dense values, if none.
                record = {"id": id_, "values": [], "sparse_values": vector, "metadata": fields}
                numbers = 2 * len(vector["indices"]) * NUMBER_BYTES
                yield Row(passage, record, size + numbers + len(id_) + FRAME_BYTES)

    def _send(self, batch: list[Row]) -> None:
        if records := [row.record for row in batch if row.record]:
            self._upsert_vectors(records, self._namespace)
        # What stood there under the same id before may have had words.
        if wordless := [row.passage.id for row in batch if row.record is None]:
            self._remove(wordless)

    def _write_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        anything = {"indices": [0], "values": [1.0]}
        self._upsert_vectors(
            [{"id": id_, "values": [], "sparse_values": anything, "metadata": metadata}], namespace
        )

    def _encode(self, texts: list[str], kind: TextKind) -> list[dict[str, list[Any]] | None]:
        made = self._encoder([replace_surrogates(text) for text in texts], kind)
        if len(made) != len(texts):
            raise StoreError(f"the sparse encoder gave {len(made)} vectors for {len(texts)} texts")
        return [_check_sparse(indices, values) for indices, values in made]


def _words_of(passage: Passage) -> str:
    """The text of *passage* with the text of ``context`` in its metadata, whose words count as its own."""
    context = passage.metadata.get("context")
    return f"{passage.text}\n{context}" if isinstance(context, str) else passage.text


def _check_sparse(indices: Sequence[int], values: Sequence[float]) -> dict[str, list[Any]] | None:
    """A sparse vector as it is sent, ``None`` for one without weights; raises `StoreError` for one that is none."""
    try:
        weights = {
            int(at): float(weight) for at, weight in zip(indices, values, strict=True) if weight
        }
    except (TypeError, ValueError) as error:
        raise StoreError(
            "the sparse encoder gave something else than as many indices as weights"
        ) from error
    if not all(0 <= at <= _HIGHEST_INDEX for at in weights) or not all(
        map(isfinite, weights.values())
    ):
        raise StoreError(
            "the sparse encoder gave an index beyond 32 bits or a weight that is not finite"
        )
    if len(weights) > MOST_SPARSE_VALUES:
        weights = dict(nlargest(MOST_SPARSE_VALUES, weights.items(), key=lambda word: abs(word[1])))
    return {"indices": list(weights), "values": list(weights.values())} if weights else None


class PineconeStore(PineconeBase):
    """Keeps passages with vectors of your own embedder in a dense Pinecone index, and finds the nearest.

    *index* is an index of the ``pinecone`` client, or anything with its methods. *namespace* ``""``
    and ``"__default__"`` are the same. The text is kept in the metadata, under *text_field*.
    *embedding_model* and
    *dimension* are kept in the index, in the namespace ``qtmiddleware.about``, and compared before
    anything else is
    done: vectors of another model raise `StoreError`. Vectors that something else has written can
    be searched, where the dimension is right, but not added to.

    Ids are 1 to 512 ASCII characters. A metadata value is a text, a number, true, false or a list
    of texts; one of ``None`` is left out, and whole numbers come back as integers. Text and
    metadata of one passage are at most 40 KB, and the vector may not be all zeros. An answer of
    more than 4 MB is refused by Pinecone: ask for fewer passages. Pinecone is eventually
    consistent: what was written or removed shows a little later.

    *timeout_seconds* is the longest one request may take, with the client's own retries; nothing is
    retried here.
    *opened* holds what is closed with the store.
    Safe to share among threads. Raises `StoreError`, and
    `InvalidQuery` for an impossible filter.
    """

    embeds: Final = False
    _kind = "dense"

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The nearest passages that meet *filter*, best first; at most 10,000.

        The score is Pinecone's own, by the metric of the index; of a Euclidean distance the
        negative, so that greater is better.
        """
        if isinstance(query, str):
            raise StoreError("this store does not embed texts; search it with the query's vector")
        vector = check_vector(query, self._dimension, "the query")
        self._about.look()
        return self._query(top_k, filter, vector=vector)

    def _row(self, passage: Passage, vector: Sequence[float]) -> Row:
        fields, size = check_fields(passage, self._text_field)
        values = check_vector(vector, self._dimension, f"the passage {passage.id!r}")
        if not any(values):
            raise StoreError(
                f"the vector of the passage {passage.id!r} is all zeros, which Pinecone does not"
                " accept"
            )
        record = {"id": passage.id, "values": values, "metadata": fields}
        return Row(
            passage, record, size + len(values) * NUMBER_BYTES + len(passage.id) + FRAME_BYTES
        )

    def _send(self, batch: list[Row]) -> None:
        self._upsert_vectors([row.record for row in batch if row.record], self._namespace)

    def _write_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        direction = [1.0] + [0.0] * (self._dimension - 1)
        self._upsert_vectors([{"id": id_, "values": direction, "metadata": metadata}], namespace)


class HybridPineconeStore(PineconeStore):
    """A `PineconeStore` that also finds passages by their words, in a second index *sparse*.

    *sparse* is a `SparsePineconeStore`, or a `PineconeTextStore` over a sparse index that embeds by
    itself; *options* are those of a `PineconeStore`. Each batch is written to and removed from
    both, the dense index first; a failure between the two leaves them apart until the same is
    written again. *sparse* is closed with this store.
    """

    def __init__(
        self, index: Any, *, sparse: SparsePineconeStore | PineconeTextStore, **options: Any
    ) -> None:
        super().__init__(index, **options)
        self._words = sparse

    @property
    def identity(self) -> str:
        """As of a `PineconeStore`, with that of the sparse index: another one is another store."""
        return f"{super().identity}+{self._words.identity}"

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
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
