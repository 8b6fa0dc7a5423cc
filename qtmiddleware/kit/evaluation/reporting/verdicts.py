"""Write the verdict on a comparison: the best system, its price, and its worst questions."""

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
"""The number of questions shown per system that get worse most."""
_FOUND: Final = 10
"""The number of passages shown per list: the first ten, as in nDCG@10."""
_VARIANTS: Final = 16
_TURNS: Final = 4


def verdict(comparison: Comparison, decision: Decision | None = None) -> str:
    """Return sentences on the system with the largest significant gain, and its price.

    The first sentence counts the questions whose first passage is relevant. If no system has a
    significant gain, the sentences say so. A *decision* replaces the verdict.
    """
    return " ".join(filter(None, write_verdict(comparison, decision)))


def write_verdict(comparison: Comparison, decision: Decision | None = None) -> tuple[str, str]:
    """Return the verdict's headline and its details: gain in points, interval and price.

    A *decision* replaces the verdict.
    """
    if decision is not None:
        return _write_decision(comparison, decision)
    best = find_winner(comparison)
    base = _quote_name(comparison.baseline)
    if best is not None:
        interval = figures.describe_interval(best.difference)
        gains = f"{_format_size(best.difference.gain)} points of {PRIMARY} over {base} ({interval})"
        remark = f"{_describe_price(comparison, best)}{_describe_alternative(comparison, best)}"
        return _describe_first_passages(
            comparison, best
        ), f"{_quote_name(best.name)} gains {gains}. {remark}"
    first_count = (
        "the right passage first for"
        f" {_format_first_count(comparison, comparison[comparison.baseline])}"
    )
    if not comparison.challengers:
        return (
            f"{base} has {first_count}.",
            "Only the baseline was measured, so there is nothing to compare it with.",
        )
    caution = (
        " With so few questions, only a large difference can be seen."
        if comparison.questions < FEW
        else ""
    )
    count = comparison.questions
    questions = "one question" if count == 1 else f"these {count:,} questions"
    headline = f"No system is clearly better than {base}, which has {first_count}."
    return headline, f"On {questions} {_describe_gains_and_losses(comparison)}.{caution}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision for or against a system. A report states it instead of the verdict.

    Attributes:
        system: The name of the recommended or rejected system.
        is_recommended: Whether the system is recommended.
        headline: The decision in one sentence.
        sentences: The reasons for the decision.
        beyond: The names of the systems that break the budget.
        config: The config to write, as JSON.
    """

    system: str
    is_recommended: bool
    headline: str
    sentences: tuple[str, ...]
    beyond: frozenset[str] = frozenset()
    config: str = field(default="", repr=False)


def find_winner(comparison: Comparison) -> SystemScore | None:
    """Return the system with the largest significant gain, or ``None``.

    Systems with only degraded answers are skipped.
    """
    return _find_best([score for score in comparison.challengers if _is_better(score)])


def find_foremost(comparison: Comparison) -> SystemScore:
    """Return the system with the largest significant gain (see `find_winner`).

    If there is none, return the system with the largest gain, or else the baseline.
    """
    return (
        find_winner(comparison)
        or _find_best(comparison.challengers)
        or comparison[comparison.baseline]
    )


def collect_notes(comparison: Comparison, data: Dataset | None) -> tuple[str, ...]:
    """Return the comparison's notes, with a note on synthetic questions if *data* has any."""
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
    """Format a gain in points (hundredths), without a plus sign."""
    return figures.format_points(gain).removeprefix("+")


def _write_decision(comparison: Comparison, decision: Decision) -> tuple[str, str]:
    """Return the headline and the details of *decision*.

    The headline states the effect of the recommended system, or that no system is recommended.
    """
    if decision.system == comparison.baseline:
        return decision.headline, ""
    effect = _describe_first_passages(comparison, comparison[decision.system])
    if decision.is_recommended:
        return effect, decision.headline
    return (
        decision.headline,
        f"With {_quote_name(decision.system)}: {effect[:1].lower()}{effect[1:]}",
    )


def _format_first_count(comparison: Comparison, score: SystemScore) -> str:
    """Count the questions with a relevant first passage, as text: ``60 of 100 questions``."""
    return (
        f"{figures.count_first(score):,} of {comparison.questions:,}"
        f" question{'' if comparison.questions == 1 else 's'}"
    )


def _describe_first_passages(comparison: Comparison, score: SystemScore) -> str:
    """Return a sentence that counts the relevant first passages and the questions that get worse.

    If there are no more relevant first passages than with the baseline, the sentence begins with
    the number of questions that get better.
    """
    before, after = figures.count_first(comparison[comparison.baseline]), figures.count_first(score)
    helped, _, hurt = count_outcomes(score)
    total = f"{comparison.questions:,}"
    if after > before:
        worse = f"{hurt:,} of {total} {_conjugate_get(hurt)} worse" if hurt else "none gets worse"
        return (
            f"The right passage comes first for {_format_first_count(comparison, score)} instead of"
            f" {before:,}; {worse}."
        )
    none_or_hurt = f"{hurt:,}" if hurt else "none"
    better = (
        f"{helped:,} of {total} questions {_conjugate_get(helped)} better and {none_or_hurt}"
        f" {_conjugate_get(hurt or 1)} worse"
    )
    comparison_text = "as before" if after == before else f"instead of {before:,}"
    separator = ", " if after == before else " "
    return f"{better}; the right passage comes first for {after:,}{separator}{comparison_text}."


def _conjugate_get(count: int) -> str:
    return "gets" if count == 1 else "get"


def _describe_price(comparison: Comparison, best: SystemScore) -> str:
    """Return sentences on the time and cost of *best*.

    If *best* calls a model, the last sentence states the best gain without a model.
    """
    adds = figures.format_duration(best.added_ms.p50)
    remark = figures.describe_missing_time(comparison) if best.llm_calls else ""
    searches = best.searches_per_question
    searching = "" if searches is None else f", makes {figures.format_rate(searches)} searches"
    if not best.llm_calls:
        per_question = searching and " per question"
        return f"It adds {adds} (median){searching}{per_question} and calls no model."
    cost = best.usd_per_thousand
    price = (
        "at an unknown price"
        if cost is None
        else f"for {figures.format_dollars(cost)} per 1,000 questions"
    )
    text = (
        f"It adds {adds} (median{remark}){searching} and calls the model {_format_calls(best)}"
        f" times per question, {price}."
    )
    free = [score for score in comparison.challengers if not score.llm_calls]
    if certain := _find_best([score for score in free if _is_better(score)]):
        return (
            f"{text} Without a model, {_quote_name(certain.name)} gains"
            f" {_format_size(certain.difference.gain)}."
        )
    if (possible := _find_best(free)) and possible.difference.gain > TOLERANCE:
        gains = f"{_quote_name(possible.name)} gains {figures.format_gain(possible.difference)}"
        return f"{text} Without a model, {gains}, which may be chance."
    return f"{text} No system gains without a model."


def _describe_alternative(comparison: Comparison, best: SystemScore) -> str:
    """Return a sentence on a system that may be as good as *best*.

    Systems at half the cost or less are tried first, then other cheaper systems, then the second
    best. The result is empty if all of them are significantly worse than *best*.
    """
    others = [score for score in comparison.challengers if _is_better(score) and score is not best]
    others.sort(key=lambda score: (-score.difference.gain, _get_cost_key(score)))
    half = [
        score
        for score in others
        if _get_cost_key(score) <= tuple(part / 2 for part in _get_cost_key(best))
    ]
    cheaper = [score for score in others if _get_cost_key(score) < _get_cost_key(best)]
    for score in (*half, *cheaper, *others[:1]):
        lead = difference(
            [best.gains[question_id] - score.gains[question_id] for question_id in best.gains],
            seed=comparison.seed,
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


def _get_cost_key(score: SystemScore) -> tuple[float, float, float]:
    """Return the key for sorting systems by cost: the model's price, then calls, then searches.

    An unknown price or number of searches counts as infinite.
    """
    price, searches = score.usd_per_thousand, score.searches_per_question
    unknown = float("inf")
    return (
        unknown if price is None else price,
        score.llm_calls / len(score.runs),
        unknown if searches is None else searches,
    )


def _format_calls(score: SystemScore) -> str:
    return figures.format_rate(score.llm_calls / len(score.runs))


def _format_cost(score: SystemScore, best: SystemScore) -> str:
    """Return the cost of *score* in brackets, such as ``($0.32)``.

    If *score* differs from *best* only in its searches, return the number of searches instead. The
    result is empty if *score* calls no model.
    """
    *price, searches = _get_cost_key(score)
    *best_price, best_searches = _get_cost_key(best)
    if price == best_price and searches != best_searches:
        return f" ({figures.format_rate(searches)} searches per question)"
    if not score.llm_calls:
        return ""
    usd = score.usd_per_thousand
    cost = (
        f"{_format_calls(score)} calls per question" if usd is None else figures.format_dollars(usd)
    )
    return f" ({cost})"


def _describe_gains_and_losses(comparison: Comparison) -> str:
    """Return text on the largest gain, which may be chance, and on significant losses."""
    best = _find_best(comparison.challengers)
    worse = [
        score
        for score in comparison.challengers
        if score.difference.is_significant and score.difference.gain < -TOLERANCE
    ]
    if best is None or best.difference.gain <= TOLERANCE:
        text = "no system gained anything"
    else:
        gain = f"{_format_size(best.difference.gain)} points of {PRIMARY}"
        interval = figures.describe_interval(best.difference)
        text = f"the largest gain, {gain} by {_quote_name(best.name)} ({interval}), may be chance"
    if not worse:
        return text
    subject = f"{_quote_name(worse[0].name)} is" if len(worse) == 1 else f"{len(worse)} systems are"
    return f"{text}, and {subject} significantly worse"


def _is_better(score: SystemScore) -> bool:
    """Return whether a system has a significant gain and at least one answer is not degraded."""
    return (
        score.degraded < len(score.runs)
        and score.difference.is_significant
        and score.difference.gain > TOLERANCE
    )


def _find_best(scores: Sequence[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage in a system's list.

    Attributes:
        rank: The passage's rank, from 1.
        id: The passage's id.
        text: The first words of the passage.
        grade: The passage's grade; 0 if it is not judged. ``None`` if the question's judgements are
            not known.
    """

    rank: int
    id: str
    text: str = field(repr=False)
    grade: int | None = None

    @property
    def is_relevant(self) -> bool:
        """``True`` if the passage is judged relevant to the question."""
        return self.grade is not None and self.grade > 0


@dataclass(frozen=True, slots=True)
class HurtQuestion:
    """A question on which a system is worse than the baseline, with both lists of passages.

    All texts are cut to a readable length.

    Attributes:
        id: The question's id.
        question: The question's text.
        history: The role and text of the last messages before the question.
        gain: *after* minus *before*; always negative.
        before: The baseline's nDCG@10.
        after: The system's nDCG@10.
        variants: The queries that the system searched.
        raw: The baseline's first passages.
        found: The system's first passages.
        missed: The relevant passages that the system's first ten passages do not include.
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
    """Finds the questions with the largest losses against the baseline."""

    def __init__(self, comparison: Comparison, data: Dataset | None = None) -> None:
        """Set up the finder for *comparison*. *data* has the texts of questions and passages."""
        self._base = comparison[comparison.baseline]
        self._questions = {question.id: question for question in data.questions} if data else {}
        self._qrels = data.qrels if data else {}
        self._passages = {passage.id: passage for passage in data.passages} if data else {}

    def find(self, score: SystemScore) -> tuple[HurtQuestion, ...]:
        """Return the ten questions that got worse most with the system of *score*, worst first."""
        return tuple(
            self._describe_question(score, question, gain) for question, gain in score.worst(_WORST)
        )

    def _describe_question(self, score: SystemScore, id_: str, gain: float) -> HurtQuestion:
        """Return the `HurtQuestion` for the question id *id_*."""
        run, base, question = score.runs[id_], self._base.runs[id_], self._questions.get(id_)
        after = score.per_query.values[PRIMARY][id_]
        grades = self._qrels.get(id_)
        found_ids = set(run.ids[:_FOUND])
        missed = [
            passage
            for passage, grade in (grades or {}).items()
            if grade > 0 and passage not in found_ids
        ]
        messages = question.history[-_TURNS:] if question else ()
        # Without the data set, the question's text is known only from the searched queries.
        searched = next(
            (variant.text for variant in base.variants if variant.kind == "original"), ""
        )
        return HurtQuestion(
            id=shorten(id_, ID_LENGTH),
            question=shorten(question.text if question else searched, _QUESTION_LENGTH),
            history=tuple(
                (shorten(message.role, 20), shorten(message.content, _TURN_LENGTH))
                for message in messages
            ),
            gain=gain,
            before=self._base.per_query.values[PRIMARY][id_],
            after=after,
            variants=tuple(
                replace(variant, text=shorten(variant.text, _VARIANT_LENGTH))
                for variant in run.variants[:_VARIANTS]
            ),
            raw=self._list_found_passages(base.ids, grades),
            found=self._list_found_passages(run.ids, grades),
            missed=self._list_found_passages(missed, grades),
        )

    def _list_found_passages(
        self, ids: Sequence[str], grades: Mapping[str, int] | None
    ) -> tuple[FoundPassage, ...]:
        """Return the passages with these *ids* and their *grades*, best first."""
        return tuple(
            FoundPassage(
                rank,
                figures.shorten_start(id_, ID_LENGTH),
                (
                    shorten(_format_passage(self._passages[id_]), _PASSAGE_LENGTH)
                    if id_ in self._passages
                    else ""
                ),
                None if grades is None else grades.get(id_, 0),
            )
            for rank, id_ in enumerate(ids[:_FOUND], 1)
        )


def _format_passage(passage: Passage) -> str:
    """Return the passage's text. If it begins with the title, a colon follows the title."""
    title = passage.metadata.get("title")
    if not isinstance(title, str) or not passage.text.startswith(f"{title}\n"):
        return passage.text
    return f"{title}: {passage.text[len(title) + 1 :]}"
