"""Find the spans of a query that a rewrite must keep, such as names and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from qtmiddleware.preprocessing.lexicon import Lexicon, compile_other_negations
from qtmiddleware.preprocessing.stripping import is_before_name, is_capitalised, is_title_case
from qtmiddleware.preprocessing.text import fold_each_character
from qtmiddleware.preprocessing.tokeniser import Token

SpanKind = Literal["quote", "identifier", "number", "negation", "name", "url"]
"""The kinds of protected spans."""
MOST_NAME_WORDS = 4
"""A text counts as a single name if it has up to this many words, all of them capitalised."""

_NUMBER_SIGN: Final = re.compile(r"no\. ?\d", re.IGNORECASE)
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
    text: str,
    tokens: Sequence[Token],
    lexicon: Lexicon,
    is_all_caps: bool,
    *,
    is_unknown_language: bool = False,
) -> tuple[Span, ...]:
    """Return the spans of *text* that a rewrite must keep, from left to right.

    Args:
        text: The query.
        tokens: The tokens of the query.
        lexicon: The word list of the query's language.
        is_all_caps: Whether the query is typed in capitals. No names are found in such a query, nor
            in a query that is capitalised like a title.
        is_unknown_language: Whether to look for the negations of all languages without a word list.
    """
    spans = [span for token in tokens if (span := _find_token_span(text, token, lexicon))]
    if is_unknown_language:
        folded, places = fold_each_character(text)
        for match in compile_other_negations().finditer(folded):
            if match[1]:
                # Vowel signs after the last letter are folded to nothing, and belong to the word.
                start, end = places[match.start(1)], [*places, len(text)][match.end(1)]
                if not any(span.start < end and start < span.end for span in spans):
                    spans.append(Span("negation", text[start:end], start, end))
    words = [(token.text, token.folded_text) for token in tokens if token.kind == "word"]
    if not (is_all_caps or is_title_case(words, lexicon)):
        spans += _find_names(text, tokens, lexicon)
    return tuple(sorted(spans, key=lambda span: span.start))


def _find_token_span(text: str, token: Token, lexicon: Lexicon) -> Span | None:
    """Return the span of *token* if a rewrite must keep the token, or else ``None``.

    Names are not recognised, because a name may have several tokens. See `_find_names`.
    """
    if token.kind == "quote":
        # A rewrite must keep the quoted words, but may use other quotation marks.
        inner = token.text[1:-1]
        start = token.start + 1 + len(inner) - len(inner.lstrip())
        return Span("quote", inner.strip(), start, start + len(inner.strip()))
    # "No. 5" is a number.
    if is_negation(token.folded_text, lexicon) and not _NUMBER_SIGN.match(text, token.start):
        return Span("negation", token.text, token.start, token.end)
    if token.kind == "number":
        unit = _UNIT.match(text, token.end)
        end = unit.end() if unit else token.end
        return Span("number", text[token.start : end], token.start, end)
    # A rewrite may put a single sign into words: "Will and Grace", "x exceeds 5".
    if token.kind in ("identifier", "url") and len(token.text) > 1:
        end = token.end - 2 if token.folded_text.endswith("'s") else token.end
        return Span(token.kind, text[token.start : end], token.start, end)
    return None


def is_negation(folded_word: str, lexicon: Lexicon) -> bool:
    """Return whether *folded_word*, a word in lower case, is a negation.

    Negations are the words in the word list, words that end in "n't", and French words with an
    elided "ne" (n'est).
    """
    if folded_word in lexicon.negations or folded_word.endswith("n't"):
        return True
    return folded_word.startswith("n'") and "ne" in lexicon.negations


def _find_names(text: str, tokens: Sequence[Token], lexicon: Lexicon) -> Iterator[Span]:
    """Yield the names among *tokens*: acronyms, and capitalised words inside a sentence."""
    # A query such as "Arlo Bridge" has no sentence around the name.
    is_one_name = 1 < len(tokens) <= MOST_NAME_WORDS and all(
        is_capitalised(token) for token in tokens
    )
    for token_group in _group_capitalised_tokens(text, tokens, lexicon, is_one_name):
        yield from _extract_name_spans(text, token_group, lexicon)


def _group_capitalised_tokens(
    text: str,
    tokens: Sequence[Token],
    lexicon: Lexicon,
    is_one_name: bool,
) -> list[list[Token]]:
    """Return the groups of neighbouring *tokens* that may be names.

    Punctuation ends a group, except the full stop after a title ("Dr.") or an initial. If
    *is_one_name* is true, the first word of a sentence can also belong to a name.
    """
    token_groups: list[list[Token]] = []
    is_inside = is_leading = False
    for index, token in enumerate(tokens):
        is_led = is_leading
        is_leading = is_before_name(text, tokens, index, lexicon)
        is_part = (
            is_leading
            or is_led
            or (is_capitalised(token) and _can_be_name_part(token, lexicon, is_one_name))
        )
        if is_part and is_inside:
            token_groups[-1].append(token)
        elif is_part:
            token_groups.append([token])
        is_inside = is_part and (is_leading or not token.is_before_punctuation)
    return token_groups


def _can_be_name_part(
    token: Token,
    lexicon: Lexicon,
    is_one_name: bool,
) -> bool:
    """Return whether the capitalised *token* can be part of a name.

    Negations, single letters and acronyms that are only stop words in capitals cannot. The first
    word of a sentence can only if *is_one_name* is true, because every sentence begins with a
    capital.
    """
    folded_word = token.folded_text
    if is_negation(folded_word, lexicon):
        return False
    if token.kind == "acronym":
        return folded_word not in lexicon.stop or folded_word in lexicon.acronyms
    # A single letter is not a name: "I" is always capitalised.
    return (is_one_name or not token.opens_sentence) and len(folded_word.partition("'")[0]) > 1


def _extract_name_spans(
    text: str,
    token_group: list[Token],
    lexicon: Lexicon,
) -> Iterator[Span]:
    """Yield the name in *token_group*, a group of capitalised words, if there is one.

    Articles at the start and a final 's are not part of the name. A single article is no name. In a
    language that capitalises all nouns, a single noun is no name either.
    """
    # "The Who" keeps its article, because all of its words are stop words.
    while (
        len(token_group) > 1
        and token_group[0].folded_text in lexicon.articles
        and not _are_stop_words(token_group, lexicon)
    ):
        token_group = token_group[1:]
    has_acronym = any(token.kind == "acronym" for token in token_group)
    if token_group[0].folded_text in lexicon.articles and len(token_group) == 1:
        return
    if lexicon.nouns_are_capitalised and not has_acronym and len(token_group) < 2:
        return
    start = token_group[0].start
    end = token_group[-1].end
    if token_group[-1].folded_text.endswith("'s"):
        end -= 2
    yield Span("name", text[start:end], start, end)


def _are_stop_words(token_group: Sequence[Token], lexicon: Lexicon) -> bool:
    """Return whether all tokens of *token_group* are stop words, as in the name "The Who"."""
    return all(token.folded_text in lexicon.stop for token in token_group)
