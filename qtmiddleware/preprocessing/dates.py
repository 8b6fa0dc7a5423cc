"""Find the dates and versions in a question, and requests for the newest document.

The date words are under ``dates`` in the word lists. Relative dates ("last year") have a meaning
only if today's date is known.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_MOST_BETWEEN: Final = 3
"""The maximum number of words between a comparison and its date, as in "since the year 2020"."""
_DENIED_TOKENS: Final = 2
"""A negation applies to this many words after it."""

_compile_pattern: Final = cache(re.compile)
_YEAR: Final = r"(?:19|20)\d\d"
_ISO: Final = r"((?:19|20)\d\d)[-/](\d\d?)(?:[-/](\d\d?))?"
_DOTTED: Final = r"(\d\d?)[./](\d\d?)[./]((?:19|20)\d\d)"
_QUARTER: Final = r"(?:((?:19|20)\d\d)-?)?[qt]([1-4])(?:[-/]((?:19|20)\d\d))?"
_VERSION: Final = r"v?(\d{1,6}(?:\.\d{1,6}){1,4})|v(\d{1,6})"
# 3.4.1, v2, 3.x, python3.11, release-3.4, 4.2-rc1. A path such as /api/v1 is no version.
_VERSION_IN_QUESTION: Final = (
    r"(?:[a-z]+-?)??v?(\d{1,6}(?:\.\d{1,6}){1,4})(?:\.x|-[a-z]+\d*|(?:a|b|rc)\d+)?"
    r"|v?(\d{1,6})\.x|v(\d{1,6})"
)
_DAY_IN_MONTH: Final = r"([0-3]?\d)(?:st|nd|rd|th)?"


def _match_whole_text(pattern: str, text: str) -> re.Match[str] | None:
    """Match *pattern* against the whole *text*, and return the match or ``None``.

    All patterns in this module need a digit, so a *text* of letters never matches.
    """
    # Compiling a pattern is slow. Words of letters, and so most questions, need no pattern.
    return None if text.isalpha() else _compile_pattern(pattern).fullmatch(text)


def _match_text_start(pattern: str, text: str) -> re.Match[str] | None:
    """Match *pattern* at the start of *text*, and return the match or ``None``.

    All patterns in this module need a digit, so a *text* of letters never matches.
    """
    return None if text.isalpha() else _compile_pattern(pattern).match(text)


class Period(NamedTuple):
    """A range of days.

    Attributes:
        first: The first day, or ``None`` if the range has no beginning.
        last: The last day, or ``None`` if the range has no end.
        is_relative: Whether the days depend on today's date.
        words: The words for a relative period in documents: ``("2024",)`` for "last year" in 2025.
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
    """A range of versions. If *low* and *high* are equal, the range is a single version.

    A version includes its subversions, so the range of the single version 4.2 contains 4.2.1.

    Attributes:
        low: The lowest version, or ``None`` if the range has no lower limit.
        high: The highest version, or ``None`` if the range has no upper limit.
        includes_low: Whether the range includes *low*.
        includes_high: Whether the range includes *high*.
    """

    low: Version | None
    high: Version | None
    includes_low: bool = True
    includes_high: bool = True

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, tuple):
            return False
        return self._is_within_lower_limit(version) and self._is_within_upper_limit(version)

    def _is_within_lower_limit(self, version: Version) -> bool:
        """Return whether *version* is above the lower limit, or at an included limit."""
        low = self.low
        if low is None:
            return True
        # 4.2.1 is a part of 4.2, so "after 4.2" does not include it.
        is_part = version[: len(low)] == low
        return self.includes_low if is_part else version > low

    def _is_within_upper_limit(self, version: Version) -> bool:
        """Return whether *version* is below the upper limit, or at an included limit."""
        high = self.high
        if high is None:
            return True
        is_part = version[: len(high)] == high
        return self.includes_high if is_part else version < high

    def __str__(self) -> str:
        if self.low == self.high:
            return _format_version(self.low)
        if self.high is None:
            return f"{'since' if self.includes_low else 'after'} {_format_version(self.low)}"
        return f"{'until' if self.includes_high else 'before'} {_format_version(self.high)}"


@dataclass(slots=True, eq=False, repr=False)
class Times:
    """The dates and versions that a question names.

    Attributes:
        periods: The periods in the question.
        versions: The versions in the question.
        newest: Whether the question asks for the newest document or version.
        needs_today: Whether a date in the question depends on today's date.
        tokens: The words of the question in lower case, without accents. A code or a number is one
            token.
        relative_tokens: The tokens of relative periods, such as "last" and "year".
        denied_tokens: The two tokens after each negation. In "not in Germany", they are "in" and
            "germany".
    """

    periods: list[Period] = field(default_factory=list)
    versions: list[VersionRange] = field(default_factory=list)
    newest: bool = False
    needs_today: bool = False
    tokens: Sequence[str] = ()
    relative_tokens: list[str] = field(default_factory=list)
    denied_tokens: frozenset[str] = frozenset()

    @property
    def words(self) -> tuple[str, ...]:
        """The words for the relative periods in documents, such as years, without duplicates."""
        return tuple(dict.fromkeys(word for period in self.periods for word in period.words))


_Phrases = Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]
"""Maps a word to the (words, meaning) pairs of the phrases that begin with it, longest first."""


class _DateWords(NamedTuple):
    """The date words of one language.

    Attributes:
        units: Maps a word to its unit: ``day``, ``week``, ``month``, ``quarter`` or ``year``.
        steps: Maps a word to a number of units from today: "last" to -1, "this" to 0, "next" to 1.
        numbers: Maps a number word to its number.
        months: Maps the name of a month to its number, from 1 to 12.
        month_names: The usual name of each month, from January to December.
        days: Maps phrases such as "yesterday" to a number of days from today, such as -1.
        comparisons: Maps phrases to ``since``, ``before``, ``after`` or ``until``.
        ago: Maps phrases after a number and a unit ("three years ago") to ``ago``, and phrases
            before a number and a unit ("vor drei Jahren") to ``before_ago``.
        newest: Phrases that ask for the newest document or version.
        within: Words that may precede a month, such as "in".
        between: Words that may be between a comparison and its date, such as "the" and "year".
        starts: The words that a date or a request for the newest document can begin with.
    """

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


def split_date_tokens(text: str) -> list[str]:
    """Return the words of *text* in lower case and without accents.

    A code, a version or a date is one word: zp-410, 4.2, 2025-03-01. Only the first `MOST_TOKENS`
    words are returned.
    """
    return split_terms(text)[:MOST_TOKENS]


def read_times(text: str, language: str, get_today: Today) -> Times:
    """Return the dates and versions that *text* names.

    Args:
        text: The question.
        language: The language code of *text*. Unknown codes mean English.
        get_today: Returns today's date. It is called only if *text* has a relative date.
    """
    tokens = split_date_tokens(text)
    list_language = language if language in LANGUAGES else DEFAULT
    times = _TimeReader(tokens, _load_date_words(list_language), get_today).find_times()
    negations = load_lexicon(list_language).negations
    # Most questions deny nothing. The check is quicker than a look at every token.
    if not negations.isdisjoint(tokens):
        denied_tokens = [
            tokens[token_index + 1 : token_index + 1 + _DENIED_TOKENS]
            for token_index, token in enumerate(tokens)
            if token in negations
        ]
        times.denied_tokens = frozenset().union(*denied_tokens)
    return times


def read_version(text: str) -> Version | None:
    """Return the numbers of the version in *text*, or ``None`` if *text* is not a version.

    ``4.2``, ``v4.2`` and ``4.2-rc1`` all have the numbers ``(4, 2)``.
    """
    # A suffix such as "-rc1", "b2" or "+cpu" may follow the numbers.
    match = _match_text_start(_VERSION, text.strip().lower())
    if match is None or (
        match.end() < len(text.strip()) and text.strip()[match.end()] not in "-+abcr. "
    ):
        return None
    return tuple(map(int, (match.group(1) or match.group(2)).split(".")))


def read_period(text: str) -> Period | None:
    """Return the period that *text* names, or ``None`` if *text* is not a period.

    A period is a date, month, quarter or year in numbers: 2024-03-01, 1.3.2024, 2024-03, 2024-Q1 or
    2024.
    """
    text = text.strip().lower()
    # A time of day may follow the date: 2024-03-01T12:00 or 2024-03-01 12:00.
    if (match := _match_text_start(_ISO, text)) and (
        match.end() == len(text) or text[match.end()] in "t "
    ):
        year, month, day = match.groups()
        return _build_period(int(year), int(month), int(day) if day else None)
    if match := _match_whole_text(_DOTTED, text):
        day, month, year = match.groups()
        return _build_period(int(year), int(month), int(day))
    if _match_whole_text(_YEAR, text):
        return _span_years(int(text), int(text))
    if (match := _match_whole_text(_QUARTER, text.replace(" ", "-"))) and (
        year := match.group(1) or match.group(3)
    ):
        return _span_months(int(year), 3 * int(match.group(2)) - 2, 3)
    return None


def _format_version(version: Version | None) -> str:
    """Return *version* with dots between the numbers, or ``""`` if *version* is ``None``."""
    return ".".join(map(str, version or ()))


def _build_period(year: int, month: int, day: int | None) -> Period | None:
    """Return the period of a day, or of the whole month if *day* is ``None``.

    Returns ``None`` if the date does not exist.
    """
    try:
        if day is not None:
            return Period(date(year, month, day), date(year, month, day))
        return _span_months(year, month, 1) if 1 <= month <= 12 else None
    except ValueError:
        return None


def _span_years(first_year: int, last_year: int) -> Period:
    """Return the period from the first day of *first_year* to the last day of *last_year*."""
    return Period(date(first_year, 1, 1), date(last_year, 12, 31))


def _span_months(year: int, month: int, month_count: int) -> Period:
    """Return the period of *month_count* months from *month* on, all in the same *year*."""
    last = month + month_count - 1
    return Period(date(year, month, 1), date(year, last, monthrange(year, last)[1]))


@cache
def _load_date_words(language: str) -> _DateWords:
    """Return the date words of *language*, from its word list."""
    data: Mapping[str, Any] = load_lexicon(language).dates
    steps = {
        word: step
        for step, name in ((-1, "last"), (0, "this"), (1, "next"))
        for word in _get_folded_words(data, name)
    }
    names = [_fold_words(name.split("|")) for name in data.get("months", ())]
    numbers = [name.split("|") for name in data.get("numbers", ())]
    units = {
        word: unit
        for unit, words in data.get("units", {}).items()
        for word in map(fold_text, words)
    }
    counts = {
        fold_text(word): number for number, words in enumerate(numbers, start=1) for word in words
    }
    months = {word: number for number, words in enumerate(names, start=1) for word in words}
    days = _group_phrases(
        (phrase, step) for step, phrases in data.get("days", {}).items() for phrase in phrases
    )
    comparisons, ago, newest = (
        _group_phrases((phrase, name) for name in keys for phrase in data.get(name, ()))
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
        within=frozenset(_get_folded_words(data, "within")),
        between=frozenset(_get_folded_words(data, "between")),
    )


def _get_folded_words(date_data: Mapping[str, Any], json_key: str) -> list[str]:
    """Return the words under *json_key*, in lower case and without accents.

    Returns an empty list if *date_data* has no such key.
    """
    return _fold_words(date_data.get(json_key, ()))


def _fold_words(words: Sequence[str]) -> list[str]:
    """Return all *words* in lower case and without accents."""
    return list(map(fold_text, words))


def _group_phrases(phrase_meanings: Iterator[tuple[str, str]] | Any) -> _Phrases:
    """Return (phrase, meaning) pairs, grouped by the first word of the phrase, longest first."""
    table: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for phrase, meaning in phrase_meanings:
        words = tuple(split_date_tokens(phrase))
        table.setdefault(words[0], []).append((words, meaning))
    return {
        first_word: tuple(sorted(rows, key=lambda row: -len(row[0])))
        for first_word, rows in table.items()
    }


class _TimeReader:
    """Finds the dates and versions in the tokens of one question, from left to right.

    A token belongs to at most one date or version.
    """

    def __init__(self, tokens: Sequence[str], date_words: _DateWords, get_today: Today) -> None:
        self._tokens = tokens
        self._words = date_words
        self._get_today = get_today
        self._times = Times(tokens=tokens)
        self._today: date | None = None

    def find_times(self) -> Times:
        """Return the dates and versions in the question."""
        token_index, starts = 0, self._words.starts
        while token_index < len(self._tokens):
            token = self._tokens[token_index]
            # Most tokens are words that cannot begin a date. They are skipped quickly.
            if token.isalpha() and token not in starts:
                token_index += 1
                continue
            token_index += (
                self._record_with_comparison(token_index)
                or self._record_newest_phrase(token_index)
                or 1
            )
        return self._times

    def _find_phrase_length_and_meaning(
        self, phrases: _Phrases, token_index: int
    ) -> tuple[int, str]:
        """Find the longest of *phrases* that begins at *token_index*.

        Returns:
            The number of tokens in the phrase, or 0 if no phrase begins there.
            The meaning of the phrase, or ``""`` if no phrase begins there.
        """
        for words, meaning in (
            phrases.get(self._tokens[token_index], ()) if token_index < len(self._tokens) else ()
        ):
            if tuple(self._tokens[token_index : token_index + len(words)]) == words:
                return len(words), meaning
        return 0, ""

    def _record_newest_phrase(self, token_index: int) -> int:
        """Record a phrase at *token_index* that asks for the newest document or version, if any.

        Returns:
            The number of tokens in the phrase, or 0 if there is no such phrase.
        """
        size, _ = self._find_phrase_length_and_meaning(self._words.newest, token_index)
        self._times.newest = self._times.newest or bool(size)
        return size

    def _record_with_comparison(self, token_index: int) -> int:
        """Record the period or version at *token_index*, which a comparison may precede.

        In "since 2020", "since" is the comparison.

        Returns:
            The number of tokens that were read, or 0 if there is no period or version.
        """
        size, comparison = self._find_phrase_length_and_meaning(
            self._words.comparisons, token_index
        )
        if size:
            between = token_index + size
            # The date may follow directly or after small words, as in "since the year 2020".
            most = between + _MOST_BETWEEN
            while (
                between < min(most, len(self._tokens))
                and self._tokens[between] in self._words.between
            ):
                between += 1
            for start in (token_index + size, between):
                if read := self._record_period_or_version(start, comparison):
                    return start + read - token_index
        return self._record_period_or_version(token_index, "")

    def _record_period_or_version(self, token_index: int, comparison: str) -> int:
        """Record the period or version at *token_index*, after applying *comparison*.

        Args:
            token_index: The index of the first token.
            comparison: ``since``, ``before``, ``after``, ``until``, or ``""`` for no comparison.

        Returns:
            The number of tokens that were read, or 0 if there is no period or version.
        """
        if token_index >= len(self._tokens):
            return 0
        period, size = self._read_period(token_index, has_comparison=bool(comparison))
        if size:
            if period is not None and period.is_relative:
                self._times.relative_tokens.extend(self._tokens[token_index : token_index + size])
            if period is not None:
                self._times.periods.append(self._apply_comparison(period, comparison))
            return size
        match = _match_whole_text(_VERSION_IN_QUESTION, self._tokens[token_index])
        if match is None:
            return 0
        version = tuple(map(int, next(filter(None, match.groups())).split(".")))
        self._times.versions.append(
            {
                "since": VersionRange(version, None),
                "after": VersionRange(version, None, includes_low=False),
                "before": VersionRange(None, version, includes_high=False),
                "until": VersionRange(None, version),
            }.get(comparison, VersionRange(version, version))
        )
        return 1

    def _apply_comparison(self, period: Period, comparison: str) -> Period:
        """Apply *comparison* to *period*: "since 2020" begins in 2020 and has no end.

        If *comparison* is ``""``, *period* is returned unchanged.
        """
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
            # No day follows 31 December 9999, the last day of the calendar.
            return period
        words = period.words
        # "Since last year" also covers the years up to today, so all of them become keywords.
        if period.is_relative and first is not None and self._today is not None:
            years = range(max(first.year, self._today.year - MOST_YEARS + 1), self._today.year + 1)
            words = tuple(map(str, years))
        return Period(first, last, period.is_relative, words if first is not None else ())

    # --- one period ---

    def _read_period(self, token_index: int, *, has_comparison: bool) -> tuple[Period | None, int]:
        """Read the period that begins at *token_index*.

        *has_comparison* is ``True`` if a comparison such as "since" precedes the period.

        Returns:
            The period, or ``None`` if there is no period or its days are unknown.
            The number of tokens in the period, or 0 if there is no period.
        """
        token = self._tokens[token_index]
        named, size = self._read_month_or_quarter(token_index, has_comparison=has_comparison)
        if size:
            return named, size
        if size := self._find_phrase_length_and_meaning(self._words.days, token_index)[0]:
            step = int(self._find_phrase_length_and_meaning(self._words.days, token_index)[1])
            return self._build_relative_period("day", step, step), size
        return (
            self._read_period_ago(token_index)
            or self._read_last_or_next_period(token_index)
            or (read_period(token), int(read_period(token) is not None))
        )

    def _read_month_or_quarter(
        self, token_index: int, *, has_comparison: bool
    ) -> tuple[Period | None, int]:
        """Read the day, month or quarter at *token_index*: "March 2024", "Q1 2024" or "in May".

        A month without a year must follow a comparison or a word such as "in" or "last", and means
        the latest such month up to today. *has_comparison* is ``True`` if a comparison such as
        "since" precedes the period.

        Returns:
            The period, or ``None`` if there is no period or its days are unknown.
            The number of tokens in the period, or 0 if there is no period.
        """
        tokens, words = self._tokens, self._words
        following = tokens[token_index + 1] if token_index + 1 < len(tokens) else ""
        quarter = _match_whole_text(_QUARTER, tokens[token_index])
        if (
            quarter
            and quarter.group(1) is None
            and quarter.group(3) is None
            and _match_whole_text(_YEAR, following)
        ):
            return _span_months(int(following), 3 * int(quarter.group(2)) - 2, 3), 2
        start, day = token_index, None
        if (
            match := _match_whole_text(_DAY_IN_MONTH, tokens[token_index])
        ) and following in words.months:
            start = token_index + 1
            day = int(match.group(1))
        month = words.months.get(tokens[start])
        if month is None:
            return None, 0
        end = start + 1
        if (
            day is None
            and end + 1 < len(tokens)
            and (match := _match_whole_text(_DAY_IN_MONTH, tokens[end]))
        ):
            day, end = (
                (int(match.group(1)), end + 1)
                if _match_whole_text(_YEAR, tokens[end + 1])
                else (None, end)
            )
        # In Spanish, Portuguese and Italian a word may stand before the year: marzo de 2024.
        if end < len(tokens) and tokens[end] in ("de", "del", "di") and end + 1 < len(tokens):
            end += bool(_match_whole_text(_YEAR, tokens[end + 1]))
        if end < len(tokens) and _match_whole_text(_YEAR, tokens[end]):
            return _build_period(int(tokens[end]), month, day), end + 1 - token_index
        if not (
            has_comparison
            or (
                token_index
                and (
                    tokens[token_index - 1] in words.within
                    or tokens[token_index - 1] in words.steps
                )
            )
        ):
            return None, 0
        # "May" and "March" are also verbs. Without a year, they count only after a word that a
        # month follows.
        today = self._find_today()
        if today is None:
            return None, start + 1 - token_index
        year = today.year - (month > today.month)
        # In May, "last May" means the May of last year.
        if token_index and words.steps.get(tokens[token_index - 1]) == -1 and month == today.month:
            year -= 1
        period = _build_period(year, month, day)
        return period and period._replace(
            is_relative=True, words=(str(year),)
        ), start + 1 - token_index

    def _read_period_ago(self, token_index: int) -> tuple[Period | None, int] | None:
        """Read a period such as "three years ago", "vor drei Jahren" or "il y a trois ans".

        Returns:
            The period and its number of tokens, or ``None`` if there is no such phrase. The period
            is ``None`` if its days are unknown.
        """
        size, meaning = self._find_phrase_length_and_meaning(self._words.ago, token_index)
        start = token_index + size if meaning == "before_ago" else token_index
        if start + 1 >= len(self._tokens):
            return None
        count = self._read_number(start)
        unit = self._words.units.get(self._tokens[start + 1])
        if count is None or unit is None:
            return None
        if meaning == "before_ago":
            return self._build_relative_period(unit, -count, -count), size + 2
        size, meaning = self._find_phrase_length_and_meaning(self._words.ago, start + 2)
        return (
            (self._build_relative_period(unit, -count, -count), size + 2)
            if meaning == "ago"
            else None
        )

    def _read_last_or_next_period(self, token_index: int) -> tuple[Period | None, int] | None:
        """Read a period such as "last year", "this quarter" or "the last three months".

        In some languages, the unit comes first: "l'année dernière".

        Returns:
            The period and its number of tokens, or ``None`` if there is no such phrase. The period
            is ``None`` if its days are unknown.
        """
        tokens, words = self._tokens, self._words
        if token_index + 1 >= len(tokens):
            return None
        if (step := words.steps.get(tokens[token_index])) is not None:
            if (unit := words.units.get(tokens[token_index + 1])) is not None:
                return self._build_relative_period(unit, step, step), 2
            count = self._read_number(token_index + 1)
            unit = (
                words.units.get(tokens[token_index + 2]) if token_index + 2 < len(tokens) else None
            )
            # In "symptoms last three days", "last" is a verb. Before the adjective stands a small
            # word: "the last three days".
            is_led = token_index > 0 and tokens[token_index - 1] in words.between | words.within
            if count is not None and unit is not None and step == -1 and is_led:
                return self._build_relative_period(unit, -count, 0), 3
            return None
        unit = words.units.get(tokens[token_index])
        step = words.steps.get(tokens[token_index + 1])
        return (
            None if unit is None or not step else (self._build_relative_period(unit, step, step), 2)
        )

    def _read_number(self, token_index: int) -> int | None:
        """Return the number at *token_index*, in digits or as a word, or else ``None``."""
        token = self._tokens[token_index]
        if token.isascii() and token.isdigit() and len(token) <= 3:
            return int(token)
        return self._words.numbers.get(token)

    def _find_today(self) -> date | None:
        """Return today's date, or ``None`` if unknown. All calls return the same date."""
        # Midnight may pass between two calls, so the date is asked for only once.
        if not self._times.needs_today:
            self._times.needs_today = True
            self._today = self._get_today()
        return self._today

    def _build_relative_period(self, unit: str, first_step: int, last_step: int) -> Period | None:
        """Return the period from *first_step* to *last_step*, counted in units from today.

        For "the last three months", the unit is ``month`` and the steps are -3 and 0. Returns
        ``None`` if today's date is unknown or the period is too far away.
        """
        today = self._find_today()
        if today is None or max(abs(first_step), abs(last_step)) > _FARTHEST:
            return None
        try:
            begin, _ = find_first_and_last_day(today, unit, first_step)
            _, end = find_first_and_last_day(today, unit, last_step)
        except (ValueError, OverflowError):
            return None
        return Period(begin, end, is_relative=True, words=self._list_period_words(unit, begin, end))

    def _list_period_words(self, unit: str, first_day: date, last_day: date) -> tuple[str, ...]:
        """Return the words for the period from *first_day* to *last_day* in documents.

        For the *unit* ``year``, the words are the years. A month or quarter has its name and year.
        A day has its date, such as ``2024-03-01``. A week has no words.
        """
        if unit == "year":
            return tuple(
                map(
                    str,
                    range(max(first_day.year, last_day.year - MOST_YEARS + 1), last_day.year + 1),
                )
            )
        if unit == "quarter":
            return f"Q{(first_day.month + 2) // 3}", str(first_day.year)
        names = self._words.month_names
        if unit == "month":
            return (
                *(
                    (names[first_day.month - 1],)
                    if first_day.month == last_day.month and names
                    else ()
                ),
                str(first_day.year),
            )
        return (str(first_day),) if first_day == last_day else ()


def find_first_and_last_day(today: date, unit: str, step: int) -> tuple[date, date]:
    """Return the first and last day of the period that is *step* units away from *today*.

    For the unit ``month`` and the step -1, these are the first and last day of last month.

    Args:
        today: Today's date.
        unit: ``day``, ``week``, ``month``, ``quarter`` or ``year``.
        step: The distance in units: -1 for the last, 0 for the current, 1 for the next period.

    Raises:
        ValueError: The days are outside the calendar of `datetime`.
        OverflowError: The days are outside the calendar of `datetime`.
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
