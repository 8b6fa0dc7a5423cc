"""Metadata as evidence: what a question names adds to a passage, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.preprocessing.dates import read_times
from qtmiddleware.retrieval.metadata_evidence import (
    WEIGHT,
    MetadataEvidence,
    collect_metadata_evidence,
)
from qtmiddleware.retrieval.question_words import load_word_rules
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

TODAY = date(2026, 11, 23)


def weigh(question: str, *metadata: Mapping[str, Any]) -> MetadataEvidence | None:
    times = read_times(question, "en", lambda: TODAY)
    return collect_metadata_evidence(times, metadata, load_word_rules("en"), TODAY)


def shares(question: str, field: str, *values: Any) -> list[float]:
    found = weigh(question, *({field: value} for value in values))
    return [round(share / WEIGHT, 3) for share in found.shares] if found else [0.0] * len(values)


STAMPS = [datetime(year, 6, 1, tzinfo=UTC).timestamp() for year in (2024, 2025)]


@pytest.mark.parametrize(
    ("question", "field", "values", "expected"),
    [
        # A year or day that the question names.
        ("limit in 2024", "year", [2023, 2024, "2024", "2024-05-01"], [0, 1, 1, 1]),
        ("limit last year", "year", [2024, 2025, 2026], [0, 1, 0]),
        ("limit in 2024", "created_at", STAMPS, [1, 0]),
        ("limit in 2024", "amount", STAMPS, [0, 0]),
        ("limit before 2025", "date", ["2024-12-31", "2025-01-01"], [1, 0]),
        ("limit after 2024", "date", ["2024-12-31", "2025-01-01"], [0, 1]),
        ("limit in March 2024", "date", [20240301, 20250301.0, 20251301], [1, 0, 0]),
        # The newest is the newest up to today, and a high price is not new.
        ("current limit", "date", ["2024-01-01", "2026-01-01", "2027-01-01"], [0, 1, 0]),
        ("the latest price", "price", ["24.90", "9.50", "12.00"], [0, 0, 0]),
        # A name of which all words stand in the question, unless the question denies it.
        ("limit for germany", "country", ["Germany", "France", "All", None], [1, 0, 0.5, 0]),
        ("field service", "team", ["Service", "Field Service", "Sales", "Sales"], [0, 1, 0, 0]),
        ("limits for sales", "teams", [["Sales", "Support"], ["Support"], ("Legal",)], [1, 0, 0]),
        ("limits not in Germany", "country", ["Germany", "France", "France"], [0, 0, 0]),
        ("limits without Germany", "country", ["Germany", "France", "France"], [0, 0, 0]),
        # Fields that differ everywhere count only for an equal code.
        ("pruning shears", "model", ["pruning", "digging", "ZP-410"], [0, 0, 0]),
        ("blade for the zp-410", "model", ["pruning", "digging", "ZP-410"], [0, 0, 1]),
        ("blade for the zp-41", "model", ["pruning", "digging", "ZP-410"], [0, 0, 0]),
        # Numbers count only beside the name of their field.
        ("hose of 25 m", "price", [25, 30, 30], [0, 0, 0]),
        ("what does section 4 say", "section", [4, 5, 5], [1, 0, 0]),
        ("amount 7", "amount", [10**5_000, 7, 7], [0, 1, 1]),
        # Fields whose words are read already, and values that all have.
        ("limit in Germany", "title", ["Germany", "France", "France"], [0, 0, 0]),
        ("limit in Germany", "_internal", ["Germany", "France", "France"], [0, 0, 0]),
        ("limit in 2024", "year", [2024, 2024], [0, 0]),
        ("x" * 100 + " in Germany", "note", ["Germany " * 500_000, "France", "France"], [0, 0, 0]),
    ],
)
def test_what_a_question_names_counts_for_the_passages_that_have_it(
    question: str, field: str, values: list[Any], expected: list[float]
) -> None:
    assert shares(question, field, *values) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("changes in 3.1", [1, 0, 0, 0]),
        ("changes in 3.10", [0, 0, 1, 0]),
        ("changes since 3.9", [0, 1, 1, 1]),
        ("changes after version 3.9", [0, 0, 1, 1]),
        ("changes before 3.10", [1, 1, 0, 0]),
        ("changes until 3.9", [1, 1, 0, 0]),
        ("the latest changes", [0, 0.333, 0.667, 1]),
    ],
)
def test_versions_are_compared_number_by_number(question: str, expected: list[float]) -> None:
    assert shares(question, "version", "3.1", "3.9", "v3.10", "4.0.1") == expected


class Raising(Mapping[str, Any]):
    """A mapping that raises at whatever is read of it."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


plain = st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.dates()
hostile = st.just(Raising()) | st.dictionaries(
    st.text(max_size=6) | st.sampled_from(["year", "date"]),
    plain | st.lists(plain, max_size=4) | st.dictionaries(st.text(max_size=4), plain, max_size=3),
    max_size=5,
)


@given(st.text(max_size=60), st.lists(hostile, max_size=6))
def test_no_metadata_raises_or_takes_anything_from_a_passage(
    question: str, metadata: list[Any]
) -> None:
    asked = f"current {question} since 2024 in 4.2"
    found = weigh(asked, *metadata)
    if found is not None:
        assert len(found.shares) == len(metadata)
        assert min(found.shares) >= 0.0
        assert all(0.0 <= it <= 1.0 for it in found.matched)


# --- through a wrapped function -------------------------------------------------------------------

# An invented leave policy: the answer of each question stands in a passage whose text names neither
# year nor country.
PLACES = [(country, year) for country in ("Norway", "Chile") for year in (2024, 2025, 2026)]


def find_rules(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    """The same order for every question: no text tells these passages apart."""
    records = [
        {
            "id": f"{country} {year}",
            "score": 0.9 - at / 50,
            "text": "Paid leave has as many days as the table says.",
            "metadata": {"year": year, "country": country},
        }
        for at, (country, year) in enumerate(PLACES)
    ]
    return records[:top_k]


CLOCKED = QueryMiddleware(clock=lambda: datetime(2026, 11, 23, tzinfo=UTC))


@pytest.mark.parametrize(
    ("question", "first"),
    [
        ("How many days of leave are there in Chile in 2025?", "Chile 2025"),
        ("days of leave in Norway last year", "Norway 2025"),
        ("current days of leave in Chile", "Chile 2026"),
        ("How much leave was there in Chile two years ago?", "Chile 2024"),
        ("How much leave is there?", "Norway 2024"),
    ],
)
def test_the_passage_with_the_values_that_the_question_names_comes_first(
    question: str, first: str
) -> None:
    found = CLOCKED.wrap(find_rules).retrieve(question, top_k=3)
    assert found.matches[0].id == first
    assert (len(found.matches), found.status) == (3, "full")


def test_the_trace_says_which_dates_and_fields_counted_and_names_nobody() -> None:
    notes = CLOCKED.wrap(find_rules).retrieve("days of leave in Norway last year").trace.notes
    assert ("metadata", "year = 2025") in notes
    assert ("metadata", "country: the value that the question names") in notes
    assert ("dates", "2025, as today is 2026-11-23") in notes
