"""Check that a model's texts keep the important spans of the query. Repair or drop other texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.preprocessing import detect_language, find_dominant_script
from qtmiddleware.preprocessing.lexicon import load_all_lexicons
from qtmiddleware.preprocessing.text import (
    fold_text,
    fold_words,
    split_terms,
    split_words,
    unify_letters,
)
from qtmiddleware.transforms.chatter import has_common_word
from qtmiddleware.transforms.prompt import GlossaryTerms
from qtmiddleware.transforms.replies import build_transformation

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


def guard_conversation(
    texts: Transformation,
    *,
    query: str,
    language: str,
    find_spans: Callable[[str], Spans],
    glossary: GlossaryTerms = (),
    conversation: str = "",
) -> Transformation:
    """Return *texts* as `guard_transformation` does, with a standalone form as the new query.

    The standalone form is compared with *query*, and all other texts are compared with the
    standalone form. *find_spans* returns the required spans of a text.
    """
    guard = partial(
        guard_transformation,
        # Models may answer in English, which is easy to detect. Other languages with the same
        # script are harder to tell apart.
        may_be_english=language in ("auto", "en"),
        glossary=glossary,
        conversation=conversation,
    )
    if texts.standalone:
        form = Transformation(standalone=texts.standalone)
        guarded = guard(form, query=query, required_spans=find_spans(query))
        notes = texts.notes + guarded.notes
        texts = replace(texts, standalone=guarded.standalone, notes=notes)
    query = texts.standalone or query
    return guard(texts, query=query, required_spans=find_spans(query))


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
        if _keeps_span(kind, span, text, query=self.query):
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
                if _keeps_span("name", other_span, text, query=form):
                    return True
        return False

    def append_spans(self, field_name: str, text: str, lost: Spans) -> str:
        """Return *text* with *lost* spans in brackets; ``""`` if they are too many or too long."""
        shown = dict.fromkeys(_format_span(kind, span) for kind, span in lost)
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

    Technical terms are often Latin, so a text with another main script passes in two cases:

    - At least 20 % of the letters of *text* are in the main script of *query*.
    - At least 10 % of the letters of *query* are in the main script of *text*, which is not Latin.
    """
    if text.isascii() and query.isascii():
        return False
    query_script, text_script = _find_main_script(query), _find_main_script(text)
    if not query_script or not text_script or query_script == text_script:
        return False
    if _compute_letter_fraction(text, query_script) >= _MIN_FRACTION_OF_TEXT:
        return False
    in_query = _compute_letter_fraction(query, text_script)
    return text_script == "latin" or in_query < _MIN_FRACTION_OF_QUERY


def _find_main_script(text: str) -> str:
    # A Chinese, Japanese or Korean character is about a word, so a Latin word counts as a letter.
    script = _find_script(re.sub("[A-Za-z]+", "a", text))
    return script if script in ("han", "hangul") else _find_script(text)


def _find_script(text: str) -> str:
    # Japanese is written in three scripts together, so they count as one.
    script = find_dominant_script(text)
    return "han" if script in ("japanese", "hiragana", "katakana") else script


def _compute_letter_fraction(text: str, script: str) -> float:
    letters = [char for char in text if char.isalpha()]
    # A text repeats its letters, and finding a script is slow.
    scripts = {char: _find_script(char) for char in set(letters)}
    return sum(scripts[char] == script for char in letters) / max(1, len(letters))


# --- spans in a text ------------------------------------------------------------------------------


def _keeps_span(kind: str, span: str, text: str, *, query: str) -> bool:
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
    if _compile_identifier(span).search(fold_text(text)):
        return True
    return kind == "name" and _has_name(span, text)


def _format_span(kind: str, span: str) -> str:
    """Return *span* for appending to a text: a ``quote`` in quotation marks, others unchanged."""
    bare = span.strip(_QUOTE_MARKS)
    return f'"{bare}"' if kind == "quote" else span.strip()


def _has_phrase(phrase: str, text: str) -> bool:
    """Return whether *text* contains *phrase*, ignoring case, accents and punctuation."""
    words = " ".join(fold_words(phrase))
    return f" {words} " in f" {' '.join(fold_words(text))} " if words else phrase in text


@lru_cache(maxsize=256)
def _compile_identifier(span: str) -> re.Pattern[str]:
    """Return a pattern for the identifier *span* in folded text, with any separators."""
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
    negations = load_words("negations") | set(fold_words(span))
    folded_query, folded_text = fold_text(query), fold_text(text)
    # "are non-stop" does not keep the negation of "aren't non-stop".
    for compound in set(_COMPOUND.findall(folded_query)):
        folded_text = folded_text.replace(compound, " ")
    denials = _find_denials(folded_query)
    # A word such as "missing" may be what the query is about.
    topics = load_words("denials").intersection(denials) - negations
    required = [denial for denial in denials if denial not in topics]
    kept = [denial for denial in _find_denials(folded_text) if denial not in topics]
    # "Can I pay without a card?" is not the same as "Can't I pay without a card?"
    excluding = load_words("exclusions").intersection(required)
    needs_two = bool(excluding) and not excluding.issuperset(required)
    return len(kept) > needs_two


def _find_denials(folded_text: str) -> list[str]:
    """Return the negating words, contractions and characters in *folded_text*."""
    denials = load_words("denials")
    words = [word for word in split_words(folded_text) if word in denials]
    return _compile_denials().findall(folded_text) + words


@cache
def load_words(kind: str) -> frozenset[str]:
    """Return the folded words of all languages under *kind* in the lexicons."""
    return frozenset(
        fold_text(word) for lexicon in load_all_lexicons() for word in getattr(lexicon, kind)
    )


@cache
def _compile_denials() -> re.Pattern[str]:
    """Return a pattern for negations that are a part of a word, such as the "n't" in "isn't"."""
    patterns = chain.from_iterable(lexicon.denial_patterns for lexicon in load_all_lexicons())
    return re.compile("|".join(map(unify_letters, patterns)))
