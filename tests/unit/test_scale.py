"""The page about other sizes says what is computed."""

from __future__ import annotations

import pytest

from benchmarks.blocks import read_block
from benchmarks.scale import (
    FAQ,
    PAGE,
    RESULTS,
    TIERS,
    compute_tables,
    read_facts,
    show,
    show_load,
    tabulate_facts,
    tabulate_prices,
)


@pytest.mark.parametrize("name", ["searching", "asking", "corpus"])
def test_the_tables_of_the_page_are_what_is_computed(name: str) -> None:
    assert read_block(PAGE, name) == compute_tables()[name], "run: python -m benchmarks.scale"


def test_what_a_thousand_questions_cost_is_what_is_computed() -> None:
    assert read_block(FAQ, "prices") == tabulate_prices(read_facts()), (
        "run: python -m benchmarks.scale"
    )


def test_calls_and_searches_of_a_tier_are_those_of_the_page_on_tiers() -> None:
    page = (PAGE.parent / "choose-a-tier.md").read_text("utf-8")
    for tier, counts in TIERS.items():
        (row,) = (line.split("|") for line in page.splitlines() if line.startswith(f"| `{tier}`"))
        assert tuple(float(cell) for cell in row[5:7]) == counts, tier


def test_every_figure_that_goes_in_is_written_down() -> None:
    assert tabulate_facts() in (RESULTS / "scale.md").read_text("utf-8"), (
        "run: python -m benchmarks.scale"
    )


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (0.0126, "0.013"),
        (2.19, "2.2"),
        (26.1, "26"),
        (437.9, "440"),
        (10_000, "10,000"),
        (1e7, "10<sup>7</sup>"),
    ],
)
def test_a_number_has_two_figures_that_say_something(number: float, shown: str) -> None:
    assert show(number) == shown


def test_a_load_is_told_by_how_often_it_exceeds_what_is_allowed() -> None:
    assert (show_load(0.02), show_load(2.19)) == ("2.0%", "2.2 times")
