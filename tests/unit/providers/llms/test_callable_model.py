"""Any function or object is a model: how it is called, what it may return, and what its errors are called."""

from __future__ import annotations

import asyncio
import functools
import logging
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms.callable import CallableModel
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.providers.llms.replies import read_answer
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.types import Deadline
from tests.support import completions
from tests.support.waiting import with_enough_time


def govern(fn: Any) -> GovernedModel:
    return GovernedModel(CallableModel(fn), Settings(), Breaker(0, 30))


def echo(messages: list[dict[str, str]]) -> str:
    return " | ".join(f"{message['role']}: {message['content']}" for message in messages)


async def aecho(messages: list[dict[str, str]]) -> str:
    await asyncio.sleep(0)
    return echo(messages)


class Callable:
    def __call__(self, messages: list[dict[str, str]]) -> str:
        return echo(messages)


def of_messages(model: str, timeout: float = 1.0, *, messages: Any = ()) -> str:
    return f"{model} {echo(messages)}"


def of_a_prompt(prompt: str, temperature: float = 0.0) -> str:
    return prompt


MESSAGES = "system: {0.system} | user: {0.user}"
TEXT = "{0.system}\n\n{0.user}"
FUNCTIONS = [
    (echo, MESSAGES, "echo"),
    (Callable(), MESSAGES, "Callable"),
    (aecho, MESSAGES, "aecho"),
    (lambda messages: aecho(messages), MESSAGES, "<lambda>"),
    (functools.partial(of_messages, model="big"), f"big {MESSAGES}", "big"),
    (lambda **given: echo(given["messages"]), MESSAGES, "<lambda>"),
    (of_a_prompt, TEXT, "of_a_prompt"),
]


@pytest.mark.parametrize(("fn", "expected", "name"), FUNCTIONS)
def test_a_function_is_called_as_its_signature_asks(
    ask, prompt, fn: Any, expected: str, name: str
) -> None:
    model = CallableModel(fn)
    assert (model.can_async, model.name) == (True, name)
    reply = ask(model, prompt)
    assert reply.text == expected.format(prompt)
    assert (reply.input_tokens, reply.calls, reply.cost_usd) == (0, 1, None)


class ChatModel:
    """Called as the chat models of LangChain are."""

    model_name = "gpt-4o-mini"

    def invoke(self, messages: Any, config: Any = None) -> Any:
        return SimpleNamespace(content=f"invoked {echo(messages)}")

    async def ainvoke(self, messages: Any, config: Any = None) -> Any:
        return SimpleNamespace(content=f"awaited {echo(messages)}")


def test_a_chat_model_is_invoked_by_one_who_blocks_and_awaited_by_one_who_awaits(prompt) -> None:
    model = CallableModel(ChatModel())
    assert model.name == "gpt-4o-mini"
    assert model.complete(prompt, Deadline()).text.startswith("invoked system: ")
    assert asyncio.run(model.acomplete(prompt, Deadline())).text.startswith("awaited system: ")


# --- answers --------------------------------------------------------------------------------------

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
USED = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
COMPLETION = completions.completion("said", usage=USAGE, model="gpt-4o-mini")
AI_MESSAGE = SimpleNamespace(
    id="lc_run--1",
    content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "sa"}, "id"],
    usage_metadata=USED,
    response_metadata={"model_name": "gpt-4o-mini", "finish_reason": "stop", "id": "c"},
)
CHAT_RESPONSE = SimpleNamespace(
    message=SimpleNamespace(content="said"), raw={**COMPLETION, "usage": USAGE}
)
ANSWERS: dict[str, tuple[Any, tuple[int, int]]] = {
    "text": ("said", (0, 0)),
    "chat completion": (ChatCompletion.model_validate(COMPLETION), (3, 4)),
    "message of LangChain": (AI_MESSAGE, (3, 4)),
    "response of LlamaIndex": (CHAT_RESPONSE, (3, 4)),
    "message of Anthropic": (
        {"content": [{"type": "text", "text": "said"}], "usage": USED},
        (3, 4),
    ),
    "response of Google": (SimpleNamespace(text="said"), (0, 0)),
    "response of the Responses API": (SimpleNamespace(output_text="said", usage=USED), (3, 4)),
    "chat of Ollama": ({"message": {"role": "assistant", "content": "said"}}, (0, 0)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_form_of_an_answer_is_read_with_its_tokens(name: str) -> None:
    answer, tokens = ANSWERS[name]
    reply = read_answer(answer, "fn")
    assert reply.text == "said"
    assert (reply.input_tokens, reply.output_tokens) == tokens


@pytest.mark.parametrize("answer", [COMPLETION, AI_MESSAGE, CHAT_RESPONSE])
def test_model_and_id_are_those_of_the_service_and_give_the_cost(prompt, answer: Any) -> None:
    reply = CallableModel(lambda messages: answer).complete(prompt, Deadline())
    assert (reply.model, reply.id) == ("gpt-4o-mini", "c")
    assert reply.cost_usd == pytest.approx((3 * 0.15 + 4 * 0.6) / 1e6)
    priced = CallableModel(lambda messages: answer, LlmSettings(input_price=1.0, output_price=2.0))
    assert priced.complete(prompt, Deadline()).cost_usd == pytest.approx(11 / 1e6)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "unparsable"),
        (" ", "empty"),
        ({"content": "", "stop_reason": "max_tokens"}, "truncated"),
        ({"content": "no", "stop_reason": "refusal"}, "refused"),
        ({"error": {"code": 429}}, "rate_limited"),
        (completions.completion(None, refusal="No."), "refused"),
    ],
)
def test_what_is_no_answer_has_its_reason(ask, prompt, answer: Any, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        ask(CallableModel(lambda messages: answer), prompt)
    assert caught.value.reason == reason


# --- errors ---------------------------------------------------------------------------------------


def raising(error: BaseException) -> Any:
    def fn(messages: Any) -> str:
        raise error

    return fn


class LibraryError(KeyError):
    """One that a library raises on purpose."""


class StatusError(Exception):
    """As those of vendors' clients are."""

    def __init__(self, status: int) -> None:
        super().__init__("Jaco sk-secret")
        self.status_code = status
        self.response = SimpleNamespace(headers={"retry-after": "7"})


ERRORS = [
    (RuntimeError("Jaco sk-secret"), "unavailable"),
    (TimeoutError("Jaco sk-secret"), "timeout"),
    (LibraryError("Jaco sk-secret"), "unavailable"),
    (StatusError(401), "unauthorized"),
    (StatusError(429), "rate_limited"),
    (StatusError(503), "unavailable"),
    (ModelError("rate_limited", "Jaco sk-secret"), "rate_limited"),
    (ModelError("Jaco sk-secret"), "unavailable"),
    (TypeError("Jaco sk-secret"), "failed"),
    (KeyError("Jaco sk-secret"), "failed"),
]


@pytest.mark.parametrize(("error", "reason"), ERRORS)
def test_an_error_of_a_function_has_its_reason_and_none_of_its_words(
    ask, prompt, caplog: pytest.LogCaptureFixture, error: Exception, reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        ask(govern(raising(error)), prompt)
    assert caught.value.reason == reason
    assert caught.value.retry_after == (7.0 if isinstance(error, StatusError) else None)
    assert caught.value.__cause__ is error
    assert "secret" not in f"{caught.value} {caplog.text}"


def test_a_bug_is_logged_once_with_its_place_and_without_its_words(
    prompt, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Any:
        """Takes no messages."""

    def keyed(messages: Any) -> Any:
        return len(api_key="sk-proj-abcdefghijklmnop0123456789")  # type: ignore[call-arg]

    for _ in range(3):
        with pytest.raises(ModelError, match=r"broken raised TypeError; the traceback is in the"):
            govern(broken).complete(prompt, Deadline())
    (record,) = caplog.records
    assert (record.levelno, record.qtm) == (  # type: ignore[attr-defined]
        logging.ERROR,
        {"event": "model_bug", "error": "TypeError"},
    )
    assert "a function gets one argument, the messages" in record.getMessage()
    assert 'callable.py"' in record.getMessage()
    assert prompt.user not in record.getMessage()
    with pytest.raises(ModelError):
        govern(keyed).complete(prompt, Deadline())
    assert "abcdefghijklmnop" not in caplog.text


def test_a_slow_coroutine_is_cancelled_at_the_deadline(prompt) -> None:
    begun, cancelled = Event(), Event()

    async def slow(messages: Any) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    def ask(seconds: float) -> ModelError:
        with pytest.raises(ModelError) as caught:
            govern(slow).complete(prompt, Deadline.after(seconds))
        return caught.value

    assert with_enough_time(ask, lambda _: begun.is_set(), seconds=0.05).reason == "timeout"
    assert cancelled.wait(20)
