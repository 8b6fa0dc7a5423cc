"""Read a model's reply piece by piece, in a separate thread or task.

The caller never waits beyond the deadline, even if the model hangs. The pieces are read ahead, so
a slow caller does not use up the model's time.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing, suppress
from contextvars import Context
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError, convert_to_model_error
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.runtime.services import Services
from qtmiddleware.runtime.threads import Bulkhead, copy_context_with_bulkhead
from qtmiddleware.types import NEVER, Deadline

Piece = str | Reply
_Item = tuple[Piece | None, BaseException | None]

_END: Final[_Item] = (None, None)
# How many seconds a cancelled task may take to release its connection.
_DRAIN_SECONDS: Final = 0.05
# How many seconds to wait for the final `Reply` with the costs, once a first `Reply` has come.
_ACCOUNT_SECONDS: Final = 5.0


async def stream_reply(
    model: StreamingModel, prompt: Prompt, deadline: Deadline, services: Services
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of *model*'s reply and then the whole reply as a `Reply`.

    After the whole reply, a model may yield a second `Reply` with the costs; this function waits
    for it at most 5 seconds. Closing this generator stops the model at its next piece.

    Raises:
        ModelError: The model failed or was late, or no thread is free.
    """
    bulkhead, observation = services.performer.bulkhead, services.observe_model(prompt, model)
    # An observer may set context variables, such as the current span. The caller must not see them,
    # because the caller may close the stream late, in another context, or never.
    context = copy_context_with_bulkhead(bulkhead)
    context.run(observation.__enter__)
    with observation:
        reading: _Reading | _TaskReading = (
            _TaskReading(model, prompt, deadline, context, bulkhead)
            if services.io.has_loop
            else _Reading(model, prompt, deadline, context, bulkhead)
        )
        piece: Piece | None = None
        try:
            while True:
                seconds = deadline.remaining()
                if isinstance(piece, Reply):
                    seconds = min(seconds, _ACCOUNT_SECONDS)
                try:
                    piece, error = await reading.get(None if seconds == NEVER else seconds)
                except (queue.Empty, TimeoutError):
                    # The reply may be complete, and only its costs are missing.
                    if isinstance(piece, Reply):
                        return
                    raise convert_to_model_error(None) from None
                if error is not None:
                    raise convert_to_model_error(error) if isinstance(error, Exception) else error
                if piece is None:
                    return
                yield observation.keep_result(piece)
        finally:
            deadline.cancel()
            await reading.close()


class _Reading:
    """A thread that reads the reply for a blocking caller."""

    def __init__(
        self, model: Any, prompt: Prompt, deadline: Deadline, context: Context, bulkhead: Bulkhead
    ) -> None:
        self._bulkhead, self._is_over = bulkhead, False
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        put = self._items.put
        bulkhead.start(partial(context.run, _read_pieces, model, prompt, deadline, put))

    async def get(self, seconds: float | None) -> _Item:
        item = self._items.get(timeout=seconds)
        self._is_over = item[0] is None
        return item

    async def close(self) -> None:
        self._bulkhead.record_abandoned_calls(not self._is_over)


class _TaskReading:
    """A task that reads the reply, or a thread if the model cannot be awaited."""

    def __init__(
        self, model: Any, prompt: Prompt, deadline: Deadline, context: Context, bulkhead: Bulkhead
    ) -> None:
        self._items: asyncio.Queue[_Item] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()

        def put(item: _Item) -> None:
            # If the loop was closed in the meantime, nobody reads any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._items.put_nowait, item)

        if getattr(model, "can_async", True):
            reading = _aread_pieces(model, prompt, deadline, self._items.put_nowait)
            self._task = context.run(loop.create_task, reading)
        else:
            bulkhead.start(partial(context.run, _read_pieces, model, prompt, deadline, put))

    async def get(self, seconds: float | None) -> _Item:
        async with asyncio.timeout(seconds):
            return await self._items.get()

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            # The wait is short, because a task that ignores its cancellation may never end.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_DRAIN_SECONDS)


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
