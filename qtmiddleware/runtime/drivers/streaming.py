"""A model's reply, piece by piece, from a thread or a task of its own.

The reader never waits beyond the deadline, whatever the model does, and may read as slowly as it
likes: the model's time is not spent with waiting for it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing, suppress
from contextvars import Context
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError, as_model_error
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.runtime.threads import Bulkhead, context_within
from qtmiddleware.types import NEVER, Deadline

Piece = str | Reply
_Item = tuple[Piece | None, BaseException | None]

_END: Final[_Item] = (None, None)
# How long a task that was cancelled may take to let go of its connection.
_DRAIN_SECONDS: Final = 0.05
# How long what an answer cost is waited for once the answer itself has ended.
_ACCOUNT_SECONDS: Final = 5.0


def stream(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    observation: Observation = NOT_OBSERVED,
) -> Generator[Piece, None, None]:
    """The pieces of *model*'s reply, read in a thread of *bulkhead*, and, last, the whole; raises `ModelError`.

    Where *model* gives the whole twice the later one counts, which is not waited for long. Closing
    this lets the model stop with its next piece. *observation* is the operation of the call.
    """
    items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    context = _enter(observation, bulkhead)
    with observation:
        _start_reading(model, prompt, deadline, bulkhead, context, items.put)
        piece: Piece | None = None
        is_over = False
        try:
            while True:
                left = _seconds_left(deadline, piece)
                try:
                    piece, error = items.get(timeout=None if left == NEVER else left)
                except queue.Empty:
                    if isinstance(piece, Reply):
                        return
                    raise as_model_error(None) from None
                is_over = piece is None
                if error is not None:
                    raise _as_raised(error)
                if piece is None:
                    return
                yield observation.keep(piece)
        finally:
            deadline.cancel()
            bulkhead.give_up(not is_over)


async def astream(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    observation: Observation = NOT_OBSERVED,
) -> AsyncGenerator[Piece, None]:
    """`stream` without blocking the running loop."""
    items: asyncio.Queue[_Item] = asyncio.Queue()
    context = _enter(observation, bulkhead)
    with observation:
        task = None
        if getattr(model, "can_async", True):
            reading = _aread(model, prompt, deadline, items.put_nowait)
            task = context.run(asyncio.create_task, reading)
        else:
            loop = asyncio.get_running_loop()

            def put(item: _Item) -> None:
                # A loop that was closed in the meantime has nobody left who reads.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(items.put_nowait, item)

            _start_reading(model, prompt, deadline, bulkhead, context, put)
        piece: Piece | None = None
        try:
            while True:
                left = _seconds_left(deadline, piece)
                try:
                    async with asyncio.timeout(None if left == NEVER else left):
                        piece, error = await items.get()
                except TimeoutError:
                    if isinstance(piece, Reply):
                        return
                    raise as_model_error(None) from None
                if error is not None:
                    raise _as_raised(error)
                if piece is None:
                    return
                yield observation.keep(piece)
        finally:
            deadline.cancel()
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait((task,), timeout=_DRAIN_SECONDS)


def _seconds_left(deadline: Deadline, last: Piece | None) -> float:
    """The seconds that the piece after *last* may take."""
    left = deadline.remaining()
    return min(left, _ACCOUNT_SECONDS) if isinstance(last, Reply) else left


def _enter(observation: Observation, bulkhead: Bulkhead) -> Context:
    """Begin *observation* in the context in which the model is read, which is returned.

    What an observer sets there, as a current span, is not the reader's: who may close this
    elsewhere, late or never.
    """
    context = context_within(bulkhead)
    context.run(observation.__enter__)
    return context


def _start_reading(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    context: Context,
    put: Callable[[_Item], None],
) -> None:
    bulkhead.start(partial(context.run, _read, model, prompt, deadline, put))


def _read(model: Any, prompt: Prompt, deadline: Deadline, put: Callable[[_Item], None]) -> None:
    try:
        with closing(model.stream(prompt, deadline)) as pieces:
            for piece in pieces:
                put((piece, None))
                if deadline.passed:
                    break
    except BaseException as error:
        # In a thread of ours nobody else would hear of it.
        put((None, error))
    else:
        put(_END)


async def _aread(
    model: Any, prompt: Prompt, deadline: Deadline, put: Callable[[_Item], None]
) -> None:
    try:
        async with aclosing(model.astream(prompt, deadline)) as pieces:
            async for piece in pieces:
                put((piece, None))
    except asyncio.CancelledError:
        # Also where it was not us who cancelled: then somebody still reads.
        put((None, ModelError("cancelled", "the language model call was cancelled")))
        raise
    except Exception as error:
        put((None, error))
    else:
        put(_END)


def _as_raised(error: BaseException) -> BaseException:
    return as_model_error(error) if isinstance(error, Exception) else error
