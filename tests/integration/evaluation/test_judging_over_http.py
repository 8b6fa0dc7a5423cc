from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.evaluation.judging import judge
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.providers.llms import as_language_model
from tests.support.judging_world import QUESTIONS, by_length, long, short

SECRET = "sk-verysecret0123456789"


@pytest.fixture
def bodies(httpserver: HTTPServer) -> list[dict[str, Any]]:
    """The requests a service got whose judge goes by the length of answers, and fails for one question."""
    seen: list[dict[str, Any]] = []

    def handle(request: Request) -> Response:
        body = json.loads(request.data)
        seen.append(body)
        user = body["messages"][1]["content"]
        if "number 5" in user:
            return Response('{"error": {"message": "down"}}', status=503, content_type="application/json")
        # In the strict schema every value is a string.
        content = {key: str(value) for key, value in by_length(Prompt("judge", "1", "", user, (), user)).items()}
        message = {"role": "assistant", "content": json.dumps(content)}
        reply = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "gpt-6-luna",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 400, "completion_tokens": 60, "total_tokens": 460},
        }
        return Response(json.dumps(reply), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions", method="POST").respond_with_handler(handle)
    return seen


@pytest.fixture
def model(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> LanguageModel:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)
    client = openai.OpenAI(base_url=httpserver.url_for("/v1"), api_key=SECRET, max_retries=0)
    return as_language_model(client, Settings())


def test_a_real_client_judges_in_both_orders_and_says_what_it_cost(
    bodies: list[dict[str, Any]], model: LanguageModel
) -> None:
    result = judge(short, long, QUESTIONS, model, baseline_name="raw", challenger_name="combined")
    assert (result.wins, result.losses, result.ties, result.failed) == (7, 0, 0, 1)
    assert result.judge == "gpt-6-luna"
    assert len(bodies) == 16
    assert result.cost_usd == pytest.approx(14 * (400 * 0.10 + 60 * 0.50) / 1e6)
    for body in bodies:
        system, user = (message["content"] for message in body["messages"])
        assert "What is number" in user
        assert "What is number" not in system
        required = body["response_format"]["json_schema"]["schema"]["required"]
        assert required[0] == "reason"
        assert required[-1] == "better"


def test_a_refused_key_is_said_without_the_key(httpserver: HTTPServer, model: LanguageModel) -> None:
    httpserver.expect_request("/v1/chat/completions").respond_with_json(
        {"error": {"message": f"bad key {SECRET}"}}, status=401
    )
    with pytest.raises(ModelError) as caught:
        judge(short, long, QUESTIONS, model, baseline_name="raw", challenger_name="combined")
    assert caught.value.reason == "unauthorized"
    assert SECRET not in str(caught.value)
