"""Estimate the number of tokens in a text without a tokenizer, and cut texts to a token limit.

The estimate is meant as an upper bound for the tokenizers of current models, whatever the text. A
test compares it with one of these tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil
from pkgutil import get_data
from typing import Final

CUT: Final = " […]"
"""The mark at the end of a text that was cut."""

# The commonest pairs of letters of English, and the commonest Chinese characters and Korean
# syllables. Tokenizers split what is rarer than these into small parts.
*_PAIRS, _SIGNS = (get_data("qtmiddleware.tools", "usual.txt") or b"").decode().split()
_USUAL_PAIR: Final = re.compile(f"(?=(?:{'|'.join(_PAIRS)}))", re.IGNORECASE)
_MARK: Final = r"!-/:-@\[-`{-~"
_BLANK: Final = r"\t-\r\x20"
# No piece is long, so that a text can be cut between any two.
_PIECE: Final = re.compile(
    r"(?P<word>[A-Z]?[a-z]{1,20})"
    r"|(?P<capitals>[A-Z]{1,20})"
    r"|(?P<number>\x20?[0-9]{1,20})"
    r"|(?P<space>\x20(?=\S))"
    rf"|(?P<run>([{_BLANK}{_MARK}])\6{{3,20}})"
    rf"|(?P<marks>[{_BLANK}]{{1,3}}|[{_MARK}]{{1,3}})"
    rf"|(?P<usual>[α-ωά-ώа-яА-Яء-ي{_SIGNS}]{{1,20}})"
    r"|(?P<letters>[\x80-\u07ffऀ-৿ก-๛\u3000-ヿ！-～]{1,20})"
    r"|(?P<other>.)",
    re.DOTALL,
)
# The tokens of a piece, and of each of its characters.
_RATES: Final = {
    "capitals": (0.5, 0.65),
    "number": (0.9, 0.5),
    "space": (0.0, 0.0),  # a part of the token of the next word
    "run": (0.5, 0.26),
    "marks": (0.5, 0.6),
    "usual": (0.0, 1.25),
    "letters": (0.0, 2.0),
}


def count_tokens(text: str) -> int:
    """Return an estimate of the number of tokens in *text*, too high rather than too low."""
    return ceil(sum(tokens for _, tokens in _measure_pieces(text)))


def _measure_pieces(text: str) -> Iterator[tuple[int, float]]:
    """Yield the end of each word, number or run of marks in *text*, and its tokens."""
    for match in _PIECE.finditer(text):
        group, piece = match.lastgroup, match[0]
        if group == "word":
            unusual = len(piece) - 1 - sum(1 for _ in _USUAL_PAIR.finditer(piece))
            tokens = max(1.0, 0.9 + 0.07 * len(piece) + 0.8 * unusual)
        elif rates := _RATES.get(group or ""):
            tokens = rates[0] + rates[1] * len(piece)
        else:
            # Tokenizers fall back to one token per byte.
            tokens = len(piece.encode("utf-8", "surrogatepass"))
        yield match.end(), tokens


def cut_text(text: str, max_tokens: int) -> str:
    """Return *text*, cut at the end of a word if it has more than *max_tokens* tokens.

    A text that was cut ends with `CUT`. If nothing fits, the result is ``""``.
    """
    # A piece that is cut within may take one token more.
    left, room, end = float(max_tokens), count_tokens(CUT) + 1, 0
    for place, tokens in _measure_pieces(text):
        left -= tokens
        if left < 0:
            break
        if left >= room:
            end = place
    else:
        return text
    kept = text[:end].rstrip()
    return kept + CUT if kept else ""
