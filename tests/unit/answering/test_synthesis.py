"""Questions answered part by part: what decides about the parts, and what is left when they fail."""

from __future__ import annotations

from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from tests.support.answer_world import BROAD, PARTS, PATIENT, Telling, Told, every_telling
from tests.support.retrieval_world import FOLLOW_UP, HISTORY, search

HEALTH, VET, FEE = PARTS
SAID = {HEALTH: "He is well [1].", VET: "Hips and teeth [1][2].", FEE: "Before the dog leaves [1]."}
WHOLE = "Overview: he is well [1]. Details: hips and teeth [5], the fee is due early [9]."
BLOCKING = Telling("sync", streams=False)


def put_together(telling: Telling, query: str = BROAD, **given: Any) -> Told:
    """Answer *query* part by part; *given* is what `Telling.ask` takes, and ``settings``."""
    asked = {"sub_answer": SAID, "synthesis": WHOLE, "answer": "Plainly [2].", **given}
    settings = asked.pop("settings", {})
    answer = {"mode": "synthesis", **settings.get("answer", {})}
    usual = {"transformationType": "decompose", "limits": PATIENT}
    return telling.ask(query, config={**usual, **settings, "answer": answer}, **asked)


@every_telling
def test_a_broad_follow_up_is_put_together_with_its_conversation(telling: Telling) -> None:
    told = put_together(telling, FOLLOW_UP, options={"history": HISTORY})
    assert (told.answer.text, told.answer.status) == (WHOLE, "full")
    (data,) = told.prompts("synthesis")
    assert (data["question"], data["history"]) == (FOLLOW_UP, list(HISTORY))
    assert all("history" not in it for it in told.prompts("sub_answer"))
    trace = told.answer.retrieval.trace
    assert (trace.llm_calls, trace.searches) == (1 + 3 + 1, 1 + 1 + 3)
    assert [name for name, _ in told.stages][-3:] == ["sub_answer", "sub_answers", "synthesis"]


@pytest.mark.parametrize(
    ("kind", "asked_for"), [("none", "decompose"), ("rewrite", "combined"), ("all", "decompose")]
)
def test_parts_are_asked_for_whatever_the_transformation_is(kind: str, asked_for: str) -> None:
    told = put_together(BLOCKING, settings={"transformationType": kind})
    modes = [prompt.mode for prompt in told.searched.model.prompts]
    assert asked_for in modes
    assert modes.count("sub_answer") == 3


@every_telling
def test_a_part_whose_search_fails_is_left_out(telling: Telling) -> None:
    def respond(query: str, top_k: int) -> Any:
        if query == VET:
            raise OSError("down")
        return search(query, top_k)

    told = put_together(telling, respond=respond)
    assert told.troubles[0] == ("sub_answers", "search_failed")
    assert [it.reason for it in told.answer.sub_answers] == ["", "search_failed", ""]
    assert told.answer.retrieval.trace.searches == 4


@pytest.mark.parametrize(("least", "answered"), [(1, 1), (9, 3)])
def test_how_many_parts_are_enough_is_a_setting(least: int, answered: int) -> None:
    said = dict(list(SAID.items())[:answered])
    fusion = {"fusion": {"minSuccesses": least, "subQueryTopK": 2}}
    told = put_together(BLOCKING, sub_answer=said, settings=fusion)
    assert len(told.prompts("synthesis")[0]["sub_answers"]) == answered
    assert len(told.answer.matches) == 2 * answered


@pytest.mark.parametrize("telling", [Telling("sync", streams=True), Telling("async", streams=True)])
def test_a_synthesis_that_breaks_off_leaves_the_part_that_rests_on_most_passages(
    telling: Telling,
) -> None:
    told = put_together(telling, synthesis=["Overview: ", "he ", ModelError("refused")])
    assert (told.answer.text, told.answer.found) == ("Hips and teeth [5][6].", True)
    assert told.troubles == [("synthesis", "refused")]
    assert "".join(told.pieces) == "Overview: he"


@pytest.mark.parametrize(("most", "searches"), [(1, 1), (2, 1), (3, 3), (9, 4)])
def test_the_searches_of_the_parts_keep_the_limit(most: int, searches: int) -> None:
    told = put_together(BLOCKING, settings={"limits": {**PATIENT, "maxSearches": most}})
    assert len(told.searched.calls) == searches
    assert bool(told.prompts("synthesis")) == (searches > 1)


def test_invented_citations_are_removed_everywhere() -> None:
    said = {**SAID, HEALTH: "He is well [1][8]."}
    told = put_together(BLOCKING, sub_answer=said, synthesis="Well [1], fit [13].")
    assert told.answer.text == "Well [1], fit."
    assert told.prompts("synthesis")[0]["sub_answers"][0]["answer"] == "He is well [1]."
    assert told.troubles == [("citations", "invented")] * 2
