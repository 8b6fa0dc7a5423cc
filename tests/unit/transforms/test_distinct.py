"""Near-duplicates are searched once, and only near-duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.transforms import find_repeats

LONG = "which documents does a company need to register a new branch office in another member country of the union"


def distinct(texts: Sequence[str], *, original: str) -> list[int]:
    """The indexes of *texts* that repeat no other."""
    repeats = find_repeats(texts, original=original)
    return [index for index, other in enumerate(repeats) if other is None]


REPEATS = [
    ("What is RAG?", "what is RAG"),
    ("refund policy for gifts", "the refund policy, for gifts!"),
    ("gift refund policy", "policy refund gift"),
    (LONG, LONG + " today"),
    ("退款政策是什么？", "退款政策是什么"),
]
OTHERS = [
    ("revenue in 2022", "revenue in 2023"),
    ("fix error E-4042", "fix error E-4043"),
    ("plans that cover dental", "plans that do not cover dental"),
    ("Where was Ada born?", "When was Ada born?"),
    ("how tall is K2", "how tall is everest"),
    (f"{LONG} in 2022", f"{LONG} in 2023"),
    (f"{LONG}", f"{LONG} not"),
    (f"{LONG} of Siemens", f"{LONG} of Bosch"),
    ("useState hook", "use state hook"),
    ("C vs C++", "C vs C#"),
    ("可以退款吗", "不可以退款吗"),
]


@pytest.mark.parametrize(("one", "other"), [*REPEATS, *OTHERS])
def test_what_differs_in_a_number_a_name_an_identifier_or_a_denial_is_no_repetition(
    one: str, other: str
) -> None:
    is_repeat = (one, other) in REPEATS
    assert distinct([one, other], original="something else") == ([0] if is_repeat else [0, 1])
    assert distinct([other], original=one) == ([] if is_repeat else [0])


@given(st.lists(st.text()), st.text())
def test_what_is_kept_is_a_part_of_what_came_and_keeping_it_again_changes_nothing(
    texts: list[str], query: str
) -> None:
    kept = distinct(texts, original=query)
    assert kept == sorted(set(kept))
    chosen = [texts[index] for index in kept]
    assert query not in chosen
    assert distinct(chosen, original=query) == list(range(len(chosen)))
