"""How long eight lists of a hundred take to become one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any, get_args

from benchmarks.speed.report import Row, at_most
from benchmarks.speed.workload import SEED
from qtmiddleware.config.settings import FusionMethod, FusionSettings
from qtmiddleware.retrieval.fusion import fuse
from qtmiddleware.types import DEFAULT_NAMESPACE, Key, Ranking, Variant

GROUP = "Merging 8 lists of 100"
LISTS, LENGTH, DISTINCT = 8, 100, 275
CALLS = 20


def rankings() -> list[Ranking]:
    """Eight lists that together hold `DISTINCT` passages."""
    chance = random.Random(SEED)
    numbers = [list(range(LENGTH))]
    new_each = (DISTINCT - LENGTH) // (LISTS - 1)
    for number in range(1, LISTS):
        start = LENGTH + (number - 1) * new_each
        own = list(range(start, start + new_each))
        numbers.append(own + chance.sample(range(start), LENGTH - new_each))
    made = []
    for number, held in enumerate(numbers):
        chance.shuffle(held)
        keys: list[Key] = [(DEFAULT_NAMESPACE, f"passage-{passage}") for passage in held]
        scores = sorted((chance.random() for _ in held), reverse=True)
        items = [{"id": key[1], "score": score} for key, score in zip(keys, scores, strict=True)]
        made.append(Ranking(Variant("original" if not number else "paraphrase", f"text {number}"), keys, scores, items))
    return made


def by_hand(lists: list[Ranking]) -> list[tuple[Key, tuple[float, Any]]]:
    """Every passage once, with its best score, best first."""
    best: dict[Key, tuple[float, Any]] = {}
    for ranking in lists:
        for key, score, item in zip(ranking.keys, ranking.scores, ranking.items, strict=True):
            other = best.get(key)
            if score is not None and (other is None or score > other[0]):
                best[key] = score, item
    return sorted(best.items(), key=lambda pair: pair[1][0], reverse=True)


def _timed(call: Callable[[], object]) -> float:
    began = time.process_time_ns()
    for _ in range(CALLS):
        call()
    return (time.process_time_ns() - began) / CALLS / 1e3


def rows(rounds: int) -> list[Row]:
    """A line for each method; the bar is that of the default one."""
    lists = rankings()
    distinct = len({key for ranking in lists for key in ranking.keys})
    assert distinct == DISTINCT, distinct
    methods: tuple[FusionMethod, ...] = get_args(FusionMethod)
    taken: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        taken.setdefault("by hand", []).append(_timed(lambda: by_hand(lists)))
        for method in methods:
            taken.setdefault(method, []).append(_timed(lambda method=method: fuse(lists, method)))  # type: ignore[misc]
    floor = median(taken.pop("by hand")[1:])
    found: list[Row] = []
    for name, times in taken.items():
        ours = median(times[1:])
        if name == FusionSettings().method:
            found.insert(0, at_most(GROUP, f"{name} (default), beside a dict loop", ours, floor, 2.0))
        else:
            found.append(Row(GROUP, name, ours, floor, ours / floor, "us"))
    return found
