"""Which of several texts are worth a search of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.transforms.negation import is_negated
from qtmiddleware.transforms.wording import folded, listed, normal, tokens, words

NEAR: Final = 0.9
"""Token overlap (Jaccard) from which on two texts are taken for one."""

# Words that hardly move an embedding. Question words are not among them: who and when ask for different things.
_LIGHT: Final = listed(
    """
    a an the is are was were be been being do does did have has had of to in on at by for with and or please
    der die das ein eine ist sind le la les un une des du est sont el los las una es son de en il lo gli o os as um uma
    """
)
# Looked for from the beginning of a word alone, or a long word would be read from each of its letters.
_MARKED: Final = re.compile(
    r"(?<![^\s\"“”«»„?!,;])[^\s\"“”«»„?!,;]*(?:[\d_@#/\\+$]|::|\w\.\w|[a-z][A-Z]|\w-\w)[^\s\"“”«»„?!,;]*|\b[A-Z]{2,}\b"
)


class _Face:
    """What is compared of a text: its normal form and its tokens; the rest only of texts that look near."""

    __slots__ = ("count", "normal", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.normal = normal(text)
        every = frozenset(tokens(text))
        self.tokens = every - _LIGHT or every
        self.count = len(self.tokens)

    @property
    def marked(self) -> frozenset[str]:
        """Its numbers, identifiers and acronyms."""
        return frozenset(folded(term).strip(".:'()[]") for term in _MARKED.findall(self.text))

    @property
    def names(self) -> frozenset[str]:
        """Its words with a capital; the first has one in any case, so it tells nothing."""
        return frozenset(folded(word) for word in words(self.text)[1:] if word[0].isupper())


ORIGINAL: Final = -1
"""What a text repeats that says the same as the original."""


def distinct(texts: Sequence[str], *, original: str, near: float = NEAR) -> list[int]:
    """The indexes of *texts* to search, in their order: those that repeat no other (`find_repeats`)."""
    return [index for index, other in enumerate(find_repeats(texts, original=original, near=near)) if other is None]


def find_repeats(texts: Sequence[str], *, original: str, near: float = NEAR) -> list[int | None]:
    """For each of *texts* the index of the earlier one it repeats, `ORIGINAL`, or ``None`` where it repeats none.

    Near-duplicates are texts that differ in case, punctuation and light words alone, in the order of their words, or in
    so little that their tokens overlap by *near* or more. Texts that differ in a number, an identifier, a name or a
    denial never are.
    """
    kept = [(ORIGINAL, _Face(original))]
    found: list[int | None] = []
    for index, text in enumerate(texts):
        face = _Face(text)
        repeated = next((place for place, other in kept if _are_near(face, other, near)), None)
        found.append(repeated)
        if repeated is None:
            kept.append((index, face))
    return found


def _are_near(one: _Face, other: _Face, near: float) -> bool:
    if one.normal == other.normal:
        return True
    few, many = (one.count, other.count) if one.count < other.count else (other.count, one.count)
    # Where not even every token of the shorter text in common would be enough, none need be compared.
    if few < near * many:
        return False
    common = len(one.tokens & other.tokens)
    if not common or common < near * (few + many - common):
        return False
    if one.marked != other.marked or is_negated(one.text) != is_negated(other.text):
        return False
    return one.tokens == other.tokens or not (one.tokens ^ other.tokens) & (one.names | other.names)
