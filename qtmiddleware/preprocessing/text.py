"""Normalise texts, split them into words, and find their scripts."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any, Final

APOSTROPHES: Final = str.maketrans("’ʼ＇‛", "''''")
"""Maps all apostrophes to the straight apostrophe."""

# These three are compiled when they are first used: most processes never meet such a character. The
# first matches control, zero-width, bidi, soft-hyphen, tag and surrogate characters. A reader does
# not see them, but they can hide text.
_UNSEEN: Final = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# Joiners belong to the spelling between letters of Arabic and Indic scripts. Everywhere else they
# are invisible.
_JOINER: Final = "(?<![\u0600-\u0dff])[\u200c\u200d]|[\u200c\u200d](?![\u0600-\u0dff])"
_CJK_RUN: Final = "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_OPENING: Final = "\"'“”‘’«»„`¿¡ "
_FINAL: Final = "\"'“”‘’«»„`.?!。？！…,;:、 "
_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew",
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada",
    "Malayalam", "Sinhala", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Georgian", "Armenian",
    "Ethiopic", "Mongolian", "Bopomofo", "Cherokee", "Thaana", "Syriac",
)  # fmt: skip
"""The scripts that `find_dominant_script` recognises, by their Unicode names."""

KANA = frozenset({"hiragana", "katakana"})
"""The two kana scripts. Only Japanese mixes kana with Han characters."""


def normalise_characters(word: str) -> str:
    """Return *word* in Unicode's composed form (NFC), with straight apostrophes."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", word).translate(APOSTROPHES)


def fold_case(word: str) -> str:
    """Return *word* in lower case and composed form (NFC), with straight apostrophes."""
    return normalise_characters(word).casefold()


def fold_accents(text: str) -> str:
    """Return *text* in lower case, without accents, with straight apostrophes and plain hyphens."""
    if text.isascii():
        return text.lower()
    # NFKD separates each accent from its letter, so that the accents can be removed.
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    composed = unicodedata.normalize("NFC", _ACCENT.sub("", decomposed))
    return re.sub("[‐‑‒–—−]", "-", composed.translate(APOSTROPHES))


def clean_text(text: str) -> str:
    """Return *text* on one line, with single spaces and without invisible characters."""
    line = " ".join(text.split())
    # Most texts end here: a printable ASCII text has no invisible characters.
    if line.isascii() and line.isprintable():
        return line
    previous = ""
    # Removing a character may leave a joiner at an edge, where it is invisible.
    while previous != text:
        previous = text
        text = re.sub(_JOINER, "", re.sub(_UNSEEN, "", text))
    return " ".join(text.split())


def shorten_text(text: str, max_length: int = 240) -> str:
    """Return *text* on one line, cut to *max_length* characters. A cut text ends in "…"."""
    line = clean_text(text)
    return line if len(line) <= max_length else line[: max_length - 1].rstrip() + "…"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return *number* and *noun* as text, such as ``1,200 passages``.

    Args:
        number: The number, written with thousands separators.
        noun: The noun in the singular.
        plural: The noun in the plural. Default: *noun* with an "s".
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def normalise_text(text: str) -> str:
    """Return *text* in lower case, without extra spaces, outer quotes and final punctuation.

    Texts that differ only in these details have the same result.
    """
    line = clean_text(text)
    # NFKC turns some characters into a space and an accent, so spaces are joined once more.
    folded = (
        line.lower()
        if line.isascii()
        else " ".join(unicodedata.normalize("NFKC", line).casefold().split())
    )
    return folded.lstrip(_OPENING).rstrip(_FINAL)


def cut_at_word(text: str, max_length: int) -> str:
    """Cut *text* to at most *max_length* characters, if possible after a whole word.

    If the last whole word ends in the first half of *max_length*, the cut is inside the next word.
    """
    if len(text) <= max_length:
        return text
    head = text[: max_length + 1]
    at_word = head.rpartition(" ")[0]
    return at_word if len(at_word) > max_length // 2 else text[:max_length]


def split_words(text: str) -> list[str]:
    """Return the words of *text* in their order, with their capitals and accents."""
    return _WORD.findall(text)


def fold_words(text: str) -> list[str]:
    """Return the words of *text* in their order, in lower case and without accents."""
    return split_words(fold_accents(text))


def split_tokens(text: str) -> list[str]:
    """Return the words of *text* in lower case, without accents and without a final 's.

    Chinese and Japanese have no spaces between words, so a run of their characters becomes
    overlapping pairs of characters.
    """
    folded = fold_accents(text)
    words = split_words(folded)
    if folded.isascii() or not re.search(_CJK_RUN, folded):
        return [word.removesuffix("'s") for word in words] if "'s" in folded else words
    tokens = []
    for word in words:
        if not re.search(_CJK_RUN, word):
            tokens.append(word.removesuffix("'s"))
        elif len(word) == 1:
            tokens.append(word)
        else:
            tokens.extend(word[start : start + 2] for start in range(len(word) - 1))
    return tokens


def is_blank(text: str) -> bool:
    """Return whether *text* contains neither letters nor digits."""
    return not any(map(str.isalnum, text))


def find_dominant_script(text: str) -> str:
    """Return the script of most letters in *text*, such as ``latin``, ``han`` or ``arabic``.

    - The result is ``""`` if *text* has no letters, and ``other`` if the script is not in
      `SCRIPTS`.
    - If *text* contains kana, the kana and Han characters count together as ``japanese``.
    - If two scripts have the same number of letters, the first in *text* usually wins.
    """
    if text.isascii():
        return "latin" if any(map(str.isalpha, text)) else ""
    counts: dict[str, int] = {}
    for run in _compile_script_pattern().finditer(text):
        script = run.lastgroup or "other"
        counts[script] = counts.get(script, 0) + run.end() - run.start()
    kana = sum(counts.pop(script, 0) for script in KANA)
    if kana:
        counts["japanese"] = kana + counts.pop("han", 0)
    return max(counts, key=counts.__getitem__) if counts else ""


@cache
def _compile_script_pattern() -> Any:
    """Return a pattern for a run of letters in one script, with a named group per script."""
    import regex

    named = "|".join(
        rf"(?P<{script.lower()}>[\p{{Script={script}}}&&\p{{L}}]+)" for script in SCRIPTS
    )
    return regex.compile(rf"{named}|(?P<other>\p{{L}})", regex.VERSION1)
