"""Search greedily for good settings: choose the best tier, then change one setting at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config.keys import to_camel_case
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import SYSTEMS, asks_a_model
from qtmiddleware.kit.evaluation.tuning.trials import (
    OVERALL_ERRORS,
    Budget,
    FlatSettings,
    Trial,
    Trials,
    flatten_settings,
    load_default_settings,
)

FREE_TIERS: Final = ("rules",)
"""The tiers that need no model."""
TIERS: Final = ("combined", "combined, no hyde", "decompose", "hyde", "rewrite", *FREE_TIERS)
"""The tiers that are tried by default, as names from `evaluation.SYSTEMS`."""

RATES: Final = (0.2, 0.35, 0.5)
"""The target call rates to try, if the budget allows them. The budget's limit is also tried."""

# The values to try per setting; the library's default is always tried too.
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
"""The number of passes over all settings. Each pass starts with the values of the pass before."""
DEFAULTS: Final = ("combined", "rules")
"""The tiers that are the library's defaults, with a model and without a model."""
# A gate's target is the library's rate or the budget's, whichever is lower. If the gate still
# calls the model too often, smaller shares of that target are tried.
_RATE: Final = Settings().escalation.target_call_rate
_SHARES: Final = (1.0, 0.85, 0.7, 0.5)


def list_tuning_options(
    settings: FlatSettings, *, max_call_rate: float | None, has_word_search: bool
) -> dict[str, list[FlatSettings]]:
    """Return the options to try for each setting that has an effect, by the setting's dotted key.

    Args:
        settings: The current settings, by dotted key. They decide which settings have an effect.
        max_call_rate: The largest share of questions for which the model may be called, or
            ``None`` for no limit.
        has_word_search: Whether the store supports word search (``hybrid.enabled``).
    """
    transformation = settings.get("transformationType", "none")
    asks_model = transformation != "none"
    keys = ["keywordEvidence.weight"]
    if asks_model:
        keys.append("keywordEvidence.variants")
        # Your own transformation sets its own weights, so there are none to try.
        row = TRANSFORMS.get(transformation)
        text_fields = {
            name
            for part in (row.parts or (transformation,) if row else ())
            for name in TRANSFORMS[part].fields
        }
        if transformation == "combined" and not settings.get("llm.hydeInCombined", True):
            text_fields.discard("hyde")
        weights = [
            f"fusion.weights.{to_camel_case(name)}" for name in TEXT_FIELDS if name in text_fields
        ]
        keys += [key for key in weights if key in _VALUES]
    keys.append("preprocess.applyTo")
    if has_word_search:
        keys.append("hybrid.enabled")
    options_by_key: dict[str, list[FlatSettings]] = {
        key: [
            {key: value} for value in dict.fromkeys((*_VALUES[key], load_default_settings()[key]))
        ]
        for key in keys
    }
    if asks_model:
        options_by_key["escalation"] = list(_list_gate_options(max_call_rate))
    return options_by_key


def _list_gate_options(max_call_rate: float | None) -> Iterator[FlatSettings]:
    """Yield the gate's settings for each call rate to try, up to *max_call_rate*.

    ``None`` means no limit. Settings that call the model for every question are then included.
    """
    limit = 1.0 if max_call_rate is None else max_call_rate
    if limit >= 1.0:
        yield {"escalation.mode": "always"}
    for rate in sorted({*RATES, limit} - {0.0, 1.0}):
        if rate <= limit:
            yield build_gate_settings(rate)


def build_gate_settings(call_rate: float) -> FlatSettings:
    """Return settings for a gate that calls the model for a share *call_rate* of the questions."""
    return {"escalation.mode": "auto", "escalation.targetCallRate": call_rate}


def estimate_trial_count(tier_settings: Sequence[FlatSettings], pass_count: int) -> int:
    """Estimate the maximum number of candidates that a search tries.

    Progress reports show this number as the total.

    Args:
        tier_settings: The settings of each tier, by dotted key.
        pass_count: The number of passes over all settings.
    """
    options_by_tier = (
        list_tuning_options(settings, max_call_rate=None, has_word_search=True)
        for settings in tier_settings
    )
    # One option of each setting is the current one, which needs no new trial.
    longest = max(
        sum(len(options) - 1 for options in by_key.values()) for by_key in options_by_tier
    )
    return 1 + 2 * len(tier_settings) + pass_count * longest


@dataclass(frozen=True, slots=True)
class Search:
    """A greedy search for the best settings on the training questions.

    Attributes:
        trials: Runs the candidates.
        budget: The limits for candidates.
        tiers: The tiers to try, as names from `evaluation.SYSTEMS`.
        has_word_search: Whether the store supports word search (``hybrid.enabled``).
    """

    trials: Trials
    budget: Budget
    tiers: Sequence[str]
    has_word_search: bool

    def find_default_trial(self) -> Trial:
        """Return the trial of the library's default, or of the raw query as the last resort.

        A default that breaks the budget is tried again with a gate that calls the model less often.
        If every default breaks the budget, the raw query is returned.
        """
        candidates = (
            trial for tier in DEFAULTS if tier in self.tiers for trial in self._run_tier(tier)
        )
        return next((trial for trial in candidates if not trial.broken_limits), self.trials.raw)

    def find_best_trial(self) -> Trial:
        """Return the best trial if it is clearly better than the default, or else the default.

        The required gain is larger than in `choose_better_trial`, because the best of many trials
        often owes its score to luck. A trial with fewer model calls may replace the default without
        a gain.
        """
        default, best = self.find_default_trial(), self._run_greedy_search()
        is_sure = best.is_clearly_better(default, OVERALL_ERRORS) or best.can_replace(default)
        return best if is_sure or default is self.trials.raw else default

    def _run_greedy_search(self) -> Trial:
        """Return the best trial: choose a tier, then change one setting at a time."""
        tiers = [trial for tier in self.tiers for trial in self._run_tier(tier)]
        best = choose_better_trial(self.find_default_trial(), [self.trials.raw, *tiers])
        # No tier beats the raw query, and the raw query has no settings to change.
        if best is self.trials.raw:
            return best
        for _ in range(PASSES):
            before = best
            options_by_key = list_tuning_options(
                best.settings,
                max_call_rate=self.budget.max_call_rate,
                has_word_search=self.has_word_search,
            )
            for options in options_by_key.values():
                best = choose_better_trial(
                    best,
                    [
                        self.trials.run_candidate(best.tier, {**best.settings, **option})
                        for option in options
                    ],
                )
            # A pass without a change would repeat itself.
            if best is before:
                break
        return best

    def _run_tier(self, tier: str) -> list[Trial]:
        """Run *tier*, and return its trials.

        If *tier* breaks the budget, it is also run with gates at decreasing call rates. If the
        budget limits searches, the tier's settings get the same limit.
        """
        settings = flatten_settings(SYSTEMS[tier])
        if self.budget.max_searches is not None and asks_a_model(tier):
            settings["limits.maxSearches"] = int(self.budget.max_searches)
        results = [self.trials.run_candidate(tier, settings)]
        call_rate = self._choose_highest_call_rate(results[0])
        if asks_a_model(tier) and results[0].broken_limits and 0.0 < call_rate < 1.0:
            # A gate keeps its target over time, but may exceed it on a sample of questions. Lower
            # targets are therefore tried until one keeps the budget.
            for share in _SHARES:
                results.append(
                    self.trials.run_candidate(
                        tier, {**settings, **build_gate_settings(round(share * call_rate, 3))}
                    )
                )
                if not results[-1].broken_limits:
                    break
        return results

    def _choose_highest_call_rate(self, ungated_trial: Trial) -> float:
        """Return the highest call rate that the budget allows, at most the library's default.

        *ungated_trial* is the trial without a gate. It shows the cost of calling the model for
        every question.
        """
        rates = [_RATE, 1.0 if self.budget.max_call_rate is None else self.budget.max_call_rate]
        limit, usd_per_thousand = (
            self.budget.max_usd_per_thousand,
            ungated_trial.score.usd_per_thousand,
        )
        if limit is not None and usd_per_thousand:
            rates.append(limit / usd_per_thousand)
        return min(rates)


def choose_better_trial(current_trial: Trial, candidates: Iterable[Trial]) -> Trial:
    """Return the best candidate that is clearly better than *current_trial*.

    If there is none, *current_trial* is returned. Candidates that break the budget are ignored. If
    another candidate needs fewer model calls than this result and loses almost nothing, the other
    candidate is returned instead.
    """
    allowed = [trial for trial in candidates if not trial.broken_limits]
    better = [trial for trial in allowed if trial.is_clearly_better(current_trial)]
    best = max(better, key=lambda trial: trial.mean_ndcg, default=current_trial)
    cheaper = [trial for trial in allowed if trial.can_replace(best)]
    return min(
        cheaper, key=lambda trial: (trial.calls_per_question, -trial.mean_ndcg), default=best
    )
