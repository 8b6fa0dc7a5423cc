"""A model behind the real client over real HTTP: what is sent, what is read, and what every failure is called."""

from __future__ import annotations

import json
import logging
import socket
import traceback
from typing import Any

import httpx
import openai
import pytest
from werkzeug import Response

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.llms.replies import MOST_CHARS
from tests.support import completions
from tests.support.llm_fixtures import QUERY, SECRET
from tests.support.model_server import ModelServer, failure

ANSWER = '{"rewrite": "Jaco health concerns"}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def completion(
    content: Any = ANSWER, finish: str | None = "stop", **message: Any
) -> dict[str, Any]:
    return completions.completion(content, finish=finish, **message)


def at(url: str, name: str = "gpt-4o-mini") -> OpenAIModel:
    return OpenAIModel(name, LlmSettings(base_url=url))


def fault(ask: Any, model: OpenAIModel, prompt: Any, seconds: float = 30.0) -> ModelError:
    with pytest.raises(ModelError) as caught:
        ask(model, prompt, seconds)
    model.close()
    return caught.value


def test_an_answer_is_read_with_its_tokens_and_its_cost(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = completion()
    reply = ask(at(model_server.url), prompt)
    assert (reply.text, reply.truncated) == (ANSWER, False)
    assert (reply.input_tokens, reply.output_tokens, reply.calls) == (100, 20, 1)
    assert reply.cost_usd == pytest.approx((100 * 0.15 + 20 * 0.60) / 1e6)


def test_the_request_has_the_strict_schema_of_the_fields_and_a_timeout(
    ask, prompt, model_server: ModelServer
) -> None:
    model_server.reply = completion()
    ask(at(model_server.url), prompt, 30.0)
    (sent,) = model_server.bodies
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert QUERY in sent["messages"][1]["content"]
    assert QUERY not in sent["messages"][0]["content"]
    assert (sent["temperature"], sent["max_tokens"]) == (0.0, 800)
    assert sent["response_format"]["type"] == "json_schema"
    schema = sent["response_format"]["json_schema"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["standalone", "rewrite", "sub_queries"]
    assert schema["properties"]["sub_queries"]["items"] == {"type": "string"}
    assert "1 to 4" in schema["properties"]["sub_queries"]["description"]
    assert 0 < float(model_server.headers[0]["x-stainless-read-timeout"]) <= 30.0


@pytest.mark.parametrize("timeout", [2, httpx.Timeout(9, read=2)], ids=["seconds", "httpx"])
def test_a_shorter_timeout_of_the_users_client_holds(
    ask, prompt, model_server: ModelServer, timeout: Any
) -> None:
    model_server.reply = completion()
    client = openai.OpenAI(base_url=model_server.url, timeout=timeout)
    ask(OpenAIModel("gpt-4o-mini", client=client), prompt, 30.0)
    assert float(model_server.headers[0]["x-stainless-read-timeout"]) == 2


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "unauthorized"),
        (403, "unauthorized"),
        (408, "timeout"),
        (413, "too_long"),
        (429, "rate_limited"),
        (500, "unavailable"),
        (503, "unavailable"),
    ],
)
def test_a_status_has_its_reason_and_is_not_asked_again(
    ask, prompt, model_server: ModelServer, status: int, reason: str
) -> None:
    model_server.reply = failure(status, "temperature is fine, we are not")
    error = fault(ask, at(model_server.url), prompt)
    # Some tools show the locals of whatever an error hangs together with.
    assert (error.reason, len(model_server.bodies), error.__context__) == (reason, 1, None)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("content_filter", "refused"),
        ("context_length_exceeded", "too_long"),
        ("invalid_api_key", "unauthorized"),
        ("model_not_found", "rejected"),
    ],
)
def test_a_400_is_told_apart_by_its_code(
    ask, prompt, model_server: ModelServer, code: str, reason: str
) -> None:
    model_server.reply = failure(400, "no", code=code)
    assert fault(ask, at(model_server.url), prompt).reason == reason
    assert len(model_server.bodies) == 1


BODIES: dict[str, tuple[Any, str]] = {
    "truncated JSON": (json.dumps(completion())[:60], "unparsable"),
    "HTML": ("<!doctype html><title>Sign in</title>", "unparsable"),
    "a JSON string": ('"hello"', "unparsable"),
    "null": ("null", "unparsable"),
    "deep nesting": ("[" * 100_000, "unparsable"),
    "invalid UTF-8": (b'{"choices": [{"message": {"content": "\xff\xfe"}}]}', "unparsable"),
    "no choices": ({"choices": []}, "unparsable"),
    "choices of another type": ({"choices": {"0": 1}}, "unparsable"),
    "no message": ({"choices": [{"finish_reason": "stop"}]}, "unparsable"),
    "content null": (completion(None), "empty"),
    "content blank": (completion(" \n"), "empty"),
    "reasoning that ate the budget": (
        completion(None, "length", reasoning_content="Let me"),
        "truncated",
    ),
    "a refusal": (completion(None, refusal="I can't help with that."), "refused"),
    "a refusal among parts": (completion([{"type": "refusal", "refusal": "No."}]), "refused"),
    "a content filter in mid-answer": (completion('{"rewrite": "Ja', "content_filter"), "refused"),
    "an error in a success": ({"error": {"message": "slow", "code": 429}}, "rate_limited"),
    "an error text in a success": ({"error": "backend gone"}, "unavailable"),
    "too long": (completion("x" * (MOST_CHARS + 1)), "unparsable"),
}


@pytest.mark.parametrize("name", BODIES)
def test_an_odd_body_has_its_reason(ask, prompt, model_server: ModelServer, name: str) -> None:
    body, reason = BODIES[name]
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    model_server.reply = Response(data, content_type="application/json")
    assert fault(ask, at(model_server.url), prompt).reason == reason
    assert len(model_server.bodies) == 1


@pytest.mark.parametrize("status", [400, 401, 422, 500])
def test_neither_key_nor_query_nor_answer_stands_in_an_error_a_repr_or_a_log(
    ask, prompt, model_server: ModelServer, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    def tell_all(body: dict[str, Any]) -> Response:
        seen = f"{model_server.keys[-1]} {json.dumps(body)}"
        return failure(status, seen, code=QUERY, param=QUERY, type=SECRET)

    caplog.set_level(logging.DEBUG, logger="qtmiddleware")
    model_server.reply = tell_all
    model = at(model_server.url.replace("://", "://user:hunter2@"))
    error = fault(ask, model, prompt)
    ours = [it.getMessage() for it in caplog.records if it.name.startswith("qtmiddleware")]
    shown = "".join(traceback.format_exception(error))
    for text in (shown, repr(error), repr(model), repr(model._clients), *ours):
        assert not any(secret in text for secret in ("secret", "hunter2", "Jaco"))


def test_a_key_in_the_query_of_the_environments_address_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example?api-key=hunter2@x")
    assert repr(OpenAIModel("m")) == "OpenAIModel('m', host='llm.example')"


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed_and_says_what_to_check(
    ask, prompt, httpserver: Any, status: int
) -> None:
    away = httpserver.url_for("/elsewhere")
    httpserver.expect_request("/v1/chat/completions").respond_with_data(
        status=status, headers={"location": away}
    )
    error = fault(ask, at(httpserver.url_for("/v1")), prompt)
    assert error.reason == "unavailable"
    for words in (f"HTTP {status}", "llm.baseUrl"):
        assert words in str(error)
    assert len(httpserver.log) == 1


def cut(_: Any, connection: socket.socket) -> None:
    connection.sendall(HEAD + b'content-length: 500\r\n\r\n{"choices": [')


def fall_silent(wire: Any, connection: socket.socket) -> None:
    connection.sendall(HEAD + b"content-length: 500\r\n\r\n")
    wire.ended.wait()


@pytest.mark.parametrize(
    ("talk", "seconds", "reason"), [(cut, 30, "unavailable"), (fall_silent, 0.3, "timeout")]
)
def test_a_connection_that_breaks_or_hangs_has_its_reason(
    ask, prompt, wire, talk: Any, seconds: float, reason: str
) -> None:
    assert fault(ask, at(wire(talk).url()), prompt, seconds).reason == reason
