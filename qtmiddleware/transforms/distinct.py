"""Find texts that repeat an earlier text, so that they are not searched for again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_text, normalise_text, split_terms, split_words
from qtmiddleware.transforms.span_matching import is_negated

NEAR: Final = 0.9
"""The minimum Jaccard similarity of two texts' tokens for the texts to count as repeats."""

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
    r"(?<![^\s\"“”«»„?!,;])[^\s\"“”«»„?!,;]*(?:[\d_@#/\\+$]|::|\w\.\w|[a-z][A-Z]|\w-\w)[^\s\"“”«»„?!,;]*|\b[A-Z]{2,}\b"
)


class _ComparedText(NamedTuple):
    """A text, prepared for comparison with other texts.

    Attributes:
        text: The unchanged text.
        normal: The normal form of the text, from `normalise_text`.
        tokens: The tokens except light words such as "the", or all tokens if all are light words.
    """

    text: str
    normal: str
    tokens: frozenset[str]

    @property
    def exact_terms(self) -> frozenset[str]:
        """The numbers, identifiers and acronyms of the text, in lower case without accents."""
        return frozenset(
            fold_text(term).strip(".:'()[]") for term in _MARKED_TERM.findall(self.text)
        )

    @property
    def names(self) -> frozenset[str]:
        """The capitalised words after the first word, in lower case without accents."""
        return frozenset(
            fold_text(word) for word in split_words(self.text)[1:] if word[0].isupper()
        )


ORIGINAL: Final = -1
"""The index that `find_repeats` returns for a text that repeats the original text."""


def find_repeats(texts: Sequence[str], *, original: str) -> list[int | None]:
    """Return, for each text, the index of the earlier text that it repeats.

    The index is ``None`` for a new text, and `ORIGINAL` for a text that repeats *original*.

    Two texts are repeats if they differ only in case, punctuation, word order or light words such
    as "the". They are also repeats if the Jaccard similarity of their tokens is at least `NEAR`.
    Texts that differ in a number, an identifier, a name or a negation are never repeats.
    """
    kept = [(ORIGINAL, _prepare_comparison(original))]
    repeats: list[int | None] = []
    for index, text in enumerate(texts):
        candidate = _prepare_comparison(text)
        repeated = next(
            (place for place, kept_text in kept if _are_repeats(candidate, kept_text)), None
        )
        repeats.append(repeated)
        if repeated is None:
            kept.append((index, candidate))
    return repeats


def _prepare_comparison(text: str) -> _ComparedText:
    """Return *text* with its normal form and its tokens, for comparison with other texts."""
    tokens = frozenset(split_terms(text))
    return _ComparedText(text, normalise_text(text), tokens - _LIGHT_WORDS or tokens)


def _are_repeats(left: _ComparedText, right: _ComparedText) -> bool:
    """Return whether two texts repeat each other, as defined in `find_repeats`."""
    if left.normal == right.normal:
        return True
    fewer, more = sorted((len(left.tokens), len(right.tokens)))
    # With far fewer tokens in one text the overlap cannot be high enough.
    if fewer < NEAR * more:
        return False
    common = len(left.tokens & right.tokens)
    if not common or common < NEAR * (len(left.tokens) + len(right.tokens) - common):
        return False
    if left.exact_terms != right.exact_terms or is_negated(left.text) != is_negated(right.text):
        return False
    # The few tokens that differ may not be names: they would ask for something else.
    return not (left.tokens ^ right.tokens) & (left.names | right.names)
