"""Store passages in a dense Pinecone index, with vectors of your own embedder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from math import isfinite
from typing import Any, Final, Self

from qtmiddleware.config.settings import StoreSettings
from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.concurrency import is_async
from qtmiddleware.runtime.forking import MadeOnce

# Source: https://docs.pinecone.io/reference/api/database-limits
MOST_IDS: Final = 1_000
MOST_BYTES: Final = 2_000_000
MOST_METADATA_BYTES: Final = 40 * 1_024
MOST_MATCHES: Final = 10_000

# The maximum size of a number in JSON, in bytes, with a comma and a space.
_NUMBER_BYTES: Final = 26
# The size of the names and brackets around one vector, in bytes.
_FRAME_BYTES: Final = 120
# The largest whole number that Pinecone stores exactly, because it stores 64-bit floats.
_EXACT: Final = 2**53
_DEFAULT_NAMESPACE: Final = "__default__"
_KEY_VARIABLE: Final = "PINECONE_API_KEY"
_ADVICE: Final = {
    401: f"rejected the key; check {_KEY_VARIABLE}",
    404: "knows no such index; check store.index and store.host",
    429: "accepts no more requests for now (rate limit or quota); try again later",
}


class PineconeStore:
    """Keeps passages in one namespace of a dense Pinecone index, with vectors of your own embedder.

    The first use checks the type and the dimension of the index's vectors. Pinecone does not record
    which model made them, so use one model per namespace. Searches and `count` see a write or a
    removal a little later.

    Pinecone's limits hold: ids of 1 to 512 ASCII characters, 40 KB of text and metadata per
    passage, and 4 MB per response. A metadata value is a text, a number, a boolean or a list of
    texts. ``None`` is left out, and whole numbers come back as integers.

    Thread-safe, with the client's own timeouts and retries; a context manager. Methods raise
    `StoreError`, and `InvalidQuery` for an invalid filter.

    Args:
        open_index: returns an index of the ``pinecone`` client, or any object with the same
            methods. Called once per process. The store closes the index.
        embedding_model: the model of all vectors, for error messages.
        dimension: the length of all vectors.
        namespace: the namespace; ``""`` and ``"__default__"`` are the same.
        text_field: the metadata field that contains the text.
    """

    def __init__(
        self,
        open_index: Callable[[], Any],
        *,
        embedding_model: str,
        dimension: int,
        namespace: str = "",
        text_field: str = "text",
    ) -> None:
        self._open_index = open_index
        self._index = MadeOnce[Any]()
        index = self._index.get(open_index)
        # An async index has the same methods, but they return coroutines.
        if is_async(index.query):
            raise StoreError("the Pinecone index must not be async; use pinecone.Pinecone().Index")
        self._embedding_model = embedding_model
        self._dimension = dimension
        self._namespace = "" if namespace == _DEFAULT_NAMESPACE else namespace
        self._text_field = text_field
        self._closed = False
        self._metric: str | None = None
        address = str(getattr(index, "host", None) or "")
        self._host = address.rpartition("://")[2].rstrip("/")
        self._subject = f"the Pinecone index {self._host}".rstrip()

    def __repr__(self) -> str:
        return f"PineconeStore({self._host!r}, namespace={self._namespace!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def identity(self) -> str:
        """The index's host and the namespace as one text."""
        return f"pinecone:{self._host}/{self._namespace or _DEFAULT_NAMESPACE}"

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, then remove the passages with the ids in *delete*.

        *passages* are sent batch by batch. After a failure, the batches already sent stay in the
        index. Repeat the write to complete it.
        """
        stale_ids = dict.fromkeys(delete)
        for batch in self._build_batches(passages):
            self._check_index_once()
            self._call("upsert", vectors=batch, namespace=self._namespace)
            for record in batch:
                stale_ids.pop(record["id"], None)
        # Outdated passages are removed last, so that readers never miss a replaced passage.
        ids = list(stale_ids)
        for start in range(0, len(ids), MOST_IDS):
            part = ids[start : start + MOST_IDS]
            self._call("delete", may_be_missing=True, ids=part, namespace=self._namespace)

    def search(
        self,
        query: Sequence[float],
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that meet *filter*, best first.

        At most 10,000. The score depends on the index's metric; a Euclidean distance is negated.
        """
        vector = self._convert_vector(query)
        # Called only for its checks: all stores reject the same filters.
        build_matcher(filter or {})
        # A Euclidean index returns distances, so the smallest is the best.
        sign = -1.0 if self._check_index_once() == "euclidean" else 1.0
        if top_k < 1:
            return []
        answer = self._call(
            "query",
            vector=vector,
            top_k=min(top_k, MOST_MATCHES),
            namespace=self._namespace,
            include_metadata=True,
            filter=filter or None,
        )
        records = []
        for match in answer.matches:
            fields = {key: _restore_integer(value) for key, value in (match.metadata or {}).items()}
            text = str(fields.pop(self._text_field, ""))
            score = sign * (match.score or 0.0)
            records.append({"id": match.id, "score": score, "text": text, "metadata": fields})
        return sorted(records, key=lambda record: (-record["score"], record["id"]))

    def count(self) -> int:
        """Return the number of passages; recent writes may not be counted yet."""
        self._check_index_once()
        namespaces = self._call("describe_index_stats").namespaces or {}
        # Pinecone may list the default namespace under either name.
        other_name = self._namespace or _DEFAULT_NAMESPACE
        found = namespaces.get(self._namespace) or namespaces.get(other_name)
        return found.vector_count or 0 if found else 0

    def close(self) -> None:
        """Close the index and its connections; you can call this more than once."""
        self._closed = True
        self._index.close()

    def _check_index_once(self) -> str:
        """Return the index's metric. The first call checks the index's type and dimension."""
        if self._metric is None:
            stats = self._call("describe_index_stats")
            vector_type = getattr(stats, "vector_type", None) or "dense"
            dimension = getattr(stats, "dimension", None) or self._dimension
            if (vector_type, dimension) != ("dense", self._dimension):
                raise StoreError(
                    f"{self._subject} holds {vector_type} vectors of {dimension} numbers, not dense"
                    f" ones of {self._dimension} as {self._embedding_model!r} makes; use the model"
                    " it was made for, or another index"
                )
            self._metric = str(getattr(stats, "metric", None) or "")
        return self._metric

    def _build_batches(
        self, passages: Iterable[tuple[Passage, Sequence[float]]]
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the records to send, in batches that are small enough for one request."""
        batch: dict[str, dict[str, Any]] = {}
        total_bytes = 0
        for passage, vector in passages:
            fields = {**passage.metadata, self._text_field: passage.text}
            fields = {name: value for name, value in fields.items() if value is not None}
            try:
                compact = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
            except (TypeError, ValueError) as error:
                kind = type(error).__name__
                raise StoreError(
                    f"the metadata of the passage {passage.id!r} must be JSON ({kind})"
                ) from None
            encoded = replace_surrogates(compact).encode()
            if len(encoded) > MOST_METADATA_BYTES:
                raise StoreError(
                    f"the passage {passage.id!r} has {len(encoded):,} bytes of text and metadata;"
                    f" Pinecone takes at most {MOST_METADATA_BYTES:,}. Lower chunkSize, or shorten"
                    " its metadata"
                )
            size = len(encoded) + len(passage.id) + _FRAME_BYTES + len(vector) * _NUMBER_BYTES
            if batch and (len(batch) == MOST_IDS or total_bytes + size > MOST_BYTES):
                yield list(batch.values())
                batch, total_bytes = {}, 0
            batch[passage.id] = {
                "id": passage.id,
                "values": self._convert_vector(vector),
                "metadata": json.loads(encoded),
            }
            total_bytes += size
        if batch:
            yield list(batch.values())

    def _convert_vector(self, vector: Any) -> list[float]:
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError):
            numbers = []
        if len(numbers) != self._dimension or not all(map(isfinite, numbers)):
            raise StoreError(f"each vector must be a list of {self._dimension} finite numbers")
        return numbers

    def _call(self, method: str, *, may_be_missing: bool = False, **arguments: Any) -> Any:
        """Call a *method* of the index, and return its answer."""
        if self._closed:
            raise StoreError(f"{self._subject} cannot be used: the store is closed")
        with _explain_errors(self._subject):
            try:
                index = self._index.get(self._open_index)
                return getattr(index, method)(**arguments)
            except Exception as error:
                if may_be_missing and getattr(error, "status_code", None) == 404:
                    return None
                raise


def open_pinecone(options: StoreSettings, *, embedding_model: str, dimension: int) -> PineconeStore:
    """Open the Pinecone store that *options* describe; closing the store also closes the index.

    The API key is read from ``PINECONE_API_KEY``. Pinecone is called once, unless the options give
    the host of the index.

    Raises `StoreError` if the key or the index does not exist.
    """
    api_key = os.environ.get(_KEY_VARIABLE, "").strip()
    if not api_key:
        raise StoreError(f"the key for Pinecone is missing; set {_KEY_VARIABLE}")
    from pinecone import Pinecone

    def open_index() -> Any:
        place = {"host": options.host} if options.host else {"name": options.index}
        with closing(Pinecone(api_key=api_key)) as client:
            return client.Index(**place)

    with _explain_errors(f"the Pinecone index {options.host or options.index!r}"):
        return PineconeStore(
            open_index,
            embedding_model=embedding_model,
            dimension=dimension,
            namespace=options.namespace,
            text_field=options.text_field,
        )


@contextmanager
def _explain_errors(subject: str) -> Iterator[None]:
    """Convert any error of Pinecone's client into a `StoreError` with advice."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        status = getattr(error, "status_code", None)
        kind = type(error).__name__
        if isinstance(status, int):
            advice = _ADVICE.get(status, "rejected the request")
            if status >= 500:
                advice = "is not available; try again later"
            reason = f"Pinecone {advice} (HTTP {status})"
        elif isinstance(error, OSError) or kind.endswith(("ConnectionError", "TimeoutError")):
            reason = f"Pinecone cannot be reached; check the network and store.host ({kind})"
        else:
            reason = f"the request or its answer cannot be read ({kind})"
        raise StoreError(f"{subject} cannot be used: {reason}") from error


def _restore_integer(value: Any) -> Any:
    """Return a whole number as an integer, because Pinecone returns integers as floats."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT
    return int(value) if is_whole else value
