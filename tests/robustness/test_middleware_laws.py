"""What holds for any list of matches, any reply of the model and any text as a query."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import QUERY, transforming

few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXTS = st.text(max_size=40)
SCORES = st.one_of(st.none(), st.floats(), st.integers(-5, 5), st.text(max_size=3))
ITEMS = st.fixed_dictionaries(
    {"id": st.sampled_from("abcdefgh")},
    optional={"score": SCORES, "metadata": st.dictionaries(st.sampled_from(["text", "x"]), TEXTS)},
)
LISTS = st.lists(ITEMS, max_size=8)
LINES = st.one_of(
    TEXTS, st.sampled_from(["Which illness does Jaco have?", "What did the vet say?", QUERY])
)
REPLIES = st.one_of(
    TEXTS,
    st.fixed_dictionaries(
        {},
        optional={
            "rewrite": LINES,
            "step_back": LINES,
            "hyde": LINES,
            "sub_queries": st.lists(LINES, max_size=6),
            "other": st.none(),
        },
    ),
    st.builds(ModelError, st.sampled_from(["timeout", "refused", "empty"])),
)
METHODS = st.sampled_from(["anchored", "rrf", "weighted_rrf", "max"])


def retrieved(
    lists: list[list[Any]],
    reply: Any,
    method: str,
    top_k: int,
    query: str = QUERY,
    history: Any = (),
) -> qtm.Retrieval:
    """One retrieval where each text finds its own of *lists*, told apart by its length."""
    config = transforming("combined", fusion={"method": method})
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(reply))
    search = qm.wrap(lambda query, top_k=4: lists[len(query) % len(lists)][:top_k])
    return search.retrieve(query, top_k=top_k, history=history)


@few
@given(st.lists(LISTS, min_size=1, max_size=3), REPLIES, METHODS, st.integers(1, 10))
def test_any_result_is_of_what_was_found_and_no_longer_than_asked_for(
    lists: list[list[Any]], reply: Any, method: str, top_k: int
) -> None:
    retrieval = retrieved(lists, reply, method, top_k)
    given_items = [id(item) for found in lists for item in found]
    assert len(retrieval.matches) <= top_k
    assert all(id(match.raw) in given_items for match in retrieval.matches)
    # Only a score may be another one, of a passage that the question itself did not find.
    for shown, match in zip(retrieval.response, retrieval.matches, strict=True):
        assert shown is match.raw or "original" not in match.found_by
        assert (
            repr({**shown, "score": None}) == repr({**match.raw, "score": None})
            or shown == match.raw
        )
    assert (retrieval.status == "degraded") == bool(retrieval.degradations)


@few
@given(
    st.text(),
    st.text(),
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text()), max_size=4),
)
def test_any_text_is_answered_after_any_history(
    query: str, reply: str, history: list[tuple[str, str]]
) -> None:
    retrieval = retrieved(
        [[{"id": "a", "score": 0.5, "text": "b"}]], reply, "anchored", 4, query, history
    )
    assert retrieval.original_query == query
    assert [match.id for match in retrieval.matches] == ["a"]
    assert bool(query.strip()) or retrieval.degradations[0].reason == "blank"
