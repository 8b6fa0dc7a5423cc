"""A case as often as it takes to tell a slow package from a busy machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.robustness.faults.cases import Case, Draw
from tests.robustness.faults.laws import LATE, TIME, Verdict, judged
from tests.robustness.faults.playing import Limits, Player, Servers

MOST_REPEATS: Final = 3


@dataclass(frozen=True)
class Tried:
    """A case with the verdict of each try; the last one counts. *drained* is how long threads went on, in seconds."""

    case: Case
    draw: Draw
    verdicts: list[Verdict]
    drained: float

    @property
    def first(self) -> Verdict:
        return self.verdicts[0]

    @property
    def last(self) -> Verdict:
        return self.verdicts[-1]


def tried(case: Case, seed: int, servers: Servers, limits: Limits, *, times: bool = True) -> Tried:
    """*case* judged; repeated, up to `MOST_REPEATS` times and slower each time, if nothing but its time was wrong.

    Without *times* the law of time is not looked at.
    """
    draw, verdicts = case.drawn(seed), list[Verdict]()
    while True:
        played = Player(case, draw, servers, limits).play()
        verdicts.append(judged(case, draw, played, limits, times=times))
        is_settled = not verdicts[-1] or {law for law, _ in verdicts[-1]} - {TIME, LATE}
        if is_settled or len(verdicts) > MOST_REPEATS:
            return Tried(case, draw, verdicts, played.watch.drained)
        limits = limits.slower()
