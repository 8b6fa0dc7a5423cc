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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from qtmiddleware.preprocessing.dates import (
    Period,
    Times,
    Version,
    VersionRange,
    read_period,
    read_version,
    split_date_tokens,
)
from qtmiddleware.retrieval.question_words import WordRules, find_stem

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
_SKIPPED_FIELDS: Final = frozenset(
    """
    title text content page_content chunk_text chunk passage body document snippet raw_text
    description abstract answer context summary heading url uri link href source src path file
    filename file_name file_path filepath page page_number page_label id _id id_ ids chunk_id
    node_id doc_id document_id parent_id uuid pk hash checksum score _score similarity distance
    namespace values vector embedding _node_content chunk_index index position
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
# Unix times in seconds, from 1979 to 2128. A number outside this range is not read as a time.
_OLDEST_STAMP, _NEWEST_STAMP = 3e8, 5e9


@dataclass(eq=False, repr=False, slots=True)
class MetadataEvidence:
    """The evidence that metadata gives for each candidate.

    Attributes:
        shares: The amount to add to each candidate's score. The unit is the typical gap between the
            function's high and low scores.
        matched: For each candidate, the fraction of the question's metadata values that it has.
        notes: Trace notes on these values, such as ``year = 2024``. Values other than dates and
            versions are left out, because they may be people's names.
    """

    shares: Sequence[float]
    matched: Sequence[float]
    notes: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class _Value:
    """One parsed value of a metadata field. Equal texts usually give the same object.

    Attributes:
        folded: The words of the value, in lower case and without accents.
        period: The first and last day, if the value is a date, month, quarter or year.
        version: The numbers of the version, if the value is a version.
        number: The number, if the value is a number.
        neutral: Whether the value means "any value", as "All" does.
    """

    folded: tuple[str, ...]
    period: Period | None = None
    version: Version | None = None
    number: float | None = None
    neutral: bool = False

    @property
    def kind(self) -> str:
        """The type of the value: ``periods``, ``versions``, ``numbers`` or ``words``."""
        if self.period is not None:
            return "periods"
        if self.version is not None:
            return "versions"
        return "words" if self.number is None else "numbers"


_Row = tuple[_Value, ...]
"""The values of one field in one passage."""


class _Column:
    """The values of one metadata field in all passages.

    Attributes:
        rows: The values of each passage.
        counts: How often each value occurs. Values such as "All" are not counted.
        kind: The most frequent type: ``periods``, ``versions``, ``numbers`` or ``words``. ``""`` if
            there are no values.
    """

    __slots__ = ("counts", "kind", "rows")

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows
        self.counts = Counter([value for row in rows for value in row if not value.neutral])
        kinds = Counter([value.kind for value in self.counts])
        self.kind = max(kinds, key=lambda kind: kinds[kind], default="")

    @property
    def has_no_repeats(self) -> bool:
        """Whether all values are different, as ids are. False for fewer than three values."""
        return len(self.counts) > 2 and max(self.counts.values()) == 1

    @property
    def is_distinguishing(self) -> bool:
        """Whether the field distinguishes passages by values that are not ids."""
        return len(self.counts) > 1 and (
            not self.has_no_repeats or self.kind in ("periods", "versions")
        )


def collect_metadata_evidence(
    times: Times,
    metadata: Sequence[Mapping[str, Any]],
    rules: WordRules,
    today: date | None,
) -> MetadataEvidence | None:
    """Return the evidence in *metadata* for each passage; ``None`` if there is none.

    Args:
        times: The question's words, dates and versions.
        metadata: The metadata of each passage.
        rules: The word rules of the question's language.
        today: Today's date. Values after this date do not count as the newest.
    """
    columns = collect_columns(metadata)
    if not columns:
        # Most passages have only a text and an id.
        return None
    demands = _QuestionDemands(times, rules, today)
    matches = [
        demand for name, column in columns.items() for demand in demands.match_field(name, column)
    ]
    # Two fields may match the same demand, such as a year and a date. The better match counts.
    groups: dict[str, list[tuple[str, list[float]]]] = {}
    for demand, note, shares in matches:
        if min(shares) < max(shares):
            groups.setdefault(demand, []).append((note, shares))
    if "newest" in groups:
        # Dates show better than version numbers which passage is the newest.
        groups.pop("newest of versions", None)
    if not groups:
        return None
    best = [
        [max(column) for column in zip(*(shares for _, shares in group), strict=True)]
        for group in groups.values()
    ]
    sums = [sum(column) for column in zip(*best, strict=True)]
    return MetadataEvidence(
        shares=[WEIGHT * total for total in sums],
        matched=[total / len(best) for total in sums],
        notes=list(dict.fromkeys(note for group in groups.values() for note, _ in group))[
            :_MOST_NOTED
        ],
    )


def find_distinguishing_fields(metadata: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the metadata fields that distinguish passages, except fields of ids."""
    return tuple(
        name for name, column in collect_columns(metadata).items() if column.is_distinguishing
    )


def collect_columns(metadata: Sequence[Mapping[str, Any]]) -> dict[str, _Column]:
    """Return the values of each metadata field, by the field's name.

    A field is left out if it has the same values in all passages. Long values are not read.
    Metadata that cannot be read counts as empty.
    """
    columns: dict[str, list[_Row]] = {}
    for index, fields in enumerate(metadata):
        for name, value in _list_evidence_fields(fields):
            if row := _parse_values(name, value):
                rows = columns.get(name)
                if rows is None:
                    rows = columns[name] = [()] * len(metadata)
                rows[index] = row
    return {
        name: _Column(rows) for name, rows in columns.items() if any(row != rows[0] for row in rows)
    }


def _list_evidence_fields(fields: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return (name, value) for each of a passage's metadata *fields* that may be evidence.

    Returns an empty tuple if *fields* cannot be read.
    """
    try:
        names = _drop_unusable_field_names(
            tuple(fields) if len(fields) <= MOST_FIELDS else tuple(islice(fields, MOST_FIELDS))
        )
        return [(name, fields[name]) for name in names] if names else ()
    except Exception:
        # The mapping comes from the user's code, so reading it may raise anything.
        return ()


@lru_cache(maxsize=256)
def _drop_unusable_field_names(field_names: tuple[Any, ...]) -> tuple[str, ...]:
    """Return *field_names* without long names, private names and the names in `_SKIPPED_FIELDS`."""
    texts = [name for name in field_names if type(name) is str and len(name) <= MOST_CHARS]
    return tuple(
        [name for name in texts if name.lower() not in _SKIPPED_FIELDS and not name.startswith("_")]
    )


@lru_cache(maxsize=1_024)
def _is_time_field(field_name: str) -> bool:
    """Return whether the field *field_name* may contain timestamps."""
    return any(part in field_name.lower() for part in _TIME_NAMES)


def _parse_values(field_name: str, value: Any) -> _Row:
    """Return the parsed values in *value*, the content of the field *field_name*.

    *value* may be a short text, a number, a date or a list of short texts. For any other *value*,
    an empty tuple is returned.
    """
    kind = type(value)
    parsed: _Value | None = None
    if kind is str:
        parsed = _parse_text_value(value) if 0 < len(value) <= MOST_CHARS else None
    elif kind is int or kind is float:
        # A number may have a million digits, which would take long to write out.
        parsed = (
            _parse_number_value(value, is_time=_is_time_field(field_name))
            if -1e15 < value < 1e15
            else None
        )
    elif kind is date or kind is datetime:
        parsed = _build_day_value(value.date() if kind is datetime else value)
    elif kind is list or kind is tuple:
        texts = [
            item
            for item in value[:MOST_LISTED]
            if type(item) is str and 0 < len(item) <= MOST_CHARS
        ]
        return tuple([item for item in map(_parse_text_value, texts) if item is not None])
    return () if parsed is None else (parsed,)


@lru_cache(maxsize=4_096)
def _parse_text_value(value: str) -> _Value | None:
    """Return *value*, a short text, as a parsed value.

    Returns ``None`` if the text has more than `MOST_WORDS` words.
    """
    words = tuple(split_date_tokens(value))
    if value.strip().lower() in _NEUTRAL_TEXTS or not words:
        return _Value(words, neutral=True)
    if len(words) > MOST_WORDS:
        return None
    period = read_period(value)
    version = None if period is not None else read_version(value)
    # A float holds 15 digits exactly; a longer number is an identifier.
    is_number = len(words) == 1 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 16
    return _Value(words, period, version, float(words[0]) if is_number else None)


@lru_cache(maxsize=4_096)
def _parse_number_value(value: float, *, is_time: bool) -> _Value:
    """Return *value*, a number, as a parsed value.

    If *is_time* is true, a number that may be a Unix time is converted to a day (UTC).
    """
    # In seconds, such a number would be a time thousands of years ahead, so it is in milliseconds.
    seconds = value / 1e3 if value > 1e11 else value
    if is_time and _OLDEST_STAMP < seconds < _NEWEST_STAMP:
        return _build_day_value(datetime.fromtimestamp(seconds, UTC).date())
    text = f"{value:.12g}"
    return _Value((text,), read_period(text) if value == int(value) else None, None, float(value))


@lru_cache(maxsize=4_096)
def _build_day_value(day: date) -> _Value:
    """Return *day* as a parsed value."""
    return _Value((day.isoformat(),), period=Period(day, day))


class _QuestionDemands:
    """The dates, versions and words that a question demands, for comparison with metadata."""

    def __init__(self, times: Times, rules: WordRules, today: date | None) -> None:
        self._times = times
        self._rules = rules
        self._today = today
        self._tokens = frozenset(times.tokens)
        self._stems = frozenset(map(self._find_stem, times.tokens))
        # A date in the question is more precise than a word such as "current".
        self._wants_newest = times.newest and not (
            times.periods or times.versions or times.needs_today
        )

    def _find_stem(self, word: str) -> str:
        """Return the stem of *word*, by the rules of the question's language."""
        return find_stem(word, self._rules.endings)

    def match_field(
        self, field_name: str, column: _Column
    ) -> Iterator[tuple[str, str, list[float]]]:
        """Yield (demand, note, shares) for each value of the field that the question names.

        - demand identifies what the question names, such as ``period 2024``.
        - note is a note for the trace.
        - shares says for each passage how well it matches, from 0 to 1.
        """
        kind, times = column.kind, self._times
        if kind == "periods":
            for period in times.periods:
                yield (
                    f"period {period}",
                    f"{field_name} = {period}",
                    _score_passages(column, partial(_is_in_period, period=period)),
                )
            if self._wants_newest:
                yield "newest", f"{field_name}: newest", self._score_newness(column)
        elif kind == "versions":
            for version_range in times.versions:
                shares = _score_passages(
                    column, partial(_is_version_in_range, version_range=version_range)
                )
                yield f"version {version_range}", f"{field_name} = {version_range}", shares
            if self._wants_newest:
                yield "newest of versions", f"{field_name}: newest", self._score_newness(column)
        elif kind:
            yield from self._match_words(field_name, column)

    def _match_words(
        self, field_name: str, column: _Column
    ) -> Iterator[tuple[str, str, list[float]]]:
        """Yield one (demand, note, shares) if the question contains values of *field_name*.

        The tuple has the same meaning as in `match_field`.
        """
        is_number = column.kind == "numbers"
        if is_number and not any(
            self._find_stem(word) in self._stems
            for word in split_date_tokens(field_name.replace("_", " "))
        ):
            return
        needs_code = column.has_no_repeats and not is_number
        named_values = {
            value.folded
            for value in column.counts
            if self._is_value_in_question(value, needs_code=needs_code)
        }
        if not named_values:
            return
        # A question about "Field Service" does not mean the value "Service".
        longest = {
            words
            for words in named_values
            if not any(set(words) < set(other) for other in named_values)
        }
        note = (
            f"{field_name}: {'the value' if len(longest) == 1 else 'values'} "
            "that the question names"
        )
        yield (
            f"words {field_name}",
            note,
            _score_passages(column, lambda value: value.folded in longest),
        )

    def _is_value_in_question(self, value: _Value, *, needs_code: bool) -> bool:
        """Return whether the question contains all words of *value*, in any form.

        If *needs_code* is true, *value* must be a code, that is, one word with a digit and another
        character. The question must then contain this code unchanged.
        """
        words = value.folded
        # If every passage has another value, the values are ids. An id must be named exactly.
        if needs_code:
            return len(words) == 1 and words[0] in self._tokens and _is_code(words[0])
        if all(
            word in self._rules.function_words or (len(word) < 2 and not word.isdigit())
            for word in words
        ):
            return False
        # "Not in Germany" asks for other passages, but does not say which.
        if not self._times.denied_tokens.isdisjoint(words):
            return False
        return all(word in self._tokens or self._find_stem(word) in self._stems for word in words)

    def _score_newness(self, column: _Column) -> list[float]:
        """Return how new each passage is, from 0 (oldest) to 1 (newest).

        The values in *column* are dates or versions. Dates in the future get 0.
        """
        keys = sorted(
            {key for value in column.counts if (key := self._build_sort_key(value)) is not None}
        )
        if len(keys) < 2:
            return [0.0] * len(column.rows)
        places = {key: index / (len(keys) - 1) for index, key in enumerate(keys)}
        return [
            max((places.get(self._build_sort_key(value), 0.0) for value in row), default=0.0)
            for row in column.rows
        ]

    def _build_sort_key(self, value: _Value) -> Any:
        """Return a key that sorts periods by their first day, and versions by their numbers.

        Returns ``None`` for other values, and for periods that begin after today.
        """
        if value.period is None:
            return None if value.version is None else (0, *value.version)
        first = value.period.first
        return (
            (1, first.toordinal())
            if first is not None and first <= (self._today or date.max)
            else None
        )


def _score_passages(column: _Column, is_match: Callable[[_Value], bool]) -> list[float]:
    """Return 1 for each passage with a value that *is_match* accepts.

    Other passages get `NEUTRAL` if they have a value such as "All", or else 0.
    """
    matching_values = {value for value in column.counts if is_match(value)}
    return [
        1.0
        if not matching_values.isdisjoint(row)
        else NEUTRAL
        if any(value.neutral for value in row)
        else 0.0
        for row in column.rows
    ]


def _is_code(word: str) -> bool:
    """Return whether *word* contains both digits and other characters."""
    return any(map(str.isdigit, word)) and not word.isdigit()


def _is_version_in_range(value: _Value, version_range: VersionRange) -> bool:
    """Return whether *value* is a version within *version_range*."""
    return value.version in version_range


def _is_in_period(value: _Value, period: Period) -> bool:
    """Return whether *value* is a period that shares a day with *period*."""
    value_period = value.period
    if value_period is None or value_period.first is None or value_period.last is None:
        return False
    is_late_enough = period.first is None or value_period.last >= period.first
    return is_late_enough and (period.last is None or value_period.first <= period.last)
