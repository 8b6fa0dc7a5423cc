"""Answers to the parts of a question, each from passages of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.rag.answering.calling import accounted
from qtmiddleware.rag.answering.passages import Shown, shown
from qtmiddleware.rag.answering.prompts import SUB_ANSWER
from qtmiddleware.rag.answering.reading import Reading, shifted
from qtmiddleware.retrieval.pipeline import retrieve
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.steps import Ask, Flow, Outcome, Together, gather_flows
from qtmiddleware.types import Deadline, Degradation, Match, SubAnswer, Trace

_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})


def decomposing(settings: Settings) -> Settings:
    """*settings* under which a question comes with its sub-queries."""
    kind = settings.transformation_type
    if kind in _DECOMPOSING:
        return settings
    return replace(settings, transformation_type="decompose" if kind == "none" else "combined")


class SubAnswering:
    """Asks *chat* each part of the question of *request* once.

    *trouble* and *errors* collect what went wrong; what was found to be unanswerable did not. Calls and searches are
    written down in *trace*.
    """

    def __init__(self, request: Request, chat: LanguageModel, trace: Trace) -> None:
        self.trouble: list[Degradation] = []
        self.errors: list[ModelError] = []
        self._request = replace(
            request, history=(), response_only=False, settings=replace(request.settings, transformation_type="none")
        )
        self._chat = chat
        self._trace = trace

    def flow(self, questions: Sequence[str]) -> Flow[tuple[SubAnswer, ...]]:
        """An answer to each of *questions*, in their order."""
        settings, began = self._request.settings, self._trace.clock()
        limit = settings.limits.max_concurrency
        searched = [self._searched(question) for question in questions]
        patience = Deadline.after(settings.limits.deadline_ms / 1e3)
        matches = yield from gather_flows(searched, limit=limit, deadline=patience)
        passages = [it if it is None else shown(it, settings.answer.context_chars) for it in matches]
        patience = Deadline.after(settings.answer.timeout_ms / 1e3)
        asks = {
            place: Ask(self._prompt(questions[place], it), Deadline(patience.at), self._chat)
            for place, it in enumerate(passages)
            if it is not None and it.matches
        }
        outcomes = dict(zip(asks, (yield Together(tuple(asks.values()), patience, limit)) if asks else (), strict=True))
        answers = tuple(
            self._answered(question, it, outcomes.get(place))
            for place, (question, it) in enumerate(zip(questions, passages, strict=True))
        )
        self._trace.stage("sub_answers", self._trace.clock() - began, began=began)
        return answers

    def _searched(self, question: str) -> Flow[tuple[Match, ...] | None]:
        """What is found for *question* by itself; ``None`` where the search fails."""
        try:
            retrieval = yield from retrieve(replace(self._request, original=question, shares=False))
        except Exception as error:
            self._trace.searches += 1
            self.trouble.append(Degradation("sub_answers", "search_failed", type(error).__name__))
            return None
        self._trace.searches += retrieval.trace.searches
        self.trouble.extend(it for it in retrieval.degradations if it not in self.trouble)
        return retrieval.matches

    def _prompt(self, question: str, passages: Shown) -> Prompt:
        return SUB_ANSWER.prompt(self._request.settings, question, (), {"passages": passages.entries})

    def _answered(self, question: str, passages: Shown | None, outcome: Outcome | None) -> SubAnswer:
        if passages is None or outcome is None:
            return SubAnswer(question, "", found=False, reason="search_failed" if passages is None else "no_passages")
        error = accounted("sub_answer", outcome, self._trace)
        reading = Reading(passages.matches)
        if error is None:
            reading.feed(outcome.value.text)
            reading.end()
            error = reading.error
        if error is not None:
            self.errors.append(error)
            self.trouble.append(Degradation("sub_answers", error.reason, str(error)))
            return SubAnswer(question, "", matches=passages.matches, found=False, reason=error.reason)
        if reading.invented:
            self.trouble.append(Degradation("citations", "invented", f"{reading.invented} in a sub-answer"))
        if outcome.value.truncated:
            self.trouble.append(Degradation("sub_answers", "truncated"))
        return SubAnswer(
            question,
            reading.text,
            citations=reading.citations,
            matches=passages.matches,
            found=reading.found,
            reason="" if reading.found else "no_answer",
        )


def together(answers: Sequence[SubAnswer]) -> tuple[tuple[Match, ...], tuple[SubAnswer, ...]]:
    """The passages of all of *answers*, none left out, and the answers with their numbers raised to count in them."""
    matches = tuple(match for answer in answers for match in answer.matches)
    raised, before = [], 0
    for answer in answers:
        text, citations = shifted(answer.text, answer.citations, before, matches)
        raised.append(replace(answer, text=text, citations=citations, matches=matches))
        before += len(answer.matches)
    return matches, tuple(raised)


def best(answers: Sequence[SubAnswer]) -> SubAnswer:
    """The answer that rests on most passages, of those the longest, of those the first."""
    return max(answers, key=lambda it: (len({citation.number for citation in it.citations}), len(it.text)))
