"""Whether a text still holds a span of the query: a quote, an identifier, a number, a name, a link or a negation."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES
from qtmiddleware.preprocessing.lexicon import load
from qtmiddleware.transforms.negation import keeps_negation
from qtmiddleware.transforms.numbers import has_numbers_of
from qtmiddleware.transforms.wording import folded, listed, normal, words

_QUOTE_MARKS: Final = "\"'“”‘’«»„`「」『』 "
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?|^www\.")
# Between these an identifier may be written with a hyphen, an underscore, a space, or nothing.
_JOINT: Final = re.compile(r"[\s_-]+|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_SMALL_WORDS: Final = listed("the a an of and de la le du der die das von van el los las in on for st dr mr mrs ms")


def keeps(kind: str, span: str, text: str, *, query: str) -> bool:
    """Whether *text* holds *span* of *query* in a form that says the same; *kind* is one of those named above."""
    if kind == "negation":
        return keeps_negation(text, query, span)
    if kind == "number":
        return has_numbers_of(span, text)
    if kind == "quote":
        return _has_phrase(span.strip(_QUOTE_MARKS), text)
    if kind == "url":
        return _SCHEME.sub("", folded(span)).rstrip("/") in folded(text)
    if _has_identifier(span, text):
        return True
    return kind == "name" and _has_name(span, text)


def as_written(kind: str, span: str) -> str:
    """*span* as it is put back into a text: a quote in its quotes, anything else as it is."""
    bare = span.strip(_QUOTE_MARKS)
    return f'"{bare}"' if kind == "quote" else span.strip()


def _has_phrase(phrase: str, text: str) -> bool:
    wanted = words(folded(phrase))
    if not wanted:
        return phrase in text
    return f" {' '.join(wanted)} " in f" {' '.join(words(folded(text)))} " and (
        not re.search(r"[^\w\s,.;:!?'’\"-]", phrase) or normal(phrase) in normal(text)
    )


def _has_identifier(span: str, text: str) -> bool:
    return bool(_pattern(span).search(folded(text)))


@lru_cache(maxsize=256)
def _pattern(span: str) -> re.Pattern[str]:
    plain = folded(span).strip().removesuffix("'s").removesuffix("'")
    joined = r"[\s_-]*".join(re.escape(part) for part in _JOINT.split(plain) if part)
    # No part of a longer word or number: E-40 is not kept by E-4042, nor v1.2 by v1.2.3.
    before = r"(?<!\w)" if re.match(r"\w", plain) and plain.isascii() else ""
    after = r"(?!\w|\.\d)(?:'?s)?" if plain[-1:].isalnum() and plain.isascii() else ""
    plural = "s?" if plain[-1:].isalpha() and plain.isascii() else ""
    return re.compile(before + joined + plural + after)


def _has_name(span: str, text: str) -> bool:
    """Whether the words of a name are all there, in any order, or its initials, or what its initials stand for."""
    said = [word.removesuffix("'s") for word in words(folded(text))]
    full, _, short = span.partition("(")
    # A text may leave out a title or an initial.
    full = " ".join(word for word in full.split() if not _is_title_or_initial(word))
    parts = [word.removesuffix("'s") for word in words(folded(full)) if word not in _SMALL_WORDS]
    if parts and all(_is_said(part, said) for part in parts) and _are_common_ones_beside(parts, said):
        return True
    letters = re.sub(r"[\W_]", "", full)
    if letters.isupper() and 2 <= len(letters) <= 6:
        return letters.lower() in "".join(word[0] for word in said if word not in _SMALL_WORDS)
    initials = {"".join(part[0] for part in parts), *words(folded(short))}
    return len(parts) > 1 and not initials.isdisjoint(re.sub(r"(?<=\b\w)\.", "", folded(text)).strip("?!.").split())


def _are_common_ones_beside(parts: list[str], said: list[str]) -> bool:
    """Whether words of a name that are verbs too (May, Will, Can) stand beside another word of it."""
    pairs = set(pairwise(parts))
    beside = {word for one, other in pairwise(said) if {(one, other), (other, one)} & pairs for word in (one, other)}
    return not pairs or all(part in beside for part in parts if part in load("en").verbs)


def _is_title_or_initial(word: str) -> bool:
    return word.endswith(".") and (len(word) == 2 or folded(word[:-1]) in _titles())


@cache
def _titles() -> frozenset[str]:
    return frozenset(folded(title) for code in LANGUAGES for title in load(code).titles)


def _is_said(part: str, said: list[str]) -> bool:
    """Whether a word of a name is among the words of a text, as it is, in the plural, or opening a longer one."""
    if part in said or part.rstrip("s") in said:
        return True
    return any(word == f"{part}s" or (len(part) > 4 and word.startswith(part)) for word in said)
