"""What passages and vectors must be to be stored, and the words a full-text index finds them by."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.protocols import Passage
from qtmiddleware.providers import replace_surrogates

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

SLICE: Final = 500
"""Passages that are held in memory at once while many are written."""

DIGITS: Final = 6
"""Decimals of a score. The rest is noise of single precision, which would put equal passages in a random order."""

Row = tuple[str, str, str]
"""A passage as it is stored: its id, its text and its metadata as JSON."""


class ClosingStore:
    """A store that ``with`` closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of files and connections."""
        raise NotImplementedError


class LocalStore(ClosingStore):
    """A store that keeps passages and vectors itself, in a file or folder; every write is whole or nothing."""

    embeds: Final = False
    atomic: Final = True
    _identity: str

    @property
    def identity(self) -> str:
        """The name the file or folder was given when it was made; a copy of it has it too."""
        return self._identity

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, replacing those of the same id, and remove those of the ids *delete*, as one change."""
        raise NotImplementedError

    def upsert(self, passages: Sequence[Passage], vectors: Sequence[Sequence[float]]) -> None:
        """Write *passages*, replacing those of the same id; all of them or none.

        Of several with one id, the last stays.
        """
        self.write(pair_vectors(passages, vectors))

    def delete(self, ids: Sequence[str]) -> None:
        """Remove the passages of these *ids*, all or none; unknown ones are no error."""
        self.write((), delete=ids)


def check_model(
    path: object, model: object, length: object, embedding_model: str, dimension: int
) -> None:
    """Raise `StoreError` unless the store at *path*, of vectors of *length* numbers of *model*, was made with these."""
    if (model, length) != (embedding_model, dimension):
        raise StoreError(
            f"{path} was made with the embedding model {model!r} ({length} numbers a vector) and"
            f" cannot be used with {embedding_model!r} ({dimension}): their vectors mean different"
            f" things. Use {model!r}, or ingest again into another path"
        )


def check_slices(
    passages: Iterable[tuple[Passage, Sequence[float]]], dimension: int
) -> Iterator[tuple[list[Row], Floats]]:
    """*passages* as rows with their vectors, a few hundred at a time; raises `StoreError` for what cannot be kept."""
    source = iter(passages)
    while part := list(islice(source, SLICE)):
        rows = [check_row(passage) for passage, _ in part]
        yield (
            rows,
            check_vectors([vector for _, vector in part], dimension, of=[row[0] for row in rows]),
        )


def pair_vectors(
    passages: Sequence[Passage], vectors: Sequence[Sequence[float]]
) -> Iterator[tuple[Passage, Sequence[float]]]:
    """Each of *passages* with its vector; raises `StoreError` unless there are as many of both."""
    if len(passages) != len(vectors):
        raise StoreError(
            f"{len(passages)} passages came with {len(vectors)} vectors; each passage needs one"
            " vector"
        )
    return zip(passages, vectors, strict=True)


def filter_ids(ids: Iterable[str]) -> list[str]:
    """Of *ids* those that a passage can have, each once."""
    return [id_ for id_ in dict.fromkeys(ids) if _is_storable(id_)]


def check_row(passage: Passage) -> Row:
    """*passage* as it is stored; raises `StoreError` for an id that is no text and metadata that is no JSON."""
    if not _is_storable(passage.id):
        raise StoreError(
            f"the id {passage.id!r} must be text that can be stored; nothing was written"
        )
    try:
        metadata = json.dumps(dict(passage.metadata))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the metadata of the passage {passage.id!r} must be JSON ({error}); nothing was"
            " written"
        ) from error
    return passage.id, replace_surrogates(passage.text), metadata


def _is_storable(id_: Any) -> bool:
    try:
        id_.encode()
    except (AttributeError, UnicodeEncodeError):
        return False
    return True


def check_query(query: Sequence[float] | str, dimension: int) -> Floats:
    """The vector of a search; raises `StoreError` for a text, which no store of this kind can embed."""
    if isinstance(query, str):
        raise StoreError("this store does not embed texts; search it with the query's vector")
    found: Floats = check_vectors([query], dimension)[0]
    return found


def check_vectors(
    vectors: Sequence[Sequence[float]], dimension: int, *, of: Sequence[str] = ()
) -> Floats:
    """*vectors* as an array of float32, each of *dimension* finite numbers; raises `StoreError` otherwise.

    *of* are the ids they belong to; without them they are a query's.
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
        # What stands there in place of numbers may be the very text that was to be embedded, and
        # numpy quotes it.
        raise StoreError(
            f"vectors must all be {dimension} numbers ({type(error).__name__})"
        ) from None
    if array.ndim != 2 or array.shape[1] != dimension:
        raise StoreError(
            f"vectors must all be {dimension} numbers; these are of the shape {array.shape}"
        )
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array).all(axis=1))[0])
        whose = f"of the passage {of[at]!r}" if of else "of the query"
        raise StoreError(f"the vector {whose} must hold finite numbers only")
    return array


def normalise(vectors: Floats) -> Floats:
    """*vectors*, brought to length 1 in place, so that a product is a cosine; one of length 0 stays as it is."""
    import numpy as np

    # Taken at double precision, in which the squares of the greatest numbers have their place too.
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    lengths[lengths == 0] = 1
    np.divide(vectors, lengths, out=vectors, casting="same_kind")
    return vectors


CATEGORIES: Final = "L* N* M* Co"
"""The Unicode categories a word is made of: letters, numbers, the marks that are written on them, private use."""

_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_WORD: Final = r"[\p{L}\p{N}\p{M}\p{Co}]+"
# Scripts without spaces between words, and Hangul, whose words carry their particles.
_UNSPACED: Final = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    r"\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def index_text(text: str, metadata: str) -> str:
    """The words of a passage with spaces between them: those of *text*, and of ``context`` in its *metadata* (JSON).

    Of scripts without spaces each character is a word, and so is each pair of neighbours. Case is
    folded, with ß for ss and one sigma for all; accents are left to the index.
    """
    if '"context"' in metadata:
        context = json.loads(metadata).get("context")
        if isinstance(context, str):
            text = f"{text}\n{replace_surrogates(context)}"
    if text.isascii():
        # Ten times as fast as what follows, for the same words.
        return " ".join(_PLAIN_WORD.findall(text.lower()))
    return " ".join(_words(text, singles=True))


def query_words(text: str) -> list[str]:
    """The words of a query, each once; of scripts without spaces the pairs, or the one character there is."""
    return list(dict.fromkeys(_words(text, singles=False)))


def _words(text: str, *, singles: bool) -> Iterator[str]:
    import regex

    for word in regex.findall(_WORD, unicodedata.normalize("NFKC", text).casefold()):
        last = 0
        for run in regex.finditer(_UNSPACED, word):
            start, end = run.span()
            if start > last:
                yield word[last:start]
            if singles or end - start == 1:
                yield from word[start:end]
            yield from (word[at : at + 2] for at in range(start, end - 1))
            last = end
        if last < len(word):
            yield word[last:]
