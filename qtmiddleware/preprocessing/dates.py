"""Find the dates and versions in a question, and requests for the newest document.

The date words are under ``dates`` in the word lists. Relative dates ("last year") have a meaning
only if today's date is known.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.preprocessing.lexicon import DEFAULT, load_lexicon
from qtmiddleware.preprocessing.text import fold_text, split_terms

Version = tuple[int, ...]
"""The numbers of a version: 4.2 is ``(4, 2)``."""
Today = Callable[[], "date | None"]
"""A function that returns today's date, or ``None`` if the date is unknown."""

MOST_TOKENS: Final = 400
"""The maximum number of words to read. Later words of a question are ignored."""
MOST_YEARS: Final = 5
"""A date range adds at most this many years to the keywords, the latest ones."""
_FARTHEST: Final = 500
"""The maximum distance of a relative date from today, in days, weeks, months, quarters or years."""
_DENIED_TOKENS: Final = 2
"""A negation applies to this many words after it."""

_YEAR: Final = r"(?:19|20)\d\d"
_ISO: Final = rf"({_YEAR})[-/](\d\d?)(?:[-/](\d\d?))?"
_DOTTED: Final = rf"(\d\d?)[./](\d\d?)[./]({_YEAR})"
_QUARTER: Final = rf"(?:({_YEAR})-?)?[qt]([1-4])(?:[-/ ]({_YEAR}))?"
# 3.4.1, v2, 3.x, python3.11, release-3.4, 4.2-rc1, version 4. A path such as /api/v1 is no version.
_VERSION: Final = (
    r"(?:[a-z]+-?)??v?\d{1,6}(?:\.\d{1,6}){1,4}(?:\.x|[-+][a-z]*\d*|(?:a|b|rc)\d+)?"
    r"|v?\d{1,6}\.x"
    r"|v\d{1,6}"
    r"|(?:vers\w+|releases?)[ ]v?\d{1,6}(?:\.\d{1,6}){0,4}"
)

_DATE: Final = re.sub(r"\((?!\?)", "(?:", rf"{_ISO}|{_DOTTED}|{_QUARTER}|{_YEAR}")
# A name in capitals stands for words of a language. The text is folded, with a space between its
# words. A month without a year needs a word before it, because "May" and "March" are also verbs. So
# does "last" before a number: symptoms last three days.
_GRAMMAR: Final = rf"""
    (?<!\S)
    (?:(?P<comparison>COMPARISON)[ ](?:BETWEEN[ ]){{0,3}}?)?
    (?:
        (?P<dated>(?:WITHIN[ ])?(?:DAY[ ](?:OF[ ])?)?MONTH(?:[ ]DAY)?[ ](?:OF[ ])?{_YEAR})
    |   (?P<undated>(?:(?:WITHIN|STEP)[ ](?:DAY[ ])?|DAY[ ]OF[ ]|(?(comparison)|(?!)))MONTH)
    |   (?P<day>DAYS)
    |   (?P<ago>BEFORE_AGO[ ]NUMBER[ ]UNIT|NUMBER[ ]UNIT[ ]AGO)
    |   (?P<recent>(?:BETWEEN|WITHIN)[ ]LAST[ ]NUMBER[ ]UNIT)
    |   (?P<step>STEP[ ]UNIT|UNIT[ ]STEP)
    |   (?P<date>{_DATE})
    |   (?P<version>{_VERSION})
    |   (?P<newest>NEWEST)
    )
    (?!\S)
"""
_STEPS: Final = {"last": -1, "this": 0, "next": 1}
_DAY: Final = timedelta(days=1)
_DIGIT: Final = re.compile(r"\d")
# Each year and each version has one of these: 2024, 4.2, 3.x, v2, version 4.
_NUMBER_SIGN: Final = re.compile(rf"{_YEAR}|\d\.|v\d|(?:vers\w+|releases?) \d")


class Period(NamedTuple):
    """A range of days.

    Attributes:
        first: the first day; `date.min` if the range has no beginning.
        last: the last day; `date.max` if the range has no end.
        is_relative: whether the days depend on today's date.
        words: the words for a relative period in documents: ``("2024",)`` for "last year" in 2025.
    """

    first: date
    last: date
    is_relative: bool = False
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        first, last = self.first, self.last
        if last == date.max:
            return f"since {first}"
        if first == date.min:
            return f"until {last}"
        if (first.month, first.day, last.month, last.day) == (1, 1, 12, 31):
            return str(first.year) if first.year == last.year else f"{first.year} to {last.year}"
        return str(first) if first == last else f"{first} to {last}"

    def overlaps(self, other: Period) -> bool:
        """Return whether the two periods share a day."""
        return self.first <= other.last and other.first <= self.last


class VersionRange(NamedTuple):
    """A version with its subversions, or a range of versions. 4.2 contains 4.2.1.

    Attributes:
        version: the version that the question names.
        comparison: ``since``, ``after``, ``before``, ``until``, or ``""`` for the version alone.
    """

    version: Version
    comparison: str = ""

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, tuple):
            return False
        # 4.2 and 4.2.0 are the same.
        version += (0,) * (len(self.version) - len(version))
        is_part = version[: len(self.version)] == self.version
        is_later = version > self.version and not is_part
        return {
            "since": is_part or is_later,
            "after": is_later,
            "before": not (is_part or is_later),
            "until": not is_later,
        }.get(self.comparison, is_part)

    def __str__(self) -> str:
        return f"{self.comparison} {'.'.join(map(str, self.version))}".strip()


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """The dates and versions that a question names.

    Attributes:
        tokens: the folded words of the question. A code or a number is one token.
        denied_tokens: the two tokens after each negation: "in" and "germany" in "not in Germany".
        periods: the periods in the question.
        versions: the versions in the question.
        newest: whether the question asks for the newest document or version.
        needs_today: whether a date in the question depends on today's date.
        relative_tokens: the tokens of relative periods, such as "last" and "year".
    """

    tokens: Sequence[str] = ()
    denied_tokens: frozenset[str] = frozenset()
    periods: list[Period] = field(default_factory=list)
    versions: list[VersionRange] = field(default_factory=list)
    newest: bool = False
    needs_today: bool = False
    relative_tokens: list[str] = field(default_factory=list)

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the relative periods in documents, such as years, without duplicates."""
        return tuple(dict.fromkeys(word for period in self.periods for word in period.words))


def split_date_tokens(text: str) -> list[str]:
    """Return the first `MOST_TOKENS` folded words of *text*. A version or a date is one word."""
    return split_terms(text)[:MOST_TOKENS]


def read_times(text: str, language: str, get_today: Today) -> Times:
    """Return the dates and versions that *text* names."""
    language = language if language in LANGUAGES else DEFAULT
    words = _load_date_words(language)
    tokens = split_date_tokens(text)
    denied = [
        tokens[index + 1 : index + 1 + _DENIED_TOKENS]
        for index, token in enumerate(tokens)
        if token in words.negations
    ]
    times = Times(tokens, frozenset().union(*denied))
    folded = " ".join(tokens)
    # Most questions name no date, and these checks are faster than the grammar.
    if words.signs.isdisjoint(tokens) and not _NUMBER_SIGN.search(folded):
        return times
    # Midnight may pass between two questions for the date.
    today = cache(get_today)
    for match in _compile_grammar(language).finditer(folded):
        kind = str(match.lastgroup)
        phrase = match[kind]
        comparison = words.meanings["COMPARISON"].get(match["comparison"], "")
        if kind == "newest":
            times.newest = True
        elif kind == "version":
            times.versions.append(VersionRange(_read_version_numbers(phrase), comparison))
        elif period := _read_phrase(kind, phrase, words, today):
            if period.is_relative:
                times.relative_tokens += phrase.split()
            times.periods.append(_compare(period, comparison, today))
    times.needs_today = today.cache_info().misses > 0
    return times


def read_version(text: str) -> Version | None:
    """Return the numbers of the version in *text*, or ``None`` if *text* is not a version.

    ``4.2``, ``v4.2``, ``4.2-rc1`` and ``4.2 (LTS)`` all have the numbers ``(4, 2)``.
    """
    # Compiling a pattern is slow, and most values have no digit.
    if not _DIGIT.search(text):
        return None
    match = re.match(rf"(?:{_VERSION})(?![^-+\s])", text.strip().lower())
    return _read_version_numbers(match[0]) if match else None


def read_period(text: str) -> Period | None:
    """Return the period that *text* names, or ``None`` if *text* is not a period.

    A period is a date, month, quarter or year: 2024-03-01, 1.3.2024, 2024-03, 2024-Q1 or 2024. The
    months may have English names: March 1, 2024 or Mar 2024.
    """
    if not _DIGIT.search(text):
        return None
    text = text.strip().lower()
    # A time of day may follow the date: 2024-03-01T12:00 or 2024-03-01 12:00.
    if match := re.match(rf"{_ISO}(?![^t ])", text):
        return _build_period(match[1], match[2], match[3])
    if match := re.fullmatch(_DOTTED, text):
        return _build_period(match[3], match[2], match[1])
    if re.fullmatch(_YEAR, text):
        return Period(date(int(text), 1, 1), date(int(text), 12, 31))
    match = re.fullmatch(_QUARTER, text.replace(" ", "-"))
    if match and (year := match[1] or match[3]):
        day = date(int(year), 3 * int(match[2]), 1)
        return Period(*find_first_and_last_day(day, "quarter", 0))
    if re.search(rf"[a-z].*{_YEAR}", text):
        words = _load_date_words(DEFAULT)
        dated = _compile_grammar(DEFAULT).fullmatch(" ".join(split_date_tokens(text)))
        if dated and dated["dated"] and not dated["comparison"]:
            return _read_phrase("dated", dated["dated"], words, lambda: None)
    return None


def _read_version_numbers(version: str) -> Version:
    numbers = re.findall(r"\d+(?:\.\d+)*", version)[0]
    return tuple(map(int, numbers.split(".")))


def _build_period(
    year: str | int,
    month: str | int,
    day: str | int | None = None,
) -> Period | None:
    """Return the period of a day or of a whole month; ``None`` if the date does not exist."""
    try:
        first = date(int(year), int(month), 1 if day is None else int(day))
    except ValueError:
        return None
    unit = "month" if day is None else "day"
    return Period(*find_first_and_last_day(first, unit, 0))


class _DateWords(NamedTuple):
    """The date words of one language.

    Attributes:
        meanings: by name in the grammar, the meaning of each phrase: of a month its number, of
            "last" -1, of "years" ``year``.
        signs: words of which a question has one if it has a date without a year.
    """

    meanings: Mapping[str, Mapping[str, Any]]
    month_names: Sequence[str]
    negations: frozenset[str]
    signs: frozenset[str]


@cache
def _load_date_words(language: str) -> _DateWords:
    lexicon = load_lexicon(language)
    data: Mapping[str, Any] = lexicon.dates
    months = [names.split("|") for names in data.get("months", ())]
    numbers = [names.split("|") for names in data.get("numbers", ())]
    groups: dict[str, Iterable[tuple[Any, Sequence[str]]]] = {
        "COMPARISON": [
            (name, data.get(name, ())) for name in ("since", "before", "after", "until")
        ],
        "STEP": [(step, data.get(name, ())) for name, step in _STEPS.items()],
        "UNIT": data.get("units", {}).items(),
        "DAYS": data.get("days", {}).items(),
        "MONTH": enumerate(months, start=1),
        "NUMBER": enumerate(numbers, start=1),
    }
    for name in ("last", "between", "within", "ago", "before_ago", "newest"):
        groups[name.upper()] = [(name, data.get(name, ()))]
    meanings = {
        name: {
            " ".join(split_terms(phrase)): meaning
            for meaning, phrases in group
            for phrase in phrases
        }
        for name, group in groups.items()
    }
    telling = [phrase for name in ("UNIT", "DAYS", "MONTH", "NEWEST") for phrase in meanings[name]]
    return _DateWords(
        meanings,
        month_names=[fold_text(names[0]) for names in months],
        negations=frozenset(map(fold_text, lexicon.negations)),
        signs=frozenset(max(phrase.split(), key=len) for phrase in telling),
    )


@cache
def _compile_grammar(language: str) -> re.Pattern[str]:
    alternatives = {"DAY": r"[0-3]?\d(?:st|nd|rd|th|er|o)?", "OF": "of|del?|di"}
    for name, phrases in _load_date_words(language).meanings.items():
        longest_first = sorted(phrases, key=len, reverse=True)
        alternatives[name] = "|".join(map(re.escape, longest_first)) or "(?!)"
    alternatives["NUMBER"] += r"|\d{1,3}"
    grammar = re.sub("[A-Z_]{2,}", lambda name: f"(?:{alternatives[name[0]]})", _GRAMMAR)
    return re.compile(grammar, re.VERBOSE)


def _read_phrase(
    kind: str,
    phrase: str,
    words: _DateWords,
    today: Today,
) -> Period | None:
    """Return the period of *phrase*, which matches the group *kind* of the grammar."""
    if kind == "date":
        return read_period(phrase)
    tokens = phrase.split()
    found: dict[str, Any] = {}
    for name, meanings in words.meanings.items():
        for token in tokens:
            if token in meanings:
                found.setdefault(name, meanings[token])
    numbers = [int(digits[0]) for token in tokens if (digits := re.match(r"\d+", token))]
    if kind == "dated":
        *days_of_month, year = numbers
        return _build_period(year, found["MONTH"], *days_of_month[:1])
    now = today()
    if now is None:
        return None
    if kind == "undated":
        return _build_undated_month(now, found["MONTH"], found.get("STEP"), *numbers[:1])
    if kind == "day":
        days = int(words.meanings["DAYS"][phrase])
        return _build_relative_period(now, "day", days, days, words)
    if kind == "step":
        step = found["STEP"]
        return _build_relative_period(now, found["UNIT"], step, step, words)
    # The kinds ``ago`` and ``recent``.
    count = numbers[0] if numbers else found["NUMBER"]
    last_step = 0 if kind == "recent" else -count
    return _build_relative_period(now, found["UNIT"], -count, last_step, words)


def _compare(period: Period, comparison: str, today: Today) -> Period:
    """Apply *comparison* to *period*: "since 2020" begins in 2020 and has no end."""
    first, last, is_relative, words = period
    if not comparison:
        return period
    if comparison == "until" or (comparison == "before" and first == date.min):
        return Period(date.min, last, is_relative)
    if comparison == "before":
        return Period(date.min, first - _DAY, is_relative)
    if comparison == "after" and last < date.max:
        first = last + _DAY
    # "Since last year" also covers the years up to today, so all of them become keywords.
    if is_relative and (now := today()):
        words = _list_years(first.year, now.year)
    return Period(first, date.max, is_relative, words)


def _build_undated_month(
    today: date, month: int, step: int | None, day: int | None = None
) -> Period | None:
    """Return a month, or a day in it, without a year in the question."""
    year = today.year
    if step is None:
        year -= month > today.month
    elif step < 0:
        year -= month >= today.month
    elif step > 0:
        year += month <= today.month
    period = _build_period(year, month, day)
    return period and period._replace(is_relative=True, words=(str(year),))


def _build_relative_period(
    today: date, unit: str, first_step: int, last_step: int, words: _DateWords
) -> Period | None:
    if max(abs(first_step), abs(last_step)) > _FARTHEST:
        return None
    first, _ = find_first_and_last_day(today, unit, first_step)
    _, last = find_first_and_last_day(today, unit, last_step)
    year = str(first.year)
    names: tuple[str, ...] = ()
    if unit == "year":
        names = _list_years(first.year, last.year)
    elif unit == "quarter":
        names = (f"Q{(first.month + 2) // 3}", year)
    elif unit == "month":
        month = words.month_names[first.month - 1 : first.month]
        names = (*month, year) if first.month == last.month else (year,)
    elif first == last:
        names = (str(first),)
    return Period(first, last, is_relative=True, words=names)


def _list_years(first_year: int, last_year: int) -> tuple[str, ...]:
    first_year = max(first_year, last_year - MOST_YEARS + 1)
    return tuple(map(str, range(first_year, last_year + 1)))


def find_first_and_last_day(
    today: date,
    unit: str,
    step: int,
) -> tuple[date, date]:
    """Return the first and last day of the period that is *step* units away from *today*.

    For the unit ``month`` and the step -1, these are the first and last day of last month.
    """
    if unit == "day":
        day = today + timedelta(days=step)
        return day, day
    if unit == "week":
        monday = today - timedelta(days=today.weekday()) + timedelta(weeks=step)
        return monday, monday + timedelta(days=6)
    size = {"month": 1, "quarter": 3, "year": 12}[unit]
    months = today.year * 12 + (today.month - 1) // size * size + step * size
    year, month = divmod(months, 12)
    last = month + size
    return date(year, month + 1, 1), date(year, last, monthrange(year, last)[1])
