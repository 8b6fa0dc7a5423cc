"""Check passages and vectors before a store saves them, and extract words for the word index."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.protocols import Passage
from qtmiddleware.providers import replace_surrogates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

Row = tuple[str, str, str]
"""A passage as it is stored: its id, its text, and its metadata as JSON."""


class ClosingStore:
    """Base class of stores that close themselves at the end of a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store's files and connections."""
        raise NotImplementedError


def pair_vectors(
    passages: Sequence[Passage], vectors: Sequence[Sequence[float]]
) -> Iterator[tuple[Passage, Sequence[float]]]:
    """Return an iterator that pairs each passage with its vector.

    Raises `StoreError` if the numbers of passages and vectors differ.
    """
    if len(passages) != len(vectors):
        raise StoreError(
            f"{len(passages)} passages came with {len(vectors)} vectors; each passage needs one"
            " vector"
        )
    return zip(passages, vectors, strict=True)


def build_row(passage: Passage) -> Row:
    """Return the row to store for *passage*: its id, its text, and its metadata as JSON.

    Raises `StoreError` if the id is not valid text, or if the metadata cannot be written as JSON.
    """
    try:
        passage.id.encode()
        metadata = json.dumps(dict(passage.metadata))
    except (AttributeError, TypeError, ValueError) as error:
        raise StoreError(
            f"the passage {passage.id!r} cannot be stored: its id must be text and its metadata"
            f" JSON ({type(error).__name__}); nothing was written"
        ) from error
    return passage.id, replace_surrogates(passage.text), metadata


def convert_vectors(
    vectors: Sequence[Sequence[float]], dimension: int, *, passage_ids: Sequence[str] = ()
) -> Floats:
    """Return *vectors* as a float32 array with one row per vector and *dimension* columns.

    Raises `StoreError` unless each vector has *dimension* finite numbers. The error message names
    the passage with the invalid vector, or "the query" if *passage_ids* is empty.
    """
    try:
        import numpy as np
    except ImportError as error:
        raise MissingExtra("numpy", "local") from error
    if len(vectors) == 0:
        return np.empty((0, dimension), dtype=np.float32)
    try:
        with np.errstate(over="ignore"):
            array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        # An embedder may have returned the text instead of numbers, and numpy's message quotes it.
        raise StoreError(
            f"vectors must all be {dimension} numbers ({type(error).__name__})"
        ) from None
    if array.ndim != 2 or array.shape[1] != dimension:
        raise StoreError(
            f"vectors must all be {dimension} numbers; these are of the shape {array.shape}"
        )
    if not np.isfinite(array).all():
        position = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        owner = f"of the passage {passage_ids[position]!r}" if passage_ids else "of the query"
        raise StoreError(f"the vector {owner} must hold finite numbers only")
    return array


def normalise_vectors(vectors: Floats) -> Floats:
    """Scale each vector to length 1 in place, and return the scaled *vectors*.

    The dot product of two scaled vectors is their cosine. A vector of length 0 is not changed.
    """
    import numpy as np

    # In single precision, the squares of the largest numbers would overflow.
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    lengths[lengths == 0] = 1
    np.divide(vectors, lengths, out=vectors, casting="same_kind")
    return vectors


CATEGORIES: Final = "L* N* M* Co"
"""The Unicode categories of characters in words: letters, numbers, marks and private use."""

_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_WORD: Final = r"[\p{L}\p{N}\p{M}\p{Co}]+"
# Scripts without spaces between words, and Hangul, whose words include their particles.
_UNSPACED: Final = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    r"\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def extract_index_words(text: str, metadata: str) -> str:
    """Return the words to index for a passage, separated by spaces.

    The words come from *text*, the passage's text, and from the field ``context`` of *metadata*,
    which is JSON. In scripts without spaces, each character and each pair of adjacent characters is
    a word. Upper case becomes lower case, and ß becomes ss. Accents stay; the index removes them.
    """
    # Most passages have no context, and parsing JSON takes time.
    if '"context"' in metadata:
        context = json.loads(metadata).get("context")
        if isinstance(context, str):
            text = f"{text}\n{replace_surrogates(context)}"
    if text.isascii():
        # This is ten times as fast as the general way below, and finds the same words.
        return " ".join(_PLAIN_WORD.findall(text.lower()))
    return " ".join(_split_words(text, should_add_single_characters=True))


def extract_query_words(text: str) -> list[str]:
    """Return the words of a query *text* to look up in the word index, without repeats.

    In scripts without spaces, each pair of adjacent characters is a word. A single character is a
    word only if it stands alone.
    """
    return list(dict.fromkeys(_split_words(text, should_add_single_characters=False)))


def _split_words(text: str, *, should_add_single_characters: bool) -> Iterator[str]:
    """Yield the words of *text*, normalised (NFKC) and in lower case.

    In scripts without spaces, each pair of adjacent characters is a word. A single character is a
    word only if it stands alone, or if *should_add_single_characters* is true.
    """
    import regex

    for word in regex.findall(_WORD, unicodedata.normalize("NFKC", text).casefold()):
        position = 0
        for match in regex.finditer(_UNSPACED, word):
            start, end = match.span()
            if start > position:
                yield word[position:start]
            if should_add_single_characters or end - start == 1:
                yield from word[start:end]
            yield from (word[left : left + 2] for left in range(start, end - 1))
            position = end
        if position < len(word):
            yield word[position:]
