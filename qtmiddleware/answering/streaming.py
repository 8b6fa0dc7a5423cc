"""Read a model's reply in pieces, while its reader does something else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from qtmiddleware.errors import convert_to_model_error
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.runtime.concurrency import Mailbox, Outcome, on_abandon
from qtmiddleware.runtime.services import Services, can_await
from qtmiddleware.types import Deadline

Piece = str | Reply


async def stream_reply(
    model: StreamingModel, prompt: Prompt, deadline: Deadline, services: Services
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of *model*'s reply and then the whole reply as a `Reply`.

    The pieces are read beside the flow, so that a slow caller does not use up the model's time, and
    nobody waits beyond the deadline for a model that hangs. Closing this generator stops the model
    at its next piece. Raises `ModelError`.
    """
    mailbox: Mailbox[Piece | Outcome[None]] = services.io.mailbox()

    async def read() -> None:
        work = partial(_read_pieces, model, prompt, deadline, services, mailbox.put)
        (outcome,) = await services.io.gather([work], deadline, 1)
        mailbox.put(outcome)

    reading = services.io.start(read)
    try:
        while not isinstance(item := await mailbox.get(Deadline()), Outcome):
            yield item
        if not item.has_succeeded:
            raise convert_to_model_error(item.error)
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
        if can_await(model, services.io):
            async with aclosing(model.astream(prompt, deadline)) as pieces:
                async for piece in pieces:
                    put(observation.keep_result(piece))
            return

        def read_in_thread() -> None:
            with closing(model.stream(prompt, deadline)) as pieces:
                for piece in pieces:
                    put(observation.keep_result(piece))
                    if deadline.passed:
                        break

        await services.io.blocking(read_in_thread)
