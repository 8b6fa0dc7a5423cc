"""The short way for a question in plain ASCII: one table, one split, one filter.

It answers only where the careful way would answer the same: letters, blanks and simple punctuation, capitals at the
start of words alone. Everything else it hands back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import filterfalse, pairwise, product

from qtmiddleware.preprocess.base import Lexicon, Phrase, Rules, longest

PUNCTUATION = b"?!,;:."


def _shape_table() -> bytes:
    """One letter for every kind of byte: a capital A, a small a, a blank, a dot, an apostrophe or hyphen, and X."""
    table = bytearray(b"X" * 256)
    for code in range(128):
        letter = chr(code)
        if letter.isalpha():
            table[code] = ord("A" if letter.isupper() else "a")
        elif letter.isspace():
            table[code] = ord(" ")
        elif code in PUNCTUATION:
            table[code] = ord(".")
        elif letter in "'-":
            table[code] = code
    return bytes(table)


SHAPE = _shape_table()
BLANKED = bytes(ord(" ") if code in PUNCTUATION else code for code in range(256))


def words_of(text: str) -> list[str] | None:
    """The words of *text* with their capitals, or ``None`` where it needs the careful way."""
    if not text.isascii():
        return None
    raw = text.encode()
    shape = raw.translate(SHAPE)
    if b"X" in shape or b"AA" in shape or b"aA" in shape:
        return None
    if b"'" in shape and shape.count(b"'") != shape.count(b"a'a"):
        return None
    if b"-" in shape and shape.count(b"-") != shape.count(b"a-a") + shape.count(b"A-a") + shape.count(b"a-A"):
        return None
    dot = shape.find(b".")
    if -1 < dot < len(shape) - 1 and (b".a" in shape or b".A" in shape or b"..." in shape or b"-." in shape):
        return None
    return raw.translate(BLANKED).decode().split()


def rules(lexicon: Lexicon, all_lists: Collection[Lexicon]) -> Rules:
    """What the plain way needs of *lexicon*; *all_lists* are those another pass might choose from."""
    kept = [phrase for phrases in lexicon.kept.values() for phrase in phrases]
    stop = lexicon.stop - lexicon.negations
    leads: dict[str, frozenset[str]] = {}
    for other in all_lists:
        for first, seconds in _leads(other).items():
            leads[first] = leads.get(first, frozenset()) | seconds
    return Rules(
        lexicon=lexicon,
        stop=stop,
        capitals=frozenset(word.capitalize() for word in stop),
        wary=frozenset(word for phrase in kept for word in _rarest(phrase, lexicon)),
        pairs=frozenset(pair for phrase in kept for pair in _pairs(phrase)),
        leads=_leads(lexicon),
        moving=frozenset(word for other in all_lists for word in (other.stop - stop) | other.closings),
        moving_leads=leads,
    )


def strip(words: list[str], chosen: Rules, capital: str) -> tuple[str, bool] | None:
    """The keywords of *words*, the first in lower case, and whether another pass would surely leave them alone.

    ``None`` where they need the careful way. *capital* is the first word as it was written.
    """
    if capital != words[0] and words[0] in chosen.lexicon.homographs:
        return None
    seconds = chosen.leads.get(words[0])
    if seconds is not None and (len(words) < 2 or words[1].lower() in seconds):
        words = _after_lead_in(words, chosen.lexicon)
    if chosen.lexicon.elisions and any("'" in word for word in words):
        return None
    if not chosen.wary.isdisjoint(words) and _has_pair(words, chosen):
        return None
    kept = list(filterfalse(chosen.stop.__contains__, words))
    if not kept:
        return "", True
    if not chosen.capitals.isdisjoint(kept) or kept[-1] in chosen.lexicon.closings:
        return None
    first = kept[0]
    settled = chosen.moving.isdisjoint(kept) and first not in chosen.moving_leads
    return " ".join(kept).lower(), settled


def _after_lead_in(words: list[str], lexicon: Lexicon) -> list[str]:
    """*words* without the lead-ins at their start."""
    keys = list(map(str.lower, words))
    start = 0
    while start < len(keys) and (length := longest(lexicon.lead_ins, keys, start)):
        start += length
    return words[start:]


def _has_pair(words: list[str], chosen: Rules) -> bool:
    """Whether two neighbours among *words* may belong to a phrase that is kept."""
    keys = list(map(str.lower, words))
    return not chosen.pairs.isdisjoint(pairwise(keys))


def _rarest(phrase: Phrase, lexicon: Lexicon) -> frozenset[str]:
    """The words of *phrase* to look for first: its stop words that are no articles, or else those that are none."""
    words = [places for places, _ in phrase]
    common = frozenset[str]().union(*words) & (lexicon.stop - lexicon.articles)
    return common or frozenset[str]().union(*words) - lexicon.stop


def _pairs(phrase: Phrase) -> Iterator[tuple[str, str]]:
    """Every two words that may stand side by side in *phrase*."""
    for (left, _), (right, _) in pairwise(phrase):
        yield from product(left, right)


def _leads(lexicon: Lexicon) -> dict[str, frozenset[str]]:
    """What may come second in a lead-in, by its first word."""
    table: dict[str, frozenset[str]] = {}
    for first, phrases in lexicon.lead_ins.items():
        table[first] = frozenset(word for phrase in phrases for place, _ in phrase for word in place)
    return table
