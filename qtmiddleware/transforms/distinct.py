"""Find texts that repeat an earlier text, so that they are not searched for again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_text, normalise_text, split_terms, split_words
from qtmiddleware.transforms.span_matching import is_negated

NEAR: Final = 0.9
"""The minimum Jaccard similarity of two texts' tokens for the texts to count as repeats."""

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
# The search starts only at the beginning of a word. Otherwise it would read a long word again from
# each of its letters.
_MARKED_TERM: Final = re.compile(
    r"(?<![^\s\"“”«»„?!,;])[^\s\"“”«»„?!,;]*"
    r"(?:[\d_@#/\\+$]|::|\w\.\w|[a-z][A-Z]|\w-\w)[^\s\"“”«»„?!,;]*"
    r"|\b[A-Z]{2,}\b"
)


class _ComparedText(NamedTuple):
    """A text, prepared for comparison with other texts.

    Attributes:
        text: the unchanged text.
        normal: its normal form.
        tokens: its tokens without light words such as "the", or all if all are light words.
    """

    text: str
    normal: str
    tokens: frozenset[str]

    def repeats(self, other: _ComparedText) -> bool:
        """Return whether the two texts repeat each other, as defined in `find_repeats`."""
        if self.normal == other.normal:
            return True
        common = len(self.tokens & other.tokens)
        if not common or common < NEAR * len(self.tokens | other.tokens):
            return False
        if is_negated(self.text) != is_negated(other.text):
            return False
        texts = (self.text, other.text)
        # Numbers, identifiers and acronyms must be the same.
        terms = [set(map(_fold_term, _MARKED_TERM.findall(text))) for text in texts]
        # The few tokens that differ may not be names: they would ask for something else.
        names = {
            fold_text(word) for text in texts for word in split_words(text)[1:] if word[0].isupper()
        }
        return terms[0] == terms[1] and names.isdisjoint(self.tokens ^ other.tokens)


def find_repeats(texts: Sequence[str], *, original: str) -> list[int | None]:
    """Return, for each text, the index of the earlier text that it repeats.

    The index is ``None`` for a new text, and `ORIGINAL` for a text that repeats *original*.

    Two texts are repeats if they differ only in case, punctuation, word order or light words such
    as "the". They are also repeats if the Jaccard similarity of their tokens is at least `NEAR`.
    Texts that differ in a number, an identifier, a name or a negation are never repeats.
    """
    kept = {ORIGINAL: _prepare(original)}
    repeats: list[int | None] = []
    for index, text in enumerate(texts):
        prepared = _prepare(text)
        places = (at for at, other in kept.items() if prepared.repeats(other))
        repeats.append(next(places, None))
        if repeats[-1] is None:
            kept[index] = prepared
    return repeats


def _prepare(text: str) -> _ComparedText:
    tokens = frozenset(split_terms(text))
    return _ComparedText(text, normalise_text(text), tokens - _LIGHT_WORDS or tokens)


def _fold_term(term: str) -> str:
    return fold_text(term).strip(".:'()[]")
