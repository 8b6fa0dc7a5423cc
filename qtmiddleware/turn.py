"""One question's turn at the language model: remembered, had from an equal question under way, or asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from qtmiddleware.asking import NOTHING, Question
from qtmiddleware.cache import digest
from qtmiddleware.deadline import Deadline
from qtmiddleware.drivers import in_background
from qtmiddleware.flights import ABANDONED, STANDSTILL, Flight
from qtmiddleware.preprocessing import Span
from qtmiddleware.request import Request
from qtmiddleware.steps import Flow, Join, Leaf, Outcome, Recall, Together
from qtmiddleware.trace import Decision, Trace
from qtmiddleware.types import Degradation, Query, Transformation

# A leader that is this much later than it may be has been stopped without a word.
_GRACE: Final = 1.0

_Made = tuple[Transformation, tuple[Degradation, ...]]


class Turn:
    """What `begin` leaves to be waited for are the `steps`; `end` makes a transformation of what came of them.

    Equal questions at the same time ask the model once: the first one leads, and the others hear what it heard, also
    that it failed. With a shared cache that holds for all processes. Where the leader gives up for a reason of its own
    (cancelled, out of time) the next of them leads. `close` must be called at last, whatever happened.
    """

    def __init__(
        self,
        question: Question,
        query: Query,
        request: Request,
        trace: Trace,
        trouble: list[Degradation],
        spans: Callable[[], Sequence[Span]],
    ) -> None:
        self.patience = Deadline()
        self._question = question
        self._language = query.language or "auto"
        self._request = request
        self._settings = request.settings
        self._cache = request.memory.cache
        self._trace = trace
        self._trouble = trouble
        self._spans = spans
        self._key = question.cache_key(request.model) if request.settings.cache.enabled else None
        self._shares = request.shares
        self._known: _Made | None = None
        self._led: Flight | None = None
        self._joined: Flight | None = None
        self._elsewhere = False
        self._has_claim = False
        self._cache_seconds = self._settings.cache.redis_timeout_ms / 1e3

    def remembered(self) -> Transformation | None:
        """What this process knows already."""
        found = None if self._key is None else self._cache.local.get(self._key)
        if found is not None:
            self._trace.cache_hits += 1
        return found

    def whole(self, patience: Deadline) -> Flow[Transformation]:
        """`begin`, what there is to be waited for, and `end`."""
        yield from self.begin(patience)
        outcomes = () if self._known is not None else (yield self._together())
        return (yield from self.end(outcomes))

    def begin(self, patience: Deadline) -> Flow[None]:
        """Find out whether to ask, to wait for somebody who asks, or neither; nobody waits longer than *patience*."""
        self.patience = patience
        self._joined, self._elsewhere = None, False
        if self._key is not None and self._shares:
            flight, leads = self._cache.flights.board(self._key, self.patience.at + _GRACE)
            if flight is not None and not leads:
                self._joined = flight
                self._not_asked("shared")
                return
            self._led = flight
            # It may have landed between our look and now.
            if (found := self.remembered()) is not None:
                self._found(found)
                return
        yield from self._recall()
        if self._known is None and not self._elsewhere and (reason := self._request.reason_to_wait()) is not None:
            self._not_asked(reason.reason)
            self._known = NOTHING, (Degradation("transform", reason.reason, str(reason)),)
            self._landed(*self._known)
            yield from self._share(*self._known)

    def steps(self) -> list[Leaf]:
        """What is to be waited for, until the patience ends."""
        if self._known is not None:
            return []
        if self._joined is not None:
            return [Join(self._joined)]
        if self._elsewhere and self._key is not None and self._cache.shared is not None:
            return [Recall(partial(self._cache.shared.wait, digest(self._key), self.patience))]
        return list(self._question.asks(self.patience))

    def end(self, outcomes: Sequence[Outcome]) -> Flow[Transformation]:
        """What came of it; what went wrong is added to the trouble."""
        made, trouble = yield from self._ended(outcomes)
        self._trace.notes.extend(made.notes)
        self._trouble.extend(trouble)
        return made

    def _ended(self, outcomes: Sequence[Outcome]) -> Flow[_Made]:
        while self._known is None and (self._joined is not None or self._elsewhere):
            (outcome,) = outcomes
            if self._joined is None:
                self._elsewhere = False
                if isinstance(outcome.value, Transformation):
                    self._found(outcome.value)
                # Otherwise the claim is ours now.
                self._has_claim = self._known is None
            elif outcome.value is STANDSTILL:
                self._shares = False
                yield from self.begin(self.patience)
            elif not outcome.late and outcome.value is not ABANDONED:
                self._trace.cache_hits += 1
                made, trouble = outcome.value
                return made, trouble
            elif self.patience.passed:
                return NOTHING, (Degradation("transform", "timeout", "an equal question got no answer in time"),)
            else:
                yield from self.begin(self.patience)
            if self._known is None:
                outcomes = yield self._together()
        if self._known is not None:
            return self._known
        while self._question.answered(outcomes, self._trace):
            outcomes = yield self._together()
        made = self._question.understood(self._request.original, self._spans(), self._language)
        trouble = tuple(self._question.trouble)
        self._landed(made, trouble)
        yield from self._share(made, trouble)
        return made, trouble

    def close(self) -> None:
        """Whoever waits for us waits no longer, here or in another process."""
        if self._has_claim and self._cache.shared is not None and self._key is not None:
            self._has_claim = False
            in_background(partial(self._cache.shared.release, digest(self._key)))
        if self._led is not None and self._key is not None:
            self._cache.flights.landed(self._key, self._led, ABANDONED)
            self._led = None

    def _together(self) -> Together:
        return Together(self.steps(), self.patience, self._settings.limits.max_concurrency)

    def _recall(self) -> Flow[None]:
        """Look into the shared cache, for no longer than that may take."""
        shared = self._cache.shared
        if shared is None or self._key is None or shared.is_resting:
            return
        from qtmiddleware.cache.redis_cache import Claim

        call = partial(shared.claim, digest(self._key), self.patience.remaining() + _GRACE)
        self._has_claim = True
        (outcome,) = yield Together([Recall(call)], self.patience.sooner(self._cache_seconds), 1)
        if isinstance(outcome.value, Transformation):
            self._has_claim = False
            self._trace.cache_hits += 1
            self._found(outcome.value)
        elif outcome.value is Claim.ELSEWHERE:
            self._has_claim = False
            self._elsewhere = self._shares

    def _share(self, made: Transformation, trouble: Sequence[Degradation]) -> Flow[None]:
        shared = self._cache.shared
        if shared is None or self._key is None or shared.is_resting:
            return
        key = digest(self._key)
        call = partial(shared.release, key) if made.is_empty or trouble else partial(shared.keep, key, made)
        self._has_claim = False
        yield Together([Recall(call)], Deadline.after(self._cache_seconds), 1)

    def _found(self, made: Transformation) -> None:
        self._not_asked("cached")
        self._known = made, ()
        self._landed(made, ())

    def _landed(self, made: Transformation, trouble: Sequence[Degradation]) -> None:
        """Keep what is whole, and tell those who wait; a leader that ran out of time tells them nothing."""
        if self._key is None:
            return
        if not made.is_empty and not trouble:
            self._cache.local.put(self._key, made)
        if self._led is not None and not any(it.reason == "timeout" for it in trouble):
            self._cache.flights.landed(self._key, self._led, (made, trouble))
            self._led = None
        self.close()

    def _not_asked(self, reason: str) -> None:
        decision = self._trace.decision or Decision(call=False, reason=reason)
        self._trace.decision = replace(decision, call=False, reason=reason)
