from __future__ import annotations

import asyncio
import functools
import json
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms.callable import CallableModel
from qtmiddleware.types import Deadline
from tests.support.waiting import with_enough_time

SOON = 30.0


def echo(messages: list[dict[str, str]]) -> str:
    return " | ".join(f"{message['role']}: {message['content']}" for message in messages)


async def aecho(messages: list[dict[str, str]]) -> str:
    await asyncio.sleep(0)
    return echo(messages)


class Callable:
    def __call__(self, messages: list[dict[str, str]]) -> str:
        return echo(messages)


class AsyncCallable:
    async def __call__(self, messages: list[dict[str, str]]) -> str:
        return echo(messages)


WAYS = [
    (echo, "echo"),
    (Callable(), "Callable"),
    (functools.partial(echo), "echo"),
    (Callable().__call__, "Callable.__call__"),
    (aecho, "aecho"),
    (AsyncCallable(), "AsyncCallable"),
    (functools.partial(aecho), "aecho"),
    (lambda messages: aecho(messages), "<lambda>"),
]


@pytest.mark.parametrize(("fn", "name"), WAYS)
def test_a_function_is_given_the_messages_and_its_text_is_the_reply(
    ask, prompt, fn: Any, name: str
) -> None:
    model = CallableModel(fn)
    assert (model.can_async, model.name) == (True, name)
    reply = ask(model, prompt)
    assert reply.text == f"system: {prompt.system} | user: {prompt.user}"
    assert (reply.input_tokens, reply.calls, reply.cost_usd) == (0, 1, None)


def of_messages(model: str, timeout: float = 1.0, *, messages: Any = ()) -> str:
    return f"{model} {echo(messages)}"


def of_a_model_last(messages: Any, model: str) -> str:
    return f"{model} {echo(messages)}"


def of_keywords(**given: Any) -> str:
    return echo(given["messages"])


def of_a_prompt(prompt: str, temperature: float = 0.0) -> str:
    return prompt


def of_a_question(question: str) -> str:
    return question


def of_a_named_prompt(model: str, prompt: Any = None) -> str:
    return f"{model} {prompt}"


def of_a_prompt_of_messages(prompt: list[dict[str, str]]) -> str:
    return echo(prompt)


def of_places(messages: Any, /) -> str:
    return echo(messages)


MESSAGES = "system: {0.system} | user: {0.user}"
TEXT = "{0.system}\n\n{0.user}"
SIGNATURES = [
    (of_messages, f"small {MESSAGES}", "small"),
    (functools.partial(of_messages, model="big"), f"big {MESSAGES}", "big"),
    (functools.partial(of_messages, "big"), f"big {MESSAGES}", "of_messages"),
    (of_a_model_last, f"small {MESSAGES}", "small"),
    (of_keywords, MESSAGES, "of_keywords"),
    (of_places, MESSAGES, "of_places"),
    (of_a_prompt, TEXT, "of_a_prompt"),
    (lambda prompt: prompt, TEXT, "<lambda>"),
    (of_a_question, TEXT, "of_a_question"),
    (of_a_named_prompt, f"small {TEXT}", "small"),
    (of_a_prompt_of_messages, MESSAGES, "of_a_prompt_of_messages"),
    (lambda *given: echo(given[0]), MESSAGES, "<lambda>"),
]


@pytest.mark.parametrize(("fn", "expected", "name"), SIGNATURES)
def test_a_function_is_called_as_its_signature_asks(
    ask, prompt, fn: Any, expected: str, name: str
) -> None:
    model = CallableModel(fn, model="small")
    assert model.name == name
    assert ask(model, prompt).text == expected.format(prompt)


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


def test_a_function_is_awaited_in_the_loop_of_the_caller_and_else_always_in_the_same(
    prompt,
) -> None:
    seen = []

    async def fn(messages: Any) -> str:
        seen.append(asyncio.get_running_loop())
        return "x"

    async def caller(model: CallableModel) -> None:
        await model.acomplete(prompt, Deadline())
        assert seen[-1] is asyncio.get_running_loop()

    for model in (CallableModel(fn), CallableModel(lambda messages: fn(messages))):
        asyncio.run(caller(model))
        model.complete(prompt, Deadline())
    assert seen[1] is seen[3]


def raising(error: BaseException) -> tuple[Any, Any]:
    def fn(messages: Any) -> str:
        raise error

    async def afn(messages: Any) -> str:
        raise error

    return fn, afn


class OwnError(KeyError):
    """One that a library raises on purpose."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Jaco sk-secret"),
        StopIteration(),
        TimeoutError(),
        OSError(),
        OwnError("x"),
        json.JSONDecodeError("Jaco sk-secret", "", 0),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "no text"),
    ],
)
def test_what_a_function_raises_of_others_becomes_unavailable_with_its_cause(
    prompt, error: Exception
) -> None:
    fn, afn = raising(error)
    for call in (
        lambda: CallableModel(fn, name="mine").complete(prompt, Deadline.after(SOON)),
        lambda: asyncio.run(
            CallableModel(afn, name="mine").acomplete(prompt, Deadline.after(SOON))
        ),
    ):
        with pytest.raises(ModelError) as caught:
            call()
        assert caught.value.reason == "unavailable"
        assert caught.value.__cause__ is not None
        assert "secret" not in str(caught.value)


def test_a_model_error_and_an_interrupt_pass_through(prompt) -> None:
    fn, afn = raising(ModelError("rate_limited"))
    with pytest.raises(ModelError) as caught:
        CallableModel(fn).complete(prompt, Deadline())
    assert caught.value.reason == "rate_limited"
    with pytest.raises(ModelError) as caught:
        asyncio.run(CallableModel(afn).acomplete(prompt, Deadline()))
    assert caught.value.reason == "rate_limited"
    with pytest.raises(KeyboardInterrupt):
        CallableModel(raising(KeyboardInterrupt())[0]).complete(prompt, Deadline())


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "unparsable"), ({"a": 1}, "unparsable"), (b"x", "unparsable"), (" ", "empty")],
)
def test_a_result_that_is_no_text_is_told(prompt, value: Any, reason: str) -> None:
    async def afn(messages: Any) -> Any:
        return value

    with pytest.raises(ModelError) as caught:
        CallableModel(lambda messages: value).complete(prompt, Deadline())
    assert caught.value.reason == reason
    with pytest.raises(ModelError) as caught:
        asyncio.run(CallableModel(afn).acomplete(prompt, Deadline()))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "unauthorized"), (429, "rate_limited"), (503, "unavailable")]
)
def test_an_error_with_a_status_says_what_that_stands_for(
    ask, prompt, status: int, reason: str
) -> None:
    error = RuntimeError("Jaco")
    error.status_code, error.response = status, SimpleNamespace(headers={"retry-after": "7"})  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match=str(status)) as caught:
        ask(CallableModel(raising(error)[0]), prompt)
    assert (caught.value.reason, caught.value.retry_after) == (reason, 7.0)


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
            asyncio.run(CallableModel(slow).acomplete(prompt, Deadline.after(seconds)))
        return caught.value

    assert with_enough_time(ask, lambda _: begun.is_set(), seconds=0.05).reason == "timeout"
    assert cancelled.is_set()


async def test_cancellation_passes_through(prompt) -> None:
    started = asyncio.Event()

    async def slow(messages: Any) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    task = asyncio.create_task(CallableModel(slow).acomplete(prompt, Deadline()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(("cancel", "reason"), [(False, "timeout"), (True, "cancelled")])
def test_after_the_deadline_nothing_is_called(prompt, cancel: bool, reason: str) -> None:
    fn, afn = raising(AssertionError("called"))
    deadline = Deadline.after(0)
    if cancel:
        deadline.cancel()
    with pytest.raises(ModelError) as caught:
        CallableModel(fn).complete(prompt, deadline)
    assert caught.value.reason == reason
    with pytest.raises(ModelError) as caught:
        asyncio.run(CallableModel(afn).acomplete(prompt, deadline))
    assert caught.value.reason == reason
