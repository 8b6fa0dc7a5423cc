"""How many passages a search is asked for, by the length of those that came before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import (
    KeywordEvidenceSettings,
    Settings,
)
from qtmiddleware.retrieval.call import (
    MAX_CANDIDATE_CHARS,
    Call,
)
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import read_passage
from qtmiddleware.types import Passage

QUERY = "Does Jaco have any health concerns?"


def make_call(top_k: int | None = 4, **options: Any) -> Call:
    settings = Settings(keyword_evidence=KeywordEvidenceSettings(**options))
    engine = qtm.QueryMiddleware(settings).engine
    return Call(QUERY, (), engine.settings, Learned(), engine, top_k=top_k)


def list_passages(*lengths: int) -> list[Passage]:
    return list(
        map(read_passage, [{"id": str(n), "text": "x" * it} for n, it in enumerate(lengths)])
    )


@given(
    st.lists(st.lists(st.integers(0, 10**5), max_size=60), max_size=3),
    st.integers(1, 60),
    st.integers(1, 60),
)
def test_never_fewer_passages_are_asked_for_than_by_the_caller_nor_more_than_set(
    lists: list[list[int]], top_k: int, candidates: int
) -> None:
    call = make_call(top_k, candidates=candidates)
    for lengths in lists:
        call.learned.update_average_length(list_passages(*lengths))
        assert call.search_width is None or top_k < call.search_width <= candidates
        assert (
            call.search_width is None
            or call.search_width * call.learned.passage_chars <= MAX_CANDIDATE_CHARS + 1
        )


def test_one_list_of_odd_passages_does_not_narrow_the_next_search_much() -> None:
    call = make_call()
    call.learned.update_average_length(list_passages(*[1_000] * 50))
    call.learned.update_average_length(list_passages(*[100_000] * 50))
    assert call.search_width == 50
    for _ in range(60):
        call.learned.update_average_length(list_passages(*[100_000] * 50))
    assert call.search_width == 10
