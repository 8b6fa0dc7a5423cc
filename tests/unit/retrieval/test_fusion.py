"""Golden vectors, as formulas, and laws of rank fusion."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.catalogue import FUSION_METHODS
from qtmiddleware.retrieval.fusion import (
    FusedList,
    FuseError,
    find_score_direction,
    fuse_by_function,
    fuse_rankings,
    has_usable_scores,
)
from qtmiddleware.types import Key, Ranking, Variant, VariantKind

MERGING: Any = tuple(name for name, row in FUSION_METHODS.items() if row.merges)


def key(name: str) -> Key:
    return ("", name)


def ranked(
    *rows: tuple[str, Any], weight: float = 1.0, kind: VariantKind = "paraphrase"
) -> Ranking:
    """A list of ``(id, score)`` rows, best first, whose items can be told apart from those of other lists."""
    keys = [key(name) for name, _ in rows]
    items = [object() for _ in rows]
    return Ranking(Variant(kind, "text", weight), keys, [score for _, score in rows], items)


def names(fused: FusedList) -> list[str]:
    return [name for _, name in fused.keys]


def scores_of(fused: FusedList) -> dict[str, float]:
    return dict(zip(names(fused), fused.scores, strict=True))


# --- what takes part ------------------------------------------------------------------------------


@given(st.data())
def test_rrf_ties_hold_whatever_order_the_lists_come_in(data: st.DataObject) -> None:
    # The same votes added in another order may differ in the last bit, which must not decide a tie.
    letters = "abcdefgh"
    lists = data.draw(st.lists(st.permutations(letters), min_size=2, max_size=6))
    shuffled = data.draw(st.permutations(lists))
    rankings = [ranked(*((name, None) for name in order)) for order in lists]
    other = [ranked(*((name, None) for name in order)) for order in shuffled]
    assert names(fuse_rankings(rankings, "rrf")) == names(fuse_rankings(other, "rrf"))


# --- anchored -------------------------------------------------------------------------------------


def test_anchored_understands_distances_by_the_order_of_the_lists() -> None:
    near = [ranked(("a", 0.1), ("b", 0.4), ("c", 2.0)), ranked(("b", 0.2), ("d", 2.1))]
    assert find_score_direction(near) > 0
    fused = fuse_rankings(near)
    # The lowest place of a list of distances is its largest distance.
    expected = {
        "a": -(0.1 + 2.1) / 2,
        "b": -(0.4 + 0.2) / 2,
        "c": -(2.0 + 2.1) / 2,
        "d": -(2.0 + 2.1) / 2,
    }
    assert scores_of(fused) == pytest.approx(expected)
    assert names(fused) == ["b", "a", "c", "d"]


def test_the_direction_of_most_lists_is_that_of_all() -> None:
    falling = [ranked(("a", 0.9), ("b", 0.1)), ranked(("a", 0.8), ("c", 0.2))]
    rising = [ranked(("d", 0.3), ("b", 0.5))]
    assert names(fuse_rankings([*falling, *rising], "max")) == ["a", "b", "d", "c"]


# --- scores that are missing ----------------------------------------------------------------------


@pytest.mark.parametrize("method", ["anchored", "max"])
def test_a_missing_score_makes_ranks_decide(method: str) -> None:
    lists = [ranked(("a", 0.9), ("b", None), weight=2.0), ranked(("b", 0.7), ("c", 0.6))]
    assert not has_usable_scores(lists)
    fused = fuse_rankings(lists, method)
    assert fused.method == "weighted_rrf"
    assert scores_of(fused) == pytest.approx({"a": 2 / 61, "b": 2 / 62 + 1 / 61, "c": 1 / 62})


# --- weighted sums --------------------------------------------------------------------------------


# --- laws -----------------------------------------------------------------------------------------

numbers = st.integers(-64, 64)
weights = st.sampled_from([0.25, 0.5, 1.0, 2.0])


@st.composite
def rankings_of(
    draw: st.DrawFn, *, unique: bool = True, rising: bool = False, weight: Any = weights
) -> Ranking:
    ids = draw(st.lists(st.sampled_from("abcdefghij"), max_size=8, unique=unique))
    scores = sorted(
        draw(st.lists(numbers, min_size=len(ids), max_size=len(ids))), reverse=not rising
    )
    return ranked(*zip(ids, scores, strict=True), weight=draw(weight))


many = st.lists(rankings_of(unique=False), min_size=2, max_size=5)


@given(many, st.sampled_from(MERGING))
def test_the_result_is_the_distinct_passages_and_nothing_is_invented(
    rankings: list[Ranking], method: str
) -> None:
    fused = fuse_rankings(rankings, method)
    assert len(set(fused.keys)) == len(fused.keys)
    assert list(fused.scores) == sorted(fused.scores, reverse=True)
    assert set(fused.keys) == {it for ranking in rankings for it in ranking.keys}
    for name, item, sources in [(it.key, it.passage, it.sources) for it in fused.items]:
        found_by = [i for i, ranking in enumerate(rankings) if name in ranking.keys]
        assert [i for i in range(len(rankings)) if sources >> i & 1] == found_by
        assert any(item is own for i in found_by for own in rankings[i].passages)


# --- a function of the user -----------------------------------------------------------------------


@given(many, st.data())
def test_whatever_a_users_function_says_every_passage_is_there_once(
    rankings: list[Ranking], data: st.DataObject
) -> None:
    known = sorted({it for ranking in rankings for it in ranking.keys})
    pair = st.tuples(
        st.sampled_from([*known, key("unknown")]),
        st.floats() | st.integers() | st.none() | st.text(),
    )
    returned = data.draw(st.lists(pair, max_size=6) | st.none() | st.just([1]))
    before = [(list(it.keys), list(it.scores), list(it.passages)) for it in rankings]
    with contextlib.suppress(FuseError):
        fused = fuse_by_function(rankings, lambda *_: returned)
        assert sorted(fused.keys) == known
        assert list(fused.scores) == sorted(fused.scores, reverse=True)
    assert before == [(list(it.keys), list(it.scores), list(it.passages)) for it in rankings]


@given(many, st.sampled_from(["rrf", "weighted_rrf"]))
def test_rrf_adds_the_weight_over_sixty_plus_the_best_rank(
    rankings: list[Ranking], method: str
) -> None:
    expected = dict.fromkeys((it for ranking in rankings for it in ranking.keys), 0.0)
    for ranking in rankings:
        weight = ranking.variant.weight if method == "weighted_rrf" else 1.0
        for name in set(ranking.keys):
            expected[name] += weight / (61 + list(ranking.keys).index(name))
    fused = fuse_rankings(rankings, method)
    assert dict(zip(fused.keys, fused.scores, strict=True)) == pytest.approx(expected, rel=1e-12)
