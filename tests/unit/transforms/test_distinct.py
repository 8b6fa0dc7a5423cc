"""Near-duplicates are searched once, and only near-duplicates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.transforms import ORIGINAL, find_repeats

LONG = "which documents does a company need to register a branch office in another country today"
REPEATS = [
    ("What is RAG?", "what is RAG"),
    ("refund policy for gifts", "the refund policy, for gifts!"),
    ("gift refund policy", "policy refund gift"),
    (LONG, f"{LONG} please now"),
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
    (f"{LONG}", f"{LONG} early blue forms"),
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
    assert find_repeats([one, other], original="x") == [None, 0 if is_repeat else None]
    assert find_repeats([other], original=one) == [ORIGINAL if is_repeat else None]


@given(st.lists(st.text()), st.text())
def test_of_what_is_kept_nothing_repeats_another(texts: list[str], query: str) -> None:
    repeats = find_repeats(texts, original=query)
    kept = [text for text, other in zip(texts, repeats, strict=True) if other is None]
    assert query not in kept
    assert find_repeats(kept, original=query) == [None] * len(kept)
