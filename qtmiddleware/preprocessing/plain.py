"""The short way for a question in plain ASCII: one table, one split, one filter.

It answers only where the careful way would answer the same: letters, blanks and simple punctuation, capitals at the
start of words alone. Everything else it hands back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import filterfalse, pairwise, product
from typing import Literal

from qtmiddleware.preprocessing.base import BLANKED, SHAPE, SIMPLE, SMALL, Leads, Lexicon, Phrase, Rules, longest

Outlook = Literal["settled", "foreign", "open"]
"""What another pass would do: nothing, nothing unless it took the keywords for another language, or perhaps more."""

NOTHING: frozenset[str] = frozenset()


def words_of(text: str) -> tuple[list[str], bool, bool] | None:
    """The words of *text*, whether any has a capital and whether acronyms may be among them.

    ``None`` where the careful way is needed, or where there are no words.
    """
    if not text.isascii():
        return None
    raw = text.encode()
    if not raw.translate(None, SMALL):
        words = text.split()
        return (words, False, False) if words else None
    shape = raw.translate(SHAPE).decode()
    if "aA" in shape:
        return None
    if raw.translate(None, SIMPLE):
        if not _is_plain(text, shape):
            return None
        raw = raw.translate(BLANKED).replace(b"' ", b"  ")
    if -1 < shape.find(".") < len(shape) - 1 and (".a" in shape or ".A" in shape or ".0" in shape):
        return None
    words = raw.translate(BLANKED).decode().split()
    return (words, "A" in shape, "AA" in shape) if words else None


def _is_plain(text: str, shape: str) -> bool:
    """Whether the digits, apostrophes, hyphens and brackets of *text* are such as the table can deal with."""
    if "X" in shape or ("0" in shape and not _plain_numbers(text, shape)):
        return False
    if "'" in shape and shape.count("'") != sum(map(shape.count, ("a'a", "0'a", "a' "))):
        return False
    if "-" in shape and not _plain_hyphens(text, shape):
        return False
    return not ("(" in shape or ")" in shape) or _plain_brackets(shape)


def _plain_numbers(text: str, shape: str) -> bool:
    """Whether the digits of *text* stand in numbers and words that lower case leaves as they are."""
    if "A0" in shape or "0A" in shape or "may" in text:
        return False
    return "a0" not in shape or text.islower()


def _plain_hyphens(text: str, shape: str) -> bool:
    """Whether the hyphens of *text* stand between letters, or between the digits of a number."""
    count = shape.count("-")
    if "0" in shape and not text.islower():
        return count == shape.count("0-0")
    joined = ("a-a", "A-a", "a-A", "0-0", "0-a", "a-0")
    return count == sum(map(shape.count, joined))


def _plain_brackets(shape: str) -> bool:
    """Whether round brackets stand around words, not inside of one."""
    opening = sum(map(f" {shape}".count, (" (a", " (A", " (0")))
    closing = sum(map(f"{shape} ".count, ("a) ", "A) ", "0) ", "a).", "A).", "0).")))
    return shape.count("(") == opening and shape.count(")") == closing


def rules(lexicon: Lexicon, all_lists: Collection[Lexicon], all_leads: Leads) -> Rules:
    """What the plain way needs of *lexicon*.

    *all_lists* are those another pass might choose from, *all_leads* their `leads_of`.
    """
    kept = [phrase for phrases in lexicon.kept.values() for phrase in phrases]
    stop = frozenset(word for word in lexicon.stop - lexicon.negations if not any(map(str.isdigit, word)))
    telling = frozenset(word for phrase in kept for word in _telling(phrase, lexicon))
    telling |= frozenset(map(str.capitalize, telling))
    moving = frozenset(word for other in all_lists for word in (other.stop - stop) | other.closings)
    moving |= frozenset(map(str.capitalize, moving))
    capitals = frozenset(map(str.capitalize, stop))
    closings = lexicon.closings | frozenset(map(str.capitalize, lexicon.closings))
    return Rules(
        lexicon=lexicon,
        stop=stop,
        quick=stop - telling,
        telling=telling,
        odd=telling | capitals | moving | closings,
        homographs=lexicon.homographs,
        elides=bool(lexicon.elisions),
        capitals=capitals,
        title_articles=frozenset(word.capitalize() for word in lexicon.articles & stop if len(word) > 1),
        pairs=frozenset(pair for phrase in kept for pair in _pairs(phrase)),
        moving=moving,
        leads=leads_of([lexicon]),
        all_leads=all_leads,
    )


def strip(words: list[str], chosen: Rules, capital: str, cased: bool, acronyms: bool) -> tuple[str, Outlook] | None:
    """The keywords of *words*, the first in lower case, and what another pass would do; ``None`` for the careful way.

    *capital* is the first word as it was written; *cased* says that any word has a capital, *acronyms* that some may
    be in capitals.
    """
    first = words[0]
    if (acronyms or chosen.elides or first in chosen.homographs) and not _can_strip(words, chosen, capital, acronyms):
        return None
    if first in chosen.leads and begins(words, chosen.leads):
        words = after_lead_in(words, chosen.lexicon, acronyms)
    kept = list(filterfalse(chosen.quick.__contains__, words))
    # A telling stop word is one behind another word alone: most questions begin with "who".
    if kept and kept[0] == words[0] and kept[0] in chosen.stop and kept[0] not in chosen.homographs:
        del kept[0]
    outlook: Outlook = "settled"
    if not chosen.odd.isdisjoint(kept):
        looked = _second_look(words, kept, chosen, acronyms)
        if looked is None:
            return None
        kept, outlook = looked
    if not kept:
        return "", "settled"
    if kept[0] in chosen.all_leads and begins(kept, chosen.all_leads):
        outlook = "open" if begins(kept, chosen.leads) else "foreign"
    if acronyms:
        certain = outlook == "settled" and not _is_acronym(kept[0]) and _is_calm(kept)
        shown = [word if _is_acronym(word) else word.lower() for word in kept]
        return " ".join(shown), "settled" if certain else "open"
    result = " ".join(kept)
    return result.lower() if cased else result, outlook


def _second_look(words: list[str], kept: list[str], chosen: Rules, acronyms: bool) -> tuple[list[str], Outlook] | None:
    """What of *kept* stays, where an odd word is among them, and what another pass would do with it."""
    if not chosen.telling.isdisjoint(kept):
        if not chosen.pairs.isdisjoint(pairwise(keys_of(words, acronyms))):
            return None
        kept = list(filterfalse(chosen.stop.__contains__, kept))
    kept = list(filterfalse(chosen.title_articles.__contains__, kept))
    if not chosen.capitals.isdisjoint(kept) or (kept and kept[-1].lower() in chosen.lexicon.closings):
        return None
    return kept, "settled" if chosen.moving.isdisjoint(kept) else "foreign"


def _can_strip(words: list[str], chosen: Rules, capital: str, acronyms: bool) -> bool:
    """Whether no article is elided, the first word is surely no name and all double capitals are acronyms."""
    if chosen.elides and "'" in "".join(words):
        return False
    if capital != words[0] and words[0] in chosen.homographs:
        return False
    return not acronyms or _are_acronyms(words, chosen, capital)


def _is_acronym(word: str) -> bool:
    """Whether *word* is in capitals."""
    return len(word) > 1 and word.isupper()


def _is_calm(words: list[str]) -> bool:
    """Whether the words in capitals are few among *words*."""
    loud = sum(map(str.isupper, words))
    calm = len(words) - loud - sum(map(str.isdigit, words))
    return calm * 3 > loud


def _are_acronyms(words: list[str], chosen: Rules, capital: str) -> bool:
    """Whether all double capitals of *words* are acronyms in an otherwise calm text."""
    if not (capital.islower() or capital.istitle()):
        return False
    if not _is_calm(words):
        return False
    loud = [word for word in words if not (word.islower() or word.istitle() or word.isdigit())]
    return all(word.isalpha() and word.isupper() and word.lower() not in chosen.lexicon.stop for word in loud)


def keys_of(words: list[str], acronyms: bool) -> list[str]:
    """*words* as word lists hold them, *acronyms*, if there are any, as nothing."""
    if not acronyms:
        return list(map(str.lower, words))
    return ["" if _is_acronym(word) else word.lower() for word in words]


def after_lead_in(words: list[str], lexicon: Lexicon, acronyms: bool = False) -> list[str]:
    """*words* without the lead-ins at their start."""
    keys = keys_of(words, acronyms)
    start = 0
    while start < len(keys) and (length := longest(lexicon.lead_ins, keys, start)):
        start += length
    return words[start:]


def _telling(phrase: Phrase, lexicon: Lexicon) -> frozenset[str]:
    """The words of *phrase* to look for: its homographs, or stop words at its end, rare there, or else others."""
    places = [words for words, optional in phrase if not optional]
    for words in places:
        if words <= lexicon.homographs:
            return words
    if places[-1] <= lexicon.stop - lexicon.articles:
        return places[-1]
    return next((words for words in reversed(places) if lexicon.stop.isdisjoint(words)), places[-1])


def _pairs(phrase: Phrase) -> Iterator[tuple[str, str]]:
    """Every two words that may stand side by side in *phrase*."""
    for (left, _), (right, _) in pairwise(phrase):
        yield from product(left, right)


def leads_of(lists: Iterable[Lexicon]) -> Leads:
    """How the lead-ins of *lists* may begin."""
    table: dict[str, dict[str, frozenset[str] | None]] = {}
    phrases = {phrase for lexicon in lists for found in lexicon.lead_ins.values() for phrase in found}
    for start in {start for phrase in phrases for start in _starts(phrase)}:
        first, second, third = (*start, "", "")[:3]
        seconds = table.setdefault(first, {})
        known = seconds.get(second, frozenset())
        seconds[second] = None if known is None or not third else known | {third}
    return table


def _starts(phrase: Phrase) -> set[tuple[str, ...]]:
    """The first three words of *phrase* in all its forms; fewer where it is shorter."""
    starts: set[tuple[str, ...]] = {()}
    for words, optional in phrase:
        longer = {(*start, word) if len(start) < 3 else start for start in starts for word in words}
        starts = longer | starts if optional else longer
    return starts


def begins(words: Sequence[str], leads: Leads) -> bool:
    """Whether *words* may begin with a lead-in."""
    seconds = leads.get(words[0])
    if seconds is None:
        return False
    if "" in seconds or len(words) < 2:
        return True
    thirds = seconds.get(words[1].lower(), NOTHING)
    return thirds is None or (len(words) > 2 and words[2].lower() in thirds)
