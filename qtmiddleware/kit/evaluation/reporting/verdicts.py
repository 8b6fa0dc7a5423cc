"""What to take home from a comparison: which system wins at what price, and the questions that a system hurt most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from qtmiddleware.kit.evaluation import (
    PRIMARY,
    TOLERANCE,
    Comparison,
    Dataset,
    SystemScore,
    difference,
)
from qtmiddleware.kit.evaluation.measures import FEW, SIGNIFICANT
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.charts import count_outcomes
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Variant

ID_LENGTH: Final = 60
_QUESTION_LENGTH, _TURN_LENGTH, _VARIANT_LENGTH, _PASSAGE_LENGTH = 400, 160, 400, 90
_SYNTHETIC: Final = "The questions are synthetic: a language model wrote them."
_WORST: Final = 10
"""How many questions of each system are shown."""
_FOUND: Final = 10
"""How many passages are, which is as far as the measure looks."""
_VARIANTS: Final = 16
_TURNS: Final = 4


def verdict(comparison: Comparison, decision: Decision | None = None) -> str:
    """Which system beats the baseline by more than chance and at what price, or that none does, in plain sentences.

    The first sentence is for people: for how many questions the right passage comes first. A
    *decision* takes the place of the price.
    """
    return " ".join(filter(None, write_verdict(comparison, decision)))


def write_verdict(comparison: Comparison, decision: Decision | None = None) -> tuple[str, str]:
    """The verdict as a headline for people, and what must be known with it: points, interval and price."""
    if decision is not None:
        return _write_decision(comparison, decision)
    best = find_winner(comparison)
    base = _quote_name(comparison.baseline)
    if best is not None:
        interval = figures.describe_interval(best.difference)
        gains = f"{_format_size(best.difference.gain)} points of {PRIMARY} over {base} ({interval})"
        rest = f"{_describe_price(comparison, best)}{_describe_rival(comparison, best)}"
        return _describe_first(comparison, best), f"{_quote_name(best.name)} gains {gains}. {rest}"
    first = (
        "the right passage first for"
        f" {_count_questions(comparison, comparison[comparison.baseline])}"
    )
    if not comparison.challengers:
        return (
            f"{base} has {first}.",
            "Only the baseline was measured, so there is nothing to compare it with.",
        )
    few = (
        " With so few questions, only a large difference can be seen."
        if comparison.questions < FEW
        else ""
    )
    count = comparison.questions
    questions = "one question" if count == 1 else f"these {count:,} questions"
    headline = f"No system is clearly better than {base}, which has {first}."
    return headline, f"On {questions} {_describe_losers(comparison)}.{few}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided on the figures, in place of a verdict: a report then speaks of this and not of the largest gain.

    *system* is what is recommended or, where *is_recommended* is false, what was refused.
    *sentences* say why, and
    *beyond* which systems are beyond the budget. *config* is what is written, as JSON.
    """

    system: str
    is_recommended: bool
    headline: str
    sentences: tuple[str, ...]
    beyond: frozenset[str] = frozenset()
    config: str = field(default="", repr=False)


def find_winner(comparison: Comparison) -> SystemScore | None:
    """The system that gained most of those whose gain is more than chance; ``None`` where there is none."""
    return _find_best([score for score in comparison.challengers if _is_better(score)])


def find_foremost(comparison: Comparison) -> SystemScore:
    """The system to look at first: the winner, else the challenger that gained most, else the baseline itself."""
    return (
        find_winner(comparison)
        or _find_best(comparison.challengers)
        or comparison[comparison.baseline]
    )


def collect_notes(comparison: Comparison, data: Dataset | None) -> tuple[str, ...]:
    """What a reader must know to judge the figures; that the questions are synthetic is among it if *data* says so."""
    if (
        data is None
        or not data.is_synthetic
        or any("synthetic" in note.casefold() for note in comparison.notes)
    ):
        return comparison.notes
    return (_SYNTHETIC, *comparison.notes)


def _quote_name(name: str) -> str:
    return f"“{shorten(name, figures.NAME_LENGTH)}”"


def _format_size(gain: float) -> str:
    """A gain in points without its sign, which the sentence tells."""
    return figures.format_points(gain).removeprefix("+")


def _write_decision(comparison: Comparison, decision: Decision) -> tuple[str, str]:
    """What the recommended system does for people, or that nothing is recommended; then the other of the two."""
    if decision.system == comparison.baseline:
        return decision.headline, ""
    first = _describe_first(comparison, comparison[decision.system])
    if decision.is_recommended:
        return first, decision.headline
    return decision.headline, f"With {_quote_name(decision.system)}: {first[:1].lower()}{first[1:]}"


def _count_questions(comparison: Comparison, score: SystemScore) -> str:
    return (
        f"{figures.count_first(score):,} of {comparison.questions:,}"
        f" question{'' if comparison.questions == 1 else 's'}"
    )


def _describe_first(comparison: Comparison, score: SystemScore) -> str:
    """For how many questions the right passage comes first, and how many get worse.

    If no more of them have it first, what is gained lies further down: how many get better stands
    before.
    """
    before, after = figures.count_first(comparison[comparison.baseline]), figures.count_first(score)
    helped, _, hurt = count_outcomes(score)
    total = f"{comparison.questions:,}"
    if after > before:
        worse = f"{hurt:,} of {total} {_get(hurt)} worse" if hurt else "none gets worse"
        return (
            f"The right passage comes first for {_count_questions(comparison, score)} instead of"
            f" {before:,}; {worse}."
        )
    none_or_hurt = f"{hurt:,}" if hurt else "none"
    better = (
        f"{helped:,} of {total} questions {_get(helped)} better and {none_or_hurt}"
        f" {_get(hurt or 1)} worse"
    )
    instead = "as before" if after == before else f"instead of {before:,}"
    beside = ", " if after == before else " "
    return f"{better}; the right passage comes first for {after:,}{beside}{instead}."


def _get(count: int) -> str:
    return "gets" if count == 1 else "get"


def _describe_price(comparison: Comparison, best: SystemScore) -> str:
    """What the best system takes and costs, and what there is for less."""
    adds = figures.format_duration(best.added_ms.p50)
    beside = figures.describe_missing_time(comparison) if best.llm_calls else ""
    searches = best.searches_per_question
    makes = "" if searches is None else f", makes {figures.format_rate(searches)} searches"
    if not best.llm_calls:
        a_question = makes and " per question"
        return f"It adds {adds} (median){makes}{a_question} and calls no model."
    cost = best.usd_per_thousand
    price = (
        "at an unknown price"
        if cost is None
        else f"for {figures.format_dollars(cost)} per 1,000 questions"
    )
    text = (
        f"It adds {adds} (median{beside}){makes} and calls the model {_format_calls(best)} times"
        f" per question, {price}."
    )
    free = [score for score in comparison.challengers if not score.llm_calls]
    if sure := _find_best([score for score in free if _is_better(score)]):
        return (
            f"{text} Without a model, {_quote_name(sure.name)} gains"
            f" {_format_size(sure.difference.gain)}."
        )
    if (unsure := _find_best(free)) and unsure.difference.gain > TOLERANCE:
        gains = f"{_quote_name(unsure.name)} gains {figures.format_gain(unsure.difference)}"
        return f"{text} Without a model, {gains}, which may be chance."
    return f"{text} No system gains without a model."


def _describe_rival(comparison: Comparison, best: SystemScore) -> str:
    """The best of those that may be as good as the best and cost less; empty where there is none.

    At most half as much, if there is one, as that is worth a change; else any that costs less, else
    the second best.
    """
    others = [score for score in comparison.challengers if _is_better(score) and score is not best]
    others.sort(key=lambda score: (-score.difference.gain, _rank_cost(score)))
    half = [
        score
        for score in others
        if _rank_cost(score) <= tuple(part / 2 for part in _rank_cost(best))
    ]
    cheaper = [score for score in others if _rank_cost(score) < _rank_cost(best)]
    for score in (*half, *cheaper, *others[:1]):
        lead = difference(
            [best.gains[asked] - score.gains[asked] for asked in best.gains], seed=comparison.seed
        )
        if lead.p >= SIGNIFICANT:
            name = f"{_quote_name(score.name)}{_format_cost(score, best)}"
            if abs(lead.gain) <= TOLERANCE:
                return f" {name} does as well."
            between = (
                f"the {_format_size(lead.gain)} points between them {figures.format_interval(lead)}"
            )
            return f" {name} may be as good: {between} may be chance."
    return ""


def _rank_cost(score: SystemScore) -> tuple[float, float, float]:
    """By what systems are cheaper than one another: the model's price where it is known, then calls, then searches."""
    money, searches = score.usd_per_thousand, score.searches_per_question
    unknown = float("inf")
    return (
        unknown if money is None else money,
        score.llm_calls / len(score.runs),
        unknown if searches is None else searches,
    )


def _format_calls(score: SystemScore) -> str:
    return figures.format_rate(score.llm_calls / len(score.runs))


def _format_cost(score: SystemScore, best: SystemScore) -> str:
    """What *score* costs, by what makes it cheaper than *best*."""
    *price, searches = _rank_cost(score)
    *highest, most = _rank_cost(best)
    if price == highest and searches != most:
        return f" ({figures.format_rate(searches)} searches per question)"
    if not score.llm_calls:
        return ""
    cost = score.usd_per_thousand
    return f" ({f'{_format_calls(score)} calls per question' if cost is None else figures.format_dollars(cost)})"


def _describe_losers(comparison: Comparison) -> str:
    """What the systems did where none won."""
    best = _find_best(comparison.challengers)
    worse = [
        it
        for it in comparison.challengers
        if it.difference.is_significant and it.difference.gain < -TOLERANCE
    ]
    if best is None or best.difference.gain <= TOLERANCE:
        text = "no system gained anything"
    else:
        gain = f"{_format_size(best.difference.gain)} points of {PRIMARY}"
        interval = figures.describe_interval(best.difference)
        text = f"the largest gain, {gain} by {_quote_name(best.name)} ({interval}), may be chance"
    if not worse:
        return text
    which = f"{_quote_name(worse[0].name)} is" if len(worse) == 1 else f"{len(worse)} systems are"
    return f"{text}, and {which} significantly worse"


def _is_better(score: SystemScore) -> bool:
    """Whether it gained more than chance would, and not every one of its answers was degraded."""
    return (
        score.degraded < len(score.runs)
        and score.difference.is_significant
        and score.difference.gain > TOLERANCE
    )


def _find_best(scores: Sequence[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that was found: its *rank* from 1, its first words, and its *grade*, ``None`` where not known."""

    rank: int
    id: str
    text: str = field(repr=False)
    grade: int | None = None

    @property
    def is_relevant(self) -> bool:
        """Whether it is judged to answer the question."""
        return self.grade is not None and self.grade > 0


@dataclass(frozen=True, slots=True)
class HurtQuestion:
    """A question that lost against the baseline: *gain* below 0, from *before* to *after*, and why that may be.

    *missed* are relevant passages that are not among the first ten of the system. All texts are
    cleaned and cut to what a reader looks at.
    """

    id: str
    question: str = field(repr=False)
    history: tuple[tuple[str, str], ...] = field(repr=False)
    gain: float
    before: float
    after: float
    variants: tuple[Variant, ...] = field(repr=False)
    raw: tuple[FoundPassage, ...] = field(repr=False)
    found: tuple[FoundPassage, ...] = field(repr=False)
    missed: tuple[FoundPassage, ...] = field(repr=False)


class HurtFinder:
    """Finds the questions that systems of *comparison* hurt most, with the texts of *data* where it is given."""

    def __init__(self, comparison: Comparison, data: Dataset | None = None) -> None:
        self._base = comparison[comparison.baseline]
        self._questions = {question.id: question for question in data.questions} if data else {}
        self._qrels = data.qrels if data else {}
        self._passages = {passage.id: passage for passage in data.passages} if data else {}

    def find(self, score: SystemScore) -> tuple[HurtQuestion, ...]:
        """The ten that *score*'s system hurt most, the worst first."""
        return tuple(
            self._describe(score, question, gain) for question, gain in score.worst(_WORST)
        )

    def _describe(self, score: SystemScore, id_: str, gain: float) -> HurtQuestion:
        run, base, question = score.runs[id_], self._base.runs[id_], self._questions.get(id_)
        after = score.per_query.values[PRIMARY][id_]
        grades = self._qrels.get(id_)
        found = set(run.ids[:_FOUND])
        missed = [it for it, grade in (grades or {}).items() if grade > 0 and it not in found]
        turns = question.history[-_TURNS:] if question else ()
        # Without the data, its words are known where a system told what it searched.
        searched = next((it.text for it in base.variants if it.kind == "original"), "")
        return HurtQuestion(
            id=shorten(id_, ID_LENGTH),
            question=shorten(question.text if question else searched, _QUESTION_LENGTH),
            history=tuple(
                (shorten(it.role, 20), shorten(it.content, _TURN_LENGTH)) for it in turns
            ),
            gain=gain,
            before=self._base.per_query.values[PRIMARY][id_],
            after=after,
            variants=tuple(
                replace(it, text=shorten(it.text, _VARIANT_LENGTH))
                for it in run.variants[:_VARIANTS]
            ),
            raw=self._list_found(base.ids, grades),
            found=self._list_found(run.ids, grades),
            missed=self._list_found(missed, grades),
        )

    def _list_found(
        self, ids: Sequence[str], grades: Mapping[str, int] | None
    ) -> tuple[FoundPassage, ...]:
        return tuple(
            FoundPassage(
                rank,
                figures.shorten_start(it, ID_LENGTH),
                (
                    shorten(_join_title(self._passages[it]), _PASSAGE_LENGTH)
                    if it in self._passages
                    else ""
                ),
                None if grades is None else grades.get(it, 0),
            )
            for rank, it in enumerate(ids[:_FOUND], 1)
        )


def _join_title(passage: Passage) -> str:
    """What *passage* says, with a colon after its title where it has one."""
    title = passage.metadata.get("title")
    if not isinstance(title, str) or not passage.text.startswith(f"{title}\n"):
        return passage.text
    return f"{title}: {passage.text[len(title) + 1 :]}"
