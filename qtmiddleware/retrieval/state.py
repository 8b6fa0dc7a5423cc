"""Hold what is known of one question during its retrieval: words, dates, texts, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.preprocessing.dates import Times, read_times
from qtmiddleware.retrieval.call import PAGED, Call, prepare_query
from qtmiddleware.retrieval.responses import SearchResult, read_response
from qtmiddleware.retrieval.signals import find_skip_reason
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.types import (
    Deadline,
    Decision,
    Degradation,
    Query,
    Ranking,
    Trace,
    Transformation,
    Variant,
)

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Term


class State:
    """One question on its way to its result: what is known of it, and what went wrong.

    Attributes:
        call: The question, its settings and what is known of the function.
        trace: Receives what happens to the question.
        degradations: Receives the failures.
        query: The question's keywords, its language and the text to search for.
        original: The question itself as a variant, the one that every call searches.
        keywords: The keywords to show; ``""`` if preprocessing is off.
        is_follow_up: Whether the question continues the topic of its conversation.
        glossary_terms: The glossary's terms in the question.
        texts: The model's texts: none until the cache or the model has given them.
        deadline: The deadline of the retrieval.
        search_width: How many passages each search asks for; ``None`` for as many as the caller
            asked for.
    """

    def __init__(self, call: Call, trace: Trace) -> None:
        self.call = call
        self.settings = call.settings
        self.learned = call.learned
        self.trace = trace
        self.degradations = call.known_problems
        self.query = Query(call.original, call.original, call.original)
        self.original = Variant("original", call.original, call.settings.fusion.weights["original"])
        self.keywords = ""
        self.is_follow_up = bool(call.history)
        self.texts = NOTHING
        self.deadline = Deadline.after(call.settings.limits.deadline_ms / 1e3)
        self.search_width = call.search_width
        self.glossary_terms: Sequence[Term] = ()

    def prepare(self) -> str:
        """Understand the question; return why the model is not asked, ``""`` if it may be."""
        call, trace = self.call, self.trace
        self.query = prepare_query(call.original, self.settings)
        self.keywords = self.query.keywords if self.settings.preprocess.enabled else ""
        self.original = Variant("original", self.query.text, self.original.weight)
        self.glossary_terms = self.find_glossary_terms(call.original)
        trace.record_stage("preprocess", trace.measure_elapsed())
        reason = find_skip_reason(
            self.settings,
            call.original,
            has_history=bool(call.history),
            find_spans=lambda: find_protected_spans(
                call.original, language=self.query.language or "auto"
            ),
        )
        # A page keeps its passages, so no variant is searched.
        reason = reason or (PAGED if call.page else "")
        if reason:
            trace.decision = Decision(call=False, reason=reason)
            if call.history:
                trace.note("history", f"not used for the search: {reason}")
        return reason

    def record_failed_stage(
        self, name: str, outcome: Outcome[Any], detail: str | None = None
    ) -> None:
        """Record in the trace and the degradations that the stage *name* failed."""
        detail = outcome.detail if detail is None else detail
        self.degradations.append(Degradation(name, outcome.reason, detail))
        self.trace.record_stage(
            name, outcome.seconds, "degraded", outcome.reason, began=outcome.began
        )

    def read_response(
        self, variant: Variant, response: Any, initial: Mapping[str, Ranking]
    ) -> SearchResult:
        """Return the passages in *response*, the one to the search for *variant*.

        Raises:
            ResponseShapeError: The response cannot be read.
        """
        options = self.settings.keyword_evidence
        return read_response(
            variant, response, self.call.shape, options=options, initial_rankings=initial
        )

    @cached_property
    def times(self) -> Times:
        """The dates and versions in the question."""
        return read_times(self.call.original, self.query.language, lambda: self.today)

    def read_times(self, texts: Transformation) -> Times:
        """Return the dates and versions in the question or in its standalone form."""
        # In a conversation, a date may be in an earlier message. The standalone form repeats it.
        if texts.standalone:
            return read_times(texts.standalone, self.query.language, lambda: self.today)
        return self.times

    @cached_property
    def today(self) -> date | None:
        """Today's date, read once per question; ``None`` if the user's clock fails."""
        clock = self.call.engine.clock
        try:
            # The system's time, in its own time zone.
            now = datetime.now().astimezone() if clock is None else clock()
            if isinstance(now, datetime):
                return now.date()
            raise TypeError("clock= must return a datetime")
        except Exception as error:
            self.degradations.append(Degradation("clock", "failed", type(error).__name__))
            return None

    def find_glossary_terms(self, text: str) -> Sequence[Term]:
        """Return the glossary's terms in *text*, the question or its standalone form."""
        glossary = self.call.engine.glossary
        terms = () if glossary is None else glossary.find_terms(text, self.query.language)
        for sentence in map(str, terms):
            if ("glossary", sentence) not in self.trace.notes:
                self.trace.note("glossary", sentence)
        return terms
