"""Write a comparison as one HTML page that loads no other files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from qtmiddleware.kit.evaluation import DEEP, PRIMARY, Comparison, Dataset, SystemScore
from qtmiddleware.kit.evaluation.measures import RESAMPLES
from qtmiddleware.kit.evaluation.reporting import charts, figures, verdicts
from qtmiddleware.kit.evaluation.reporting.template import render_template

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.judging import Judged


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of one system on the HTML page of a comparison.

    Attributes:
        place: The system's index among the systems except the baseline, from 0.
        score: The system's figures.
        outcomes: The numbers of questions that got better, stayed the same, and got worse.
        helped: The SVG path that shows the gains.
        hurt: The SVG path that shows the losses.
        longest_ms: The 95th percentile of the slowest stage's time, in milliseconds.
        worst: The questions that lost most, worst first.
    """

    place: int
    score: SystemScore
    outcomes: tuple[int, int, int]
    helped: str
    hurt: str
    longest_ms: float
    worst: tuple[verdicts.WorseQuestion, ...]

    def compute_bar_width(self, ms: float) -> float:
        """Return the width of the bar for the time *ms*, as a percentage of `longest_ms`.

        Returns 0 if the time is not known.
        """
        return (
            round(min(100.0, max(0.0, 100.0 * ms / self.longest_ms)), 2)
            if figures.is_known(ms)
            else 0.0
        )


def page(
    comparison: Comparison, data: Dataset | None = None, *, judged: Judged | None = None
) -> str:
    """Return the whole comparison as one HTML page.

    The page has the verdict, charts, tables, the worst questions and the method. Its content
    security policy forbids scripts and loading other files. Without *data*, the page shows a
    question's text only if a system reported its search queries.

    Args:
        comparison: The comparison.
        data: The data set, with the texts of questions and passages, and with the judgements that
            mark relevant passages.
        judged: A judge's verdicts on the answers; ``None`` if there was no judge.

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    best = verdicts.find_best_system(comparison)
    finder = verdicts.WorstQuestionFinder(comparison, data)
    up = charts.make_gains_axis(comparison)
    details = list(_build_details(comparison, finder, up))
    # Without a script, a style rule shows the panel of the selected system.
    panel_rules = (
        f".detail:has(#system-{detail.place}:checked) #panel-{detail.place}{{display:block}}\n"
        for detail in details
    )
    headline, remark = verdicts.format_headline_and_details(comparison)
    columns = figures.choose_columns(comparison)
    main_columns = [column for column in columns if not column.wide or column is figures.FIRST]
    return render_template(
        "page.html.jinja",
        style="".join(panel_rules),
        comparison=comparison,
        headline=headline,
        lede=remark,
        notes=verdicts.collect_notes(comparison, data),
        classify=partial(charts.classify_system, comparison),
        texts={question.id: question.text for question in data.questions} if data else {},
        judged=judged,
        best=best,
        outcomes=charts.count_better_same_worse(best),
        has_winner=verdicts.find_winner(comparison) is not None,
        missing_time=figures.describe_missing_time(comparison),
        ranked=charts.rank_systems(comparison),
        quality=charts.make_quality_axis(comparison),
        up=up,
        costs=charts.draw_cost_charts(comparison),
        columns=main_columns,
        more_columns=[column for column in columns if column not in main_columns],
        gain=figures.GAIN,
        count_first=figures.count_relevant_first_passages,
        details=details,
        charts=charts,
        primary=PRIMARY,
        deep=DEEP[0],
        resamples=RESAMPLES,
    )


def _build_details(
    comparison: Comparison, finder: verdicts.WorstQuestionFinder, gains_axis: charts.Axis
) -> Iterator[Detail]:
    """Yield the details of each system except the baseline.

    The charts of gains use *gains_axis*, so that they can be compared.
    """
    for place, score in enumerate(comparison.challengers):
        helped, hurt = charts.draw_gains_and_losses(score, gains_axis)
        yield Detail(
            place=place,
            score=score,
            outcomes=charts.count_better_same_worse(score),
            helped=helped,
            hurt=hurt,
            # If all times are 0, the bars need another length to divide by.
            longest_ms=max(
                (stage.p95 for stage in score.stages_ms.values() if figures.is_known(stage.p95)),
                default=0.0,
            )
            or 1.0,
            worst=finder.find_worst_questions(score),
        )
