"""Which of several texts repeat one another, and so are not worth a search of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_accents, normalise, split_tokens, split_words
from qtmiddleware.transforms.span_matching import is_negated

NEAR: Final = 0.9
"""Token overlap (Jaccard) from which on two texts are taken for one."""

# Words that hardly move an embedding. Question words are not among them: who and when ask for
# different things.
_LIGHT: Final = frozenset(
    """
    a an the is are was were be been being do does did have has had of to in on at by for with and or please
    der die das ein eine ist sind le la les un une des du est sont el los las una es son de en il lo gli o os as um uma
    """.split()  # noqa: SIM905
)
# Looked for from the beginning of a word alone, or a long word would be read from each of its
# letters.
_MARKED: Final = re.compile(
    r"(?<![^\s\"“”«»„?!,;])[^\s\"“”«»„?!,;]*(?:[\d_@#/\\+$]|::|\w\.\w|[a-z][A-Z]|\w-\w)[^\s\"“”«»„?!,;]*|\b[A-Z]{2,}\b"
)


class _Compared(NamedTuple):
    """What is compared of a *text*: its normal form and its tokens; the rest only of texts that look near."""

    text: str
    normal: str
    tokens: frozenset[str]

    @property
    def marked(self) -> frozenset[str]:
        """Its numbers, identifiers and acronyms."""
        return frozenset(fold_accents(term).strip(".:'()[]") for term in _MARKED.findall(self.text))

    @property
    def names(self) -> frozenset[str]:
        """Its words with a capital; the first has one in any case, so it tells nothing."""
        return frozenset(
            fold_accents(word) for word in split_words(self.text)[1:] if word[0].isupper()
        )


ORIGINAL: Final = -1
"""What a text repeats that says the same as the original."""


def find_repeats(texts: Sequence[str], *, original: str) -> list[int | None]:
    """Returns for each of *texts* the index of the one before it that it repeats, `ORIGINAL`, or ``None``.

    Near-duplicates are texts that differ in case, punctuation and light words alone, in the order
    of their words, or in so little that their tokens overlap by `NEAR` or more. Texts that differ
    in a number, an identifier, a name or a denial never are.
    """
    kept = [(ORIGINAL, _compare(original))]
    repeats: list[int | None] = []
    for index, text in enumerate(texts):
        this = _compare(text)
        repeated = next((place for place, other in kept if _are_near(this, other)), None)
        repeats.append(repeated)
        if repeated is None:
            kept.append((index, this))
    return repeats


def _compare(text: str) -> _Compared:
    tokens = frozenset(split_tokens(text))
    return _Compared(text, normalise(text), tokens - _LIGHT or tokens)


def _are_near(one: _Compared, other: _Compared) -> bool:
    if one.normal == other.normal:
        return True
    fewer, more = sorted((len(one.tokens), len(other.tokens)))
    if fewer < NEAR * more:
        return False
    common = len(one.tokens & other.tokens)
    if not common or common < NEAR * (len(one.tokens) + len(other.tokens) - common):
        return False
    if one.marked != other.marked or is_negated(one.text) != is_negated(other.text):
        return False
    return not (one.tokens ^ other.tokens) & (one.names | other.names)
