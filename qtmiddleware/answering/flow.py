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
from qtmiddleware.answering.reading import AnswerReader, shift_citations
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
from qtmiddleware.runtime.streaming import stream_reply
from qtmiddleware.types import Answer, Citation, Deadline, Degradation, Retrieval, SubAnswer

_NO_PASSAGES: Final = PromptPassages()
_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})

logger: Final = get_logger("qtmiddleware")


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
        self._observation = call.observation.make_child("answer", content=call.original)
        self._is_synthesis = call.settings.answer.mode == "synthesis"
        settings = call.settings
        kind = settings.transformation_type
        if (
            self._is_synthesis
            and kind not in _DECOMPOSING
            and "sub_queries" not in settings.transform.fields
        ):
            kind = "decompose" if kind == "none" else "combined"
            settings = replace(settings, transformation_type=kind)
        self._settings = settings
        self._call = replace(
            call,
            settings=settings,
            observation=self._observation,
            has_parts=self._is_synthesis,
        )
        self._chat = chat
        self._finish_retrieval = finish_retrieval
        self._is_finished = False
        self._asked_stage = ""
        self._degradations: list[Degradation] = []
        self._errors: list[ModelError] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()

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
            services = services.within(observation, self._settings.limits.max_concurrency)
            draft = await self._draft(retrieval, services)
            was_shown = False
            if isinstance(draft, _Draft):
                self._asked_stage = draft.stage
                reader = AnswerReader(draft.passages.matches)
                deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
                outcome = Outcome[Reply](began=perf_counter())
                if is_whole:
                    ask = partial(services.ask, draft.prompt, deadline, self._chat)
                    (outcome,) = await services.io.gather([ask], deadline, 1)
                    if outcome.has_succeeded:
                        reader.feed(outcome.get().text)
                else:
                    has_text = False
                    reading = stream_reply(self._chat, draft.prompt, deadline, services)
                    try:
                        async with aclosing(reading) as pieces:
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
                        outcome.value = outcome.value or Reply("")
                    except ModelError as error:
                        outcome.error = error
                    outcome.seconds = perf_counter() - outcome.began
                if outcome.has_succeeded and (shown := reader.finish()):
                    was_shown = True
                    yield shown
                draft = self._read_reply(draft, outcome, reader, retrieval)
            self.result = observation.keep_result(draft)
        if not was_shown:
            yield draft.text

    def abandon(self) -> None:
        """Record in the trace that the answer was cancelled, and complete the trace."""
        self._observation.end("cancelled")
        if self.retrieval is not None and not self._is_finished:
            trace = self.retrieval.trace
            if self._asked_stage:
                # The model was asked, but nobody knows what the call cost.
                trace.record_usage(
                    calls=1,
                    input_tokens=0,
                    output_tokens=0,
                    cost_usd=None,
                )
            trace.record_stage(self._asked_stage or "answer", 0.0, "skipped", "closed")
            self._complete(self.retrieval)

    async def _draft(self, retrieval: Retrieval, services: Services) -> _Draft | Answer:
        """Return the model call that writes the answer.

        Returns the finished answer if no call is needed, for example because there are no passages.
        """
        settings = self._settings
        if retrieval.is_unsure and settings.answer.if_unsure == "decline":
            note = "the model was not asked: the passages do not match the question"
            retrieval.trace.note("answer", note)
            return self._build_answer(retrieval)
        questions = retrieval.transformation.sub_queries if self._is_synthesis else ()
        if (most_searches := settings.limits.max_searches) is not None:
            questions = questions[: max(0, most_searches - retrieval.trace.searches)]
        # A single sub-query is only the question in other words.
        if len(questions) > 1:
            parts = await self._answer_parts(questions, retrieval, services)
            self._sub_answers = tuple(answer for answer, _ in parts)
            # A sub-query without an answer in its passages is not a failure, but it adds nothing.
            useful = [(answer, passages) for answer, passages in parts if answer.found]
            if len(useful) >= min(settings.fusion.min_successes, len(questions)):
                return self._draft_synthesis(useful)
            detail = f"{len(useful)} of {len(questions)} sub-queries got an answer"
            self._degradations.append(Degradation("sub_answers", "too_few_successes", detail))
        passages = select_passages(retrieval.matches, settings.answer.context_chars)
        if passages.matches:
            prompt = self._build_prompt(ANSWER, {"passages": passages.entries})
            return _Draft("answer", prompt, passages)
        if retrieval.matches:
            detail = (
                f"{len(retrieval.matches)} matches have no text; set keywordEvidence.fields.text to"
                " the field that holds it"
            )
            self._degradations.append(Degradation("passages", "no_text", detail))
        return self._build_answer(retrieval)

    # --- a synthesis ------------------------------------------------------------------------------

    async def _answer_parts(
        self, questions: Sequence[str], retrieval: Retrieval, services: Services
    ) -> list[tuple[SubAnswer, PromptPassages]]:
        """Answer each of *questions* from its own passages, and return these too, in order."""
        settings, trace = self._settings, retrieval.trace
        began = perf_counter()
        # The answers' time begins after the searches, so that slow searches do not use it up.
        seconds = (settings.limits.deadline_ms + settings.answer.timeout_ms) / 1e3
        works = [partial(self._ask_part, question, services) for question in questions]
        outcomes = await services.gather(works, Deadline.after(seconds))
        parts = [
            self._read_part(question, outcome, retrieval)
            for question, outcome in zip(questions, outcomes, strict=True)
        ]
        trace.record_stage("sub_answers", perf_counter() - began, began=began)
        return parts

    async def _ask_part(
        self, question: str, services: Services
    ) -> tuple[Retrieval, PromptPassages, Outcome[Reply] | None]:
        """Return the retrieval for a sub-query, its passages, and the outcome of the model call.

        Without passages, the model is not called.
        """
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
        prompt = SUB_ANSWER.build_prompt(settings, question, (), {"passages": passages.entries})
        deadline = Deadline.after(settings.answer.timeout_ms / 1e3)
        outcome = await measure(partial(services.ask, prompt, deadline, self._chat))
        return retrieval, passages, outcome

    def _read_part(
        self,
        question: str,
        outcome: Outcome[tuple[Retrieval, PromptPassages, Outcome[Reply] | None]],
        whole: Retrieval,
    ) -> tuple[SubAnswer, PromptPassages]:
        """Return the answer to a sub-query and its passages; what went wrong becomes degradations.

        *whole* is the retrieval for the question, whose trace counts all calls.
        """
        if not outcome.has_succeeded:
            whole.trace.count_search(1)
            reason = "timeout" if outcome.late else "search_failed"
            self._degradations.append(Degradation("sub_answers", reason, outcome.detail))
            return SubAnswer(question, "", found=False, reason=reason), _NO_PASSAGES
        retrieval, passages, reply = outcome.get()
        whole.trace.add_searches(retrieval.trace)
        self._degradations.extend(
            degradation
            for degradation in retrieval.degradations
            if degradation not in self._degradations
        )
        if reply is None:
            return SubAnswer(question, "", found=False, reason="no_passages"), passages
        error = _record_model_call("sub_answer", reply, whole)
        reader = AnswerReader(passages.matches)
        if error is None:
            reader.feed(reply.get().text)
            reader.finish()
            error = reader.error
        if error is not None:
            self._errors.append(error)
            self._degradations.append(Degradation("sub_answers", error.reason, str(error)))
            reason = error.reason
        else:
            reason = "" if reader.is_answered else "no_answer"
            self._record_flaws("sub_answers", reply.get(), reader, "in a sub-answer")
        answer = SubAnswer(
            question,
            reader.text,
            reader.citations,
            matches=passages.matches,
            found=not reason,
            reason=reason,
        )
        return answer, passages

    def _draft_synthesis(self, parts: Sequence[tuple[SubAnswer, PromptPassages]]) -> _Draft:
        """Return the model call that combines *parts*, whose citations are numbered through."""
        matches = tuple(match for _, passages in parts for match in passages.matches)
        entries = tuple(entry for _, passages in parts for entry in passages.entries)
        joined: list[SubAnswer] = []
        offset = 0
        for answer, passages in parts:
            text, citations = shift_citations(
                answer.text,
                answer.citations,
                offset,
                matches,
            )
            joined.append(replace(answer, text=text, citations=citations, matches=matches))
            offset += len(passages.matches)
        data = [{"question": answer.question, "answer": answer.text} for answer in joined]
        prompt = self._build_prompt(SYNTHESIS, {"sub_answers": data})
        return _Draft("synthesis", prompt, PromptPassages(matches, entries), tuple(joined))

    # --- the answer -------------------------------------------------------------------------------

    def _read_reply(
        self,
        draft: _Draft,
        outcome: Outcome[Reply],
        reader: AnswerReader,
        retrieval: Retrieval,
    ) -> Answer:
        """Return the answer that *reader* has read from the model's reply.

        If the call that combines sub-answers failed, return the sub-answer that cites the most
        passages; of several, the longest.

        Raises:
            ModelError: The call failed or the model's reply is empty, and there are no sub-answers.
        """
        error = _record_model_call(draft.stage, outcome, retrieval) or reader.error
        if error is None:
            self._record_flaws(draft.stage, outcome.get(), reader, "removed")
            return self._build_answer(
                retrieval,
                reader.text,
                reader.citations,
                draft.passages,
                is_answered=reader.is_answered,
            )
        if not draft.sub_answers:
            # The first error of a model call explains the later ones.
            first_error = next(iter(self._errors), error)
            first_error.retrieval = self._complete(retrieval)
            raise first_error
        self._degradations.append(Degradation(draft.stage, error.reason, str(error)))
        best = max(
            draft.sub_answers,
            key=lambda part: (len({mark.number for mark in part.citations}), len(part.text)),
        )
        return self._build_answer(
            retrieval, best.text, best.citations, draft.passages, is_answered=True
        )

    def _record_flaws(
        self,
        stage: str,
        reply: Reply,
        reader: AnswerReader,
        detail: str,
    ) -> None:
        if reader.invented_count:
            detail = f"{reader.invented_count} {detail}"
            self._degradations.append(Degradation("citations", "invented", detail))
        if reply.truncated:
            self._degradations.append(Degradation(stage, "truncated"))

    def _build_prompt(self, task: Task, data_fields: Mapping[str, Any]) -> Prompt:
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
        text: str = "",
        citations: tuple[Citation, ...] = (),
        passages: PromptPassages = _NO_PASSAGES,
        *,
        is_answered: bool = False,
    ) -> Answer:
        """Return the answer; without a *text*, one that says that there is none."""
        # The model may write only the word that says that there is no answer.
        text = text or _build_no_answer_sentence(self._call.original)
        count = len({citation.number for citation in citations})
        cited = f"{count} of {len(passages.matches)} passages are cited"
        retrieval.trace.note("answer", cited if is_answered else "not in the passages")
        retrieval = self._complete(retrieval)
        self._call.log_degradations(logger, "answer", retrieval.trace, self._degradations)
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


def _record_model_call(
    stage: str,
    outcome: Outcome[Reply],
    retrieval: Retrieval,
) -> ModelError | None:
    """Record a model call's cost and status in the trace of *retrieval*.

    Returns the call's error, or ``None`` if the call succeeded.
    """
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
    trace.record_usage(
        calls=int(error.was_asked),
        input_tokens=0,
        output_tokens=0,
        cost_usd=cost,
    )
    trace.record_stage(stage, outcome.seconds, "failed", error.reason, began=began)
    return error


def _build_no_answer_sentence(question: str) -> str:
    """Return a sentence that says that the passages do not answer *question*.

    The sentence is in the language of *question*, or in English if the language is unknown.
    """
    return load_lexicon(detect_language(question) or "en").no_answer
