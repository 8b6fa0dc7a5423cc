"""An answer as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from time import perf_counter
from typing import Self

from qtmiddleware.answering.flow import AnswerFlow, Draft
from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.runtime.drivers import Performer, Piece, arun, astream, run, stream
from qtmiddleware.runtime.steps import Outcome
from qtmiddleware.types import Answer, Retrieval


class _Reply:
    """What came of the last call so far, and what may be shown of it."""

    def __init__(self, draft: Draft) -> None:
        self.reader = AnswerReader(draft.matches)
        self.error: ModelError | None = None
        self._began = perf_counter()
        self._raw: list[str] = []
        self._whole: Reply | None = None

    def feed(self, piece: Piece) -> str:
        """What can be shown once *piece* has come too."""
        if isinstance(piece, str):
            self._raw.append(piece)
            return self.reader.feed(piece)
        self._whole = piece
        # What was shown counts; a model that cannot stream has said it all in its reply.
        return "" if self._raw else self.reader.feed(piece.text)

    def outcome(self) -> Outcome:
        """How the call ended."""
        seconds = perf_counter() - self._began
        if self.error is not None:
            return Outcome(error=self.error, seconds=seconds)
        return Outcome(self._whole or Reply("".join(self._raw)), seconds=seconds)


class _Stream:
    def __init__(self, answering: AnswerFlow, performer: Performer) -> None:
        self._answering = answering
        self._performer = performer
        self._shown: list[str] = []
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer:
        """The whole answer, once the stream has come to its end; raises `RuntimeError` before."""
        if self._answer is None:
            raise RuntimeError("the answer is ready only after the stream has been read to its end")
        return self._answer

    @property
    def shown(self) -> str:
        """The pieces so far as one text.

        It is the answer's text, save where a synthesis broke off after its first words: then the
        answer is another one.
        """
        return "".join(self._shown)

    def _show(self, text: str) -> str:
        self._shown.append(text)
        return text

    def _show_rest(self, answer: Answer) -> str:
        """What is left to show of the finished *answer*."""
        self._answer = answer
        return "" if self._shown else self._show(answer.text)


class AnswerStream(_Stream):
    """The pieces of an answer, to be iterated over; then the whole is its `answer`.

    The passages are there from the beginning, as `retrieval`. Use it in ``with`` or `close` it
    where you may stop early, so that the model stops too. Iterating raises `ModelError`, whose
    ``retrieval`` is what was found.
    """

    def __init__(self, answering: AnswerFlow, performer: Performer) -> None:
        super().__init__(answering, performer)
        self._retrieval = run(answering.retrieve(), performer)
        self._pieces = self._stream()

    @property
    def retrieval(self) -> Retrieval:
        """What was found for the question."""
        return self._answering.retrieval or self._retrieval

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def _stream(self) -> Generator[str, None, None]:
        answering = self._answering
        with answering.observation as observation:
            draft = run(answering.draft(), self._performer)
            if isinstance(draft, Answer):
                answer = observation.keep(draft)
            else:
                reply, deadline, call = (
                    _Reply(draft),
                    answering.start_call(draft),
                    answering.observe_call(draft),
                )
                reading = stream(
                    answering.chat, draft.prompt, deadline, self._performer.bulkhead, call
                )
                try:
                    with closing(reading) as pieces:
                        for piece in pieces:
                            if text := reply.feed(piece):
                                yield self._show(text)
                    if text := reply.reader.end():
                        yield self._show(text)
                except ModelError as error:
                    reply.error = error
                answer = observation.keep(answering.conclude(draft, reply.outcome(), reply.reader))
        if text := self._show_rest(answer):
            yield text

    def close(self) -> None:
        """Let go of the model; what was not read yet is lost. Closing twice does no harm."""
        self._pieces.close()
        self._answering.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(_Stream):
    """`AnswerStream` for a running loop: ``async for`` and ``async with``. It begins with the first of them."""

    def __init__(self, answering: AnswerFlow, performer: Performer) -> None:
        super().__init__(answering, performer)
        self._pieces = self._stream()

    @property
    def retrieval(self) -> Retrieval | None:
        """What was found for the question; ``None`` before it was searched for, which ``async with`` does."""
        return self._answering.retrieval

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def _retrieve(self) -> None:
        if self._answering.retrieval is None:
            await arun(self._answering.retrieve(), self._performer)

    async def _stream(self) -> AsyncGenerator[str, None]:
        answering = self._answering
        with answering.observation as observation:
            await self._retrieve()
            draft = await arun(answering.draft(), self._performer)
            if isinstance(draft, Answer):
                answer = observation.keep(draft)
            else:
                reply, deadline, call = (
                    _Reply(draft),
                    answering.start_call(draft),
                    answering.observe_call(draft),
                )
                reading = astream(
                    answering.chat, draft.prompt, deadline, self._performer.bulkhead, call
                )
                try:
                    async with aclosing(reading) as pieces:
                        async for piece in pieces:
                            if text := reply.feed(piece):
                                yield self._show(text)
                    if text := reply.reader.end():
                        yield self._show(text)
                except ModelError as error:
                    reply.error = error
                answer = observation.keep(answering.conclude(draft, reply.outcome(), reply.reader))
        if text := self._show_rest(answer):
            yield text

    async def aclose(self) -> None:
        """Let go of the model; what was not read yet is lost. Closing twice does no harm."""
        await self._pieces.aclose()
        self._answering.abandon()

    async def __aenter__(self) -> Self:
        await self._retrieve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
