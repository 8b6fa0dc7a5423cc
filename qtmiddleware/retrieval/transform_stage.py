"""One question's turn at the language model: remembered, had from an equal question under way, or asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import Span
from qtmiddleware.retrieval.question import Question
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.cache import digest
from qtmiddleware.runtime.single_flight import ABANDONED, STANDSTILL, Flight
from qtmiddleware.runtime.steps import Flow, Join, Leaf, Outcome, Recall, Together
from qtmiddleware.runtime.warming import is_loading
from qtmiddleware.types import Deadline, Decision, Degradation, Query, Trace, Transformation

# A leader that is this much later than it may be has been stopped without a word.
_GRACE: Final = 1.0

# What says nothing about equal questions.
_OWN_TROUBLE: Final = frozenset({"timeout", "cancelled"})

_Made = tuple[Transformation, tuple[Degradation, ...]]


class _Early:
    """Lets *flight* land with all *count* replies once they are there: its leader may search much longer."""

    def __init__(self, flight: Flight, count: int) -> None:
        self._flight = flight
        self._outcomes: list[Outcome | None] = [None] * count

    def heard(self, position: int, outcome: Outcome) -> None:
        """Take one reply in; where its leader gave one up, that is no reply for others."""
        if getattr(outcome.error, "reason", "") in _OWN_TROUBLE or not isinstance(outcome.error, Exception | None):
            return
        self._outcomes[position] = outcome
        if all(self._outcomes):
            self._flight.land(tuple(self._outcomes))


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
        budget: Deadline,
    ) -> None:
        self.patience = Deadline()
        self._budget = budget
        self._question = question
        self._language = query.language or "auto"
        self._request = request
        self._settings = request.settings
        self._fits = question.could_be_answered_by
        self._cache = request.memory.cache
        self._trace = trace
        self._trouble = trouble
        self._spans = spans
        self._key = question.cache_key(request.model) if request.settings.cache.enabled else None
        self._shared = None if self._key is None else self._cache.shared
        self._shares = request.shares
        # Others who hear the replies know the first prompts alone.
        self._lands_early = question.is_last_round
        self._known: _Made | None = None
        self._led: Flight | None = None
        self._joined: Flight | None = None
        self._elsewhere = False
        self._has_claim = False
        self._cache_seconds = self._settings.cache.redis_timeout_ms / 1e3

    def _shared_key(self) -> str:
        return digest(self._key)

    def remembered(self, *, counts: bool = True) -> Transformation | None:
        """What this process knows already; a second look *counts* no more."""
        found = None if self._key is None else self._cache.local.get(self._key, counts=counts)
        if found is not None:
            self._trace.cache_hits += 1
        return found

    def whole(self, patience: Deadline) -> Flow[Transformation]:
        """`begin`, what there is to be waited for, and `end`."""
        yield from self.begin(patience)
        outcomes = () if self._known is not None else (yield self._together())
        return (yield from self.end(outcomes))

    def begin(self, patience: Deadline) -> Flow[None]:
        """Find out whether to ask, to wait for somebody who asks, or neither; nobody waits longer than *patience*.

        While what the model is asked with is being loaded, its time has not begun.
        """
        if is_loading():
            patience = Deadline(self._budget.at, seconds=patience.remaining())
        self.patience = patience
        self._joined, self._elsewhere = None, False
        if self._key is not None and self._shares:
            flight, leads = self._cache.flights.board(self._key, patience.at + _GRACE)
            if flight is None:
                # We are at work for the one who asks, in whichever process.
                self._shares = False
            elif not leads:
                self._joined = flight
                return
            else:
                self._led = flight
                # It may have landed between our look and now.
                if (found := self.remembered(counts=False)) is not None:
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
        if self._elsewhere and self._shared is not None:
            return [Recall(partial(self._shared.wait, self._shared_key(), self.patience, self._fits))]
        asks = self._question.asks(self.patience)
        if self._led is not None and self._lands_early:
            early = _Early(self._led, len(asks))
            for position, ask in enumerate(asks):
                ask.heard = partial(early.heard, position)
        return list(asks)

    def end(self, outcomes: Sequence[Outcome]) -> Flow[Transformation]:
        """What came of it; what went wrong is added to the trouble."""
        made, trouble = yield from self._ended(outcomes)
        self._trace.notes.extend(made.notes)
        self._trouble.extend(trouble)
        return made

    def _ended(self, outcomes: Sequence[Outcome]) -> Flow[_Made]:
        while self._known is None and (self._joined is not None or self._elsewhere):
            value = outcomes[0].value
            if self._elsewhere:
                self._elsewhere = False
                if isinstance(value, Transformation):
                    self._trace.cache_hits += 1
                    self._found(value)
                # Otherwise the claim is ours now.
                self._has_claim = self._known is None
            elif isinstance(value, tuple):
                self._trace.cache_hits += 1
                self._not_asked("shared")
                self._known = self._told(value)
            if self._known is None and self.patience.passed:
                self._not_asked("shared")
                self.close()
                return NOTHING, (Degradation("transform", "timeout", "an equal question got no answer in time"),)
            if self._known is None and self._joined is not None:
                self._shares = value is not STANDSTILL
                yield from self.begin(self.patience)
            if self._known is None:
                outcomes = yield self._together()
        if self._known is not None:
            return self._known
        while self._question.answered(outcomes, self._trace) and not self.patience.passed:
            outcomes = yield self._together()
        made, trouble = self._understood()
        self._landed(made, trouble)
        yield from self._share(made, trouble)
        return made, trouble

    def _told(self, value: _Made | tuple[Outcome, ...]) -> _Made:
        """What became of an equal question, or what becomes of the replies to it, which cost us nothing."""
        if not isinstance(value[0], Outcome):
            return value
        self._question.answered(value, Trace())
        made, trouble = self._understood()
        # Its leader may fail yet with a search of its own.
        self._landed(made, trouble)
        return made, trouble

    def _understood(self) -> _Made:
        made = self._question.understood(self._request.original, self._spans(), self._language)
        return made, tuple(self._question.trouble)

    def close(self) -> None:
        """Whoever waits for us waits no longer, here or in another process, and nor does a thread of ours."""
        if self._elsewhere:
            self.patience.cancel()
        if self._has_claim and self._shared is not None:
            # Where there is no thread for that, it ends by itself.
            with suppress(ModelError):
                self._request.bulkhead.start(partial(self._shared.release, self._shared_key()))
        self._let_land(ABANDONED)

    def _together(self) -> Together:
        return Together(self.steps(), self.patience, self._settings.limits.max_concurrency)

    def _recall(self) -> Flow[None]:
        """Look into the shared cache, for no longer than that may take."""
        shared = self._shared
        if shared is None or shared.is_resting:
            return
        from qtmiddleware.runtime.cache.redis_cache import Claim

        call = partial(shared.claim, self._shared_key(), self.patience.remaining() + _GRACE, self._fits)
        self._has_claim = True
        (outcome,) = yield Together([Recall(call)], self.patience.sooner(self._cache_seconds), 1)
        if isinstance(outcome.value, Transformation):
            self._trace.cache_hits += 1
            self._found(outcome.value)
        self._elsewhere = outcome.value is Claim.ELSEWHERE and self._shares
        self._has_claim = self._known is None and outcome.value is not Claim.ELSEWHERE

    def _share(self, made: Transformation, trouble: Sequence[Degradation]) -> Flow[None]:
        shared = self._shared
        if shared is None or shared.is_resting:
            return
        key = self._shared_key()
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
        is_ours = any(it.reason in _OWN_TROUBLE for it in trouble)
        self._let_land(ABANDONED if is_ours else (made, trouble))

    def _let_land(self, value: object) -> None:
        if self._led is not None and self._key is not None:
            self._cache.flights.landed(self._key, self._led, value)
            self._led = None

    def _not_asked(self, reason: str) -> None:
        decision = self._trace.decision or Decision(call=False, reason=reason)
        self._trace.decision = replace(decision, call=False, reason=reason)
