"""A model that fails again and again is left alone for a while, and whoever asks is told."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import openai
import pytest
from werkzeug import Response

import qtmiddleware as qtm
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.testing import ScriptedModel
from tests.support.clock import Clock
from tests.support.completions import completion
from tests.support.fault_world import (
    ACCOUNT,
    GOOD,
    HASTY,
    PASSAGES,
    PATIENT,
    QUERY,
    failure,
    middleware,
    reasons,
    search,
    transforming,
)
from tests.support.model_server import ModelServer
from tests.support.waiting import timeout_when


def asked(wrapped: Any, number: int) -> list[list[tuple[str, str]]]:
    # Each another question: equal ones would be remembered once the model answers.
    return [reasons(wrapped.retrieve(f"{QUERY} ({place})")) for place in range(number)]


def test_a_slow_model_is_left_alone_too(service: ModelServer) -> None:
    service.reply = service.hang
    seen = asked(middleware(service, limits=HASTY, breaker={"failures": 2}).wrap(search), 6)
    # On a busy machine a question may be late before its call has begun, which says nothing about
    # the model.
    late = seen.index([("transform", "circuit_open")])
    assert late >= 2
    left_alone = [[("transform", "circuit_open")]] * (6 - late)
    assert seen == [[("transform.rewrite", "timeout")]] * late + left_alone


@pytest.mark.parametrize(
    ("headers", "seconds", "said"),
    [
        ({"Retry-After": "1"}, 1.0, "1 s"),
        ({"retry-after-ms": "250"}, 0.25, "1 s"),
        ({"Retry-After": "99999"}, 600.0, "600 s"),
        ({}, 30.0, "30 s"),
    ],
    ids=str,
)
def test_a_service_that_fails_or_says_when_to_come_back_is_asked_then_and_not_before(
    headers: dict[str, str],
    seconds: float,
    said: str,
    service: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("qtmiddleware.wrapping.engine.Breaker", partial(Breaker, clock=clock))
    service.reply = Response("{}", status=429, headers=headers, content_type="application/json")
    qm = middleware(service, breaker={"failures": 5 if headers else 1, "seconds": 30})
    wrapped = qm.wrap(search)
    assert asked(wrapped, 1) == [[("transform.rewrite", "rate_limited")]]
    service.reply = GOOD
    retrieval = wrapped.retrieve(QUERY)
    assert reasons(retrieval) == [("transform", "circuit_open")]
    said = f"gpt-6-luna failed and is not called for {said}"
    assert retrieval.degradations[0].detail == said
    assert retrieval.response == qtm.QueryMiddleware().wrap(search)(QUERY)
    assert qm.health()["model"]["retry_in"] == seconds
    clock.now += seconds
    assert asked(wrapped, 3) == [[], [], []]


@pytest.mark.parametrize(
    "answer",
    [
        completion(None, refusal="I can't help with that."),
        completion(""),
        completion("I'm sorry, but I can't help with that."),
        failure(413),
    ],
    ids=["refusal", "empty", "refusal in words", "too long"],
)
def test_a_question_the_model_will_not_answer_is_no_outage(
    answer: Any, service: ModelServer
) -> None:
    service.reply = answer
    asked(middleware(service, breaker={"failures": 2}).wrap(search), 5)
    assert len(service.bodies) == 5


def test_callers_who_give_up_do_not_speak_against_the_model(service: ModelServer) -> None:
    service.reply = service.hang

    async def impatient() -> None:
        async with openai.AsyncOpenAI(base_url=service.url, **ACCOUNT) as client:
            config = transforming("rewrite", PATIENT, breaker={"failures": 1})
            qm = qtm.QueryMiddleware(config, client=client)
            for number in (1, 2, 3):
                with pytest.raises(TimeoutError):
                    async with timeout_when(lambda count=number: len(service.bodies) == count):
                        await qm.atransform(QUERY)

    asyncio.run(impatient())
    assert len(service.bodies) == 3


def test_answers_are_refused_with_what_was_found_while_the_model_is_left_alone(
    service: ModelServer,
) -> None:
    service.reply = failure(500)
    wrapped = middleware(service, "none", breaker={"failures": 1}).wrap(search)
    for reason in ("unavailable", "circuit_open"):
        with pytest.raises(qtm.ModelError) as caught:
            wrapped.answer(QUERY, top_k=len(PASSAGES))
        assert caught.value.reason == reason
        assert len(caught.value.retrieval.matches) == len(PASSAGES)
    assert len(service.bodies) == 1


def test_no_call_can_change_what_protects_all(service: ModelServer) -> None:
    wrapped = middleware(service).wrap(search)
    for group in ({"breaker": {"failures": 0}}, {"budget": {"maxTokens": 5}}):
        with pytest.raises(qtm.ConfigError, match="cannot be set for one call"):
            wrapped.retrieve(QUERY, config=group)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_model_that_exits_ends_no_event_loop(way: str) -> None:
    def leave(prompt: Any) -> Any:
        raise SystemExit(3)

    wrapped = qtm.QueryMiddleware("balanced", client=ScriptedModel(leave)).wrap(search)
    sync = way == "sync"
    retrieval = wrapped.retrieve(QUERY) if sync else asyncio.run(wrapped.aretrieve(QUERY))
    (problem,) = retrieval.degradations
    assert (problem.stage.partition(".")[0], problem.reason) == ("transform", "failed")
