"""The comparison as one page of HTML that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from qtmiddleware.kit.evaluation import DEEP, PRIMARY, Comparison, Dataset, SystemScore
from qtmiddleware.kit.evaluation.measures import RESAMPLES
from qtmiddleware.kit.evaluation.reporting import charts, figures, verdicts
from qtmiddleware.kit.evaluation.reporting.template import render

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.judging import Judged


@dataclass(frozen=True, slots=True)
class Detail:
    """One system looked at closely; *outcomes* are how many questions were helped, unchanged and hurt.

    *helped* and *hurt* are the paths of what they gained and lost.
    """

    place: int
    score: SystemScore
    outcomes: tuple[int, int, int]
    helped: str
    hurt: str
    longest_ms: float
    worst: tuple[verdicts.HurtQuestion, ...]

    def scale(self, ms: float) -> float:
        """How much of the longest time *ms* is, in hundredths; 0 where it is not known."""
        return (
            round(min(100.0, max(0.0, 100.0 * ms / self.longest_ms)), 2)
            if figures.is_known(ms)
            else 0.0
        )


def page(
    comparison: Comparison,
    data: Dataset | None = None,
    *,
    decision: verdicts.Decision | None = None,
    judged: Judged | None = None,
) -> str:
    """The whole comparison as one HTML page with everything in it: verdict, charts, tables, worst questions, method.

    It has no script, loads nothing and forbids itself to. *data* gives it the words of questions
    and passages and marks the relevant ones; without it, a question's words are known where a
    system told what it searched. A *decision* takes the place of the verdict, and *judged* adds
    what a judge said of answers. Raises `MissingExtra` without jinja2.
    """
    best = verdicts.find_foremost(comparison) if decision is None else comparison[decision.system]
    finder = verdicts.HurtFinder(comparison, data)
    up = charts.make_gains_axis(comparison)
    details = list(_describe_systems(comparison, finder, up))
    # The chosen system's panel is the one that is seen.
    chosen = (
        f".detail:has(#system-{it.place}:checked) #panel-{it.place}{{display:block}}\n"
        for it in details
    )
    headline, beside = verdicts.write_verdict(comparison, decision)
    columns = figures.choose_columns(comparison)
    few = [column for column in columns if not column.wide or column is figures.FIRST]
    return render(
        "page.html.jinja",
        style="".join(chosen),
        comparison=comparison,
        headline=headline,
        lede=beside if decision is None else "",
        sentences=() if decision is None else tuple(filter(None, (beside, *decision.sentences))),
        notes=verdicts.collect_notes(comparison, data),
        classify=partial(charts.classify, comparison),
        decision=decision,
        texts={question.id: question.text for question in data.questions} if data else {},
        judged=judged,
        best=best,
        outcomes=charts.count_outcomes(best),
        has_winner=verdicts.find_winner(comparison) is not None,
        missing_time=figures.describe_missing_time(comparison),
        ranked=charts.rank_systems(comparison),
        quality=charts.make_quality_axis(comparison),
        up=up,
        costs=charts.draw_costs(comparison),
        columns=few,
        more_columns=[column for column in columns if column not in few],
        gain=figures.GAIN,
        count_first=figures.count_first,
        details=details,
        charts=charts,
        primary=PRIMARY,
        deep=DEEP[0],
        resamples=RESAMPLES,
    )


def _describe_systems(
    comparison: Comparison, finder: verdicts.HurtFinder, up: charts.Axis
) -> Iterator[Detail]:
    """Yield every challenger looked at closely, all on one scale."""
    for place, score in enumerate(comparison.challengers):
        helped, hurt = charts.draw_gains(score, up)
        yield Detail(
            place=place,
            score=score,
            outcomes=charts.count_outcomes(score),
            helped=helped,
            hurt=hurt,
            longest_ms=max(
                (it.p95 for it in score.stages_ms.values() if figures.is_known(it.p95)), default=0.0
            )
            or 1.0,
            worst=finder.find(score),
        )
