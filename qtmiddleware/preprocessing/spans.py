"""Find the spans of a query that a rewrite must keep, such as names and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from qtmiddleware.preprocessing.lexicon import Lexicon, compile_other_negations
from qtmiddleware.preprocessing.stripping import Words, is_capitalised
from qtmiddleware.preprocessing.text import fold_each_character
from qtmiddleware.preprocessing.tokeniser import Token

SpanKind = Literal["quote", "identifier", "number", "negation", "name", "url"]
"""The kinds of protected spans."""
MOST_NAME_WORDS = 4
"""A text counts as a single name if it has up to this many words, all of them capitalised."""

_NUMBER_SIGN: Final = re.compile(r"no\. ?\d", re.IGNORECASE)
_UNIT: Final = re.compile(r"\s(?:kg|mg|g|km|cm|mm|m|ml|lbs?|oz|ft|kwh)(?!\w)")
_Place = tuple[SpanKind, int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a query that a rewrite must keep, such as a name or a number.

    Attributes:
        kind: one of the `SpanKind` words.
        text: the text of the span, ``query[start:end]``.
        start: the position of the first character in the query.
        end: the position after the last character.
    """

    kind: SpanKind
    text: str = field(repr=False)
    start: int
    end: int


# "Without" in Spanish and Portuguese, and an English noun and a name.
_ALSO_ENGLISH: Final = frozenset(("sin", "sem"))


def find_spans(words: Words, *, is_unknown_language: bool) -> tuple[Span, ...]:
    """Return the spans that a rewrite of a query must keep, from left to right.

    If *is_unknown_language*, "without" in all languages counts too, and the negations of all
    languages without a word list.
    """
    text = words.text
    places = [place for token in words.tokens for place in _find_token_span(token, words)]
    if is_unknown_language:
        folded, origins = fold_each_character(text)
        origins.append(len(text))
        for match in compile_other_negations().finditer(folded):
            # Vowel signs after the last letter are folded to nothing, and belong to the word.
            start, end = origins[match.start(1)], origins[match.end(1)]
            is_free = not any(left < end and start < right for _, left, right in places)
            if match[1] and is_free and _is_negation(match[1], start, end, words):
                places.append(("negation", start, end))
    # Capitals tell nothing about names in these.
    if not (words.is_all_caps or words.is_title_case()):
        places += _find_names(words)
    places.sort(key=lambda place: place[1])
    return tuple(Span(kind, text[start:end], start, end) for kind, start, end in places)


def _is_negation(folded: str, start: int, end: int, words: Words) -> bool:
    """Return whether the word at *start* is a negation, and no acronym or word of English."""
    text = words.text
    # SEM and SIN are acronyms, unless the whole query is typed in capitals.
    if text[start:end].isupper() and not words.is_all_caps:
        return False
    is_between = bool(text[:start].strip() and text[end:].strip(" ?!."))
    return folded not in _ALSO_ENGLISH or (is_between and not text[start:end].istitle())


def _find_token_span(token: Token, words: Words) -> Iterator[_Place]:
    """Yield the place of *token* if a rewrite must keep it, unless it may be a name."""
    text, start, end = words.text, token.start, token.end
    if token.kind == "quote":
        # A rewrite must keep the quoted words, but may use other quotation marks.
        inner = token.text[1:-1]
        start += 1 + len(inner) - len(inner.lstrip())
        yield "quote", start, start + len(inner.strip())
    # "No. 5" is a number.
    elif is_negation(token.folded_text, words.lexicon):
        if not _NUMBER_SIGN.match(text, start):
            yield "negation", start, end
    elif token.kind == "number":
        unit = _UNIT.match(text, end)
        yield "number", start, unit.end() if unit else end
    # A rewrite may put a single sign into words: "Will and Grace", "x exceeds 5".
    elif token.kind in ("identifier", "url") and len(token.text) > 1:
        yield token.kind, start, end - 2 if token.folded_text.endswith("'s") else end


def is_negation(folded: str, lexicon: Lexicon) -> bool:
    """Return whether a word in lower case negates: not, isn't, n'est."""
    if folded in lexicon.negations or folded.endswith("n't"):
        return True
    return folded.startswith("n'") and "ne" in lexicon.negations


def _find_names(words: Words) -> Iterator[_Place]:
    """Yield the names among the words: acronyms, and capitalised words inside a sentence."""
    tokens, lexicon = words.tokens, words.lexicon
    # A query such as "Arlo Bridge" has no sentence around the name.
    is_one_name = 1 < len(tokens) <= MOST_NAME_WORDS and all(map(is_capitalised, tokens))
    groups: list[list[Token]] = []
    group_is_open = is_title = False
    for index, token in enumerate(tokens):
        follows_title, is_title = is_title, words.is_before_name(index)
        if not (is_title or follows_title or _can_be_name(token, lexicon, is_one_name)):
            group_is_open = False
            continue
        if not group_is_open:
            groups.append([])
        groups[-1].append(token)
        # Punctuation ends a name, except the full stop after a title ("Dr.") or an initial.
        group_is_open = is_title or not token.is_before_punctuation
    for group in groups:
        # "The Who" keeps its article, because all of its words are stop words.
        if not all(token.folded_text in lexicon.stop for token in group):
            while len(group) > 1 and group[0].folded_text in lexicon.articles:
                del group[0]
        first, last = group[0], group[-1]
        is_single_noun = lexicon.nouns_are_capitalised and first.kind != "acronym"
        if len(group) > 1 or not (is_single_noun or first.folded_text in lexicon.articles):
            yield "name", first.start, last.end - 2 * last.folded_text.endswith("'s")


def _can_be_name(token: Token, lexicon: Lexicon, is_one_name: bool) -> bool:
    """Return whether *token* can be a part of a name, by its capitals."""
    folded = token.folded_text
    if not is_capitalised(token) or is_negation(folded, lexicon):
        return False
    if token.kind == "acronym":
        return folded not in lexicon.stop or folded in lexicon.acronyms
    # Every sentence begins with a capital. A single letter is no name: "I" is always capitalised.
    return (is_one_name or not token.opens_sentence) and len(folded.partition("'")[0]) > 1
