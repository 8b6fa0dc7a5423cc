"""Ask a language model to rank several answers to each question, given a reference answer.

The judge sees the answers in several orders, and an answer's place is its mean over these orders.
Judges tend to prefer longer answers. As a control, the judge also sees one of the answers written
out twice. If the judge prefers the control to the original answer, the question is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from random import Random
from statistics import fmean
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.ballots import Ballot, Judge, Mark, Opinion, Reason, average_scores
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.measures import CONFIDENCE
from qtmiddleware.kit.evaluation.prompts import ANSWERS, LETTERS
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.protocols import LanguageModel

MOST_SYSTEMS: Final = len(LETTERS) - 1
"""The largest number of systems that can be ranked. The last letter is for the control."""
FEWEST: Final = 6
"""With fewer questions, no difference counts as significant.

Five questions all agree by chance in 6 of 100 cases (2 / 2^5).
"""
_LENGTH_DECIDED: Final = "length"
_RESAMPLES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One system's result in a ranking of answers, for one question or for all questions.

    Attributes:
        system: The system's name.
        rank: The system's rank, from 1. Equal systems share a rank.
        place: The mean of the ranks that the judge gave, over all orders of the answers.
        scores: The mean score per criterion, from 1 to 10.
        strengths: The strengths of the answer in the judge's words, one text per order.
        weaknesses: The weaknesses of the answer in the judge's words, one text per order.
        firsts: The number of questions on which the system was best, alone or tied with others.
        questions: The number of questions that the result covers.
        interval: The 95 % bootstrap interval of *place* over the questions.
        lead: The place of ``raw`` minus this system's place, as the mean over the questions that
            both answered. ``None`` for ``raw`` itself, or if ``raw`` was not ranked.
        lead_interval: The 95 % bootstrap interval of *lead*.
    """

    system: str
    rank: int
    place: float
    scores: Mapping[str, float] = field(default_factory=dict)
    strengths: tuple[str, ...] = field(default=(), repr=False)
    weaknesses: tuple[str, ...] = field(default=(), repr=False)
    firsts: int = 0
    questions: int = 1
    interval: tuple[float, float] | None = None
    lead: float | None = None
    lead_interval: tuple[float, float] | None = None

    @property
    def is_ahead(self) -> bool:
        """``True`` if the system is significantly ahead of ``raw``."""
        return (
            self.lead_interval is not None
            and self.lead_interval[0] > 0
            and self.questions >= FEWEST
        )

    @property
    def score(self) -> float:
        """The mean score over the criteria; 0 if nothing was scored."""
        return fmean(self.scores.values()) if self.scores else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the standing as a dict, ready for JSON."""
        return {
            "system": self.system,
            "rank": self.rank,
            "place": round(self.place, 3),
            "score": round(self.score, 3),
            "scores": {name: round(score, 3) for name, score in self.scores.items()},
            "strengths": list(self.strengths),
            "weaknesses": list(self.weaknesses),
            "firsts": self.firsts,
            "questions": self.questions,
            "interval": _round_interval(self.interval),
            "lead": None if self.lead is None else round(self.lead, 3),
            "leadInterval": _round_interval(self.lead_interval),
        }


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The judge's ranking of the answers to one question.

    Attributes:
        question: The question's id.
        standings: The answers, best first; empty if there is no ranking.
        reasons: The judge's reasons.
        is_flip: ``True`` if no answer was best in every order.
        error: ``equal`` if all answers are the same; ``length`` if the judge preferred an answer
            written out twice to the original; for a failure, the reason in one word. Empty if the
            judge ranked the answers.
        agreement: The share of answer pairs that two of the judge's rankings put in the same order;
            ``None`` if the judge did not rank the answers.
    """

    question: str
    standings: tuple[Standing, ...] = ()
    reasons: tuple[Reason, ...] = field(default=(), repr=False)
    is_flip: bool = False
    error: str = ""
    agreement: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as a dict, ready for JSON."""
        return {
            "question": self.question,
            "ranking": [standing.to_dict() for standing in self.standings],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "flip": self.is_flip,
            "error": self.error,
            "agreement": None if self.agreement is None else round(self.agreement, 3),
        }


@dataclass(frozen=True)  # Without slots, because cached_property needs a __dict__.
class RankedSystems:
    """The judge's ranking of several systems over all questions.

    Attributes:
        judge: The name of the model that judged.
        questions: The ranking per question.
        skipped: The number of questions without a reference answer, or with fewer than two answers.
        cost_usd: The cost of the judge's replies in US dollars; ``None`` if its price is not known.
        repeats: The number of orders in which the judge saw each question's answers.
        seed: The seed that drew the orders and the resamples.
    """

    judge: str
    questions: tuple[RankedAnswers, ...]
    skipped: int = 0
    cost_usd: float | None = 0.0
    repeats: int = 2
    seed: int = 0

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """The systems, sorted by their mean place, then by their mean score, best first."""
        by_system: dict[str, list[Standing]] = {}
        leads: dict[str, list[float]] = {}
        for ranked in self.questions:
            base = next(
                (entry.place for entry in ranked.standings if entry.system == BASELINE), None
            )
            for standing in ranked.standings:
                by_system.setdefault(standing.system, []).append(standing)
                # A lead counts only on questions that both systems answered.
                if base is not None and standing.system != BASELINE:
                    leads.setdefault(standing.system, []).append(base - standing.place)
        return _assign_ranks(
            Standing(
                name,
                0,
                fmean(standing.place for standing in standings),
                average_scores([standing.scores for standing in standings]),
                firsts=sum(standing.rank == 1 for standing in standings),
                questions=len(standings),
                interval=estimate_mean_interval(
                    [standing.place for standing in standings], self.seed
                ),
                lead=fmean(leads[name]) if name in leads else None,
                lead_interval=estimate_mean_interval(leads[name], self.seed)
                if name in leads
                else None,
            )
            for name, standings in by_system.items()
        )

    @property
    def failed(self) -> int:
        """The number of questions that were not ranked because of an error."""
        return sum(
            not ranking.standings and ranking.error != _LENGTH_DECIDED for ranking in self.questions
        )

    @property
    def set_aside(self) -> int:
        """The number of questions that are not counted, because length influenced the judge.

        For these questions, the judge preferred an answer written out twice to the original.
        """
        return sum(ranking.error == _LENGTH_DECIDED for ranking in self.questions)

    @property
    def agreement(self) -> float | None:
        """The mean share of answer pairs on which two of the judge's rankings agree.

        ``None`` if no question was ranked.
        """
        shares = [ranking.agreement for ranking in self.questions if ranking.agreement is not None]
        return fmean(shares) if shares else None

    def summary(self) -> str:
        """Return the ranking as a few sentences.

        If two or more questions were ranked, the sentences name the systems that are significantly
        ahead of ``raw``.
        """
        standings, judged = self.standings, len(self.questions) - self.failed - self.set_aside
        counts = (
            (
                "Another answer was best when their order was reversed",
                sum(ranking.is_flip for ranking in self.questions),
            ),
            ("not counted, because the judge preferred a repeated answer", self.set_aside),
            ("failed", self.failed),
            ("without a reference answer or a second answer", self.skipped),
        )
        remarks = "; ".join(f"{label}: {count}" for label, count in counts if count)
        remarks = f" {remarks[:1].upper()}{remarks[1:]}." if remarks else ""
        if not standings:
            return (
                f"{self.judge} ranked none of the {len(self.questions) + self.skipped}"
                f" questions.{remarks}"
            )
        order = standings[0].system
        for standing, following in pairwise(standings):
            order += f" {'=' if standing.rank == following.rank else '>'} {following.system}"
        questions = "1 question" if judged == 1 else f"{judged} questions"
        ahead = [standing.system for standing in standings if standing.is_ahead]
        if judged > 1 and any(standing.lead is not None for standing in standings):
            remarks = (
                f" Ahead of {BASELINE} by more than chance: {', '.join(ahead) or 'none'}.{remarks}"
            )
        if self.agreement is not None:
            remarks = f" Repeats agree on {100 * self.agreement:.0f}% of the pairs.{remarks}"
        return f"Ranked by {self.judge} on {questions}: {order}.{remarks}"

    def to_dict(self) -> dict[str, Any]:
        """Return the ranking as a dict, ready for JSON."""
        return {
            "judge": self.judge,
            "ranking": [standing.to_dict() for standing in self.standings],
            "questions": [ranking.to_dict() for ranking in self.questions],
            "failed": self.failed,
            "setAside": self.set_aside,
            "skipped": self.skipped,
            "agreement": None if self.agreement is None else round(self.agreement, 3),
            "repeats": self.repeats,
            "seed": self.seed,
            "costUsd": self.cost_usd,
        }


def rank(
    questions: Sequence[Question],
    answers: Mapping[str, Mapping[str, str]],
    model: LanguageModel,
    *,
    repeats: int = 2,
    seed: int = 0,
    timeout: float = 60.0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> RankedSystems:
    """Ask *model* to rank the answers to each question, given the question's reference answer.

    The reference answer is ``answer`` in the question's metadata. Questions without a reference
    answer, or with fewer than two answers, are skipped. If a system has no answer to a question,
    the other systems' answers are ranked. Equal answers are shown once and share a rank. If all
    answers are equal, the model is not asked. If a reply is missing or is not a ranking, the
    question fails.

    Args:
        questions: The questions.
        answers: The answers, by system and question id.
        model: The model that judges.
        repeats: The number of orders per question, an even number. Half of the orders are random,
            and the other half are their reverses.
        seed: The seed that draws the orders.
        timeout: Seconds allowed per judgement.
        concurrency: The largest number of judgements that run at the same time.
        progress: Receives the number of questions done and the total number.

    Raises:
        ModelError: The judge gave no opinion on any question, and at least one question failed.
        ConfigError: There are more than twelve systems, or a number is not valid.
    """
    if len(answers) > MOST_SYSTEMS:
        raise ConfigError(
            f"at most {MOST_SYSTEMS} systems can be ranked, not {len(answers)}", path="answers"
        )
    if repeats < 2 or repeats % 2:
        message = (
            "repeats must be an even number, because each order is also shown in reverse, not"
            f" {repeats}"
        )
        raise ConfigError(message, path="repeats", value=repeats)
    judge = Judge(
        ANSWERS, model, repeats=repeats, seed=seed, timeout=timeout, concurrency=concurrency
    )
    judged = [
        question
        for question in questions
        if question.reference and len(_collect_answers(question, answers)) > 1
    ]
    ballots = judge.judge_questions(
        judged,
        lambda question: _build_ballot(question, _collect_answers(question, answers), judge),
        progress,
    )
    errors = [ballot.error for ballot in ballots if ballot.error is not None]
    # Equal answers need no judge, so a ballot without opinions is no failure by itself.
    if errors and not any(ballot.opinions for ballot in ballots):
        raise errors[0]
    ranked = tuple(
        _build_ranking(ballot, _collect_answers(ballot.question, answers)) for ballot in ballots
    )
    return RankedSystems(
        model.name, ranked, len(questions) - len(judged), judge.cost_usd, repeats, seed
    )


def _collect_answers(
    question: Question, answers: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return each system's answer to *question* by the system's name, without blank answers."""
    return {
        name: by_question[question.id].strip()
        for name, by_question in answers.items()
        if by_question.get(question.id, "").strip()
    }


def _build_ballot(question: Question, answers: Mapping[str, str], judge: Judge) -> Ballot:
    """Return a ballot with the distinct answers to *question*, and with a control at the end.

    The control is one of the answers, chosen at random and written out twice.
    """
    texts = list(dict.fromkeys(answers.values()))
    control = _repeat_text(judge.random.choice(texts))
    # A system may itself have written another system's answer twice.
    candidates = list(dict.fromkeys((*texts, control)))
    return Ballot(
        question, candidates, judge.draw_orders(len(candidates)) if len(texts) > 1 else ()
    )


def _repeat_text(text: str) -> str:
    return f"{text}\n\n{text}"


def _build_ranking(ballot: Ballot, answers: Mapping[str, str]) -> RankedAnswers:
    """Return the ranking of *answers* by the judge's opinions in *ballot*.

    *answers* has the text of each answer by the system's name.
    """
    if ballot.error is not None:
        return RankedAnswers(ballot.question.id, error=ballot.error.reason)
    if not ballot.orders:
        standings = tuple(Standing(name, 1, 1.0) for name in answers)
        return RankedAnswers(ballot.question.id, standings, error="equal")
    texts = list(dict.fromkeys(answers.values()))
    systems = [
        " = ".join(name for name, answer in answers.items() if answer == text) for text in texts
    ]
    # The control comes after all answers. If there is none, no answer counts as repeated.
    control = len(texts)
    repeated = next(
        (
            index
            for index, text in enumerate(texts)
            if [_repeat_text(text)] == list(ballot.candidates[control:])
        ),
        None,
    )
    if repeated is not None:
        systems.append(f"{systems[repeated]}, said twice")
    reasons = ballot.list_reasons(systems)
    marks = [_rank_without_control(opinion.marks[:control]) for opinion in ballot.opinions]
    agreement = _measure_agreement(marks)
    if repeated is not None and _prefers_control(ballot.opinions, control, repeated):
        return RankedAnswers(
            ballot.question.id, reasons=reasons, error=_LENGTH_DECIDED, agreement=agreement
        )
    standings = _assign_ranks(
        _build_standing(name, [order_marks[texts.index(text)] for order_marks in marks])
        for name, text in answers.items()
    )
    is_flip = not frozenset.intersection(*map(_find_best_indices, marks))
    return RankedAnswers(
        ballot.question.id, standings, reasons, is_flip=is_flip, agreement=agreement
    )


def _build_standing(system_name: str, marks: Sequence[Mark]) -> Standing:
    """Return the result of one system for one question, with rank 0.

    The rank is set later, when the results of all systems are known. *marks* has the judge's
    opinion of the system's answer, once per order of the answers.
    """
    return Standing(
        system_name,
        0,
        fmean(mark.place for mark in marks),
        average_scores([mark.scores for mark in marks]),
        tuple(mark.strengths for mark in marks),
        tuple(mark.weaknesses for mark in marks),
    )


def _prefers_control(opinions: Sequence[Opinion], control_index: int, original_index: int) -> bool:
    """Return whether the judge prefers the control, an answer written out twice, to the answer.

    *opinions* are pairs: an order of the texts, then its reverse. In more than half of the pairs,
    the judge must prefer the control both times.
    """
    prefers = [opinion.prefers(control_index, original_index) for opinion in opinions]
    pairs = [pair[0] and pair[1] for pair in zip(prefers[::2], prefers[1::2], strict=True)]
    return 2 * sum(pairs) > len(pairs)


def _rank_without_control(marks: Sequence[Mark]) -> list[Mark]:
    """Return *marks*, the judge's opinions of the answers, with ranks that leave out the control.

    The control is an answer written out twice. *marks* must not include its opinion.
    """
    places = [mark.place for mark in marks]
    return [
        replace(
            mark,
            place=sum(place < mark.place for place in places) + (places.count(mark.place) + 1) / 2,
        )
        for mark in marks
    ]


def _measure_agreement(rankings: Sequence[Sequence[Mark]]) -> float:
    """Return the share of answer pairs that two of *rankings* put in the same order.

    The result is the mean over all pairs of rankings.
    """
    relations = [
        [_compare_ranks(mark.place, other.place) for mark, other in combinations(marks, 2)]
        for marks in rankings
    ]
    return fmean(
        relation == counterpart
        for ranking, other in combinations(relations, 2)
        for relation, counterpart in zip(ranking, other, strict=True)
    )


def _compare_ranks(rank: float, other_rank: float) -> int:
    """Return -1 if *rank* is better than *other_rank*, 0 if they are equal, 1 if it is worse."""
    return (rank > other_rank) - (rank < other_rank)


def _find_best_indices(marks: Sequence[Mark]) -> frozenset[int]:
    """Return the indices of *marks* with the best rank, which is the lowest."""
    best = min(mark.place for mark in marks)
    return frozenset(index for index, mark in enumerate(marks) if mark.place == best)


def estimate_mean_interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of *values*: low, then high."""
    # Plain Python, because ranking answers needs no other package.
    random, tail = Random(seed), (1.0 - CONFIDENCE) / 2
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[int(tail * _RESAMPLES)], means[int((1.0 - tail) * _RESAMPLES) - 1]


def _round_interval(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 3) for end in interval]


def _assign_ranks(standings: Iterable[Standing]) -> tuple[Standing, ...]:
    """Return *standings*, best first, with their ranks.

    Standings are sorted by `Standing.place`, then by `Standing.score`. Equal standings share a
    rank.
    """
    ordered = sorted(standings, key=lambda standing: (standing.place, -standing.score))
    ranked: list[Standing] = []
    for index, standing in enumerate(ordered):
        is_equal = index and (ordered[index - 1].place, ordered[index - 1].score) == (
            standing.place,
            standing.score,
        )
        ranked.append(replace(standing, rank=ranked[-1].rank if is_equal else index + 1))
    return tuple(ranked)
