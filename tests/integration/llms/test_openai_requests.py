"""A service that rejects an option is asked without it, once per address and model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms.openai import THINKING_TOKENS, OpenAIModel
from qtmiddleware.types import Deadline
from tests.support.model_server import ModelServer, Said, as_json


def format_of(sent: dict[str, Any]) -> str:
    return sent.get("response_format", {"type": "text"})["type"]


class Provider:
    """Refuses what it does not understand."""

    def __init__(self, server: ModelServer, *rules: tuple[Any, int, Any]) -> None:
        self.rules = rules
        self.url = server.url
        self.sent = server.bodies
        server.reply = self.answer

    def answer(self, body: dict[str, Any]) -> Said:
        for refuses, status, said in self.rules:
            if refuses(body):
                return as_json(said, status, {"x-should-retry": "false"})
        return {"rewrite": "Jaco is ill"}

    @property
    def formats(self) -> list[str]:
        return [format_of(sent) for sent in self.sent]


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def refuses(option: str, words: str = "", **more: Any) -> tuple[Any, int, Any]:
    """The rule of a service that refuses *option*."""
    return (lambda sent: option in sent), 400, error(words or f"unknown: {option}", **more)


def schema(sent: dict[str, Any]) -> bool:
    return format_of(sent) == "json_schema"


def structured(sent: dict[str, Any]) -> bool:
    return format_of(sent) != "text"


REFUSALS = [
    (400, error("This response_format type is unavailable now")),
    (400, error("no", param="response_format")),
    (400, {"error": "json_schema is not supported"}),
    (400, {"message": "Bad request"}),
    (400, {}),
    (404, error("No endpoints found that support structured outputs")),
    (415, error("response format")),
    (422, {"detail": [{"loc": ["body", "response_format"], "msg": "no", "input": "temperature"}]}),
    (500, error("Unsupported response_format: json_schema")),
    (501, error("structured output is not implemented")),
]


@pytest.mark.parametrize(("status", "body"), REFUSALS)
def test_a_refused_schema_becomes_json_mode_and_is_remembered(
    ask, prompt, model_server: ModelServer, status: int, body: Any
) -> None:
    provider = Provider(model_server, (schema, status, body))
    model = OpenAIModel("m", LlmSettings(base_url=provider.url))
    assert ask(model, prompt).calls == 2
    assert ask(model, prompt).calls == 1
    assert provider.formats == ["json_schema", "json_object", "json_object"]
    assert provider.sent[1]["temperature"] == 0.0
    assert provider.sent[1]["max_tokens"] == 800


def test_what_a_service_takes_is_remembered_by_address_and_model_unless_it_takes_nothing(
    ask, prompt, model_server: ModelServer
) -> None:
    provider = Provider(model_server, (lambda sent: True, 400, error("Bad request")))
    stairs = ["json_schema", "json_object", "text"]

    def formats(name: str) -> list[str]:
        asked = len(provider.sent)
        with suppress(ModelError):
            ask(OpenAIModel(name, LlmSettings(base_url=provider.url)), prompt)
        return provider.formats[asked:]

    assert formats("m") == formats("m") == stairs
    provider.rules = ((structured, 400, error("Bad request")),)
    assert formats("m") == stairs
    assert formats("m") == ["text"]
    assert formats("another") == stairs


@pytest.mark.parametrize("option", ["temperature", "max_tokens"])
def test_an_option_that_is_refused_by_its_name_is_left_out_and_remembered(
    ask, prompt, model_server: ModelServer, option: str
) -> None:
    rule = refuses(option, "Unsupported", param=option, code="unsupported_parameter")
    provider = Provider(model_server, rule)
    model = OpenAIModel("m", LlmSettings(base_url=provider.url))
    assert [ask(model, prompt).calls for _ in range(2)] == [2, 1]
    assert provider.formats == ["json_schema"] * 3


def test_an_option_that_only_the_message_names_is_left_out(
    prompt, model_server: ModelServer
) -> None:
    provider = Provider(model_server, refuses("stream_options"))
    model = OpenAIModel("m", LlmSettings(base_url=provider.url))
    plain = replace(prompt, fields=())
    for calls in (2, 1):
        *_, reply = model.stream(plain, Deadline.after(60))
        assert reply.calls == calls


def test_another_refusal_is_an_error_that_names_the_option(
    ask, prompt, model_server: ModelServer
) -> None:
    provider = Provider(model_server, refuses("messages", "no", param="messages"))
    with pytest.raises(ModelError, match="param messages") as caught:
        ask(OpenAIModel("m", LlmSettings(base_url=provider.url)), prompt)
    assert (caught.value.reason, len(provider.sent)) == ("rejected", 1)


EFFORTS = [
    ("gpt-6-luna", "none"),
    ("openai/gpt-6-luna", "none"),
    ("gpt-5.6-terra", "none"),
    ("gpt-10", "none"),
    ("gpt-6-astra", "low"),
    ("gpt-5-mini-2025-08-07", "minimal"),
    ("o3-mini", "low"),
    ("gpt-4o-mini", None),
    ("gpt-4.1", None),
    ("gpt-oss-120b", None),
    ("llama3.1:8b", None),
    ("olmo-2", None),
]


@pytest.mark.parametrize(("name", "effort"), EFFORTS)
def test_a_model_that_reasons_is_asked_for_the_least_it_takes_and_no_other_for_any(
    ask, prompt, model_server: ModelServer, name: str, effort: str | None
) -> None:
    provider = Provider(model_server)
    ask(OpenAIModel(name, LlmSettings(base_url=provider.url)), prompt)
    (sent,) = provider.sent
    assert sent.get("reasoning_effort") == effort
    limit = "max_tokens" if effort is None else "max_completion_tokens"
    assert {"max_tokens", "max_completion_tokens"} & sent.keys() == {limit}
    # One that thinks all the same is left room for that, and takes no temperature.
    thinks = effort not in (None, "none")
    assert sent[limit] == 800 + (THINKING_TOKENS if thinks else 0)
    assert ("temperature" in sent) is not thinks
