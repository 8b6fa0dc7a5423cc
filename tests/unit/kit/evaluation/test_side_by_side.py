"""Questions put to several systems side by side, without judgements."""

from __future__ import annotations

import json
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, InvalidQuery, ModelError
from qtmiddleware.kit.evaluation import Question, ask_systems
from qtmiddleware.kit.evaluation.side_by_side import SHOWN
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.answering_service import rank_by_words
from tests.support.retrieval_world import QUERY, REPLIES, search

JUDGED = Question("q", QUERY, metadata={"answer": "No."})


def script(prompt: Prompt) -> Any:
    asked = json.loads(prompt.user)
    if prompt.mode == "rank":
        return rank_by_words(asked)
    return (
        f"{asked['passages'][0]['text']} [1]" if prompt.mode == "answer" else REPLIES[prompt.mode]
    )


def test_each_system_finds_as_many_passages_in_its_own_time_and_calls() -> None:
    found = ask_systems(search, QUERY, client=ScriptedModel(script), top_k=3)
    (row,) = found.questions
    assert tuple(one.system for one in row.systems) == SHOWN
    assert all(len(one.matches) == 3 and one.seconds > 0 for one in row.systems)
    calls = [one.retrieval.trace.llm_calls for one in row.systems if one.retrieval]
    assert calls == [0, 0, *[1] * 7]
    assert [it.id for it in row["off"].matches] == [it["id"] for it in search(QUERY, 3)]
    assert found.ranked is None


@pytest.mark.parametrize("failing", ["", "rank", "answer"])
def test_with_an_ideal_answer_the_answers_are_ranked_and_a_failure_takes_nothing_else(
    failing: str,
) -> None:
    def reply(prompt: Prompt) -> Any:
        return ModelError("unavailable") if prompt.mode == failing else script(prompt)

    found = ask_systems(search, JUDGED, ["rewrite"], client=ScriptedModel(reply), top_k=4)
    (row,) = found.questions
    assert all(one.matches for one in row.systems)
    assert all((one.answer is None) == (failing == "answer") for one in row.systems)
    assert all((one.error is not None) == (failing == "answer") for one in row.systems)
    ranking = found.ranking(JUDGED)
    assert (ranking is None) == (failing == "answer")
    if ranking is not None and not failing:
        assert {it.system for it in ranking.standings} == {"off", "rewrite"}
    elif ranking is not None:
        # Equal answers are not shown to the judge.
        assert ranking.error in ("unavailable", "equal")


def test_what_cannot_be_asked_is_refused_before_anything_is() -> None:
    def never(query: str, top_k: int = 4) -> Any:
        pytest.fail("asked")

    with pytest.raises(InvalidQuery, match="blank"):
        ask_systems(never, [Question("a", "What?"), Question("b", " ")])
    with pytest.raises(ConfigError, match="there is no system"):
        ask_systems(never, QUERY, ["rewritten"])
    with pytest.raises(ConfigError, match="same id"):
        ask_systems(never, [Question("a", "What?"), Question("a", "Who?")])


def test_a_named_system_is_the_same_around_a_function_of_other_settings() -> None:
    own = {"answer": {"mode": "synthesis"}, "escalation": "never"}
    wrapped = qtm.QueryMiddleware(own, client=ScriptedModel(script)).wrap(search)
    names = ["yours", "rules", "decompose"]
    (row,) = ask_systems(wrapped, QUERY, names, answers=True, top_k=3).questions
    answers = {one.system: one.answer for one in row.systems if one.answer}
    assert list(answers) == ["off", *names]
    # The answer itself is one of the calls.
    calls = {name: answer.retrieval.trace.llm_calls for name, answer in answers.items()}
    assert (calls["off"], calls["rules"], calls["decompose"]) == (1, 1, 2)
    assert not any(answers[name].sub_answers for name in ("off", "rules", "decompose"))
