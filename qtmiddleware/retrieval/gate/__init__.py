"""Whether a question is worth a call to the language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from qtmiddleware.retrieval.gate.beforehand import nothing_to_transform, reason_not_to_ask
from qtmiddleware.retrieval.gate.scale import MAX_OBSERVED, Scale
from qtmiddleware.retrieval.gate.signals import LOOKED_AT, signals_of
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.types import Decision

__all__ = ["MAX_OBSERVED", "Gate", "nothing_to_transform", "reason_not_to_ask"]

# Between which numbers most queries lie where sentences are compared by cosines; counts until an index shows its own.
_EXPECTED: Final = {"lead": (0.015, 0.2), "coverage": (0.4, 1.0), "backing": (0.3, 0.9), "joint_lead": (0.3, 0.6)}
# Between which doubts most queries lie, as evenly as need be: the mean of several places is seldom near 0 or 1.
_LOWEST, _HIGHEST = 0.15, 0.85

# Calls that were made too often or too rarely are evened out over about so many queries.
HORIZON: Final = 20
# How many calls nobody could refuse the others may owe: their rate falls by no more than LENT / HORIZON.
LENT: Final = 4.0


class Gate:
    """Decides from the first result of a query, against what it has seen of the same index before.

    Each signal (see `signals_of`) becomes its place among those of the queries before it, so that no scale of scores
    matters. Doubt is how low they are, the mean of all with the same weight. The model is asked where it is above the
    threshold that about the wanted share of the queries exceeds; the threshold rises with every call too many and falls
    with every one too few, so that the rate is kept whatever the results are like. Safe with many threads.
    """

    def __init__(self) -> None:
        self._scales = {name: Scale(*expected) for name, expected in _EXPECTED.items()}
        # How many calls fewer than wanted were made.
        self._unused = 0.0
        self._lock = ForkLock()

    def spend(self, target_call_rate: float) -> None:
        """Count a call that was not decided here, so that the others leave room for it."""
        with self._lock.free:
            self._unused = min(self._unused, max(self._unused + target_call_rate - 1.0, -LENT))

    def decide(
        self,
        scores: Sequence[float | None],
        texts: Iterable[str | None] = (),
        keywords: str = "",
        *,
        target_call_rate: float,
    ) -> Decision:
        """Whether to ask the model, given the first result's *scores* and *texts*, best first, and the *keywords*."""
        if target_call_rate <= 0.0:
            return Decision(call=False, reason="target_call_rate_is_zero")
        signals = signals_of(scores, list(islice(texts, LOOKED_AT)), keywords)
        if not signals:
            self.spend(target_call_rate)
            return Decision(call=True, reason="too_few_scores", signals={"scores": len(scores)})
        with self._lock.free:
            scales = [self._scales[name] for name in signals]
            observed = max(map(len, scales))
            places = [scale.place(signal) for scale, signal in zip(scales, signals.values(), strict=True)]
            doubt = 1.0 - sum(places) / len(places)
            asked_above = 1.0 - target_call_rate - self._unused / HORIZON
            threshold = _LOWEST + (_HIGHEST - _LOWEST) * asked_above
            call = doubt > threshold or target_call_rate >= 1.0
            self._unused += target_call_rate - call
        signals |= {"doubt": doubt, "threshold": threshold, "observed": observed}
        if target_call_rate >= 1.0:
            return Decision(call=True, reason="target_call_rate_is_one", signals=signals)
        return Decision(call=call, reason="unsure_first_result" if call else "clear_first_result", signals=signals)
