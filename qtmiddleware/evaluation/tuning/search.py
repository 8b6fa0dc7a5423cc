"""The search: the best tier first, then one setting after the other, from the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.evaluation import SYSTEMS, asks_a_model
from qtmiddleware.evaluation.tuning.budget import Budget
from qtmiddleware.evaluation.tuning.grid import axes, flat, gated
from qtmiddleware.evaluation.tuning.trials import OVERALL_ERRORS, Trial, Trials

PASSES: Final = 2
"""Each setting is looked at so often, the later time beside what the others have become."""
DEFAULTS: Final = ("combined", "rules")
"""The library's own choices with a model and without."""
# A gate is set to the library's own rate or the budget's, and to less where it asks more often than it was told.
_RATE: Final = Settings().escalation.target_call_rate
_SHARES: Final = (1.0, 0.85, 0.7, 0.5)


@dataclass(frozen=True, slots=True)
class Search:
    """A greedy search over *tiers* within *budget*; every candidate is a real run of *trials*."""

    trials: Trials
    budget: Budget
    tiers: Sequence[str]
    has_words: bool

    def default(self) -> Trial:
        """The library's own choice that keeps the budget; where that asks the model too often, gated."""
        own = (trial for tier in DEFAULTS if tier in self.tiers for trial in self._tier(tier))
        return next((trial for trial in own if not trial.broken), self.trials.raw)

    def best(self) -> Trial:
        """The default, or the best candidate within the budget where that is better beyond the luck of many tries."""
        default, found = self.default(), self._greedy()
        is_sure = found.is_clearly_better(default, OVERALL_ERRORS) or found.is_cheaper_and_as_good(default)
        return found if is_sure or default is self.trials.raw else default

    def _greedy(self) -> Trial:
        held = chosen(self.default(), [self.trials.raw, *(trial for tier in self.tiers for trial in self._tier(tier))])
        if held is self.trials.raw:
            return held
        for _ in range(PASSES):
            before = held
            for axis in axes(held.settings, max_call_rate=self.budget.max_call_rate, has_words=self.has_words):
                held = chosen(held, [self.trials.run(held.tier, {**held.settings, **it}) for it in axis.options])
            if held is before:
                break
        return held

    def _tier(self, tier: str) -> list[Trial]:
        """A tier as it is and, where it costs too much so, gated to what the budget allows.

        A gate keeps its target over time and not to the question; where it asks about too many of these, it gets a
        lower one.
        """
        settings = flat(SYSTEMS[tier])
        found = [self.trials.run(tier, settings)]
        rate = self._rate(found[0])
        if asks_a_model(tier) and found[0].broken and 0.0 < rate < 1.0:
            for share in _SHARES:
                found.append(self.trials.run(tier, {**settings, **gated(round(share * rate, 3))}))
                if not found[-1].broken:
                    break
        return found

    def _rate(self, plain: Trial) -> float:
        """How often the model may be asked under the budget, and no more often than the library itself would."""
        rates = [_RATE, 1.0 if self.budget.max_call_rate is None else self.budget.max_call_rate]
        limit, costs = self.budget.max_usd_per_thousand, plain.score.usd_per_thousand
        if limit is not None and costs:
            rates.append(limit / costs)
        return min(rates)


def chosen(held: Trial, others: Iterable[Trial]) -> Trial:
    """*held*, or the best of the *others* that keep the budget and are clearly better; of equal ones the cheapest."""
    allowed = [trial for trial in others if not trial.broken]
    better = [trial for trial in allowed if trial.is_clearly_better(held)]
    best = max(better, key=lambda trial: trial.mean, default=held)
    cheaper = [trial for trial in allowed if trial.is_cheaper_and_as_good(best)]
    return min(cheaper, key=lambda trial: (trial.calls, -trial.mean), default=best)
