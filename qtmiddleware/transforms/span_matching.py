"""Check whether a text contains a span of the query, in the same or an equivalent form.

A span is a quote, an identifier, a number, a name, a URL or a negation. Numbers are compared by
value, whatever their notation. All negating words are equivalent.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import cache, lru_cache
from pkgutil import get_data
from typing import Final

from qtmiddleware.preprocessing.lexicon import load_all_lexicons
from qtmiddleware.preprocessing.text import (
    fold_text,
    fold_words,
    normalise_text,
    split_words,
    unify_letters,
)

_QUOTE_MARKS: Final = "\"'“”‘’«»„`「」『』 "
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?|^www\.")
# Where an identifier may have a hyphen, an underscore, a space, a dot or nothing.
_JOINT: Final = re.compile(
    r"[\s_-]+|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])\.(?=[^\W\d_])"
)
_TIME: Final = re.compile(r"(?<=\d)[:h](?=\d\d)")
_SMALL_WORDS: Final = frozenset(
    "the a an of and de la le du der die das von van el los las in on for st dr mr mrs ms".split()  # noqa: SIM905
)

_WRITTEN_NUMBER: Final = re.compile(
    r"(\d{1,3}(?:[,.'\u00a0\u202f ]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"
    r"\s?(k\b|m\b|bn\b|thousand|million|billion)?"
)
_FACTORS: Final = {
    "k": 3,
    "thousand": 3,
    "m": 6,
    "million": 6,
    "bn": 9,
    "billion": 9,
}
_SPELLINGS: Final = json.loads(get_data("qtmiddleware.transforms", "spellings.json") or b"{}")
_SPELLED_NUMBERS: Final = {
    word: Decimal(value) for value, names in _SPELLINGS["numbers"].items() for word in names.split()
}
_SIGN_NAMES: Final = {sign: names.split() for sign, names in _SPELLINGS["signs"].items()}
"""The names of signs such as € and %. Names in non-Latin scripts may be parts of words."""
_PREFIXED: Final = re.compile(r"^(?:un|non|in|im|ir|il|dis|a)-?(\w{4,})$")
_WORKING: Final = re.compile(r"\bwork")
_TROUBLE: Final = re.compile(
    r"\b(?:problems?|issues?|errors?|troubles?|faults?|malfunction\w*|troubleshoot\w*)\b"
)
_COMPOUND: Final = re.compile(r"\b(?:non?|not|never)-\w+(?:-\w+)*")
_MOST_COMPOUNDS: Final = 20


def keeps_span(kind: str, span: str, text: str, *, query: str) -> bool:
    """Return whether *text* contains *span*, a span of *query*, in the same or an equivalent form.

    *kind* is ``quote``, ``identifier``, ``number``, ``name``, ``url`` or ``negation``.
    """
    if kind == "negation":
        return _keeps_negation(text, query, span)
    if kind == "number":
        return _has_numbers(span, text)
    if kind == "quote":
        return _has_phrase(span.strip(_QUOTE_MARKS), text)
    if kind == "url":
        return _SCHEME.sub("", fold_text(span)).rstrip("/") in fold_text(text)
    # A name may also be written like an identifier, such as "WiFi" for "Wi-Fi".
    return _has_identifier(span, text) or (kind == "name" and _has_name(span, text))


def format_span(kind: str, span: str) -> str:
    """Return *span* for appending to a text: a ``quote`` in quotation marks, others unchanged."""
    bare = span.strip(_QUOTE_MARKS)
    return f'"{bare}"' if kind == "quote" else span.strip()


def is_negated(text: str) -> bool:
    """Return whether *text* contains a negation, such as "not", in any supported language."""
    return bool(_find_denials(fold_text(text)))


def _has_phrase(phrase: str, text: str) -> bool:
    """Return whether *text* contains *phrase*, ignoring case, accents and common punctuation."""
    words = fold_words(phrase)
    has_other_marks = re.search(r"[^\w\s,.;:!?'’\"-]", phrase)
    if has_other_marks and normalise_text(phrase) not in normalise_text(text):
        return False
    return not words or f" {' '.join(words)} " in f" {' '.join(fold_words(text))} "


def _has_identifier(span: str, text: str) -> bool:
    """Return whether *text* contains the identifier *span*, ignoring case and separators."""
    return bool(_compile_identifier(span).search(fold_text(text)))


@lru_cache(maxsize=256)
def _compile_identifier(span: str) -> re.Pattern[str]:
    folded_span = fold_text(span).strip().removesuffix("'s").removesuffix("'").rstrip(".")
    parts = [re.escape(part) for part in _JOINT.split(folded_span) if part]
    # A model may write "version 2.10" or only "2.10" for "v2.10".
    if len(parts) == 2 and parts[0] == "v":
        is_dotted = "." in parts[1]
        parts = [rf"(?:v(?:ersion)?[\s._-]*){'?' if is_dotted else ''}{parts[1]}"]
    pattern = r"[\s._-]*".join(parts)
    if not folded_span.isascii():
        return re.compile(pattern)
    # A match inside a longer word or number does not count: E-4042 does not contain E-40, nor does
    # v1.2.3 contain v1.2.
    last = folded_span[-1:]
    start = r"(?<!\w)" if re.match(r"\w", folded_span) else ""
    plural = "s?" if last.isalpha() else ""
    end = r"(?!\w|\.\d)(?:'?s)?" if last.isalnum() else ""
    return re.compile(start + pattern + plural + end)


def _has_name(span: str, text: str) -> bool:
    """Return whether *text* contains the name *span*."""
    text_words = [word.removesuffix("'s") for word in fold_words(text)]
    full_name, _, short_name = span.partition("(")
    titles = _load_words("titles")
    needed = [
        word
        for word in full_name.split()
        if not (word.endswith(".") and (len(word) == 2 or fold_text(word[:-1]) in titles))
    ]
    full_name = " ".join(needed)
    name_words = [
        word.removesuffix("'s") for word in fold_words(full_name) if word not in _SMALL_WORDS
    ]
    if name_words and all(_has_name_word(word, text_words) for word in name_words):
        return True
    letters = re.sub(r"[\W_]", "", full_name)
    # The name is an acronym, which the text may spell out.
    if letters.isupper() and 2 <= len(letters) <= 6:
        firsts = "".join(word[0] for word in text_words if word not in _SMALL_WORDS)
        return letters.lower() in firsts
    if len(name_words) < 2:
        return False
    initials = "".join(word[0] for word in name_words)
    short_forms = {initials, *fold_words(short_name)}
    undotted = re.sub(r"(?<=\b\w)\.", "", fold_text(text)).strip("?!.")
    return not short_forms.isdisjoint(undotted.split())


def _has_name_word(name_word: str, text_words: list[str]) -> bool:
    """Return whether *text_words* contains *name_word*, in the singular or plural."""
    forms = {name_word, name_word.rstrip("s"), f"{name_word}s"}
    is_long = len(name_word) > 4
    return any(word in forms or (is_long and word.startswith(name_word)) for word in text_words)


def _has_numbers(span: str, text: str) -> bool:
    """Return whether *text* contains all numbers of *span* and all its signs, such as €."""
    if not all(_has_sign(sign, text) for sign in span if sign in _SIGN_NAMES):
        return False
    spelled = _find_spelled_numbers(text)
    text_values = spelled.union(*_find_numbers(text))
    # A span such as "three" has no digits, so its number words are compared.
    required = _find_numbers(span) or [{value} for value in _find_spelled_numbers(span)]
    # 9:30 may also be written 9.30.
    time = _TIME.sub(".", span)
    if time != span and _has_numbers(time, text):
        return True
    if not required:
        return fold_text(span) in fold_text(text)
    return all(values & text_values for values in required)


def _find_spelled_numbers(text: str) -> set[Decimal]:
    return {_SPELLED_NUMBERS[word] for word in fold_words(text) if word in _SPELLED_NUMBERS}


def _find_numbers(text: str) -> list[set[Decimal]]:
    """Return the possible values of each number in digits, such as 1 and 1000 for "1.000"."""
    numbers = []
    for match in _WRITTEN_NUMBER.finditer(fold_text(text)):
        digits = re.sub(r"[\s']", "", match[1])
        # "1,500.5" is written "1.500,5" in other languages.
        readings = {digits.replace(",", ""), digits.replace(".", "").replace(",", ".")}
        values = {Decimal(reading[:50]) for reading in readings if reading.count(".") < 2}
        factor = _FACTORS.get(match[2], 0)
        numbers.append(values | {value.scaleb(factor) for value in values})
    return numbers


def _has_sign(sign: str, text: str) -> bool:
    """Return whether *text* contains *sign*, such as €, or one of its names, such as "euro"."""
    folded_text = fold_text(text)
    words = split_words(folded_text)
    return sign in folded_text or any(
        name in words or (not name.isascii() and fold_text(name) in folded_text)
        for name in _SIGN_NAMES[sign]
    )


def _keeps_negation(text: str, query: str, span: str) -> bool:
    """Return whether *text* keeps *span*, a negation of *query*."""
    folded_query, folded_text = fold_text(query), fold_text(text)
    # "are non-stop" does not keep the negation of "aren't non-stop".
    for compound in _COMPOUND.findall(folded_query)[:_MOST_COMPOUNDS]:
        for joint in "-", "", " ":
            folded_text = folded_text.replace(compound.replace("-", joint), " ")
    denials = _find_denials(folded_query)
    protected = _load_words("negations") | set(fold_words(span))
    other_words = _load_words("denials").intersection(denials) - protected
    meant = [denial for denial in denials if denial not in other_words]
    count = sum(denial not in other_words for denial in _find_denials(folded_text))
    count += _count_rephrased_denials(folded_text, folded_query)
    excluding = _load_words("exclusions").intersection(meant)
    needs_two = bool(excluding) and not excluding.issuperset(meant)
    return count > needs_two


def _find_denials(folded_text: str) -> list[str]:
    """Return the negating words, contractions and characters in *folded_text*."""
    denials = _load_words("denials")
    words = [word for word in split_words(folded_text) if word in denials]
    return _compile_denials().findall(folded_text) + words


def _count_rephrased_denials(folded_text: str, folded_query: str) -> int:
    """Return how many negations of the query a text expresses in other words."""
    known_words = {*re.findall(r"[\w-]+", folded_query), *_load_words("denials")}
    stems = {word[:5] for word in split_words(folded_query) if len(word) > 3}
    others = set(re.findall(r"[\w-]+", folded_text)) - known_words
    prefixed = filter(None, map(_PREFIXED.match, others))
    is_trouble = _WORKING.search(folded_query) and _TROUBLE.search(folded_text)
    return sum(match[1][:5] in stems for match in prefixed) + bool(is_trouble)


@cache
def _load_words(kind: str) -> frozenset[str]:
    """Return the folded words of all languages under *kind* in the lexicons."""
    return frozenset(
        fold_text(word) for lexicon in load_all_lexicons() for word in getattr(lexicon, kind)
    )


@cache
def _compile_denials() -> re.Pattern[str]:
    """Return a pattern for negations that are a part of a word, such as the "n't" in "isn't"."""
    patterns = [it for lexicon in load_all_lexicons() for it in lexicon.denial_patterns]
    return re.compile("|".join(map(unify_letters, patterns)))
