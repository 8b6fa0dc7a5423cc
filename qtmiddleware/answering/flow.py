"""Answer one question: retrieve passages, ask the model, and read its reply.

    retrieve ─┬─ plain: passages ────────────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: (retrieve ─ ask ─ read) × n sub-queries ─┘

In a synthesis, the model answers each sub-query from the passages of that sub-query's search. The
last model call writes the answer, which is read whole or in pieces.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
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
from qtmiddleware.runtime.io import Outcome, measure
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import Services
from qtmiddleware.runtime.streaming import Piece, stream_reply
from qtmiddleware.types import Answer, Citation, Deadline, Degradation, Match, Retrieval, SubAnswer

_NO_PASSAGES: Final = PromptPassages()
_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class _Part:
    """The answer to a sub-query, with its passages and the model's own words."""

    answer: SubAnswer
    passages: PromptPassages = _NO_PASSAGES
    reply: str = ""


@dataclass(frozen=True, slots=True)
class _Draft:
    """The model call that writes an answer.

    Attributes:
        stage: The name of the call in the trace.
        prompt: The instructions and the data for the model.
        passages: The passages that the answer may cite.
        sub_answers: In a synthesis, the sub-answers to combine. Their citations refer to
            *passages*.
    """

    stage: str
    prompt: Prompt
    passages: PromptPassages = field(repr=False)
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
        self._observation = call.observation.make_child(
            "answer",
            content=call.original,
        )
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
        self._asked_stage = ""
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
        self,
        services: Services,
        *,
        is_whole: bool = False,
    ) -> AsyncGenerator[str, None]:
        """Yield the pieces of the answer that can be shown, and set `result` at the end.

        If *is_whole*, the model replies at once.
        """
        with self._observation as observation:
            retrieval = await self.retrieve(services)
            services = services.within(
                observation,
                self._settings.limits.max_concurrency,
            )
            draft = await self._draft(retrieval, services)
            was_shown = False
            if draft is None:
                answer = self._build_answer(retrieval)
            else:
                self._asked_stage = draft.stage
                reader = AnswerReader(draft.passages.matches)
                deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
                outcome = Outcome(Reply(""), began=perf_counter())
                ask = self._ask_whole if is_whole else partial(stream_reply, self._chat)
                has_text = False
                try:
                    async with aclosing(ask(draft.prompt, deadline, services)) as pieces:
                        async for piece in pieces:
                            text = piece if isinstance(piece, str) else ""
                            if isinstance(piece, Reply):
                                outcome.value = piece
                                # A model that cannot stream sends all of its text at once.
                                text = "" if has_text else piece.text
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
                answer = self._read_reply(draft, outcome, reader, retrieval)
            self.result = observation.keep_result(answer)
        if not was_shown:
            yield answer.text

    def abandon(self) -> None:
        """Record in the trace that the answer was cancelled, and complete the trace."""
        self._observation.end("cancelled")
        if self.retrieval is not None and not self._is_finished:
            trace = self.retrieval.trace
            if self._asked_stage:
                # The model was asked, but nobody knows what the call cost.
                trace.record_usage(calls=1, input_tokens=0, output_tokens=0, cost_usd=None)
            trace.record_stage(self._asked_stage or "answer", 0.0, "skipped", "closed")
            self._complete(self.retrieval)

    async def _ask_whole(
        self,
        prompt: Prompt,
        deadline: Deadline,
        services: Services,
    ) -> AsyncGenerator[Piece, None]:
        work = partial(services.ask, prompt, deadline, self._chat)
        (outcome,) = await services.io.gather([work], deadline, 1)
        if not outcome.has_succeeded:
            raise convert_to_model_error(outcome.error)
        yield outcome.get()

    async def _draft(
        self,
        retrieval: Retrieval,
        services: Services,
    ) -> _Draft | None:
        """Return the model call that writes the answer; ``None`` if nothing is known to answer."""
        settings, trace = self._settings, retrieval.trace
        if retrieval.is_unsure and settings.answer.if_unsure == "decline":
            trace.note("answer", "the model was not asked: the passages do not match the question")
            return None
        questions = retrieval.transformation.sub_queries if self._is_synthesis else ()
        if (most_searches := settings.limits.max_searches) is not None:
            questions = questions[: max(0, most_searches - trace.searches)]
        # A single sub-query is only the question in other words.
        if len(questions) > 1:
            parts = await self._answer_parts(questions, retrieval, services)
            self._sub_answers = tuple(part.answer for part in parts)
            # A sub-query without an answer in its passages is not a failure, but it adds nothing.
            useful = [part for part in parts if part.answer.found]
            if len(useful) >= min(settings.fusion.min_successes, len(questions)):
                return self._draft_synthesis(useful)
            detail = f"{len(useful)} of {len(questions)} sub-queries got an answer"
            self._degrade("sub_answers", "too_few_successes", detail)
        passages = select_passages(
            retrieval.matches,
            settings.answer.context_chars,
        )
        if passages.matches:
            prompt = self._build_prompt(ANSWER, {"passages": passages.entries})
            return _Draft("answer", prompt, passages)
        if retrieval.matches:
            detail = (
                f"{len(retrieval.matches)} matches have no text; set keywordEvidence.fields.text to"
                " the field that holds it"
            )
            self._degrade("passages", "no_text", detail)
        return None

    # --- a synthesis ------------------------------------------------------------------------------

    async def _answer_parts(
        self,
        questions: Sequence[str],
        retrieval: Retrieval,
        services: Services,
    ) -> list[_Part]:
        """Answer each of *questions* from its own passages."""
        settings = self._settings
        began = perf_counter()
        # The answers' time begins after the searches, so that slow searches do not use it up.
        seconds = (settings.limits.deadline_ms + settings.answer.timeout_ms) / 1e3
        works = [partial(self._ask_part, question, services) for question in questions]
        outcomes = await services.gather(works, Deadline.after(seconds))
        parts = [
            self._read_part(question, outcome, retrieval)
            for question, outcome in zip(questions, outcomes, strict=True)
        ]
        retrieval.trace.record_stage("sub_answers", perf_counter() - began, began=began)
        return parts

    async def _ask_part(
        self,
        question: str,
        services: Services,
    ) -> tuple[Retrieval, PromptPassages, Outcome[Reply] | None]:
        """Return the retrieval for a sub-query, its passages, and the outcome of the model call."""
        settings = self._settings
        limits = settings.limits
        if limits.max_searches is not None:
            limits = replace(limits, max_searches=1)
        # The user did not ask for this retrieval, so it calls no hook. A sub-query is not
        # transformed again.
        call = replace(
            self._call,
            original=question,
            history=(),
            has_parts=False,
            hooks=(),
            settings=replace(settings, transformation_type="none", limits=limits),
        )
        retrieval = await retrieve(call, services)
        matches = retrieval.matches[: settings.fusion.sub_query_top_k]
        passages = select_passages(matches, settings.answer.context_chars)
        if not passages.matches:
            return retrieval, passages, None
        prompt = SUB_ANSWER.build_prompt(
            settings,
            question,
            (),
            {"passages": passages.entries},
        )
        deadline = Deadline.after(settings.answer.timeout_ms / 1e3)
        outcome = await measure(partial(services.ask, prompt, deadline, self._chat))
        return retrieval, passages, outcome

    def _read_part(
        self,
        question: str,
        outcome: Outcome[tuple[Retrieval, PromptPassages, Outcome[Reply] | None]],
        whole: Retrieval,
    ) -> _Part:
        """Return the answer to a sub-query; what went wrong becomes degradations."""
        if not outcome.has_succeeded:
            whole.trace.count_search(1)
            reason = "timeout" if outcome.late else "search_failed"
            self._degrade("sub_answers", reason, outcome.detail)
            return _Part(SubAnswer(question, "", found=False, reason=reason))
        retrieval, passages, asked = outcome.get()
        whole.trace.add_searches(retrieval.trace)
        known = self._degradations
        known.extend(problem for problem in retrieval.degradations if problem not in known)
        if asked is None:
            return _Part(
                SubAnswer(question, "", found=False, reason="no_passages"),
                passages,
            )
        reply = asked.get() if asked.has_succeeded else Reply("")
        reader = AnswerReader(passages.matches)
        reader.feed(reply.text, is_last=True)
        if error := _record_model_call("sub_answer", asked, whole) or _find_emptiness(reader):
            self._first_error = self._first_error or error
            self._degrade("sub_answers", error.reason, str(error))
            reason = error.reason
        else:
            self._record_flaws("sub_answers", reply, reader, "in a sub-answer")
            reason = "" if reader.is_answered else "no_answer"
        answer = SubAnswer(
            question,
            reader.text,
            reader.citations,
            matches=passages.matches,
            found=not reason,
            reason=reason,
        )
        return _Part(answer, passages, reply.text)

    def _draft_synthesis(self, parts: Sequence[_Part]) -> _Draft:
        """Return the model call that combines *parts*, whose citations are numbered through."""
        answers: list[SubAnswer] = []
        matches: list[Match] = []
        entries: list[Mapping[str, Any]] = []
        for part in parts:
            reader = AnswerReader(part.passages.matches, offset=len(matches))
            reader.feed(part.reply, is_last=True)
            answers.append(replace(part.answer, text=reader.text, citations=reader.citations))
            matches.extend(part.passages.matches)
            entries.extend(part.passages.entries)
        data = [{"question": answer.question, "answer": answer.text} for answer in answers]
        prompt = self._build_prompt(SYNTHESIS, {"sub_answers": data})
        passages = PromptPassages(tuple(matches), tuple(entries))
        return _Draft("synthesis", prompt, passages, tuple(answers))

    # --- the answer -------------------------------------------------------------------------------

    def _read_reply(
        self,
        draft: _Draft,
        outcome: Outcome[Reply],
        reader: AnswerReader,
        retrieval: Retrieval,
    ) -> Answer:
        """Return the answer that *reader* has read from the model's reply."""
        error = _record_model_call(draft.stage, outcome, retrieval) or _find_emptiness(reader)
        best: AnswerReader | SubAnswer = reader
        if error is None:
            self._record_flaws(draft.stage, outcome.get(), reader, "removed")
        elif draft.sub_answers:
            self._degrade(draft.stage, error.reason, str(error))
            best = max(
                draft.sub_answers,
                key=lambda part: (len({mark.number for mark in part.citations}), len(part.text)),
            )
        else:
            # The first error of a model call explains the later ones.
            first_error = self._first_error or error
            first_error.retrieval = self._complete(retrieval)
            raise first_error
        is_answered = error is not None or reader.is_answered
        return self._build_answer(
            retrieval,
            best.text,
            best.citations,
            draft.passages,
            is_answered=is_answered,
        )

    def _degrade(self, stage: str, reason: str, detail: str = "") -> None:
        self._degradations.append(Degradation(stage, reason, detail))

    def _record_flaws(
        self,
        stage: str,
        reply: Reply,
        reader: AnswerReader,
        detail: str,
    ) -> None:
        if reader.invented_count:
            self._degrade("citations", "invented", f"{reader.invented_count} {detail}")
        if reply.truncated:
            self._degrade(stage, "truncated")

    def _build_prompt(
        self,
        task: Task,
        data_fields: Mapping[str, Any],
    ) -> Prompt:
        call = self._call
        return task.build_prompt(
            self._settings,
            call.original,
            call.history,
            data_fields,
        )

    def _complete(self, retrieval: Retrieval) -> Retrieval:
        """Complete the trace of *retrieval*, and return the retrieval for the answer."""
        self._is_finished = True
        retrieval.trace.finish()
        self.retrieval = self._finish_retrieval(retrieval)
        return self.retrieval

    def _build_answer(
        self,
        retrieval: Retrieval,
        text: str = "",
        citations: tuple[Citation, ...] = (),
        passages: PromptPassages = _NO_PASSAGES,
        *,
        is_answered: bool = False,
    ) -> Answer:
        """Return the answer; without a *text*, one that says that there is none."""
        call = self._call
        # The model may write only the word that says that there is no answer.
        if not text:
            text = load_lexicon(detect_language(call.original) or "en").no_answer
        retrieval = self._complete(retrieval)
        call.log_degradations(logger, "answer", retrieval.trace, self._degradations)
        degradations = (*retrieval.degradations, *self._degradations)
        return Answer(
            text=text,
            citations=citations,
            matches=passages.matches,
            retrieval=retrieval,
            found=is_answered,
            sub_answers=self._sub_answers,
            status="degraded" if degradations else "full",
            degradations=degradations,
            context=passages.context,
            transformation_type=self._settings.transformation_type,
        )


def _find_emptiness(reader: AnswerReader) -> ModelError | None:
    """Return an error if the model wrote nothing to show, not even the marker."""
    if reader.text or not reader.is_answered:
        return None
    return ModelError("empty", "the language model's answer is empty")


def _record_model_call(
    stage: str,
    outcome: Outcome[Reply],
    retrieval: Retrieval,
) -> ModelError | None:
    """Record a model call's cost and status in the trace of *retrieval*."""
    trace, began = retrieval.trace, outcome.began or None
    if outcome.has_succeeded:
        reply = outcome.get()
        record_cost(trace, reply)
        status = ("degraded", "truncated") if reply.truncated else ("ok", "")
        trace.record_stage(stage, outcome.seconds, *status, began=began)
        return None
    error = convert_to_model_error(outcome.error)
    # A call that had begun has cost something, but nobody knows how much.
    cost = 0.0 if error.is_free else None
    trace.record_usage(calls=int(error.was_asked), input_tokens=0, output_tokens=0, cost_usd=cost)
    trace.record_stage(stage, outcome.seconds, "failed", error.reason, began=began)
    return error
