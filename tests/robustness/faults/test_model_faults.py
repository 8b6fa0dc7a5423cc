"""A model that is slow, down or wrong costs nothing but itself: the caller gets what the rules give, or better."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import pytest
from werkzeug import Response

from tests.support.completions import completion
from tests.support.fault_world import HASTY, QUERY, SECRET, WIDE, Caller, failure, transforming
from tests.support.model_server import ModelServer, Said

ESSAY = "Dogs of every age may fall ill, and what that means depends on a great many things. " * 20


@dataclass(frozen=True)
class Fault:
    """What the service answers to a rewrite, and the reason the caller is told."""

    name: str
    answer: Said
    reason: str


FAULTS = (
    Fault("400", failure(400), "rejected"),
    Fault("401", failure(401), "unauthorized"),
    Fault("403", failure(403), "unauthorized"),
    Fault("404", failure(404), "rejected"),
    Fault("429", failure(429), "rate_limited"),
    Fault("500", failure(500), "unavailable"),
    Fault("503", failure(503), "unavailable"),
    Fault("refusal as a field", completion(None, refusal="I can't help with that."), "refused"),
    Fault("refusal in words", completion("I'm sorry, but I can't help with that."), "refused"),
    Fault(
        "refusal in the JSON", {"rewrite": "I'm sorry, but I can't assist with that."}, "refused"
    ),
    Fault("content filter", completion("", finish="content_filter"), "refused"),
    Fault("empty text", completion(""), "empty"),
    Fault("no text", completion(None), "empty"),
    Fault("no choices", {"choices": []}, "empty"),
    Fault("empty object", {}, "empty"),
    Fault("empty value", {"rewrite": "  "}, "empty"),
    Fault("an essay", completion(ESSAY), "unparsable"),
    Fault("other JSON", {"weather": {"temperature": 21}}, "unparsable"),
    Fault("a list of numbers", completion("[1, 2, 3]"), "unparsable"),
    Fault("broken off", completion('{"rewrite": "Does the dog Ja', finish="length"), "truncated"),
    Fault("broken off and nobody says so", completion('{"rewrite": "Does the dog Ja'), "truncated"),
    Fault(
        "a page",
        Response("<html><body>Sign in</body></html>", content_type="text/html"),
        "unparsable",
    ),
    Fault(
        "an error as a success",
        Response('{"error": {"code": 429}}', content_type="application/json"),
        "rate_limited",
    ),
    Fault("nothing at all", Response("", content_type="application/json"), "empty"),
    Fault("bytes", Response(b"\x00\xff\xfe", content_type="application/json"), "unparsable"),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda it: it.name)
def test_a_model_that_fails_leaves_the_result_of_the_rules(
    fault: Fault, caller: Caller, service: ModelServer
) -> None:
    service.reply = fault.answer
    day = caller.ask(transforming("rewrite"))
    rules = caller.rules_alone()
    assert day.error is None
    assert (day.response, day.retrieval.matches) == (rules.response, rules.retrieval.matches)
    assert day.retrieval.status == "degraded"
    assert day.reasons == [("transform.rewrite", fault.reason)]
    assert day.kinds == ["original"]
    assert day.calls == rules.calls == [(QUERY, WIDE)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda it: it.name)
def test_what_is_told_of_a_failure_holds_neither_query_nor_key(
    fault: Fault, caller: Caller, service: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    service.reply = fault.answer
    with caplog.at_level("INFO"):
        day = caller.ask(transforming("rewrite"))
    told = f"{day.retrieval!r} {day.retrieval.degradations} {day.retrieval.trace.to_dict()} {caplog.text}"
    for secret in (SECRET, QUERY, "Jaco"):
        assert secret not in told


def test_a_model_that_has_nothing_to_add_is_no_failure(
    caller: Caller, service: ModelServer
) -> None:
    service.reply = {"rewrite": QUERY}
    day = caller.ask(transforming("rewrite"))
    assert (day.response, day.kinds, day.calls) == (
        caller.rules_alone().response,
        ["original"],
        [(QUERY, WIDE)],
    )
    assert day.retrieval.status == "full"


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_a_failed_request_is_not_sent_again(
    status: int, caller: Caller, service: ModelServer
) -> None:
    service.reply = failure(status)
    day = caller.ask(transforming("rewrite"))
    assert len(service.bodies) == day.retrieval.trace.llm_calls == 1


@pytest.mark.parametrize("kind", ["rewrite", "all"])
def test_a_slow_model_is_waited_for_no_longer_than_its_timeout(
    kind: str, caller: Caller, service: ModelServer
) -> None:
    service.reply = service.hang
    day = caller.ask(transforming(kind, HASTY))
    rules = caller.rules_alone()
    modes = ["rewrite"] if kind == "rewrite" else ["rewrite", "stepback", "decompose"]
    assert day.response == rules.response
    assert day.reasons == [(f"transform.{mode}", "timeout") for mode in modes]
    assert day.calls == [(QUERY, WIDE)]
    assert not service.released.is_set()


def test_a_model_that_never_answers_is_given_up(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        lost = Caller(caller.name, f"http://127.0.0.1:{deaf.getsockname()[1]}/v1")
        day = lost.ask(transforming("rewrite", HASTY))
    assert day.response == caller.rules_alone().response
    assert day.reasons == [("transform.rewrite", "timeout")]


def test_the_deadline_of_the_query_bounds_a_slow_model_too(
    caller: Caller, service: ModelServer
) -> None:
    service.reply = service.hang
    day = caller.ask(transforming("rewrite", {"llmTimeoutMs": 50_000, "deadlineMs": 150}))
    assert day.reasons == [("transform.rewrite", "timeout")]
    assert day.response == caller.rules_alone().response


def test_a_model_that_is_not_there_is_unavailable(caller: Caller) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    day = Caller(caller.name, f"http://127.0.0.1:{port}/v1").ask(transforming("rewrite"))
    assert day.response == caller.rules_alone().response
    assert day.reasons == [("transform.rewrite", "unavailable")]


SALVAGED: dict[str, tuple[str, Said, tuple[str, ...]]] = {
    "fenced": (
        "rewrite",
        completion(
            'Sure!\n```json\n{"rewrite": "Which illness does Jaco have?"}\n```\nHope this helps.'
        ),
        ("Which illness does Jaco have?",),
    ),
    "plain text": (
        "rewrite",
        completion("Which illness does Jaco have?"),
        ("Which illness does Jaco have?",),
    ),
    "labelled": (
        "rewrite",
        completion("Rewrite: Which illness does Jaco have?"),
        ("Which illness does Jaco have?",),
    ),
    "too many": (
        "decompose",
        {
            "sub_queries": [
                f"What does vet {name} say of Jaco?"
                for name in ("Ann", "Ben", "Cem", "Dan", "Eve", "Flo")
            ]
        },
        tuple(f"What does vet {name} say of Jaco?" for name in ("Ann", "Ben", "Cem", "Dan")),
    ),
    "too few": (
        "multi_query",
        {"paraphrases": ["Is Jaco ill in any way?"]},
        ("Is Jaco ill in any way?",),
    ),
    "broken off after the first": (
        "decompose",
        completion(
            '{"sub_queries": ["Which illness does Jaco have?", "What did the v', finish="length"
        ),
        ("Which illness does Jaco have?",),
    ),
    "numbered": (
        "decompose",
        completion("1. Which illness does Jaco have?\n2. What did the vet say about Jaco?"),
        ("Which illness does Jaco have?", "What did the vet say about Jaco?"),
    ),
}


@pytest.mark.parametrize("name", SALVAGED)
def test_what_can_be_salvaged_of_a_reply_is_searched(
    name: str, caller: Caller, service: ModelServer
) -> None:
    kind, service.reply, expected = SALVAGED[name]
    day = caller.ask(transforming(kind))
    assert tuple(variant.text for variant in day.retrieval.variants[1:]) == expected
    assert day.retrieval.status == "full"
    assert sorted(text for text, _ in day.calls) == sorted([QUERY, *expected])


def test_a_good_reply_is_counted_with_its_tokens_and_cost(
    caller: Caller, service: ModelServer
) -> None:
    service.reply = {"rewrite": "Which illness does Jaco have?"}
    trace = caller.ask(
        transforming("rewrite", llm={"inputPrice": 1.0, "outputPrice": 10.0})
    ).retrieval.trace
    assert (trace.llm_calls, trace.input_tokens, trace.output_tokens) == (1, 100, 20)
    assert trace.cost_usd == pytest.approx((100 * 1.0 + 20 * 10.0) / 1e6)


OTHER_SCRIPT: dict[str, dict[str, Any]] = {
    "rewrite": {"rewrite": "Есть ли у собаки проблемы со здоровьем?"},
    "hyde": {"hyde": "ヤコは健康な犬で、獣医は問題を見つけませんでした。"},
    "stepback": {"step_back": "狗的常见健康问题有哪些?"},
    "decompose": {"sub_queries": ["Чем болеет собака?", "Что сказал ветеринар?"]},
}


@pytest.mark.parametrize("kind", OTHER_SCRIPT)
def test_a_reply_in_another_script_is_dropped_and_told(
    kind: str, caller: Caller, service: ModelServer
) -> None:
    service.reply = OTHER_SCRIPT[kind]
    day = caller.ask(transforming(kind))
    assert day.response == caller.rules_alone().response
    assert day.kinds == ["original"]
    assert [reason for _, reason in day.reasons] == ["language_mismatch"]
    assert day.retrieval.status == "degraded"


LOST: dict[str, tuple[str, str, str]] = {
    "number": ("What was the fee in 2023 for Jaco?", "How much did Jaco cost to adopt?", "2023"),
    "identifier": (
        "Why does ERR_4711 stop the import?",
        "What makes the data import stop early?",
        "ERR_4711",
    ),
    "quote": (
        'Where does it say "no dogs on the lawn"?',
        "Where are pets forbidden on grass?",
        "no dogs on the lawn",
    ),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_a_rewrite_lost_is_put_back_or_the_rewrite_is_dropped(
    lost: str, caller: Caller, service: ModelServer
) -> None:
    query, rewrite, kept = LOST[lost]
    service.reply = {"rewrite": rewrite}
    day = caller.ask(transforming("rewrite"), query=query)
    others = [variant.text for variant in day.retrieval.variants[1:]]
    assert all(kept in text for text in others)
    assert any(subject == "rewrite" for subject, _ in day.retrieval.trace.notes)
    assert {text for text, _ in day.calls} == {query, *others}


def test_a_rewrite_that_lost_a_denial_is_dropped(caller: Caller, service: ModelServer) -> None:
    query = "Which dogs are not allowed to eat carrots?"
    service.reply = {"rewrite": "Which dogs may be fed with carrots?"}
    day = caller.ask(transforming("rewrite"), query=query)
    assert day.kinds == ["original"]
    assert [what for subject, what in day.retrieval.trace.notes if subject == "rewrite"] == [
        "dropped: negation 15:18"
    ]
    assert day.response == caller.rules_alone(query=query).response


def test_a_rewrite_that_lost_a_name_gets_it_back(caller: Caller, service: ModelServer) -> None:
    service.reply = {"rewrite": "Which medical conditions does the dog have?"}
    day = caller.ask(transforming("rewrite"), query="Which illness does the dog Jaco have?")
    assert (
        day.retrieval.transformation.rewrite == "Which medical conditions does the dog have? (Jaco)"
    )
    assert ("rewrite", "repaired: name 27:31") in day.retrieval.trace.notes


def test_the_model_and_its_options_are_set_for_one_call(
    caller: Caller, service: ModelServer
) -> None:
    service.reply = {"rewrite": "Which illness does Jaco have?"}
    caller.ask(
        transforming("rewrite"),
        config={"transformationModel": "other", "llm": {"temperature": 0.7}},
    )
    caller.ask(
        transforming("rewrite"),
        config={"transformationModel": "third", "llm": {"maxTokens": 77}},
    )
    caller.ask(transforming("rewrite"))
    assert [body["model"] for body in service.bodies] == ["other", "third", "gpt-6-luna"]
    assert [body["temperature"] for body in service.bodies] == [0.7, 0.0, 0.0]
    limits = [body.get("max_completion_tokens", body.get("max_tokens")) for body in service.bodies]
    assert limits == [800, 77, 800]
