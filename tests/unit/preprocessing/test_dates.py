"""What a question says of dates and versions."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.preprocessing.dates import VersionRange, read_period, read_times, read_version

TODAY = date(2026, 11, 23)


def read(text: str, language: str = "en", today: date | None = TODAY) -> list[str]:
    times = read_times(text, language, lambda: today)
    return [
        *map(str, times.periods),
        *map(str, times.versions),
        *(["newest"] if times.newest else []),
    ]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "the limit last year"),
        ("de", "die Grenze im letzten Jahr"),
        ("fr", "la limite de l'année dernière"),
        ("it", "il limite dell'anno scorso"),
    ],
)
def test_last_year_is_the_year_before_in_every_language(language: str, text: str) -> None:
    assert read(text, language) == ["2025"]
    assert read_times(text, language, lambda: TODAY).words == ("2025",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("last year", ["2025"]),
        ("the last three years", ["2023", "2024", "2025", "2026"]),
        ("last month", ["october", "2026"]),
        ("last week", []),
    ],
)
def test_a_relative_period_is_found_by_the_words_that_documents_use(
    text: str, words: list[str]
) -> None:
    assert list(read_times(f"what changed {text}", "en", lambda: TODAY).words) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("what changed yesterday", ["2026-11-22"]),
        ("what changed since March", ["since 2026-03-01"]),
        ("what changed in the last three years", ["2023 to 2026"]),
        ("what changed in Q3 2025", ["2025-07-01 to 2025-09-30"]),
        ("what changed on 3 March 2024", ["2024-03-03"]),
        ("what changed before version 4.2", ["before 4.2"]),
        ("what is newer than 3.10", ["after 3.10"]),
        ("what changes next March", ["2027-03-01 to 2027-03-31"]),
        ("the rate at the moment", ["newest"]),
    ],
)
def test_words_for_time_are_read(text: str, expected: list[str]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "May I march in the parade?",
        "How long do symptoms last two days after the vaccine?",
        "more than 10,000 records",
        "room 2101 at 12.50 euros",
        "since when",
    ],
)
def test_words_that_only_look_like_time_are_left_alone(text: str) -> None:
    assert [it for it in read(text) if it != "12.50"] == []


def test_3_10_comes_after_3_9_and_4_2_takes_in_4_2_1() -> None:
    assert (3, 10) in VersionRange((3, 9), "since")
    assert (4, 2, 1) in VersionRange((4, 2))
    assert (4, 2) in VersionRange((4, 2, 0))
    assert (4, 2) not in VersionRange((4, 2, 1))
    assert (4, 2, 1) not in VersionRange((4, 2), "after")
    assert (4, 20) not in VersionRange((4, 2))


@pytest.mark.parametrize(
    "text", ["2025-13-01", "2025-02-30", "32 May 2025", "20245", "", "last year", "4.2"]
)
def test_what_is_no_date_of_data_is_none(text: str) -> None:
    assert read_period(text) is None


@pytest.mark.parametrize(
    "text", ["2024-03-01", "1.3.2024", "2024-03-01T12:00:00Z", "March 1, 2024", "1 Mar 2024"]
)
def test_a_day_of_data_is_read_as_people_write_it(text: str) -> None:
    assert str(read_period(text)) == "2024-03-01"


def test_versions_are_numbers_with_dots() -> None:
    assert read_version("v3.10-rc1") == read_version("Release 3.10 (LTS)") == (3, 10)
    assert read_version("24.5 cm wide") == (24, 5)
    assert read_version("2024") is None


@given(
    st.text(),
    st.sampled_from(["", *LANGUAGES]),
    st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
)
def test_no_text_raises(text: str, language: str, today: date | None) -> None:
    read_times(text, language, lambda: today)
    read_period(text)
    read_version(text)
