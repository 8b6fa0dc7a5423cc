"""Find texts that repeat an earlier text, so that they are not searched for again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_text, normalise_text, split_terms, split_words
from qtmiddleware.transforms.guard import load_words

NEAR: Final = 0.9
"""The minimum Jaccard similarity of the words of two texts that count as repeats."""
ORIGINAL: Final = -1
"""The index that `find_repeats` returns for a text that repeats the original text."""

# These words hardly change an embedding. Question words are left out: "who" and "when" ask for
# different things.
_LIGHT_WORDS: Final = frozenset(
    """
    a an the is are was were be been being do does did have has had of to in on at by for with and
    or please der die das ein eine ist sind le la les un une des du est sont el los las una es son
    de en il lo gli o os as um uma
    """.split()  # noqa: SIM905
)


class _ComparedWords(NamedTuple):
    """A text and its words, without light words such as "the", or all if all are light words."""

    text: str
    words: frozenset[str]

    def repeat(self, other: _ComparedWords) -> bool:
        """Return whether the two texts repeat each other, as defined in `find_repeats`."""
        common = len(self.words & other.words)
        if common < NEAR * len(self.words | other.words):
            return False
        marked = _find_marked_words(self.text) | _find_marked_words(other.text)
        return marked.isdisjoint(self.words ^ other.words)


def find_repeats(texts: Sequence[str], *, original: str) -> list[int | None]:
    """Return, for each text, the index of the earlier text that it repeats.

    The index is ``None`` for a new text, and `ORIGINAL` for a text that repeats *original*. Texts
    repeat each other if they differ only in case, punctuation, word order or light words such as
    "the". So do texts with a Jaccard similarity of words of at least `NEAR` that differ in no
    name, number, code or negation.
    """
    kept = {ORIGINAL: _read_words(original)}
    repeats: list[int | None] = []
    for index, text in enumerate(texts):
        words = _read_words(text)
        places = (place for place, earlier in kept.items() if words.repeat(earlier))
        repeats.append(next(places, None))
        if repeats[-1] is None:
            kept[index] = words
    return repeats


def _read_words(text: str) -> _ComparedWords:
    terms = frozenset(split_terms(text))
    words = terms - _LIGHT_WORDS or terms or frozenset((normalise_text(text),))
    return _ComparedWords(text, words.union(_find_signs(text)))


def _find_signs(text: str) -> list[str]:
    # C++ and C are different names.
    return re.findall(r"\w[+#]+", text)


def _find_marked_words(text: str) -> frozenset[str]:
    """Return names, numbers, codes and negations, which make another question if they differ."""
    terms = frozenset(split_terms(text))
    names = {fold_text(word) for word in split_words(text)[1:] if word[0].isupper()}
    codes = {term for term in terms if not term.isalpha()} | (terms & load_words("denials"))
    return frozenset(_find_signs(text)).union(names, codes)
