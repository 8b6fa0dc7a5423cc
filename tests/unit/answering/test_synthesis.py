"""Questions answered part by part, and what is left when parts fail."""

from __future__ import annotations

from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from tests.support.answer_world import (
    BROAD,
    PARTS,
    PATIENT,
    Telling,
    Told,
    every_telling,
)
from tests.support.retrieval_world import FOLLOW_UP, HISTORY, search
from tests.support.waiting import with_enough_time

HEALTH, VET, FEE = PARTS
SAID = {
    HEALTH: "He is well [1].",
    VET: "Hips and teeth [1][2].",
    FEE: "Before the dog leaves [1].",
}
WHOLE = "Overview: he is well [1]. Details: hips and teeth [5], the fee is due early [9]."


def put_together(telling: Telling, query: str = BROAD, **given: Any) -> Told:
    """Answer *query* part by part; *given* is what `Telling.ask` takes, and ``settings``."""
    asked = {"sub_answer": SAID, "synthesis": WHOLE, "answer": "Plainly [2].", **given}
    settings = asked.pop("settings", {})
    answer = {"mode": "synthesis", **settings.get("answer", {})}
    usual = {"transformationType": "decompose", "limits": PATIENT}
    return telling.ask(query, config={**usual, **settings, "answer": answer}, **asked)


@every_telling
def test_each_part_is_answered_from_its_own_passages_and_then_all_are_put_together(
    telling: Telling,
) -> None:
    told = put_together(telling)
    answer = told.answer
    assert (answer.text, answer.found, answer.status) == (WHOLE, True, "full")
    assert [(it.question, it.text) for it in answer.sub_answers] == list(SAID.items())
    assert all(it.found and not it.reason for it in answer.sub_answers)
    for data in told.prompts("sub_answer"):
        own = {record["metadata"]["text"] for record in search(data["question"], 8)}
        assert {entry["text"] for entry in data["passages"]} <= own
    # Numbers count through the passages of all parts.
    assert answer.matches == sum((it.matches for it in answer.sub_answers), ())
    assert told.prompts("synthesis") == [
        {
            "sub_answers": [
                {"question": HEALTH, "answer": "He is well [1]."},
                {"question": VET, "answer": "Hips and teeth [5][6]."},
                {"question": FEE, "answer": "Before the dog leaves [9]."},
            ],
            "question": BROAD,
        }
    ]
    assert [it.match for it in answer.citations] == [it.matches[0] for it in answer.sub_answers]
    trace = answer.retrieval.trace
    assert (trace.llm_calls, trace.searches) == (1 + 3 + 1, 1 + 3)
    assert [name for name, _ in told.stages][-3:] == ["sub_answer", "sub_answers", "synthesis"]


@pytest.mark.parametrize(
    ("kind", "asked_for"),
    [
        ("none", "decompose"),
        ("rewrite", "combined"),
        ("all", "decompose"),
    ],
)
def test_parts_are_asked_for_whatever_the_transformation_is(kind: str, asked_for: str) -> None:
    settings = {"transformationType": kind}
    told = put_together(Telling("sync", streams=False), settings=settings)
    modes = [prompt.mode for prompt in told.searched.model.prompts]
    assert asked_for in modes
    assert modes.count("sub_answer") == 3


@every_telling
def test_a_part_without_an_answer_is_left_out_of_the_whole(telling: Telling) -> None:
    told = put_together(
        telling,
        sub_answer={**SAID, VET: "NO_ANSWER: nothing on it."},
        synthesis="Well [1], early [5].",
    )
    answer = told.answer
    assert (answer.text, answer.status, len(answer.matches)) == ("Well [1], early [5].", "full", 8)
    assert [it.reason for it in answer.sub_answers] == ["", "no_answer", ""]
    assert answer.sub_answers[1].text == "nothing on it."
    (data,) = told.prompts("synthesis")
    assert [it["question"] for it in data["sub_answers"]] == [HEALTH, FEE]
    assert answer.citations[1].match is answer.sub_answers[2].matches[0]


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


@every_telling
def test_a_part_that_is_late_is_left_out(telling: Telling) -> None:
    def ask(seconds: float) -> Told | None:
        late = {**SAID, FEE: [600.0, "late"]}
        limit = {"answer": {"timeoutMs": int(1e3 * seconds)}}
        try:
            return put_together(telling, sub_answer=late, settings=limit)
        except ModelError:
            return None

    told = with_enough_time(
        ask,
        lambda found: found and found.answer.text.startswith("Overview"),
    )
    assert told is not None
    assert told.troubles[0] == ("sub_answers", "timeout")


@every_telling
@pytest.mark.parametrize(
    "failed",
    ["NO_ANSWER", ModelError("unavailable")],
    ids=["none", "error"],
)
def test_with_too_few_parts_the_question_is_answered_at_once(telling: Telling, failed: Any) -> None:
    told = put_together(telling, sub_answer={**SAID, VET: failed, FEE: failed})
    answer = told.answer
    assert (answer.text, answer.status) == ("Plainly [2].", "degraded")
    assert told.troubles[-1] == ("sub_answers", "too_few_successes")
    assert answer.citations[0].match is answer.matches[1] is answer.retrieval.matches[1]
    assert len(answer.sub_answers) == 3


@pytest.mark.parametrize(("least", "answered"), [(1, 1), (9, 3)])
def test_how_many_parts_are_enough_is_a_setting(least: int, answered: int) -> None:
    said = dict(list(SAID.items())[:answered])
    telling = Telling("sync", streams=False)
    told = put_together(
        telling,
        sub_answer=said,
        settings={"fusion": {"minSuccesses": least, "subQueryTopK": 2}},
    )
    assert len(told.prompts("synthesis")[0]["sub_answers"]) == answered
    assert len(told.answer.matches) == 2 * answered


@every_telling
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (ModelError("refused"), None),
        (["Overview: ", "he ", ModelError("refused")], "Overview: he"),
    ],
    ids=["at once", "in the middle"],
)
def test_a_synthesis_that_fails_leaves_the_part_that_rests_on_most_passages(
    telling: Telling, said: Any, shown: str | None
) -> None:
    told = put_together(telling, synthesis=said)
    answer = told.answer
    assert (answer.text, answer.found) == ("Hips and teeth [5][6].", True)
    assert told.troubles == [("synthesis", "refused")]
    assert [it.match for it in answer.citations] == list(answer.sub_answers[1].matches[:2])
    assert not telling.streams or "".join(told.pieces) == (shown or answer.text)


@pytest.mark.parametrize(("most", "searches"), [(1, 1), (2, 1), (3, 3), (9, 4)])
def test_the_searches_of_the_parts_keep_the_limit(most: int, searches: int) -> None:
    limits = {"limits": {**PATIENT, "maxSearches": most}}
    told = put_together(Telling("sync", streams=False), settings=limits)
    assert len(told.searched.calls) == searches
    assert bool(told.prompts("synthesis")) == (searches > 1)


@every_telling
def test_invented_citations_are_removed_everywhere(telling: Telling) -> None:
    said = {**SAID, HEALTH: "He is well [1][8]."}
    told = put_together(telling, sub_answer=said, synthesis="Well [1], fit [13].")
    assert told.answer.text == "Well [1], fit."
    assert told.prompts("synthesis")[0]["sub_answers"][0]["answer"] == "He is well [1]."
    assert told.troubles == [("citations", "invented")] * 2


@every_telling
def test_a_broad_follow_up_is_put_together_with_its_conversation(telling: Telling) -> None:
    told = put_together(telling, FOLLOW_UP, options={"history": HISTORY})
    (data,) = told.prompts("synthesis")
    assert (data["question"], data["history"]) == (FOLLOW_UP, list(HISTORY))
    assert all("history" not in it for it in told.prompts("sub_answer"))
