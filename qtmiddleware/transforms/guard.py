"""Check that a model's texts keep the important spans of the query. Repair or drop other texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.preprocessing import detect_language, find_dominant_script
from qtmiddleware.preprocessing.text import split_terms
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
    """
    spans = [(kind, span) for kind, span in dict.fromkeys(required_spans) if span.strip()]
    # A dict, because it keeps the order of the notes and drops duplicates.
    notes = dict.fromkeys(transformation.notes)
    guard = _Guard(
        query,
        f"{query} {conversation}",
        spans,
        may_be_english,
        glossary,
        notes,
    )
    texts_by_field = {
        name: guard.check_field(row, transformation.texts(name))
        for name, row in TEXT_FIELDS.items()
    }
    return build_transformation(texts_by_field, notes)


@dataclass(frozen=True, slots=True)
class _Guard:
    """Checks a model's texts for one query, and collects a note for each change."""

    query: str
    context: str
    required_spans: Spans
    may_be_english: bool
    glossary: GlossaryTerms
    notes: dict[tuple[str, str], None]

    def check_field(self, text_field: TextField, texts: Sequence[str]) -> Sequence[str]:
        """Return the kept and repaired *texts* of *text_field*."""
        name, guard = text_field.name, text_field.guard
        kept = [text for text in texts if self.is_in_query_language(text, guard)]
        # A few key terms in another script are common.
        if guard == "terms" and kept:
            return texts
        if len(kept) < len(texts):
            self.notes[name, _LANGUAGE_MISMATCH] = None
        if guard == "each":
            return [fixed for text in kept if (fixed := self.repair_text(name, text))]
        # A broader question or a passage need not contain the spans.
        return self.repair_sub_queries(name, kept) if guard == "together" else kept

    def is_in_query_language(self, text: str, guard: str) -> bool:
        """Return whether *text* is in the script of the query, and in no unwanted English."""
        if guard == "terms":
            return not is_in_other_script(text, self.query) or (
                text.casefold() in self.query.casefold()
            )
        if not self.may_be_english and detect_language(text) == "en":
            return False
        return not is_in_other_script(text, self.query)

    def repair_text(self, field_name: str, text: str) -> str:
        """Return *text*, with any lost spans appended; ``""`` if *text* must be dropped."""
        lost = self.find_lost_spans([text])
        if not lost:
            return text
        # A negation cannot be appended: "(not)" behind a text has no meaning. A name behind a text
        # without any word of the query would make a query of any text.
        is_denied = any(kind == "negation" for kind, _ in lost)
        span_count = sum(kind != "negation" for kind, _ in self.required_spans)
        has_lost_most = len(lost) > 1 and 2 * len(lost) > span_count
        repaired = ""
        if not (is_denied or has_lost_most) and has_common_word(text, self.context):
            repaired = self.append_spans(field_name, text, lost)
        if not repaired:
            self.notes[field_name, f"dropped: {self.describe_spans(lost)}"] = None
        return repaired

    def repair_sub_queries(self, field_name: str, texts: list[str]) -> list[str]:
        """Return *texts*, with the spans that none of them contains appended to one of them.

        This is the sub-query that shares the most words with the query. If the spans are too many
        or too long to append, *texts* stay as they are. If spans are lost and no sub-query shares a
        word with the query or the conversation before it, returns ``[]``.
        """
        # A sub-query can be right without the negation: "X but not Y" asks about X and about Y.
        lost = [(kind, span) for kind, span in self.find_lost_spans(texts) if kind != "negation"]
        if not texts or not lost:
            return texts
        if not any(has_common_word(text, self.context) for text in texts):
            self.notes[field_name, f"dropped: {self.describe_spans(lost)}"] = None
            return []
        words = set(split_terms(self.query))
        nearest = max(texts, key=lambda text: len(words.intersection(split_terms(text))))
        repaired = self.append_spans(field_name, nearest, lost) or nearest
        return [repaired if text is nearest else text for text in texts]

    def find_lost_spans(self, texts: Sequence[str]) -> Spans:
        """Return the required spans that none of *texts* contains."""
        return [
            (kind, span)
            for kind, span in self.required_spans
            if not any(self.contains_span(kind, span, text) for text in texts)
        ]

    def contains_span(self, kind: str, span: str, text: str) -> bool:
        """Return whether *text* contains *span*, or *span* with a term in another glossary form."""
        if keeps_span(kind, span, text, query=self.query):
            return True
        if kind == "negation":
            return False
        folded_span = span.casefold()
        for term, forms in self.glossary:
            folded_term = term.casefold()
            is_part = folded_span in folded_term
            if not is_part and folded_term not in folded_span:
                continue
            for form in forms:
                other_span = form if is_part else folded_span.replace(folded_term, form)
                if keeps_span("name", other_span, text, query=form):
                    return True
        return False

    def append_spans(self, field_name: str, text: str, lost: Spans) -> str:
        """Return *text* with *lost* spans in brackets; ``""`` if they are too many or too long."""
        shown = dict.fromkeys(format_span(kind, span) for kind, span in lost)
        repaired = f"{text} ({', '.join(shown)})"
        if len(lost) > MAX_REPAIRS or len(repaired) > MAX_CHARS:
            return ""
        self.notes[field_name, f"repaired: {self.describe_spans(lost)}"] = None
        return repaired

    def describe_spans(self, lost: Spans) -> str:
        """Return the kind and the position of each lost span, such as ``number 12:16``, for a note.

        Notes never contain a span's text. Positions are character offsets in `query`.
        """
        places = ((kind, self.query.find(span), len(span)) for kind, span in lost[:MAX_REPAIRS])
        return ", ".join(f"{kind} {start}:{start + length}" for kind, start, length in places)


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
    query_script = _find_main_script(query)
    text_script = _find_main_script(text)
    if not query_script or not text_script or query_script == text_script:
        return False
    in_text = _compute_letter_fraction(text, query_script)
    in_query = _compute_letter_fraction(query, text_script)
    if in_text >= _MIN_FRACTION_OF_TEXT or (in_text and in_query):
        return False
    return text_script == "latin" or in_query < _MIN_FRACTION_OF_QUERY


def _find_main_script(text: str) -> str:
    """Return the main script of *text*; ``""`` if *text* has no letters."""
    main_script = _find_script(text)
    if main_script != "latin" or text.isascii():
        return main_script
    others = Counter(_find_script(it) for it in text if it.isalpha() and not it.isascii())
    del others["latin"]
    [(likeliest, letters)] = others.most_common(1) or [("", 0)]
    # A Han or Hangul character is about one word. In other scripts a word has about five letters.
    weight = letters if likeliest in {"han", "hangul"} else letters / 5
    latin_words = re.findall("[A-Za-z]+", text)
    return likeliest if weight and weight >= len(latin_words) else main_script


def _find_script(text: str) -> str:
    # Japanese is written in three scripts together, so they count as one.
    script = find_dominant_script(text)
    return "han" if script in ("japanese", "hiragana", "katakana") else script


def _compute_letter_fraction(text: str, script: str) -> float:
    letters = [char for char in text if char.isalpha()]
    # A text repeats its letters, and finding a script is slow.
    scripts = {char: _find_script(char) for char in set(letters)}
    return sum(scripts[char] == script for char in letters) / max(1, len(letters))
