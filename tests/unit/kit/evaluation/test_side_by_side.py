"""Questions put to several systems side by side, without judgements."""

from __future__ import annotations

import json
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, InvalidQuery, ModelError
from qtmiddleware.kit.evaluation import Question, ask_systems
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.answering_service import rank_by_words
from tests.support.retrieval_world import REPLIES, search


def script(prompt: Prompt) -> Any:
    asked = json.loads(prompt.user)
    if prompt.mode == "rank":
        return rank_by_words(asked)
    return (
        f"{asked['passages'][0]['text']} [1]" if prompt.mode == "answer" else REPLIES[prompt.mode]
    )


QUESTION = "Does Jaco have any health concerns?"
JUDGED = Question("q", QUESTION, metadata={"answer": "No."})


def test_each_system_finds_as_many_passages_in_its_own_time_and_calls() -> None:
    found = ask_systems(search, QUESTION, client=ScriptedModel(script), top_k=3)
    (row,) = found.questions
    transforms = ["rewrite", "stepback", "decompose", "multi_query", "hyde", "keywords", "balanced"]
    assert [one.system for one in row.systems] == ["off", "rules", *transforms]
    assert all(len(one.matches) == 3 and one.seconds > 0 for one in row.systems)
    calls = [one.retrieval.trace.llm_calls for one in row.systems if one.retrieval]
    assert calls == [0, 0, *[1] * 7]
    plain = [record["id"] for record in search(QUESTION, 3)]
    assert [match.id for match in row["off"].matches] == plain
    assert found.ranked is None


def test_with_an_ideal_answer_the_answers_are_ranked_and_a_failed_judge_takes_none_away() -> None:
    found = ask_systems(search, JUDGED, ["rewrite"], client=ScriptedModel(script), top_k=4)
    ranking = found.ranking(JUDGED)
    assert ranking is not None
    assert {it.system for it in ranking.standings} == {"off", "rewrite"}

    def broken(prompt: Prompt) -> Any:
        if prompt.mode == "answer":
            return f"{len(prompt.user)} [1]"
        return ModelError("unavailable") if prompt.mode == "rank" else script(prompt)

    other = {"other": {"transformationType": "none", "answer": {"contextChars": 100}}}
    failed = ask_systems(search, JUDGED, other, client=ScriptedModel(broken), top_k=4)
    assert failed.questions[0]["other"].answer is not None
    assert failed.ranked is not None
    assert [one.error for one in failed.ranked.questions] == ["unavailable"]


def test_a_model_that_fails_leaves_that_systems_error_and_what_it_found() -> None:
    def reply(prompt: Prompt) -> Any:
        return ModelError("unavailable") if prompt.mode == "answer" else script(prompt)

    model = ScriptedModel(reply)
    (row,) = ask_systems(search, QUESTION, ["rules"], client=model, answers=True, top_k=4).questions
    assert all(one.error is not None and one.answer is None and one.matches for one in row.systems)


def test_what_cannot_be_asked_is_refused_before_anything_is() -> None:
    def never(query: str, top_k: int = 4) -> Any:
        pytest.fail("asked")

    with pytest.raises(InvalidQuery, match="blank"):
        ask_systems(never, [Question("a", "What?"), Question("b", " ")])
    with pytest.raises(ConfigError, match="there is no system"):
        ask_systems(never, QUESTION, ["rewritten"])
    with pytest.raises(ConfigError, match="same id"):
        ask_systems(never, [Question("a", "What?"), Question("a", "Who?")])


@pytest.mark.parametrize(
    "own", [{"escalation": "never"}, {"answer": {"mode": "synthesis"}, "escalation": "auto"}]
)
def test_a_named_system_is_the_same_around_a_function_of_other_settings(
    own: dict[str, Any],
) -> None:
    wrapped = qtm.QueryMiddleware(own, client=ScriptedModel(script)).wrap(search)
    names = ["yours", "rules", "decompose"]
    (row,) = ask_systems(wrapped, QUESTION, names, answers=True, top_k=3).questions
    answers = {one.system: one.answer for one in row.systems if one.answer}
    assert list(answers) == ["off", *names]
    # The answer itself is one of the calls.
    calls = {name: answer.retrieval.trace.llm_calls for name, answer in answers.items()}
    assert (calls["off"], calls["rules"], calls["decompose"]) == (1, 1, 2)
    assert not any(answers[name].sub_answers for name in ("off", "rules", "decompose"))
