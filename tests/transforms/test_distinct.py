"""Near-duplicates are searched once, and only near-duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.preprocessing.text import fold_accents, normalise, split_tokens, split_words
from qtmiddleware.transforms import find_repeats
from qtmiddleware.transforms.distinct import _LIGHT, _MARKED, NEAR
from qtmiddleware.transforms.span_matching import is_negated

LONG = "which documents does a company need to register a new branch office in another member country of the union"


def distinct(texts: Sequence[str], *, original: str, near: float = NEAR) -> list[int]:
    """The indexes of *texts* that repeat no other."""
    repeats = find_repeats(texts, original=original, near=near)
    return [index for index, other in enumerate(repeats) if other is None]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is RAG?", "what is RAG"),
        ("refund policy for gifts", "the refund policy, for gifts!"),
        ("gift refund policy", "policy refund gift"),
        (LONG, LONG + " today"),
        ("退款政策是什么？", "退款政策是什么"),
    ],
)
def test_near_duplicates_are_searched_once(one: str, other: str) -> None:
    assert distinct([one, other], original="something else") == [0]
    assert distinct([other], original=one) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
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
    ],
)
def test_what_differs_in_a_number_a_name_an_identifier_or_a_denial_is_searched_twice(one: str, other: str) -> None:
    assert distinct([one, other], original="something else") == [0, 1]


def test_the_first_wins_and_the_order_stays() -> None:
    assert distinct(["b c", "a b", "B C!", "d"], original="x") == [0, 1, 3]


@given(st.lists(st.text()), st.text())
def test_what_is_kept_is_a_part_of_what_came_and_keeping_it_again_changes_nothing(texts: list[str], query: str) -> None:
    kept = distinct(texts, original=query)
    assert kept == sorted(set(kept))
    chosen = [texts[index] for index in kept]
    assert query not in chosen
    assert distinct(chosen, original=query) == list(range(len(chosen)))


def is_same(one: str, other: str, near: float) -> bool:
    """What near-duplicates are, from the definition, without any thought of the cost."""
    if normalise(one) == normalise(other):
        return True
    said = [set(split_tokens(text)) - _LIGHT or set(split_tokens(text)) for text in (one, other)]
    marked = [{fold_accents(term).strip(".:'()[]") for term in _MARKED.findall(text)} for text in (one, other)]
    names = {fold_accents(word) for text in (one, other) for word in split_words(text)[1:] if word[0].isupper()}
    common = len(said[0] & said[1])
    if common == 0 or common < near * len(said[0] | said[1]):
        return False
    return marked[0] == marked[1] and is_negated(one) == is_negated(other) and not (said[0] ^ said[1]) & names


WORDS = """
    which the plan plan's Plan covers dental care not don't 2022 E-42 of vision for staff Acme über 退款政策 in
    Berlin today C++ abroad ? it
""".split()  # noqa: SIM905
PARTS = st.lists(st.sampled_from(sorted(WORDS)), max_size=14).map(" ".join)
BASE = st.sampled_from([LONG, "which plan covers dental care for the staff of Acme in Berlin and abroad in 2022"])
CLOSE = st.tuples(BASE, PARTS).map(" ".join)


@given(
    st.lists(PARTS | BASE | CLOSE, max_size=5), PARTS | BASE | CLOSE, st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95, 1.0])
)
def test_what_is_kept_is_what_the_definition_keeps(texts: list[str], query: str, near: float) -> None:
    kept: list[int] = []
    for index, text in enumerate(texts):
        if not any(is_same(text, other, near) for other in (query, *(texts[at] for at in kept))):
            kept.append(index)
    assert distinct(texts, original=query, near=near) == kept
