"""Stream an answer in pieces as the model writes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Self

from qtmiddleware.answering.flow import AnswerFlow
from qtmiddleware.runtime.io import IO, Threads, drive, make_async_io
from qtmiddleware.runtime.services import Performer, Services
from qtmiddleware.runtime.threads import Bulkhead
from qtmiddleware.types import Answer, Retrieval


class _Stream:
    """An answer in pieces, whose flow is made of what `_io` does."""

    _io: Callable[[Bulkhead], IO]

    def __init__(self, flow: AnswerFlow, performer: Performer) -> None:
        self._flow = flow
        self._performer = performer
        self._shown: list[str] = []
        self._pieces = self._iterate()

    def _make_services(self) -> Services:
        # Tasks belong to the event loop that runs when they begin.
        return Services(self._io(self._performer.bulkhead), self._performer)

    async def _iterate(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._flow.stream(self._make_services())) as pieces:
            async for piece in pieces:
                self._shown.append(piece)
                yield piece

    @property
    def answer(self) -> Answer:
        """The whole answer, available at the end of the stream.

        Reading this property earlier raises `RuntimeError`.
        """
        if self._flow.result is None:
            raise RuntimeError("the answer is ready only after the stream has been read to its end")
        return self._flow.result

    @property
    def shown(self) -> str:
        """All pieces so far, joined into one text.

        At the end of the stream, this is the answer's text, with one exception: if the model fails
        while it combines sub-answers, the answer is one of the sub-answers.
        """
        return "".join(self._shown)

    async def _close(self) -> None:
        await self._pieces.aclose()
        self._flow.abandon()


class AnswerStream(_Stream):
    """An answer in pieces. Iterate over the pieces, then read the whole answer from `answer`.

    The passages are available from the beginning, in `retrieval`. If you may stop early, use the
    stream in a ``with`` block or call `close`, so that the model stops too. If the model gives no
    answer, the iteration raises `ModelError`. The error's ``retrieval`` holds the passages found.
    """

    _io = Threads

    def __init__(self, flow: AnswerFlow, performer: Performer) -> None:
        super().__init__(flow, performer)
        self._retrieval = drive(flow.retrieve(self._make_services()))

    @property
    def retrieval(self) -> Retrieval:
        """The retrieval that found the passages for the question."""
        return self._flow.retrieval or self._retrieval

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return drive(self._pieces.asend(None))
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Stop the model and drop unread pieces. You may close a stream more than once."""
        drive(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(_Stream):
    """`AnswerStream` for asynchronous code: use ``async for`` and ``async with``.

    The stream calls the function and the model only when you enter it or iterate over it.
    """

    _io = staticmethod(make_async_io)

    @property
    def retrieval(self) -> Retrieval | None:
        """The retrieval for the question; ``None`` before you enter or iterate the stream."""
        return self._flow.retrieval

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Stop the model and drop unread pieces. You may close a stream more than once."""
        await self._close()

    async def __aenter__(self) -> Self:
        await self._flow.retrieve(self._make_services())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
