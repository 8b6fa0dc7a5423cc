"""Answers the question most people type, a question word and plain words behind it, in one go.

A query is answered here only where the plain way would answer the same; for all others the answer is ``None``. The
function is a closure over its tables, for every further call would cost as much as looking through all the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import filterfalse, pairwise
from typing import NamedTuple

from qtmiddleware.preprocessing.base import BLANKED, SHAPE, SIMPLE, SMALL, Leads, Lexicon, Markers, Rules

Swift = Callable[[object], tuple[str, str] | None]
"""The keywords of a query and their language."""


class Entry(NamedTuple):
    """What is needed behind one first word, as bound methods of the tables."""

    is_stop: Callable[[object], bool]
    none_odd: Callable[[Iterable[object]], bool]
    seconds: Mapping[str, frozenset[str] | None]
    goes: bool
    rules: Rules


def compiled(  # noqa: C901 - one function on purpose: see above
    all_rules: Mapping[str, Rules],
    known: Markers,
    default: str,
    begins: Callable[[Sequence[str], Leads], bool],
    after_lead_in: Callable[[list[str], Lexicon], list[str]],
) -> Swift:
    """The function that answers plain questions with these word lists.

    *default* is the language of a question without a starter; *begins* tells whether words may begin with a lead-in and
    *after_lead_in* takes it away.
    """
    entries = {word: _entry(all_rules[code], word) for word, code in known.starters.items()}
    default_rules = all_rules[default]
    open_entry = _entry(default_rules, "")
    own_leads, all_leads = default_rules.leads, default_rules.all_leads
    no_foreign, no_sure = _forms(known.foreign).isdisjoint, known.sure.isdisjoint
    loads = _loads(known, default)

    def answer(text: object) -> tuple[str, str] | None:  # noqa: C901
        if not isinstance(text, str) or not text.isascii():
            return None
        raw = text.encode()
        if cased := raw.translate(None, SMALL) != b"":
            if raw.translate(None, SIMPLE):
                return None
            shape = raw.translate(SHAPE).decode()
            if "aA" in shape or "AA" in shape:
                return None
            if shape.find(".", 0, -1) >= 0 and (".a" in shape or ".A" in shape):
                return None
            text = raw.translate(BLANKED).decode()
        words = text.split()
        if len(words) < 3:
            return None
        first = words[0]
        if cased:
            words[0] = first = first.lower()
        entry = entries.get(first)
        if entry is None:
            if first in known.openers or no_sure(words) or not no_foreign(words):
                return None
            if first in own_leads and begins(words, own_leads):
                words = after_lead_in(words, default_rules.lexicon)
                if len(words) < 3:
                    return None
            entry = open_entry
        is_stop, none_odd, seconds, goes, rules = entry
        if words[1] in seconds:
            thirds = seconds[words[1]]
            if thirds is None or words[2] in thirds:
                words = after_lead_in(words, rules.lexicon)
        if goes and words and words[0] is first:
            del words[0]
        kept = list(filterfalse(is_stop, words))
        if not none_odd(kept) and not settle(kept, words, first, rules):
            return None
        if not kept or (kept[0] in all_leads and begins(kept, all_leads)):
            return None
        return (" ".join(kept).lower() if cased else " ".join(kept)), rules.lexicon.language

    def settle(kept: list[str], words: list[str], first: str, rules: Rules) -> bool:
        """Take the last stop words out of *kept*; whether its odd words are harmless."""
        if not rules.telling.isdisjoint(kept):
            keys = [first, *map(str.lower, words[words[0] == first :])]
            if not rules.pairs.isdisjoint(pairwise(keys)):
                return False
            kept[:] = filterfalse(rules.stop.__contains__, kept)
        kept[:] = filterfalse(rules.title_articles.__contains__, kept)
        if not rules.capitals.isdisjoint(kept) or not rules.lexicon.closings.isdisjoint(map(str.lower, kept)):
            return False
        # One weak word of another language is not enough to take the keywords for that language.
        return rules.moving.isdisjoint(kept) or (
            rules is default_rules and sum(loads[word] for word in kept if word in loads) < 2
        )

    return answer


def _entry(rules: Rules, first: str) -> Entry:
    """What is needed behind the first word *first* in the language of *rules*."""
    seconds: dict[str, frozenset[str] | None] = {}
    for word, thirds in rules.leads.get(first, {}).items():
        for form in _forms([word]):
            seconds[form] = None if thirds is None else _forms(thirds)
    return Entry(
        is_stop=rules.quick.__contains__,
        none_odd=rules.odd.isdisjoint,
        seconds=seconds,
        goes=first in rules.stop,
        rules=rules,
    )


def _forms(words: Iterable[str]) -> frozenset[str]:
    """*words* with and without a capital."""
    return frozenset(form for word in words for form in (word, word.capitalize()))


def _loads(known: Markers, default: str) -> dict[str, int]:
    """How much each word speaks for a language that is not *default*."""
    return {
        form: max(weight for language, weight in weights if language != default)
        for word, weights in known.weights.items()
        if any(language != default for language, _ in weights)
        for form in _forms([word])
    }
