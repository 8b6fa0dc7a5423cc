"""Names what a rewrite of a query must not lose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from qtmiddleware.preprocessing.lexicon import Lexicon
from qtmiddleware.preprocessing.stripping import is_capitalised, is_title, leads_to_name
from qtmiddleware.preprocessing.tokeniser import Token

SpanKind = Literal["quote", "identifier", "number", "negation", "name", "url"]
"""What a protected span is."""
SHORT = 4
"""A text of at most so many words, all of them capitalised, is a name as a whole."""

_UNIT: Final = re.compile(r"\s(?:kg|mg|g|km|cm|mm|m|ml|lbs?|oz|ft|kwh)(?!\w)")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a query that a rewrite must not lose; ``query[start:end] == text``."""

    kind: SpanKind
    text: str = field(repr=False)
    start: int
    end: int


def find_spans(
    text: str, tokens: Sequence[Token], lexicon: Lexicon, all_caps: bool
) -> tuple[Span, ...]:
    """The protected parts of *text*, from left to right; no names where it is typed in capitals (*all_caps*)."""
    found = [span for token in tokens if (span := _find_span(text, token, lexicon))]
    words = [(token.text, token.key) for token in tokens if token.kind == "word"]
    if not (all_caps or is_title(words, lexicon)):
        found += _find_names(text, tokens, lexicon)
    return tuple(sorted(found, key=lambda span: span.start))


def _find_span(text: str, token: Token, lexicon: Lexicon) -> Span | None:
    """What *token* is protected as by itself."""
    if token.kind == "quote":
        inner = token.text[1:-1]
        start = token.start + 1 + len(inner) - len(inner.lstrip())
        return Span("quote", inner.strip(), start, start + len(inner.strip()))
    if is_negation(token.key, lexicon):
        return Span("negation", token.text, token.start, token.end)
    if token.kind == "number":
        unit = _UNIT.match(text, token.end)
        end = unit.end() if unit else token.end
        return Span("number", text[token.start : end], token.start, end)
    # A lone sign may be put into words: Will and Grace, x exceeds 5.
    if token.kind in ("identifier", "url") and len(token.text) > 1:
        return Span(token.kind, token.text, token.start, token.end)
    return None


def is_negation(key: str, lexicon: Lexicon) -> bool:
    """Whether *key* says no: a negation of the list, one shortened to n't, or an elided ne (n'est)."""
    if key in lexicon.negations or key.endswith("n't"):
        return True
    return key.startswith("n'") and "ne" in lexicon.negations


def _find_names(text: str, tokens: Sequence[Token], lexicon: Lexicon) -> Iterator[Span]:
    """The names among the words of *tokens*: acronyms, and runs of capitalised words inside a sentence."""
    whole = 1 < len(tokens) <= SHORT and all(is_capitalised(token) for token in tokens)
    for run in _find_runs(text, tokens, lexicon, whole):
        yield from _trim_name(text, run, lexicon)


def _find_runs(
    text: str, tokens: Sequence[Token], lexicon: Lexicon, whole: bool
) -> list[list[Token]]:
    """The runs of capitalised words among *tokens*; punctuation ends one unless it belongs to a title or initial."""
    runs: list[list[Token]] = []
    is_inside = leads = False
    for at, token in enumerate(tokens):
        led, leads = leads, leads_to_name(text, tokens, at, lexicon)
        belongs = leads or led or (is_capitalised(token) and _may_be_name(token, lexicon, whole))
        if belongs and is_inside:
            runs[-1].append(token)
        elif belongs:
            runs.append([token])
        is_inside = belongs and (leads or not token.closed)
    return runs


def _may_be_name(token: Token, lexicon: Lexicon, whole: bool) -> bool:
    """Whether the capitalised *token* can be part of a name by its place and what it says."""
    key = token.key
    if is_negation(key, lexicon):
        return False
    if token.kind == "acronym":
        return key not in lexicon.stop or key in lexicon.acronyms
    # The first word has its capital from the sentence, and I and A are no names alone.
    return (whole or not token.opens) and len(key.partition("'")[0]) > 1


def _trim_name(text: str, run: list[Token], lexicon: Lexicon) -> Iterator[Span]:
    """The span of *run* without a leading article and a trailing 's; nothing where the capitals prove no name."""
    while len(run) > 1 and run[0].key in lexicon.articles and not _all_small(run, lexicon):
        run = run[1:]
    acronym = any(token.kind == "acronym" for token in run)
    if run[0].key in lexicon.articles and len(run) == 1:
        return
    if lexicon.nouns_are_capitalised and not acronym and len(run) < 2:
        return
    start, end = run[0].start, run[-1].end
    if run[-1].key.endswith("'s"):
        end -= 2
    yield Span("name", text[start:end], start, end)


def _all_small(run: Sequence[Token], lexicon: Lexicon) -> bool:
    """Whether all of *run* are stop words, so that the article is part of the name: The Who."""
    return all(token.key in lexicon.stop for token in run)
