"""Run the candidates of a search on the training questions, and check them against a budget.

This module uses flat settings: values by dotted camelCase key, such as ``keywordEvidence.weight``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.keys import to_camel_case
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import (
    BASELINE,
    PRIMARY,
    SYSTEMS,
    Dataset,
    System,
    SystemScore,
    compare_systems,
)
from qtmiddleware.kit.evaluation.bench import Bench, CachedEmbedder, CachedModel
from qtmiddleware.kit.evaluation.own_function import OwnFunction

FlatSettings = Mapping[str, Any]
"""Settings by dotted camelCase key."""

MIN_GAIN: Final = 0.003
"""The smallest gain in nDCG@10 that justifies a more expensive candidate."""
MIN_ERRORS: Final = 1.5
"""A mean gain counts as more than luck if it is at least this many standard errors."""
OVERALL_ERRORS: Final = 2.5
"""The gain of the search's result over the default must be at least this many standard errors.

This is the one-sided 5 % level, divided among the eight settings that are tried.
"""
MOST_LOST: Final = 0.01
"""The largest loss in nDCG@10 at which a candidate with fewer model calls is preferred."""
_CHANCE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The limits of a search for settings. ``None`` means no limit.

    Raises `ConfigError` if a limit is not valid.

    Attributes:
        max_call_rate: The largest share of questions for which the model may be called.
        max_added_ms: The largest time in milliseconds that a system may add to a plain search, for
            95 of 100 questions (p95). Replayed replies count with their original time.
        max_usd_per_thousand: The largest cost in US dollars per 1,000 questions. A config with an
            unknown cost breaks any limit.
        max_searches: The largest mean number of searches per question, at least 1. In systems that
            call the model, each question has this limit too (``limits.maxSearches``), with one more
            search for a question in a conversation.
        max_hurt_rate: The largest share of questions that may get worse than with the raw query.
    """

    max_call_rate: float | None = None
    max_added_ms: float | None = None
    max_usd_per_thousand: float | None = None
    max_searches: float | None = None
    max_hurt_rate: float | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` if a limit is not valid."""
        for name in (limit.name for limit in fields(self)):
            limit, highest = getattr(self, name), 1.0 if name.endswith("_rate") else float("inf")
            lowest = 1.0 if name == "max_searches" else 0.0
            if limit is not None and not (isfinite(limit) and lowest <= limit <= highest):
                allowed = (
                    "a number from 0 to 1"
                    if highest == 1.0
                    else f"a finite number of at least {lowest:.0f}"
                )
                raise ConfigError(
                    f"{name} must be {allowed}, not {limit}",
                    path=name,
                    value=limit,
                    allowed=allowed,
                )

    def list_broken_limits(
        self, score: SystemScore, *, target_call_rate: float | None = None
    ) -> tuple[str, ...]:
        """Return a phrase for each limit that *score* breaks.

        *target_call_rate* is the call rate that a gate keeps over time. If the target is within the
        limit, *score* breaks the limit only if its call rate is significantly above the target
        (exact binomial test, 5 %).
        """
        # The p95, because a median hides the model's time if only some questions wait for it.
        added_ms, usd, hurt_rate = score.added_ms.p95, score.usd_per_thousand, score.hurt_rate
        excesses = (
            self._describe_excess_calls(score, target_call_rate),
            _describe_excess(
                added_ms, self.max_added_ms, "it adds {:.0f} ms (p95), the budget is {:.0f}"
            ),
            _describe_excess(
                usd,
                self.max_usd_per_thousand,
                "1,000 questions cost ${:.3g}, the budget is ${:.3g}",
            ),
            _describe_excess(
                score.searches_per_question,
                self.max_searches,
                "it makes {:.3g} searches per question, the budget is {:.3g}",
            ),
            _describe_excess(
                hurt_rate,
                self.max_hurt_rate,
                "{:.1%} of the questions get worse, the budget is {:.1%}",
            ),
        )
        return tuple(filter(None, excesses))

    def _describe_excess_calls(self, score: SystemScore, target_call_rate: float | None) -> str:
        """Return a phrase if *score* breaks the limit on model calls, or else an empty string."""
        limit = self.max_call_rate
        text = _describe_excess(
            score.call_rate,
            limit,
            "it calls the model for {:.1%} of the questions, the budget is {:.1%}",
        )
        if not text or limit is None or target_call_rate is None or target_call_rate > limit:
            return text
        from scipy.stats import binom

        # On a sample, a gate that keeps its target may by chance call the model more often.
        calls = sum(run.llm_calls > 0 for run in score.runs.values())
        return text if binom.sf(calls - 1, len(score.runs), target_call_rate) < _CHANCE else ""

    def describe_limits(self) -> str:
        """Return the limits in words, or an empty string if there are no limits."""
        limits = (
            (self.max_call_rate, "the model called for at most {:.1%} of the questions"),
            (self.max_added_ms, "at most {:,.0f} ms added (p95)"),
            (self.max_usd_per_thousand, "at most ${:,.3g} per 1,000 questions"),
            (self.max_searches, "at most {:.3g} searches per question"),
            (self.max_hurt_rate, "at most {:.1%} of the questions worse"),
        )
        return "; ".join(text.format(limit) for limit, text in limits if limit is not None)

    def to_dict(self) -> dict[str, float | None]:
        """Return the limits as a dict, ready for JSON."""
        return {to_camel_case(limit.name): getattr(self, limit.name) for limit in fields(self)}


def _describe_excess(value: float | None, limit: float | None, template: str) -> str:
    """Return *template* filled with *value* and *limit* if *value* exceeds *limit*, or else ``""``.

    If *value* is ``None`` and there is a limit, the result says that the cost is not known.
    """
    if limit is None or (value is not None and value <= limit):
        return ""
    return "its cost is not known" if value is None else template.format(value, limit)


def flatten_settings(settings: Mapping[str, Any], key_prefix: str = "") -> dict[str, Any]:
    """Flatten nested *settings* to values by dotted key, as in ``keywordEvidence.weight``.

    Every key in the result begins with *key_prefix*.
    """
    by_key: dict[str, Any] = {}
    for key, value in settings.items():
        by_key.update(
            flatten_settings(value, f"{key_prefix}{key}.")
            if isinstance(value, Mapping)
            else {f"{key_prefix}{key}": value}
        )
    return by_key


def nest_settings(flat_settings: FlatSettings) -> dict[str, Any]:
    """Convert *flat_settings*, values by dotted key, to nested objects as in a config file."""
    config: dict[str, Any] = {}
    for key, value in flat_settings.items():
        *groups, last = key.split(".")
        section = config
        for group in groups:
            section = section.setdefault(group, {})
        section[last] = value
    return config


def drop_default_values(settings: FlatSettings) -> dict[str, Any]:
    """Return the *settings* that differ from the library's defaults, in the order of the defaults.

    The target call rate is left out if no gate uses it.
    """
    effective = dict(settings)
    if effective.get("escalation.mode", "always") != "auto":
        effective.pop("escalation.targetCallRate", None)
    return {
        key: effective[key]
        for key, default in load_default_settings().items()
        if effective.get(key, default) != default
    }


@cache
def load_default_settings() -> Mapping[str, Any]:
    """Return the library's default settings by dotted key."""
    return {key: value for key, value, _ in Config.load(Settings()).rows()}


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """The result of one candidate on the training questions.

    Attributes:
        tier: The name of the system whose settings the candidate started with.
        settings: All settings of the candidate, by dotted key.
        score: The candidate's score.
        broken_limits: A phrase for each limit of the budget that the candidate breaks.
    """

    tier: str
    settings: FlatSettings
    score: SystemScore = field(repr=False)
    broken_limits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The tier and the changed settings, such as ``combined; keywordEvidence.weight 0.5``."""
        tier_settings, settings = (
            drop_default_values(flatten_settings(SYSTEMS[self.tier])),
            drop_default_values(self.settings),
        )
        changed = {key: value for key, value in settings.items() if tier_settings.get(key) != value}
        changed |= {key: self.settings[key] for key in tier_settings if key not in settings}
        return "; ".join(
            [self.tier, *(f"{key} {json.dumps(value)}" for key, value in changed.items())]
        )

    @property
    def config(self) -> dict[str, Any]:
        """The settings that differ from the library's defaults, nested as in a config file."""
        return nest_settings(drop_default_values(self.settings))

    @property
    def mean_ndcg(self) -> float:
        """The mean nDCG@10."""
        return self.score.means[PRIMARY]

    @property
    def calls_per_question(self) -> float:
        """The number of model calls per question."""
        return self.score.llm_calls / len(self.score.runs)

    def is_clearly_better(self, other_trial: Trial, min_errors: float = MIN_ERRORS) -> bool:
        """Return whether the mean gain over *other_trial* is too large to be only luck.

        The gain in nDCG@10 must be at least `MIN_GAIN` and at least *min_errors* standard errors.
        """
        gain, error = self._compute_gain_and_error(other_trial)
        return gain >= max(MIN_GAIN, min_errors * error)

    def can_replace(self, costlier_trial: Trial) -> bool:
        """Return whether this trial needs fewer model calls and loses almost nothing.

        The loss is the difference in mean nDCG@10 to *costlier_trial*. A trial without model calls
        may lose up to `MIN_GAIN`. For any other trial, the loss plus `MIN_ERRORS` standard errors
        must be at most `MOST_LOST`.
        """
        if self.calls_per_question >= costlier_trial.calls_per_question:
            return False
        gain, error = self._compute_gain_and_error(costlier_trial)
        if not self.calls_per_question:
            return gain >= -MIN_GAIN
        return MIN_ERRORS * error - gain <= MOST_LOST

    def _compute_gain_and_error(self, other_trial: Trial) -> tuple[float, float]:
        """Return the mean gain in nDCG@10 over *other_trial*, and the gain's standard error.

        Questions on which either trial failed are left out. If fewer than two questions remain, the
        gain is 0 and the error is infinite.
        """
        other_gains = other_trial.score.gains
        gains = [
            gain - other_gains[question]
            for question, gain in self.score.gains.items()
            if question in other_gains
        ]
        # One of the two trials failed on nearly every question.
        if len(gains) < 2:
            return 0.0, inf
        return sum(gains) / len(gains), stdev(gains) / sqrt(len(gains))

    def to_dict(self) -> dict[str, Any]:
        """Return the candidate and its result as a dict, ready for JSON."""
        return {
            "name": self.name,
            "config": self.config,
            PRIMARY: self.mean_ndcg,
            "gain": self.score.difference.gain,
            "hurtRate": self.score.hurt_rate,
            "searchesPerQuestion": self.score.searches_per_question,
            "callRate": self.score.call_rate,
            "addedMs": self.score.added_ms.to_dict(),
            "usdPerThousand": self.score.usd_per_thousand,
            "broken": list(self.broken_limits),
        }


class Trials:
    """Runs each candidate once on the training questions.

    Attributes:
        raw: The trial of the raw query.
    """

    def __init__(
        self,
        bench: Bench | OwnFunction,
        dataset: Dataset,
        budget: Budget,
        *,
        seed: int,
        report_progress: Callable[[int], None] | None = None,
    ) -> None:
        """Run the raw query, because all candidates are compared with it.

        Args:
            bench: Builds a system from settings.
            dataset: The training questions.
            budget: The limits for candidates.
            seed: The seed of every resampling.
            report_progress: Receives the number of candidates tried so far.
        """
        self._bench, self._dataset, self._budget, self._seed = bench, dataset, budget, seed
        self._report_progress = report_progress
        self._known: dict[tuple[tuple[str, Any], ...], Trial] = {}
        self._baseline: System = build_warm_system(
            bench, flatten_settings(SYSTEMS[BASELINE]), dataset
        )
        self.raw = self.run_candidate(BASELINE, flatten_settings(SYSTEMS[BASELINE]))
        # Candidates are not asked questions on which your own function fails with the raw query.
        self._dataset = dataset.select_questions(self.raw.score.runs)
        # The raw query is not run again. Each candidate is compared with the runs that are known.
        self._baseline = lambda question: self.raw.score.runs[question.id]

    @property
    def finished_trials(self) -> tuple[Trial, ...]:
        """The trials of all candidates, in the order in which they ran."""
        return tuple(self._known.values())

    def run_candidate(self, tier: str, settings: FlatSettings) -> Trial:
        """Return the trial of *settings*, a candidate that started with the settings of *tier*.

        Equal settings run only once.
        """
        # A setting with its default value makes no difference, so it is not part of the key.
        key = tuple(drop_default_values(settings).items())
        if key not in self._known:
            score = self._measure_candidate(settings)
            self._known[key] = Trial(
                tier, dict(settings), score, self._budget.list_broken_limits(score)
            )
            if self._report_progress is not None:
                self._report_progress(len(self._known))
        return self._known[key]

    def _measure_candidate(self, settings: FlatSettings) -> SystemScore:
        """Measure *settings*, and return the score. The first call must measure the raw query."""
        # A score contains the difference from the baseline, so both are measured together.
        systems = {BASELINE: self._baseline}
        name = BASELINE
        if self._known:
            name = "candidate"
            systems[name] = build_warm_system(self._bench, settings, self._dataset)
        return compare_systems(systems, self._dataset, baseline_name=BASELINE, seed=self._seed)[
            name
        ]


def build_warm_system(
    bench: Bench | OwnFunction, settings: FlatSettings, dataset: Dataset
) -> System:
    """Return a system with *settings* whose gate has adapted to the questions of *dataset*.

    A system without an adaptive gate is returned at once.
    """
    system = bench.build_system(nest_settings(settings))
    # A gate adapts its threshold to the questions that it sees, so they are all asked once.
    if settings.get("escalation.mode") == "auto":
        for question in dataset.questions:
            system(question)
    return system


@contextmanager
def add_reply_cache(bench: Bench | OwnFunction) -> Iterator[Bench | OwnFunction]:
    """Yield *bench* with a cache for vectors and replies.

    If *bench* has no cache, the cache is in a temporary folder. A cached reply counts with its
    original time and cost. Your own function is yielded unchanged, because its model already has a
    cache.
    """
    if isinstance(bench, OwnFunction):
        yield bench
        return
    with (
        TemporaryDirectory(prefix="qtm-tune-", ignore_cleanup_errors=True) as folder,
        ExitStack() as closing,
    ):
        file = Path(folder) / "kept.sqlite"
        embedder, model = bench.embedder, bench.model
        if not isinstance(embedder, CachedEmbedder):
            embedder = CachedEmbedder(embedder, file)
            closing.callback(embedder.close)
        if not isinstance(model, CachedModel):
            model = CachedModel(model, file)
            closing.callback(model.close)
        yield replace(bench, embedder=embedder, model=model)
