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
    """A list of vectors, with the number of tokens that were embedded.

    Attributes:
        input_tokens: The number of tokens, as counted by the service; 0 if it is unknown.
    """

    __slots__ = ("input_tokens",)

    def __init__(self, vectors: Iterable[list[float]] = (), input_tokens: int = 0) -> None:
        super().__init__(vectors)
        self.input_tokens = input_tokens

    def append_vectors(self, vectors: Vectors) -> None:
        """Append *vectors*, and add their `input_tokens` to the total."""
        self.extend(vectors)
        self.input_tokens += vectors.input_tokens


def check_and_convert_vectors(
    result: Any, text_count: int, *, dimension: int | None, model_name: str
) -> Vectors:
    """Check a model's *result*, and return its vectors as lists of floats.

    Args:
        result: The vectors, as lists, tuples or arrays of numbers.
        text_count: The number of texts. There must be one vector per text.
        dimension: The required length of the vectors; ``None`` allows any length.
        model_name: The model's name in error messages.

    Raises:
        EmbeddingError: The number of vectors is wrong, their lengths differ, or a number is not
            finite.
    """
    try:
        vectors = [_convert_to_floats(vector) for vector in result]
    except (TypeError, ValueError, OverflowError) as error:
        # A wrong function may return the text itself, and Python's error would quote it.
        kind = type(error).__name__
        raise EmbeddingError(
            f"{model_name} returned something other than lists of numbers ({kind})"
        ) from None
    if len(vectors) != text_count:
        raise EmbeddingError(f"{model_name} returned {len(vectors)} vectors for {text_count} texts")
    lengths = {len(vector) for vector in vectors}
    if len(lengths) != 1 or lengths == {0}:
        raise EmbeddingError(
            f"{model_name} returned vectors of several lengths or none: {sorted(lengths)}"
        )
    if dimension is not None and lengths != {dimension}:
        raise EmbeddingError(
            f"{model_name} returned vectors of {lengths.pop()} numbers, not {dimension}"
        )
    if not all(all(map(isfinite, vector)) for vector in vectors):
        raise EmbeddingError(f"{model_name} returned numbers that are not finite (NaN or infinite)")
    return Vectors(vectors, result.input_tokens if isinstance(result, Vectors) else 0)


def _convert_to_floats(vector: Sequence[Any]) -> list[float]:
    """Return *vector* as a list of floats.

    Raises `TypeError` or `ValueError` if *vector* is not a vector of numbers.
    """
    # A string is a sequence too, and "123" would become three numbers.
    if isinstance(vector, str | bytes):
        raise TypeError("a text instead of a vector")
    return [float(number) for number in (vector.tolist() if hasattr(vector, "tolist") else vector)]


def read_vectors(answer: Any, text_count: int, model_name: str) -> Vectors:
    """Return the vectors and the token count in a service's *answer*.

    The vectors are in the order of the texts. This function does not check their lengths and
    numbers; `check_and_convert_vectors` does.

    Args:
        answer: The response body in bytes, a mapping, or the client's response object.
        text_count: The number of texts. There must be one vector per text.
        model_name: The model's name in error messages.

    Raises:
        EmbeddingError: *answer* cannot be read, or the number of vectors is wrong.
    """
    try:
        response = json.loads(answer) if isinstance(answer, bytes) else answer
        items = list(read_field(response, "data"))
        by_index = {
            _read_text_index(item, position): _decode_vector(read_field(item, "embedding"))
            for position, item in enumerate(items)
        }
    except (TypeError, ValueError, RecursionError):
        # The error may quote a text, so it does not become the cause.
        raise EmbeddingError(
            f"{model_name} sent a response that cannot be read; check that the address is that of"
            " an API"
        ) from None
    if len(items) != text_count or by_index.keys() != set(range(text_count)):
        raise EmbeddingError(
            f"{model_name} must send one vector per text, not {len(items)} for {text_count} texts"
        )
    return Vectors(
        (by_index[position] for position in range(text_count)), read_input_tokens(response)
    )


def read_input_tokens(answer: Any) -> int:
    """Return the number of input tokens in a service's *answer*; 0 if it is unknown.

    OpenAI calls this number ``prompt_tokens``, and Pinecone ``total_tokens``. A number that is not
    positive, or is greater than 10¹², counts as unknown.
    """
    usage = read_field(answer, "usage")
    counts = (read_field(usage, name) for name in ("prompt_tokens", "total_tokens"))
    return next((count for count in counts if type(count) is int and 0 < count <= _MOST_TOKENS), 0)


def _read_text_index(vector_entry: Any, position: int) -> int:
    """Return the index of the text whose vector is in *vector_entry*; by default *position*.

    Some servers omit the index, and return the vectors in the order of the texts.
    """
    index = read_field(vector_entry, "index")
    return index if isinstance(index, int) else position


def _decode_vector(vector: Any) -> Any:
    """Return the floats of *vector* if it is a base64 string, else *vector* unchanged.

    The string encodes little-endian 32-bit floats. The SDK asks for this format by default.
    """
    if not isinstance(vector, str):
        return vector
    numbers = array("f", b64decode(vector, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
