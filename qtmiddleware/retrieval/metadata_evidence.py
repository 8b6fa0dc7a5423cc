"""Score passages by the metadata values that the question names.

The answer to "Hotel limit for Germany in 2024" may be a passage that mentions Germany and 2024 only
in its metadata. Fields need no configuration: a field is used if its values differ between the
candidates. A value matches the question under these conditions:

========  ==========================================================================================
periods   Dates, months, quarters and years: the value shares a day with a period in the question.
versions  Numbers with dots: compared number by number, so that 3.10 comes after 3.9.
words     Short texts: all words of the value are in the question. Codes must be equal.
numbers   Other numbers: the number and the name of the field are in the question.
========  ==========================================================================================

Metadata can only raise a score. Missing values add nothing. If the question names a value of a
field, "All" in this field adds the fraction `NEUTRAL` of a match. `python -m benchmarks.metadata`
repeats the measurements behind the constants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from qtmiddleware.preprocessing.dates import (
    Period,
    Times,
    Version,
    read_period,
    read_version,
    split_date_tokens,
)
from qtmiddleware.retrieval.question_words import WordRules, find_stem
from qtmiddleware.retrieval.responses import DOCUMENT_IDS, IDS, SCORES, TEXTS

WEIGHT: Final = 2.0
"""The amount that a passage's score gains if the question names one of its metadata values.

The unit is the typical gap between the function's high and low scores. Any weight from .5 to 4
gives the same results within .002 on the data set used to choose the weight. At 1, with evenly
spaced scores, one more matching value lifts the last passage of a list above the first.
"""
NEUTRAL: Final = 0.5
"""The fraction of `WEIGHT` for "All", if the question names another value of the same field."""
MOST_FIELDS: Final = 40
"""How many metadata fields of a passage are read."""
MOST_CHARS: Final = 64
"""The maximum number of characters in a value. Longer values are not read."""
MOST_WORDS: Final = 5
"""The maximum number of words in a value. Values with more words are not read."""
MOST_LISTED: Final = 16
"""How many values of a list are read."""
_MOST_NOTED: Final = 4

# The words of these fields already count as words of the text, or they differ in every passage.
_SKIPPED_FIELDS: Final = frozenset((*TEXTS, *IDS, *DOCUMENT_IDS, *SCORES)).union(
    """
    title summary heading url uri link href source src path file filename file_name file_path
    filepath page page_number page_label ids parent_id hash checksum namespace values vector
    embedding _node_content chunk_index index position
    """.split()  # noqa: SIM905
)
_NEUTRAL_TEXTS: Final = frozenset(
    """
    all any every everyone everything * - none null n/a na unknown general global other alle alles
    alla tous toutes tout todos todas todo tutti tutte tutto
    """.split()  # noqa: SIM905
)
_TIME_NAMES: Final = (
    "date",
    "time",
    "created",
    "updated",
    "modified",
    "published",
    "_at",
    "_on",
)
_VERSION_NAMES: Final = ("vers", "release", "build", "tag")
# Unix times in seconds, from 1979 to 2128. A number outside this range is not read as a time.
_OLDEST_STAMP, _NEWEST_STAMP = 3e8, 5e9


@dataclass(eq=False, repr=False, slots=True)
class MetadataEvidence:
    """The evidence that metadata gives for each candidate.

    Attributes:
        shares: The amount to add to each candidate's score, as for words.
        matched: For each candidate, the fraction of the question's metadata values that it has.
        notes: Trace notes on dates and versions. Other values may be people's names.
    """

    shares: Sequence[float]
    matched: Sequence[float]
    notes: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class _Value:
    """One parsed value of a metadata field. Equal texts usually give the same object.

    *kind* is ``periods``, ``versions``, ``numbers``, ``words``, or ``""`` if the value stands for
    every value, such as "All".
    """

    folded: tuple[str, ...]
    kind: str
    period: Period | None = None
    version: Version = ()


_Row = tuple[_Value, ...]
"""The values of one field in one passage."""
_Match = tuple[str, str, list[float]]
"""What the question names, a note for the trace, and for each passage how well it matches."""


class _Column:
    """The values of one metadata field in all passages. *counts* leaves out "All" and the like."""

    def __init__(self, name: str, rows: Sequence[_Row]) -> None:
        self.name = name
        self.rows = rows
        self.counts = Counter([value for row in rows for value in row if value.kind])
        kinds = Counter([value.kind for value in self.counts])
        self.kind = max(kinds, key=lambda kind: kinds[kind], default="")
        self.has_no_repeats = len(self.counts) > 2 and max(self.counts.values()) == 1

    def score_passages(self, matching_values: Set[_Value]) -> list[float]:
        """Return 1 for each passage with one of *matching_values*, `NEUTRAL` for "All", else 0."""
        neutral = [NEUTRAL if any(not value.kind for value in row) else 0.0 for row in self.rows]
        return [
            other if matching_values.isdisjoint(row) else 1.0
            for row, other in zip(self.rows, neutral, strict=True)
        ]

    def score_newness(self, today: date | None) -> list[float]:
        """Return how new each passage is, from 0 to 1 (newest). Dates after *today* get 0."""
        latest = today or date.max
        keys: dict[_Value, Any] = {
            value: value.period.first if value.period else value.version
            for value in self.counts
            if value.kind == self.kind and not (value.period and value.period.first > latest)
        }
        places = {key: place for place, key in enumerate(sorted(set(keys.values())))}
        last_place = max(1, len(places) - 1)
        return [
            max((places[keys[value]] / last_place for value in row if value in keys), default=0.0)
            for row in self.rows
        ]


def collect_metadata_evidence(
    times: Times,
    metadata: Sequence[Mapping[str, Any]],
    rules: WordRules,
    today: date | None,
) -> MetadataEvidence | None:
    """Return the evidence in *metadata* for each passage; ``None`` if there is none."""
    columns = _collect_columns(metadata)
    # Most passages have only a text and an id.
    if not columns:
        return None
    stems = frozenset(find_stem(word, rules.endings) for word in times.tokens)
    best: dict[str, list[float]] = {}
    notes: dict[str, None] = {}
    for column in columns:
        matches = (*_match_times(times, column, today), *_match_words(times, column, rules, stems))
        for demand, note, shares in matches:
            if min(shares) < max(shares):
                # Two fields may match the same demand, such as a year and a date. The better match
                # counts.
                best[demand] = list(map(max, best.get(demand, shares), shares))
                notes[note] = None
    if not best:
        return None
    sums = list(map(sum, zip(*best.values(), strict=True)))
    return MetadataEvidence(
        shares=[WEIGHT * total for total in sums],
        matched=[total / len(best) for total in sums],
        notes=list(notes)[:_MOST_NOTED],
    )


def _collect_columns(metadata: Sequence[Mapping[str, Any]]) -> list[_Column]:
    """Return the short values of each field that tells the passages apart."""
    columns: dict[str, list[_Row]] = {}
    for index, fields in enumerate(metadata):
        for name, value in _list_evidence_fields(fields):
            if row := _parse_values(name, value):
                rows = columns.setdefault(name, [()] * len(metadata))
                rows[index] = row
    return [
        _Column(name, rows) for name, rows in columns.items() if any(row != rows[0] for row in rows)
    ]


def _list_evidence_fields(fields: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the first metadata fields, without private ones and those in `_SKIPPED_FIELDS`."""
    try:
        return [
            (name, fields[name])
            for name in islice(fields, MOST_FIELDS)
            if type(name) is str and _is_evidence_field(name)
        ]
    except Exception:
        # The mapping comes from the user's code, so reading it may raise anything.
        return []


@lru_cache(maxsize=1_024)
def _is_evidence_field(name: str) -> bool:
    is_long = len(name) > MOST_CHARS
    return not (is_long or name.startswith("_") or name.lower() in _SKIPPED_FIELDS)


def _parse_values(field_name: str, value: Any) -> _Row:
    """Return the parsed values in *value*, the content of the field *field_name*."""
    kind = type(value)
    if kind is list or kind is tuple:
        texts = [item for item in value[:MOST_LISTED] if type(item) is str]
        return tuple([parsed for text in texts for parsed in _parse_text_value(text)])
    if kind is str:
        return _parse_text_value(value) if len(value) <= MOST_CHARS else ()
    if kind is int or kind is float:
        # A number may have a million digits, which would take long to write out.
        return _parse_number_value(field_name, value) if -1e15 < value < 1e15 else ()
    if kind is date or kind is datetime:
        return (_build_day_value(value.date() if kind is datetime else value),)
    return ()


@lru_cache(maxsize=4_096)
def _parse_text_value(text: str) -> _Row:
    """Return *text* as a parsed value, or nothing if it is empty or long."""
    if not text or len(text) > MOST_CHARS:
        return ()
    words = tuple(split_date_tokens(text))
    if text.strip().lower() in _NEUTRAL_TEXTS or not words:
        return (_Value(words, ""),)
    if len(words) > MOST_WORDS:
        return ()
    if period := read_period(text):
        return (_Value(words, "periods", period),)
    if version := read_version(text):
        return (_Value(words, "versions", version=version),)
    # A float holds 15 digits exactly; a longer number is an identifier.
    is_number = len(words) == 1 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 16
    return (_Value(words, "numbers" if is_number else "words"),)


@lru_cache(maxsize=4_096)
def _parse_number_value(field_name: str, value: float) -> _Row:
    # In seconds, such a number would be a time thousands of years ahead, so it is in milliseconds.
    seconds = value / 1e3 if value > 1e11 else value
    text = f"{value:.12g}"
    is_time = any(part in field_name.lower() for part in _TIME_NAMES)
    if is_time and _OLDEST_STAMP < seconds < _NEWEST_STAMP:
        return (_build_day_value(datetime.fromtimestamp(seconds, UTC).date()),)
    # For their filters, people write dates as numbers: 20240301.
    if is_time and len(text) == 8:
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    period = read_period(text) if value == int(value) else None
    return (_Value((text,), "periods" if period else "numbers", period),)


@lru_cache(maxsize=4_096)
def _build_day_value(day: date) -> _Value:
    return _Value((day.isoformat(),), "periods", Period(day, day))


def _match_times(
    times: Times,
    column: _Column,
    today: date | None,
) -> Iterator[_Match]:
    """Yield a match for each period and version of the question, and for the newest one."""
    name, kind = column.name, column.kind
    if kind == "periods":
        for period in times.periods:
            values = {
                value for value in column.counts if value.period and value.period.overlaps(period)
            }
            yield f"period {period}", f"{name} = {period}", column.score_passages(values)
    if kind == "versions":
        for versions in times.versions:
            values = {value for value in column.counts if value.version in versions}
            yield f"version {versions}", f"{name} = {versions}", column.score_passages(values)
    # A date in the question is more precise than a word such as "current".
    if not times.newest or times.periods or times.versions or times.needs_today:
        return
    # A price such as "24.90" looks like a version with two numbers.
    is_version = kind == "versions" and any(part in name.lower() for part in _VERSION_NAMES)
    if kind == "periods" or is_version:
        yield "newest", f"{name}: newest", column.score_newness(today)


def _match_words(
    times: Times,
    column: _Column,
    rules: WordRules,
    stems: Set[str],
) -> Iterator[_Match]:
    """Yield a match if the question contains values of a field of words or numbers."""
    if column.kind not in ("words", "numbers"):
        return
    if column.kind == "numbers" and stems.isdisjoint(
        find_stem(word, rules.endings) for word in split_date_tokens(column.name.replace("_", " "))
    ):
        return
    # If every passage has another value, the values are ids. An id must be named exactly.
    needs_code = column.has_no_repeats and column.kind == "words"
    named = {
        value.folded
        for value in column.counts
        if (
            _is_code_in_question(value.folded, times)
            if needs_code
            else _is_name_in_question(value.folded, times, rules, stems)
        )
    }
    # A question about "Field Service" does not mean the value "Service".
    longest = {words for words in named if not any(set(words) < set(other) for other in named)}
    if longest:
        values = {value for value in column.counts if value.folded in longest}
        which = "the value" if len(longest) == 1 else "values"
        note = f"{column.name}: {which} that the question names"
        yield f"words {column.name}", note, column.score_passages(values)


def _is_code_in_question(words: Sequence[str], times: Times) -> bool:
    """Return whether *words* are one word with a digit and another character, and named exactly."""
    code = words[0]
    has_digit = any(map(str.isdigit, code))
    return len(words) == 1 and has_digit and not code.isdigit() and code in times.tokens


def _is_name_in_question(
    words: Sequence[str],
    times: Times,
    rules: WordRules,
    stems: Set[str],
) -> bool:
    """Return whether the question contains all *words* of a value, in any form."""
    if all(
        word in rules.function_words or (len(word) < 2 and not word.isdigit()) for word in words
    ):
        return False
    # "Not in Germany" asks for other passages, but does not say which.
    if not times.denied_tokens.isdisjoint(words):
        return False
    return all(word in times.tokens or find_stem(word, rules.endings) in stems for word in words)
