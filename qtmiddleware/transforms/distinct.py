"""Which of several texts are worth a search of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
_MARKED: Final = re.compile(
    r"[^\s\"“”«»„?!,;]*(?:[\d_@#/\\+$]|::|\w\.\w|[a-z][A-Z]|\w-\w)[^\s\"“”«»„?!,;]*|\b[A-Z]{2,}\b"
)


@dataclass(frozen=True, slots=True)
class _Face:
    """What is compared of a text: its normal form, its tokens, the marked terms and names in it, its denial."""

    normal: str
    tokens: frozenset[str]
    marked: frozenset[str]
    names: frozenset[str]
    is_negated: bool


def distinct(texts: Sequence[str], *, original: str, near: float = NEAR) -> list[int]:
    """The indexes of *texts* to search, in their order; of near-duplicates the first stays, *original* before all.

    Near-duplicates are texts that differ in case, punctuation and light words alone, in the order of their words, or in
    so little that their tokens overlap by *near* or more. Texts that differ in a number, an identifier, a name or a
    denial never are.
    """
    seen = [_face(original)]
    kept = []
    for index, text in enumerate(texts):
        face = _face(text)
        if not any(_are_near(face, other, near) for other in seen):
            seen.append(face)
            kept.append(index)
    return kept


def _face(text: str) -> _Face:
    weighty = frozenset(token for token in tokens(text) if token not in _LIGHT)
    marked = frozenset(folded(term).strip(".:'()[]") for term in _MARKED.findall(text))
    # The first word has a capital in any case, so it tells nothing.
    names = frozenset(folded(word) for word in words(text)[1:] if word[0].isupper())
    return _Face(normal(text), weighty or frozenset(tokens(text)), marked, names, is_negated(text))


def _are_near(one: _Face, other: _Face, near: float) -> bool:
    if one.normal == other.normal:
        return True
    if one.marked != other.marked or one.is_negated != other.is_negated or not one.tokens:
        return False
    if one.tokens == other.tokens:
        return True
    apart = one.tokens ^ other.tokens
    if apart & (one.names | other.names):
        return False
    return len(one.tokens & other.tokens) / len(one.tokens | other.tokens) >= near
