"""Transformations of an iterator: in its order, as they are asked for, a few in memory, at one pace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config import Config
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.retrieval.history import History
from qtmiddleware.types import Deadline, Message
from qtmiddleware.wrapping.transform_stream import CALL_MS, SPARE, separate_call_timeout

CONFIG = {"transformationType": "rewrite", "limits": {"maxConcurrency": 2}}


class Rewriting:
    """Says back what it is asked, and fails as *failures* say, by the question; *asked* are the questions."""

    name = "rewriting"

    def __init__(self, **failures: list[ModelError]) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.deadlines: list[float] = []

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self.asked.append(prompt.query)
        self.deadlines.append(deadline.remaining())
        if left := self.failures.get(prompt.query):
            raise left.pop(0)
        said = {"rewrite": f"please {prompt.query}", "standalone": f"{prompt.query} then"}
        return Reply(json.dumps(said), input_tokens=7, output_tokens=3, cost_usd=0.5)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)


def rewrites(model: Any, questions: Iterator[str], **options: Any) -> list[str | None]:
    return [
        it.rewrite
        for it in qtm.QueryMiddleware(CONFIG, client=model).transform(questions, **options)
    ]


def words(number: int) -> Iterator[str]:
    return (f"word{chr(97 + at)}" for at in range(number))


def test_results_come_in_the_order_of_the_questions() -> None:
    assert rewrites(Rewriting(), words(20)) == [f"please {it}" for it in words(20)]


def test_questions_are_taken_as_the_results_are() -> None:
    taken = count()

    def endless() -> Iterator[str]:
        for _ in taken:
            yield "word"

    with qtm.QueryMiddleware(CONFIG, client=Rewriting()) as qm:
        results = qm.transform(endless())
        assert next(taken) == 0
        assert all(it.rewrite == "please word" for it in islice(results, 50))
        assert next(taken) <= 51 + 2 * 2 + SPARE


def test_what_a_busy_service_refuses_is_asked_again() -> None:
    model = Rewriting(
        wordb=[
            ModelError("rate_limited", retry_after=0.01),
            ModelError("unavailable", retry_after=0.01),
        ]
    )
    assert rewrites(model, words(4)) == [f"please {it}" for it in words(4)]
    assert sorted(model.asked) == sorted([*words(4), "wordb", "wordb"])


def test_what_the_model_does_not_give_is_empty_and_noted() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting(wordb=[ModelError("refused")]))
    first, second, third = qm.transform(words(3))
    assert (first.rewrite, second.rewrite, third.rewrite) == ("please worda", None, "please wordc")
    assert second.notes == (("transform.rewrite", "refused"),)


def test_a_bad_question_is_told_where_it_stands() -> None:
    results = qtm.QueryMiddleware(CONFIG, client=Rewriting()).transform(
        iter(["worda", " ", "wordc"])
    )
    assert next(results).rewrite == "please worda"
    with pytest.raises(qtm.InvalidQuery, match="query must not be blank"):
        next(results)


def test_a_refused_key_is_raised() -> None:
    failures = {it: [ModelError("unauthorized", "no key")] * 9 for it in words(9)}
    with pytest.raises(ModelError, match="unauthorized"):
        rewrites(Rewriting(**failures), words(9))


def test_history_and_settings_are_those_of_the_call() -> None:
    history = [{"role": "user", "content": "Who runs Nike?"}]
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting())
    (found,) = qm.transform(iter(["word"]), history=history, config={"llm": {"guard": False}})
    assert found.standalone == "word then"


def test_results_with_their_questions_tell_what_they_cost() -> None:
    class Question:
        def __init__(self, text: str) -> None:
            self.text = text
            self.history = History((Message("user", "Who runs Nike?"),) if text == "wordb" else ())

    questions = [Question(it) for it in ("worda", "wordb", "worda")]
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting())
    found = list(qm.transform_stream(questions, concurrency=1))
    assert {id(it.question) for it in found} == set(map(id, questions))
    # Of two equal questions one is asked.
    assert sorted(it.cost_usd or 0.0 for it in found) == [0.0, 0.5, 0.5]
    assert sum(reply.input_tokens for it in found for reply in it.replies) == 14


class _Word:
    history = History()

    def __init__(self, text: str) -> None:
        self.text = text


def test_a_stream_that_is_closed_begins_no_further_call() -> None:
    model = Rewriting()
    results = qtm.QueryMiddleware(CONFIG, client=model).transform_stream(
        (_Word(it) for it in words(26)), concurrency=1
    )
    next(results)
    results.close()
    assert len(model.asked) < 26


def test_one_call_has_the_time_nobody_waits_for_unless_somebody_set_it() -> None:
    for given, seconds in (
        ({}, CALL_MS / 1e3),
        ({"llmTimeoutMs": 5_000}, 5.0),
        ({"deadlineMs": 9_000}, 9.0),
    ):
        config = Config.load({"limits": given}, environ={})
        settings, found = separate_call_timeout(config, config.settings)
        assert found == seconds
        assert settings.limits.deadline_ms > 1e9


def test_a_collection_gives_a_list_as_before() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=Rewriting())
    assert [it.rewrite for it in qm.transform({"worda": 1})] == ["please worda"]
    assert isinstance(qm.transform(("worda",)), list)
