"""Any number of answers to each question, ranked by a language model against a reference answer.

An answer's place is the mean of its places in all orders. As judges prefer longer answers too,
among them stands a control, one of them said twice: where the judge places it before what it
repeats, whichever stands first, the question is set aside.
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
"""So many are ranked at once; the last letter is the control's."""
FEWEST: Final = 6
"""With fewer questions nothing is more than chance: five that say the same come of it in 6 of 100 cases (2 / 2^5)."""
_SWAYED: Final = "length"
_RESAMPLES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """How one system's answer did on one question, or all of its answers.

    *rank* counts from 1, the best; equals share one. *place* is the mean of the places the judge
    gave, *scores* its scores from 1 to 10 for each of `CRITERIA`, the means of all orders.
    *strengths* and *weaknesses* are its words, one for each order. *firsts* says how often the
    system was best, alone or with others, of *questions*. *interval* is the 95 % bootstrap interval
    of *place* over the questions. *lead* is how many places it stands before ``raw`` on the
    questions that both answered, and *lead_interval* that one's; ``None`` for ``raw`` itself, or
    without it.
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
        """Whether it stands before ``raw`` by more than chance."""
        return (
            self.lead_interval is not None
            and self.lead_interval[0] > 0
            and self.questions >= FEWEST
        )

    @property
    def score(self) -> float:
        """The mean over the criteria; 0 where nothing was scored."""
        return fmean(self.scores.values()) if self.scores else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
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
            "interval": _round_all(self.interval),
            "lead": None if self.lead is None else round(self.lead, 3),
            "leadInterval": _round_all(self.lead_interval),
        }


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The judge's ranking of the answers to one *question*, by its id, the best first.

    Empty where it could not be ranked; *error* says in one word why. It is ``equal`` where all
    answers were the same, and ``length`` where the question is set aside, as the judge preferred an
    answer as soon as it was said twice.
    *is_flip* says that another answer was best as soon as they changed places. *agreement* is the
    share of pairs of answers of which two orders said the same, ``None`` where there was nothing to
    rank.
    """

    question: str
    standings: tuple[Standing, ...] = ()
    reasons: tuple[Reason, ...] = field(default=(), repr=False)
    is_flip: bool = False
    error: str = ""
    agreement: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "question": self.question,
            "ranking": [standing.to_dict() for standing in self.standings],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "flip": self.is_flip,
            "error": self.error,
            "agreement": None if self.agreement is None else round(self.agreement, 3),
        }


@dataclass(frozen=True)
class RankedSystems:
    """What the model *judge* made of all questions. *skipped* ones had no reference, or fewer than two answers.

    *cost_usd* is what its replies cost, ``None`` where its price is not known. *repeats* is how
    often each question was judged, and *seed* drew the orders and what is resampled.
    """

    judge: str
    questions: tuple[RankedAnswers, ...]
    skipped: int = 0
    cost_usd: float | None = 0.0
    repeats: int = 2
    seed: int = 0

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """The systems, the best first: by their mean place, then by their mean score."""
        found: dict[str, list[Standing]] = {}
        leads: dict[str, list[float]] = {}
        for ranked in self.questions:
            base = next((one.place for one in ranked.standings if one.system == BASELINE), None)
            for one in ranked.standings:
                found.setdefault(one.system, []).append(one)
                if base is not None and one.system != BASELINE:
                    leads.setdefault(one.system, []).append(base - one.place)
        return _order(
            Standing(
                name,
                0,
                fmean(one.place for one in held),
                average_scores([one.scores for one in held]),
                firsts=sum(one.rank == 1 for one in held),
                questions=len(held),
                interval=resample([one.place for one in held], self.seed),
                lead=fmean(leads[name]) if name in leads else None,
                lead_interval=resample(leads[name], self.seed) if name in leads else None,
            )
            for name, held in found.items()
        )

    @property
    def failed(self) -> int:
        """Questions without a ranking, though there was something to rank and the judge was not swayed."""
        return sum(not one.standings and one.error != _SWAYED for one in self.questions)

    @property
    def set_aside(self) -> int:
        """Questions on which the judge preferred an answer as soon as it was said twice."""
        return sum(one.error == _SWAYED for one in self.questions)

    @property
    def agreement(self) -> float | None:
        """The share of pairs of answers of which two orders said the same, the mean of the questions."""
        shares = [one.agreement for one in self.questions if one.agreement is not None]
        return fmean(shares) if shares else None

    def summary(self) -> str:
        """The result in a few sentences; one question says nothing of the next."""
        standings, judged = self.standings, len(self.questions) - self.failed - self.set_aside
        aside = (
            (
                "Another answer was best when their order was reversed",
                sum(one.is_flip for one in self.questions),
            ),
            ("not counted, because the judge preferred a repeated answer", self.set_aside),
            ("failed", self.failed),
            ("without a reference answer or a second answer", self.skipped),
        )
        said = "; ".join(f"{what}: {count}" for what, count in aside if count)
        said = f" {said[:1].upper()}{said[1:]}." if said else ""
        if not standings:
            return (
                f"{self.judge} ranked none of the {len(self.questions) + self.skipped}"
                f" questions.{said}"
            )
        listed = standings[0].system
        for before, one in pairwise(standings):
            listed += f" {'=' if before.rank == one.rank else '>'} {one.system}"
        questions = "1 question" if judged == 1 else f"{judged} questions"
        ahead = [one.system for one in standings if one.is_ahead]
        if judged > 1 and any(one.lead is not None for one in standings):
            said = f" Ahead of {BASELINE} by more than chance: {', '.join(ahead) or 'none'}.{said}"
        if self.agreement is not None:
            said = f" Repeats agree on {100 * self.agreement:.0f}% of the pairs.{said}"
        return f"Ranked by {self.judge} on {questions}: {listed}.{said}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "judge": self.judge,
            "ranking": [standing.to_dict() for standing in self.standings],
            "questions": [one.to_dict() for one in self.questions],
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
    """Let *model* rank the *answers*, by system and question's id, against each question's reference answer.

    A question's reference is the ``answer`` in its metadata. Those without one, or with fewer than
    two answers, are skipped; a system without an answer takes no part in that question. Answers
    that are the same are shown once and share a place; where all are, nothing is asked. Each
    question is judged *repeats* times, half of them in orders that
    *seed* draws and half in their reverse. *concurrency* judgements run at a time, each within
    *timeout* seconds.
    *progress* receives how many questions are done of how many.

    A reply that is missing or no ranking fails its question. Raises `ModelError` where that is so
    of every question that was asked about, or as `Judge.ask` does, and `ConfigError` for more than
    twelve systems, or impossible numbers.
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
    judged = [one for one in questions if one.reference and len(_collect_answers(one, answers)) > 1]
    ballots = judge.ask(
        judged, lambda one: _fill_ballot(one, _collect_answers(one, answers), judge), progress
    )
    errors = [ballot.error for ballot in ballots if ballot.error is not None]
    if errors and not any(ballot.opinions for ballot in ballots):
        raise errors[0]
    ranked = tuple(_count(ballot, _collect_answers(ballot.question, answers)) for ballot in ballots)
    return RankedSystems(
        model.name, ranked, len(questions) - len(judged), judge.cost_usd, repeats, seed
    )


def _collect_answers(
    question: Question, answers: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    return {
        name: given[question.id].strip()
        for name, given in answers.items()
        if given.get(question.id, "").strip()
    }


def _fill_ballot(question: Question, answers: Mapping[str, str], judge: Judge) -> Ballot:
    """Return a ballot with each of the *answers* once, and behind them the control: one of them said twice."""
    texts = list(dict.fromkeys(answers.values()))
    control = _say_twice(judge.random.choice(texts))
    shown = list(dict.fromkeys((*texts, control)))
    return Ballot(question, shown, judge.draw_orders(len(shown)) if len(texts) > 1 else ())


def _say_twice(text: str) -> str:
    return f"{text}\n\n{text}"


def _count(ballot: Ballot, answers: Mapping[str, str]) -> RankedAnswers:
    """Return what the judge's opinions of the *answers*, by system, come to."""
    if ballot.error is not None:
        return RankedAnswers(ballot.question.id, error=ballot.error.reason)
    if not ballot.orders:
        standings = tuple(Standing(name, 1, 1.0) for name in answers)
        return RankedAnswers(ballot.question.id, standings, error="equal")
    texts = list(dict.fromkeys(answers.values()))
    systems = [
        " = ".join(name for name, given in answers.items() if given == text) for text in texts
    ]
    control = len(texts)
    repeated = next(
        (at for at, text in enumerate(texts) if [_say_twice(text)] == list(ballot.shown[control:])),
        None,
    )
    if repeated is not None:
        systems.append(f"{systems[repeated]}, said twice")
    reasons = ballot.list_reasons(systems)
    marks = [_place_anew(opinion.marks[:control]) for opinion in ballot.opinions]
    agreement = _measure_agreement(marks)
    if repeated is not None and _is_swayed(ballot.opinions, control, repeated):
        return RankedAnswers(
            ballot.question.id, reasons=reasons, error=_SWAYED, agreement=agreement
        )
    standings = _order(
        _build_standing(name, [one[texts.index(text)] for one in marks])
        for name, text in answers.items()
    )
    is_flip = not frozenset.intersection(*map(_find_best, marks))
    return RankedAnswers(
        ballot.question.id, standings, reasons, is_flip=is_flip, agreement=agreement
    )


def _build_standing(system: str, marks: Sequence[Mark]) -> Standing:
    """Return how the answer of *system* did, which has one mark for each order."""
    return Standing(
        system,
        0,
        fmean(mark.place for mark in marks),
        average_scores([mark.scores for mark in marks]),
        tuple(mark.strengths for mark in marks),
        tuple(mark.weaknesses for mark in marks),
    )


def _is_swayed(opinions: Sequence[Opinion], control: int, repeated: int) -> bool:
    """Whether the judge places the control before what it repeats, mostly in an order and in its reverse too."""
    prefers = [opinion.prefers(control, repeated) for opinion in opinions]
    pairs = [both[0] and both[1] for both in zip(prefers[::2], prefers[1::2], strict=True)]
    return 2 * sum(pairs) > len(pairs)


def _place_anew(marks: Sequence[Mark]) -> list[Mark]:
    """Return *marks* with the places they take among themselves alone."""
    places = [mark.place for mark in marks]
    return [
        replace(
            mark,
            place=sum(place < mark.place for place in places) + (places.count(mark.place) + 1) / 2,
        )
        for mark in marks
    ]


def _measure_agreement(opinions: Sequence[Sequence[Mark]]) -> float:
    """The share of pairs of answers that two of the *opinions* put in the same order, or both on one place."""
    said = [
        [_compare(one.place, other.place) for one, other in combinations(marks, 2)]
        for marks in opinions
    ]
    return fmean(
        x == y for one, other in combinations(said, 2) for x, y in zip(one, other, strict=True)
    )


def _compare(place: float, other: float) -> int:
    return (place > other) - (place < other)


def _find_best(marks: Sequence[Mark]) -> frozenset[int]:
    first = min(mark.place for mark in marks)
    return frozenset(at for at, mark in enumerate(marks) if mark.place == first)


def resample(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of *values*."""
    random, tail = Random(seed), (1.0 - CONFIDENCE) / 2
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[int(tail * _RESAMPLES)], means[int((1.0 - tail) * _RESAMPLES) - 1]


def _round_all(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 3) for end in interval]


def _order(standings: Iterable[Standing]) -> tuple[Standing, ...]:
    """Return *standings* the best first, with their ranks: by place, then by score; who has both the same is equal."""
    listed = sorted(standings, key=lambda one: (one.place, -one.score))
    ranked: list[Standing] = []
    for at, one in enumerate(listed):
        same = at and (listed[at - 1].place, listed[at - 1].score) == (one.place, one.score)
        ranked.append(replace(one, rank=ranked[-1].rank if same else at + 1))
    return tuple(ranked)
