"""Stream an answer in pieces as the model writes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Self

from qtmiddleware.answering.flow import AnswerFlow
from qtmiddleware.runtime.io import IO, Bulkhead, Threads, drive, make_async_io
from qtmiddleware.runtime.services import Performer, Services
from qtmiddleware.types import Answer, Retrieval


class AnswerStream:
    """An answer in pieces. Iterate over the pieces, then read the whole answer from `answer`.

    `Wrapped.stream_answer` returns a stream for ``for`` and ``with``, and searches at once. Use the
    stream of `Wrapped.astream_answer` with ``async for`` and ``async with``; it searches when you
    enter it or iterate over it.

    If you may stop early, use the stream in a ``with`` block or close it, so that the model stops
    too. If the model gives no answer, the iteration raises `ModelError`. The error's ``retrieval``
    holds the passages found.
    """

    def __init__(self, flow: AnswerFlow, performer: Performer, *, is_async: bool) -> None:
        self._retrieval: Retrieval | None = None
        self._answer: Answer | None = None
        self._pieces = self._iterate(flow, performer, make_async_io if is_async else Threads)
        if not is_async:
            drive(self._pieces.asend(None))

    async def _iterate(
        self, flow: AnswerFlow, performer: Performer, make_io: Callable[[Bulkhead], IO]
    ) -> AsyncGenerator[str, None]:
        """Yield an empty piece once there are passages, and then the pieces of the answer."""
        # Tasks belong to the event loop that runs when they begin.
        services = Services(make_io(performer.bulkhead), performer)
        async with aclosing(flow.stream(services)) as events:
            async for event in events:
                if isinstance(event, Retrieval):
                    self._retrieval = event
                    yield ""
                elif isinstance(event, Answer):
                    self._answer = event
                else:
                    yield event

    @property
    def retrieval(self) -> Retrieval:
        """The retrieval for the question.

        An asynchronous stream raises `RuntimeError` before you enter it or iterate over it.
        """
        if self._retrieval is None:
            raise RuntimeError("the retrieval is ready only after the stream has been entered")
        return self._retrieval

    @property
    def answer(self) -> Answer:
        """The whole answer, available at the end of the stream.

        Reading this property earlier raises `RuntimeError`.
        """
        if self._answer is None:
            raise RuntimeError("the answer is ready only after the stream has been read to its end")
        return self._answer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return drive(self._pieces.asend(None))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Stop the model and drop unread pieces. You may close a stream more than once."""
        drive(self._pieces.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        # The first piece is empty, unless the stream was entered before.
        return await anext(self._pieces) or await anext(self._pieces)

    async def aclose(self) -> None:
        """Stop the model and drop unread pieces. This is the async version of `close`."""
        await self._pieces.aclose()

    async def __aenter__(self) -> Self:
        await anext(self._pieces)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
