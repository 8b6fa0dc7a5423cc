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
from qtmiddleware.runtime.io import Mailbox, Outcome, on_abandon
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
    if not services.io.can_wait:
        yield await services.ask(prompt, deadline, model)
        return
    mailbox: Mailbox[Piece | Outcome[None]] = services.io.make_mailbox()

    async def read() -> None:
        work = partial(_read_pieces, model, prompt, deadline, services, mailbox.put)
        (outcome,) = await services.io.gather([work], deadline, 1)
        mailbox.put(outcome)

    reading = services.io.start(read)
    patience = Deadline()
    has_reply = False
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
                has_reply = True
                patience = Deadline.after(_ACCOUNT_SECONDS)
    finally:
        await reading.cancel(in_generator=True)


async def _read_pieces(
    model: Any,
    prompt: Prompt,
    deadline: Deadline,
    services: Services,
    put: Callable[[Piece], None],
) -> None:
    # Observed here, because an observer may set context variables, such as the current span. The
    # caller must not see them: it may close the stream late, in another context, or never.
    with services.observe_model(prompt, model) as observation:
        on_abandon(lambda _: deadline.cancel())

        def put_observed(piece: Piece) -> None:
            put(observation.keep_result(piece))

        if services.io.has_loop and getattr(model, "can_async", True):
            async with aclosing(model.astream(prompt, deadline)) as pieces:
                async for piece in pieces:
                    put_observed(piece)
        else:
            read = partial(_read_in_thread, model, prompt, deadline, put_observed)
            await services.io.blocking(read)


def _read_in_thread(
    model: Any, prompt: Prompt, deadline: Deadline, put: Callable[[Piece], None]
) -> None:
    with closing(model.stream(prompt, deadline)) as pieces:
        for piece in pieces:
            put(piece)
            if deadline.passed:
                break
