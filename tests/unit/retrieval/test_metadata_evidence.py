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
    MOST_FIELDS,
    NEUTRAL,
    WEIGHT,
    MetadataEvidence,
    collect_metadata_evidence,
    find_distinguishing_fields,
)
from qtmiddleware.retrieval.question_words import load_word_rules
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

TODAY = date(2026, 11, 23)


def weigh(
    question: str, *metadata: Mapping[str, Any], language: str = "en"
) -> MetadataEvidence | None:
    times = read_times(question, language, lambda: TODAY)
    return collect_metadata_evidence(times, metadata, load_word_rules(language), TODAY)


def shares(question: str, field: str, *values: Any, language: str = "en") -> list[float]:
    found = weigh(question, *({field: value} for value in values), language=language)
    return (
        [0.0] * len(values)
        if found is None
        else [round(share / WEIGHT, 3) for share in found.shares]
    )


def test_a_year_that_the_question_names_counts_for_the_passages_of_that_year() -> None:
    assert shares("hotel limit in 2024", "year", 2023, 2024, "2024", "2024-05-01") == [0, 1, 1, 1]
    assert shares("hotel limit last year", "year", 2024, 2025, 2026) == [0, 1, 0]


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


def test_a_high_price_is_not_new() -> None:
    assert shares("the latest price", "price", "24.90", "9.50", "12.00") == [0, 0, 0]


def test_the_newest_is_the_newest_up_to_today() -> None:
    assert shares("current hotel limit", "date", "2024-01-01", "2026-01-01", "2027-01-01") == [
        0,
        1,
        0,
    ]


def test_dates_say_what_is_new_and_versions_only_without_dates() -> None:
    found = weigh(
        "the latest limit",
        {"version": "4.0", "date": "2026-02-01"},
        {"version": "4.1", "date": "2026-01-01"},
    )
    assert found is not None
    assert found.shares[0] > found.shares[1]
    assert found.notes == ["date: newest"]


def test_a_name_counts_if_all_its_words_stand_in_the_question() -> None:
    values = ("Germany", "France", "All", None)
    assert shares("hotel limit for germany", "country", *values) == [1, 0, NEUTRAL, 0]
    assert shares(
        "allowance of field service", "team", "Service", "Field Service", "Sales", "Sales"
    ) == [0, 1, 0, 0]
    assert shares("límite en españa", "pais", "España", "Francia", language="es") == [1, 0]


@pytest.mark.parametrize(
    "question", ["limits not in Germany", "limits without Germany", "limits, but no Germany"]
)
def test_a_value_that_the_question_denies_is_not_named(question: str) -> None:
    assert shares(question, "country", "Germany", "France", "France") == [0, 0, 0]


def test_values_that_all_candidates_have_say_nothing() -> None:
    assert weigh("limit in Germany", {"country": "Germany"}, {"country": "Germany"}) is None
    assert weigh("limit in 2024", {"year": 2024}, {"year": 2024}) is None


@pytest.mark.parametrize(
    "field", ["title", "text", "url", "source", "id", "page", "file_name", "_internal"]
)
def test_fields_whose_words_are_read_already_say_nothing(field: str) -> None:
    assert (
        weigh("limit in Germany", {field: "Germany"}, {field: "France"}, {field: "France"}) is None
    )


def test_fields_that_differ_everywhere_count_only_for_an_equal_code() -> None:
    names = ("pruning", "digging", "ZP-410")
    assert shares("pruning shears", "model", *names) == [0, 0, 0]
    assert shares("blade for the zp-410", "model", *names) == [0, 0, 1]
    assert shares("blade for the zp-41", "model", *names) == [0, 0, 0]


def test_numbers_count_only_beside_the_name_of_their_field() -> None:
    assert shares("hose of 25 m", "price", 25, 30, 30) == [0, 0, 0]
    assert shares("what does section 4 say", "section", 4, 5, 5) == [1, 0, 0]


def test_seconds_since_the_epoch_are_dates_if_the_field_is_named_like_one() -> None:
    stamps = [datetime(year, 6, 1, tzinfo=UTC).timestamp() for year in (2024, 2025)]
    assert shares("limit in 2024", "created_at", *stamps) == [1, 0]
    assert shares("limit in 2024", "amount", *stamps) == [0, 0]
    days = (20240301, 20250301.0, 20251301)
    assert shares("limit in March 2024", "date", *days) == [1, 0, 0]
    assert shares("limit in March 2024", "amount", *days) == [0, 0, 0]


class Raising(Mapping[str, Any]):
    """A mapping that raises at whatever is read of it."""

    def __getitem__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        return 1


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
hostile = st.just(Raising()) | st.dictionaries(
    st.text(max_size=6) | st.sampled_from(["year", "date"]), values, max_size=5
)


@given(st.text(max_size=60), st.lists(hostile, max_size=6))
def test_no_metadata_raises_or_takes_anything_from_a_passage(
    question: str, metadata: list[Any]
) -> None:
    asked = f"current {question} since 2024 in 4.2"
    found = weigh(asked, *metadata)
    find_distinguishing_fields(metadata)
    if found is not None:
        assert len(found.shares) == len(metadata)
        assert min(found.shares) >= 0.0
        assert all(0.0 <= it <= 1.0 for it in found.matched)


def test_of_huge_metadata_the_beginning_is_read() -> None:
    wide = {f"field{at}": "Germany" for at in range(100_000)}
    columns = find_distinguishing_fields([wide, dict.fromkeys(wide, "France"), wide])
    assert len(columns) == MOST_FIELDS
    assert shares("x" * 100 + " in Germany", "note", "Germany " * 500_000, "France", "France") == [
        0,
        0,
        0,
    ]
    assert shares("amount 7", "amount", 10**5_000, 7, 7) == [0, 1, 1]


# --- through a wrapped function -------------------------------------------------------------------

# An invented leave policy: the answer of each question stands in a passage whose text names neither
# year nor country.
RULES = {
    (2024, "Norway"): "Employees have 25 days of paid leave, and may carry over five of them.",
    (2025, "Norway"): "Staff may take 26 days of leave with pay; four days may be carried over.",
    (2026, "Norway"): "Paid leave is 27 days, of which three may be carried over to spring.",
    (2024, "Chile"): "There are 15 working days of paid leave, none of which is carried over.",
    (2025, "Chile"): "Paid leave amounts to 16 working days a year.",
    (2026, "Chile"): "Everybody has 18 working days of leave, paid in full.",
}


def find_rules(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    """The same order for every question: no text tells these passages apart."""
    records = [
        {
            "id": f"{country} {year}",
            "score": 0.9 - at / 50,
            "text": text,
            "metadata": {"year": year, "country": country},
        }
        for at, ((year, country), text) in enumerate(RULES.items())
    ]
    return records[:top_k]


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
    search = QueryMiddleware(clock=lambda: datetime(2026, 11, 23, tzinfo=UTC)).wrap(find_rules)
    found = search.retrieve(question, top_k=3)
    assert found.matches[0].id == first
    assert len(found.matches) == 3
    assert found.status == "full"


def test_the_trace_says_which_dates_and_fields_counted_and_names_nobody() -> None:
    search = QueryMiddleware(clock=lambda: datetime(2026, 11, 23, tzinfo=UTC)).wrap(find_rules)
    notes = search.retrieve("days of leave in Norway last year").trace.notes
    assert ("metadata", "year = 2025") in notes
    assert ("metadata", "country: the value that the question names") in notes
    assert ("dates", "2025, as today is 2026-11-23") in notes


def test_check_lists_the_fields_that_tell_passages_apart() -> None:
    report = QueryMiddleware().wrap(find_rules).check("days of leave")
    assert "fields that tell passages apart: `year`, `country`" in str(report)
    finding = next(it for it in report.findings if it.subject == "metadata")
    assert finding.values == {"fields": ["year", "country"]}


def test_metadata_that_raises_changes_nothing_and_raises_nothing() -> None:
    def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
        return [{**it, "metadata": Raising()} for it in find_rules(query, top_k)]

    found = QueryMiddleware().wrap(search).retrieve("leave in Chile in 2025", top_k=3)
    assert [match.id for match in found.matches] == ["Norway 2024", "Norway 2025", "Norway 2026"]
