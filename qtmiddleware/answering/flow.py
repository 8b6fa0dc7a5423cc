"""Answer one question: retrieve passages, ask the model, and read its reply.

    retrieve ─┬─ plain: passages ──────────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: (passages ─ ask ─ read) × n sub-queries ┘

In a synthesis, the model answers each sub-query from the passages of that sub-query's search.

The last model call is separate from the steps before it, so that its reply can be streamed. Run
`AnswerFlow.retrieve_passages` and `AnswerFlow.build_draft`, call the model, and pass its reply to
`AnswerFlow.finish_answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
    build_sub_answer_entries,
    select_passages,
)
from qtmiddleware.answering.reading import AnswerReader, shift_citations
from qtmiddleware.config.settings import Settings
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
from qtmiddleware.types import (
    Answer,
    Citation,
    Deadline,
    Degradation,
    Match,
    Retrieval,
    SubAnswer,
    Trace,
)

_NO_PASSAGES: Final = PromptPassages()
_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class Draft:
    """The input of the model call that writes an answer.

    Attributes:
        stage: the name of the call in the trace.
        prompt: the instructions and the data for the model.
        passages: the passages that the answer may cite.
        sub_answers: in a synthesis, the sub-answers to combine. Their citation numbers refer to
            *passages*.
    """

    stage: str
    prompt: Prompt
    passages: PromptPassages = field(repr=False)
    sub_answers: tuple[SubAnswer, ...] = ()

    @property
    def matches(self) -> tuple[Match, ...]:
        """The matches that the answer may cite."""
        return self.passages.matches


class AnswerFlow:
    """Answers one question in steps: retrieve passages, draft the model call, read the reply.

    Args:
        request: the request that holds the question.
        chat: the model that writes the answer.
        finish_retrieval: takes the retrieval when the trace is complete, and returns the retrieval
            for the answer.
    """

    def __init__(
        self,
        request: Call,
        chat: StreamingModel,
        finish_retrieval: Callable[[Retrieval], Retrieval],
    ) -> None:
        self.chat = chat
        self.retrieval: Retrieval | None = None
        self._is_finished = False
        self._asked_stage = ""
        self.observation = request.observation.make_child("answer", content=request.original)
        self._request = replace(request, observation=self.observation)
        self._settings = request.settings
        self._finish_retrieval = finish_retrieval
        self._degradations: list[Degradation] = []
        self._errors: list[ModelError] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()

    async def answer(self, services: Services) -> Answer:
        """Return the whole answer, without streaming.

        Raises `ModelError` if the model gives no answer. Exceptions from the wrapped function pass
        through.
        """
        with self.observation:
            await self.retrieve_passages(services)
            draft = await self.build_draft(services)
            if isinstance(draft, Answer):
                return self.observation.keep_result(draft)
            deadline = self.start_call(draft)
            ask = partial(self.within(services).ask, draft.prompt, deadline, self.chat)
            (outcome,) = await services.io.gather([ask], deadline, 1)
            reader = AnswerReader(draft.matches)
            if outcome.has_succeeded:
                reader.read_whole_answer(outcome.get().text)
            return self.observation.keep_result(self.finish_answer(draft, outcome, reader))

    def within(self, services: Services) -> Services:
        """Return *services* for calls that are parts of this answer."""
        return services.within(self.observation, self._settings.limits.max_concurrency)

    async def retrieve_passages(self, services: Services) -> Retrieval:
        """Retrieve passages for the question and, in a synthesis, for its sub-queries."""
        request = self._request
        if self._is_synthesis:
            settings = _enable_sub_queries(self._settings)
            request = replace(request, settings=settings, has_parts=True)
        with ExitStack() as stack:
            stack.enter_context(self.observation)
            self.retrieval = await retrieve(request, services)
            # The retrieval succeeded, so the answer goes on: do not end its observation here.
            stack.pop_all()
        return self.retrieval

    async def build_draft(self, services: Services) -> Draft | Answer:
        """Return the input of the model call that writes the answer.

        Returns the finished answer if no call is needed, for example because there are no passages.
        """
        retrieval = self._required_retrieval
        if retrieval.is_unsure and self._settings.answer.if_unsure == "decline":
            retrieval.trace.note(
                "answer", "the model was not asked: the passages do not match the question"
            )
            return self._build_answer(
                _build_no_answer_sentence(self._request.original), is_answered=False
            )
        questions = retrieval.transformation.sub_queries if self._is_synthesis else ()
        if (most_searches := self._settings.limits.max_searches) is not None:
            questions = questions[: max(0, most_searches - retrieval.trace.searches)]
        # A single sub-query is only the question in other words.
        if len(questions) > 1:
            draft = await self._build_synthesis_draft(questions, services)
            if draft is not None:
                return draft
        passages = select_passages(retrieval.matches, self._settings.answer.context_chars)
        if not passages.matches:
            if retrieval.matches:
                count = len(retrieval.matches)
                detail = (
                    f"{count} matches have no text; set keywordEvidence.fields.text to the field"
                    " that holds it"
                )
                self._degradations.append(Degradation("passages", "no_text", detail))
            return self._build_answer(
                _build_no_answer_sentence(self._request.original), is_answered=False
            )
        return Draft("answer", self._build_prompt(ANSWER, {"passages": passages.entries}), passages)

    def start_call(self, draft: Draft) -> Deadline:
        """Record that the model call for *draft* begins now, and return its deadline."""
        self._asked_stage = draft.stage
        return Deadline.after(self._settings.answer.timeout_ms / 1e3)

    def finish_answer(self, draft: Draft, outcome: Outcome[Reply], reader: AnswerReader) -> Answer:
        """Return the answer that *reader* has read from the model's reply.

        If the call that combines sub-answers failed, return the sub-answer that cites the most
        passages.

        Raises:
            ModelError: if the call failed or the model's reply is empty, and there are no
                sub-answers.
        """
        error = (
            _record_model_call(draft.stage, outcome, self._required_retrieval.trace) or reader.error
        )
        if error is not None:
            if not draft.sub_answers:
                # Raise the first error of a model call, which explains the later ones, and attach
                # the passages found.
                first_error = next(iter(self._errors), error)
                first_error.retrieval = self._complete_retrieval()
                raise first_error
            self._degradations.append(Degradation(draft.stage, error.reason, str(error)))
            # Choose the sub-answer that cites the most passages; of several, the longest; of
            # several, the first.
            best = max(
                draft.sub_answers,
                key=lambda part: (
                    len({citation.number for citation in part.citations}),
                    len(part.text),
                ),
            )
            return self._build_answer(best.text, best.citations, draft.passages)
        if reader.invented_count:
            self._degradations.append(
                Degradation("citations", "invented", f"{reader.invented_count} removed")
            )
        if outcome.get().truncated:
            self._degradations.append(Degradation(draft.stage, "truncated"))
        # The model may write only the word that says that there is no answer.
        text = reader.text or _build_no_answer_sentence(self._request.original)
        return self._build_answer(
            text, reader.citations, draft.passages, is_answered=reader.is_answered
        )

    def abandon_answer(self) -> None:
        """Record in the trace that the answer was cancelled, and complete the trace."""
        self.observation.end("cancelled")
        if self.retrieval is not None and not self._is_finished:
            if self._asked_stage:
                # The model was asked, but nobody knows what the call cost.
                self.retrieval.trace.record_usage(
                    calls=1, input_tokens=0, output_tokens=0, cost_usd=None
                )
            self.retrieval.trace.record_stage(
                self._asked_stage or "answer", 0.0, "skipped", "closed"
            )
            self._complete_retrieval()

    @property
    def _is_synthesis(self) -> bool:
        """Whether the answer is combined from answers to sub-queries."""
        return self._settings.answer.mode == "synthesis"

    @property
    def _required_retrieval(self) -> Retrieval:
        if self.retrieval is None:
            raise RuntimeError("passages have not been retrieved yet")
        return self.retrieval

    async def _build_synthesis_draft(
        self, sub_queries: tuple[str, ...], services: Services
    ) -> Draft | None:
        """Answer *sub_queries*, and return the draft of the call that combines the sub-answers.

        Returns ``None`` if fewer than ``fusion.minSuccesses`` sub-queries have an answer. The
        caller then answers the question as a whole.
        """
        sub_answers = await self._answer_sub_queries(sub_queries, self.within(services))
        self._sub_answers = tuple(answer for answer, _ in sub_answers)
        # A sub-query without an answer in its passages is not a failure, but it adds nothing to the
        # synthesis.
        useful = [(answer, passages) for answer, passages in sub_answers if answer.found]
        if len(useful) < min(self._settings.fusion.min_successes, len(sub_queries)):
            detail = f"{len(useful)} of {len(sub_queries)} sub-queries got an answer"
            self._degradations.append(Degradation("sub_answers", "too_few_successes", detail))
            return None
        passages, joined = _join_passages_and_sub_answers(useful)
        prompt = self._build_prompt(SYNTHESIS, {"sub_answers": build_sub_answer_entries(joined)})
        return Draft("synthesis", prompt, passages, joined)

    async def _answer_sub_queries(
        self, sub_queries: Sequence[str], services: Services
    ) -> list[tuple[SubAnswer, PromptPassages]]:
        """Answer each of *sub_queries* from the passages found for it, with one model call each.

        Returns each sub-answer with its passages, in the order of *sub_queries*.
        """
        settings, trace = self._settings, self._required_retrieval.trace
        began = perf_counter()
        deadline = Deadline.after(settings.limits.deadline_ms / 1e3)
        searches = [partial(self._search_sub_query, text, services) for text in sub_queries]
        matches = list(map(self._read_sub_search, await services.gather(searches, deadline)))
        passages = [
            part_matches
            if part_matches is None
            else select_passages(part_matches, settings.answer.context_chars)
            for part_matches in matches
        ]
        # The answers' time begins after the searches, so that slow searches do not use it up.
        deadline = Deadline.after(settings.answer.timeout_ms / 1e3)
        asks = {
            index: partial(
                services.ask,
                SUB_ANSWER.build_prompt(
                    settings, sub_queries[index], (), {"passages": part_passages.entries}
                ),
                deadline,
                self.chat,
            )
            for index, part_passages in enumerate(passages)
            if part_passages is not None and part_passages.matches
        }
        replies = await services.gather(tuple(asks.values()), deadline)
        outcome_by_index = dict(zip(asks, replies, strict=True))
        answers = [
            (
                self._build_sub_answer(sub_query, part_passages, outcome_by_index.get(index)),
                part_passages or _NO_PASSAGES,
            )
            for index, (sub_query, part_passages) in enumerate(
                zip(sub_queries, passages, strict=True)
            )
        ]
        trace.record_stage("sub_answers", perf_counter() - began, began=began)
        return answers

    async def _search_sub_query(self, sub_query: str, services: Services) -> Retrieval:
        limits = self._settings.limits
        if limits.max_searches is not None:
            limits = replace(limits, max_searches=1)
        # The user did not ask for this retrieval, so it calls no hook. A sub-query is not
        # transformed again.
        call = replace(
            self._request,
            original=sub_query,
            history=(),
            hooks=(),
            settings=replace(self._settings, transformation_type="none", limits=limits),
        )
        return await retrieve(call, services)

    def _read_sub_search(self, outcome: Outcome[Retrieval]) -> tuple[Match, ...] | None:
        """Return the passages found for a sub-query, or ``None`` if the search failed."""
        if not outcome.has_succeeded:
            self._required_retrieval.trace.count_search(1)
            error = "TimeoutError" if outcome.late else type(outcome.error).__name__
            self._degradations.append(Degradation("sub_answers", "search_failed", error))
            return None
        retrieval = outcome.get()
        self._required_retrieval.trace.add_searches(retrieval.trace)
        self._degradations.extend(
            degradation
            for degradation in retrieval.degradations
            if degradation not in self._degradations
        )
        return retrieval.matches[: self._settings.fusion.sub_query_top_k]

    def _build_sub_answer(
        self, sub_query: str, passages: PromptPassages | None, outcome: Outcome[Reply] | None
    ) -> SubAnswer:
        """Return the sub-answer to *sub_query*, read from the *outcome* of the model call.

        If the call failed or its reply has problems, the answer's degradations say so.

        Args:
            sub_query: the sub-query to answer.
            passages: the passages shown to the model; ``None`` if the search failed.
            outcome: the outcome of the call; ``None`` if the model was not called.
        """
        if passages is None or outcome is None:
            return SubAnswer(
                sub_query,
                "",
                found=False,
                reason="search_failed" if passages is None else "no_passages",
            )
        error = _record_model_call("sub_answer", outcome, self._required_retrieval.trace)
        reader = AnswerReader(passages.matches)
        if error is None:
            reader.read_whole_answer(outcome.get().text)
            error = reader.error
        if error is not None:
            self._errors.append(error)
            self._degradations.append(Degradation("sub_answers", error.reason, str(error)))
            return SubAnswer(
                sub_query, "", matches=passages.matches, found=False, reason=error.reason
            )
        if reader.invented_count:
            self._degradations.append(
                Degradation("citations", "invented", f"{reader.invented_count} in a sub-answer")
            )
        if outcome.get().truncated:
            self._degradations.append(Degradation("sub_answers", "truncated"))
        return SubAnswer(
            sub_query,
            reader.text,
            citations=reader.citations,
            matches=passages.matches,
            found=reader.is_answered,
            reason="" if reader.is_answered else "no_answer",
        )

    def _build_prompt(self, task: Task, data_fields: Mapping[str, Any]) -> Prompt:
        return task.build_prompt(
            self._settings, self._request.original, self._request.history, data_fields
        )

    def _complete_retrieval(self) -> Retrieval:
        """Complete the retrieval's trace, and return the retrieval for the answer."""
        self._is_finished = True
        self._required_retrieval.trace.finish()
        self.retrieval = self._finish_retrieval(self._required_retrieval)
        return self.retrieval

    def _build_answer(
        self,
        answer_text: str,
        citations: tuple[Citation, ...] = (),
        passages: PromptPassages = _NO_PASSAGES,
        *,
        is_answered: bool = True,
    ) -> Answer:
        cited = (
            f"{len({citation.number for citation in citations})} of {len(passages.matches)}"
            " passages are cited"
        )
        self._required_retrieval.trace.note(
            "answer", cited if is_answered else "not in the passages"
        )
        retrieval = self._complete_retrieval()
        self._request.log_degradations(logger, "answer", retrieval.trace, self._degradations)
        degradations = (*retrieval.degradations, *self._degradations)
        settings = _enable_sub_queries(self._settings) if self._is_synthesis else self._settings
        return Answer(
            text=answer_text,
            citations=citations,
            matches=passages.matches,
            retrieval=retrieval,
            found=is_answered,
            sub_answers=self._sub_answers,
            status="degraded" if degradations else "full",
            degradations=degradations,
            context=passages.context,
            transformation_type=settings.transformation_type,
        )


def _enable_sub_queries(settings: Settings) -> Settings:
    """Return a copy of *settings* with a transformation type that produces sub-queries."""
    type_ = settings.transformation_type
    if type_ in _DECOMPOSING or "sub_queries" in settings.transform.fields:
        return settings
    return replace(settings, transformation_type="decompose" if type_ == "none" else "combined")


def _record_model_call(stage: str, outcome: Outcome[Reply], trace: Trace) -> ModelError | None:
    """Record a model call's cost and status in *trace*.

    Returns the call's error, or ``None`` if the call succeeded.
    """
    if outcome.has_succeeded:
        reply = outcome.get()
        record_cost(trace, reply)
        status = ("degraded", "truncated") if reply.truncated else ("ok", "")
        trace.record_stage(stage, outcome.seconds, *status, began=outcome.began or None)
        return None
    error = convert_to_model_error(outcome.error)
    # A call that had begun has cost something, but nobody knows how much.
    cost = 0.0 if error.is_free else None
    trace.record_usage(calls=int(error.was_asked), input_tokens=0, output_tokens=0, cost_usd=cost)
    trace.record_stage(stage, outcome.seconds, "failed", error.reason, began=outcome.began or None)
    return error


def _join_passages_and_sub_answers(
    sub_answers: Sequence[tuple[SubAnswer, PromptPassages]],
) -> tuple[PromptPassages, tuple[SubAnswer, ...]]:
    """Join the passages of *sub_answers* into one list, and renumber the citations to match.

    Returns the joined passages, and the sub-answers with the new numbers.
    """
    matches = tuple(match for _, passages in sub_answers for match in passages.matches)
    entries = tuple(entry for _, passages in sub_answers for entry in passages.entries)
    joined, offset = [], 0
    for answer, passages in sub_answers:
        text, citations = shift_citations(answer.text, answer.citations, offset, matches)
        joined.append(replace(answer, text=text, citations=citations, matches=matches))
        offset += len(passages.matches)
    return PromptPassages(matches, entries), tuple(joined)


def _build_no_answer_sentence(question: str) -> str:
    """Return a sentence that says that the passages do not answer *question*.

    The sentence is in the language of *question*, or in English if the language is unknown.
    """
    return load_lexicon(detect_language(question) or "en").no_answer
