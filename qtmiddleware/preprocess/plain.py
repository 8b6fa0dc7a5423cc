"""The short way for a question in plain ASCII: one table, one split, one filter.

It answers only where the careful way would answer the same: letters, blanks and simple punctuation, capitals at the
start of words alone. Everything else it hands back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import filterfalse, pairwise, product

from qtmiddleware.preprocess.base import Leads, Lexicon, Phrase, Rules, longest

PUNCTUATION = b"?!,;:."

NOTHING: frozenset[str] = frozenset()


def _shape_table() -> bytes:
    """One letter for every kind of byte: A and a for letters, 0, a blank, a dot, an apostrophe or hyphen, X."""
    table = bytearray(b"X" * 256)
    for code in range(128):
        letter = chr(code)
        if letter.isalpha():
            table[code] = ord("A" if letter.isupper() else "a")
        elif letter.isspace():
            table[code] = ord(" ")
        elif code in PUNCTUATION:
            table[code] = ord(".")
        elif letter.isdigit():
            table[code] = ord("0")
        elif letter in "'-":
            table[code] = code
    return bytes(table)


SHAPE = _shape_table()
SMALL = b"abcdefghijklmnopqrstuvwxyz \t\n"
BLANKED = bytes(ord(" ") if code in PUNCTUATION else code for code in range(256))


def words_of(text: str) -> tuple[list[str], bool, bool] | None:
    """The words of *text*, whether any has a capital and whether acronyms may be among them.

    ``None`` where the careful way is needed.
    """
    if not text.isascii():
        return None
    raw = text.encode()
    if not raw.translate(None, SMALL):
        return text.split(), False, False
    shape = raw.translate(SHAPE).decode()
    if "X" in shape or "aA" in shape or ("0" in shape and not _plain_numbers(text, shape)):
        return None
    if "'" in shape:
        plurals = shape.count("a' ")
        if shape.count("'") != shape.count("a'a") + shape.count("0'a") + plurals:
            return None
        raw = raw.replace(b"' ", b" ") if plurals else raw
    if "-" in shape and not _plain_hyphens(text, shape):
        return None
    if -1 < shape.find(".") < len(shape) - 1 and (".a" in shape or ".A" in shape or ".0" in shape):
        return None
    return raw.translate(BLANKED).decode().split(), "A" in shape, "AA" in shape


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


def rules(lexicon: Lexicon, all_lists: Collection[Lexicon]) -> Rules:
    """What the plain way needs of *lexicon*; *all_lists* are those another pass might choose from."""
    kept = [phrase for phrases in lexicon.kept.values() for phrase in phrases]
    stop = frozenset(word for word in lexicon.stop - lexicon.negations if not any(map(str.isdigit, word)))
    telling = frozenset(word for phrase in kept for word in _telling(phrase, lexicon))
    moving = frozenset(word for other in all_lists for word in (other.stop - stop) | other.closings)
    moving |= frozenset(map(str.capitalize, moving))
    capitals = frozenset(map(str.capitalize, stop))
    return Rules(
        lexicon=lexicon,
        stop=stop,
        quick=stop - telling,
        odd=telling | frozenset(map(str.capitalize, telling)) | capitals | moving,
        capitals=capitals,
        pairs=frozenset(pair for phrase in kept for pair in _pairs(phrase)),
        moving=moving,
        leads=_leads([lexicon]),
        all_leads=_leads(all_lists),
    )


def strip(words: list[str], chosen: Rules, *, capital: str, cased: bool, acronyms: bool) -> tuple[str, bool] | None:
    """The keywords of *words*, the first in lower case, and whether another pass would surely leave them alone.

    ``None`` where they need the careful way. *capital* is the first word as it was written; *cased* says that any word
    has a capital, *acronyms* that some may be in capitals.
    """
    if cased and not _is_plainly_cased(words, chosen, capital, acronyms):
        return None
    if chosen.lexicon.elisions and "'" in "".join(words):
        return None
    if _begins(words, chosen.leads):
        words = _after_lead_in(words, chosen.lexicon, acronyms)
    kept = list(filterfalse(chosen.quick.__contains__, words))
    # A telling stop word is one behind another word alone: most questions begin with "who".
    if kept and kept[0] in chosen.stop and kept[0] == words[0]:
        del kept[0]
    settled = True
    if not chosen.odd.isdisjoint(kept):
        looked = _second_look(words, kept, chosen, acronyms)
        if looked is None:
            return None
        kept, settled = looked
    if not kept:
        return "", True
    settled = settled and not _begins(kept, chosen.all_leads)
    if acronyms:
        settled = settled and not _is_acronym(kept[0]) and _is_calm(kept)
        return " ".join(word if _is_acronym(word) else word.lower() for word in kept), settled
    result = " ".join(kept)
    return result.lower() if cased else result, settled


def _second_look(words: list[str], kept: list[str], chosen: Rules, acronyms: bool) -> tuple[list[str], bool] | None:
    """What of *kept* stays and whether that is settled, where an odd word is among them."""
    if not chosen.pairs.isdisjoint(pairwise(keys_of(words, acronyms))):
        return None
    kept = list(filterfalse(chosen.stop.__contains__, kept))
    if not chosen.capitals.isdisjoint(kept) or (kept and kept[-1] in chosen.lexicon.closings):
        return None
    return kept, chosen.moving.isdisjoint(kept)


def _is_plainly_cased(words: list[str], chosen: Rules, capital: str, acronyms: bool) -> bool:
    """Whether the first word is surely no name and all double capitals are acronyms."""
    if capital != words[0] and words[0] in chosen.lexicon.homographs:
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


def _after_lead_in(words: list[str], lexicon: Lexicon, acronyms: bool) -> list[str]:
    """*words* without the lead-ins at their start."""
    keys = keys_of(words, acronyms)
    start = 0
    while start < len(keys) and (length := longest(lexicon.lead_ins, keys, start)):
        start += length
    return words[start:]


def _telling(phrase: Phrase, lexicon: Lexicon) -> frozenset[str]:
    """The words of *phrase* to look for: the last ones if they are stop words, rare at that place, or else others."""
    if phrase[-1][0] <= lexicon.stop - lexicon.articles:
        return phrase[-1][0]
    places = (words for words, optional in reversed(phrase) if not optional and lexicon.stop.isdisjoint(words))
    return next(places, phrase[-1][0])


def _pairs(phrase: Phrase) -> Iterator[tuple[str, str]]:
    """Every two words that may stand side by side in *phrase*."""
    for (left, _), (right, _) in pairwise(phrase):
        yield from product(left, right)


def _leads(lists: Iterable[Lexicon]) -> Leads:
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


def _begins(words: Sequence[str], leads: Leads) -> bool:
    """Whether *words* may begin with a lead-in."""
    seconds = leads.get(words[0])
    if seconds is None:
        return False
    if "" in seconds or len(words) < 2:
        return True
    thirds = seconds.get(words[1].lower(), NOTHING)
    return thirds is None or (len(words) > 2 and words[2].lower() in thirds)
