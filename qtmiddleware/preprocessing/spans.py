"""Find the protected spans of a query, such as names and numbers, which a rewrite must keep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from qtmiddleware.preprocessing.lexicon import Lexicon
from qtmiddleware.preprocessing.stripping import is_before_name, is_capitalised, is_title_case
from qtmiddleware.preprocessing.tokeniser import Token

SpanKind = Literal["quote", "identifier", "number", "negation", "name", "url"]
"""The kinds of protected spans."""
MOST_NAME_WORDS = 4
"""A text counts as a single name if it has up to this many words, all of them capitalised."""

_UNIT: Final = re.compile(r"\s(?:kg|mg|g|km|cm|mm|m|ml|lbs?|oz|ft|kwh)(?!\w)")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a query that a rewrite must keep, such as a name or a number.

    Attributes:
        kind: One of the `SpanKind` words.
        text: The text of the span, ``query[start:end]``.
        start: The position of the first character in the query.
        end: The position after the last character.
    """

    kind: SpanKind
    text: str = field(repr=False)
    start: int
    end: int


def find_spans(
    text: str, tokens: Sequence[Token], lexicon: Lexicon, all_caps: bool
) -> tuple[Span, ...]:
    """Return the protected spans of *text*, from left to right.

    Args:
        text: The query.
        tokens: The tokens of the query.
        lexicon: The word list of the query's language.
        all_caps: Whether the query is typed in capitals. No names are found in such a query, or in
            a query that is capitalised like a title.
    """
    spans = [span for token in tokens if (span := _find_token_span(text, token, lexicon))]
    words = [(token.text, token.key) for token in tokens if token.kind == "word"]
    if not (all_caps or is_title_case(words, lexicon)):
        spans += _find_names(text, tokens, lexicon)
    return tuple(sorted(spans, key=lambda span: span.start))


def _find_token_span(text: str, token: Token, lexicon: Lexicon) -> Span | None:
    """Return the protected span of a single *token*, or ``None`` if the token is not protected.

    Names are not found here, because a name may have several tokens. See `_find_names`.
    """
    if token.kind == "quote":
        # A rewrite must keep the quoted words, but may use other quotation marks.
        inner = token.text[1:-1]
        start = token.start + 1 + len(inner) - len(inner.lstrip())
        return Span("quote", inner.strip(), start, start + len(inner.strip()))
    if is_negation(token.key, lexicon):
        return Span("negation", token.text, token.start, token.end)
    if token.kind == "number":
        unit = _UNIT.match(text, token.end)
        end = unit.end() if unit else token.end
        return Span("number", text[token.start : end], token.start, end)
    # A rewrite may put a single sign into words: "Will and Grace", "x exceeds 5".
    if token.kind in ("identifier", "url") and len(token.text) > 1:
        return Span(token.kind, token.text, token.start, token.end)
    return None


def is_negation(key: str, lexicon: Lexicon) -> bool:
    """Return whether the folded word *key* is a negation.

    A negation is in the word list, ends in "n't", or is a French word with an elided "ne" (n'est).
    """
    if key in lexicon.negations or key.endswith("n't"):
        return True
    return key.startswith("n'") and "ne" in lexicon.negations


def _find_names(text: str, tokens: Sequence[Token], lexicon: Lexicon) -> Iterator[Span]:
    """Yield the names among *tokens*: acronyms, and capitalised words inside a sentence."""
    # A query such as "Arlo Bridge" has no sentence around the name.
    is_one_name = 1 < len(tokens) <= MOST_NAME_WORDS and all(
        is_capitalised(token) for token in tokens
    )
    for run in _group_capitalised_tokens(text, tokens, lexicon, is_one_name):
        yield from _trim_name(text, run, lexicon)


def _group_capitalised_tokens(
    text: str, tokens: Sequence[Token], lexicon: Lexicon, is_one_name: bool
) -> list[list[Token]]:
    """Return the groups of neighbouring *tokens* that may be names.

    Punctuation ends a group, except the full stop after a title ("Dr.") or an initial. If
    *is_one_name* is true, the whole text may be a single name.
    """
    runs: list[list[Token]] = []
    is_inside = is_leading = False
    for index, token in enumerate(tokens):
        is_led, is_leading = is_leading, is_before_name(text, tokens, index, lexicon)
        is_part = (
            is_leading
            or is_led
            or (is_capitalised(token) and _may_be_name(token, lexicon, is_one_name))
        )
        if is_part and is_inside:
            runs[-1].append(token)
        elif is_part:
            runs.append([token])
        is_inside = is_part and (is_leading or not token.closed)
    return runs


def _may_be_name(token: Token, lexicon: Lexicon, is_one_name: bool) -> bool:
    """Return whether the capitalised *token* may be part of a name.

    The first word of a sentence may not, because every sentence begins with a capital. If
    *is_one_name* is true, the whole text may be a single name, and its first word may be part of
    the name.
    """
    key = token.key
    if is_negation(key, lexicon):
        return False
    if token.kind == "acronym":
        return key not in lexicon.stop or key in lexicon.acronyms
    # A single letter is not a name: "I" is always capitalised.
    return (is_one_name or not token.opens) and len(key.partition("'")[0]) > 1


def _trim_name(text: str, group: list[Token], lexicon: Lexicon) -> Iterator[Span]:
    """Yield the name in *group*, which is a group of capitalised words.

    The name has no articles at its start and no final 's. Nothing is yielded if *group* is only an
    article, or a single noun in a language that capitalises all nouns.
    """
    # "The Who" keeps its article, because all of its words are stop words.
    while (
        len(group) > 1 and group[0].key in lexicon.articles and not _are_stop_words(group, lexicon)
    ):
        group = group[1:]
    has_acronym = any(token.kind == "acronym" for token in group)
    if group[0].key in lexicon.articles and len(group) == 1:
        return
    if lexicon.nouns_are_capitalised and not has_acronym and len(group) < 2:
        return
    start, end = group[0].start, group[-1].end
    if group[-1].key.endswith("'s"):
        end -= 2
    yield Span("name", text[start:end], start, end)


def _are_stop_words(group: Sequence[Token], lexicon: Lexicon) -> bool:
    """Return whether all tokens of *group* are stop words, as in the name "The Who"."""
    return all(token.key in lexicon.stop for token in group)
