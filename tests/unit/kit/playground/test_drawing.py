"""What is drawn: every passage has its line, every list its places, and no text loses a letter."""

from __future__ import annotations

import re
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.kit.playground import drawing
from qtmiddleware.retrieval.movement import explain_movement
from qtmiddleware.types import Trace
from tests.support.retrieval_world import QUERY, Way

words = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture(scope="module")
def lists() -> tuple[qtm.Retrieval, qtm.Retrieval]:
    """What the plain function and the decomposing middleware find."""
    raw = Way("sync").wrap(config={"preprocess": False, "keywordEvidence": False}).retrieve(QUERY)
    return raw, Way("sync").wrap(config={"transformationType": "decompose"}).retrieve(QUERY)


def test_every_passage_of_either_list_has_one_line_through_all_lists(lists: tuple) -> None:
    raw, found = lists
    moves = explain_movement(found, raw.matches)
    drawn = drawing.draw_movements(moves)
    assert [heading for _, heading in drawn.headings] == ["raw", "result"]
    keys = {drawing.make_passage_key(it.match) for it in (*moves.passages, *moves.dropped)}
    assert len(keys) > len(moves.passages)
    assert {line.key for line in drawn.lines} == keys
    assert len(drawn.nodes) == 2 * len(keys)
    assert drawn.rows == len(raw.matches)


def test_a_place_within_the_list_is_drawn_in_its_row_and_any_other_below(lists: tuple) -> None:
    raw, found = lists
    drawn = drawing.draw_movements(explain_movement(found, raw.matches))
    for node in drawn.nodes:
        if node.is_shown:
            assert node.y == (int(node.text) - 0.5) * drawing.ROW
        else:
            assert node.y > len(raw.matches) * drawing.ROW
        assert node.y < drawn.height
    for x, _ in drawn.headings:
        column = sorted(node.y for node in drawn.nodes if node.x == x)
        assert all(after - before > 20 for before, after in pairwise(column))


def test_each_search_is_drawn_with_the_passages_of_the_result(lists: tuple) -> None:
    raw, found = lists
    moves = explain_movement(found, raw.matches)
    for at in range(len(found.rankings)):
        drawn = drawing.draw_search_movements(moves, at)
        assert len(drawn.lines) == len(moves.passages)
        right = [node.text for node in drawn.nodes if node.x == drawn.headings[-1][0]]
        assert sorted(right) == [str(place) for place in range(1, len(moves.passages) + 1)]


def test_nothing_is_drawn_of_an_empty_list() -> None:
    found = Way("sync").wrap(lambda *_: []).retrieve(QUERY)
    drawn = drawing.draw_movements(explain_movement(found, found.matches))
    assert (drawn.nodes, drawn.lines) == ((), ())


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), max_size=8), st.floats(0, 1e5))
def test_bars_lie_within_the_whole_time(stages: list[tuple[float, float]], total: float) -> None:
    trace = Trace()
    start = perf_counter() - trace.measure_elapsed()
    for began, ms in stages:
        trace.record_stage("search.original", ms / 1e3, began=start + began / 1e3)
    trace.total_ms = total
    for bar in drawing.build_timeline(trace):
        assert 0 <= bar.start <= 100
        assert 0 < bar.width <= 100.01 - bar.start


def test_the_search_beside_the_model_is_measured() -> None:
    trace = Trace()
    start = perf_counter()
    trace.record_stage("search.original", 0.2, began=start)
    trace.record_stage("transform.rewrite", 0.5, began=start + 0.05)
    assert drawing.measure_overlap(trace) == pytest.approx(150.0)
    assert drawing.measure_overlap(Trace()) == 0.0


@settings(deadline=None)
@given(words, words, words)
def test_marking_words_changes_no_letter(text: str, own: str, models: str) -> None:
    pieces = drawing.mark_words(text, own, models)
    assert "".join(piece for piece, _ in pieces) == text


def test_words_are_marked_by_whose_they_are() -> None:
    pieces = drawing.mark_words("Jaco's dogs saw the vet.", "jaco dog", "vet")
    assert [(piece, whose) for piece, whose in pieces if whose] == [
        ("Jaco", "question"),
        ("dogs", "question"),
        ("vet", "model"),
    ]


def test_a_code_is_marked_as_a_whole_and_its_number_alone_is_another() -> None:
    pieces = drawing.mark_words(
        "L-15 means this. The link works for 15 minutes, L-150 does not.", "L-15 code", ""
    )
    assert [piece for piece, whose in pieces if whose] == ["L-15"]


def test_a_letter_is_no_word_and_a_digit_is_one() -> None:
    pieces = drawing.mark_words("The dog's 4 legs", "s 4", "")
    assert [piece for piece, whose in pieces if whose] == ["4"]


@given(words)
def test_the_parts_of_a_word_hold_its_letters(text: str) -> None:
    for word in text.split():
        assert "".join(drawing.split_word(word)) in (word, re.sub("[-‐–/_]", "", word))


@settings(deadline=None)
@given(words, words, st.integers(20, 200))
def test_a_snippet_is_short_and_on_one_line(text: str, own: str, length: int) -> None:
    cut = drawing.cut_snippet(text, own, "", length)
    assert len(cut) <= length + 4
    assert "\n" not in cut


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 2))), st.integers(1, 150))
def test_a_snippet_begins_where_most_of_the_words_stand_closest(
    places: list[tuple[int, int]], length: int
) -> None:
    hits = sorted(dict(places).items())
    sums = {at: sum(worth for other, worth in hits if at <= other < at + length) for at, _ in hits}
    # Of several such places the first.
    assert drawing._find_densest_window_start(hits, length) == max(
        sums, key=lambda at: (sums[at], -at), default=0
    )


def test_a_snippet_shows_where_the_words_are() -> None:
    text = "nothing of it here " * 40 + "but Jaco has a heart " + "and nothing there " * 40
    cut = drawing.cut_snippet(text, "jaco heart", "")
    assert "Jaco has a heart" in cut
    assert cut.startswith("… ")
    assert cut.endswith(" …")
