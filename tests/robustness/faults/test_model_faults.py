"""A model that is slow, down or wrong costs nothing but itself: the caller gets what the rules give, or better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from werkzeug import Response

from tests.support.completions import completion
from tests.support.fault_world import HASTY, QUERY, WIDE, Caller, failure, transforming
from tests.support.model_server import ModelServer, Said

ESSAY = "Dogs of every age may fall ill, and what that means depends on a great many things. " * 20


@dataclass(frozen=True)
class Fault:
    """What the service answers to a rewrite, and the reason the caller is told."""

    name: str
    answer: Said
    reason: str


JSON = "application/json"
DECLINED = "I'm sorry, but I can't help with that."
# Beside those of the matrix.
FAULTS = (
    Fault("400", failure(400), "rejected"),
    Fault("refusal in words", completion(DECLINED), "refused"),
    Fault("refusal in the JSON", {"rewrite": DECLINED}, "refused"),
    Fault("content filter", completion("", finish="content_filter"), "refused"),
    Fault("no choices", {"choices": []}, "unparsable"),
    Fault("an essay", completion(ESSAY), "unparsable"),
    Fault("broken off and nobody says so", completion('{"rewrite": "Does the dog Ja'), "truncated"),
    Fault("a page", Response("<html>Sign in</html>", content_type="text/html"), "unparsable"),
    Fault("a late error", Response('{"error": {"code": 429}}', content_type=JSON), "rate_limited"),
    Fault("bytes", Response(b"\x00\xff\xfe", content_type=JSON), "unparsable"),
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


ILL, VET = "Which illness does Jaco have?", "What did the vet say about Jaco?"
CUT = '{"sub_queries": ["Which illness does Jaco have?", "What did the v'
SALVAGED: dict[str, tuple[str, Said, tuple[str, ...]]] = {
    "fenced": ("rewrite", completion(f'Sure!\n```json\n{{"rewrite": "{ILL}"}}\n```\nOk?'), (ILL,)),
    "plain text": ("rewrite", completion(ILL), (ILL,)),
    "broken off after the first": ("decompose", completion(CUT, finish="length"), (ILL,)),
    "numbered": ("decompose", completion(f"1. {ILL}\n2. {VET}"), (ILL, VET)),
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
