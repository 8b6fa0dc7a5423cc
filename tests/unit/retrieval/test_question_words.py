"""What passages hold of a question's own words, and when that moves them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.retrieval.question_words import find_words
from tests.support.retrieval_world import Way


@given(
    st.text(),
    st.lists(st.one_of(st.none(), st.text()), min_size=1, max_size=5),
    st.sampled_from(["", *LANGUAGES]),
)
def test_no_text_makes_it_fail(keywords: str, texts: list[str | None], language: str) -> None:
    words = find_words(keywords, texts, language)
    assert len(words.held) == len(texts)
    if words.question.terms and any(words.held):
        assert all(0.0 <= share <= 1.0 for share in words.measure_coverage())
        assert all(share >= 0.0 for share in words.score_texts())


VOCABULARY = ("jaco", "health", "concerns", "dog", "food", "allotment", "zebra", "and so on")
PASSAGES = st.lists(
    st.tuples(
        st.floats(0, 1), st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=6).map(" ".join)
    ),
    min_size=2,
    max_size=12,
)


def search(
    passages: list[tuple[float, str]], top_k: int, **options: Any
) -> tuple[list[str], list[str], list[float | None]]:
    """The ids of the plain call, those of the wrapped one and its scores; *options* are of `keywordEvidence`."""
    ordered = sorted(passages, reverse=True)
    rows = [{"id": str(n), "score": score, "text": text} for n, (score, text) in enumerate(ordered)]

    def find(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        return rows[:top_k]

    wrapped = Way("sync").wrap(find)
    question, config = "Does Jaco the dog have health concerns?", {"keywordEvidence": options}
    found = wrapped.retrieve(question, top_k=top_k, config=config)
    return (
        [str(n) for n in range(min(top_k, len(rows)))],
        [str(it.id) for it in found.matches],
        [it.fused_score for it in found.matches],
    )


def cover(text: str) -> float:
    return len({"jaco", "dog", "health", "concerns"}.intersection(text.split())) / 4


@given(PASSAGES, st.integers(1, 12))
def test_an_order_changes_only_if_a_passage_holds_clearly_more_than_the_first(
    passages: list[tuple[float, str]], top_k: int
) -> None:
    plain, ours, _ = search(passages, top_k)
    held = [cover(text) for _, text in sorted(passages, reverse=True)]
    if max(held) - held[0] <= 0.1:
        assert ours == plain


@given(PASSAGES, st.integers(1, 6))
def test_a_passage_leaves_the_plain_set_only_for_one_that_holds_clearly_more(
    passages: list[tuple[float, str]], top_k: int
) -> None:
    plain, ours, scores = search(passages, top_k)
    held = [cover(text) for _, text in sorted(passages, reverse=True)]
    gone, new = sorted(set(plain) - set(ours)), sorted(set(ours) - set(plain))
    assert len(gone) == len(new)
    for newcomer, left in zip(
        sorted(new, key=lambda it: held[int(it)]),
        sorted(gone, key=lambda it: held[int(it)]),
        strict=True,
    ):
        assert held[int(newcomer)] >= held[int(left)] + 0.1
    known = [score for score in scores if score is not None]
    assert known == sorted(known, reverse=True)


@given(PASSAGES, st.integers(1, 6))
def test_without_further_candidates_the_plain_set_stays_and_words_only_reorder_it(
    passages: list[tuple[float, str]], top_k: int
) -> None:
    plain, ours, _ = search(passages, top_k, candidates=0)
    assert sorted(ours) == sorted(plain)
