"""The judge's ranking of answers as one page of HTML that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.prompts import CRITERIA
from qtmiddleware.kit.evaluation.ranking import FEWEST, RankedAnswers, RankedSystems, Standing
from qtmiddleware.kit.evaluation.reporting import charts, figures
from qtmiddleware.kit.evaluation.reporting.template import render
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SideBySide
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.preprocessing.text import shorten

_QUESTION_LENGTH: Final = 400
_ANSWER_LENGTH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """What one system took for a question, the mean of all: its answer is part of it; ``None`` is not known."""

    searches: float | None
    calls: float | None
    seconds: float
    usd_per_thousand: float | None


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """One answer with its system's place, and what was *said* of it: what is right (+) and wrong (-)."""

    heading: str
    text: str = field(repr=False)
    said: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class RankedQuestion:
    """One question with its answers, the best first; *order* is the ranking in a line."""

    question: str = field(repr=False)
    reference: str = field(repr=False)
    order: str
    answers: tuple[RankedAnswer, ...]
    reasons: tuple[tuple[str, str], ...] = field(repr=False)


def ranking_page(found: SideBySide) -> str:
    """What a judge made of the answers of *found*, as one page with everything in it: standings, figures, reasons.

    It has no script, loads nothing and forbids itself to. Raises `ConfigError` where nothing was
    ranked, and `MissingExtra` without jinja2.
    """
    ranked = found.ranked
    if ranked is None:
        raise ConfigError("a report needs a question with an ideal answer", path="found")
    standings = ranked.standings
    ends = [end for one in standings for end in (*(one.interval or ()), one.place)]
    return render(
        "ranking.html.jinja",
        ranked=ranked,
        headline=write_ranking_verdict(ranked),
        lede=ranked.summary(),
        judged=len(ranked.questions) - ranked.failed - ranked.set_aside,
        standings=standings,
        classify=_classify,
        costs={one.system: _measure_cost(found.questions, one.system) for one in standings},
        criteria=[name for name in CRITERIA if any(name in one.scores for one in standings)],
        axis=charts.make_axis([1.0, *ends], 1.0, 99.0, zero=False),
        interval=_format_interval,
        questions=list(_describe_questions(found)),
    )


def write_ranking_verdict(ranked: RankedSystems) -> str:
    """Return the one thing to take home: whose answer is best, and for how many questions, beside the baseline's."""
    standings = ranked.standings
    if not standings:
        return "There is no ranking."
    best = [one for one in standings if one.rank == standings[0].rank]
    names = " and ".join(f"“{shorten(one.system, figures.NAME_LENGTH)}”" for one in best)
    if len(ranked.questions) == 1:
        return f"{names} answered best."
    most = max(best, key=lambda one: one.firsts)
    verb = "gives" if len(best) == 1 else "give"
    first = f"{names} {verb} the best answer to {most.firsts:,} of {most.questions:,} questions"
    base = next((one for one in standings if one.system == BASELINE), None)
    if base is None or base in best:
        return f"{first}."
    chance = "" if any(one.is_ahead for one in best) else ", which may be chance"
    return f"{first}, “{BASELINE}” to {base.firsts:,}{chance}."


def _classify(one: Standing) -> str:
    if one.system == BASELINE:
        return "base"
    is_behind = (
        one.lead_interval is not None and one.lead_interval[1] < 0 and one.questions >= FEWEST
    )
    return "better" if one.is_ahead else "worse" if is_behind else "same"


def _measure_cost(rows: Sequence[AskedQuestion], name: str) -> Cost:
    asked = [row[name] for row in rows]
    traces = [one.retrieval.trace for one in asked if one.retrieval is not None]
    prices = [trace.cost_usd for trace in traces]
    known = [price for price in prices if price is not None]
    return Cost(
        searches=fmean(trace.searches for trace in traces) if traces else None,
        calls=fmean(trace.llm_calls for trace in traces) if traces else None,
        seconds=fmean(one.seconds for one in asked),
        usd_per_thousand=1_000 * fmean(known) if known and len(known) == len(prices) else None,
    )


def _format_interval(interval: tuple[float, float] | None, *, signed: bool = True) -> str:
    form = "{:+.2f}" if signed else "{:.2f}"
    return "" if interval is None else f"[{', '.join(map(form.format, interval))}]"


def _describe_questions(found: SideBySide) -> Iterator[RankedQuestion]:
    for row in found.questions:
        if (ranking := found.ranking(row.question)) is not None:
            yield RankedQuestion(
                question=shorten(row.question.text, _QUESTION_LENGTH),
                reference=shorten(row.question.reference, _ANSWER_LENGTH),
                order=_write_order(ranking),
                answers=tuple(_describe_answers(row, ranking)),
                reasons=tuple(
                    (shorten(it.text, _QUESTION_LENGTH), shorten(it.legend, _QUESTION_LENGTH))
                    for it in ranking.reasons
                ),
            )


def _write_order(ranking: RankedAnswers) -> str:
    if ranking.error:
        said = {"equal": "all answers are the same", "length": "not counted: length decided"}
        return said.get(ranking.error, f"the judge failed: {ranking.error}")
    ranks: dict[int, list[str]] = {}
    for one in ranking.standings:
        ranks.setdefault(one.rank, []).append(shorten(one.system, figures.NAME_LENGTH))
    return " > ".join(" = ".join(names) for _, names in sorted(ranks.items()))


def _describe_answers(row: AskedQuestion, ranking: RankedAnswers) -> Iterator[RankedAnswer]:
    """Each answer once, with all systems that gave it, the best first."""
    standings = {one.system: one for one in ranking.standings}
    held: dict[str, list[str]] = {}
    for one in row.systems:
        text = f"No answer: {one.error}" if one.answer is None else one.answer.text
        held.setdefault(text, []).append(one.system)
    last = len(standings) + 1
    ordered = sorted(
        held.items(), key=lambda it: standings[it[1][0]].rank if it[1][0] in standings else last
    )
    for text, names in ordered:
        standing = standings.get(names[0])
        name = " = ".join(shorten(it, figures.NAME_LENGTH) for it in names)
        signs = (
            (("+", standing.strengths), ("-", standing.weaknesses)) if standing is not None else ()
        )
        scores = (
            ""
            if standing is None
            else ", ".join(f"{it} {score:g}" for it, score in standing.scores.items())
        )
        yield RankedAnswer(
            heading=name
            if standing is None
            else f"{standing.rank}. {name}" + (f" ({scores})" if scores else ""),
            text=shorten(text, _ANSWER_LENGTH),
            said=tuple(
                (sign.replace("-", "\N{MINUS SIGN}"), shorten(said, _QUESTION_LENGTH))
                for sign, texts in signs
                for said in dict.fromkeys(filter(None, texts))
            ),
        )
