"""Tune settings on one half of the judged questions, and verify them on the other half.

For example, with the model called for at most 35 % of the questions::

    outcome = tune_settings(bench, dataset, budget=Budget(max_call_rate=0.35))
    outcome.is_better, outcome.config, outcome.comparison[outcome.chosen].difference.gain
"""

from __future__ import annotations

from qtmiddleware.kit.evaluation.tuning.search import FREE_TIERS, TIERS
from qtmiddleware.kit.evaluation.tuning.trials import (
    MIN_ERRORS,
    MIN_GAIN,
    MOST_LOST,
    OVERALL_ERRORS,
    Budget,
    Trial,
    flatten_settings,
    nest_settings,
)
from qtmiddleware.kit.evaluation.tuning.tune import (
    LEAST,
    TRYING,
    TUNED,
    Tuned,
    forecast_tuning,
    split_dataset,
    tune_settings,
)

__all__ = [
    "FREE_TIERS",
    "LEAST",
    "MIN_ERRORS",
    "MIN_GAIN",
    "MOST_LOST",
    "OVERALL_ERRORS",
    "TIERS",
    "TRYING",
    "TUNED",
    "Budget",
    "Trial",
    "Tuned",
    "flatten_settings",
    "forecast_tuning",
    "nest_settings",
    "split_dataset",
    "tune_settings",
]
