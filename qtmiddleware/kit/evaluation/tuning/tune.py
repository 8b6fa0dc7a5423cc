"""Tune settings on one half of the judged questions, and verify them on the other half."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from statistics import stdev
from time import perf_counter
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import (
    BASELINE,
    PRIMARY,
    TOLERANCE,
    Comparison,
    Dataset,
    Progress,
    Question,
    SystemScore,
    compare_systems,
    select_systems,
)
from qtmiddleware.kit.evaluation.bench import Bench, Forecast, forecast_searches
from qtmiddleware.kit.evaluation.own_function import OwnFunction
from qtmiddleware.kit.evaluation.tuning.search import (
    DEFAULTS,
    PASSES,
    TIERS,
    Search,
    estimate_trial_count,
)
from qtmiddleware.kit.evaluation.tuning.trials import (
    Budget,
    Trial,
    Trials,
    add_reply_cache,
    build_warm_system,
    flatten_settings,
)
from qtmiddleware.protocols import KeywordStore

LEAST: Final = 20
"""The minimum number of training questions, and of held-out questions."""
TUNED: Final = "tuned"
"""The name of the tuned config in the comparison, unless the config is a default."""
TRYING: Final = "trying candidates"
"""The name of the stage that tries candidates, in progress reports."""
_POWER: Final = 2.8
"""A true gain of this many standard errors is significant in 80 % of tests (5 %, two-sided)."""


def tune_settings(
    bench: Bench | OwnFunction,
    dataset: Dataset,
    *,
    budget: Budget = Budget(),  # noqa: B008  (it is frozen)
    tiers: Sequence[str] = TIERS,
    seed: int = 0,
    holdout: float = 0.5,
    progress: Progress | None = None,
) -> Tuned:
    """Find the best settings for *dataset* within *budget*, and verify them on held-out questions.

    The search uses only the training questions (see `split_dataset`):

    - It starts from the library's default. It tries other tiers, then other values of one setting
      at a time, and accepts a change that is clearly better (`Trial.is_clearly_better`).
    - It rejects candidates that break the budget. Of two equal candidates, the cheaper one wins.
    - It returns the best candidate, or the default if the gain may be luck after so many tries.
    - A gate learns from questions, so every gate sees the training questions before the
      measurement.

    The tuned config, the raw query and the defaults are then measured once on the held-out
    questions. There, the tuned config must be significantly better than the raw query, keep the
    budget and be no worse than the default. If so, the tuned config is recommended. If only the
    default is good enough, the default is recommended.

    Args:
        bench: An index or your own function. It builds a system from settings.
        dataset: The judged questions.
        budget: The limits of the search.
        tiers: The tiers to try, as names from `evaluation.SYSTEMS`.
        seed: The seed of the split and of every resampling, at least 0.
        holdout: The share of questions to hold out.
        progress: Receives the stage's name, the steps done and the maximum number of steps.

    Raises:
        ConfigError: A tier is unknown, *seed* is negative or there are too few questions.
        Exception: Any exception that your function or the index raises.
    """
    if seed < 0:
        raise ConfigError(
            f"seed must be a whole number of at least 0, not {seed}", path="seed", value=seed
        )
    start = perf_counter()
    settings = {
        name: flatten_settings(options)
        for name, options in select_systems(tiers).items()
        if name != BASELINE
    }
    train, held_out = split_dataset(dataset, seed=seed, holdout=holdout)
    most_trials = estimate_trial_count(list(settings.values()), PASSES)

    def report_progress(trial_count: int) -> None:
        if progress is not None:
            progress(TRYING, min(trial_count, most_trials), most_trials)

    with add_reply_cache(bench) as cached_bench:
        trials = Trials(cached_bench, train, budget, seed=seed, report_progress=report_progress)
        has_word_search = isinstance(bench, Bench) and isinstance(bench.store, KeywordStore)
        search = Search(trials, budget, tuple(settings), has_word_search)
        default, best = search.find_default_trial(), search.find_best_trial()
        compared_trials = _select_compared_trials(trials, tuple(settings), default, best)
        # The total is an estimate. A search that ends earlier is complete too.
        report_progress(most_trials)
        comparison = compare_systems(
            {
                name: build_warm_system(cached_bench, trial.settings, train)
                for name, trial in compared_trials.items()
            },
            held_out,
            baseline_name=BASELINE,
            notes=(f"Measured on {len(held_out.questions)} questions that the tuning never saw.",),
            seed=seed,
            progress=progress,
        )
    # Two trials may be the same object, such as a default that nothing improves.
    default_name, tuned = (
        next(name for name, candidate in compared_trials.items() if candidate is trial)
        for trial in (default, best)
    )
    refusals = {
        name: _list_refusal_reasons(name, comparison, compared_trials, budget)
        for name in (default_name, tuned)
    }
    has_failed = (
        refusals[tuned]
        or comparison[tuned].means[PRIMARY] < comparison[default_name].means[PRIMARY] - TOLERANCE
    )
    # If both are refused, the outcome names the tuned config and the reasons against it.
    recommended = default_name if has_failed and not refusals[default_name] else tuned
    return Tuned(
        config=compared_trials[recommended].config,
        chosen=recommended,
        tuned=tuned,
        default=default_name,
        comparison=comparison,
        trained=compared_trials,
        trials=trials.finished_trials,
        trained_on=len(train.questions),
        budget=budget,
        refusals=refusals[recommended],
        seconds=perf_counter() - start,
    )


def forecast_tuning(
    function: OwnFunction, dataset: Dataset, tiers: Sequence[str], *, has_model: bool, seed: int = 0
) -> Forecast:
    """Return the maximum number of searches for tuning your own function, and their cost.

    Args:
        function: Your own function.
        dataset: The judged questions.
        tiers: The tiers to try.
        has_model: Whether a model can be called.
        seed: The seed of the split.
    """
    train, held_out = split_dataset(dataset, seed=seed)
    systems = {tier: select_systems([tier])[tier] for tier in tiers}

    def count_searches(subset: Dataset) -> int:
        return max(
            forecast_searches(function, subset, {tier: settings}, has_model=has_model).searches
            for tier, settings in systems.items()
        )

    most = estimate_trial_count(
        [flatten_settings(settings) for settings in systems.values()], PASSES
    )
    # A gate sees all questions once before it is measured.
    visits = 2 if has_model else 1
    # On the held-out questions, the raw query and the tuned config join the defaults.
    return Forecast.from_search_count(
        visits * (most * count_searches(train) + (len(DEFAULTS) + 2) * count_searches(held_out)),
        function,
    )


def _select_compared_trials(
    trials: Trials, tiers: Sequence[str], default: Trial, best: Trial
) -> dict[str, Trial]:
    """Return the trials to measure on the held-out questions, by name and without duplicates."""
    compared_trials = {BASELINE: trials.raw}
    # The default without a model comes first, as the cheaper one.
    for tier in reversed([name for name in DEFAULTS if name in tiers]):
        compared_trials[tier] = trials.run_candidate(
            tier, flatten_settings(select_systems([tier])[tier])
        )
    if default not in compared_trials.values():
        compared_trials[default.name] = default
    if best not in compared_trials.values():
        compared_trials[TUNED] = best
    return compared_trials


def _list_refusal_reasons(
    config_name: str, comparison: Comparison, compared_trials: dict[str, Trial], budget: Budget
) -> tuple[str, ...]:
    """Return the reasons not to recommend a config, each with advice."""
    if config_name == BASELINE:
        explanation = (
            "no candidate within the budget did better than the raw query on the questions it was"
            " chosen by"
        )
        return (f"{explanation}. Keep the raw query, raise the budget or judge more questions.",)
    score, trial = comparison[config_name], compared_trials[config_name]
    is_gated = trial.settings.get("escalation.mode") == "auto"
    target_call_rate = trial.settings["escalation.targetCallRate"] if is_gated else None
    difference, broken_limits = (
        score.difference,
        budget.list_broken_limits(score, target_call_rate=target_call_rate),
    )
    reasons = [
        f"on the held-out questions {limit}. Raise the budget, or tune with a lower one."
        for limit in broken_limits
    ]
    if difference.gain <= TOLERANCE:
        reasons.append(
            "on the held-out questions it is no better than the raw query. Keep the raw query."
        )
    elif not difference.is_significant:
        amount = f"{_estimate_needed_questions(score, len(trial.score.gains)):,} judged questions"
        chance = (
            f"chance explains what it gains on the held-out questions (p {difference.p_holm:.3f})"
        )
        reasons.append(
            f"{chance}. With some {amount} a gain of this size could be told from chance."
        )
    return tuple(reasons)


def _estimate_needed_questions(score: SystemScore, training_count: int) -> int:
    """Estimate the number of judged questions at which the gain of *score* becomes significant.

    The estimate includes the training questions and is rounded up to two significant digits.
    *training_count* is the current number of training questions.
    """
    gains = list(score.gains.values())
    held_out = ceil((_POWER * stdev(gains) / score.difference.gain) ** 2)
    # The gain is not significant yet, so at least one more held-out question is needed.
    total = ceil(max(held_out, len(gains) + 1) * (1.0 + training_count / len(gains)))
    step: int = 10 ** max(0, len(str(total)) - 2)
    return ceil(total / step) * step


def split_dataset(
    dataset: Dataset, *, seed: int = 0, holdout: float = 0.5
) -> tuple[Dataset, Dataset]:
    """Split *dataset*, and return the training questions and the held-out questions.

    Questions of one conversation, or with the same text, form a group that stays together. The
    groups are sorted by the SHA-256 of *seed* and the group's text. The first groups are held out
    until the share *holdout* is reached. The split therefore does not depend on the order of the
    questions or on the machine.

    Args:
        dataset: The judged questions.
        seed: The seed for the order of the groups.
        holdout: The share of questions to hold out, above 0 and below 1.

    Raises:
        ConfigError: *holdout* is not valid, or a side has fewer than `LEAST` questions.
    """
    if not 0.0 < holdout < 1.0:
        raise ConfigError(
            f"holdout must be above 0 and below 1, not {holdout}", path="holdout", value=holdout
        )
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in dataset.questions:
        groups[_get_group_text(question)].append(question)
    held_out_count = round(holdout * len(dataset.questions))
    held_out: set[str] = set()
    for group in sorted(groups, key=lambda text: sha256(f"{seed}\n{text}".encode()).digest()):
        if len(held_out) >= held_out_count:
            break
        held_out.update(question.id for question in groups[group])
    sides = (
        dataset.select_questions({question.id for question in dataset.questions} - held_out),
        dataset.select_questions(held_out),
    )
    _check_split_sizes(dataset, sides, len(groups), holdout)
    return sides


def _get_group_text(question: Question) -> str:
    """Return the text that identifies the group of *question* in a split.

    The text is the first message of the question's conversation, or the question itself if there is
    no conversation. It is in lower case, with single spaces.
    """
    text = question.history[0].content if question.history else question.text
    return " ".join(text.split()).casefold()


def _check_split_sizes(
    dataset: Dataset, sides: tuple[Dataset, Dataset], group_count: int, holdout: float
) -> None:
    """Raise `ConfigError` if one of *sides* has fewer than `LEAST` questions."""
    train, held_out = (len(side.questions) for side in sides)
    if min(train, held_out) >= LEAST:
        return
    needed = max(ceil(LEAST / holdout), ceil(LEAST / (1.0 - holdout)))
    total = len(dataset.questions)
    if total < needed:
        message = f"{total} judged questions are too few to tune on: {needed} are needed"
    else:
        message = (
            f"{total} judged questions are of too few conversations or texts ({group_count}), kept"
            " on one side"
        )
    raise ConfigError(
        f"{message}, so that at least {LEAST} are left to train on ({train} now) and {LEAST} to"
        f" report on ({held_out} now)",
        path="dataset",
        value=dataset.name,
    )


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning.

    Attributes:
        config: The recommended config, without default values.
        chosen: The name of the recommended config: the tuned config or, if the held-out questions
            did not confirm the gain, the default.
        tuned: The name of the best config on the training questions. It may be the default.
        default: The name of the library's default config.
        comparison: The raw query, the library's defaults and the tuned config on the held-out
            questions. The probabilities are corrected for the number of systems (Holm).
        trained: The trials of the compared systems on the training questions, by the system's name
            in *comparison*.
        trials: All candidates that were tried.
        trained_on: The number of training questions.
        budget: The limits of the search.
        refusals: The reasons for not recommending a config. Empty if a config is recommended.
        seconds: The duration of tuning, in seconds.
    """

    config: Mapping[str, Any]
    chosen: str
    tuned: str
    default: str
    comparison: Comparison
    trained: Mapping[str, Trial] = field(repr=False)
    trials: tuple[Trial, ...] = field(repr=False)
    trained_on: int
    budget: Budget
    refusals: tuple[str, ...]
    seconds: float

    @property
    def is_better(self) -> bool:
        """``True`` if a config is recommended.

        On the held-out questions, a recommended config is significantly better than the raw query
        and keeps the budget.
        """
        return not self.refusals

    @property
    def score(self) -> SystemScore:
        """The recommended config's score on the held-out questions."""
        return self.comparison[self.chosen]

    @property
    def overfit(self) -> float:
        """The gain on the training questions minus the gain on the held-out questions.

        Both are mean gains in nDCG@10 of the tuned config over the raw query.
        """
        return (
            self.trained[self.tuned].score.difference.gain
            - self.comparison[self.tuned].difference.gain
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a dict, ready for JSON."""
        return {
            "isBetter": self.is_better,
            "refusals": list(self.refusals),
            "config": dict(self.config),
            "chosen": self.chosen,
            "tuned": {"name": self.tuned, **self.trained[self.tuned].to_dict()},
            "default": self.default,
            "budget": self.budget.to_dict(),
            "comparison": self.comparison.to_dict(),
            "training": {
                "questions": self.trained_on,
                "candidates": len(self.trials),
                "seconds": self.seconds,
                "overfit": self.overfit,
                "systems": {name: trial.to_dict() for name, trial in self.trained.items()},
                "trials": [trial.to_dict() for trial in self.trials],
            },
        }

    @property
    def headline(self) -> str:
        """The recommendation, or the decision against one, in one sentence."""
        if self.is_better:
            within = " within the budget" if self.budget.describe_limits() else ""
            gained = f"{_format_points(self.score.difference.gain)} of {PRIMARY}"
            return f"Recommended: “{self.chosen}”, {gained} over “{BASELINE}”{within}."
        if self.chosen == BASELINE:
            return (
                "Nothing is recommended: no candidate within the budget did better than the raw"
                " query."
            )
        return f"Nothing is recommended: “{self.chosen}” is refused."

    @property
    def over_budget_systems(self) -> frozenset[str]:
        """The names of the compared systems that broke the budget on the training questions."""
        return frozenset(name for name, trial in self.trained.items() if trial.broken_limits)

    def summary(self) -> str:
        """Return the outcome in plain sentences, one per line."""
        trained = self.trained[self.tuned]
        effort = (
            f"{len(self.trials)} candidates tried on {self.trained_on} questions in"
            f" {self.seconds:.0f} s"
        )
        lines = [
            f"{effort}; what follows was measured on {self.comparison.questions} other questions."
        ]
        if limits := self.budget.describe_limits():
            lines.append(f"The budget: {limits}.")
        if self.tuned == BASELINE:
            lines.append(
                "Decided by the former: the raw query; nothing within the budget was clearly"
                " better."
            )
        else:
            gained = (
                "On the questions that decided it had gained"
                f" {_format_points(trained.score.difference.gain)}"
            )
            lines += [
                (
                    "Decided by the former:"
                    f" {trained.name}{', the default' if self.tuned == self.default else ''}."
                ),
                self._describe_gain("It", self.tuned),
                (
                    f"{gained}; the difference, {_format_points(self.overfit)}, is the part that"
                    " does not carry over."
                ),
            ]
        if self.default not in (self.tuned, BASELINE):
            lines.append(self._describe_gain(f"The default, {self.default},", self.default))
        lines += [
            f"Beyond the budget: {name}, as on the former {' and '.join(trial.broken_limits)}."
            for name, trial in self.trained.items()
            if trial.broken_limits
        ]
        return "\n".join([*lines, *self._list_advice()])

    def _list_advice(self) -> Iterator[str]:
        """Yield the sentences of the recommendation, or the reasons for not making one."""
        if not self.is_better:
            yield from (f"Refused: {why}" for why in self.refusals)
        elif self.chosen != self.tuned:
            yield (
                f"Recommended: the default, {self.chosen}, because the held-out questions do not"
                " confirm the choice. The default was chosen on these questions, so its figures"
                " may be a little too good."
            )
        elif self.chosen == self.default:
            within = " within the budget" if self.budget.describe_limits() else ""
            yield f"Recommended: {self.chosen}, which is the library's default{within}."
        else:
            yield "Recommended: the tuned config, which the held-out questions confirm."

    def _describe_gain(self, subject: str, system_name: str) -> str:
        """Return a sentence on the gain, time and cost of the system called *system_name*.

        The sentence begins with *subject*, such as ``It``.
        """
        score = self.comparison[system_name]
        effect, cost = score.difference, score.usd_per_thousand
        interval = f"95% interval {100 * effect.low:+.1f} to {100 * effect.high:+.1f}"
        remark = (
            ""
            if self.comparison.counts_model_time or not score.llm_calls
            else ", without the model's own time"
        )
        return (
            f"{subject} gains {_format_points(effect.gain)} of {PRIMARY} over the raw query on the"
            f" held-out questions ({interval}, p {effect.p_holm:.4f} corrected), makes"
            f" {score.hurt_rate:.0%} of them worse, calls the model for {score.call_rate:.0%}, adds"
            f" {score.added_ms.p50:.0f} ms (p95 {score.added_ms.p95:.0f}{remark})"
            + (f" and costs ${cost:.2f} per 1,000 questions." if cost else ".")
        )


def _format_points(gain: float) -> str:
    """Return *gain* in points: 0.012 is ``+1.2 points``."""
    return f"{100 * gain:+.1f} points"
