"""Answer one question: retrieve passages, ask the model, and read its reply.

    retrieve ─┬─ plain: passages ───────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: retrieve × n ─ ask × n ─ read × n ──┘

In a synthesis, the model answers each sub-query from the passages of that sub-query's search. The
last model call writes the answer, which is read whole or in pieces.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.answering.prompts import (
    PromptMode,
    PromptPassages,
    build_prompt,
    select_passages,
)
from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError, convert_to_model_error
from qtmiddleware.preprocessing import detect_language
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.flow import retrieve
from qtmiddleware.retrieval.transform_stage import record_cost
from qtmiddleware.runtime.io import Outcome
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import Piece, Services, stream_reply
from qtmiddleware.types import Answer, Deadline, Degradation, Retrieval, SubAnswer, Trace

_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})
_NO_PASSAGES: Final = PromptPassages()
_NO_TEXT: Final = AnswerReader(())

logger: Final = get_logger("qtmiddleware")


@dataclass(slots=True)
class _Part:
    """A sub-query, the passages that its search found, and the model's reply.

    *reason* says why there is no answer.
    """

    question: str
    passages: PromptPassages = _NO_PASSAGES
    reply: str = ""
    reason: str = "no_passages"

    def read(self, offset: int = 0) -> SubAnswer:
        """Return the answer, with *offset* added to the numbers of its citations."""
        reader = AnswerReader(self.passages.matches, offset)
        reader.feed(self.reply, is_last=True)
        return SubAnswer(
            self.question,
            reader.text,
            tuple(reader.citations),
            matches=self.passages.matches,
            found=not self.reason,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True)
class _Draft:
    """The model call that writes an answer, and what the answer may cite.

    In a synthesis, *sub_answers* are the answers to combine. Their citations refer to *passages*.
    """

    prompt: Prompt
    passages: PromptPassages
    sub_answers: tuple[SubAnswer, ...] = ()


class AnswerFlow:
    """Answers one question.

    Args:
        call: The question, its settings and the state of the function.
        chat: The model that writes the answer.
        finish_retrieval: Takes the retrieval when the trace is complete, and returns the retrieval
            for the answer.
    """

    def __init__(
        self,
        call: Call,
        chat: StreamingModel,
        finish_retrieval: Callable[[Retrieval], Retrieval],
    ) -> None:
        settings = call.settings
        self._is_synthesis = settings.answer.mode == "synthesis"
        if self._is_synthesis:
            settings = _add_sub_queries(settings)
        self._settings = settings
        self._observation = call.observation.make_child("answer", content=call.original)
        self._call = replace(
            call,
            settings=settings,
            observation=self._observation,
            has_parts=self._is_synthesis,
        )
        self._chat = chat
        self._finish_retrieval = finish_retrieval
        self._degradations: list[Degradation] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()
        self._first_error: ModelError | None = None

    async def answer(self, services: Services) -> Answer:
        """Return the whole answer, without streaming.

        Raises `ModelError` if the model gives no answer. Exceptions from the wrapped function pass
        through.
        """
        async for event in self.stream(services, is_whole=True):
            if isinstance(event, Answer):
                answer = event
        return answer

    async def stream(
        self, services: Services, *, is_whole: bool = False
    ) -> AsyncGenerator[Retrieval | str | Answer, None]:
        """Yield the retrieval, then the pieces of the answer that can be shown, then the answer.

        If *is_whole*, the model replies at once.
        """
        with self._observation as observation:
            retrieval = await retrieve(self._call, services)
            services = services.within(observation, self._settings.limits.max_concurrency)
            draft: _Draft | None = None
            was_shown = False
            try:
                yield retrieval
                draft = await self._draft(retrieval, services)
                if draft is None:
                    answer = self._build_answer(retrieval)
                else:
                    reader = AnswerReader(draft.passages.matches)
                    reply = self._read_reply(draft.prompt, reader, services, is_whole=is_whole)
                    async with aclosing(reply) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Outcome):
                                outcome = piece
                            else:
                                was_shown = True
                                yield piece
                    answer = self._read_answer(draft, outcome, reader, retrieval)
            except BaseException as error:
                # The caller closed the stream, or cancelled the call.
                if not isinstance(error, Exception):
                    trace = retrieval.trace
                    if draft is not None:
                        # Nobody knows what the model call cost.
                        trace.record_usage(calls=1, input_tokens=0, output_tokens=0, cost_usd=None)
                    trace.record_stage("answer", 0.0, "skipped", "closed")
                    self._complete(retrieval)
                raise
            observation.keep_result(answer)
        if not was_shown:
            yield answer.text
        yield answer

    async def _read_reply(
        self, prompt: Prompt, reader: AnswerReader, services: Services, *, is_whole: bool
    ) -> AsyncGenerator[str | Outcome[Reply], None]:
        """Yield what *reader* shows of the model's reply, then the outcome of the model call."""
        ask = self._ask_whole if is_whole else partial(stream_reply, self._chat)
        deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
        outcome = Outcome(Reply(""), began=perf_counter())
        has_text = False
        try:
            async with aclosing(ask(prompt, deadline, services)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        text = piece
                    else:
                        outcome.value = piece
                        # A model that cannot stream sends all of its text at once.
                        text = "" if has_text else piece.text
                    has_text = True
                    if shown := reader.feed(text):
                        yield shown
            if shown := reader.finish():
                yield shown
        except ModelError as error:
            outcome.error = error
        outcome.seconds = perf_counter() - outcome.began
        yield outcome

    async def _ask_whole(
        self, prompt: Prompt, deadline: Deadline, services: Services
    ) -> AsyncGenerator[Piece, None]:
        work = partial(services.ask, prompt, deadline, self._chat)
        (outcome,) = await services.io.gather([work], deadline, 1)
        if not outcome.has_succeeded:
            raise convert_to_model_error(outcome.error)
        yield outcome.get()

    async def _draft(self, retrieval: Retrieval, services: Services) -> _Draft | None:
        """Return the model call that writes the answer; ``None`` if nothing is known to answer."""
        settings = self._settings
        if retrieval.is_unsure and settings.answer.if_unsure == "decline":
            return None
        if self._is_synthesis and (draft := await self._draft_synthesis(retrieval, services)):
            return draft
        passages = select_passages(retrieval.matches, settings.answer.context_chars)
        if passages.matches:
            return _Draft(self._build_prompt("answer", passages.entries), passages)
        if retrieval.matches:
            self._degrade("passages", "no_text")
        return None

    # --- a synthesis ------------------------------------------------------------------------------

    async def _draft_synthesis(self, retrieval: Retrieval, services: Services) -> _Draft | None:
        """Answer the sub-queries, and return the model call that combines their answers.

        Returns ``None`` if too few sub-queries have an answer.
        """
        settings, trace = self._settings, retrieval.trace
        questions = retrieval.transformation.sub_queries
        if (most_searches := settings.limits.max_searches) is not None:
            questions = questions[: max(0, most_searches - trace.searches)]
        # A single sub-query is only the question in other words.
        if len(questions) < 2:
            return None
        began = perf_counter()
        parts = await self._search_parts(questions, trace, services)
        await self._ask_parts(parts, trace, services)
        trace.record_stage("sub_answers", perf_counter() - began, began=began)
        self._sub_answers = tuple(part.read() for part in parts)
        useful = [part for part in parts if not part.reason]
        if len(useful) < min(settings.fusion.min_successes, len(questions)):
            detail = f"{len(useful)} of {len(questions)} sub-queries got an answer"
            self._degrade("sub_answers", "too_few_successes", detail)
            return None
        answers: list[SubAnswer] = []
        passages = _NO_PASSAGES
        for part in useful:
            # The citations of all parts are numbered through.
            answers.append(part.read(offset=len(passages.matches)))
            passages = PromptPassages(
                passages.matches + part.passages.matches, passages.entries + part.passages.entries
            )
        data = [{"question": answer.question, "answer": answer.text} for answer in answers]
        return _Draft(self._build_prompt("synthesis", data), passages, tuple(answers))

    async def _search_parts(
        self, questions: Sequence[str], trace: Trace, services: Services
    ) -> list[_Part]:
        """Return each of *questions* with the passages found for it; failures are degradations."""
        settings = self._settings
        limits = settings.limits
        if limits.max_searches is not None:
            limits = replace(limits, max_searches=1)
        # The user did not ask for these retrievals, so they call no hook. A sub-query is not
        # transformed again.
        call = replace(
            self._call,
            history=(),
            hooks=(),
            settings=replace(settings, transformation_type="none", limits=limits),
        )
        searches = [
            partial(retrieve, replace(call, original=question), services) for question in questions
        ]
        outcomes = await services.gather(searches, Deadline.after(limits.deadline_ms / 1e3))
        parts = [_Part(question) for question in questions]
        for part, outcome in zip(parts, outcomes, strict=True):
            if outcome.has_succeeded:
                retrieval = outcome.get()
                trace.searches += retrieval.trace.searches
                known = self._degradations
                known.extend(problem for problem in retrieval.degradations if problem not in known)
                matches = retrieval.matches[: settings.fusion.sub_query_top_k]
                part.passages = select_passages(matches, settings.answer.context_chars)
            else:
                trace.searches += 1
                part.reason = "timeout" if outcome.late else "search_failed"
                self._degrade("sub_answers", part.reason, outcome.detail)
        return parts

    async def _ask_parts(self, parts: Sequence[_Part], trace: Trace, services: Services) -> None:
        """Set the model's replies of all *parts* with passages; failures become degradations."""
        parts = [part for part in parts if part.passages.matches]
        deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
        asks = []
        for part in parts:
            entries = part.passages.entries
            prompt = build_prompt("sub_answer", self._settings, part.question, (), entries)
            asks.append(partial(services.ask, prompt, deadline, self._chat))
        outcomes = await services.gather(asks, deadline)
        for part, outcome in zip(parts, outcomes, strict=True):
            reader = AnswerReader(part.passages.matches)
            if outcome.has_succeeded:
                part.reply = outcome.get().text
                reader.feed(part.reply, is_last=True)
            part.reason = "" if reader.is_answered else "no_answer"
            if error := self._record_reply("sub_answer", "sub_answers", outcome, reader, trace):
                self._first_error = self._first_error or error
                self._degrade("sub_answers", error.reason, str(error))
                part.reason = error.reason

    # --- the answer -------------------------------------------------------------------------------

    def _read_answer(
        self, draft: _Draft, outcome: Outcome[Reply], reader: AnswerReader, retrieval: Retrieval
    ) -> Answer:
        """Return the answer that *reader* has read; if the model failed, the best sub-answer."""
        mode = draft.prompt.mode
        error = self._record_reply(mode, mode, outcome, reader, retrieval.trace)
        if error is None:
            return self._build_answer(retrieval, reader, draft.passages, found=reader.is_answered)
        if not draft.sub_answers:
            # The first error of a model call explains the later ones.
            first_error = self._first_error or error
            first_error.retrieval = self._complete(retrieval)
            raise first_error
        self._degrade(mode, error.reason, str(error))
        best = max(
            draft.sub_answers,
            key=lambda part: (len({mark.number for mark in part.citations}), len(part.text)),
        )
        return self._build_answer(retrieval, best, draft.passages, found=True)

    def _record_reply(
        self,
        mode: str,
        stage: str,
        outcome: Outcome[Reply],
        reader: AnswerReader,
        trace: Trace,
    ) -> ModelError | None:
        """Record a model call in *trace*, and flaws of its reply as degradations of *stage*.

        Returns an error if the call failed, or if the model wrote nothing to show.
        """
        began = outcome.began or None
        if not outcome.has_succeeded:
            error = convert_to_model_error(outcome.error)
            # A call that had begun has cost something, but nobody knows how much.
            cost = 0.0 if error.is_free else None
            calls = int(error.was_asked)
            trace.record_usage(calls=calls, input_tokens=0, output_tokens=0, cost_usd=cost)
            trace.record_stage(mode, outcome.seconds, "failed", error.reason, began=began)
            return error
        reply = outcome.get()
        record_cost(trace, reply)
        status = ("degraded", "truncated") if reply.truncated else ("ok", "")
        trace.record_stage(mode, outcome.seconds, *status, began=began)
        # The marker that says that there is no answer is something.
        if reader.is_answered and not reader.text:
            return ModelError("empty", "the language model's answer is empty")
        if reader.invented_count:
            self._degrade("citations", "invented", f"{reader.invented_count} removed")
        if reply.truncated:
            self._degrade(stage, "truncated")
        return None

    def _build_prompt(self, mode: PromptMode, data: Sequence[Mapping[str, Any]]) -> Prompt:
        call = self._call
        return build_prompt(mode, self._settings, call.original, call.history, data)

    def _degrade(self, stage: str, reason: str, detail: str = "") -> None:
        self._degradations.append(Degradation(stage, reason, detail))

    def _complete(self, retrieval: Retrieval) -> Retrieval:
        """Complete the trace of *retrieval*, and return the retrieval for the answer."""
        retrieval.trace.finish()
        return self._finish_retrieval(retrieval)

    def _build_answer(
        self,
        retrieval: Retrieval,
        content: AnswerReader | SubAnswer = _NO_TEXT,
        passages: PromptPassages = _NO_PASSAGES,
        *,
        found: bool = False,
    ) -> Answer:
        """Return the answer; without a text in *content*, one that says that there is none."""
        call = self._call
        retrieval = self._complete(retrieval)
        call.log_degradations(logger, "answer", retrieval.trace, self._degradations)
        degradations = (*retrieval.degradations, *self._degradations)
        return Answer(
            text=content.text or load_lexicon(detect_language(call.original) or "en").no_answer,
            citations=tuple(content.citations),
            matches=passages.matches,
            retrieval=retrieval,
            found=found,
            sub_answers=self._sub_answers,
            status="degraded" if degradations else "full",
            degradations=degradations,
            context=passages.context,
            transformation_type=self._settings.transformation_type,
        )


def _add_sub_queries(settings: Settings) -> Settings:
    """Return *settings* with a transformation that makes sub-queries."""
    kind = settings.transformation_type
    if kind in _DECOMPOSING or "sub_queries" in settings.transform.fields:
        return settings
    return replace(settings, transformation_type="decompose" if kind == "none" else "combined")
