from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from qtmiddleware.deadline import Deadline
from qtmiddleware.errors import ModelError
from qtmiddleware.llms.callable import CallableModel

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
    (echo, True, "echo"),
    (Callable(), True, "Callable"),
    (functools.partial(echo), True, "echo"),
    (Callable().__call__, True, "Callable.__call__"),
    (aecho, False, "aecho"),
    (AsyncCallable(), False, "AsyncCallable"),
    (functools.partial(aecho), False, "aecho"),
]


@pytest.mark.parametrize(("fn", "is_sync", "name"), WAYS)
def test_a_function_is_given_the_messages_and_its_text_is_the_reply(prompt, fn: Any, is_sync: bool, name: str) -> None:
    model = CallableModel(fn)
    assert (model.can_sync, model.can_async, model.name) == (is_sync, not is_sync, name)
    deadline = Deadline.after(SOON)
    reply = model.complete(prompt, deadline) if is_sync else asyncio.run(model.acomplete(prompt, deadline))
    assert reply.text == f"system: {prompt.system} | user: {prompt.user}"
    assert (reply.input_tokens, reply.calls, reply.cost_usd) == (0, 1, None)


@pytest.mark.parametrize(("fn", "is_sync", "name"), WAYS)
def test_the_other_kind_of_call_is_refused(prompt, fn: Any, is_sync: bool, name: str) -> None:
    model = CallableModel(fn)
    with pytest.raises(ModelError) as caught:
        asyncio.run(model.acomplete(prompt, Deadline())) if is_sync else model.complete(prompt, Deadline())
    assert caught.value.reason == "unavailable"


def raising(error: BaseException) -> tuple[Any, Any]:
    def fn(messages: Any) -> str:
        raise error

    async def afn(messages: Any) -> str:
        raise error

    return fn, afn


@pytest.mark.parametrize(
    "error", [ValueError("Jaco sk-secret"), StopIteration(), TimeoutError(), OSError(), IndexError()]
)
def test_whatever_a_function_raises_becomes_unavailable_with_its_cause(prompt, error: Exception) -> None:
    fn, afn = raising(error)
    for call in (
        lambda: CallableModel(fn, name="mine").complete(prompt, Deadline.after(SOON)),
        lambda: asyncio.run(CallableModel(afn, name="mine").acomplete(prompt, Deadline.after(SOON))),
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
    ("value", "reason"), [(None, "unparsable"), ({"a": 1}, "unparsable"), (b"x", "unparsable"), (" ", "empty")]
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


def test_a_coroutine_out_of_a_plain_function_is_closed_and_explained(prompt) -> None:
    with pytest.raises(ModelError, match="async def"):
        CallableModel(lambda messages: aecho(messages)).complete(prompt, Deadline())


async def test_a_slow_coroutine_is_cancelled_at_the_deadline(prompt) -> None:
    cancelled = asyncio.Event()

    async def slow(messages: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    with pytest.raises(ModelError) as caught:
        await CallableModel(slow).acomplete(prompt, Deadline.after(0.05))
    assert caught.value.reason == "timeout"
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
