"""Plain facts about a text: its clean form, its folded form, its words and tokens, its script."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any, Final

APOSTROPHES: Final = str.maketrans("’ʼ＇‛", "''''")
"""Every mark that is written for an apostrophe, and the straight one all of them become."""

# These three are compiled when they are first used: most processes never meet such a character.
# Control, zero-width, bidi, soft-hyphen, tag and surrogate characters: nothing a reader sees, much
# that can hide.
_UNSEEN: Final = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# Joiners are part of the spelling between letters of Arabic and Indic scripts, and invisible
# everywhere else.
_JOINER: Final = "(?<![\u0600-\u0dff])[\u200c\u200d]|[\u200c\u200d](?![\u0600-\u0dff])"
_CJK: Final = "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
_ACCENT: Final = re.compile("[\u0300-\u036f]")
_OPENING: Final = "\"'“”‘’«»„`¿¡ "
_FINAL: Final = "\"'“”‘’«»„`.?!。？！…,;:、 "
_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W\d_]+)*")
SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Khmer",
    "Myanmar", "Tibetan", "Georgian", "Armenian", "Ethiopic", "Mongolian", "Bopomofo", "Cherokee", "Thaana", "Syriac",
)  # fmt: skip

KANA = frozenset({"hiragana", "katakana"})


def compose(word: str) -> str:
    """*word* in composed form with straight apostrophes, its case untouched."""
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", word).translate(APOSTROPHES)


def fold(word: str) -> str:
    """*word* as word lists hold it: composed, with straight apostrophes and without case."""
    return compose(word).casefold()


def fold_accents(text: str) -> str:
    """*text* without case and accents, with one kind of apostrophe and hyphen."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    composed = unicodedata.normalize("NFC", _ACCENT.sub("", decomposed))
    return re.sub("[‐‑‒–—−]", "-", composed.translate(APOSTROPHES))


def clean(text: str) -> str:
    """*text* on one line, with single spaces and no character that cannot be seen."""
    spaced = " ".join(text.split())
    if spaced.isascii() and spaced.isprintable():
        return spaced
    previous = ""
    # Taking a character out may leave a joiner that stands at an edge now.
    while previous != text:
        previous, text = text, re.sub(_JOINER, "", re.sub(_UNSEEN, "", text))
    return " ".join(text.split())


def shorten(text: str, length: int = 240) -> str:
    """Return the start of *text* on one line, in at most *length* characters, the last of them "…" if it is cut."""
    line = clean(text)
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def normalise(text: str) -> str:
    """What two spellings of one question have in common: no case, no spacing, no outer quotes, no final punctuation."""
    shown = clean(text)
    folded = (
        shown.lower()
        if shown.isascii()
        else " ".join(unicodedata.normalize("NFKC", shown).casefold().split())
    )
    return folded.lstrip(_OPENING).rstrip(_FINAL)


def cut_at_word(text: str, limit: int) -> str:
    """*text* if it has at most *limit* characters, else as many whole words of it as fit."""
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    at_word = head.rpartition(" ")[0]
    return at_word if len(at_word) > limit // 2 else text[:limit]


def split_words(text: str) -> list[str]:
    """The words of *text* in their order, as they are written."""
    return _WORD.findall(text)


def find_first_word(text: str) -> str:
    """The first word of *text* in lower case, ``""`` where it has none."""
    match = _WORD.search(text)
    return match.group().lower() if match else ""


def fold_words(text: str) -> list[str]:
    """The words of *text* in their order, without case and accents."""
    return split_words(fold_accents(text))


def split_tokens(text: str) -> list[str]:
    """The folded words of *text*; in scripts without spaces, the pairs of neighbouring characters."""
    plain = fold_accents(text)
    words = split_words(plain)
    if plain.isascii() or not re.search(_CJK, plain):
        return [word.removesuffix("'s") for word in words] if "'s" in plain else words
    tokens = []
    for word in words:
        if not re.search(_CJK, word):
            tokens.append(word.removesuffix("'s"))
        elif len(word) == 1:
            tokens.append(word)
        else:
            tokens.extend(word[i : i + 2] for i in range(len(word) - 1))
    return tokens


def is_blank(text: str) -> bool:
    """Whether *text* holds no letter and no digit."""
    return not any(map(str.isalnum, text))


def dominant_script(text: str) -> str:
    """The script most of *text*'s letters belong to, in lower case: ``latin``, ``cyrillic``, ``han``, ``arabic``, ...

    Kana and the Han characters beside them count together as ``japanese``. ``other`` stands for a
    script without a name here, ``""`` for a text without letters; of two scripts with the same
    number of letters the first one counts.
    """
    if text.isascii():
        return "latin" if any(map(str.isalpha, text)) else ""
    counts: dict[str, int] = {}
    for run in _script_pattern().finditer(text):
        script = run.lastgroup or "other"
        counts[script] = counts.get(script, 0) + run.end() - run.start()
    kana = sum(counts.pop(script, 0) for script in KANA)
    if kana:
        counts["japanese"] = kana + counts.pop("han", 0)
    return max(counts, key=counts.__getitem__) if counts else ""


@cache
def _script_pattern() -> Any:
    """A pattern for one run of letters of one script."""
    import regex

    named = "|".join(
        rf"(?P<{script.lower()}>[\p{{Script={script}}}&&\p{{L}}]+)" for script in SCRIPTS
    )
    return regex.compile(rf"{named}|(?P<other>\p{{L}})", regex.VERSION1)
