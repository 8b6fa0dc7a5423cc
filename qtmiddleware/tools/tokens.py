"""Estimate the number of tokens in a text without a tokenizer, and cut texts to a token limit.

For the tokenizers of current models, the estimate should be an upper bound. This applies to prose,
code and encoded data. A test compares the estimate with one of these tokenizers.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import Any, Final

from qtmiddleware.preprocessing.sentences import compile_sentence_end_pattern

CUT: Final = " […]"
"""The mark at the end of a text that was cut."""
_LOOK_AHEAD: Final = 64
"""The number of characters to read after an offset to see whether a sentence ends there."""
_LEAST_SHARE: Final = 0.5
"""A cut at the end of a sentence or word must keep this fraction of the text that fits."""

# What looks like a key or an encoded file, a word, a number, white space, and letters by how many
# of them make a token.
_PIECES: Final = r"""
    (?P<code>(?=\S*[0-9])(?=\S*[A-Z])(?=\S*[a-z])[A-Za-z0-9+/=_\-]{32,})
    |(?P<word>[A-Z]?[a-z]+|[A-Z]+)
    |(?P<digits>[0-9]+)
    |(?P<space>\s+)
    |(?P<latin>[\p{Latin}\p{M}]+)
    |(?P<cyrillic>\p{Cyrillic}+)
    |(?P<marks>[\x21-\x7e]+)
    |(?P<letters>[[\p{Greek}\p{Hebrew}\p{Arabic}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Devanagari}\p{Bengali}
        \p{Thai}\p{Common}]--[\p{So}\p{Cn}\p{Co}]]+)
    |(?P<other>.)
"""

_RATES: Final = {
    "code": (0.0, 0.9),
    "digits": (0.0, 0.7),
    "latin": (0.0, 1.2),
    "cyrillic": (0.5, 0.55),
    "marks": (0.4, 0.5),
    "letters": (0.0, 1.3),
}
"""For each type of piece that may be cut anywhere: the tokens per piece and per character."""


@cache
def _compile_piece_pattern() -> Any:
    """Return the pattern that splits a text into words, numbers, spaces and other pieces.

    The pattern is compiled once, on the first call.
    """
    import regex

    return regex.compile(_PIECES, regex.VERSION1 | regex.VERBOSE | regex.DOTALL)


def count_tokens(text: str) -> int:
    """Return an estimate of the number of tokens in *text*, too high rather than too low."""
    return ceil(
        sum(
            _estimate_token_count(piece.lastgroup, piece[0])
            for piece in _compile_piece_pattern().finditer(text)
        )
    )


def _estimate_token_count(group_name: str, piece: str) -> float:
    """Return an estimate of the number of tokens in *piece*.

    *group_name* is the group of `_PIECES` that matched the piece, such as ``word``.
    """
    length = len(piece)
    if group_name == "word":
        if length > 1 and piece.isupper():
            return 0.2 + 0.8 * length
        return 1 if length <= 6 else 2 if length <= 9 else ceil(length / 3)
    if group_name == "space":
        # A single space belongs to the token of the next word.
        return 0 if piece == " " else 0.5 + length / 8
    if group_name == "other":
        # Tokenizers fall back to one token per byte, for example for rare emoji.
        return len(piece.encode("utf-8", "surrogatepass"))
    fixed, each = _RATES[group_name]
    return fixed + each * length


def cut_text(text: str, max_tokens: int) -> str:
    """Return *text*, cut at the end of a sentence if it has more than *max_tokens* tokens.

    A text that fits is returned unchanged. A text that was cut ends with `CUT`. If no sentence ends
    in the second half of the part that fits, the cut is at the end of a word if possible. If
    nothing fits, the result is ``""``.
    """
    if (end := _count_fitting_chars(text, max_tokens)) == len(text):
        return text
    # The mark of the cut needs room too.
    end = _count_fitting_chars(text, max_tokens - count_tokens(CUT))
    while kept := _cut_at_boundary(text, end):
        if count_tokens(kept + CUT) <= max_tokens:
            return kept + CUT
        # Half of an encoded file or a word may count more than its share of the whole.
        end = len(kept) - 1
    return ""


def _cut_at_boundary(text: str, end: int) -> str:
    """Return the beginning of *text*, at most *end* characters, up to the end of a sentence.

    If no sentence ends in the second half of these characters, the cut is at the end of a word if
    possible, or else at *end*.
    """
    least = end * _LEAST_SHARE
    # The characters after a full stop show whether a sentence ends there.
    matches = compile_sentence_end_pattern().finditer(text[: max(0, end) + _LOOK_AHEAD])
    sentences = [place for match in matches if least <= (place := match.end()) <= end]
    if sentences:
        end = sentences[-1]
    elif end > 0 and text[end - 1 : end + 1].isalnum():
        space = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
        end = space if space >= least else end
    return text[: max(0, end)].rstrip()


def _count_fitting_chars(text: str, max_tokens: float) -> int:
    """Return how many characters of *text* fit into *max_tokens* tokens."""
    end = 0
    for piece in _compile_piece_pattern().finditer(text):
        size = _estimate_token_count(piece.lastgroup, piece[0])
        if max_tokens < size:
            fixed, each = _RATES.get(piece.lastgroup, (max_tokens, 1.0))
            return end + max(0, int((max_tokens - fixed) / each))
        max_tokens -= size
        end = piece.end()
    return end
