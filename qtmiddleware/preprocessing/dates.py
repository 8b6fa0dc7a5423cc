"""What a question says of dates and versions: ranges, and whether it asks for the newest.

The words are those of ``dates`` in the word lists. Words that lean on today ("last year") need a
day to lean on, and mean nothing without one. Nothing here removes a word of the question.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.preprocessing.lexicon import DEFAULT, load
from qtmiddleware.preprocessing.text import fold_accents

Version = tuple[int, ...]
Today = Callable[[], "date | None"]

MOST_TOKENS: Final = 400
"""Words of a question that are read, from its beginning."""
MOST_YEARS: Final = 5
"""Years of a range that become keywords, the latest ones."""
_FARTHEST: Final = 500
"""How many days, weeks, months, quarters or years from today a word may lead."""
_MOST_BETWEEN: Final = 3
_BEHIND_DENIAL: Final = 2

_compile_pattern: Final = cache(re.compile)
_TOKEN: Final = re.compile(r"[^\W_]+(?:[.\-/,](?=\d)[^\W_]+|-[^\W_]+)*")
_YEAR: Final = r"(?:19|20)\d\d"
_ISO: Final = r"((?:19|20)\d\d)[-/](\d\d?)(?:[-/](\d\d?))?"
_DOTTED: Final = r"(\d\d?)[./](\d\d?)[./]((?:19|20)\d\d)"
_QUARTER: Final = r"(?:((?:19|20)\d\d)-?)?[qt]([1-4])(?:[-/]((?:19|20)\d\d))?"
_VERSION: Final = r"v?(\d{1,6}(?:\.\d{1,6}){1,4})|v(\d{1,6})"
_DAY_IN_MONTH: Final = r"([0-3]?\d)(?:st|nd|rd|th)?"


def _fullmatch(pattern: str, text: str) -> re.Match[str] | None:
    """The match of all of *text*. Letters alone match no pattern, and most questions need none of them compiled."""
    return None if text.isalpha() else _compile_pattern(pattern).fullmatch(text)


def _match(pattern: str, text: str) -> re.Match[str] | None:
    return None if text.isalpha() else _compile_pattern(pattern).match(text)


class Period(NamedTuple):
    """The days from *first* to *last*; ``None`` is an open end. *is_relative*: today decided which days.

    *words* are those that a text may use for a relative one.
    """

    first: date | None
    last: date | None
    is_relative: bool = False
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        first, last = self.first, self.last
        if first is None or last is None:
            return f"until {last}" if last else f"since {first}"
        if (first.month, first.day) == (1, 1) and (last.month, last.day) == (12, 31):
            return str(first.year) if first.year == last.year else f"{first.year} to {last.year}"
        return str(first) if first == last else f"{first} to {last}"


class VersionRange(NamedTuple):
    """Versions from *low* to *high*, which are taken in or not; ``None`` is an open end.

    One version is a range of itself, and takes in whatever follows it after a dot: 4.2 and 4.2.1.
    """

    low: Version | None
    high: Version | None
    takes_low: bool = True
    takes_high: bool = True

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, tuple):
            return False
        return self._is_above(version) and self._is_below(version)

    def _is_above(self, version: Version) -> bool:
        low = self.low
        if low is None:
            return True
        is_part = version[: len(low)] == low
        return self.takes_low if is_part else version > low

    def _is_below(self, version: Version) -> bool:
        high = self.high
        if high is None:
            return True
        is_part = version[: len(high)] == high
        return self.takes_high if is_part else version < high

    def __str__(self) -> str:
        if self.low == self.high:
            return _write_version(self.low)
        if self.high is None:
            return f"{'since' if self.takes_low else 'after'} {_write_version(self.low)}"
        return f"{'until' if self.takes_high else 'before'} {_write_version(self.high)}"


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """What a question says of time: its *periods*, its *versions*, and whether it asks for the *newest*.

    *needs_today*: a word leans on today. *tokens* are the question's folded words, codes and
    numbers in one piece, and
    *leaning* are those that today was asked for. *denied* are those right behind a word that
    denies: not in Germany.
    """

    periods: list[Period] = field(default_factory=list)
    versions: list[VersionRange] = field(default_factory=list)
    newest: bool = False
    needs_today: bool = False
    tokens: Sequence[str] = ()
    leaning: list[str] = field(default_factory=list)
    denied: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the relative periods, each once."""
        return tuple(dict.fromkeys(word for period in self.periods for word in period.words))


_Phrases = Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]
"""By the first word: the words of each phrase, the longest first, and what it means."""


class _DateWords(NamedTuple):
    """The words of one language."""

    units: Mapping[str, str]
    steps: Mapping[str, int]
    numbers: Mapping[str, int]
    months: Mapping[str, int]
    month_names: Sequence[str]
    days: _Phrases
    comparisons: _Phrases
    ago: _Phrases
    newest: _Phrases
    within: frozenset[str]
    between: frozenset[str]
    starts: frozenset[str]
    """The words that anything may begin with that is no number."""


def split_tokens(text: str) -> list[str]:
    """Return the folded words of *text*; a code, a version or a date is one: zp-410, 4.2, 2025-03-01."""
    return [match.group() for match in islice(_TOKEN.finditer(fold_accents(text)), MOST_TOKENS)]


def read_times(text: str, language: str, today: Today) -> Times:
    """Return what *text* says of dates and versions.

    *today* is asked only if a word leans on it, and returns ``None`` if no clock tells.
    """
    tokens, known = split_tokens(text), language if language in LANGUAGES else DEFAULT
    times = _Reader(tokens, _load_words(known), today).read()
    deniers = load(known).negations
    if not deniers.isdisjoint(tokens):
        behind = [
            tokens[at + 1 : at + 1 + _BEHIND_DENIAL]
            for at, token in enumerate(tokens)
            if token in deniers
        ]
        times.denied = frozenset().union(*behind)
    return times


def read_version(text: str) -> Version | None:
    """Return the numbers of a version such as ``4.2``, ``v3.10`` or ``2.0-rc1``, ``None`` for anything else."""
    match = _match(_VERSION, text.strip().lower())
    if match is None or (
        match.end() < len(text.strip()) and text.strip()[match.end()] not in "-+abcr. "
    ):
        return None
    return tuple(map(int, (match.group(1) or match.group(2)).split(".")))


def read_period(text: str) -> Period | None:
    """Return the days of a date, month, quarter or year written as data has them, ``None`` for anything else."""
    text = text.strip().lower()
    if (match := _match(_ISO, text)) and (match.end() == len(text) or text[match.end()] in "t "):
        year, month, day = match.groups()
        return _build_period(int(year), int(month), int(day) if day else None)
    if match := _fullmatch(_DOTTED, text):
        day, month, year = match.groups()
        return _build_period(int(year), int(month), int(day))
    if _fullmatch(_YEAR, text):
        return _span_years(int(text), int(text))
    if (match := _fullmatch(_QUARTER, text.replace(" ", "-"))) and (
        year := match.group(1) or match.group(3)
    ):
        return _span_months(int(year), 3 * int(match.group(2)) - 2, 3)
    return None


def _write_version(version: Version | None) -> str:
    return ".".join(map(str, version or ()))


def _build_period(year: int, month: int, day: int | None) -> Period | None:
    try:
        if day is not None:
            return Period(date(year, month, day), date(year, month, day))
        return _span_months(year, month, 1) if 1 <= month <= 12 else None
    except ValueError:
        return None


def _span_years(first: int, last: int) -> Period:
    return Period(date(first, 1, 1), date(last, 12, 31))


def _span_months(year: int, month: int, count: int) -> Period:
    last = month + count - 1
    return Period(date(year, month, 1), date(year, last, monthrange(year, last)[1]))


@cache
def _load_words(language: str) -> _DateWords:
    data: Mapping[str, Any] = load(language).dates
    steps = {
        word: step
        for step, name in ((-1, "last"), (0, "this"), (1, "next"))
        for word in _fold(data, name)
    }
    names = [_split_words(name.split("|")) for name in data.get("months", ())]
    numbers = [name.split("|") for name in data.get("numbers", ())]
    units = {
        word: unit
        for unit, words in data.get("units", {}).items()
        for word in map(fold_accents, words)
    }
    counts = {fold_accents(word): at for at, words in enumerate(numbers, start=1) for word in words}
    months = {word: at for at, words in enumerate(names, start=1) for word in words}
    days = _compile(
        (phrase, step) for step, phrases in data.get("days", {}).items() for phrase in phrases
    )
    comparisons, ago, newest = (
        _compile((phrase, name) for name in keys for phrase in data.get(name, ()))
        for keys in (("since", "before", "after", "until"), ("ago", "before_ago"), ("newest",))
    )
    return _DateWords(
        units=units,
        steps=steps,
        numbers=counts,
        months=months,
        month_names=[words[0] for words in names],
        days=days,
        comparisons=comparisons,
        ago=ago,
        newest=newest,
        starts=frozenset().union(units, steps, counts, months, days, comparisons, ago, newest),
        within=frozenset(_fold(data, "within")),
        between=frozenset(_fold(data, "between")),
    )


def _fold(data: Mapping[str, Any], name: str) -> list[str]:
    return _split_words(data.get(name, ()))


def _split_words(words: Sequence[str]) -> list[str]:
    return list(map(fold_accents, words))


def _compile(phrases: Iterator[tuple[str, str]] | Any) -> _Phrases:
    table: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for phrase, meaning in phrases:
        words = tuple(split_tokens(phrase))
        table.setdefault(words[0], []).append((words, meaning))
    return {
        first: tuple(sorted(found, key=lambda it: -len(it[0]))) for first, found in table.items()
    }


class _Reader:
    """Reads the tokens of one question from left to right; what was read as one thing is not read as another."""

    def __init__(self, tokens: Sequence[str], words: _DateWords, today: Today) -> None:
        self._tokens, self._words, self._ask = tokens, words, today
        self._times = Times(tokens=tokens)
        self._today: date | None = None

    def read(self) -> Times:
        """Return what the question says."""
        at, starts = 0, self._words.starts
        while at < len(self._tokens):
            token = self._tokens[at]
            if token.isalpha() and token not in starts:
                at += 1
                continue
            at += self._read_compared(at) or self._read_newest(at) or 1
        return self._times

    def _match(self, phrases: _Phrases, at: int) -> tuple[int, str]:
        """How many tokens from *at* on are one of *phrases*, and what it means."""
        for words, meaning in phrases.get(self._tokens[at], ()) if at < len(self._tokens) else ():
            if tuple(self._tokens[at : at + len(words)]) == words:
                return len(words), meaning
        return 0, ""

    def _read_newest(self, at: int) -> int:
        size, _ = self._match(self._words.newest, at)
        self._times.newest = self._times.newest or bool(size)
        return size

    def _read_compared(self, at: int) -> int:
        """Read a range, with or without a word before it that opens one of its ends; return its tokens."""
        size, comparison = self._match(self._words.comparisons, at)
        if size:
            between = at + size
            most = between + _MOST_BETWEEN
            while (
                between < min(most, len(self._tokens))
                and self._tokens[between] in self._words.between
            ):
                between += 1
            for start in (at + size, between):
                if read := self._read_object(start, comparison):
                    return start + read - at
        return self._read_object(at, "")

    def _read_object(self, at: int, comparison: str) -> int:
        if at >= len(self._tokens):
            return 0
        period, size = self._read_period(at, is_compared=bool(comparison))
        if size:
            if period is not None and period.is_relative:
                self._times.leaning.extend(self._tokens[at : at + size])
            if period is not None:
                self._times.periods.append(self._open(period, comparison))
            return size
        version = read_version(self._tokens[at]) if _fullmatch(_VERSION, self._tokens[at]) else None
        if version is None:
            return 0
        self._times.versions.append(
            {
                "since": VersionRange(version, None),
                "after": VersionRange(version, None, takes_low=False),
                "before": VersionRange(None, version, takes_high=False),
                "until": VersionRange(None, version),
            }.get(comparison, VersionRange(version, version))
        )
        return 1

    def _open(self, period: Period, comparison: str) -> Period:
        """The days that *comparison* makes of *period*."""
        first, last = period.first, period.last
        if not comparison or first is None or last is None:
            return period
        try:
            first, last = {
                "since": (first, None),
                "after": (last + timedelta(days=1), None),
                "before": (None, first - timedelta(days=1)),
                "until": (None, last),
            }[comparison]
        except OverflowError:
            return period
        words = period.words
        if period.is_relative and first is not None and self._today is not None:
            years = range(max(first.year, self._today.year - MOST_YEARS + 1), self._today.year + 1)
            words = tuple(map(str, years))
        return Period(first, last, period.is_relative, words if first is not None else ())

    # --- one period
    # -----------------------------------------------------------------------------------------------

    def _read_period(self, at: int, *, is_compared: bool) -> tuple[Period | None, int]:
        """The period that begins at a token and how many tokens it takes; ``None`` if it cannot be told which."""
        token = self._tokens[at]
        named, size = self._read_named(at, is_compared=is_compared)
        if size:
            return named, size
        if size := self._match(self._words.days, at)[0]:
            step = int(self._match(self._words.days, at)[1])
            return self._lean("day", step, step), size
        return (
            self._read_ago(at)
            or self._read_step(at)
            or (read_period(token), int(read_period(token) is not None))
        )

    def _read_named(self, at: int, *, is_compared: bool) -> tuple[Period | None, int]:
        """A month or quarter with its year; one without is the last one before today, if a word says it is one."""
        tokens, words = self._tokens, self._words
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        quarter = _fullmatch(_QUARTER, tokens[at])
        if (
            quarter
            and quarter.group(1) is None
            and quarter.group(3) is None
            and _fullmatch(_YEAR, following)
        ):
            return _span_months(int(following), 3 * int(quarter.group(2)) - 2, 3), 2
        start, day = at, None
        if (match := _fullmatch(_DAY_IN_MONTH, tokens[at])) and following in words.months:
            start, day = at + 1, int(match.group(1))
        month = words.months.get(tokens[start])
        if month is None:
            return None, 0
        end = start + 1
        if (
            day is None
            and end + 1 < len(tokens)
            and (match := _fullmatch(_DAY_IN_MONTH, tokens[end]))
        ):
            day, end = (
                (int(match.group(1)), end + 1)
                if _fullmatch(_YEAR, tokens[end + 1])
                else (None, end)
            )
        if end < len(tokens) and tokens[end] in ("de", "del", "di") and end + 1 < len(tokens):
            end += bool(_fullmatch(_YEAR, tokens[end + 1]))
        if end < len(tokens) and _fullmatch(_YEAR, tokens[end]):
            return _build_period(int(tokens[end]), month, day), end + 1 - at
        if not (
            is_compared
            or (at and (tokens[at - 1] in words.within or tokens[at - 1] in words.steps))
        ):
            return None, 0
        # May and March are words too: alone they count only behind a word that a month follows.
        today = self._find_today()
        if today is None:
            return None, start + 1 - at
        year = today.year - (month > today.month)
        if at and words.steps.get(tokens[at - 1]) == -1 and month == today.month:
            year -= 1
        period = _build_period(year, month, day)
        return period and period._replace(is_relative=True, words=(str(year),)), start + 1 - at

    def _read_ago(self, at: int) -> tuple[Period | None, int] | None:
        """Three years ago, vor drei Jahren, il y a trois ans."""
        size, meaning = self._match(self._words.ago, at)
        start = at + size if meaning == "before_ago" else at
        if start + 1 >= len(self._tokens):
            return None
        count, unit = self._read_number(start), self._words.units.get(self._tokens[start + 1])
        if count is None or unit is None:
            return None
        if meaning == "before_ago":
            return self._lean(unit, -count, -count), size + 2
        size, meaning = self._match(self._words.ago, start + 2)
        return (self._lean(unit, -count, -count), size + 2) if meaning == "ago" else None

    def _read_step(self, at: int) -> tuple[Period | None, int] | None:
        """Last year, this quarter, the last three months; the unit may come first: l'année dernière."""
        tokens, words = self._tokens, self._words
        if at + 1 >= len(tokens):
            return None
        if (step := words.steps.get(tokens[at])) is not None:
            if (unit := words.units.get(tokens[at + 1])) is not None:
                return self._lean(unit, step, step), 2
            count = self._read_number(at + 1)
            unit = words.units.get(tokens[at + 2]) if at + 2 < len(tokens) else None
            # Symptoms may last three days; the last three days have a word before them.
            is_led = at > 0 and tokens[at - 1] in words.between | words.within
            if count is not None and unit is not None and step == -1 and is_led:
                return self._lean(unit, -count, 0), 3
            return None
        unit, step = words.units.get(tokens[at]), words.steps.get(tokens[at + 1])
        return None if unit is None or not step else (self._lean(unit, step, step), 2)

    def _read_number(self, at: int) -> int | None:
        token = self._tokens[at]
        if token.isascii() and token.isdigit() and len(token) <= 3:
            return int(token)
        return self._words.numbers.get(token)

    def _find_today(self) -> date | None:
        if not self._times.needs_today:
            self._times.needs_today = True
            self._today = self._ask()
        return self._today

    def _lean(self, unit: str, first: int, last: int) -> Period | None:
        """The days from *first* to *last* units away from today; ``None`` beyond the calendar and without a clock."""
        today = self._find_today()
        if today is None or max(abs(first), abs(last)) > _FARTHEST:
            return None
        try:
            begin, _ = find_unit(today, unit, first)
            _, end = find_unit(today, unit, last)
        except (ValueError, OverflowError):
            return None
        return Period(begin, end, is_relative=True, words=self._name(unit, begin, end))

    def _name(self, unit: str, begin: date, end: date) -> tuple[str, ...]:
        """The words that a text may have for the days of one *unit*."""
        if unit == "year":
            return tuple(map(str, range(max(begin.year, end.year - MOST_YEARS + 1), end.year + 1)))
        if unit == "quarter":
            return f"Q{(begin.month + 2) // 3}", str(begin.year)
        names = self._words.month_names
        if unit == "month":
            return (
                *((names[begin.month - 1],) if begin.month == end.month and names else ()),
                str(begin.year),
            )
        return (str(begin),) if begin == end else ()


def find_unit(today: date, unit: str, step: int) -> tuple[date, date]:
    """Return the first and the last day of the *unit* that is *step* units away from the one of *today*.

    Raises `ValueError` or `OverflowError` beyond the calendar.
    """
    if unit == "day":
        day = today + timedelta(days=step)
        return day, day
    if unit == "week":
        monday = today - timedelta(days=today.weekday()) + timedelta(weeks=step)
        return monday, monday + timedelta(days=6)
    if unit == "year":
        return date(today.year + step, 1, 1), date(today.year + step, 12, 31)
    size = 3 if unit == "quarter" else 1
    months = today.year * 12 + (today.month - 1) // size * size + step * size
    year, month = divmod(months, 12)
    last = month + size
    return date(year, month + 1, 1), date(year, last, monthrange(year, last)[1])
