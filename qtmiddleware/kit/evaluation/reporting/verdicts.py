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
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Variant

ID_LENGTH: Final = 60
_QUESTION_LENGTH, _TURN_LENGTH, _VARIANT_LENGTH, _PASSAGE_LENGTH = 400, 160, 400, 90
_SYNTHETIC: Final = "The questions are synthetic: a language model wrote them."
_WORST: Final = 10
"""A report shows at most this many of the questions that lost most, per system."""
_FOUND: Final = 10
"""A report shows at most this many passages of a list, as many as nDCG@10 counts."""
_VARIANTS: Final = 16
_TURNS: Final = 4


def verdict(comparison: Comparison) -> str:
    """Return sentences on the system with the largest significant gain, and on its price.

    The first sentence counts the questions whose first passage is relevant. If no system has a
    significant gain, the sentences say so.
    """
    return " ".join(filter(None, format_headline_and_details(comparison)))


def format_headline_and_details(comparison: Comparison) -> tuple[str, str]:
    """Return a headline, and details such as gain, interval and price."""
    best = find_winner(comparison)
    base = _quote_name(comparison.baseline)
    if best is not None:
        interval = figures.describe_interval(best.difference)
        gains = (
            f"{_format_without_plus(best.difference.gain)} points of {PRIMARY} over {base}"
            f" ({interval})"
        )
        remark = f"{_describe_price(comparison, best)}{_describe_alternative(comparison, best)}"
        return _describe_first_passages(
            comparison, best
        ), f"{_quote_name(best.name)} gains {gains}. {remark}"
    first_count = (
        "the right passage first for"
        f" {_format_relevant_first_count(comparison, comparison[comparison.baseline])}"
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


def find_winner(comparison: Comparison) -> SystemScore | None:
    """Return the system with the largest significant gain; ``None`` if no gain is significant.

    Systems whose results are all degraded are skipped.
    """
    return _find_largest_gain(
        [score for score in comparison.challengers if _has_significant_gain(score)]
    )


def find_best_system(comparison: Comparison) -> SystemScore:
    """Return the system with the largest significant gain.

    If no gain is significant, return the system with the largest gain. If there is only the
    baseline, return the baseline.
    """
    return (
        find_winner(comparison)
        or _find_largest_gain(comparison.challengers)
        or comparison[comparison.baseline]
    )


def count_better_same_worse(score: SystemScore) -> tuple[int, int, int]:
    """Return the numbers of questions that got better, stayed the same, and got worse.

    A question got better if the system's nDCG@10 is higher than the baseline's.
    """
    helped = sum(gain > TOLERANCE for gain in score.gains.values())
    hurt = sum(gain < -TOLERANCE for gain in score.gains.values())
    return helped, len(score.gains) - helped - hurt, hurt


def collect_notes(comparison: Comparison, dataset: Dataset | None) -> tuple[str, ...]:
    """Return the comparison's notes, and first a note if *dataset* has synthetic questions."""
    # The bench may have added such a note already.
    if (
        dataset is None
        or not dataset.is_synthetic
        or any("synthetic" in note.casefold() for note in comparison.notes)
    ):
        return comparison.notes
    return (_SYNTHETIC, *comparison.notes)


def _quote_name(name: str) -> str:
    return f"“{shorten_text(name, figures.NAME_LENGTH)}”"


def _format_without_plus(gain: float) -> str:
    """Format a gain in points (hundredths), such as ``12.3``. A loss keeps its minus sign."""
    return figures.format_points(gain).removeprefix("+")


def _format_relevant_first_count(comparison: Comparison, score: SystemScore) -> str:
    """Return how many first passages are relevant, as text such as ``60 of 100 questions``."""
    return (
        f"{figures.count_relevant_first_passages(score):,} of "
        f"{format_count(comparison.questions, 'question')}"
    )


def _describe_first_passages(comparison: Comparison, score: SystemScore) -> str:
    """Return a sentence with the numbers of relevant first passages and of worse questions.

    If the system has no more relevant first passages than the baseline, the sentence begins with
    the numbers of better and worse questions.
    """
    before, after = (
        figures.count_relevant_first_passages(comparison[comparison.baseline]),
        figures.count_relevant_first_passages(score),
    )
    helped, _, hurt = count_better_same_worse(score)
    total = f"{comparison.questions:,}"
    if after > before:
        worse = f"{hurt:,} of {total} {_conjugate_get(hurt)} worse" if hurt else "none gets worse"
        return (
            "The right passage comes first for"
            f" {_format_relevant_first_count(comparison, score)} instead of {before:,}; {worse}."
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
    """Return sentences on the time and the cost of the system *best*.

    If *best* calls a model, the last sentence states the largest gain of a system without a model.
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
    if certain := _find_largest_gain([score for score in free if _has_significant_gain(score)]):
        return (
            f"{text} Without a model, {_quote_name(certain.name)} gains"
            f" {_format_without_plus(certain.difference.gain)}."
        )
    if (possible := _find_largest_gain(free)) and possible.difference.gain > TOLERANCE:
        gains = f"{_quote_name(possible.name)} gains {figures.format_gain(possible.difference)}"
        return f"{text} Without a model, {gains}, which may be chance."
    return f"{text} No system gains without a model."


def _describe_alternative(comparison: Comparison, best: SystemScore) -> str:
    """Return a sentence on a system that may be as good as *best*; ``""`` if there is none.

    Systems at half the cost or less are considered first, then other cheaper systems, then the
    second best. Systems that are significantly worse than *best* are skipped.
    """
    others = [
        score
        for score in comparison.challengers
        if _has_significant_gain(score) and score is not best
    ]
    # Of two systems with the same gain, the cheaper one comes first.
    others.sort(key=lambda score: (-score.difference.gain, _get_cost_key(score)))
    # The costs are compared by price first, then by model calls, then by searches.
    half = [
        score
        for score in others
        if _get_cost_key(score) <= tuple(part / 2 for part in _get_cost_key(best))
    ]
    cheaper = [score for score in others if _get_cost_key(score) < _get_cost_key(best)]
    for score in (*half, *cheaper, *others[:1]):
        # Compared question by question, because both systems answered the same questions.
        lead = difference(
            [best.gains[question_id] - score.gains[question_id] for question_id in best.gains],
            seed=comparison.seed,
        )
        if lead.p >= SIGNIFICANT:
            name = f"{_quote_name(score.name)}{_format_cost(score, best)}"
            if abs(lead.gain) <= TOLERANCE:
                return f" {name} does as well."
            between = (
                f"the {_format_without_plus(lead.gain)} points between them"
                f" {figures.format_interval(lead)}"
            )
            return f" {name} may be as good: {between} may be chance."
    return ""


def _get_cost_key(score: SystemScore) -> tuple[float, float, float]:
    """Return a key that sorts systems by price, then by model calls, then by searches.

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
    """Return a system's cost in brackets, such as ``($0.32)``.

    If only the number of searches differs from *best*, this number is in the brackets. Otherwise,
    the result is ``""`` if the system calls no model.
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
    """Return a clause on the largest gain, which may be chance, and on significant losses."""
    best = _find_largest_gain(comparison.challengers)
    worse = [
        score
        for score in comparison.challengers
        if score.difference.is_significant and score.difference.gain < -TOLERANCE
    ]
    if best is None or best.difference.gain <= TOLERANCE:
        text = "no system gained anything"
    else:
        gain = f"{_format_without_plus(best.difference.gain)} points of {PRIMARY}"
        interval = figures.describe_interval(best.difference)
        text = f"the largest gain, {gain} by {_quote_name(best.name)} ({interval}), may be chance"
    if not worse:
        return text
    subject = f"{_quote_name(worse[0].name)} is" if len(worse) == 1 else f"{len(worse)} systems are"
    return f"{text}, and {subject} significantly worse"


def _has_significant_gain(score: SystemScore) -> bool:
    """Return whether a system has a significant gain, and not only degraded results."""
    # If every answer is degraded, the gain does not come from the system's own settings.
    return (
        score.degraded < len(score.runs)
        and score.difference.is_significant
        and score.difference.gain > TOLERANCE
    )


def _find_largest_gain(scores: Sequence[SystemScore]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that a system found for a question, as text for a report.

    Attributes:
        rank: The passage's rank, from 1.
        id: The passage's id.
        text: The first words of the passage; empty if its text is not known.
        grade: The passage's grade for the question; 0 if the passage was not judged. ``None`` if
            the question's judgements are not known.
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
class WorseQuestion:
    """A question on which a system is worse than the baseline, as text for a report.

    All texts are cut to a readable length.

    Attributes:
        id: The question's id.
        question: The question's text.
        history: The role and text of the last messages before the question.
        gain: *after* minus *before*; always negative.
        before: The baseline's nDCG@10.
        after: The system's nDCG@10.
        variants: The system's search queries.
        raw: The baseline's first ten passages.
        found: The system's first ten passages.
        missed: The relevant passages that are not among the system's first ten passages.
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


class WorstQuestionFinder:
    """Finds the questions on which a system loses most compared with the baseline."""

    def __init__(self, comparison: Comparison, dataset: Dataset | None = None) -> None:
        """Create a finder for *comparison*. *dataset* has the texts of questions and passages."""
        self._base = comparison[comparison.baseline]
        self._questions = (
            {question.id: question for question in dataset.questions} if dataset else {}
        )
        self._qrels = dataset.qrels if dataset else {}
        self._passages = {passage.id: passage for passage in dataset.passages} if dataset else {}

    def find_worst_questions(self, score: SystemScore) -> tuple[WorseQuestion, ...]:
        """Return the questions that lost most with one system, at most ten, worst first."""
        return tuple(
            self._build_worse_question(score, question, gain)
            for question, gain in score.worst(_WORST)
        )

    def _build_worse_question(
        self, score: SystemScore, question_id: str, gain: float
    ) -> WorseQuestion:
        """Return one question with the passages that the system and the baseline found."""
        run, base, question = (
            score.runs[question_id],
            self._base.runs[question_id],
            self._questions.get(question_id),
        )
        after = score.per_query.values[PRIMARY][question_id]
        grades = self._qrels.get(question_id)
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
        return WorseQuestion(
            id=shorten_text(question_id, ID_LENGTH),
            question=shorten_text(question.text if question else searched, _QUESTION_LENGTH),
            history=tuple(
                (shorten_text(message.role, 20), shorten_text(message.content, _TURN_LENGTH))
                for message in messages
            ),
            gain=gain,
            before=self._base.per_query.values[PRIMARY][question_id],
            after=after,
            variants=tuple(
                replace(variant, text=shorten_text(variant.text, _VARIANT_LENGTH))
                for variant in run.variants[:_VARIANTS]
            ),
            raw=self._list_found_passages(base.ids, grades),
            found=self._list_found_passages(run.ids, grades),
            missed=self._list_found_passages(missed, grades),
        )

    def _list_found_passages(
        self, ids: Sequence[str], grades: Mapping[str, int] | None
    ) -> tuple[FoundPassage, ...]:
        """Return the passages with the first ten of *ids*, with their texts and grades."""
        return tuple(
            FoundPassage(
                rank,
                figures.shorten_start(id_, ID_LENGTH),
                (
                    shorten_text(_format_passage(self._passages[id_]), _PASSAGE_LENGTH)
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
