from __future__ import annotations

import asyncio
import json
import logging
import traceback
from typing import Any

import httpx2
import openai
import pytest
from werkzeug import Response

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.llms.openai.replies import MOST_BYTES
from qtmiddleware.providers.openai_client import convert_client_error
from qtmiddleware.types import Deadline
from tests.support import completions
from tests.support.model_server import ModelServer, as_json, failure

SECRET = "sk-verysecret0123456789"
QUERY = "Does Jaco have any health concerns?"
ANSWER = '{"rewrite": "Jaco health concerns"}'


def completion(
    content: Any = ANSWER, finish: str | None = "stop", **message: Any
) -> dict[str, Any]:
    return completions.completion(content, finish=finish, **message)


def without(name: str) -> dict[str, Any]:
    body = completion()
    del body[name]
    return body


def test_an_answer_is_read_with_its_tokens_and_its_cost(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = completion()
    reply = ask(OpenAIModel("gpt-4o-mini", base_url=model_server.url), prompt)
    assert reply.text == ANSWER
    assert (reply.input_tokens, reply.output_tokens, reply.calls) == (100, 20, 1)
    assert reply.cost_usd == pytest.approx((100 * 0.15 + 20 * 0.60) / 1e6)
    assert not reply.truncated


def test_the_request_holds_the_strict_schema_of_the_fields_and_an_explicit_timeout(
    ask, prompt, model_server
) -> None:
    model_server.reply = completion()
    ask(OpenAIModel("gpt-4o-mini", base_url=model_server.url), prompt, 30.0)
    (sent,) = model_server.bodies
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert QUERY in sent["messages"][1]["content"]
    assert QUERY not in sent["messages"][0]["content"]
    assert sent["temperature"] == 0.0
    assert sent["max_tokens"] == 800
    assert sent["response_format"]["type"] == "json_schema"
    schema = sent["response_format"]["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["standalone", "rewrite", "sub_queries"]
    assert schema["properties"]["sub_queries"]["items"] == {"type": "string"}
    assert "1 to 4" in schema["properties"]["sub_queries"]["description"]
    assert 0 < float(model_server.headers[0]["x-stainless-read-timeout"]) <= 30.0


def test_a_call_without_a_deadline_still_has_a_timeout(prompt, model_server: ModelServer) -> None:
    model_server.reply = completion()
    OpenAIModel("m", base_url=model_server.url).complete(prompt, Deadline())
    assert float(model_server.headers[0]["x-stainless-read-timeout"]) == 600.0


def test_a_deadline_that_is_over_sends_nothing(ask, prompt, model_server: ModelServer) -> None:
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt, 0.0)
    assert caught.value.reason == "timeout"
    assert model_server.bodies == []


def test_a_cancelled_deadline_is_told_apart_from_a_late_one(
    prompt, model_server: ModelServer
) -> None:
    deadline = Deadline.after(30)
    deadline.cancel()
    with pytest.raises(ModelError) as caught:
        OpenAIModel("m", base_url=model_server.url).complete(prompt, deadline)
    assert caught.value.reason == "cancelled"


STATUSES = [
    (401, "unauthorized"),
    (403, "unauthorized"),
    (404, "rejected"),
    (408, "timeout"),
    (409, "rejected"),
    (413, "too_long"),
    (429, "rate_limited"),
    (500, "unavailable"),
    (503, "unavailable"),
]


@pytest.mark.parametrize(("status", "reason"), STATUSES)
def test_a_refusing_status_has_its_reason(
    ask, prompt, model_server: ModelServer, status: int, reason: str
) -> None:
    body = {
        "error": {"message": f"no {QUERY} {SECRET}", "type": "invalid_request_error", "code": None}
    }
    headers = {"Retry-After": "0", "x-should-retry": "false"}
    model_server.reply = as_json(body, status, headers)
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert caught.value.reason == reason
    assert len(model_server.bodies) == 1
    # The vendor likes to quote, and some tools show the locals of whatever an error hangs together
    # with.
    assert caught.value.__context__ is None
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert QUERY not in shown


CODES = [
    ({"code": "content_filter"}, "refused"),
    ({"code": "context_length_exceeded", "param": "messages"}, "too_long"),
    ({"code": "invalid_api_key"}, "unauthorized"),
    ({"code": "model_not_found", "param": "model"}, "rejected"),
]


@pytest.mark.parametrize(("error", "reason"), CODES)
def test_a_400_with_another_cause_is_not_taken_for_a_refused_format(
    ask, prompt, model_server: ModelServer, error: dict[str, str], reason: str
) -> None:
    model_server.reply = as_json({"error": {"message": "no", **error}}, 400)
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert caught.value.reason == reason
    assert len(model_server.bodies) == 1


def test_the_record_of_a_wrong_model_name_says_what_to_look_at(
    model_server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    error = {"message": f"no {QUERY} {SECRET}", "code": "model_not_found", "param": "model"}
    model_server.reply = as_json({"error": error}, 404)
    config = {"transformationType": "rewrite", "llm": {"baseUrl": model_server.url}}
    with qtm.QueryMiddleware(config) as qm:
        qm.wrap(lambda query, top_k=3: [{"id": "a", "score": 0.9, "text": "The fee is due"}])(QUERY)
    (message,) = (it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING)
    asked = "rejected the request (HTTP 404, code model_not_found, param model); check the model and the config"
    assert "degraded: transform.rewrite rejected (" in message
    assert asked in message
    assert SECRET not in message
    assert QUERY not in message


def test_a_busy_service_is_not_asked_again_and_says_when_to_come_back(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = Response("", status=429, headers={"Retry-After": "7"})
    with pytest.raises(ModelError, match="429") as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert caught.value.retry_after == 7
    assert len(model_server.bodies) == 1


SAID: list[tuple[str, float | None]] = [
    ("0", 0.0),
    ("86400", 600.0),
    ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ("Fri, 21 Oct 2450 07:28:00 GMT", 600.0),
    ("soon", None),
    ("-5", None),
    ("1e400", None),
    ("٣", None),
    ("", None),
]


@pytest.mark.parametrize(("said", "seconds"), SAID)
def test_a_service_is_believed_when_to_come_back_for_ten_minutes_at_most(
    said: str, seconds: float | None
) -> None:
    request = httpx2.Request("POST", "http://host")
    response = httpx2.Response(503, headers={"Retry-After": said.encode()}, request=request)
    error = openai.InternalServerError("busy", response=response, body=None)
    assert convert_client_error(error, "the service").retry_after == seconds


def test_a_given_async_client_retries_as_it_was_told_to(prompt, model_server: ModelServer) -> None:
    replies = iter([Response("", status=429, headers={"Retry-After-Ms": "1"}), completion()])
    model_server.reply = lambda body: next(replies)

    async def ask() -> Reply:
        async with openai.AsyncOpenAI(api_key=SECRET, base_url=model_server.url) as client:
            return await OpenAIModel("m", client=client).acomplete(prompt, Deadline.after(30))

    assert asyncio.run(ask()).calls == 2


BODIES: list[tuple[str, Any, str]] = [
    ("truncated JSON", json.dumps(completion())[:60], "unparsable"),
    ("HTML", "<!doctype html><title>Sign in</title>", "unparsable"),
    ("nothing", "", "empty"),
    ("white space", "  \n", "empty"),
    ("a JSON string", '"hello"', "unparsable"),
    ("a JSON list", "[]", "unparsable"),
    ("null", "null", "unparsable"),
    ("deep nesting", "[" * 100_000, "unparsable"),
    ("a huge number", '{"choices": 1' + "0" * 5_000 + "}", "unparsable"),
    ("invalid UTF-8", b'{"choices": [{"message": {"content": "\xff\xfe"}}]}', "unparsable"),
    ("no choices", without("choices"), "unparsable"),
    ("choices null", {"choices": None}, "empty"),
    ("choices []", {"choices": []}, "empty"),
    ("choices of another type", {"choices": {"0": 1}}, "unparsable"),
    ("a choice of another type", {"choices": ["x"]}, "unparsable"),
    ("choices [null]", {"choices": [None]}, "unparsable"),
    ("no message", {"choices": [{"finish_reason": "stop"}]}, "unparsable"),
    ("content null", completion(None), "empty"),
    ("content blank", completion(" \n"), "empty"),
    ("content of another type", completion({"a": 1}), "empty"),
    ("reasoning alone", completion(None, reasoning_content="Let me think"), "empty"),
    (
        "reasoning that ate the budget",
        completion(None, "length", reasoning_content="Let me"),
        "truncated",
    ),
    ("a refusal", completion(None, refusal="I can't help with that."), "refused"),
    ("a refusal among parts", completion([{"type": "refusal", "refusal": "No."}]), "refused"),
    ("a content filter", completion("", "content_filter"), "refused"),
    ("a content filter in mid-answer", completion('{"rewrite": "Ja', "content_filter"), "refused"),
    ("an error in a success", {"error": {"message": "slow down", "code": 429}}, "rate_limited"),
    ("an error text in a success", {"error": "backend gone"}, "unavailable"),
    ("2 MB", completion("x" * (2 * MOST_BYTES)), "too_long"),
]


@pytest.mark.parametrize(("body", "reason"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES])
def test_an_odd_body_has_its_reason(
    ask, prompt, model_server: ModelServer, body: Any, reason: str
) -> None:
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    model_server.reply = Response(data, content_type="application/json")
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert caught.value.reason == reason
    assert len(model_server.bodies) == 1


def test_a_web_page_is_no_answer_whatever_its_type_says(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = Response("<html></html>", content_type="text/html")
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert caught.value.reason == "unparsable"


GOOD = [
    (
        "parts",
        completion([{"type": "text", "text": '{"rewrite":'}, {"type": "text", "text": ' "x"}'}]),
        '{"rewrite": "x"}',
    ),
    ("plain strings as parts", completion(["a", "b"]), "ab"),
    ("no usage", without("usage"), ANSWER),
    ("usage of another type", completion() | {"usage": [1]}, ANSWER),
    ("lone surrogates", completion("a\ud800b"), "a\ufffdb"),
    ("emoji", completion("😀"), "😀"),
    ("no finish reason", completion(finish=None), ANSWER),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("body", "text"), [g[1:] for g in GOOD], ids=[g[0] for g in GOOD])
def test_a_usable_body_of_another_shape_is_read(
    ask, prompt, model_server: ModelServer, body: Any, text: str
) -> None:
    model_server.reply = Response(json.dumps(body), content_type="application/json")
    assert ask(OpenAIModel("m", base_url=model_server.url), prompt).text == text


def test_an_answer_cut_at_the_token_limit_is_handed_on_as_truncated(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = completion('{"rewrite": "Jaco he', "length")
    reply = ask(OpenAIModel("m", base_url=model_server.url), prompt)
    assert reply.truncated
    assert reply.text == '{"rewrite": "Jaco he'


def test_missing_usage_counts_no_tokens_and_no_cost(ask, prompt, model_server: ModelServer) -> None:
    model_server.reply = without("usage")
    reply = ask(OpenAIModel("gpt-4o-mini", base_url=model_server.url), prompt)
    assert (reply.input_tokens, reply.output_tokens, reply.cost_usd) == (0, 0, None)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500])
def test_neither_key_nor_query_nor_answer_stands_in_an_error_a_repr_or_a_log(
    ask, prompt, model_server: ModelServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    def tell_all(body: dict[str, Any]) -> Response:
        seen = f"{model_server.keys[-1]} {json.dumps(body)}"
        return failure(
            status, seen, code=QUERY, param=QUERY, type=SECRET, headers={"x-should-retry": "false"}
        )

    caplog.set_level(logging.DEBUG, logger="qtmiddleware")
    caplog.set_level(logging.WARNING, logger="openai")
    model_server.reply = tell_all
    model = OpenAIModel("m", base_url=model_server.url.replace("://", "://user:hunter2@"))
    with pytest.raises(ModelError) as caught:
        ask(model, prompt)
    ours = [
        record.getMessage() for record in caplog.records if record.name.startswith("qtmiddleware")
    ]
    shown = " ".join(
        [str(caught.value), repr(caught.value), *traceback.format_exception_only(caught.value)]
    )
    for text in (shown, repr(model), repr(model._clients), *ours):
        assert "secret" not in text
        assert "hunter2" not in text
        assert "Jaco" not in text


def test_a_provider_s_plain_error_code_is_told(ask, prompt, model_server: ModelServer) -> None:
    error = {"message": "no", "code": "model_not_found", "param": "model"}
    model_server.reply = as_json({"error": error}, 404)
    with pytest.raises(ModelError, match=r"HTTP 404, code model_not_found, param model"):
        ask(OpenAIModel("m", base_url=model_server.url), prompt)
