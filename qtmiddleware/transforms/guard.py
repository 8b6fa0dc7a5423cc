"""Check that a model's texts keep the important spans of the query. Repair or drop other texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.preprocessing import detect_language, find_dominant_script
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.transforms.chatter import has_common_word
from qtmiddleware.transforms.prompt import GlossaryTerms
from qtmiddleware.transforms.replies import build_transformation
from qtmiddleware.transforms.span_matching import format_span, keeps_span

Spans = Sequence[tuple[str, str]]
"""Spans of a query, each as (kind, text)."""

MAX_REPAIRS: Final = 5
"""The maximum number of lost spans that can be appended to a text.

A text that lost more spans is dropped; a sub-query is kept unchanged.
"""
MAX_CHARS: Final = 1_000
"""The maximum number of characters of a repaired text.

A text that would become longer is dropped; a sub-query is kept unchanged.
"""

_LANGUAGE_MISMATCH: Final = "language_mismatch"
# Japanese is written in all of these together, so they count as one script.
_SCRIPTS_OF_JAPANESE: Final = frozenset(["han", "japanese", "hiragana", "katakana"])
_MIN_FRACTION_OF_TEXT: Final = 0.2
"""A text passes if at least this fraction of its letters is in the query's main script."""
_MIN_FRACTION_OF_QUERY: Final = 0.1
"""A text passes if at least this fraction of the query's letters is in the text's main script."""


def guard_transformation(
    transformation: Transformation,
    *,
    query: str,
    required_spans: Spans,
    may_be_english: bool = True,
    glossary: GlossaryTerms = (),
    conversation: str = "",
) -> Transformation:
    """Return *transformation* without texts that lost important spans of *query*.

    Some texts are repaired instead. Each change adds a note. The rules depend on the field:

    - A standalone question, rewrite or paraphrase must contain all *required_spans*. Lost spans are
      appended. A text is dropped instead if it lost a negation, most of the spans, or more than
      `MAX_REPAIRS` spans, or if it contains no topic word of *query* or *conversation*.
    - The sub-queries must contain all spans together. Lost spans are appended to the sub-query that
      is most similar to *query*. If none of them contains a word of *query*, all are dropped.
    - A step-back question or hypothetical passage may lose any span.
    - Texts in another script than *query* are dropped. Key terms are dropped only if all of them
      are in another script.

    Args:
        transformation: The texts of the model's reply.
        query: The user's question or, in a conversation, its standalone form.
        required_spans: The important spans of *query*, as (kind, text). The kinds are ``quote``,
            ``identifier``, ``number``, ``negation``, ``name`` and ``url``.
        may_be_english: Whether to keep texts in English. English key terms are always kept.
        glossary: The glossary's terms in *query*, each with its other forms. A text may use any of
            them.
        conversation: The messages before *query*, to which a standalone question may refer.
    """
    guard = _Guard(query, required_spans, may_be_english, glossary, conversation)
    return guard.check_texts(transformation)


class _Guard:
    """Checks a model's texts for one query, and collects a note for each change."""

    def __init__(
        self,
        query: str,
        required_spans: Spans,
        may_be_english: bool,
        glossary: GlossaryTerms,
        conversation: str,
    ) -> None:
        self.query = query
        self.context = f"{query} {conversation}"
        self.required_spans = [
            (kind, span) for kind, span in dict.fromkeys(required_spans) if span.strip()
        ]
        self.may_be_english = may_be_english
        self.glossary = glossary
        # A dict, because it keeps the order of the notes and drops duplicates.
        self.notes: dict[tuple[str, str], None] = {}

    def check_texts(self, transformation: Transformation) -> Transformation:
        """Return *transformation* with all texts checked, and a note on each change."""
        self.notes.update(dict.fromkeys(transformation.notes))
        texts_by_field = {
            name: self._check_field(row, texts)
            for name, row in TEXT_FIELDS.items()
            if (texts := transformation.texts(name))
        }
        return build_transformation(texts_by_field, self.notes)

    def _check_field(self, text_field: TextField, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Check the *texts* of *text_field*, and return the kept and repaired texts."""
        match text_field.guard:
            case "each":
                return tuple(
                    [
                        kept
                        for text in texts
                        if (kept := self._repair_text(text_field.name, text)) is not None
                    ]
                )
            case "together":
                return self._repair_sub_queries(
                    text_field.name,
                    [text for text in texts if self._is_in_query_language(text_field.name, text)],
                )
            case "terms":
                return self._drop_foreign_terms(text_field.name, texts)
            # A broader question or a passage need not contain the spans.
            case _:
                return tuple(
                    text for text in texts if self._is_in_query_language(text_field.name, text)
                )

    def _is_in_query_language(self, field_name: str, text: str) -> bool:
        """Return whether *text* is in the script of the query. Add a note if it is not.

        If `may_be_english` is false, English texts are rejected too.
        """
        if is_in_other_script(text, self.query) or (
            not self.may_be_english and detect_language(text) == "en"
        ):
            self.notes[field_name, _LANGUAGE_MISMATCH] = None
            return False
        return True

    def _repair_text(self, field_name: str, text: str) -> str | None:
        """Return *text*, with any lost spans appended; ``None`` if *text* must be dropped."""
        if not self._is_in_query_language(field_name, text):
            return None
        lost_spans = [
            (kind, span)
            for kind, span in self.required_spans
            if not self._contains_span(kind, span, text)
        ]
        if not lost_spans:
            return text
        description = self._describe_spans(lost_spans)
        repaired = _append_lost_spans(text, lost_spans)
        # A negation cannot be appended: "(not)" behind a text has no meaning. A name behind a text
        # without any word of the query would make a query of any text.
        if (
            any(kind == "negation" for kind, _ in lost_spans)
            or not has_common_word(text, self.context)
            or self._is_beyond_repair(lost_spans)
            or len(repaired) > MAX_CHARS
        ):
            self.notes[field_name, f"dropped: {description}"] = None
            return None
        self.notes[field_name, f"repaired: {description}"] = None
        return repaired

    def _contains_span(self, span_kind: str, span: str, text: str) -> bool:
        """Return whether *text* contains *span*, or *span* with a term in another glossary form."""
        if keeps_span(span_kind, span, text, query=self.query):
            return True
        folded_span = span.casefold()
        return span_kind != "negation" and any(
            (folded_span in term.casefold() or term.casefold() in folded_span)
            and _has_other_form(term, folded_span, forms, text)
            for term, forms in self.glossary
        )

    def _repair_sub_queries(self, field_name: str, texts: list[str]) -> tuple[str, ...]:
        """Return the sub-queries *texts*, with lost spans appended to one of them.

        A span is lost if no sub-query contains it. The lost spans are appended to the sub-query
        that has the most words in common with the query. Negations are not checked.
        """
        if not texts:
            return ()
        # A sub-query can be right without the negation: "X but not Y" asks about X and about Y.
        required = [(kind, span) for kind, span in self.required_spans if kind != "negation"]
        lost_spans = [
            pair for pair in required if not any(self._contains_span(*pair, text) for text in texts)
        ]
        if lost_spans and not any(has_common_word(text, self.context) for text in texts):
            self.notes[field_name, f"dropped: {self._describe_spans(lost_spans)}"] = None
            return ()
        if lost_spans and len(lost_spans) <= MAX_REPAIRS:
            # Of equally similar sub-queries, the first is chosen.
            query_tokens = set(split_tokens(self.query))
            closest = max(
                range(len(texts)),
                key=lambda place: (len(query_tokens & set(split_tokens(texts[place]))), -place),
            )
            repaired = _append_lost_spans(texts[closest], lost_spans)
            if len(repaired) <= MAX_CHARS:
                texts[closest] = repaired
                self.notes[field_name, f"repaired: {self._describe_spans(lost_spans)}"] = None
        return tuple(texts)

    def _drop_foreign_terms(self, field_name: str, terms: tuple[str, ...]) -> tuple[str, ...]:
        """Return the key *terms*, or ``()`` if all of them are in another script than the query.

        A term that the query contains does not count as foreign. A few terms in another script are
        common and are kept.
        """
        folded_query = self.query.casefold()
        if all(
            is_in_other_script(term, self.query) and term.casefold() not in folded_query
            for term in terms
        ):
            self.notes[field_name, _LANGUAGE_MISMATCH] = None
            return ()
        return terms

    def _describe_spans(self, lost_spans: Spans) -> str:
        """Return the kind and the position of each lost span, such as ``number 12:16``, for a note.

        Notes never contain a span's text. Positions are character offsets in `query`.
        """
        places = [
            (kind, _find_span_position(span, self.query), len(span))
            for kind, span in lost_spans[:MAX_REPAIRS]
        ]
        shown = [f"{kind} {start}:{start + length}" for kind, start, length in places]
        return ", ".join(shown) + (
            f" and {len(lost_spans) - MAX_REPAIRS} more" if len(lost_spans) > MAX_REPAIRS else ""
        )

    def _is_beyond_repair(self, lost_spans: Spans) -> bool:
        """Return whether a text lost more than `MAX_REPAIRS` spans or most of the query's spans.

        Returns ``False`` for a single lost span.
        """
        kinds = [kind for kind, _ in self.required_spans if kind != "negation"]
        return len(lost_spans) > MAX_REPAIRS or (
            len(lost_spans) > 1 and 2 * len(lost_spans) > len(kinds)
        )


def _has_other_form(term: str, span: str, other_forms: Sequence[str], text: str) -> bool:
    """Return whether *text* contains *span* with *term* replaced by one of its *other_forms*.

    The words of *span* need not be adjacent in *text*.
    """
    other_words = span.replace(term.casefold(), " ").split() if term.casefold() in span else []
    return any(
        keeps_span("identifier", form, text, query=form)
        and all(keeps_span("name", word, text, query=word) for word in other_words)
        for form in other_forms
    )


def _find_span_position(span: str, query: str) -> int:
    """Return the position of *span* in *query*; -1 if *query* does not contain it.

    A match of whole words takes precedence over a match inside a longer word.
    """
    match = re.search(rf"(?<!\w){re.escape(span)}(?!\w)", query)
    return match.start() if match else query.find(span)


def _append_lost_spans(text: str, lost_spans: Spans) -> str:
    """Return *text* with *lost_spans* appended in brackets."""
    return (
        f"{text} ({', '.join(dict.fromkeys(format_span(kind, span) for kind, span in lost_spans))})"
    )


def is_in_other_script(text: str, query: str) -> bool:
    """Return whether *text* is in another script than *query*.

    This is the case if their main scripts differ, with three exceptions:

    - At least 20 % of the letters of *text* are in the main script of *query*.
    - Both texts also have letters in the main script of the other.
    - At least 10 % of the letters of *query* are in the main script of *text*, and this script is
      not Latin. Latin letters may be technical terms.
    """
    if text.isascii() and query.isascii():
        return False
    query_script, text_script = _find_main_script(query), _find_main_script(text)
    if not query_script or not text_script or query_script == text_script:
        return False
    in_text, in_query = (
        _compute_letter_fraction(text, query_script),
        _compute_letter_fraction(query, text_script),
    )
    if in_text >= _MIN_FRACTION_OF_TEXT or (in_text and in_query):
        return False
    return text_script == "latin" or in_query < _MIN_FRACTION_OF_QUERY


def _find_main_script(text: str) -> str:
    """Return the main script of *text*; ``""`` if *text* has no letters.

    If Latin is mixed with another script, words are counted instead of letters, because a few long
    technical terms would otherwise make Latin the main script.
    """
    main_script = _unify_script(find_dominant_script(text))
    if main_script != "latin" or text.isascii():
        return main_script
    others = Counter(
        _unify_script(find_dominant_script(char))
        for char in text
        if char.isalpha() and not char.isascii()
    )
    del others["latin"]
    likeliest, letters = max(others.items(), key=lambda item: item[1], default=("", 0))
    # A Han or Hangul character is about one word. In other scripts a word has about five letters.
    weight = letters if likeliest in {"han", "hangul"} else letters / 5
    return likeliest if weight and weight >= len(re.findall("[A-Za-z]+", text)) else main_script


def _unify_script(script: str) -> str:
    """Return ``han`` for all scripts of Japanese. Return other scripts unchanged."""
    return "han" if script in _SCRIPTS_OF_JAPANESE else script


def _compute_letter_fraction(text: str, script: str) -> float:
    """Return the fraction of the letters of *text* that are in *script*, from 0 to 1."""
    letters = [char for char in text if char.isalpha()]
    of_script = {
        char for char in set(letters) if _unify_script(find_dominant_script(char)) == script
    }
    return sum(char in of_script for char in letters) / max(1, len(letters))
