"""Candidates, really run on the questions to train on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Any, Final

from qtmiddleware.evaluation import (
    BASELINE,
    PRIMARY,
    SYSTEMS,
    Dataset,
    Question,
    Run,
    System,
    SystemScore,
    measure,
)
from qtmiddleware.evaluation.bench import Bench, CachedEmbedder, CachedModel
from qtmiddleware.evaluation.tuning.budget import Budget
from qtmiddleware.evaluation.tuning.grid import Flat, flat, minimal, nested

MIN_GAIN: Final = 0.003
"""A setting must gain at least so much nDCG@10 over a simpler one, and within it the cheaper one is taken."""
MIN_ERRORS: Final = 1.5
"""And at least so many standard errors of its mean gain: the best of many tries is partly luck."""
OVERALL_ERRORS: Final = 2.5
"""What the search ends with must gain so many over the default: 5 %, one-sided, shared by the eight settings tried."""
MOST_LOST: Final = 0.01
"""One that asks the model less often is as good where it surely loses no more nDCG@10 than that."""


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What one candidate did on the questions to train on; *broken* are the limits of the budget it is beyond.

    *tier* is the system it began as, *settings* are all it was run with, by dotted key.
    """

    tier: str
    settings: Flat
    score: SystemScore = field(repr=False)
    broken: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its tier and what is changed about it: ``combined; keywordEvidence.weight 0.5``."""
        own, settings = minimal(flat(SYSTEMS[self.tier])), minimal(self.settings)
        changed = {key: value for key, value in settings.items() if own.get(key) != value}
        changed |= {key: self.settings[key] for key in own if key not in settings}
        return "; ".join([self.tier, *(f"{key} {json.dumps(value)}" for key, value in changed.items())])

    @property
    def config(self) -> dict[str, Any]:
        """Its settings as a config file has them, without those that are the defaults anyway."""
        return nested(minimal(self.settings))

    @property
    def mean(self) -> float:
        """Its nDCG@10."""
        return self.score.means[PRIMARY]

    @property
    def calls(self) -> float:
        """How often it asks the model, for each question."""
        return self.score.llm_calls / len(self.score.runs)

    def is_clearly_better(self, than: Trial, errors: float = MIN_ERRORS) -> bool:
        """Whether it gains more over *than* than `MIN_GAIN` and than so many standard *errors* of that gain."""
        gain, error = self._over(than)
        return gain >= max(MIN_GAIN, errors * error)

    def is_cheaper_and_as_good(self, as_: Trial) -> bool:
        """Whether it asks the model less often and loses next to nothing for it.

        It is the calls that must earn their cost: one that asks no model may lose `MIN_GAIN`, whatever chance did. One
        that asks now and then loses something for certain, so that it must be certain that this is little: with
        `MIN_ERRORS` standard errors on top, no more than `MOST_LOST`.
        """
        if self.calls >= as_.calls:
            return False
        gain, error = self._over(as_)
        return gain >= -MIN_GAIN if not self.calls else MIN_ERRORS * error - gain <= MOST_LOST

    def _over(self, other: Trial) -> tuple[float, float]:
        """The mean gain over *other*, question by question, and its standard error."""
        gains = [gain - other.score.gains[question] for question, gain in self.score.gains.items()]
        return sum(gains) / len(gains), stdev(gains) / sqrt(len(gains))

    def to_dict(self) -> dict[str, Any]:
        """What was tried and what came of it, as plain data."""
        return {
            "name": self.name,
            "config": self.config,
            PRIMARY: self.mean,
            "gain": self.score.difference.gain,
            "hurtRate": self.score.hurt_rate,
            "callRate": self.score.call_rate,
            "addedMs": self.score.added_ms.to_dict(),
            "usdPerThousand": self.score.usd_per_thousand,
            "broken": list(self.broken),
        }


class Trials:
    """The candidates tried so far on the questions of *data*, each run once."""

    def __init__(
        self, bench: Bench, data: Dataset, budget: Budget, *, seed: int, tried: Callable[[int], None] | None = None
    ) -> None:
        self._bench, self._data, self._budget, self._seed = bench, data, budget, seed
        self._tried = tried
        self._raw: Mapping[str, Run] = {}
        self._known: dict[tuple[tuple[str, Any], ...], Trial] = {}
        self.raw = self.run(BASELINE, flat(SYSTEMS[BASELINE]))

    @property
    def all(self) -> tuple[Trial, ...]:
        """Every candidate, in the order they were tried."""
        return tuple(self._known.values())

    def run(self, tier: str, settings: Flat) -> Trial:
        """The candidate of *settings*, whose tier is called *tier*."""
        key = tuple(minimal(settings).items())
        if key not in self._known:
            score = self._score(settings)
            self._known[key] = Trial(tier, dict(settings), score, self._budget.broken_by(score))
            if self._tried is not None:
                self._tried(len(self._known))
        return self._known[key]

    def _score(self, settings: Flat) -> SystemScore:
        system = warmed(self._bench, settings, self._data)
        if not self._raw:
            score = measure({BASELINE: system}, self._data, baseline=BASELINE, seed=self._seed)[BASELINE]
            self._raw = score.runs
            return score

        def replayed(question: Question) -> Run:
            return self._raw[question.id]

        return measure({BASELINE: replayed, "candidate": system}, self._data, baseline=BASELINE, seed=self._seed)[
            "candidate"
        ]


def warmed(bench: Bench, settings: Flat, data: Dataset) -> System:
    """The system of *settings* as it is once it knows its index: a gate has seen the questions of *data* first."""
    system = bench.system(nested(settings))
    if settings.get("escalation.mode") == "auto":
        for question in data.questions:
            system(question)
    return system


@contextmanager
def kept(bench: Bench) -> Iterator[Bench]:
    """*bench* with all vectors and replies kept while it is open, in a folder of its own, where it keeps none itself.

    What is kept counts for the time and the money it took at first.
    """
    with TemporaryDirectory(prefix="qtm-tune-", ignore_cleanup_errors=True) as folder, ExitStack() as closing:
        file = Path(folder) / "kept.sqlite"
        embedder, model = bench.embedder, bench.model
        if not isinstance(embedder, CachedEmbedder):
            embedder = CachedEmbedder(embedder, file)
            closing.callback(embedder.close)
        if not isinstance(model, CachedModel):
            model = CachedModel(model, file)
            closing.callback(model.close)
        yield replace(bench, embedder=embedder, model=model)
