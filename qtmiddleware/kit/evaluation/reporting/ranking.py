"""Write a judge's ranking of answers as one HTML page that loads no other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.prompts import CRITERIA
from qtmiddleware.kit.evaluation.ranking import FEWEST, RankedAnswers, RankedSystems, Standing
from qtmiddleware.kit.evaluation.reporting import charts, figures
from qtmiddleware.kit.evaluation.reporting.template import render_template
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SideBySide
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.preprocessing.text import shorten_text

_QUESTION_LENGTH: Final = 400
_ANSWER_LENGTH: Final = 2_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One system's mean cost of searching and answering.

    A cost that is not known is ``None``.

    Attributes:
        searches: Searches per question.
        calls: Model calls per question.
        seconds: Seconds per question.
        usd_per_thousand: US dollars per 1,000 questions.
    """

    searches: float | None
    calls: float | None
    seconds: float
    usd_per_thousand: float | None


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """An answer with its rank, as text for an HTML page.

    Attributes:
        heading: The rank, the names of the systems that gave the answer, and the scores.
        text: The answer.
        said: The judge's remarks as (sign, text) pairs. The sign is plus for a strength and minus
            for a weakness.
    """

    heading: str
    text: str = field(repr=False)
    said: tuple[tuple[str, str], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class RankedQuestion:
    """A question with its ranked answers, as text for an HTML page.

    Attributes:
        question: The question.
        reference: The reference answer.
        order: The ranking on one line, such as ``rules > raw``.
        answers: The answers, best first.
        reasons: The judge's reasons as (text, legend) pairs. The legend names the system behind
            each letter in the text, such as ``A is raw``.
    """

    question: str = field(repr=False)
    reference: str = field(repr=False)
    order: str
    answers: tuple[RankedAnswer, ...]
    reasons: tuple[tuple[str, str], ...] = field(repr=False)


def ranking_page(found: SideBySide) -> str:
    """Return the judge's ranking in *found* as one HTML page with ranks, figures and reasons.

    The page's content security policy forbids scripts and loading other files. Raises `ConfigError`
    if nothing was ranked, and `MissingExtra` if jinja2 is not installed.
    """
    ranked = found.ranked
    if ranked is None:
        raise ConfigError("a report needs a question with an ideal answer", path="found")
    standings = ranked.standings
    ends = [end for standing in standings for end in (*(standing.interval or ()), standing.place)]
    return render_template(
        "ranking.html.jinja",
        ranked=ranked,
        headline=describe_ranking(ranked),
        lede=ranked.summary(),
        judged=len(ranked.questions) - ranked.failed - ranked.set_aside,
        standings=standings,
        classify=_classify_standing,
        costs={
            standing.system: _measure_cost(found.questions, standing.system)
            for standing in standings
        },
        criteria=[
            name for name in CRITERIA if any(name in standing.scores for standing in standings)
        ],
        axis=charts.make_axis([1.0, *ends], 1.0, 99.0, includes_zero=False),
        interval=_format_interval,
        questions=list(_build_ranked_questions(found)),
    )


def describe_ranking(ranked_systems: RankedSystems) -> str:
    """Return a sentence that names the best system and compares it with the baseline."""
    standings = ranked_systems.standings
    if not standings:
        return "There is no ranking."
    best = [standing for standing in standings if standing.rank == standings[0].rank]
    names = " and ".join(
        f"“{shorten_text(standing.system, figures.NAME_LENGTH)}”" for standing in best
    )
    if len(ranked_systems.questions) == 1:
        return f"{names} answered best."
    leader = max(best, key=lambda standing: standing.firsts)
    verb = "gives" if len(best) == 1 else "give"
    sentence = (
        f"{names} {verb} the best answer to {leader.firsts:,} of {leader.questions:,} questions"
    )
    base = next((standing for standing in standings if standing.system == BASELINE), None)
    if base is None or base in best:
        return f"{sentence}."
    chance = "" if any(standing.is_ahead for standing in best) else ", which may be chance"
    return f"{sentence}, “{BASELINE}” to {base.firsts:,}{chance}."


def _classify_standing(standing: Standing) -> str:
    """Return a system's class, ``better``, ``worse`` or ``same``, compared with the baseline.

    Without a significant difference, the class is ``same``. The baseline's own class is ``base``.
    """
    if standing.system == BASELINE:
        return "base"
    is_behind = (
        standing.lead_interval is not None
        and standing.lead_interval[1] < 0
        and standing.questions >= FEWEST
    )
    return "better" if standing.is_ahead else "worse" if is_behind else "same"


def _measure_cost(asked_questions: Sequence[AskedQuestion], system_name: str) -> Cost:
    """Return the mean cost of the system called *system_name* over *asked_questions*."""
    answers = [row[system_name] for row in asked_questions]
    traces = [answer.retrieval.trace for answer in answers if answer.retrieval is not None]
    prices = [trace.cost_usd for trace in traces]
    known_prices = [price for price in prices if price is not None]
    return Cost(
        searches=fmean(trace.searches for trace in traces) if traces else None,
        calls=fmean(trace.llm_calls for trace in traces) if traces else None,
        seconds=fmean(answer.seconds for answer in answers),
        # A mean over only the known prices would be too low.
        usd_per_thousand=1_000 * fmean(known_prices)
        if known_prices and len(known_prices) == len(prices)
        else None,
    )


def _format_interval(interval: tuple[float, float] | None, *, is_signed: bool = True) -> str:
    template = "{:+.2f}" if is_signed else "{:.2f}"
    return "" if interval is None else f"[{', '.join(map(template.format, interval))}]"


def _build_ranked_questions(comparison: SideBySide) -> Iterator[RankedQuestion]:
    """Yield each question that has a ranking, as text for an HTML page."""
    for row in comparison.questions:
        if (ranking := comparison.find_ranking(row.question)) is not None:
            yield RankedQuestion(
                question=shorten_text(row.question.text, _QUESTION_LENGTH),
                reference=shorten_text(row.question.reference, _ANSWER_LENGTH),
                order=_format_ranking(ranking),
                answers=tuple(_build_ranked_answers(row, ranking)),
                reasons=tuple(
                    (
                        shorten_text(reason.text, _QUESTION_LENGTH),
                        shorten_text(reason.legend, _QUESTION_LENGTH),
                    )
                    for reason in ranking.reasons
                ),
            )


def _format_ranking(ranking: RankedAnswers) -> str:
    """Return *ranking* on one line, such as ``rules > raw``.

    If there is no ranking, the line states the reason.
    """
    if ranking.error:
        explanations = {
            "equal": "all answers are the same",
            "length": "not counted: length decided",
        }
        return explanations.get(ranking.error, f"the judge failed: {ranking.error}")
    ranks: dict[int, list[str]] = {}
    for standing in ranking.standings:
        ranks.setdefault(standing.rank, []).append(
            shorten_text(standing.system, figures.NAME_LENGTH)
        )
    return " > ".join(" = ".join(names) for _, names in sorted(ranks.items()))


def _build_ranked_answers(
    asked_question: AskedQuestion, ranking: RankedAnswers
) -> Iterator[RankedAnswer]:
    """Yield each distinct answer to *asked_question*, best first, as text for an HTML page.

    Systems with the same answer share an entry. Answers that are not in *ranking* come last.
    """
    standings = {standing.system: standing for standing in ranking.standings}
    systems_by_text: dict[str, list[str]] = {}
    for answer in asked_question.systems:
        text = f"No answer: {answer.error}" if answer.answer is None else answer.answer.text
        systems_by_text.setdefault(text, []).append(answer.system)
    # Answers that were not ranked, such as those of failed systems, come last.
    last = len(standings) + 1
    ordered = sorted(
        systems_by_text.items(),
        key=lambda entry: standings[entry[1][0]].rank if entry[1][0] in standings else last,
    )
    for text, names in ordered:
        standing = standings.get(names[0])
        name = " = ".join(shorten_text(system, figures.NAME_LENGTH) for system in names)
        signs = (
            (("+", standing.strengths), ("-", standing.weaknesses)) if standing is not None else ()
        )
        scores = (
            ""
            if standing is None
            else ", ".join(f"{criterion} {score:g}" for criterion, score in standing.scores.items())
        )
        # The judge may make the same remark for several orders; one is enough.
        yield RankedAnswer(
            heading=name
            if standing is None
            else f"{standing.rank}. {name}" + (f" ({scores})" if scores else ""),
            text=shorten_text(text, _ANSWER_LENGTH),
            said=tuple(
                (sign.replace("-", "\N{MINUS SIGN}"), shorten_text(remark, _QUESTION_LENGTH))
                for sign, texts in signs
                for remark in dict.fromkeys(filter(None, texts))
            ),
        )
