"""The evidence of metadata: what a question says that values beside the texts of the passages hold.

"Hotel limit for Germany in 2024" has its answer in a passage whose text names neither, and whose
metadata does. Nothing is known of the fields but what the candidates hold: a field counts if its
values tell candidates apart, in one of four ways.

========  ==============================================================================================
periods   Dates, months, quarters and years: compared with the days that the question means.
versions  Numbers with dots: compared number by number, so that 3.10 comes after 3.9.
words     Short values: named if all their words stand in the question. A code must be equal.
numbers   Other numbers: named if the name of the field stands in the question too.
========  ==============================================================================================

Evidence only adds to what a passage has. "All" and missing values are no value; beside a field
whose value the question names, "All" counts `NEUTRAL` of it. `python -m benchmarks.metadata` redoes
the choice of the constants.
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
    split_tokens,
)
from qtmiddleware.retrieval.question_words import WordRules, find_stem

WEIGHT: Final = 1.0
"""What a value that the question names adds to a score, in spreads of the function's scores.

Between .5 and 4 the set it was chosen on scores the same within .002. At 1 the last passage of a
list passes the first one if it has a value more and the scores run evenly.
"""
NEUTRAL: Final = 0.5
"""The share of it that "All" has."""
MOST_FIELDS: Final = 40
MOST_CHARS: Final = 64
MOST_WORDS: Final = 5
MOST_LISTED: Final = 16
"""What is read of each passage: fields, characters and words of a value, values of a list."""
BY_MODEL: Final = 0.5
"""The share of it that a value has which a model names and the question does not.

A choice and no measurement: half of what the user's own words have."""
_MOST_NOTED: Final = 4

# Their words are evidence already, or tell one passage from all others.
_NO_VALUES: Final = frozenset(
    """
    title text content page_content chunk_text chunk passage body document snippet raw_text description abstract answer
    context summary heading url uri link href source src path file filename file_name file_path filepath page
    page_number page_label id _id id_ ids chunk_id node_id doc_id document_id parent_id uuid pk hash checksum
    score _score similarity distance namespace values vector embedding _node_content chunk_index index position
    """.split()  # noqa: SIM905
)
_ANYTHING: Final = frozenset(
    """
    all any every everyone everything * - none null n/a na unknown general global other alle alles alla tous toutes
    tout todos todas todo tutti tutte tutto
    """.split()  # noqa: SIM905
)
_TIMESTAMP_NAMES: Final = (
    "date",
    "time",
    "created",
    "updated",
    "modified",
    "published",
    "_at",
    "_on",
)
_OLDEST_STAMP, _NEWEST_STAMP = 3e8, 5e9


@dataclass(eq=False, repr=False, slots=True)
class MetadataEvidence:
    """What metadata says of each candidate.

    *shares* are in spreads of the function's scores, *matched* is the part of what was named that a
    candidate has, from 0 to 1, and *says* what was named: ``year = 2024``. Other values than dates
    and versions are not told: they may be names of people.
    """

    shares: Sequence[float]
    matched: Sequence[float]
    says: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class _Value:
    """One value: its *folded* words, and what else it may be read as. A *neutral* one stands for any value.

    What is written alike is one object.
    """

    folded: tuple[str, ...]
    period: Period | None = None
    version: Version | None = None
    number: float | None = None
    neutral: bool = False

    @property
    def kind(self) -> str:
        """What it is read as: periods, versions, numbers or words."""
        if self.period is not None:
            return "periods"
        if self.version is not None:
            return "versions"
        return "words" if self.number is None else "numbers"


_Row = tuple[_Value, ...]


class _Column:
    """The values of one field by passage, and how often there is each that is no "All"."""

    __slots__ = ("counts", "kind", "rows")

    def __init__(self, rows: Sequence[_Row]) -> None:
        self.rows = rows
        self.counts = Counter([value for row in rows for value in row if not value.neutral])
        kinds = Counter([value.kind for value in self.counts])
        self.kind = max(kinds, key=lambda kind: kinds[kind], default="")

    @property
    def differs_everywhere(self) -> bool:
        """Whether no two passages have the same value, as ids and names of files have none."""
        return len(self.counts) > 2 and max(self.counts.values()) == 1

    @property
    def tells_apart(self) -> bool:
        """Whether a question may name a value that some passages have."""
        return len(self.counts) > 1 and (
            not self.differs_everywhere or self.kind in ("periods", "versions")
        )


def weigh_by_metadata(
    times: Times,
    metadata: Sequence[Mapping[str, Any]],
    rules: WordRules,
    today: date | None,
    constraints: Sequence[str] = (),
) -> MetadataEvidence | None:
    """Return what the *metadata* of each passage says of a question that was read as *times*, ``None`` if nothing.

    Args:
        rules: Those of the question's language.
        today: What values that lie in the future are told by, if the question asks for the newest.
        constraints: What a model says that the question limits its answer to, as ``field: value``.
            Used if the field is there, a passage has the value, and the question names none of it.
    """
    columns = collect_columns(metadata)
    if not columns:
        # Most passages have a text and an id alone.
        return None
    wanted = _Wanted(times, rules, today)
    found = [
        demand
        for name, column in columns.items()
        for demand in [*wanted.match(name, column)]
        or wanted.match_constraints(name, column, constraints)
    ]
    # Of two fields that hold the same thing, as a year beside a date, the better one counts for
    # each passage.
    demands: dict[str, list[tuple[str, list[float]]]] = {}
    for demand, says, held in found:
        if min(held) < max(held):
            demands.setdefault(demand, []).append((says, held))
    if "newest" in demands:
        # Dates say what is new better than the names of versions do.
        demands.pop("newest of versions", None)
    if not demands:
        return None
    best = [
        [max(column) for column in zip(*(held for _, held in group), strict=True)]
        for group in demands.values()
    ]
    sums = [sum(column) for column in zip(*best, strict=True)]
    return MetadataEvidence(
        shares=[WEIGHT * held for held in sums],
        matched=[held / len(best) for held in sums],
        says=list(dict.fromkeys(says for group in demands.values() for says, _ in group))[
            :_MOST_NOTED
        ],
    )


def find_telling_fields(metadata: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the fields whose values tell some passages apart from others."""
    return tuple(name for name, column in collect_columns(metadata).items() if column.tells_apart)


def collect_columns(metadata: Sequence[Mapping[str, Any]]) -> dict[str, _Column]:
    """Return the short values of each field by its name, passage by passage; what cannot be read is skipped."""
    columns: dict[str, list[_Row]] = {}
    for place, held in enumerate(metadata):
        for name, value in _read_fields(held):
            if row := _read_values(name, value):
                rows = columns.get(name)
                if rows is None:
                    rows = columns[name] = [()] * len(metadata)
                rows[place] = row
    return {
        name: _Column(rows) for name, rows in columns.items() if any(row != rows[0] for row in rows)
    }


def _read_fields(held: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The fields of one passage that may hold a value, ``()`` if they cannot be read."""
    try:
        names = _pick_telling(
            tuple(held) if len(held) <= MOST_FIELDS else tuple(islice(held, MOST_FIELDS))
        )
        return [(name, held[name]) for name in names] if names else ()
    except Exception:
        # A mapping may raise at whatever is read of it.
        return ()


@lru_cache(maxsize=256)
def _pick_telling(names: tuple[Any, ...]) -> tuple[str, ...]:
    """Those of the *names* of fields whose values may tell passages apart."""
    words = [name for name in names if type(name) is str and len(name) <= MOST_CHARS]
    return tuple(
        [name for name in words if name.lower() not in _NO_VALUES and not name.startswith("_")]
    )


@lru_cache(maxsize=1_024)
def _is_time(name: str) -> bool:
    return any(part in name.lower() for part in _TIMESTAMP_NAMES)


def _read_values(name: str, value: Any) -> _Row:
    """What one field holds: a short text, a number, a date, or several short texts; nothing of anything else."""
    kind = type(value)
    read: _Value | None = None
    if kind is str:
        read = _read_text(value) if 0 < len(value) <= MOST_CHARS else None
    elif kind is int or kind is float:
        # A number with a million digits is not written out.
        read = _read_number(value, is_time=_is_time(name)) if -1e15 < value < 1e15 else None
    elif kind is date or kind is datetime:
        read = _read_day(value.date() if kind is datetime else value)
    elif kind is list or kind is tuple:
        texts = [it for it in value[:MOST_LISTED] if type(it) is str and 0 < len(it) <= MOST_CHARS]
        return tuple([it for it in map(_read_text, texts) if it is not None])
    return () if read is None else (read,)


@lru_cache(maxsize=4_096)
def _read_text(value: str) -> _Value | None:
    words = tuple(split_tokens(value))
    if value.strip().lower() in _ANYTHING or not words:
        return _Value(words, neutral=True)
    if len(words) > MOST_WORDS:
        return None
    period = read_period(value)
    version = None if period is not None else read_version(value)
    is_number = len(words) == 1 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 16
    return _Value(words, period, version, float(words[0]) if is_number else None)


@lru_cache(maxsize=4_096)
def _read_number(value: float, *, is_time: bool) -> _Value:
    seconds = value / 1e3 if value > 1e11 else value
    if is_time and _OLDEST_STAMP < seconds < _NEWEST_STAMP:
        return _read_day(datetime.fromtimestamp(seconds, UTC).date())
    text = f"{value:.12g}"
    return _Value((text,), read_period(text) if value == int(value) else None, None, float(value))


@lru_cache(maxsize=4_096)
def _read_day(day: date) -> _Value:
    return _Value((day.isoformat(),), period=Period(day, day))


class _Wanted:
    """What a question names, and how well the values of a field meet it."""

    def __init__(self, times: Times, rules: WordRules, today: date | None) -> None:
        self._times, self._rules, self._today = times, rules, today
        self._tokens = frozenset(times.tokens)
        self._stems = frozenset(map(self._stem, times.tokens))
        # A date that the question names says more than "current", even one that cannot be told.
        self._wants_newest = times.newest and not (
            times.periods or times.versions or times.needs_today
        )

    def _stem(self, word: str) -> str:
        return find_stem(word, self._rules.endings)

    def match(self, name: str, column: _Column) -> Iterator[tuple[str, str, list[float]]]:
        """What the question demands of a field, what the trace says of it, and what each passage has of it."""
        kind, times = column.kind, self._times
        if kind == "periods":
            for period in times.periods:
                yield (
                    f"period {period}",
                    f"{name} = {period}",
                    _share_out(column, partial(_meets, wanted=period)),
                )
            if self._wants_newest:
                yield "newest", f"{name}: newest", self._rank(column)
        elif kind == "versions":
            for wanted in times.versions:
                held = _share_out(column, partial(_is_version, wanted=wanted))
                yield f"version {wanted}", f"{name} = {wanted}", held
            if self._wants_newest:
                yield "newest of versions", f"{name}: newest", self._rank(column)
        elif kind:
            yield from self._match_words(name, column)

    def match_constraints(
        self, name: str, column: _Column, constraints: Sequence[str]
    ) -> Iterator[tuple[str, str, list[float]]]:
        """Yield, as `match` does, what a model's *constraints* demand of the field *name*."""
        for label, _, text in (constraint.partition(":") for constraint in constraints):
            if not self._is_same_label(label, name):
                continue
            value = _read_text(text.strip()[:MOST_CHARS])
            if value is None or value.neutral:
                continue
            held = [BY_MODEL * share for share in _share_out(column, partial(_is_same, value))]
            is_told = column.kind in ("periods", "versions")
            what = " = " + " ".join(value.folded) if is_told else ": a value"
            yield f"words {name}", f"{name}{what}, as the model says", held

    def _is_same_label(self, label: str, name: str) -> bool:
        words = [self._stem(word) for word in split_tokens(label.replace("_", " "))]
        return words == [self._stem(word) for word in split_tokens(name.replace("_", " "))]

    def _match_words(self, name: str, column: _Column) -> Iterator[tuple[str, str, list[float]]]:
        is_number = column.kind == "numbers"
        if is_number and not any(
            self._stem(word) in self._stems for word in split_tokens(name.replace("_", " "))
        ):
            return
        needs_code = column.differs_everywhere and not is_number
        named = {it.folded for it in column.counts if self._names(it, needs_code=needs_code)}
        if not named:
            return
        # "Field Service" is meant by its name, not the "Service" inside of it.
        longest = {it for it in named if not any(set(it) < set(other) for other in named)}
        says = f"{name}: {'the value' if len(longest) == 1 else 'values'} that the question names"
        yield f"words {name}", says, _share_out(column, lambda it: it.folded in longest)

    def _names(self, value: _Value, *, needs_code: bool) -> bool:
        """Whether the question names *value*."""
        words = value.folded
        if needs_code:
            return len(words) == 1 and words[0] in self._tokens and _is_code(words[0])
        if all(
            word in self._rules.function_words or (len(word) < 2 and not word.isdigit())
            for word in words
        ):
            return False
        # "Not in Germany" asks for other passages, and says not which.
        if not self._times.denied.isdisjoint(words):
            return False
        return all(word in self._tokens or self._stem(word) in self._stems for word in words)

    def _rank(self, column: _Column) -> list[float]:
        """How new each passage's value is among those up to today, from 0 to 1."""
        order = sorted({when for it in column.counts if (when := self._date(it)) is not None})
        if len(order) < 2:
            return [0.0] * len(column.rows)
        places = {when: place / (len(order) - 1) for place, when in enumerate(order)}
        return [
            max((places.get(self._date(it), 0.0) for it in row), default=0.0) for row in column.rows
        ]

    def _date(self, value: _Value) -> Any:
        """What orders values by time: the first day of a period up to today, or the numbers of a version."""
        if value.period is None:
            return None if value.version is None else (0, *value.version)
        first = value.period.first
        return (
            (1, first.toordinal())
            if first is not None and first <= (self._today or date.max)
            else None
        )


def _share_out(column: _Column, meets: Callable[[_Value], bool]) -> list[float]:
    """What each passage of a *column* has: all of it if one of its values *meets* the question's, "All" less."""
    met = {it for it in column.counts if meets(it)}
    return [
        1.0 if not met.isdisjoint(row) else NEUTRAL if any(it.neutral for it in row) else 0.0
        for row in column.rows
    ]


def _is_same(wanted: _Value, value: _Value) -> bool:
    """Whether a passage's *value* is the *wanted* one: alike in its words, its days or its version."""
    if value.period is not None and wanted.period is not None:
        return _meets(value, wanted.period)
    if value.version is not None and wanted.version is not None:
        return value.version == wanted.version
    return value.folded == wanted.folded


def _is_code(word: str) -> bool:
    return any(map(str.isdigit, word)) and not word.isdigit()


def _is_version(value: _Value, wanted: VersionRange) -> bool:
    return value.version in wanted


def _meets(value: _Value, wanted: Period) -> bool:
    """Whether days of *value* are among the *wanted* ones."""
    period = value.period
    if period is None or period.first is None or period.last is None:
        return False
    is_late_enough = wanted.first is None or period.last >= wanted.first
    return is_late_enough and (wanted.last is None or period.first <= wanted.last)
