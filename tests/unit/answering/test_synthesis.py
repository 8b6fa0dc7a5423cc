"""Questions answered part by part, and what is left when parts fail."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from tests.support.answer_world import (
    BROAD,
    PARTS,
    PATIENT,
    Telling,
    asked,
    every_telling,
    scripted,
    stages,
    synthesis,
    troubles,
)
from tests.support.retrieval_world import FOLLOW_UP, HISTORY, Way, search
from tests.support.waiting import with_enough_time

HEALTH, VET, FEE = PARTS
SAID = {HEALTH: "He is well [1].", VET: "Hips and teeth [1][2].", FEE: "Before the dog leaves [1]."}
WHOLE = "Overview: he is well [1]. Details: hips and teeth [5], the fee is due early [9]."


@every_telling
def test_each_part_is_answered_from_its_own_passages_and_then_all_are_put_together(
    telling: Telling,
) -> None:
    searched = telling.way.wrap(
        script=scripted(sub_answer=SAID, synthesis=WHOLE), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    assert answer.text == WHOLE
    assert answer.found
    assert answer.status == "full"
    assert [it.question for it in answer.sub_answers] == list(PARTS)
    assert [it.text for it in answer.sub_answers] == list(SAID.values())
    assert all(it.found and not it.reason for it in answer.sub_answers)
    for data, part in zip(asked(searched, "sub_answer"), PARTS, strict=True):
        own = [record["metadata"]["text"] for record in search(data["question"], 8)]
        assert data["question"] in PARTS
        assert {entry["text"] for entry in data["passages"]} <= set(own)
        assert "history" not in data, part


@every_telling
def test_the_passages_of_all_parts_are_kept_and_numbers_count_through_them(
    telling: Telling,
) -> None:
    searched = telling.way.wrap(
        script=scripted(sub_answer=SAID, synthesis=WHOLE), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    first, second, third = answer.sub_answers
    assert answer.matches == (*first.matches, *second.matches, *third.matches)
    assert len(answer.matches) == 12
    (data,) = asked(searched, "synthesis")
    assert data["question"] == BROAD
    assert data["sub_answers"] == [
        {"question": HEALTH, "answer": "He is well [1]."},
        {"question": VET, "answer": "Hips and teeth [5][6]."},
        {"question": FEE, "answer": "Before the dog leaves [9]."},
    ]
    assert [it.match.id for it in answer.citations] == [
        it.matches[0].id for it in (first, second, third)
    ]
    for part in answer.sub_answers:
        assert all(it.match is part.matches[it.number - 1] for it in part.citations)
        assert all(part.text[it.start : it.end] == f"[{it.number}]" for it in part.citations)


@every_telling
def test_every_call_and_search_is_accounted_for(telling: Telling) -> None:
    searched = telling.way.wrap(
        script=scripted(sub_answer=SAID, synthesis=WHOLE), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    trace = answer.retrieval.trace
    assert trace.llm_calls == 1 + 3 + 1 == len(searched.model.prompts)
    assert trace.searches == 1 + 3 == len(searched.calls)
    assert [name for name, _ in stages(answer)][-5:] == [
        *["sub_answer"] * 3,
        "sub_answers",
        "synthesis",
    ]


@every_telling
@pytest.mark.parametrize(
    ("kind", "asked_for"), [("none", "decompose"), ("rewrite", "combined"), ("all", "decompose")]
)
def test_parts_are_asked_for_whatever_the_transformation_is(
    telling: Telling, kind: str, asked_for: str
) -> None:
    searched = telling.way.wrap(
        script=scripted(sub_answer=SAID, synthesis=WHOLE), config=synthesis(transformationType=kind)
    )
    answer = telling.answer(searched, BROAD)
    assert answer.text == WHOLE
    modes = [prompt.mode for prompt in searched.model.prompts]
    assert asked_for in modes
    assert modes.count("sub_answer") == 3


@every_telling
def test_parts_that_cannot_be_answered_are_left_out_of_the_whole(telling: Telling) -> None:
    said = {
        HEALTH: "He is well [1].",
        VET: "NO_ANSWER: nothing on it.",
        FEE: "Before he leaves [2].",
    }
    searched = telling.way.wrap(
        script=scripted(sub_answer=said, synthesis="Well [1], early [6]."), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    assert answer.text == "Well [1], early [6]."
    assert answer.status == "full"
    assert [(it.found, it.reason) for it in answer.sub_answers] == [
        (True, ""),
        (False, "no_answer"),
        (True, ""),
    ]
    assert answer.sub_answers[1].text == "nothing on it."
    (data,) = asked(searched, "synthesis")
    assert [it["question"] for it in data["sub_answers"]] == [HEALTH, FEE]
    assert data["sub_answers"][1]["answer"] == "Before he leaves [6]."
    assert answer.citations[1].match is answer.sub_answers[2].matches[1]
    assert len(answer.matches) == 8


@every_telling
def test_a_part_that_is_late_is_left_out(telling: Telling) -> None:
    said = {**SAID, FEE: [600.0, "late"]}

    def ask(seconds: float) -> Any:
        searched = telling.way.wrap(
            script=scripted(sub_answer=said, synthesis="Well [1]."), config=synthesis()
        )
        try:
            return telling.answer(
                searched, BROAD, config={"answer": {"timeoutMs": int(1e3 * seconds)}}
            )
        except ModelError:
            return None

    answer = with_enough_time(ask, lambda found: found and found.text == "Well [1].")
    assert answer is not None
    assert answer.text == "Well [1]."
    assert troubles(answer) == [("sub_answers", "timeout")]


@every_telling
@pytest.mark.parametrize("failed", ["NO_ANSWER", ModelError("unavailable")])
def test_with_too_few_parts_the_question_is_answered_at_once(telling: Telling, failed: Any) -> None:
    said = {HEALTH: "He is well [1].", VET: failed, FEE: failed}
    searched = telling.way.wrap(
        script=scripted(sub_answer=said, answer="Plainly [2]."), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    assert answer.text == "Plainly [2]."
    assert answer.status == "degraded"
    assert ("sub_answers", "too_few_successes") in troubles(answer)
    assert answer.matches == answer.retrieval.matches
    assert answer.citations[0].match is answer.retrieval.matches[1]
    assert len(answer.sub_answers) == 3
    assert asked(searched, "answer")[0]["question"] == BROAD


@every_telling
def test_how_many_parts_are_enough_is_a_setting(telling: Telling) -> None:
    said = {HEALTH: "He is well [1]."}
    script = scripted(sub_answer=said, synthesis="Well [1].", answer="Plainly.")
    one = telling.answer(
        telling.way.wrap(script=script, config=synthesis(fusion={"minSuccesses": 1})), BROAD
    )
    assert one.text == "Well [1]."
    script = scripted(sub_answer=SAID, synthesis="All [1].", answer="Plainly.")
    all_of_them = telling.answer(
        telling.way.wrap(script=script, config=synthesis(fusion={"minSuccesses": 9})), BROAD
    )
    assert all_of_them.text == "All [1]."


@every_telling
def test_a_synthesis_that_fails_leaves_the_part_that_rests_on_most_passages(
    telling: Telling,
) -> None:
    script = scripted(sub_answer=SAID, synthesis=ModelError("refused"))
    answer = telling.answer(telling.way.wrap(script=script, config=synthesis()), BROAD)
    assert answer.text == "Hips and teeth [5][6]."
    assert answer.found
    assert troubles(answer) == [("synthesis", "refused")]
    assert [it.match for it in answer.citations] == list(answer.sub_answers[1].matches[:2])
    assert len(answer.matches) == 12


@every_telling
def test_a_part_whose_search_fails_is_left_out(telling: Telling) -> None:
    calls: list[str] = []

    def respond(query: str, top_k: int) -> Any:
        calls.append(query)
        if query == VET:
            raise OSError("down")
        return search(query, top_k)

    searched = telling.way.wrap(
        respond, script=scripted(sub_answer=SAID, synthesis="Well [1]."), config=synthesis()
    )
    answer = telling.answer(searched, BROAD)
    assert answer.text == "Well [1]."
    assert troubles(answer) == [("sub_answers", "search_failed")]
    assert [it.reason for it in answer.sub_answers] == ["", "search_failed", ""]
    assert answer.retrieval.trace.searches == len(set(calls))
    assert set(calls) == {BROAD, *PARTS}


@every_telling
@pytest.mark.parametrize(("most", "searches"), [(1, 1), (2, 1), (3, 3), (9, 4)])
def test_the_searches_of_the_parts_keep_the_limit(
    telling: Telling, most: int, searches: int
) -> None:
    config = synthesis(limits={**PATIENT, "maxSearches": most})
    script = scripted(sub_answer=SAID, synthesis="All [1].", answer="Plainly [1].")
    searched = telling.way.wrap(script=script, config=config)
    answer = telling.answer(searched, BROAD)
    assert len(searched.calls) == searches
    assert answer.text == ("All [1]." if searches > 1 else "Plainly [1].")


@every_telling
def test_invented_citations_are_removed_everywhere(telling: Telling) -> None:
    said = {**SAID, HEALTH: "He is well [1][8]."}
    script = scripted(sub_answer=said, synthesis="Well [1], fit [13].")
    searched = telling.way.wrap(script=script, config=synthesis())
    answer = telling.answer(searched, BROAD)
    assert answer.text == "Well [1], fit."
    assert asked(searched, "synthesis")[0]["sub_answers"][0]["answer"] == "He is well [1]."
    assert troubles(answer) == [("citations", "invented")] * 2


@every_telling
def test_a_broad_follow_up_is_put_together_with_its_conversation(telling: Telling) -> None:
    searched = telling.way.wrap(
        script=scripted(sub_answer=SAID, synthesis=WHOLE), config=synthesis()
    )

    def script(prompt: Prompt) -> Any:
        reply = scripted(sub_answer=SAID, synthesis=WHOLE)(prompt)
        return {**reply, "standalone": BROAD} if prompt.mode == "decompose" else reply

    searched.model._script = script
    answer = telling.answer(searched, FOLLOW_UP, history=HISTORY)
    assert answer.text == WHOLE
    (data,) = asked(searched, "synthesis")
    assert (data["question"], data["history"]) == (FOLLOW_UP, list(HISTORY))


def test_parts_are_asked_at_the_same_time() -> None:
    all_here = Barrier(len(PARTS))

    def script(prompt: Prompt) -> Any:
        if prompt.mode == "sub_answer":
            all_here.wait(20)
        return scripted(sub_answer=SAID, synthesis=WHOLE)(prompt)

    assert Way("sync").wrap(script=script, config=synthesis()).wrapped.answer(BROAD).text == WHOLE
