"""The search: the best tier first, then one setting after the other, from the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config.keys import camel
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import SYSTEMS, asks_a_model
from qtmiddleware.kit.evaluation.tuning.trials import (
    OVERALL_ERRORS,
    Budget,
    Flat,
    Trial,
    Trials,
    flat,
    load_defaults,
)

FREE_TIERS: Final = ("rules",)
"""Those that ask no model."""
TIERS: Final = ("combined", "combined, no hyde", "decompose", "hyde", "rewrite", *FREE_TIERS)
"""What is tried by default, names of `evaluation.SYSTEMS`."""

RATES: Final = (0.2, 0.35, 0.5)
"""Target call rates that are tried, as far as the budget allows; the budget's own limit is tried too."""

# Beside the library's default, whatever that is.
_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "keywordEvidence.weight": (0.0, 0.2, 0.35, 0.5, 0.65),
    "keywordEvidence.variants": (0.0, 0.3, 0.6, 1.0),
    "fusion.weights.hyde": (0.75, 1.5, 2.5),
    "fusion.weights.rewrite": (0.35, 0.7, 1.4),
    "fusion.weights.subQueries": (0.5, 1.0, 2.0),
    "fusion.weights.stepBack": (0.0, 0.3, 0.6),
    "preprocess.applyTo": ("keywords", "both", "text"),
    "hybrid.enabled": (False, True),
}

PASSES: Final = 2
"""Each setting is looked at so often, the later time beside what the others have become."""
DEFAULTS: Final = ("combined", "rules")
"""The library's own choices with a model and without."""
# A gate is set to the library's own rate or the budget's, and to less where it asks more often than
# it was told.
_RATE: Final = Settings().escalation.target_call_rate
_SHARES: Final = (1.0, 0.85, 0.7, 0.5)


def list_axes(
    settings: Flat, *, max_call_rate: float | None, has_words: bool
) -> dict[str, list[Flat]]:
    """Return what makes a difference under *settings*, by name, with what may be laid over them.

    *has_words* says that the store can be searched by words.
    """
    kind = settings.get("transformationType", "none")
    asks = kind != "none"
    keys = ["keywordEvidence.weight"]
    if asks:
        keys.append("keywordEvidence.variants")
        # A transformation of the user's own brings its weights, so there are none to try.
        row = TRANSFORMS.get(kind)
        asked = {
            name
            for part in (row.parts or (kind,) if row else ())
            for name in TRANSFORMS[part].fields
        }
        if kind == "combined" and not settings.get("llm.hydeInCombined", True):
            asked.discard("hyde")
        weights = [f"fusion.weights.{camel(name)}" for name in TEXT_FIELDS if name in asked]
        keys += [key for key in weights if key in _VALUES]
    keys.append("preprocess.applyTo")
    if has_words:
        keys.append("hybrid.enabled")
    axes: dict[str, list[Flat]] = {
        key: [{key: value} for value in dict.fromkeys((*_VALUES[key], load_defaults()[key]))]
        for key in keys
    }
    if asks:
        axes["escalation"] = list(_list_escalations(max_call_rate))
    return axes


def _list_escalations(max_call_rate: float | None) -> Iterator[Flat]:
    limit = 1.0 if max_call_rate is None else max_call_rate
    if limit >= 1.0:
        yield {"escalation.mode": "always"}
    for rate in sorted({*RATES, limit} - {0.0, 1.0}):
        if rate <= limit:
            yield gate(rate)


def gate(rate: float) -> Flat:
    """Return the settings under which the model is asked about the share *rate* of the questions."""
    return {"escalation.mode": "auto", "escalation.targetCallRate": rate}


def estimate_trials(tiers: Sequence[Flat], passes: int) -> int:
    """Return roughly how many candidates a search tries at most, for its progress."""
    axes = (list_axes(tier, max_call_rate=None, has_words=True) for tier in tiers)
    longest = max(sum(len(options) - 1 for options in of_tier.values()) for of_tier in axes)
    return 1 + 2 * len(tiers) + passes * longest


@dataclass(frozen=True, slots=True)
class Search:
    """A greedy search over *tiers* within *budget*; every candidate is a real run of *trials*."""

    trials: Trials
    budget: Budget
    tiers: Sequence[str]
    has_words: bool

    def find_default(self) -> Trial:
        """Return the library's own choice that keeps the budget; where that asks the model too often, gated."""
        own = (trial for tier in DEFAULTS if tier in self.tiers for trial in self._try_tier(tier))
        return next((trial for trial in own if not trial.broken), self.trials.raw)

    def find_best(self) -> Trial:
        """Return the default, or the best candidate where that is better beyond the luck of many tries."""
        default, found = self.find_default(), self._search_greedily()
        is_sure = found.is_clearly_better(default, OVERALL_ERRORS) or found.can_replace(default)
        return found if is_sure or default is self.trials.raw else default

    def _search_greedily(self) -> Trial:
        tiers = [trial for tier in self.tiers for trial in self._try_tier(tier)]
        held = choose(self.find_default(), [self.trials.raw, *tiers])
        if held is self.trials.raw:
            return held
        for _ in range(PASSES):
            before = held
            axes = list_axes(
                held.settings, max_call_rate=self.budget.max_call_rate, has_words=self.has_words
            )
            for options in axes.values():
                held = choose(
                    held, [self.trials.run(held.tier, {**held.settings, **it}) for it in options]
                )
            if held is before:
                break
        return held

    def _try_tier(self, tier: str) -> list[Trial]:
        """Run a tier as it is, within a budget of searches, and, where it costs too much so, gated to what is allowed.

        A gate keeps its target over time and not to the question; where it asks about too many of
        these, it gets a lower one.
        """
        settings = flat(SYSTEMS[tier])
        if self.budget.max_searches is not None and asks_a_model(tier):
            settings["limits.maxSearches"] = int(self.budget.max_searches)
        found = [self.trials.run(tier, settings)]
        rate = self._limit_rate(found[0])
        if asks_a_model(tier) and found[0].broken and 0.0 < rate < 1.0:
            for share in _SHARES:
                found.append(self.trials.run(tier, {**settings, **gate(round(share * rate, 3))}))
                if not found[-1].broken:
                    break
        return found

    def _limit_rate(self, plain: Trial) -> float:
        """Return how often the model may be asked under the budget, and no more often than the library itself would."""
        rates = [_RATE, 1.0 if self.budget.max_call_rate is None else self.budget.max_call_rate]
        limit, costs = self.budget.max_usd_per_thousand, plain.score.usd_per_thousand
        if limit is not None and costs:
            rates.append(limit / costs)
        return min(rates)


def choose(held: Trial, others: Iterable[Trial]) -> Trial:
    """Return *held*, or the best of the *others* within the budget that is clearly better; of equals the cheapest."""
    allowed = [trial for trial in others if not trial.broken]
    better = [trial for trial in allowed if trial.is_clearly_better(held)]
    best = max(better, key=lambda trial: trial.mean, default=held)
    cheaper = [trial for trial in allowed if trial.can_replace(best)]
    return min(cheaper, key=lambda trial: (trial.calls, -trial.mean), default=best)
