"""Tuning: search on one half of the questions, report on the other."""

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
    chosen,
    measure,
)
from qtmiddleware.kit.evaluation.bench import Bench, Forecast, forecast_searches
from qtmiddleware.kit.evaluation.own_function import OwnFunction
from qtmiddleware.kit.evaluation.tuning.search import (
    DEFAULTS,
    PASSES,
    TIERS,
    Search,
    estimate_trials,
)
from qtmiddleware.kit.evaluation.tuning.trials import (
    Budget,
    Trial,
    Trials,
    build_warm_system,
    flat,
    keep_replies,
)
from qtmiddleware.protocols import KeywordStore

LEAST: Final = 20
"""Fewer questions on either side say nothing."""
TUNED: Final = "tuned"
"""The name of the tuned config among the systems compared; where it is one of the defaults, it has that one's name."""
TRYING: Final = "trying candidates"
"""What progress receives as a name while the search runs."""
_POWER: Final = 2.8
"""A gain of so many standard errors is found significant (5 %, two-sided) four times out of five."""


def tune(
    bench: Bench | OwnFunction,
    data: Dataset,
    *,
    budget: Budget = Budget(),  # noqa: B008  (it is frozen)
    tiers: Sequence[str] = TIERS,
    seed: int = 0,
    holdout: float = 0.5,
    progress: Progress | None = None,
) -> Tuned:
    """Find the settings that serve *data* best within *budget*, on one part of its questions; judge them on the other.

    The questions are divided by *seed*, the share *holdout* of them held out (`split`). The search
    sees the others alone. It starts from the library's default and takes another tier of *tiers*
    (names of `evaluation.SYSTEMS`), then another value of one setting after the other, only where
    that is clearly better (`Trial.is_clearly_better`); candidates beyond the budget are out, and
    where two are equal the cheaper is taken. What it ends with must be better than the default
    beyond the luck of many tries, or the default it is: that is decided by the training questions
    alone. Every candidate is a real run. A gate, which learns from the questions it sees, is
    measured as it is once it has seen those to train on.

    The decision is then verified on the held-out questions, once, beside the raw query and the
    defaults. It holds where the config beats the raw query significantly, keeps the budget and is
    no worse than the default there; where it does not and the default does, the default is
    recommended. *progress* receives what is run, how far it is and how far it may go. Raises
    `ConfigError` for unknown tiers, a negative *seed* or too few questions, and what a search
    raises.
    """
    if seed < 0:
        raise ConfigError(
            f"seed must be a whole number of at least 0, not {seed}", path="seed", value=seed
        )
    began = perf_counter()
    settings = {name: flat(it) for name, it in chosen(tiers).items() if name != BASELINE}
    train, held = split(data, seed=seed, holdout=holdout)
    most = estimate_trials(list(settings.values()), PASSES)

    def report(count: int) -> None:
        if progress is not None:
            progress(TRYING, min(count, most), most)

    with keep_replies(bench) as keeping:
        trials = Trials(keeping, train, budget, seed=seed, report=report)
        has_words = isinstance(bench, Bench) and isinstance(bench.store, KeywordStore)
        search = Search(trials, budget, tuple(settings), has_words)
        default, best = search.find_default(), search.find_best()
        compared = _list_compared(trials, tuple(settings), default, best)
        report(most)
        comparison = measure(
            {
                name: build_warm_system(keeping, trial.settings, train)
                for name, trial in compared.items()
            },
            held,
            baseline=BASELINE,
            notes=(f"Measured on {len(held.questions)} questions that the tuning never saw.",),
            seed=seed,
            progress=progress,
        )
    own, tuned = (
        next(name for name, it in compared.items() if it is trial) for trial in (default, best)
    )
    refusals = {name: _find_refusals(name, comparison, compared, budget) for name in (own, tuned)}
    has_failed = (
        refusals[tuned]
        or comparison[tuned].means[PRIMARY] < comparison[own].means[PRIMARY] - TOLERANCE
    )
    recommended = own if has_failed and not refusals[own] else tuned
    return Tuned(
        config=compared[recommended].config,
        chosen=recommended,
        tuned=tuned,
        default=own,
        comparison=comparison,
        trained=compared,
        trials=trials.all,
        trained_on=len(train.questions),
        budget=budget,
        refusals=refusals[recommended],
        seconds=perf_counter() - began,
    )


def forecast_tuning(
    own: OwnFunction, data: Dataset, tiers: Sequence[str], *, has_model: bool, seed: int = 0
) -> Forecast:
    """Return how many searches it takes at most to tune a function of the user's own on *data* among *tiers*."""
    train, held = split(data, seed=seed)
    systems = {tier: chosen([tier])[tier] for tier in tiers}

    def count(questions: Dataset) -> int:
        return max(
            forecast_searches(own, questions, {tier: it}, has_model=has_model).searches
            for tier, it in systems.items()
        )

    most = estimate_trials([flat(it) for it in systems.values()], PASSES)
    # A gate sees the questions once more before it is measured.
    visits = 2 if has_model else 1
    return Forecast.of(visits * (most * count(train) + (len(DEFAULTS) + 2) * count(held)), own)


def _list_compared(
    trials: Trials, tiers: Sequence[str], default: Trial, best: Trial
) -> dict[str, Trial]:
    """Return what is measured on the held-out questions, by name, each config once."""
    found = {BASELINE: trials.raw}
    for tier in reversed([it for it in DEFAULTS if it in tiers]):
        found[tier] = trials.run(tier, flat(chosen([tier])[tier]))
    if default not in found.values():
        found[default.name] = default
    if best not in found.values():
        found[TUNED] = best
    return found


def _find_refusals(
    name: str, comparison: Comparison, compared: dict[str, Trial], budget: Budget
) -> tuple[str, ...]:
    """Return why the config called *name* is not to be used, and what to do."""
    if name == BASELINE:
        nothing = (
            "no candidate within the budget did better than the raw query on the questions it was"
            " chosen by"
        )
        return (f"{nothing}. Keep the raw query, raise the budget or judge more questions.",)
    score, trial = comparison[name], compared[name]
    is_gated = trial.settings.get("escalation.mode") == "auto"
    kept_rate = trial.settings["escalation.targetCallRate"] if is_gated else None
    found, broken = score.difference, budget.broken_by(score, kept_rate=kept_rate)
    why = [
        f"on the held-out questions {it}. Raise the budget, or tune with a lower one."
        for it in broken
    ]
    if found.gain <= TOLERANCE:
        why.append(
            "on the held-out questions it is no better than the raw query. Keep the raw query."
        )
    elif not found.is_significant:
        needed = f"{_estimate_needed(score, len(trial.score.gains)):,} judged questions"
        chance = f"chance explains what it gains on the held-out questions (p {found.p_holm:.3f})"
        why.append(f"{chance}. With some {needed} a gain of this size could be told from chance.")
    return tuple(why)


def _estimate_needed(score: SystemScore, trained_on: int) -> int:
    """Return how many questions, training included, would show a gain like that of *score*; two digits of it."""
    gains = list(score.gains.values())
    held = ceil((_POWER * stdev(gains) / score.difference.gain) ** 2)
    total = ceil(max(held, len(gains) + 1) * (1.0 + trained_on / len(gains)))
    step: int = 10 ** max(0, len(str(total)) - 2)
    return ceil(total / step) * step


def split(data: Dataset, *, seed: int = 0, holdout: float = 0.5) -> tuple[Dataset, Dataset]:
    """Return the questions of *data* to train on and those to hold out, the share *holdout* of them.

    Questions of one conversation (the same first message) and single questions of equal text, white
    space and case aside, stay on one side. These groups are ordered by the SHA-256 of *seed* and
    their text and held out until the share is reached, so that the same questions are split alike
    in any order and on any machine. Raises `ConfigError` where a side would have fewer than `LEAST`
    questions.
    """
    if not 0.0 < holdout < 1.0:
        raise ConfigError(
            f"holdout must be above 0 and below 1, not {holdout}", path="holdout", value=holdout
        )
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in data.questions:
        groups[_get_conversation(question)].append(question)
    wanted = round(holdout * len(data.questions))
    held: set[str] = set()
    for group in sorted(groups, key=lambda text: sha256(f"{seed}\n{text}".encode()).digest()):
        if len(held) >= wanted:
            break
        held.update(question.id for question in groups[group])
    sides = data.only({question.id for question in data.questions} - held), data.only(held)
    _check_sizes(data, sides, len(groups), holdout)
    return sides


def _get_conversation(question: Question) -> str:
    first = question.history[0].content if question.history else question.text
    return " ".join(first.split()).casefold()


def _check_sizes(
    data: Dataset, sides: tuple[Dataset, Dataset], groups: int, holdout: float
) -> None:
    train, held = (len(side.questions) for side in sides)
    if min(train, held) >= LEAST:
        return
    needed = max(ceil(LEAST / holdout), ceil(LEAST / (1.0 - holdout)))
    total = len(data.questions)
    if total < needed:
        message = f"{total} judged questions are too few to tune on: {needed} are needed"
    else:
        message = (
            f"{total} judged questions are of too few conversations or texts ({groups}), kept on"
            " one side"
        )
    raise ConfigError(
        f"{message}, so that at least {LEAST} are left to train on ({train} now) and {LEAST} to"
        f" report on ({held} now)",
        path="dataset",
        value=data.name,
    )


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome of tuning.

    *comparison* holds the raw query, the library's defaults and the tuned config, all on the
    held-out questions, their probabilities corrected for one another (Holm). *tuned* is what the
    training questions decided for, which may be the
    *default*. *chosen* is what is recommended: the tuned config or, where that did not hold on the
    held-out questions, the default. *config* is the recommended config, without the keys that have
    their defaults. *refusals* say why nothing can be recommended; without any it `is_better`.
    *trained* holds what the compared systems did on the
    *trained_on* questions the search saw, by their names in *comparison*; *trials* every candidate
    it tried.
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
        """Whether the config beats the raw query on the held-out questions by more than chance, within the budget."""
        return not self.refusals

    @property
    def score(self) -> SystemScore:
        """What the recommended config did on the held-out questions."""
        return self.comparison[self.chosen]

    @property
    def overfit(self) -> float:
        """How much more nDCG@10 the tuned config gained on the questions of the search than on the held-out ones."""
        return (
            self.trained[self.tuned].score.difference.gain
            - self.comparison[self.tuned].difference.gain
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, ready for JSON."""
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
        """The decision in one sentence."""
        if self.is_better:
            within = " within the budget" if self.budget.describe() else ""
            gained = f"{_format_points(self.score.difference.gain)} of {PRIMARY}"
            return f"Recommended: “{self.chosen}”, {gained} over “{BASELINE}”{within}."
        if self.chosen == BASELINE:
            return (
                "Nothing is recommended: no candidate within the budget did better than the raw"
                " query."
            )
        return f"Nothing is recommended: “{self.chosen}” is refused."

    @property
    def beyond(self) -> frozenset[str]:
        """The names of the compared systems that the training questions found beyond the budget."""
        return frozenset(name for name, trial in self.trained.items() if trial.broken)

    def summary(self) -> str:
        """Return the outcome in plain sentences, a line each."""
        trained = self.trained[self.tuned]
        tried = (
            f"{len(self.trials)} candidates tried on {self.trained_on} questions in"
            f" {self.seconds:.0f} s"
        )
        lines = [
            f"{tried}; what follows was measured on {self.comparison.questions} other questions."
        ]
        if limits := self.budget.describe():
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
            f"Beyond the budget: {name}, as on the former {' and '.join(trial.broken)}."
            for name, trial in self.trained.items()
            if trial.broken
        ]
        return "\n".join([*lines, *self._advise()])

    def _advise(self) -> Iterator[str]:
        if not self.is_better:
            yield from (f"Refused: {why}" for why in self.refusals)
        elif self.chosen != self.tuned:
            yield (
                f"Recommended: the default, {self.chosen}, because the held-out questions do not"
                " confirm the choice. The default was chosen on these questions, so its figures"
                " may be a little too good."
            )
        elif self.chosen == self.default:
            within = " within the budget" if self.budget.describe() else ""
            yield f"Recommended: {self.chosen}, which is the library's default{within}."
        else:
            yield "Recommended: the tuned config, which the held-out questions confirm."

    def _describe_gain(self, subject: str, name: str) -> str:
        score = self.comparison[name]
        found, cost = score.difference, score.usd_per_thousand
        interval = f"95% interval {100 * found.low:+.1f} to {100 * found.high:+.1f}"
        beside = (
            ""
            if self.comparison.counts_model_time or not score.llm_calls
            else ", without the model's own time"
        )
        return (
            f"{subject} gains {_format_points(found.gain)} of {PRIMARY} over the raw query on the"
            f" held-out questions ({interval}, p {found.p_holm:.4f} corrected), makes"
            f" {score.hurt_rate:.0%} of them worse, calls the model for {score.call_rate:.0%}, adds"
            f" {score.added_ms.p50:.0f} ms (p95 {score.added_ms.p95:.0f}{beside})"
            + (f" and costs ${cost:.2f} per 1,000 questions." if cost else ".")
        )


def _format_points(gain: float) -> str:
    return f"{100 * gain:+.1f} points"
