"""Read a model's reply piece by piece, in a separate thread or task.

The caller never waits beyond the deadline, even if the model hangs. The pieces are read ahead, so
a slow caller does not use up the model's time.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing, suppress
from contextvars import Context
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError, convert_to_model_error
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.runtime.threads import Bulkhead, copy_context_with_bulkhead
from qtmiddleware.types import NEVER, Deadline

Piece = str | Reply
_Item = tuple[Piece | None, BaseException | None]

_END: Final[_Item] = (None, None)
# How many seconds a cancelled task may take to release its connection.
_DRAIN_SECONDS: Final = 0.05
# How many seconds to wait for the final `Reply` with the costs, once a first `Reply` has come.
_ACCOUNT_SECONDS: Final = 5.0


def stream_reply(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    observation: Observation = NOT_OBSERVED,
) -> Generator[Piece, None, None]:
    """Yield the pieces of *model*'s reply and then the whole reply as a `Reply`.

    A thread of *bulkhead* reads the pieces. After the whole reply, a model may yield a second
    `Reply` with the costs; this function waits for it at most 5 seconds. Closing this generator
    stops the model at its next piece.

    Args:
        model: The language model.
        prompt: The prompt to send.
        deadline: When to stop reading.
        bulkhead: Provides the thread.
        observation: Reports the call to the observers.

    Raises:
        ModelError: The model failed or was late, or no thread is free.
    """
    items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
    context = _start_observation(observation, bulkhead)
    with observation:
        _start_reading(model, prompt, deadline, bulkhead, context, items.put)
        piece: Piece | None = None
        is_over = False
        try:
            while True:
                seconds = _compute_seconds_left(deadline, piece)
                try:
                    piece, error = items.get(timeout=None if seconds == NEVER else seconds)
                except queue.Empty:
                    # The reply is complete; only its costs are missing.
                    if isinstance(piece, Reply):
                        return
                    raise convert_to_model_error(None) from None
                is_over = piece is None
                if error is not None:
                    raise _convert_exception(error)
                if piece is None:
                    return
                yield observation.keep_result(piece)
        finally:
            deadline.cancel()
            bulkhead.record_abandoned_calls(not is_over)


async def astream_reply(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    observation: Observation = NOT_OBSERVED,
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of *model*'s reply and then the whole reply as a `Reply`.

    Like `stream_reply`, but without blocking the running loop.
    """
    items: asyncio.Queue[_Item] = asyncio.Queue()
    context = _start_observation(observation, bulkhead)
    with observation:
        task = None
        if getattr(model, "can_async", True):
            reading = _aread_pieces(model, prompt, deadline, items.put_nowait)
            task = context.run(asyncio.create_task, reading)
        else:
            loop = asyncio.get_running_loop()

            def put_item(item: _Item) -> None:
                # If the loop was closed in the meantime, nobody reads any more.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(items.put_nowait, item)

            _start_reading(model, prompt, deadline, bulkhead, context, put_item)
        piece: Piece | None = None
        try:
            while True:
                seconds = _compute_seconds_left(deadline, piece)
                try:
                    async with asyncio.timeout(None if seconds == NEVER else seconds):
                        piece, error = await items.get()
                except TimeoutError:
                    if isinstance(piece, Reply):
                        return
                    raise convert_to_model_error(None) from None
                if error is not None:
                    raise _convert_exception(error)
                if piece is None:
                    return
                yield observation.keep_result(piece)
        finally:
            deadline.cancel()
            if task is not None and not task.done():
                # The wait is short, because a task that ignores its cancellation may never end.
                task.cancel()
                await asyncio.wait((task,), timeout=_DRAIN_SECONDS)


def _compute_seconds_left(deadline: Deadline, last_piece: Piece | None) -> float:
    """Return how many seconds to wait for the next piece after *last_piece*."""
    seconds = deadline.remaining()
    return min(seconds, _ACCOUNT_SECONDS) if isinstance(last_piece, Reply) else seconds


def _start_observation(observation: Observation, bulkhead: Bulkhead) -> Context:
    """Start *observation* in a new context, and return the context in which to call the model.

    An observer may set context variables, such as the current span. The caller must not see them,
    because the caller may close the stream late, in another context, or never.
    """
    context = copy_context_with_bulkhead(bulkhead)
    context.run(observation.__enter__)
    return context


def _start_reading(
    model: StreamingModel,
    prompt: Prompt,
    deadline: Deadline,
    bulkhead: Bulkhead,
    context: Context,
    put_item: Callable[[_Item], None],
) -> None:
    """Start a thread of *bulkhead* that reads the reply and calls *put_item* for each piece."""
    bulkhead.start(partial(context.run, _read_pieces, model, prompt, deadline, put_item))


def _read_pieces(
    model: Any, prompt: Prompt, deadline: Deadline, put_item: Callable[[_Item], None]
) -> None:
    try:
        with closing(model.stream(prompt, deadline)) as pieces:
            for piece in pieces:
                put_item((piece, None))
                if deadline.passed:
                    break
    except BaseException as error:
        # In this thread nobody else would notice the exception.
        put_item((None, error))
    else:
        put_item(_END)


async def _aread_pieces(
    model: Any, prompt: Prompt, deadline: Deadline, put_item: Callable[[_Item], None]
) -> None:
    try:
        async with aclosing(model.astream(prompt, deadline)) as pieces:
            async for piece in pieces:
                put_item((piece, None))
    except asyncio.CancelledError:
        # If something other than the reader cancelled the task, somebody is still reading.
        put_item((None, ModelError("cancelled", "the language model call was cancelled")))
        raise
    except Exception as error:
        put_item((None, error))
    else:
        put_item(_END)


def _convert_exception(error: BaseException) -> BaseException:
    return convert_to_model_error(error) if isinstance(error, Exception) else error
