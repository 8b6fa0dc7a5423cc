"""The flow of one retrieval, written once.

    query ─ preprocess ─┬─ search(original) ───────────────┐
                        └─ gate ─ ask model ─ search × n ──┴─ fuse ─ keyword evidence ─ Retrieval

A generator of steps: it yields what it wants done and is sent what came of it, so that the same flow runs blocking and
awaiting. Every fallback lives here, as an ordinary ``if``. The original's own search starts first and is the answer
whenever the rest is late, wrong or down; only its own failure is raised, as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.preprocessing import Span, protected_spans
from qtmiddleware.retrieval.gate import reason_not_to_ask
from qtmiddleware.retrieval.merging import Found, combined, found, plain_matches, presented
from qtmiddleware.retrieval.question import Question
from qtmiddleware.retrieval.request import Request, evidence, prepared
from qtmiddleware.retrieval.reranking import reranked
from qtmiddleware.retrieval.responses import text_of
from qtmiddleware.retrieval.searching import search_variants
from qtmiddleware.retrieval.transform_stage import Turn
from qtmiddleware.retrieval.variants import variants_of
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.steps import Flow, Leaf, Search, Together
from qtmiddleware.types import Deadline, Decision, Degradation, Query, Retrieval, Trace, Transformation, Variant

logger: Final = get_logger("qtmiddleware")

# The kinds of span that are searched best as they are written.
_LITERAL: Final = frozenset({"identifier", "number", "url"})


def retrieve(request: Request) -> Flow[Retrieval]:
    """Answer *request*; raises what the original's own search raises, and nothing else."""
    return _Retrieving(request).flow()


def transform(request: Request) -> Flow[Transformation]:
    """Ask the model alone; what could not be had is empty, and noted."""
    return _Retrieving(request).transformation()


class _Retrieving:
    """One retrieval under way."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.settings = request.settings
        self.trace = Trace()
        self.trouble: list[Degradation] = [] if request.unread is None else [request.unread]
        self.budget = Deadline.after(self.settings.limits.deadline_ms / 1e3)
        self.query = Query(request.original, request.original, request.original)
        self.original = Variant("original", request.original, self.settings.fusion.weights.original)
        self._failure: BaseException | None = None
        self._turn: Turn | None = None

    def spans(self) -> Sequence[Span]:
        """What the model may not lose of the question."""
        return protected_spans(self.request.original, language=self.query.language or "auto")

    def flow(self) -> Flow[Retrieval]:
        """The whole flow; whatever of ours fails in it, the caller gets what the plain function gives."""
        if self.request.problem is not None:
            return (yield from self._passed_on(self.request.problem))
        try:
            return (yield from self._improved())
        except Exception as error:
            if error is self._failure:
                raise
            self._failed_inside(error)
        finally:
            self._close()
        self.original = replace(self.original, text=self.request.original)
        response = yield Search(self.original.text, None)
        matches = plain_matches(self.original, response, self.request)
        return self._retrieval(response, matches=matches, variants=(self.original,))

    def _passed_on(self, problem: Degradation) -> Flow[Retrieval]:
        """The call as it was made, for a query that cannot be worked with."""
        self.trouble.append(problem)
        query, began = self.request.original, self.trace.clock()
        # A text is still embedded for a function that takes vectors; whatever else was passed is its own affair.
        is_text = isinstance(query, str) and problem.reason != "missing"
        response = yield Search(query if is_text else None, None)
        self._note_original(began, self.trace.clock() - began, None)
        variants = (self.original,) if is_text else ()
        matches = plain_matches(self.original, response, self.request)
        return self._retrieval(response, matches=matches, variants=variants)

    def _improved(self) -> Flow[Retrieval]:
        turn, made = self._before()
        waits_for_first = self.settings.escalation.mode == "auto" and not self.request.history
        if turn is not None and not waits_for_first:
            response, made = yield from self._search_and_ask(turn)
        else:
            response = yield from self._search_original()
        try:
            first = found(self.original, response, self.request.shape)
        except ResponseShapeError as error:
            return (yield from self._unread(response, error))
        if turn is not None and waits_for_first and self._escalates(first):
            made = yield from turn.whole(self._patience())
        variants, repeated = variants_of(made, self.query.text, self.settings.fusion)
        self.trace.notes.extend(repeated)
        lists = yield from search_variants(
            variants, self.request, width=self._width, budget=self.budget, trace=self.trace, trouble=self.trouble
        )
        return (yield from self._result(first, variants, lists, made))

    def transformation(self) -> Flow[Transformation]:
        """The model's part alone; whatever fails in it is noted."""
        made = NOTHING
        try:
            turn, made = self._before()
            if turn is not None:
                made = yield from turn.whole(self._patience())
        except Exception as error:
            self._failed_inside(error)
        finally:
            self._close()
        return replace(made, notes=made.notes + tuple((it.stage, it.reason) for it in self.trouble))

    def _failed_inside(self, error: Exception) -> None:
        kind = f"{type(error).__name__} inside the middleware"
        self.request.memory.sampler.log(logger, "nothing was improved", [kind], level=logging.ERROR)
        logger.debug("the middleware failed", exc_info=error)
        self.trouble.append(Degradation("middleware", "failed", type(error).__name__))

    def _close(self) -> None:
        if self._turn is not None:
            self._turn.close()

    def _before(self) -> tuple[Turn | None, Transformation]:
        """The turn at the model, or what it is remembered to have said, or neither."""
        self.query = prepared(self.request.original, self.settings)
        self.original = replace(self.original, text=self.query.text)
        self.trace.stage("preprocess", self.trace.clock())
        reason = reason_not_to_ask(
            self.settings,
            self.request.original,
            is_follow_up=bool(self.request.history),
            literals=lambda: [it.text for it in self.spans() if it.kind in _LITERAL],
        )
        if reason:
            self.trace.decision = Decision(call=False, reason=reason)
            return None, NOTHING
        question = Question(self.request.original, self.request.history, self.settings)
        self._turn = Turn(question, self.query, self.request, self.trace, self.trouble, self.spans, self.budget)
        if (remembered := self._turn.remembered()) is not None:
            self.trace.decision = Decision(call=False, reason="cached")
            return None, remembered
        if self.request.history:
            self.request.memory.gate.spend(self.settings.escalation.target_call_rate)
        self.trace.decision = Decision(call=True, reason="conversation" if self.request.history else "always")
        return self._turn, NOTHING

    def _escalates(self, first: Found) -> bool:
        """The gate, once the first result is known."""
        gate, rate = self.request.memory.gate, self.settings.escalation.target_call_rate
        texts = (text_of(first.shape, it, self.settings.keyword_evidence.text_field) for it in first.ranking.items)
        self.trace.decision = gate.decide(first.ranking.scores, texts, self.query.keywords, target_call_rate=rate)
        return self.trace.decision.call

    @property
    def _width(self) -> int | None:
        """How many passages a search asks for; ``None`` leaves the caller's own number."""
        top_k, wide = self.request.top_k, self.request.candidates
        return None if top_k is None or top_k >= wide or self.request.memory.refuses_widening else wide

    def _search_original(self) -> Flow[Any]:
        began, width = self.trace.clock(), self._width
        response = yield from self._searched(Search(self.query.text, width, may_narrow=True))
        self._note_original(began, self.trace.clock() - began, width)
        return response

    def _searched(self, step: Search) -> Flow[Any]:
        """The response to *step*; what the function raises is known as its own from here on."""
        try:
            return (yield step)
        except Exception as error:
            self._failure = error
            raise

    def _note_original(self, began: float, seconds: float, width: int | None) -> None:
        self.trace.searches += 1
        self.trace.original_ms = seconds * 1e3
        self.trace.stage("search.original", seconds, began=began)
        if width is not None and self.request.memory.refuses_widening:
            self.trace.searches += 1
            self.trace.note("keyword_evidence", f"the function refuses {width} candidates")

    def _patience(self) -> Deadline:
        return self.budget.sooner(self.settings.limits.llm_timeout_ms / 1e3)

    def _search_and_ask(self, turn: Turn) -> Flow[tuple[Any, Transformation]]:
        yield from turn.begin(self._patience())
        width = self._width
        steps: list[Leaf] = [Search(self.query.text, width, may_narrow=True), *turn.steps()]
        began = self.trace.clock()
        outcome, *replies = yield Together(steps, turn.patience, self.settings.limits.max_concurrency, essential=1)
        if outcome.error is not None:
            self._failure = outcome.error
            raise outcome.error
        self._note_original(began, outcome.seconds, width)
        return outcome.value, (yield from turn.end(replies))

    def _unread(self, response: Any, error: ResponseShapeError) -> Flow[Retrieval]:
        """The plain function's own answer, where we cannot read it."""
        memory = self.request.memory
        if not memory.warned_of_shape:
            memory.warned_of_shape = True
            logger.warning("nothing was improved: %s", str(error))
        if self._width is not None:
            memory.refuses_widening = True
            if isinstance(response, Coroutine):
                response.close()
            response = yield from self._searched(Search(self.query.text, None))
        self.trouble.append(Degradation("response", "unreadable", error.shape))
        return self._retrieval(response, matches=(), variants=(self.original,))

    def _result(
        self, first: Found, variants: tuple[Variant, ...], came: Sequence[Found], made: Transformation
    ) -> Flow[Retrieval]:
        """Everything that was found, as one."""
        if len(came) < min(self.settings.fusion.min_successes, len(variants)):
            self.trouble.append(Degradation("search", "too_few_successes", f"{len(came)} of {len(variants)} variants"))
            came = []
        heard = [it.ranking.variant for it in came]
        keywords = partial(evidence, self.query, made, heard, self.settings)
        whole = combined(first, came, request=self.request, keywords=keywords, trace=self.trace)
        if self.request.reranks:
            whole = yield from reranked(whole, self.request, self.budget, self.trace, self.trouble)
        outcome = presented([first, *came], whole, self.request)
        return self._retrieval(
            outcome.response,
            matches=outcome.matches,
            variants=(first.ranking.variant, *variants),
            transformation=made,
            offsets=whole.candidates.offsets,
            rankings=whole.rankings,
            fused=whole.keys,
            reranked=tuple(whole.candidates.keys[: len(whole.judged)]),
        )

    def _retrieval(self, response: Any, **parts: Any) -> Retrieval:
        self.trace.finish()
        kinds = [f"{it.stage} {it.reason}" for it in self.trouble]
        said = f"retrieval {self.trace.query_id} degraded" if kinds else ""
        self.request.memory.sampler.log(logger, "retrieval degraded", kinds, said=said)
        return Retrieval(
            original_query=self.request.original,
            response=response,
            status="degraded" if self.trouble else "full",
            degradations=tuple(self.trouble),
            trace=self.trace,
            **parts,
        )
