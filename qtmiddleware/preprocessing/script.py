"""Tells which script a text is written in."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Khmer",
    "Myanmar", "Tibetan", "Georgian", "Armenian", "Ethiopic", "Mongolian", "Bopomofo", "Cherokee", "Thaana", "Syriac",
)  # fmt: skip

KANA = frozenset({"hiragana", "katakana"})


def dominant_script(text: str) -> str:
    """The script most of *text*'s letters belong to, in lower case: ``latin``, ``cyrillic``, ``han``, ``arabic``, ...

    Kana and the Han characters beside them count together as ``japanese``. ``other`` stands for a script without a
    name here, ``""`` for a text without letters; of two scripts with the same number of letters the first one counts.
    """
    if text.isascii():
        return "latin" if any(map(str.isalpha, text)) else ""
    counts: dict[str, int] = {}
    for run in _runs().finditer(text):
        script = run.lastgroup or "other"
        counts[script] = counts.get(script, 0) + run.end() - run.start()
    kana = sum(counts.pop(script, 0) for script in KANA)
    if kana:
        counts["japanese"] = kana + counts.pop("han", 0)
    return max(counts, key=counts.__getitem__) if counts else ""


@lru_cache(1)
def _runs() -> Any:
    """A pattern for one run of letters of one script."""
    import regex

    named = "|".join(rf"(?P<{script.lower()}>[\p{{Script={script}}}&&\p{{L}}]+)" for script in SCRIPTS)
    return regex.compile(rf"{named}|(?P<other>\p{{L}})", regex.VERSION1)
