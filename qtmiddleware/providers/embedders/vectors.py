"""Read and check the vectors that models and services return."""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64decode
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.runtime.fields import read_field

_MOST_TOKENS: Final = 10**12


class Vectors(list[list[float]]):
    """A list of vectors.

    Attributes:
        input_tokens: How many tokens the service says it read; 0 if it gives no number.
    """

    __slots__ = ("input_tokens",)

    def __init__(self, vectors: Iterable[list[float]] = (), input_tokens: int = 0) -> None:
        super().__init__(vectors)
        self.input_tokens = input_tokens

    def add(self, vectors: Vectors) -> None:
        """Append *vectors*, and add their number of input tokens."""
        self.extend(vectors)
        self.input_tokens += vectors.input_tokens


def check_vectors(returned: Any, count: int, *, dimension: int | None, name: str) -> Vectors:
    """Return *returned* as *count* lists of finite floats, all of the same length.

    Raises `EmbeddingError` if *returned* is anything else.

    Args:
        returned: Lists, tuples or arrays of numbers.
        count: How many vectors there must be.
        dimension: The length that the vectors must have; ``None`` for any length.
        name: The model's name in error messages.
    """
    try:
        vectors = [_read_numbers(vector) for vector in returned]
    except (TypeError, ValueError, OverflowError) as error:
        # The returned value may be the text that was to be embedded, and Python's error quotes it.
        kind = type(error).__name__
        raise EmbeddingError(
            f"{name} returned something other than lists of numbers ({kind})"
        ) from None
    if len(vectors) != count:
        raise EmbeddingError(f"{name} returned {len(vectors)} vectors for {count} texts")
    lengths = {len(vector) for vector in vectors}
    if len(lengths) != 1 or lengths == {0}:
        raise EmbeddingError(
            f"{name} returned vectors of several lengths or none: {sorted(lengths)}"
        )
    if dimension is not None and lengths != {dimension}:
        raise EmbeddingError(f"{name} returned vectors of {lengths.pop()} numbers, not {dimension}")
    if not all(all(map(isfinite, vector)) for vector in vectors):
        raise EmbeddingError(f"{name} returned numbers that are not finite (NaN or infinite)")
    return Vectors(vectors, returned.input_tokens if isinstance(returned, Vectors) else 0)


def _read_numbers(vector: Sequence[Any]) -> list[float]:
    """Return *vector* as a list of floats."""
    if isinstance(vector, str | bytes):
        raise TypeError("a text instead of a vector")
    return [float(number) for number in (vector.tolist() if hasattr(vector, "tolist") else vector)]


def read_vectors(answer: Any, count: int, name: str) -> Vectors:
    """Return the vectors in a service's *answer*, sorted by index, with the number of tokens read.

    The vectors are not checked yet.

    Args:
        answer: The response: the bytes of its body, a mapping or a client's own object.
        count: How many vectors there must be.
        name: The model's name in error messages.

    Raises:
        EmbeddingError: *answer* cannot be read or has another number of vectors.
    """
    try:
        response = json.loads(answer) if isinstance(answer, bytes) else answer
        items = list(read_field(response, "data"))
        by_index = {
            _read_index(item, position): _decode_vector(read_field(item, "embedding"))
            for position, item in enumerate(items)
        }
    except (TypeError, ValueError, RecursionError):
        # The error may quote a text, so it does not become the cause.
        raise EmbeddingError(
            f"{name} sent a response that cannot be read; check that the address is that of an API"
        ) from None
    if len(items) != count or by_index.keys() != set(range(count)):
        raise EmbeddingError(
            f"{name} must send one vector per text, not {len(items)} for {count} texts"
        )
    return Vectors((by_index[position] for position in range(count)), count_tokens(response))


def count_tokens(answer: Any) -> int:
    """Return how many tokens a service read, as its response *answer* says; 0 if unknown.

    OpenAI calls this number ``prompt_tokens``, Pinecone ``total_tokens``. Impossible numbers count
    as unknown.
    """
    usage = read_field(answer, "usage")
    counts = (read_field(usage, name) for name in ("prompt_tokens", "total_tokens"))
    return next((count for count in counts if type(count) is int and 0 < count <= _MOST_TOKENS), 0)


def _read_index(item: Any, position: int) -> int:
    """Return the index of the text to which *item* belongs, or *position* if *item* has no index.

    Some servers omit the index and return the vectors in the order of the texts.
    """
    index = read_field(item, "index")
    return index if isinstance(index, int) else position


def _decode_vector(vector: Any) -> Any:
    """Decode *vector* if it is base64 of little-endian 32-bit floats, else return it unchanged."""
    if not isinstance(vector, str):
        return vector
    numbers = array("f", b64decode(vector, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
