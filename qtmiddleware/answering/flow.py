"""Answer one question: retrieve passages, ask the model, and read its reply.

    retrieve ─┬─ plain: passages ───────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: retrieve × n ─ ask × n ─ read × n ──┘

In a synthesis, the model answers each sub-query from the passages of that sub-query's search. The
last model call writes the answer, which is read whole or in pieces.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.answering.prompts import (
    ANSWER,
    SUB_ANSWER,
    SYNTHESIS,
    PromptPassages,
    Task,
    select_passages,
)
from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.errors import ModelError, convert_to_model_error
from qtmiddleware.preprocessing import detect_language
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.flow import retrieve
from qtmiddleware.retrieval.question import record_cost
from qtmiddleware.runtime.io import Outcome
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import Services
from qtmiddleware.runtime.streaming import Piece, stream_reply
from qtmiddleware.types import Answer, Deadline, Degradation, Retrieval, SubAnswer, Trace

_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})

_NO_PASSAGES: Final = PromptPassages()

logger: Final = get_logger("qtmiddleware")


@dataclass(slots=True)
class _Part:
    """The answer to a sub-query, and the passages that it is given from."""

    answer: SubAnswer
    passages: PromptPassages = _NO_PASSAGES


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

    Attributes:
        retrieval: The retrieval for the question; ``None`` until it has succeeded.
        result: The answer; ``None`` until it is complete.
    """

    def __init__(
        self,
        call: Call,
        chat: StreamingModel,
        finish_retrieval: Callable[[Retrieval], Retrieval],
    ) -> None:
        self.retrieval: Retrieval | None = None
        self.result: Answer | None = None
        self._observation = call.observation.make_child("answer", content=call.original)
        settings = call.settings
        kind = settings.transformation_type
        self._is_synthesis = settings.answer.mode == "synthesis"
        has_parts = kind in _DECOMPOSING or "sub_queries" in settings.transform.fields
        if self._is_synthesis and not has_parts:
            kind = "decompose" if kind == "none" else "combined"
        self._settings = replace(settings, transformation_type=kind)
        self._call = replace(
            call,
            settings=self._settings,
            observation=self._observation,
            has_parts=self._is_synthesis,
        )
        self._chat = chat
        self._finish_retrieval = finish_retrieval
        self._asked_mode = ""
        self._is_finished = False
        self._degradations: list[Degradation] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()
        self._first_error: ModelError | None = None

    async def answer(self, services: Services) -> Answer:
        """Return the whole answer, without streaming.

        Raises `ModelError` if the model gives no answer. Exceptions from the wrapped function pass
        through.
        """
        async for _ in self.stream(services, is_whole=True):
            pass
        if self.result is None:
            raise RuntimeError("the answer was abandoned")
        return self.result

    async def retrieve(self, services: Services) -> Retrieval:
        """Return the retrieval for the question, which is made once."""
        if self.retrieval is None:
            with ExitStack() as stack:
                stack.enter_context(self._observation)
                self.retrieval = await retrieve(self._call, services)
                # The answer goes on: do not end its observation here.
                stack.pop_all()
        return self.retrieval

    async def stream(
        self, services: Services, *, is_whole: bool = False
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of the answer that can be shown, and set `result` at the end.

        If *is_whole*, the model replies at once.
        """
        with self._observation as observation:
            retrieval = await self.retrieve(services)
            services = services.within(observation, self._settings.limits.max_concurrency)
            draft = await self._draft(retrieval, services)
            was_shown = False
            if draft is None:
                answer = self._build_answer(retrieval)
            else:
                self._asked_mode = draft.prompt.mode
                reader = AnswerReader(draft.passages.matches)
                deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
                outcome = Outcome(Reply(""), began=perf_counter())
                ask = self._ask_whole if is_whole else partial(stream_reply, self._chat)
                has_text = False
                try:
                    async with aclosing(ask(draft.prompt, deadline, services)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Reply):
                                outcome.value = piece
                                # A model that cannot stream sends all of its text at once.
                                text = "" if has_text else piece.text
                            else:
                                text = piece
                            has_text = True
                            if shown := reader.feed(text):
                                was_shown = True
                                yield shown
                except ModelError as error:
                    outcome.error = error
                outcome.seconds = perf_counter() - outcome.began
                if outcome.has_succeeded and (shown := reader.finish()):
                    was_shown = True
                    yield shown
                answer = self._read_answer(draft, outcome, reader, retrieval)
            self.result = observation.keep_result(answer)
        if not was_shown:
            yield answer.text

    def abandon(self) -> None:
        """Record in the trace that the answer was cancelled, and complete the trace."""
        self._observation.end("cancelled")
        if self.retrieval is not None and not self._is_finished:
            trace = self.retrieval.trace
            if self._asked_mode:
                # The model was asked, but nobody knows what the call cost.
                trace.record_usage(calls=1, input_tokens=0, output_tokens=0, cost_usd=None)
            trace.record_stage(self._asked_mode or "answer", 0.0, "skipped", "closed")
            self._complete(self.retrieval)

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
            retrieval.trace.note(
                "answer", "the model was not asked: the passages do not match the question"
            )
            return None
        draft = await self._draft_synthesis(retrieval, services) if self._is_synthesis else None
        if draft is not None:
            return draft
        passages = select_passages(retrieval.matches, settings.answer.context_chars)
        if passages.matches:
            return _Draft(self._build_prompt(ANSWER, passages=passages.entries), passages)
        if retrieval.matches:
            detail = (
                f"{len(retrieval.matches)} matches have no text; set keywordEvidence.fields.text to"
                " the field that holds it"
            )
            self._degrade("passages", "no_text", detail)
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
        calls = map(self._make_part_call, questions)
        searches = [partial(retrieve, call, services) for call in calls]
        deadline = Deadline.after(settings.limits.deadline_ms / 1e3)
        found = await services.gather(searches, deadline)
        parts = [
            self._read_search(question, outcome, trace)
            for question, outcome in zip(questions, found, strict=True)
        ]
        answerable = [part for part in parts if part.passages.matches]
        deadline = Deadline.after(settings.answer.timeout_ms / 1e3)
        asks = [partial(self._ask_part, part, deadline, services) for part in answerable]
        replies = await services.gather(asks, deadline)
        for part, reply in zip(answerable, replies, strict=True):
            self._read_part(part, reply, trace)
        trace.record_stage("sub_answers", perf_counter() - began, began=began)
        self._sub_answers = tuple(part.answer for part in parts)
        # A sub-query without an answer in its passages is not a failure, but it adds nothing.
        useful = [part for part in parts if part.answer.found]
        if len(useful) < min(settings.fusion.min_successes, len(questions)):
            detail = f"{len(useful)} of {len(questions)} sub-queries got an answer"
            self._degrade("sub_answers", "too_few_successes", detail)
            return None
        answers: list[SubAnswer] = []
        passages = _NO_PASSAGES
        for part in useful:
            # The citations of all parts are numbered through.
            reader = AnswerReader(part.passages.matches, offset=len(passages.matches))
            reader.feed(part.answer.text, is_last=True)
            answers.append(
                replace(
                    part.answer,
                    text=reader.text,
                    citations=reader.citations,
                )
            )
            passages = PromptPassages(
                passages.matches + part.passages.matches, passages.entries + part.passages.entries
            )
        data = [{"question": answer.question, "answer": answer.text} for answer in answers]
        return _Draft(
            self._build_prompt(SYNTHESIS, sub_answers=data),
            passages,
            tuple(answers),
        )

    def _make_part_call(self, question: str) -> Call:
        """Return the call that retrieves the passages for a sub-query."""
        limits = self._settings.limits
        if limits.max_searches is not None:
            limits = replace(limits, max_searches=1)
        # The user did not ask for this retrieval, so it calls no hook. A sub-query is not
        # transformed again.
        return replace(
            self._call,
            original=question,
            history=(),
            has_parts=False,
            hooks=(),
            settings=replace(self._settings, transformation_type="none", limits=limits),
        )

    def _read_search(self, question: str, outcome: Outcome[Retrieval], trace: Trace) -> _Part:
        """Return the passages for a sub-query. It has no answer yet."""
        nothing = SubAnswer(question, "", found=False, reason="no_passages")
        if not outcome.has_succeeded:
            trace.searches += 1
            reason = "timeout" if outcome.late else "search_failed"
            self._degrade("sub_answers", reason, outcome.detail)
            return _Part(replace(nothing, reason=reason))
        retrieval = outcome.get()
        trace.searches += retrieval.trace.searches
        known = self._degradations
        known.extend(problem for problem in retrieval.degradations if problem not in known)
        matches = retrieval.matches[: self._settings.fusion.sub_query_top_k]
        return _Part(
            nothing,
            select_passages(matches, self._settings.answer.context_chars),
        )

    async def _ask_part(self, part: _Part, deadline: Deadline, services: Services) -> Reply:
        prompt = SUB_ANSWER.build_prompt(
            self._settings, part.answer.question, (), {"passages": part.passages.entries}
        )
        return await services.ask(prompt, deadline, self._chat)

    def _read_part(self, part: _Part, outcome: Outcome[Reply], trace: Trace) -> None:
        """Set the answer of *part* to the model's reply; failures become degradations."""
        matches = part.passages.matches
        reader = AnswerReader(matches)
        if outcome.has_succeeded:
            reader.feed(outcome.get().text, is_last=True)
        reason = "" if reader.is_answered else "no_answer"
        if error := self._record_reply(
            "sub_answer",
            "sub_answers",
            outcome,
            reader,
            trace,
        ):
            self._first_error = self._first_error or error
            self._degrade("sub_answers", error.reason, str(error))
            reason = error.reason
        part.answer = SubAnswer(
            part.answer.question,
            reader.text,
            reader.citations,
            matches=matches,
            found=not reason,
            reason=reason,
        )

    # --- the answer -------------------------------------------------------------------------------

    def _read_answer(
        self, draft: _Draft, outcome: Outcome[Reply], reader: AnswerReader, retrieval: Retrieval
    ) -> Answer:
        """Return the answer that *reader* has read from the model's reply."""
        mode = draft.prompt.mode
        error = self._record_reply(mode, mode, outcome, reader, retrieval.trace)
        best: AnswerReader | SubAnswer = reader
        if error is not None:
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
        found = error is not None or reader.is_answered
        return self._build_answer(retrieval, best, draft.passages, found=found)

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

    def _degrade(self, stage: str, reason: str, detail: str = "") -> None:
        self._degradations.append(Degradation(stage, reason, detail))

    def _build_prompt(self, task: Task, **data_fields: Any) -> Prompt:
        call = self._call
        return task.build_prompt(self._settings, call.original, call.history, data_fields)

    def _complete(self, retrieval: Retrieval) -> Retrieval:
        """Complete the trace of *retrieval*, and return the retrieval for the answer."""
        self._is_finished = True
        retrieval.trace.finish()
        self.retrieval = self._finish_retrieval(retrieval)
        return self.retrieval

    def _build_answer(
        self,
        retrieval: Retrieval,
        content: AnswerReader | SubAnswer | None = None,
        passages: PromptPassages = _NO_PASSAGES,
        *,
        found: bool = False,
    ) -> Answer:
        """Return the answer; without a text in *content*, one that says that there is none."""
        call = self._call
        retrieval = self._complete(retrieval)
        call.log_degradations(logger, "answer", retrieval.trace, self._degradations)
        degradations = (*retrieval.degradations, *self._degradations)
        text = content.text if content is not None else ""
        return Answer(
            text=text or load_lexicon(detect_language(call.original) or "en").no_answer,
            citations=content.citations if content is not None else (),
            matches=passages.matches,
            retrieval=retrieval,
            found=found,
            sub_answers=self._sub_answers,
            status="degraded" if degradations else "full",
            degradations=degradations,
            context=passages.context,
            transformation_type=self._settings.transformation_type,
        )
