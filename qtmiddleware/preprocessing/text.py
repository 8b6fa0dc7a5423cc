"""Fold texts, split them into words, and find their scripts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import Any, Final

APOSTROPHES: Final = str.maketrans("’ʼ＇‛", "''''")
"""Maps all apostrophes to the straight apostrophe."""

# These are compiled when they are first used: most processes never meet such a character. The
# first matches control, zero-width, bidi, soft-hyphen, tag and surrogate characters. A reader does
# not see them, but they can split words and hide text.
_UNSEEN: Final = (
    "["
    "\x00-\x08\x0e-\x1b"
    "\x7f-\x84\x86-\x9f"
    "\u00ad"
    "\u061c\u180e"
    "\u200b\u200e\u200f"
    "\u202a-\u202e"
    "\u2060-\u206f"
    "\ufeff"
    "\ufff9-\ufffb"
    "\ud800-\udfff"
    "\U000e0000-\U000e007f"
    "]"
)
# Joiners belong to the spelling between letters of Arabic and Indic scripts. Everywhere else they
# are invisible.
_JOINER: Final = "(?<![\u0600-\u0dff])[\u200c\u200d]|[\u200c\u200d](?![\u0600-\u0dff])"
_MARK: Final = re.compile(
    "["
    "\u0300-\u036f"  # accents
    "\u0591-\u05bd\u05bf"  # points of Hebrew
    "\u05c1\u05c2"
    "\u05c4\u05c5\u05c7"
    "\u0610-\u061a"  # vowel signs, hamzas and tatweel of Arabic
    "\u0640"
    "\u064b-\u065f\u0670"
    "\u06d6-\u06dc"
    "\u06df-\u06e8"
    "\u06ea-\u06ed"
    "\u093c"  # the dot of Hindi
    "\u200c\u200d"  # joiners
    "]"
)
# Letters that Arabic and Persian keyboards exchange, their digits, the nasal signs of Hindi,
# letters that people write without their stroke, dot or ligature, hyphens, and apostrophes.
_ALIKE: Final = dict(
    zip(
        "ٱىیةۀہھک٠١٢٣٤٥٦٧٨٩۰۱۲۳۴۵۶۷۸۹øØłŁđĐı‐‑‒–—−’ʼ＇‛",
        "اييههههك01234567890123456789oOlLdDi------''''",
        strict=True,
    )
) | {
    "ँ": "ं",
    "œ": "oe",
    "Œ": "OE",
    "æ": "ae",
    "Æ": "AE",
}
_IS_ALIKE: Final = f"[{''.join(_ALIKE)}]"
_OPENING: Final = "\"'“”‘’«»„`¿¡ "
_FINAL: Final = "\"'“”‘’«»„`.?!。？！…,;:、 "

_UNSPACED: Final = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007"
    "\u3040-\u30ff"  # kana
    "\u3400-\u9fff"  # Han
    "\uac00-\ud7af"  # Hangul
    "\uf900-\ufaff"
)
# A number with dots, a date, a time or a code is one word: 3.4.1, 2025-03-01, 10:30, ZP-410, 3.x.
# A range of years is two words, and so is "30-day".
_JOINT: Final = (
    r"(?!(?<=[12]\d\d\d)[-/](?:19|20)\d\d(?!\d))"
    r"(?:"
    r"(?<=\d)[.,:](?=\d)"
    r"|(?<=\d)\.(?=x(?!LETTER))"
    r"|[-/](?=[^\W\d_]{0,3}\d)"
    r"|(?<=\d)[-/](?=[^\W\d_]{1,2}(?!LETTER))"
    r")"
)
SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew",
    "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada",
    "Malayalam", "Sinhala", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan", "Georgian", "Armenian",
    "Ethiopic", "Mongolian", "Bopomofo", "Cherokee", "Thaana", "Syriac",
)  # fmt: skip
"""The scripts that `find_dominant_script` recognises, by their Unicode names."""


def normalise_characters(text: str) -> str:
    """Return *text* in Unicode's composed form (NFC), with straight apostrophes."""
    return unicodedata.normalize("NFC", text).translate(APOSTROPHES)


def lower_case(text: str) -> str:
    """Return *text* in lower case, with its accents, and with straight apostrophes."""
    if text.isascii():
        return text.lower()
    # The lower case of the Turkish İ is an i with a second dot, which no other text has.
    return normalise_characters(text).lower().replace("i\u0307", "i")


def fold_case(text: str) -> str:
    """Return *text* in lower case as the word lists have it: ß is ss."""
    return text.lower() if text.isascii() else lower_case(text).casefold()


def fold_text(text: str) -> str:
    """Return *text* as it is compared: in lower case, without accents and invisible characters.

    Apostrophes are straight, and hyphens plain. Spellings that people exchange become the same.
    """
    if text.isascii():
        return text.lower()
    return re.sub(_UNSEEN, "", unify_letters(text).casefold())


def fold_each_character(text: str) -> tuple[str, list[int]]:
    """Return *text* folded character by character, and the place of each one in *text*."""
    characters = list(map(fold_text, text))
    places = [place for place, folded in enumerate(characters) for _ in folded]
    return "".join(characters), places


def unify_letters(text: str) -> str:
    """Return *text* without accents and points. A regular expression keeps its meaning."""
    # NFKD separates each accent from its letter, so that the accents can be removed.
    letters = _MARK.sub("", unicodedata.normalize("NFKD", text))
    # A pattern skips a long text without such characters faster than a table.
    composed = unicodedata.normalize("NFC", letters)
    return re.sub(_IS_ALIKE, lambda match: _ALIKE[match[0]], composed)


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
        text = re.sub(f"{_UNSEEN}|{_JOINER}", "", text)
    return " ".join(text.split())


def shorten_text(text: str, max_length: int = 240) -> str:
    """Return *text* on one line, cut to *max_length* characters. A cut text ends in "…"."""
    line = clean_text(text)
    return line if len(line) <= max_length else line[: max_length - 1].rstrip() + "…"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """Return *number* and *noun* as text, such as ``1,200 passages``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


# A model's text is compared in several places, each time with the same question.
@lru_cache(32)
def normalise_text(text: str) -> str:
    """Return *text* in lower case, without extra spaces, outer quotes and final punctuation."""
    line = clean_text(text)
    # NFKC turns some characters into a space and an accent, so spaces are joined once more.
    folded = " ".join(fold_case(unicodedata.normalize("NFKC", line)).split())
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


@cache
def _build_letter_pattern() -> str:
    """Return a pattern for a letter or digit of a script that separates its words."""
    # Vowel signs and other marks belong to their word, though \w does not match them.
    codes = map(chr, range(0x300, 0x1A00))
    marks = "".join(code for code in codes if unicodedata.category(code)[0] == "M")
    return rf"(?:[^\W_{_UNSPACED}]|[{marks}])"


@cache
def _compile_word_pattern(is_ascii: bool) -> re.Pattern[str]:
    """Return a pattern for one word, or for a run of characters in an unspaced script."""
    # For ASCII texts alone, the pattern is quick to compile.
    letter = r"[^\W_]" if is_ascii else _build_letter_pattern()
    piece = rf"{letter}++(?:_++{letter}++)*+"
    word = rf"{piece}(?:{_JOINT.replace('LETTER', letter)}{piece}|['’](?![\d_]){piece})*+"
    return re.compile(word if is_ascii else rf"[{_UNSPACED}]++|{word}")


def find_words(text: str) -> Iterator[re.Match[str]]:
    """Return the words of *text*, in order. A code, a number or a date is one word."""
    return _compile_word_pattern(text.isascii()).finditer(text)


def split_words(text: str) -> list[str]:
    """Return the words of *text* in their order, with their capitals and accents."""
    return _compile_word_pattern(text.isascii()).findall(text)


def fold_words(text: str) -> list[str]:
    """Return the words of *text* in their order, in lower case and without accents."""
    return split_words(fold_text(text))


@cache
def compile_term_pattern() -> re.Pattern[str]:
    """Return a pattern for a run of characters of a folded text, as passages are searched.

    Unlike a word, a run ends at a hyphen, a slash or an underscore.
    """
    letter = _build_letter_pattern()
    return re.compile(rf"[{_UNSPACED}]++|{letter}++(?:(?<=\d)[.,:](?=\d){letter}++)*+")


def split_scripts(text: str) -> list[str]:
    """Return *text* cut where a script without spaces begins or ends: 2026|年の健康|ChatGPT."""
    return [text] if text.isascii() else [*filter(None, re.split(f"([{_UNSPACED}]+)", text))]


def is_unspaced(word: str) -> bool:
    """Return whether *word* is of a script whose words are not separated, such as Chinese."""
    return not word.isascii() and re.match(f"[{_UNSPACED}]", word) is not None


def split_terms(text: str) -> list[str]:
    """Return the words of *text* as they are compared: folded, and cut at apostrophes.

    In scripts without spaces between words, every two neighbouring characters are a word.
    """
    words = fold_words(text)
    if text.isascii() and "'" not in text:
        return words
    terms: list[str] = []
    for word in words:
        terms += word.split("'") if "'" in word else split_pairs(word)
    return terms


def split_pairs(word: str) -> Sequence[str]:
    """Return every two neighbouring characters of *word*, if its script separates no words."""
    if not is_unspaced(word):
        return (word,)
    return [word[at : at + 2] for at in range(max(1, len(word) - 1))]


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
    # Only Japanese mixes kana with Han characters.
    if kana := counts.pop("hiragana", 0) + counts.pop("katakana", 0):
        counts["japanese"] = kana + counts.pop("han", 0)
    return max(counts, key=counts.__getitem__) if counts else ""


@cache
def _compile_script_pattern() -> Any:
    import regex

    named = "|".join(
        rf"(?P<{script.lower()}>[\p{{Script={script}}}&&\p{{L}}]+)" for script in SCRIPTS
    )
    return regex.compile(rf"{named}|(?P<other>\p{{L}})", regex.VERSION1)
