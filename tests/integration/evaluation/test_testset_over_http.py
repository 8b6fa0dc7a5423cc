from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.evaluation.testsets import generate
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.providers.llms import as_language_model
from tests.support.testset_world import bridges, writer

SECRET = "sk-verysecret0123456789"
Answer = Callable[[dict[str, Any]], Response]


def said(body: dict[str, Any]) -> Response:
    """What the writer says to the prompt that *body* holds."""
    user = body["messages"][1]["content"]
    mode = body["response_format"]["json_schema"]["name"]
    content = json.dumps(writer(Prompt(mode, "1", "", user, (), user)))
    message = {"role": "assistant", "content": content}
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-6-luna",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }
    return Response(json.dumps(reply), content_type="application/json")


def failed(status: int) -> Response:
    body = {"error": {"message": f"no luck with {SECRET}", "type": "error", "code": None}}
    return Response(json.dumps(body), status=status, content_type="application/json")


class Service:
    """A chat completions service; `bodies` are the requests it got."""

    def __init__(self, server: HTTPServer, one_authority: str | None) -> None:
        self.answer: Answer = said
        self.bodies: list[dict[str, Any]] = []
        self.released = Event()
        self._lock = Lock()
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._handle)
        client = openai.OpenAI(base_url=server.url_for("/v1"), api_key=SECRET, max_retries=0)
        self.model: LanguageModel = as_language_model(client, Settings())

    def _handle(self, request: Request) -> Response:
        body = json.loads(request.data)
        with self._lock:
            self.bodies.append(body)
        return self.answer(body)


@pytest.fixture
def service(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> Iterator[Service]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)
    made = Service(httpserver, one_authority)
    yield made
    made.released.set()


def test_questions_are_asked_for_and_checked_in_two_small_calls_each(service: Service) -> None:
    result = generate(bridges(6), service.model, count=4)
    assert len(result.dataset.questions) == 4
    assert len(service.bodies) == 8
    assert result.cost_usd == pytest.approx(8 * (100 * 0.10 + 20 * 0.50) / 1e6)
    for body in service.bodies:
        schema = body["response_format"]["json_schema"]["schema"]
        assert set(schema["required"]) in ({"question", "answer"}, {"quote", "answers"})
        assert "Bridge" not in body["messages"][0]["content"]


def test_calls_that_fail_now_and_then_cost_their_passages_alone(service: Service) -> None:
    def moody(body: dict[str, Any]) -> Response:
        return failed(500) if len(service.bodies) % 4 == 0 else said(body)

    service.answer = moody
    result = generate(bridges(24), service.model, count=4, concurrency=1)
    assert len(result.dataset.questions) == 4
    assert result.dropped == {"unavailable": result.asked - 4}


def test_a_refused_key_is_said_at_once_and_without_the_key(service: Service) -> None:
    service.answer = lambda body: failed(401)
    with pytest.raises(ModelError) as caught:
        generate(bridges(24), service.model, count=20, concurrency=2)
    assert caught.value.reason == "unauthorized"
    assert SECRET not in str(caught.value)
    assert len(service.bodies) == 2


def test_a_service_that_never_answers_is_given_up(service: Service) -> None:
    def silent(body: dict[str, Any]) -> Response:
        service.released.wait(20)
        return failed(500)

    service.answer = silent
    with pytest.raises(ModelError) as caught:
        generate(bridges(24), service.model, count=20, timeout=0.2)
    assert caught.value.reason == "timeout"
