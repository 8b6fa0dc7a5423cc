"""The fit: constants under a limit on worse questions, each set reported with constants chosen on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any, Final

from benchmarks.evidence.arrays import Lists, measure, order
from benchmarks.evidence.candidates import PARTS, WIDE
from qtmiddleware.retrieval.question_words import FULL_LEAD, HALF, LEAST_LEAD, WEIGHT, WHOLE

LIMITS: Final = (3.0, 3.5, 4.0, 4.5, 5.0, 7.0)
"""Per cent of the questions that may do worse, in the mean of each group's sets."""
SHARES: Final[Mapping[str, float]] = {
    "small": 1.0,
    "large": 1.0,
    "parts": 0.5,
    "outside": 0.5,
    "other kinds": 0.5,
}
"""What a point of gain counts in each group of sets."""
LOOSE: Final[Mapping[str, float]] = {"outside": 6.0, "other kinds": 1.5}
"""How many per cent more may do worse there."""
GRID: Final[Mapping[str, Sequence[float]]] = {
    "bm25": (0.0, 0.4, 0.7, 1.0),
    "near": (0.0, 0.7, 1.0),
    "head": (0.0, 0.35, 0.7),
    "least_lead": (0.0, 0.1, 0.2),
    "full_lead": (0.3, 0.4, 0.5),
    "whole": (0.2, 0.3, 1.0),
}


@dataclass(frozen=True)
class Constants:
    """What is fitted; see `qtmiddleware.retrieval.question_words`."""

    bm25: float = WEIGHT
    near: float = WEIGHT
    head: float = WEIGHT
    least_lead: float = LEAST_LEAD
    full_lead: float = FULL_LEAD
    whole: float = WHOLE

    def __str__(self) -> str:
        return ", ".join(f"{it.name} {getattr(self, it.name):g}" for it in fields(self))


def find_strength(lists: Lists, constants: Constants) -> Any:
    """Return how much words count in each list, as `keyword_evidence.judge_lead` does."""
    import numpy as np

    coverage = lists.features["coverage"]
    most, first = coverage.max(1), coverage[:, 0]
    # Reranked lists are short because the function cuts them.
    is_whole = (lists.sizes < WIDE) & (lists.kind != "reranked") & ((most < 1.0) | (first > HALF))
    share = (most - first - constants.least_lead) / (constants.full_lead - constants.least_lead)
    return np.clip(share, 0.0, 1.0) * np.where(is_whole, constants.whole, 1.0)


def rank(lists: Lists, constants: Constants) -> Any:
    """Return the order under these *constants*."""
    features = lists.features
    words = (
        constants.bm25 * features["bm25"]
        + constants.near * features["near"]
        + constants.head * features["head"]
    )
    base = (lists.scores - lists.scores[:, :1]) / lists.spread[:, None]
    return order(lists, base + find_strength(lists, constants)[:, None] * words)


def keep_first(lists: Lists, columns: Any, top_k: int, lead: float) -> Any:
    """Returns *columns* so that a passage leaves the plain first *top_k* only for one that covers *lead* more.

    Newcomers are taken in their order; each needs a passage of the plain set, the last one first,
    that it may replace.
    """
    import numpy as np

    out = columns.copy()
    coverage = lists.features["coverage"]
    for row in range(len(columns)):
        chosen = list(columns[row, :top_k])
        newcomers = [at for at in chosen if at >= top_k]
        if not newcomers:
            continue
        places = {int(at): place for place, at in enumerate(columns[row])}
        leaving = sorted(
            (at for at in range(top_k) if at not in set(chosen)), key=lambda at: -places[at]
        )
        for at in newcomers:
            weak = next(
                (it for it in leaving if coverage[row, at] >= coverage[row, it] + lead), None
            )
            if weak is None:
                chosen.remove(at)
            else:
                leaving.remove(weak)
        chosen = sorted([*chosen, *leaving], key=lambda at: places[int(at)])[:top_k]
        rest = [at for at in columns[row] if at not in set(chosen)]
        out[row] = np.array([*chosen, *rest])
    return out


@dataclass(frozen=True)
class Pool:
    """Every combination of constants, with gain and worse questions, in per cent, on each of the *lists*."""

    constants: Sequence[Constants]
    gains: Any
    worse: Any
    groups: Mapping[str, Sequence[int]]

    def choose(self, limit: float, without: str = "", lists: Sequence[Lists] = ()) -> Constants:
        """Returns the constants with the largest gain under the *limit*, *without* looking at the set of that name."""
        import numpy as np

        value = np.zeros(len(self.constants))
        for group, places in self.groups.items():
            kept = [at for at in places if not without or lists[at].name != without]
            if not kept:
                continue
            over = self.worse[:, kept].mean(1) - limit - LOOSE.get(group, 0.0)
            value += SHARES[group] * self.gains[:, kept].mean(1) - 100.0 * np.maximum(0.0, over)
        return self.constants[int(value.argmax())]


def find_group(lists: Lists) -> str:
    """Returns to which group of the fit *lists* belong; empty if they are only reported."""
    if lists.kind in PARTS:
        return "parts" if lists.group != "language" else ""
    group = "small" if lists.group == "own" else lists.group
    if lists.kind != "cosine":
        return "other kinds" if group in ("small", "large") else ""
    return group if group in SHARES else ""


def try_all(lists: Sequence[Lists], grid: Mapping[str, Sequence[float]] = GRID) -> Pool:
    """Measures every combination of the *grid* on all *lists*."""
    import numpy as np

    tried = [Constants(*values) for values in product(*grid.values())]
    gains, worse = np.zeros((len(tried), len(lists))), np.zeros((len(tried), len(lists)))
    for at, one in enumerate(lists):
        raw, _ = measure(one, np.arange(WIDE)[None].repeat(len(one.ids), 0))
        for number, constants in enumerate(tried):
            new, _ = measure(one, rank(one, constants))
            gains[number, at], worse[number, at] = (
                100 * (new - raw).mean(),
                100 * (new < raw - 1e-9).mean(),
            )
    groups: dict[str, list[int]] = {}
    for at, one in enumerate(lists):
        if group := find_group(one):
            groups.setdefault(group, []).append(at)
    return Pool(tried, gains, worse, groups)
