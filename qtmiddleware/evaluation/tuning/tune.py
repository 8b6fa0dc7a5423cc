"""Tuning: search on one half of the questions, report on the other."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import stdev
from time import perf_counter
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import BASELINE, TOLERANCE, Comparison, Dataset, Progress, SystemScore, chosen, measure
from qtmiddleware.evaluation.bench import Bench
from qtmiddleware.evaluation.tuning.budget import Budget
from qtmiddleware.evaluation.tuning.grid import TIERS, Flat, flat, most_trials
from qtmiddleware.evaluation.tuning.search import DEFAULTS, PASSES, Search
from qtmiddleware.evaluation.tuning.splitting import split
from qtmiddleware.evaluation.tuning.trials import Trial, Trials, kept, warmed
from qtmiddleware.evaluation.tuning.tuned import TUNED, Tuned, is_worse_than
from qtmiddleware.protocols import KeywordStore

TRYING: Final = "trying candidates"
"""What progress is told while the search runs."""
_POWER: Final = 2.8
"""A gain of so many standard errors is found significant (5 %, two-sided) four times out of five."""


def tune(
    bench: Bench,
    data: Dataset,
    *,
    budget: Budget = Budget(),  # noqa: B008  (it is frozen)
    tiers: Sequence[str] = TIERS,
    seed: int = 0,
    holdout: float = 0.5,
    progress: Progress | None = None,
) -> Tuned:
    """The settings that serve *data* best within *budget*, found on one part of its questions, judged on the other.

    The questions are divided by *seed*, the share *holdout* of them held out (`split`). The search sees the others
    alone. It starts from the library's default and takes another tier of *tiers* (names of `evaluation.SYSTEMS`), then
    another value of one setting after the other, only where that is clearly better (`Trial.is_clearly_better`);
    candidates beyond the budget are out, and where two are equal the cheaper is taken. What it ends with must be better
    than the default beyond the luck of many tries, or the default it is: that is decided by the training questions
    alone. Every candidate is a real run. A gate, which learns from the questions it sees, is measured as it is once it
    has seen those to train on.

    The decision is then verified on the held-out questions, once, beside the raw query and the defaults. It holds where
    the config beats the raw query significantly, keeps the budget and is no worse than the default there; where it does
    not and the default does, the default is recommended. *progress* is told what is run, how far it is and how far it
    may go. Raises `ConfigError` for unknown tiers, a negative *seed* or too few questions, and what a search raises.
    """
    if seed < 0:
        raise ConfigError(f"seed is {seed}; allowed: a whole number of at least 0", path="seed", value=seed)
    began = perf_counter()
    settings = {name: flat(it) for name, it in chosen(tiers).items() if name != BASELINE}
    train, held = split(data, seed=seed, holdout=holdout)
    most = most_trials(list(settings.values()), PASSES)

    def tried(count: int) -> None:
        if progress is not None:
            progress(TRYING, min(count, most), most)

    with kept(bench) as keeping:
        trials = Trials(keeping, train, budget, seed=seed, tried=tried)
        search = Search(trials, budget, tuple(settings), isinstance(bench.store, KeywordStore))
        default, best = search.default(), search.best()
        compared = _compared(trials, tuple(settings), default, best)
        tried(most)
        comparison = measure(
            {name: warmed(keeping, trial.settings, train) for name, trial in compared.items()},
            held,
            baseline=BASELINE,
            notes=(f"Measured on {len(held.questions)} questions that the tuning never saw.",),
            seed=seed,
            progress=progress,
        )
    return _judged(comparison, compared, default, best, budget, trials, len(train.questions), perf_counter() - began)


def _compared(trials: Trials, tiers: Sequence[str], default: Trial, best: Trial) -> dict[str, Trial]:
    """What is measured on the held-out questions, by name, each config once."""
    found = {BASELINE: trials.raw}
    for tier in reversed([it for it in DEFAULTS if it in tiers]):
        found[tier] = trials.run(tier, flat(chosen([tier])[tier]))
    if default not in found.values():
        found[default.name] = default
    if best not in found.values():
        found[TUNED] = best
    return found


def _judged(
    comparison: Comparison,
    compared: dict[str, Trial],
    default: Trial,
    best: Trial,
    budget: Budget,
    trials: Trials,
    trained_on: int,
    seconds: float,
) -> Tuned:
    name_of = {trial: name for name, trial in compared.items()}
    own, tuned = name_of[default], name_of[best]
    why = {name: _refusals(name, comparison, compared, budget) for name in (own, tuned)}
    failed = why[tuned] or is_worse_than(comparison[tuned], comparison[own])
    taken = own if failed and not why[own] else tuned
    return Tuned(
        config=compared[taken].config,
        chosen=taken,
        tuned=tuned,
        default=own,
        comparison=comparison,
        trained=compared,
        trials=trials.all,
        trained_on=trained_on,
        budget=budget,
        refusals=why[taken],
        seconds=seconds,
    )


def _broken(budget: Budget, score: SystemScore, settings: Flat) -> tuple[str, ...]:
    is_gated = settings.get("escalation.mode") == "auto"
    return budget.broken_by(score, kept_rate=settings["escalation.targetCallRate"] if is_gated else None)


def _refusals(name: str, comparison: Comparison, compared: dict[str, Trial], budget: Budget) -> tuple[str, ...]:
    """Why the config called *name* is not to be used, and what to do."""
    if name == BASELINE:
        nothing = "no candidate within the budget did better than the raw query on the questions it was chosen by"
        return (f"{nothing}. Keep the raw query, widen the budget or judge more questions.",)
    score, trial = comparison[name], compared[name]
    found, broken = score.difference, _broken(budget, score, trial.settings)
    why = [f"on the held-out questions {it}. Widen the budget, or tune with a tighter one." for it in broken]
    if found.gain <= TOLERANCE:
        why.append("on the held-out questions it does no better than the raw query. Keep the raw query.")
    elif not found.is_significant:
        needed = f"{_needed(score, len(trial.score.gains)):,} judged questions"
        chance = f"chance explains what it gains on the held-out questions (p {found.p_holm:.3f})"
        why.append(f"{chance}. With some {needed} a gain of this size would be told from chance.")
    return tuple(why)


def _needed(score: SystemScore, trained_on: int) -> int:
    """How many questions, training included, would show a gain like that of *score*; rounded up to two digits."""
    gains = list(score.gains.values())
    held = ceil((_POWER * stdev(gains) / score.difference.gain) ** 2)
    total = ceil(max(held, len(gains) + 1) * (1.0 + trained_on / len(gains)))
    step: int = 10 ** max(0, len(str(total)) - 2)
    return ceil(total / step) * step
