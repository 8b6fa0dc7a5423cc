"""Answers the question most people type, a question word and plain words behind it, in one go.

A query is answered here only if the plain way would answer the same; for everything else the answer is ``None``. The
function is a closure over its tables, for a call to another function costs as much as looking through all the words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import filterfalse

from qtmiddleware.preprocess.base import BLANKED, SHAPE, SIMPLE, SMALL, Leads, Markers, Rules

Swift = Callable[[str], tuple[str, str] | None]
"""The keywords of a query and their language."""

Entry = tuple[
    Callable[[object], bool],
    Callable[[Iterable[object]], bool],
    Callable[[Iterable[object]], bool],
    Mapping[str, Collection[str] | None],
    bool,
    str,
]
"""What is needed behind one first word: is it a stop word, are none alarming, are none moving, how lead-ins go on,
whether the first word goes, and the language."""


def compiled(all_rules: Mapping[str, Rules], known: Markers, default: str) -> Swift:
    """The function that answers plain questions with these word lists; *default* is the language without a starter."""
    entries = _entries(all_rules, known)
    leads = all_rules[default].leads
    plain_entry = _entry(all_rules[default], default, {}, False)
    leading = frozenset(form for rules in all_rules.values() for first in rules.all_leads for form in _forms(first))
    loads = _loads(known, default)
    no_foreign, no_sure = known.foreign.isdisjoint, known.sure.isdisjoint

    def answer(text: str) -> tuple[str, str] | None:
        if not text.isascii():
            return None
        raw = text.encode()
        if cased := raw.translate(None, SMALL) != b"":
            if raw.translate(None, SIMPLE):
                return None
            shape = raw.translate(SHAPE).decode()
            if "A" in shape[1:] and ("aA" in shape or "AA" in shape):
                return None
            if "." in shape[:-1] and (".a" in shape or ".A" in shape):
                return None
            text = raw.translate(BLANKED).decode()
        words = text.split()
        if len(words) < 3:
            return None
        first = words[0]
        entry = entries.get(first)
        if entry is None:
            if first in leads or not first.islower() or no_sure(words) or not no_foreign(words):
                return None
            entry = plain_entry
        is_stop, none_alarming, none_moving, seconds, goes, language = entry
        if words[1] in seconds:
            thirds = seconds[words[1]]
            if thirds is None or words[2] in thirds:
                return None
        if goes:
            del words[0]
        kept = list(filterfalse(is_stop, words))
        if not kept or kept[0] in leading or not none_alarming(kept):
            return None
        result = " ".join(kept).lower() if cased else " ".join(kept)
        # One weak word of another language is not enough to take the keywords for that language.
        if none_moving(kept) or (language == default and sum(map(loads.get, filter(loads.__contains__, kept))) < 2):
            return result, language
        return None

    return answer
