"""Where each passage moved on its way from the plain list to the final one, and why."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import SYSTEMS
from qtmiddleware.retrieval.movement import Movements, explain_movement
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Retrieval
from tests.support.retrieval_world import QUERY, scripted, search


def retrieve(fn: Any, settings: Any, query: str = QUERY, top_k: int = 4) -> Retrieval:
    found: Retrieval = (
        qtm.QueryMiddleware(settings, client=ScriptedModel(scripted))
        .wrap(fn)
        .retrieve(query, top_k=top_k)
    )
    return found


def move(settings: Any, fn: Any = search, **given: Any) -> tuple[Retrieval, Movements]:
    found = retrieve(fn, settings, **given)
    return found, explain_movement(found, retrieve(fn, SYSTEMS["off"], **given).matches)


def test_each_passage_is_told_with_the_searches_that_found_it_and_the_words_it_holds() -> None:
    _, moved = move({"transformationType": "decompose", "escalation": "always"})
    assert [(it.match.id, it.before, it.place, it.change) for it in moved.passages] == [
        ("health", 1, 1, 0),
        ("walks", 2, 2, 0),
        ("food", 3, 3, 0),
        ("vet", None, 4, None),
    ]
    assert moved.passages[3].why == (
        "new at 4th, from 8th in the question's own search: also found by sub-query 1 (2nd) and sub-query 2 (8th); "
        "holds 'vet'"
    )
    assert moved.passages[0].keywords == ("jaco", "health", "concerns", "vet")
    (gone,) = moved.dropped
    assert (gone.match.id, gone.before, gone.place) == ("adoption", 4, None)
    assert gone.why == "was 4th, now 6th and out of the 4 shown: holds no keyword"
    assert [hit.kind for hit in moved.passages[3].hits] == ["original", "sub_query", "sub_query"]


def test_a_reranker_s_place_is_told_and_named_where_it_decides() -> None:
    def prefer_cats(query: str, texts: list[str]) -> list[float]:
        return [float("Cats" in text) for text in texts]

    wrapped = qtm.QueryMiddleware({"rerank": {"enabled": True}}, reranker=prefer_cats).wrap(search)
    moved = explain_movement(
        wrapped.retrieve(QUERY, top_k=4), retrieve(search, SYSTEMS["off"]).matches
    )
    first = moved.passages[0]
    assert (first.match.id, first.before, first.last_place) == ("cats", None, 1)
    assert first.why.endswith("the reranker puts it 1st")
    assert moved.passages[1].why == "from 1st to 2nd: the reranker puts it 2nd"


IDS = st.sampled_from("abcdef")
ROW = st.fixed_dictionaries(
    {"id": IDS, "text": st.sampled_from(["jaco", "health vet", "cats", ""])}
)


@given(
    st.lists(ROW, max_size=8),
    st.lists(ROW, max_size=8),
    st.sampled_from(["anchored", "rrf", "max", "concat"]),
)
def test_whatever_is_found_every_passage_of_both_lists_is_told_once(
    first: list[dict[str, Any]], second: list[dict[str, Any]], method: str
) -> None:
    def ask(query: str, top_k: int = 3) -> list[dict[str, Any]]:
        rows = first if query == QUERY else second
        return [{**row, "score": 1.0 - at / 10} for at, row in enumerate(rows)][:top_k]

    settings = {
        "transformationType": "rewrite",
        "escalation": "always",
        "fusion": {"method": method},
    }
    found = retrieve(ask, settings, top_k=3)
    plain = retrieve(ask, SYSTEMS["off"], top_k=3).matches
    for moved in (explain_movement(found, plain), explain_movement(found)):
        assert [it.place for it in moved.passages] == list(range(1, len(found.matches) + 1))
        assert all(it.why for it in (*moved.passages, *moved.dropped))
        json.dumps(moved.to_dict())
    told = [it for it in explain_movement(found, plain).passages if it.before]
    # A search may return another text under the same id.
    both = {it.match.id for it in (*told, *explain_movement(found, plain).dropped)}
    assert both == {it.id for it in plain}


def test_a_passage_that_its_metadata_moved_is_told_so_everywhere() -> None:
    months = [f"{year}-{month:02}" for year in (2024, 2025) for month in range(1, 13)]
    rows = [
        {
            "id": month,
            "score": 0.9 - at / 100,
            "text": "Paid leave and other news.",
            "metadata": {"date": f"{month}-10"},
        }
        for at, month in enumerate(months)
    ]
    wrapped = qtm.middleware(lambda query, top_k=4: rows[:top_k])
    reason = "its metadata match date = 2025-03-01 to 2025-03-31"
    for question, words in (
        ("What was decided in March 2025?", ""),
        ("What about paid leave was decided in March 2025?", "holds 'paid' and 'leave'; "),
    ):
        found = wrapped.retrieve(question)
        why = explain_movement(found).passages[0].why
        assert why == f"new at 1st, from 15th in the question's own search: {words}{reason}"
        tool = json.loads(wrapped.as_tool(collection="news").run(question, top_k=1))
        assert tool["results"][0]["why"] == why
