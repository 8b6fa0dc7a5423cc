"""Check whether a text contains a span of the query, in the same or an equivalent form.

A span is a quote, an identifier, a number, a name, a URL or a negation. Numbers are compared by
value, whatever their notation. All negating words are equivalent.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache, lru_cache
from typing import Final

from qtmiddleware.preprocessing.lexicon import load_all_lexicons
from qtmiddleware.preprocessing.text import fold_text, fold_words, split_words, unify_letters

_QUOTE_MARKS: Final = "\"'“”‘’«»„`「」『』 "
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?|^www\.")
# Where an identifier may have a hyphen, an underscore, a space, a dot or nothing.
_JOINT: Final = re.compile(
    r"[\s_-]+|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])\.(?=[^\W\d_])"
)
_TITLES: Final = "dr mr mrs ms prof sgt st"
_SMALL_WORDS: Final = frozenset(
    f"the a an of and de la le du der die das von van el los las in on for {_TITLES}".split()
)
_SIGNS: Final = re.compile(r"[€$£¥%]")
_COMPOUND: Final = re.compile(r"\b(?:non?|not|never)-\w+")
_WRITTEN_NUMBER: Final = re.compile(
    r"\d{1,3}(?:[,.'\u00a0\u202f ]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?"
)
_NUMBER_WORDS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve".split(),  # noqa: SIM905
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth".split(),  # noqa: SIM905
)
_SPELLED_NUMBERS: Final = {
    word: Decimal(value) for words in _NUMBER_WORDS for value, word in enumerate(words)
}


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
    """Return whether *text* contains *phrase*, ignoring case, accents and punctuation."""
    words = " ".join(fold_words(phrase))
    return f" {words} " in f" {' '.join(fold_words(text))} " if words else phrase in text


def _has_identifier(span: str, text: str) -> bool:
    """Return whether *text* contains the identifier *span*, ignoring case and separators."""
    return bool(_compile_identifier(span).search(fold_text(text)))


@lru_cache(maxsize=256)
def _compile_identifier(span: str) -> re.Pattern[str]:
    folded_span = fold_text(span).strip().removesuffix("'s").removesuffix("'").rstrip(".")
    parts = [re.escape(part) for part in _JOINT.split(folded_span) if part]
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
    """Return whether *text* contains the name *span*, whole or as an acronym."""
    text_words = [word.removesuffix("'s") for word in fold_words(text)]
    # A middle name may be missing if it is only an initial.
    full_name, _, _ = span.partition("(")
    words = [word for word in full_name.split() if not re.fullmatch(r"\w\.", word)]
    folded_words = fold_words(" ".join(words))
    name_words = [word.removesuffix("'s") for word in folded_words if word not in _SMALL_WORDS]
    if name_words and all(_has_name_word(word, text_words) for word in name_words):
        return True
    # The text may spell out an acronym, or abbreviate the name to one.
    letters = re.sub(r"[\W_]", "", full_name)
    if letters.isupper() and 2 <= len(letters) <= 6:
        initials = "".join(word[0] for word in text_words if word not in _SMALL_WORDS)
        return letters.lower() in initials
    acronym = "".join(word[0] for word in name_words)
    return len(name_words) > 1 and acronym in fold_text(text).replace(".", "").split()


def _has_name_word(name_word: str, text_words: list[str]) -> bool:
    """Return whether *text_words* contains *name_word*, in the singular or plural."""
    forms = {name_word, name_word.rstrip("s"), f"{name_word}s"}
    is_long = len(name_word) > 4
    return any(word in forms or (is_long and word.startswith(name_word)) for word in text_words)


def _has_numbers(span: str, text: str) -> bool:
    """Return whether *text* contains all numbers of *span* and all its signs, such as €."""
    if not all(sign in text for sign in _SIGNS.findall(span)):
        return False
    text_values = set().union(*_find_numbers(text))
    numbers = _find_numbers(span)
    return all(values & text_values for values in numbers) and bool(numbers)


def _find_numbers(text: str) -> list[set[Decimal]]:
    """Return the possible values of each number in *text*, such as 1 and 1000 for "1.000"."""
    numbers = [{_SPELLED_NUMBERS[word]} for word in fold_words(text) if word in _SPELLED_NUMBERS]
    for number in _WRITTEN_NUMBER.findall(fold_text(text)):
        digits = re.sub(r"[\s']", "", number)
        # "1,500.5" is written "1.500,5" in other languages.
        readings = {digits.replace(",", ""), digits.replace(".", "").replace(",", ".")}
        numbers.append({Decimal(reading[:50]) for reading in readings if reading.count(".") < 2})
    return numbers


def _keeps_negation(text: str, query: str, span: str) -> bool:
    """Return whether *text* keeps *span*, a negation of *query*."""
    negations = _load_words("negations") | set(fold_words(span))
    folded_query, folded_text = fold_text(query), fold_text(text)
    # "are non-stop" does not keep the negation of "aren't non-stop".
    for compound in set(_COMPOUND.findall(folded_query)):
        folded_text = folded_text.replace(compound, " ")
    denials = _find_denials(folded_query)
    # A word such as "missing" may be what the query is about.
    topics = _load_words("denials").intersection(denials) - negations
    required = [denial for denial in denials if denial not in topics]
    kept = [denial for denial in _find_denials(folded_text) if denial not in topics]
    # "Can I pay without a card?" is not the same as "Can't I pay without a card?"
    excluding = _load_words("exclusions").intersection(required)
    needs_two = bool(excluding) and not excluding.issuperset(required)
    return len(kept) > needs_two


def _find_denials(folded_text: str) -> list[str]:
    """Return the negating words, contractions and characters in *folded_text*."""
    denials = _load_words("denials")
    words = [word for word in split_words(folded_text) if word in denials]
    return _compile_denials().findall(folded_text) + words


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
