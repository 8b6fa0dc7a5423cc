"""A governed model tells breaker and meter how each call ended, whichever way that was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from qtmiddleware.config.settings import BudgetSettings, LimitSettings, LlmSettings, Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.spending import Meter
from qtmiddleware.types import Deadline
from tests.support.clock import Clock

PROMPT = Prompt("rewrite", "1", "system", "user", (), "user")
REPLY = Reply("fine", input_tokens=10, output_tokens=5)
LIMITED = BudgetSettings(max_tokens=10**6)


class Scripted:
    """Gives or raises what it is told to, piece by piece where it streams."""

    name = "scripted"

    def __init__(self, *said: Any) -> None:
        self.said = said
        self.asked = 0

    def complete(self, prompt: Prompt, deadline: Deadline) -> Any:
        return list(self.stream(prompt, deadline))[-1]

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Any:
        return self.complete(prompt, deadline)

    def stream(self, _prompt: Prompt, _deadline: Deadline) -> Iterator[Any]:
        self.asked += 1
        for piece in self.said:
            if isinstance(piece, BaseException):
                raise piece
            yield piece

    async def astream(self, prompt: Prompt, deadline: Deadline) -> AsyncIterator[Any]:
        for piece in self.stream(prompt, deadline):
            await asyncio.sleep(0)
            yield piece


class Governed:
    """One call of a governed model, which failed calls would close at once."""

    def __init__(self, *said: Any, granted_ms: int = 5_000) -> None:
        self.inner = Scripted(*said)
        self.breaker = Breaker(1, 30)
        self.meter = Meter()
        limits = LimitSettings(llm_timeout_ms=granted_ms)
        settings = Settings(budget=LIMITED, llm=LlmSettings(max_tokens=100), limits=limits)
        self.model = GovernedModel(self.inner, settings, self.breaker, meter=self.meter)

    @property
    def calls(self) -> int:
        return self.meter.spent()[0]

    @property
    def tokens(self) -> int:
        return self.meter.spent()[1]

    @property
    def is_left_alone(self) -> bool:
        return self.breaker.wait_seconds > 0


async def _awaited(model: GovernedModel, deadline: Deadline) -> list[Any]:
    return [piece async for piece in model.astream(PROMPT, deadline)]


WAYS: dict[str, Callable[[GovernedModel, Deadline], Any]] = {
    "complete": lambda model, deadline: model.complete(PROMPT, deadline),
    "acomplete": lambda model, deadline: asyncio.run(model.acomplete(PROMPT, deadline)),
    "stream": lambda model, deadline: list(model.stream(PROMPT, deadline)),
    "astream": lambda model, deadline: asyncio.run(_awaited(model, deadline)),
}
way = pytest.mark.parametrize("way", WAYS)


@way
def test_what_a_reply_says_it_took_is_what_is_counted(way: str) -> None:
    governed = Governed(REPLY)
    WAYS[way](governed.model, Deadline.after(60))
    assert (governed.calls, governed.tokens, governed.is_left_alone) == (1, 15, False)


@way
@pytest.mark.parametrize(
    ("error", "left_alone", "free"),
    [
        (ModelError("unavailable"), True, True),
        (ModelError("rate_limited", retry_after=5), True, True),
        (ModelError("unauthorized"), True, True),
        (ModelError("timeout"), True, False),
        (ModelError("unparsable"), True, False),
        (ModelError("refused"), False, False),
        (ModelError("empty"), False, False),
        (ModelError("too_long"), False, True),
        (ModelError("cancelled"), False, False),
        (ModelError("failed"), False, False),
        (ValueError("a bug"), False, False),
        (RuntimeError("no bug"), True, True),
        (SystemExit(3), False, False),
        (asyncio.CancelledError(), False, False),
    ],
    ids=lambda value: (
        getattr(value, "reason", None)
        or (type(value).__name__ if value not in (True, False) else "")
    ),
)
def test_however_a_call_fails_breaker_and_meter_are_told(
    way: str, error: BaseException, left_alone: bool, free: bool
) -> None:
    governed = Governed(error)
    with pytest.raises(ModelError if isinstance(error, Exception) else type(error)):
        WAYS[way](governed.model, Deadline.after(60))
    assert (governed.calls, governed.is_left_alone, governed.tokens == 0) == (1, left_alone, free)


@way
@pytest.mark.parametrize("said", [5, b"fine", Reply(5), Reply(None)], ids=repr)  # type: ignore[arg-type]
def test_a_reply_that_is_no_text_is_refused(way: str, said: Any) -> None:
    governed = Governed(said, REPLY) if way.endswith("stream") else Governed(said)
    with pytest.raises(ModelError, match="scripted must return text, not ") as caught:
        WAYS[way](governed.model, Deadline.after(60))
    assert caught.value.reason == "unparsable"


@way
@pytest.mark.parametrize("late", [Deadline(1.0), Deadline(0.0)], ids=["timeout", "cancelled"])
def test_a_call_without_any_time_left_is_not_made_and_speaks_against_nobody(
    way: str, late: Deadline, request: pytest.FixtureRequest
) -> None:
    governed = Governed(REPLY)
    with pytest.raises(ModelError) as caught:
        WAYS[way](governed.model, late)
    assert caught.value.reason == request.node.callspec.id.split("-")[0]
    assert (governed.inner.asked, governed.calls, governed.is_left_alone) == (0, 0, False)


@pytest.mark.parametrize("way", ["stream", "astream"])
def test_a_stream_that_breaks_off_is_not_free(way: str) -> None:
    governed = Governed("fi", ModelError("unavailable"))
    with pytest.raises(ModelError):
        WAYS[way](governed.model, Deadline.after(60))
    assert (governed.tokens > 100, governed.is_left_alone) == (True, True)


@way
@pytest.mark.parametrize(
    ("seconds", "left_alone"), [(1, False), (60, True)], ids=["hurry", "enough"]
)
def test_one_who_leaves_it_too_little_time_does_not_speak_against_a_model(
    way: str, seconds: float, left_alone: bool
) -> None:
    governed = Governed(ModelError("timeout"), granted_ms=5_000)
    with pytest.raises(ModelError):
        WAYS[way](governed.model, Deadline.after(seconds))
    assert governed.is_left_alone is left_alone


def test_a_budget_without_room_leaves_the_next_call_to_try(clock: Clock) -> None:
    governed = Governed(REPLY)
    breaker = Breaker(1, 30, clock=clock)
    poor = Settings(budget=BudgetSettings(max_tokens=0))
    model = GovernedModel(governed.inner, poor, breaker, meter=governed.meter)
    attempt = breaker.begin_attempt()
    assert attempt is not None
    attempt.end(has_failed=True)
    clock.now += 31
    for _ in range(2):
        with pytest.raises(ModelError, match=r"budget\.maxTokens"):
            model.complete(PROMPT, Deadline.after(60))


def test_a_character_of_chinese_is_a_token_where_the_reply_tells_of_none() -> None:
    governed = Governed(Reply("fine"))
    prompt = replace(PROMPT, system="", user="猫" * 300, max_tokens=100)
    governed.model.complete(prompt, Deadline.after(60))
    assert governed.tokens == 300 + 100


def test_a_stream_may_be_an_iterator_that_cannot_be_closed() -> None:
    class Pieces:
        def __init__(self) -> None:
            self.left = iter(["fi", REPLY])

        def __aiter__(self) -> Pieces:
            return self

        async def __anext__(self) -> Any:
            for piece in self.left:
                return piece
            raise StopAsyncIteration

    governed = Governed()
    governed.inner.astream = lambda *_: Pieces()  # type: ignore[assignment, method-assign]
    assert asyncio.run(_awaited(governed.model, Deadline.after(60))) == ["fi", REPLY]
