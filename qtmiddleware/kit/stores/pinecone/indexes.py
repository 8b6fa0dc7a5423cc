"""Search and write to Pinecone indexes, with one class per type of index.

- `PineconeTextStore`: an index that embeds texts itself.
- `SparsePineconeStore`: a sparse index, searched by words.
- `PineconeStore`: a dense index, searched by vectors.
- `HybridPineconeStore`: a dense and a sparse index together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from math import isfinite
from typing import Any, Final, Literal

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.pinecone.base import WRITING, PineconeBase
from qtmiddleware.kit.stores.pinecone.calls import (
    TIMEOUT_SECONDS,
    call_with_timeout,
    find_http_status,
)
from qtmiddleware.kit.stores.pinecone.records import (
    FRAME_BYTES,
    MOST_MATCHES,
    MOST_SPARSE_VALUES,
    MOST_TEXTS,
    NUMBER_BYTES,
    Row,
    build_fields_and_size,
    build_record,
    check_passage_id,
    convert_filter,
    convert_vector,
    sort_records,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates


class PineconeTextStore(PineconeBase):
    """Keeps passages in a dense or sparse Pinecone index that embeds texts itself.

    Queries are texts, and the vectors of passages are ignored. A request contains at most 96
    passages. The other limits are those of `PineconeStore`. Methods raise `StoreError`, and
    `InvalidQuery` for an invalid filter.

    Args:
        index: an index of the ``pinecone`` client with integrated embedding.
        namespace: the namespace; ``""`` and ``"__default__"`` are the same.
        options: the options of `PineconeStore`. Set ``text_field`` to the field that the index's
            ``field_map`` names.
    """

    embeds: Final = True
    _max_batch_rows = MOST_TEXTS

    def __init__(self, index: Any, *, namespace: str = "", **options: Any) -> None:
        # The client's methods for texts accept no empty namespace.
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
        """Return the *top_k* passages nearest to the text *query* that meet *filter*, best first.

        Returns at most 10,000 passages. Raises `StoreError` if *query* is a vector.
        """
        if not isinstance(query, str):
            raise StoreError("this index embeds texts itself; search it with the query's text")
        self._model_record.check_embedding_model_once()
        if top_k < 1 or not query.strip():
            return []
        request: dict[str, Any] = {
            "inputs": {"text": replace_surrogates(query)},
            "top_k": min(top_k, MOST_MATCHES),
        }
        if condition := convert_filter(filter):
            request["filter"] = condition
        answer = self._call_index("search", "searched", namespace=self._namespace, query=request)
        hits = answer.result.hits
        return sort_records(
            [build_record(hit.id, hit.score, hit.fields, self._text_field) for hit in hits]
        )

    def _build_row(self, passage: Passage, vector: Sequence[float]) -> Row:  # noqa: ARG002
        fields, size = build_fields_and_size(
            passage, self._text_field, reserved_names=("id", "_id")
        )
        return Row(passage, {"_id": passage.id, **fields}, size + len(passage.id) + FRAME_BYTES)

    def _send_batch(self, batch: list[Row]) -> None:
        records = [row.record for row in batch]
        self._call_index("upsert_records", WRITING, records=records, namespace=self._namespace)

    def _write_model_record(self, namespace: str, record_id: str, metadata: dict[str, Any]) -> None:
        note = {"_id": record_id, self._text_field: "about this index", **metadata}
        self._call_index("upsert_records", WRITING, records=[note], namespace=namespace)

    def _call_index(self, method_name: str, failed_action: str, **arguments: Any) -> Any:
        """Call *method_name* of the index with *arguments*, and return the result.

        If Pinecone rejects the request, raises a `StoreError` that suggests a likely reason.
        """
        try:
            return self._calls(method_name, failed_action, **arguments)
        except StoreError as error:
            if error.__cause__ is None or find_http_status(error.__cause__) != 400:
                raise
            raise StoreError(
                f"{error}. Is it an index that embeds texts itself (store.integrated), and is"
                f" {self._text_field!r} the field it takes them from (store.textField)?"
            ) from error.__cause__


TextKind = Literal["passage", "query"]
SparseVector = tuple[Sequence[int], Sequence[float]]
SparseEncoder = Callable[[Sequence[str], TextKind], Sequence[SparseVector]]
"""A function that takes texts, and returns an (indices, weights) pair per text.

Each index identifies a word. A text without known words has two empty sequences.
"""

_HIGHEST_INDEX: Final = 2**32 - 1


class PineconeSparseEncoder:
    """Computes sparse vectors of texts with a model that Pinecone hosts.

    Call the object with at most 96 texts. Pinecone truncates texts that are too long for the model.
    Raises `StoreError` if Pinecone fails.

    Args:
        client: a ``pinecone.Pinecone`` client.
        model: the name of the model at Pinecone.
        timeout_seconds: the timeout of one request, in seconds.
    """

    def __init__(
        self,
        client: Any,
        model: str = "pinecone-sparse-english-v0",
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds
        self.name = model

    def __repr__(self) -> str:
        return f"PineconeSparseEncoder({self.name!r})"

    def __call__(self, texts: Sequence[str], kind: TextKind) -> list[SparseVector]:
        """Return the sparse vector of each text, as an (indices, weights) pair.

        *kind* says whether the texts are passages or queries. A blank text gets an empty vector,
        and is not sent to Pinecone.
        """
        worded_texts = [text for text in texts if text.strip()]
        vectors = iter(self._request_vectors(worded_texts, kind) if worded_texts else ())
        return [next(vectors) if text.strip() else ((), ()) for text in texts]

    def _request_vectors(self, texts: list[str], kind: TextKind) -> list[SparseVector]:
        """Return the sparse vectors of *texts* from Pinecone, as (indices, weights) pairs.

        Raises `StoreError` unless there is one sparse vector per text.
        """
        subject, options = f"Pinecone's model {self.name}", {"input_type": kind, "truncate": "END"}
        answer = call_with_timeout(
            self._timeout_seconds,
            lambda: self._client.inference.embed(model=self.name, inputs=texts, parameters=options),
            subject,
            "asked for sparse vectors",
        )
        vectors = [
            (getattr(item, "sparse_indices", None), getattr(item, "sparse_values", None))
            for item in answer.data
        ]
        if len(vectors) != len(texts) or any(
            indices is None or values is None for indices, values in vectors
        ):
            raise StoreError(
                f"{subject} must give one sparse vector per text; set store.sparseModel to such a"
                " model"
            )
        return vectors  # type: ignore[return-value]


class SparsePineconeStore(PineconeBase):
    """Keeps passages in a sparse Pinecone index, and finds them by their words.

    Queries are texts, and the vectors of passages are ignored. The search covers each passage's
    text and the field ``context`` of its metadata. A passage without any word that the encoder
    knows is not stored, because no search could find it. The limits are those of `PineconeStore`.

    Methods raise `StoreError`, `InvalidQuery` for an invalid filter, and the exceptions of
    *encoder*.

    Args:
        index: a sparse index of the ``pinecone`` client.
        encoder: computes the sparse vectors. A `PineconeSparseEncoder`, or any function that takes
            texts and ``"passage"`` or ``"query"``, and returns one (indices, weights) pair per
            text. Only the 2,048 largest weights of a text are kept. The encoder's ``name`` is saved
            in the index and checked like an embedding model.
        options: the options of `PineconeStore`.
    """

    embeds: Final = True
    _vector_type = "sparse"

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
        """Return the *top_k* passages that best match the words of *query* and meet *filter*.

        The best passage comes first. Raises `StoreError` if *query* is a vector.
        """
        if not isinstance(query, str):
            raise StoreError("this store is searched by keywords; search it with the query's text")
        self._model_record.check_embedding_model_once()
        if top_k < 1 or not query.strip():
            return []
        # An invalid filter must raise before the query is sent to the encoder.
        convert_filter(filter)
        (vector,) = self._encode_texts([query], "query")
        return self._query_vectors(top_k, filter, sparse_vector=vector) if vector else []

    def _build_rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        iterator = iter(passages)
        while batch := [passage for passage, _ in islice(iterator, MOST_TEXTS)]:
            # All passages of a batch are checked before their texts are encoded, which may cost
            # money.
            checked = [
                (check_passage_id(passage.id), *build_fields_and_size(passage, self._text_field))
                for passage in batch
            ]
            vectors = self._encode_texts(
                [_build_searched_text(passage) for passage in batch], "passage"
            )
            for passage, (id_, fields, size), vector in zip(batch, checked, vectors, strict=True):
                if vector is None:
                    yield Row(passage, None)
                    continue
                record = {"id": id_, "sparse_values": vector, "metadata": fields}
                numbers = 2 * len(vector["indices"]) * NUMBER_BYTES
                yield Row(passage, record, size + numbers + len(id_) + FRAME_BYTES)

    def _send_batch(self, batch: list[Row]) -> None:
        if records := [row.record for row in batch if row.record]:
            self._upsert_vectors(records, self._namespace)
        # Earlier passages with these ids may have had words.
        if wordless_ids := [row.passage.id for row in batch if row.record is None]:
            self._remove_ids(wordless_ids)

    def _write_model_record(self, namespace: str, record_id: str, metadata: dict[str, Any]) -> None:
        # Only the record's metadata is read. Its vector is never searched, so any vector is fine.
        any_vector = {"indices": [0], "values": [1.0]}
        self._upsert_vectors(
            [{"id": record_id, "sparse_values": any_vector, "metadata": metadata}], namespace
        )

    def _encode_texts(self, texts: list[str], kind: TextKind) -> list[dict[str, list[Any]] | None]:
        vectors = self._encoder([replace_surrogates(text) for text in texts], kind)
        if len(vectors) != len(texts):
            raise StoreError(
                f"the sparse encoder gave {len(vectors)} vectors for {len(texts)} texts"
            )
        return [_build_sparse_vector(indices, values) for indices, values in vectors]


def _build_searched_text(passage: Passage) -> str:
    """Return the text of *passage*, followed by the field ``context`` of its metadata, if any."""
    context = passage.metadata.get("context")
    return f"{passage.text}\n{context}" if isinstance(context, str) else passage.text


def _build_sparse_vector(
    indices: Sequence[int], word_weights: Sequence[float]
) -> dict[str, list[Any]] | None:
    """Return the sparse vector to send to Pinecone; ``None`` if all weights are 0.

    *indices* identify words, and *word_weights* are the weights of these words. Only the 2,048
    largest weights are kept. Raises `StoreError` for invalid indices or weights.
    """
    try:
        weights = {
            int(index): float(weight)
            for index, weight in zip(indices, word_weights, strict=True)
            if weight
        }
    except (TypeError, ValueError) as error:
        raise StoreError(
            "the sparse encoder gave something else than as many indices as weights"
        ) from error
    if not all(0 <= index <= _HIGHEST_INDEX for index in weights) or not all(
        map(isfinite, weights.values())
    ):
        raise StoreError(
            "the sparse encoder gave an index beyond 32 bits or a weight that is not finite"
        )
    if len(weights) > MOST_SPARSE_VALUES:
        weights = dict(nlargest(MOST_SPARSE_VALUES, weights.items(), key=lambda word: abs(word[1])))
    return {"indices": list(weights), "values": list(weights.values())} if weights else None


class PineconeStore(PineconeBase):
    """Keeps passages in a dense Pinecone index, with vectors of your own embedder.

    The model and the dimension are saved in the index, in the namespace ``qtmiddleware.about``. The
    first use checks them, and raises `StoreError` if the index's vectors are from another model. If
    another program wrote the vectors, you can search the index, but not add passages.

    Pinecone's limits:

    - Ids are 1 to 512 ASCII characters.
    - A metadata value is a text, a number, a boolean or a list of texts. ``None`` is left out, and
      whole numbers come back as integers.
    - The text and metadata of one passage have at most 40 KB together. A vector may not be all
      zeros.
    - A response has at most 4 MB. If Pinecone rejects a search because of this limit, ask for fewer
      passages.
    - Pinecone is eventually consistent: searches see a write or a removal a little later.

    Thread-safe. Methods raise `StoreError`, and `InvalidQuery` for an invalid filter.

    Args:
        index: an index of the ``pinecone`` client, or any object with the same methods.
        embedding_model: the model of all vectors.
        dimension: the length of all vectors.
        namespace: the namespace; ``""`` and ``"__default__"`` are the same.
        text_field: the metadata field that contains the text.
        timeout_seconds: the timeout of one request, in seconds, including the client's own retries.
            The store itself does not retry.
        opened: resources that are closed together with the store.
    """

    embeds: Final = False
    _vector_type = "dense"

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
        self._model_record.check_embedding_model_once()
        return self._query_vectors(top_k, filter, vector=vector)

    def _build_row(self, passage: Passage, vector: Sequence[float]) -> Row:
        fields, size = build_fields_and_size(passage, self._text_field)
        values = convert_vector(vector, self._dimension, f"the passage {passage.id!r}")
        if not any(values):
            raise StoreError(
                f"the vector of the passage {passage.id!r} is all zeros, which Pinecone does not"
                " accept"
            )
        record = {"id": passage.id, "values": values, "metadata": fields}
        return Row(
            passage, record, size + len(values) * NUMBER_BYTES + len(passage.id) + FRAME_BYTES
        )

    def _send_batch(self, batch: list[Row]) -> None:
        self._upsert_vectors([row.record for row in batch if row.record], self._namespace)

    def _write_model_record(self, namespace: str, record_id: str, metadata: dict[str, Any]) -> None:
        # Only the record's metadata is read, and its vector is never searched. Pinecone accepts no
        # vector of zeros.
        direction = [1.0] + [0.0] * (self._dimension - 1)
        self._upsert_vectors(
            [{"id": record_id, "values": direction, "metadata": metadata}], namespace
        )


class HybridPineconeStore(PineconeStore):
    """A `PineconeStore` that also finds passages by their words, in a second, sparse index.

    Each write or removal changes the dense index first, then the sparse index. If it fails between
    the two, the indexes contain different passages. Repeat the write or removal to fix this.

    Args:
        index: a dense index of the ``pinecone`` client.
        sparse: the store that searches by words: a `SparsePineconeStore`, or a `PineconeTextStore`
            on a sparse index. Closing the `HybridPineconeStore` closes it, too.
        options: the options of `PineconeStore`.
    """

    def __init__(
        self, index: Any, *, sparse: SparsePineconeStore | PineconeTextStore, **options: Any
    ) -> None:
        super().__init__(index, **options)
        self._sparse = sparse

    @property
    def identity(self) -> str:
        """The identities of the dense and the sparse index, joined by ``+``."""
        return f"{super().identity}+{self._sparse.identity}"

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that best match the words of *text* and meet *filter*.

        The best passage comes first. Only the sparse index is searched.
        """
        return self._sparse.search(text, top_k, filter=filter)

    def close(self) -> None:
        """Close the dense and the sparse index."""
        self._sparse.close()
        super().close()

    def _send_batch(self, batch: list[Row]) -> None:
        super()._send_batch(batch)
        # The vectors are ignored by both types of sparse store.
        self._sparse.write([(row.passage, ()) for row in batch])

    def _remove_ids(self, ids: list[str]) -> None:
        super()._remove_ids(ids)
        self._sparse.delete(ids)
