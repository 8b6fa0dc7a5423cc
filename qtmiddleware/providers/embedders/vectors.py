"""Vectors as they come back from models and services, checked before anybody keeps them."""

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
    """Vectors, with the *input_tokens* that a service says it read for them; 0 if it says nothing."""

    __slots__ = ("input_tokens",)

    def __init__(self, vectors: Iterable[list[float]] = (), input_tokens: int = 0) -> None:
        super().__init__(vectors)
        self.input_tokens = input_tokens

    def add(self, more: Vectors) -> None:
        """Add the vectors and tokens of *more*."""
        self.extend(more)
        self.input_tokens += more.input_tokens


def check_vectors(made: Any, count: int, *, dimension: int | None, name: str) -> Vectors:
    """*made* as *count* lists of finite floats, all of one length and that *dimension* where it is known.

    Takes lists, tuples and arrays. Raises `EmbeddingError`, which speaks of the model as *name*.
    """
    try:
        vectors = [_read_numbers(vector) for vector in made]
    except (TypeError, ValueError, OverflowError) as error:
        # What stands there in place of numbers may be the very text that was to be embedded, and
        # Python quotes it.
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
    return Vectors(vectors, made.input_tokens if isinstance(made, Vectors) else 0)


def _read_numbers(vector: Sequence[Any]) -> list[float]:
    """*vector* as a list of floats; an array is turned into one in a single step."""
    if isinstance(vector, str | bytes):
        raise TypeError("a text instead of a vector")
    return [float(number) for number in (vector.tolist() if hasattr(vector, "tolist") else vector)]


def read_vectors(answer: Any, count: int, name: str) -> Vectors:
    """The *count* vectors of *answer*, by their index: the bytes of a body, a mapping or a client's own object.

    They are not looked at yet. With them come the tokens that *answer* says were read.

    Raises `EmbeddingError` where it is none, or has another number of vectors.
    """
    try:
        held = json.loads(answer) if isinstance(answer, bytes) else answer
        items = list(read_field(held, "data"))
        by_index = {
            _read_index(item, at): _decode_vector(read_field(item, "embedding"))
            for at, item in enumerate(items)
        }
    except (TypeError, ValueError, RecursionError):
        # What was read may quote a text, so it does not become the cause.
        raise EmbeddingError(
            f"{name} sent a response that cannot be read; check that the address is that of an API"
        ) from None
    if len(items) != count or by_index.keys() != set(range(count)):
        raise EmbeddingError(
            f"{name} must send one vector per text, not {len(items)} for {count} texts"
        )
    return Vectors((by_index[at] for at in range(count)), count_tokens(held))


def count_tokens(answer: Any) -> int:
    """Return how many tokens *answer*, a service's whole one, says it read; 0 for none and for a number that cannot be.

    OpenAI calls them ``prompt_tokens``, Pinecone ``total_tokens``.
    """
    usage = read_field(answer, "usage")
    counts = (read_field(usage, name) for name in ("prompt_tokens", "total_tokens"))
    return next((it for it in counts if type(it) is int and 0 < it <= _MOST_TOKENS), 0)


def _read_index(item: Any, at: int) -> int:
    """The position of the text *item* belongs to; some servers leave it out and keep the order."""
    index = read_field(item, "index")
    return index if isinstance(index, int) else at


def _decode_vector(held: Any) -> Any:
    """The numbers themselves, or those in base64: 32-bit floats, the least significant byte first."""
    if not isinstance(held, str):
        return held
    numbers = array("f", b64decode(held, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
