"""Stream an answer in pieces as the model writes it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import perf_counter
from typing import Self

from qtmiddleware.answering.flow import AnswerFlow, Draft
from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.runtime.io import IO, Outcome, Tasks, Threads, drive
from qtmiddleware.runtime.services import Performer, Services
from qtmiddleware.runtime.streaming import Piece, stream_reply
from qtmiddleware.types import Answer, Retrieval


class _StreamedReply:
    """A model's reply that arrives in pieces.

    Attributes:
        reader: returns the text that can be shown.
        error: the error of the model call, or ``None``.
    """

    def __init__(self, draft: Draft) -> None:
        self.reader = AnswerReader(draft.matches)
        self.error: ModelError | None = None
        self._began = perf_counter()
        self._raw: list[str] = []
        self._whole: Reply | None = None

    def feed(self, piece: Piece) -> str:
        """Read the next *piece* of the reply, and return the text that can be shown now."""
        if isinstance(piece, str):
            self._raw.append(piece)
            return self.reader.feed(piece)
        self._whole = piece
        # If pieces came before, they are the text. A model that cannot stream sends all of its text
        # in the reply.
        return "" if self._raw else self.reader.feed(piece.text)

    def build_outcome(self) -> Outcome[Reply]:
        """Return the outcome of the model call: the whole reply, or the error."""
        seconds = perf_counter() - self._began
        if self.error is not None:
            return Outcome(error=self.error, seconds=seconds)
        return Outcome(self._whole or Reply("".join(self._raw)), seconds=seconds)


class _BaseStream:
    """The base class of `AnswerStream` and `AsyncAnswerStream`."""

    def __init__(self, answer_flow: AnswerFlow, performer: Performer) -> None:
        self._answer_flow = answer_flow
        self._performer = performer
        self._shown: list[str] = []
        self._answer: Answer | None = None
        self._pieces = self._iterate_pieces()

    @abstractmethod
    def _make_io(self) -> IO: ...

    @property
    def answer(self) -> Answer:
        """The whole answer, available at the end of the stream.

        Reading this property earlier raises `RuntimeError`.
        """
        if self._answer is None:
            raise RuntimeError("the answer is ready only after the stream has been read to its end")
        return self._answer

    @property
    def shown(self) -> str:
        """All pieces so far, joined into one text.

        At the end of the stream, this is the answer's text, with one exception: if the model fails
        while it combines sub-answers, the answer is one of the sub-answers.
        """
        return "".join(self._shown)

    async def _retrieve_passages(self) -> Retrieval:
        """Return the retrieval for the question, which is made once."""
        flow = self._answer_flow
        services = Services(self._make_io(), self._performer)
        return flow.retrieval or await flow.retrieve_passages(services)

    async def _iterate_pieces(self) -> AsyncGenerator[str, None]:
        """Yield the pieces that can be shown, and store the whole answer at the end."""
        flow = self._answer_flow
        with flow.observation as observation:
            await self._retrieve_passages()
            services = flow.within(Services(self._make_io(), self._performer))
            draft = await flow.build_draft(services)
            if isinstance(draft, Answer):
                answer = draft
            else:
                reply, deadline = _StreamedReply(draft), flow.start_call(draft)
                reading = stream_reply(flow.chat, draft.prompt, deadline, services)
                try:
                    async with aclosing(reading) as pieces:
                        async for piece in pieces:
                            if text := reply.feed(piece):
                                yield self._record_shown_text(text)
                    if text := reply.reader.flush_held_text():
                        yield self._record_shown_text(text)
                except ModelError as error:
                    # `finish_answer` decides whether a sub-answer can replace the failed answer.
                    reply.error = error
                answer = flow.finish_answer(draft, reply.build_outcome(), reply.reader)
            self._answer = observation.keep_result(answer)
        if not self._shown:
            yield self._record_shown_text(answer.text)

    def _record_shown_text(self, text: str) -> str:
        self._shown.append(text)
        return text


class AnswerStream(_BaseStream):
    """An answer in pieces. Iterate over the pieces, then read the whole answer from `answer`.

    The passages are available from the beginning, in `retrieval`. If you may stop early, use the
    stream in a ``with`` block or call `close`, so that the model stops too. If the model gives no
    answer, the iteration raises `ModelError`. The error's ``retrieval`` holds the passages found.
    """

    def __init__(self, answer_flow: AnswerFlow, performer: Performer) -> None:
        super().__init__(answer_flow, performer)
        self._retrieval = drive(self._retrieve_passages())

    def _make_io(self) -> IO:
        return Threads(self._performer.bulkhead)

    @property
    def retrieval(self) -> Retrieval:
        """The retrieval that found the passages for the question."""
        return self._answer_flow.retrieval or self._retrieval

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
        self._answer_flow.abandon_answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncAnswerStream(_BaseStream):
    """`AnswerStream` for asynchronous code: use ``async for`` and ``async with``.

    The stream calls the function and the model only when you enter it or iterate over it.
    """

    def _make_io(self) -> IO:
        return Tasks(self._performer.bulkhead)

    @property
    def retrieval(self) -> Retrieval | None:
        """The retrieval for the question; ``None`` before you enter or iterate the stream."""
        return self._answer_flow.retrieval

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Stop the model and drop unread pieces. You may close a stream more than once."""
        await self._pieces.aclose()
        self._answer_flow.abandon_answer()

    async def __aenter__(self) -> Self:
        await self._retrieve_passages()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
