"""Transformations of any number of questions: as they are asked for, a few in memory, at one pace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config import Config
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk import Transformed, transform_stream
from qtmiddleware.kit.bulk.stream import CALL_MS, SPARE, separate_call_timeout
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.retrieval.history import History
from qtmiddleware.types import Deadline, Message

CONFIG = {"transformationType": "rewrite", "limits": {"maxConcurrency": 2}}


class Rewriting:
    """Says back what it is asked, and fails as *failures* say, by the question."""

    name = "rewriting"

    def __init__(self, **failures: list[ModelError]) -> None:
        self.failures = failures
        self.asked: list[str] = []

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        self.asked.append(prompt.query)
        if left := self.failures.get(prompt.query):
            raise left.pop(0)
        said = {"rewrite": f"please {prompt.query}", "standalone": f"{prompt.query} then"}
        return Reply(json.dumps(said), input_tokens=7, output_tokens=3, cost_usd=0.5)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)


class Asked:
    def __init__(self, text: str, *history: Message) -> None:
        self.text = text
        self.history = History(history)


def words(number: int) -> Iterator[str]:
    return (f"word{chr(97 + at)}" for at in range(number))


def stream(model: Any, texts: Iterable[str], **options: Any) -> Iterator[Transformed[Asked]]:
    return transform_stream(qtm.QueryMiddleware(CONFIG, client=model), map(Asked, texts), **options)


def rewrites(found: Iterable[Transformed[Asked]]) -> dict[str, str | None]:
    return {it.question.text: it.transformation.rewrite for it in found}


def test_every_question_is_transformed() -> None:
    assert rewrites(stream(Rewriting(), words(20))) == {it: f"please {it}" for it in words(20)}


def test_a_question_may_be_a_text_or_have_messages_of_any_kind() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting())
    messages = [{"role": "user", "content": "Who runs Nike?"}]
    asked = SimpleNamespace(text="wordb", history=messages)
    found = {it.transformation.standalone for it in transform_stream(qm, ["worda", asked])}
    assert found == {None, "wordb then"}


def test_questions_are_taken_as_the_results_are() -> None:
    taken = count()
    results = stream(Rewriting(), ("word" for _ in taken))
    assert next(taken) == 0
    assert all(it.transformation.rewrite == "please word" for it in islice(results, 50))
    assert next(taken) <= 51 + 2 + SPARE


def test_what_a_busy_service_refuses_is_asked_again() -> None:
    busy = [ModelError(it, retry_after=0.01) for it in ("rate_limited", "unavailable")]
    model = Rewriting(wordb=busy)
    assert rewrites(stream(model, words(4))) == {it: f"please {it}" for it in words(4)}
    assert sorted(model.asked) == sorted([*words(4), "wordb", "wordb"])


def test_what_the_model_does_not_give_is_empty_and_says_why() -> None:
    found = list(stream(Rewriting(wordb=[ModelError("refused")]), words(3)))
    assert {it.question.text: it.failure for it in found} == {
        "worda": "",
        "wordb": "refused",
        "wordc": "",
    }
    assert rewrites(found)["wordb"] is None


def test_a_bad_question_and_a_refused_key_are_raised() -> None:
    with pytest.raises(qtm.InvalidQuery, match="query must not be blank"):
        list(stream(Rewriting(), ["worda", " ", "wordc"]))
    failures = {it: [ModelError("unauthorized", "no key")] * 9 for it in words(9)}
    with pytest.raises(ModelError, match="unauthorized"):
        list(stream(Rewriting(**failures), words(9)))


def test_results_with_their_questions_tell_what_they_cost() -> None:
    about_nike = Message("user", "Who runs Nike?")
    questions = [Asked("worda"), Asked("wordb", about_nike), Asked("worda")]
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting())
    config = {"llm": {"guard": False}}
    found = list(transform_stream(qm, questions, config=config, concurrency=1))
    assert {id(it.question) for it in found} == set(map(id, questions))
    assert {it.transformation.standalone for it in found} == {None, "wordb then"}
    # Of two equal questions one is asked.
    assert sorted(it.cost_usd or 0.0 for it in found) == [0.0, 0.5, 0.5]
    assert sum(reply.input_tokens for it in found for reply in it.replies) == 14


def test_a_stream_that_is_closed_begins_no_further_call() -> None:
    model = Rewriting()
    results: Any = stream(model, words(26), concurrency=1)
    next(results)
    results.close()
    assert len(model.asked) < 26


@pytest.mark.parametrize(
    ("given", "seconds"),
    [({}, CALL_MS / 1e3), ({"llmTimeoutMs": 5_000}, 5.0), ({"deadlineMs": 9_000}, 9.0)],
)
def test_one_call_has_the_time_nobody_waits_for_unless_somebody_set_it(
    given: dict[str, int], seconds: float
) -> None:
    config = Config.load({"limits": given}, environ={})
    settings, found = separate_call_timeout(config, config.settings)
    assert found == seconds
    assert settings.limits.deadline_ms > 1e9
