"""Check that a model's texts keep the important parts of the query. Repair or drop other texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.preprocessing import detect_language, dominant_script
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.transforms.parsing import build_transformation
from qtmiddleware.transforms.prompt import Facts
from qtmiddleware.transforms.span_matching import keeps_span, write_span

Spans = Sequence[tuple[str, str]]
"""Spans of a query, each as (kind, text)."""

MAX_REPAIRS: Final = 5
"""The maximum number of lost spans that are appended to a text.

A text that lost more spans is dropped. A sub-query is kept unchanged instead.
"""
MAX_CHARS: Final = 1_000
"""The maximum number of characters of a repaired text.

A text that would become longer is dropped. A sub-query is kept unchanged instead.
"""

_LANGUAGE_MISMATCH: Final = "language_mismatch"
# Japanese is written in all of these together, so they count as one script.
_SCRIPTS_OF_JAPANESE: Final = frozenset(["han", "japanese", "hiragana", "katakana"])
_LEAST_SHARE_OF_TEXT: Final = 0.2
"""A text passes if at least this share of its letters is in the query's main script."""
_LEAST_SHARE_OF_QUERY: Final = 0.1
"""A text passes if at least this share of the query's letters is in the text's main script."""


def guard(
    transformation: Transformation,
    *,
    query: str,
    must_keep: Spans,
    may_be_english: bool = True,
    facts: Facts = (),
) -> Transformation:
    """Repair or drop texts that lost important parts of *query*, and return the new transformation.

    Each change adds a note. The rules depend on the field:

    - A standalone form, rewrite or paraphrase must contain every span of *must_keep*. Lost spans
      are appended. A text that lost a negation, most of the spans or more than `MAX_REPAIRS` spans
      is dropped.
    - At least one sub-query must contain each span. Lost spans are appended to the sub-query that
      is most similar to *query*.
    - A step-back or hypothetical passage may lose any span.
    - A text in another script than *query* is dropped. Key terms are dropped only if all of them
      are in another script.

    Args:
        transformation: The texts of the model's reply.
        query: The user's question, or its standalone form.
        must_keep: The important spans of *query*, as (kind, text). The kinds are ``quote``,
            ``identifier``, ``number``, ``negation``, ``name`` and ``url``.
        may_be_english: Whether to keep texts in English. English key terms are always kept.
        facts: Terms of *query*, each with its other forms. A text may use any form of a term.
    """
    return _Guard(query, must_keep, may_be_english, facts).check(transformation)


class _Guard:
    """Checks a model's texts for one query, and collects a note for each change."""

    def __init__(self, query: str, must_keep: Spans, may_be_english: bool, facts: Facts) -> None:
        self.query = query
        self.must_keep = [(kind, span) for kind, span in dict.fromkeys(must_keep) if span.strip()]
        self.may_be_english = may_be_english
        self.facts = facts
        self.notes: dict[tuple[str, str], None] = {}

    def check(self, transformation: Transformation) -> Transformation:
        """Return *transformation* with bad texts repaired or dropped, and a note per change."""
        self.notes.update(dict.fromkeys(transformation.notes))
        texts_by_field = {
            name: self._check_field(row, texts)
            for name, row in TEXT_FIELDS.items()
            if (texts := transformation.texts(name))
        }
        return build_transformation(texts_by_field, self.notes)

    def _check_field(self, row: TextField, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Apply the rule of the field *row* to *texts*, and return the kept and repaired texts."""
        match row.guard:
            case "each":
                return tuple(
                    [kept for text in texts if (kept := self._repair(row.name, text)) is not None]
                )
            case "together":
                return self._repair_sub_queries(
                    row.name, [text for text in texts if self._is_in_query_language(row.name, text)]
                )
            case "terms":
                return self._check_terms(row.name, texts)
            case _:
                return tuple(text for text in texts if self._is_in_query_language(row.name, text))

    def _is_in_query_language(self, field: str, text: str) -> bool:
        """Return whether the script and language of *text* are allowed. Add a note if not.

        Another script than the query's is not allowed. English is not allowed if `may_be_english`
        is false.
        """
        if is_other_script(text, self.query) or (
            not self.may_be_english and detect_language(text) == "en"
        ):
            self.notes[field, _LANGUAGE_MISMATCH] = None
            return False
        return True

    def _repair(self, field: str, text: str) -> str | None:
        """Return *text* with its lost spans appended, or ``None`` if the text must be dropped."""
        if not self._is_in_query_language(field, text):
            return None
        lost = [
            (kind, span) for kind, span in self.must_keep if not self._holds_span(kind, span, text)
        ]
        if not lost:
            return text
        description = self._describe_spans(lost)
        repaired = _append_spans(text, lost)
        if (
            any(kind == "negation" for kind, _ in lost)
            or self._is_beyond_repair(lost)
            or len(repaired) > MAX_CHARS
        ):
            self.notes[field, f"dropped: {description}"] = None
            return None
        self.notes[field, f"repaired: {description}"] = None
        return repaired

    def _holds_span(self, kind: str, span: str, text: str) -> bool:
        """Return whether *text* contains *span*, possibly with a term in another glossary form."""
        if keeps_span(kind, span, text, query=self.query):
            return True
        folded_span = span.casefold()
        return kind != "negation" and any(
            (folded_span in term.casefold() or term.casefold() in folded_span)
            and _has_other_form(term, folded_span, forms, text)
            for term, forms in self.facts
        )

    def _repair_sub_queries(self, field: str, texts: list[str]) -> tuple[str, ...]:
        """Return the sub-queries *texts*, with lost spans appended to one of them.

        A span is lost if no sub-query contains it. Lost spans are appended to the sub-query that
        shares the most words with the query. Negations are not checked.
        """
        if not texts:
            return ()
        # One part of a question can be asked without the negation that joins the parts.
        required = [(kind, span) for kind, span in self.must_keep if kind != "negation"]
        lost = [
            pair for pair in required if not any(self._holds_span(*pair, text) for text in texts)
        ]
        if lost and len(lost) <= MAX_REPAIRS:
            query_tokens = set(split_tokens(self.query))
            closest = max(
                range(len(texts)),
                key=lambda place: (len(query_tokens & set(split_tokens(texts[place]))), -place),
            )
            repaired = _append_spans(texts[closest], lost)
            if len(repaired) <= MAX_CHARS:
                texts[closest] = repaired
                self.notes[field, f"repaired: {self._describe_spans(lost)}"] = None
        return tuple(texts)

    def _check_terms(self, field: str, terms: tuple[str, ...]) -> tuple[str, ...]:
        """Return *terms*, or ``()`` if all of them are in another script and not in the query.

        Single key terms in another script are common, so they are kept.
        """
        folded_query = self.query.casefold()
        if all(
            is_other_script(term, self.query) and term.casefold() not in folded_query
            for term in terms
        ):
            self.notes[field, _LANGUAGE_MISMATCH] = None
            return ()
        return terms

    def _describe_spans(self, lost: Spans) -> str:
        """Describe each lost span for a note by kind and position, such as ``number 12:16``.

        The note does not contain the span's text. Positions are offsets in `query`, which is the
        standalone form of a question in a conversation. For notes on the standalone form itself,
        `query` is the user's question.
        """
        places = [
            (kind, _find_position(span, self.query), len(span)) for kind, span in lost[:MAX_REPAIRS]
        ]
        shown = [f"{kind} {start}:{start + length}" for kind, start, length in places]
        return ", ".join(shown) + (
            f" and {len(lost) - MAX_REPAIRS} more" if len(lost) > MAX_REPAIRS else ""
        )

    def _is_beyond_repair(self, lost: Spans) -> bool:
        """Return whether *lost* has more than `MAX_REPAIRS` spans, or most of the query's spans.

        The result is ``False`` for a single lost span.
        """
        kinds = [kind for kind, _ in self.must_keep if kind != "negation"]
        return len(lost) > MAX_REPAIRS or (len(lost) > 1 and 2 * len(lost) > len(kinds))


def _has_other_form(term: str, span: str, forms: Sequence[str], text: str) -> bool:
    """Return whether *text* contains *span* with *term* replaced by one of its *forms*.

    The words of *span* need not be adjacent in *text*.
    """
    other_words = span.replace(term.casefold(), " ").split() if term.casefold() in span else []
    return any(
        keeps_span("identifier", form, text, query=form)
        and all(keeps_span("name", word, text, query=word) for word in other_words)
        for form in forms
    )


def _find_position(span: str, query: str) -> int:
    """Return the position of *span* in *query*, -1 if *query* does not contain it.

    A match of whole words is preferred to a match inside a longer word.
    """
    match = re.search(rf"(?<!\w){re.escape(span)}(?!\w)", query)
    return match.start() if match else query.find(span)


def _append_spans(text: str, lost: Spans) -> str:
    """Return *text* with the *lost* spans appended in brackets."""
    return f"{text} ({', '.join(dict.fromkeys(write_span(kind, span) for kind, span in lost))})"


def is_other_script(text: str, query: str) -> bool:
    """Return whether *text* is in another script than *query*.

    The result is ``True`` if their main scripts differ, except in these cases:

    - At least 20 % of the letters of *text* are in the main script of *query*.
    - Each of the two texts also has letters in the main script of the other.
    - At least 10 % of the letters of *query* are in the main script of *text*, and this script is
      not Latin. Latin letters may be technical terms.
    """
    if text.isascii() and query.isascii():
        return False
    query_script, text_script = _find_script(query), _find_script(text)
    if not query_script or not text_script or query_script == text_script:
        return False
    in_text, in_query = _measure_share(text, query_script), _measure_share(query, text_script)
    if in_text >= _LEAST_SHARE_OF_TEXT or (in_text and in_query):
        return False
    return text_script == "latin" or in_query < _LEAST_SHARE_OF_QUERY


def _find_script(text: str) -> str:
    """Return the main script of *text*, ``""`` if *text* has no letters.

    If Latin is mixed with other scripts, words are counted instead of letters. Otherwise, a few
    long technical terms could make Latin the main script.
    """
    main_script = _unify_script(dominant_script(text))
    if main_script != "latin" or text.isascii():
        return main_script
    others = Counter(
        _unify_script(dominant_script(char))
        for char in text
        if char.isalpha() and not char.isascii()
    )
    del others["latin"]
    likeliest, letters = max(others.items(), key=lambda item: item[1], default=("", 0))
    # A Han or Hangul character is about one word. In other scripts a word has about five letters.
    weight = letters if likeliest in {"han", "hangul"} else letters / 5
    return likeliest if weight and weight >= len(re.findall("[A-Za-z]+", text)) else main_script


def _unify_script(script: str) -> str:
    """Return ``han`` for any script of Japanese, and every other *script* unchanged."""
    return "han" if script in _SCRIPTS_OF_JAPANESE else script


def _measure_share(text: str, script: str) -> float:
    """Return the share of the letters of *text* that are in *script*, from 0 to 1."""
    letters = [char for char in text if char.isalpha()]
    of_script = {char for char in set(letters) if _unify_script(dominant_script(char)) == script}
    return sum(char in of_script for char in letters) / max(1, len(letters))
