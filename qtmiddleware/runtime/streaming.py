"""Read a model's reply piece by piece, beside its flow.

The caller never waits beyond the deadline, even if the model hangs. The pieces are read ahead, so
a slow caller does not use up the model's time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import convert_to_model_error
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.runtime.io import Outcome, on_abandon
from qtmiddleware.runtime.services import Services
from qtmiddleware.types import Deadline

Piece = str | Reply

# How many seconds to wait for the final `Reply` with the costs, once a first `Reply` has come.
_ACCOUNT_SECONDS: Final = 5.0


async def stream_reply(
    model: StreamingModel, prompt: Prompt, deadline: Deadline, services: Services
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of *model*'s reply and then the whole reply as a `Reply`.

    After the whole reply, a model may yield a second `Reply` with the costs; this function waits
    for it at most 5 seconds. Closing this generator stops the model at its next piece. Under an
    event loop that is not asyncio's, there is one piece: the whole reply.

    Raises:
        ModelError: The model failed or was late, or no thread is free.
    """
    io = services.io
    if not io.can_wait:
        yield await services.ask(prompt, deadline, model)
        return
    mailbox = io.make_mailbox()

    async def read_pieces() -> None:
        # Observed here, because an observer may set context variables, such as the current span.
        # The caller must not see them: it may close the stream late, in another context, or never.
        with services.observe_model(prompt, model) as observation:
            on_abandon(lambda _: deadline.cancel())

            def put(piece: Piece) -> None:
                mailbox.put(observation.keep_result(piece))

            if not io.has_loop or not getattr(model, "can_async", True):
                await io.blocking(partial(_read_in_thread, model, prompt, deadline, put))
                return
            stream: Any = model.astream(prompt, deadline)
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    put(piece)

    async def read() -> None:
        (outcome,) = await io.gather([read_pieces], deadline, 1)
        mailbox.put(outcome)

    reading, patience, has_reply = io.start(read), Deadline(), False
    try:
        while True:
            try:
                item = await mailbox.get(patience)
            except TimeoutError:
                return
            if isinstance(item, Outcome):
                # The reply may be complete, and only its costs are missing.
                if not item.has_succeeded and not (item.late and has_reply):
                    raise convert_to_model_error(item.error)
                return
            yield item
            if isinstance(item, Reply):
                has_reply, patience = True, Deadline.after(_ACCOUNT_SECONDS)
    finally:
        await reading.cancel(in_generator=True)


def _read_in_thread(
    model: Any, prompt: Prompt, deadline: Deadline, put: Callable[[Piece], None]
) -> None:
    with closing(model.stream(prompt, deadline)) as pieces:
        for piece in pieces:
            put(piece)
            if deadline.passed:
                break
