"""The word search on Pinecone: a sparse index, where a vector holds a weight for each of a text's words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from heapq import nlargest
from itertools import islice
from math import isfinite
from typing import Any, Final, Literal

from qtmiddleware.errors import StoreError
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers.stores.pinecone.base import PineconeBase
from qtmiddleware.providers.stores.pinecone.calls import PATIENCE, within
from qtmiddleware.providers.stores.pinecone.records import (
    FRAME_BYTES,
    MOST_SPARSE_VALUES,
    MOST_TEXTS,
    NUMBER_BYTES,
    Row,
    as_sent,
    checked_fields,
    checked_id,
    plain_text,
)

TextKind = Literal["passage", "query"]
SparseVector = tuple[Sequence[int], Sequence[float]]
SparseEncoder = Callable[[Sequence[str], TextKind], Sequence[SparseVector]]
"""From texts to the indices and weights of their words, one pair a text; a text without known words has none."""

_HIGHEST_INDEX: Final = 2**32 - 1


class PineconeSparseEncoder:
    """Sparse vectors made by a model that Pinecone hosts; *client* is a ``pinecone.Pinecone``.

    At most 96 texts go in a request; what a text has beyond the model's length is cut off. *timeout_seconds* is the
    longest one request may take. Raises `StoreError`.
    """

    def __init__(
        self, client: Any, model: str = "pinecone-sparse-english-v0", *, timeout_seconds: float = PATIENCE
    ) -> None:
        self._client = client
        self._seconds = timeout_seconds
        self.name = model

    def __repr__(self) -> str:
        return f"PineconeSparseEncoder({self.name!r})"

    def __call__(self, texts: Sequence[str], kind: TextKind) -> list[SparseVector]:
        """The indices and weights of the words of each of *texts*; a blank one has none and is not sent."""
        made: list[SparseVector] = [((), ())] * len(texts)
        worded = [at for at, text in enumerate(texts) if text.strip()]
        for start in range(0, len(worded), MOST_TEXTS):
            part = worded[start : start + MOST_TEXTS]
            for at, vector in zip(part, self._embedded([texts[at] for at in part], kind), strict=True):
                made[at] = vector
        return made

    def _embedded(self, texts: list[str], kind: TextKind) -> list[SparseVector]:
        subject, options = f"Pinecone's model {self.name}", {"input_type": kind, "truncate": "END"}
        answer = within(
            self._seconds,
            lambda: self._client.inference.embed(model=self.name, inputs=texts, parameters=options),
            subject,
            "asked for sparse vectors",
        )
        made = [(getattr(it, "sparse_indices", None), getattr(it, "sparse_values", None)) for it in answer.data]
        if len(made) != len(texts) or any(indices is None or values is None for indices, values in made):
            raise StoreError(f"{subject} did not give a sparse vector a text; set store.sparseModel to one that does")
        return made  # type: ignore[return-value]


class SparseLeg(PineconeBase):
    """Keeps passages by the words of their texts in a sparse Pinecone index; it is searched by text.

    *encoder* makes the sparse vectors: a `PineconeSparseEncoder` or any function of texts and ``"passage"`` or
    ``"query"`` that returns one (indices, weights) pair a text, of which the 2,048 weightiest words are kept. Its
    ``name`` is kept in the index and compared, as the embedding model of a dense one is. The words of a text in the
    metadata's ``context`` count as the passage's own. A passage without a word the encoder knows is not kept: nothing
    could find it. Vectors that come with passages are ignored. The limits are those of `PineconeStore`.

    Raises `StoreError`, and `InvalidQuery` for an impossible filter; what *encoder* raises passes through.
    """

    embeds: Final = True
    _kind = "sparse"

    def __init__(
        self,
        index: Any,
        encoder: SparseEncoder,
        *,
        namespace: str = "",
        text_field: str = "text",
        timeout_seconds: float = PATIENCE,
        opened: ExitStack | None = None,
    ) -> None:
        self._encoder = encoder
        name = getattr(encoder, "name", "") or getattr(encoder, "__qualname__", "") or type(encoder).__qualname__
        super().__init__(
            index,
            embedding_model=str(name),
            dimension=0,
            namespace=namespace,
            text_field=text_field,
            timeout_seconds=timeout_seconds,
            opened=opened,
        )

    def search(self, query: Sequence[float] | str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The passages that share the weightiest words with the text *query* and meet *filter*, best first."""
        if not isinstance(query, str):
            raise StoreError("this store is searched by words: give it the query's text")
        self._about.look()
        if top_k < 1 or not query.strip():
            return []
        as_sent(filter)
        (vector,) = self._encoded([query], "query")
        return self._query(top_k, filter, sparse_vector=vector) if vector else []

    def _rows(self, passages: Iterable[tuple[Passage, Sequence[float]]]) -> Iterator[Row]:
        source = iter(passages)
        while part := [passage for passage, _ in islice(source, MOST_TEXTS)]:
            checked = [(checked_id(it.id), *checked_fields(it, self._text_field)) for it in part]
            vectors = self._encoded([_words_of(it) for it in part], "passage")
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

    def _put_note(self, namespace: str, id_: str, metadata: dict[str, Any]) -> None:
        anything = {"indices": [0], "values": [1.0]}
        self._upsert_vectors([{"id": id_, "values": [], "sparse_values": anything, "metadata": metadata}], namespace)

    def _encoded(self, texts: list[str], kind: TextKind) -> list[dict[str, list[Any]] | None]:
        made = self._encoder([plain_text(text) for text in texts], kind)
        if len(made) != len(texts):
            raise StoreError(f"the sparse encoder gave {len(made)} vectors for {len(texts)} texts")
        return [_checked(indices, values) for indices, values in made]


def _words_of(passage: Passage) -> str:
    """The text of *passage* with the text of ``context`` in its metadata, whose words count as its own."""
    context = passage.metadata.get("context")
    return f"{passage.text}\n{context}" if isinstance(context, str) else passage.text


def _checked(indices: Sequence[int], values: Sequence[float]) -> dict[str, list[Any]] | None:
    """A sparse vector as it is sent, ``None`` for one without weights; raises `StoreError` for one that is none."""
    try:
        weights = {int(at): float(weight) for at, weight in zip(indices, values, strict=True) if weight}
    except (TypeError, ValueError) as error:
        raise StoreError("the sparse encoder gave something else than as many indices as weights") from error
    if not all(0 <= at <= _HIGHEST_INDEX for at in weights) or not all(map(isfinite, weights.values())):
        raise StoreError("the sparse encoder gave an index beyond 32 bits or a weight that is not finite")
    if len(weights) > MOST_SPARSE_VALUES:
        weights = dict(nlargest(MOST_SPARSE_VALUES, weights.items(), key=lambda word: abs(word[1])))
    return {"indices": list(weights), "values": list(weights.values())} if weights else None
