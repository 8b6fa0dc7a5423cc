"""Any number of answers to each question, ranked by a language model against a reference answer.

The judge sees them without the systems' names, in orders that are drawn, each once more in reverse, as what stands
first is preferred (Zheng et al. 2023); a place is the mean of all. As longer answers are preferred too, among them
stands a control, one of them said twice: where the judge places it before what it repeats, whichever stands first, the
question is set aside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from random import Random
from statistics import fmean
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.measures import CONFIDENCE
from qtmiddleware.kit.evaluation.prompts import CRITERIA, LETTERS, PromptRunner, build_ranking_prompt, parse_object
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.protocols import LanguageModel, Prompt, Reply

MOST_SYSTEMS: Final = len(LETTERS) - 1
"""So many are ranked at once; the last letter is the control's."""
FEWEST: Final = 6
"""With fewer questions nothing is more than chance: five that say the same come of it in 6 of 100 cases (2 / 2^5)."""
_SWAYED: Final = "length"
_RESAMPLES: Final = 1_000
_SCORE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,9})?)(?: ?/ ?10)?")
_MOST_REASON_CHARS: Final = 1_000
MOST_FAILURES: Final = 16
"""After so many rankings that failed, and none that did not, nothing is asked any more."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The judge's own words, which may call answers by letters: *order* are the systems that were A, B and so on."""

    text: str = field(repr=False)
    order: tuple[str, ...]

    @property
    def legend(self) -> str:
        """Which system each letter stands for."""
        return ", ".join(f"{letter} is {name}" for letter, name in zip(LETTERS, self.order, strict=False))

    def to_dict(self) -> dict[str, Any]:
        """The words and the letters."""
        return {"text": self.text, **dict(zip(LETTERS, self.order, strict=False))}


@dataclass(frozen=True, slots=True)
class Standing:
    """How one system's answer did on one question, or all of its answers.

    *rank* counts from 1, the best; equals share one. *place* is the mean of the places the judge gave, *scores* its
    scores from 1 to 10 for each of `CRITERIA`, the means of all orders. *strengths* and *weaknesses* are its words, one
    for each order. *firsts* says how often the system was best, alone or with others, of *questions*. *interval* is the
    95 % bootstrap interval of *place* over the questions. *lead* is how many places it stands before ``raw`` on the
    questions that both answered, and *lead_interval* that one's; ``None`` for ``raw`` itself, or without it.
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
        return self.lead_interval is not None and self.lead_interval[0] > 0 and self.questions >= FEWEST

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

    Empty where it could not be ranked; *error* says in one word why. It is ``equal`` where all answers were the same,
    and ``length`` where the question is set aside, as the judge preferred an answer as soon as it was said twice.
    *is_flip* says that another answer was best as soon as they changed places. *agreement* is the share of pairs of
    answers of which two orders said the same, ``None`` where there was nothing to rank.
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

    *cost_usd* is what its replies cost, ``None`` where its price is not known. *repeats* is how often each question was
    judged, and *seed* drew the orders and what is resampled.
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
            {
                name: Standing(
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
            }
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
            ("Another answer was best when they changed places", sum(one.is_flip for one in self.questions)),
            ("set aside, as the judge preferred an answer that was said twice", self.set_aside),
            ("failed", self.failed),
            ("without a reference answer or a second answer", self.skipped),
        )
        said = "; ".join(f"{what}: {count}" for what, count in aside if count)
        said = f" {said[:1].upper()}{said[1:]}." if said else ""
        if not standings:
            return f"{self.judge} ranked none of the {len(self.questions) + self.skipped} questions.{said}"
        listed = standings[0].system
        for before, one in pairwise(standings):
            listed += f" {'=' if before.rank == one.rank else '>'} {one.system}"
        questions = "1 question" if judged == 1 else f"{judged} questions"
        ahead = [one.system for one in standings if one.is_ahead]
        if judged > 1 and any(one.lead is not None for one in standings):
            said = f" Before {BASELINE} by more than chance: {', '.join(ahead) or 'none'}.{said}"
        if self.agreement is not None:
            said = f" Repeats agree on {100 * self.agreement:.0f} % of the pairs.{said}"
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

    A question's reference is the ``answer`` in its metadata. Those without one, or with fewer than two answers, are
    skipped; a system without an answer takes no part in that question. Answers that are the same are shown once and
    share a place; where all are, nothing is asked. Each question is judged *repeats* times, half of them in orders that
    *seed* draws and half in their reverse. *concurrency* judgements run at a time, each within *timeout* seconds.
    *progress* receives how many questions are done of how many.

    A reply that is missing or no ranking fails its question. Raises `ModelError` where that is so of every question
    that was asked about, and `ConfigError` for more than twelve systems, or impossible numbers.
    """
    if len(answers) > MOST_SYSTEMS:
        raise ConfigError(f"{len(answers)} systems are too many to rank: at most {MOST_SYSTEMS}", path="answers")
    if repeats < 2 or repeats % 2:
        message = f"repeats must be an even number, as each order is shown in reverse too, not {repeats}"
        raise ConfigError(message, path="repeats", value=repeats)
    runner, draw = PromptRunner(model, timeout, concurrency), _Draw(Random(seed))
    pairs = [(question, _collect_answers(question, answers)) for question in questions if question.reference]
    ballots = [_Ballot(question, given, repeats, draw) for question, given in pairs if len(given) > 1]
    ranked: list[RankedAnswers] = []
    errors: list[ModelError] = []
    # All orders of a question are asked together.
    size = max(1, concurrency // repeats)
    for start in range(0, len(ballots), size):
        batch = ballots[start : start + size]
        replies = iter(runner.run([prompt for ballot in batch for prompt in ballot.build_prompts()]))
        for ballot in batch:
            try:
                ranked.append(ballot.count([next(replies) for _ in ballot.orders]))
            except ModelError as error:
                errors.append(error)
                ranked.append(RankedAnswers(ballot.question.id, error=error.reason))
        is_refused = any(error.reason == "unauthorized" for error in errors) or len(errors) >= MOST_FAILURES
        if errors and (is_refused or start + size >= len(ballots)) and not any(one.reasons for one in ranked):
            raise errors[0]
        if progress is not None:
            progress(len(ranked), len(ballots))
    return RankedSystems(model.name, tuple(ranked), len(questions) - len(ballots), runner.cost_usd, repeats, seed)


def _collect_answers(question: Question, answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: given[question.id].strip() for name, given in answers.items() if given.get(question.id, "").strip()}


class _Draw:
    """Draws orders of which each system has each place as often, as far as they go: chance favours nobody either."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._left: dict[int, list[list[int]]] = {}

    def order(self, count: int) -> list[int]:
        """Return an order of *count*."""
        left = self._left.setdefault(count, [])
        if not left:
            order = self.random.sample(range(count), count)
            left += [order[at:] + order[:at] for at in range(count)]
            self.random.shuffle(left)
        return left.pop()


class _Ballot:
    """The answers to one *question*, each text once, and the *orders* in which the judge is shown them.

    One of them stands there once more as the *control*, said twice.
    """

    def __init__(self, question: Question, answers: Mapping[str, str], repeats: int, draw: _Draw) -> None:
        self.question = question
        self._answers = answers
        self._texts = list(dict.fromkeys(answers.values()))
        self._repeated = draw.random.choice(self._texts)
        self._control = f"{self._repeated}\n\n{self._repeated}"
        self.orders: list[list[str]] = []
        shown = list(dict.fromkeys((*self._texts, self._control)))
        for _ in range(repeats // 2 if len(self._texts) > 1 else 0):
            order = [shown[at] for at in draw.order(len(shown))]
            self.orders += [order, order[::-1]]

    def build_prompts(self) -> list[Prompt]:
        """Return a prompt for each order; none where all answers are the same."""
        return [build_ranking_prompt(self.question, self.question.reference, order) for order in self.orders]

    def count(self, replies: Sequence[Reply | ModelError]) -> RankedAnswers:
        """Return what *replies*, one for each order, come to; raises `ModelError` where one is no ranking."""
        if not self.orders:
            return RankedAnswers(
                self.question.id, tuple(Standing(name, 1, 1.0) for name in self._answers), error="equal"
            )
        given = [_parse_opinion(reply, order) for reply, order in zip(replies, self.orders, strict=True)]
        opinions = [_leave_out(opinion, {self._control} - set(self._texts)) for opinion in given]
        standings = {
            name: Standing(
                name,
                0,
                fmean(opinion[text].place for opinion in opinions),
                average_scores([opinion[text].scores for opinion in opinions]),
                tuple(opinion[text].strengths for opinion in opinions),
                tuple(opinion[text].weaknesses for opinion in opinions),
            )
            for name, text in self._answers.items()
        }
        systems = {
            text: " = ".join(name for name, held in self._answers.items() if held == text) for text in self._texts
        }
        systems.setdefault(self._control, f"{systems[self._repeated]}, said twice")
        reasons = tuple(
            Reason(opinion[order[0]].reason, tuple(systems[text] for text in order))
            for opinion, order in zip(given, self.orders, strict=True)
        )
        agreement = _measure_agreement(opinions)
        if self._is_swayed(given):
            return RankedAnswers(self.question.id, reasons=reasons, error=_SWAYED, agreement=agreement)
        is_flip = not frozenset.intersection(*map(_find_best, opinions))
        return RankedAnswers(self.question.id, _order(standings), reasons, is_flip=is_flip, agreement=agreement)

    def _is_swayed(self, opinions: Sequence[Mapping[str, _Opinion]]) -> bool:
        """Whether the judge places the control before what it repeats, mostly in an order and in its reverse too."""
        if self._control in self._texts:
            return False
        prefers = [one[self._control].place < one[self._repeated].place for one in opinions]
        pairs = [both[0] and both[1] for both in zip(prefers[::2], prefers[1::2], strict=True)]
        return 2 * sum(pairs) > len(pairs)


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What the judge says once of one answer; *place* counts from 1, equals share it, and *reason* is the whole's."""

    place: float
    scores: Mapping[str, float]
    strengths: str
    weaknesses: str
    reason: str


def _leave_out(opinion: Mapping[str, _Opinion], texts: Collection[str]) -> dict[str, _Opinion]:
    """*opinion* without what it says of *texts*; the others close up."""
    kept = {text: one for text, one in opinion.items() if text not in texts}
    places = [one.place for one in kept.values()]
    return {
        text: replace(one, place=sum(it < one.place for it in places) + (places.count(one.place) + 1) / 2)
        for text, one in kept.items()
    }


def _measure_agreement(opinions: Sequence[Mapping[str, _Opinion]]) -> float:
    """The share of pairs of answers that two of the *opinions* put in the same order, or both on one place."""
    said = [[_compare(one[a].place, one[b].place) for a, b in combinations(opinions[0], 2)] for one in opinions]
    return fmean(x == y for one, other in combinations(said, 2) for x, y in zip(one, other, strict=True))


def _compare(place: float, other: float) -> int:
    return (place > other) - (place < other)


def resample(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean of *values*."""
    random, tail = Random(seed), (1.0 - CONFIDENCE) / 2
    means = sorted(fmean(random.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return means[int(tail * _RESAMPLES)], means[int((1.0 - tail) * _RESAMPLES) - 1]


def _round_all(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [round(end, 3) for end in interval]


def _find_best(opinion: Mapping[str, _Opinion]) -> frozenset[str]:
    first = min(one.place for one in opinion.values())
    return frozenset(text for text, one in opinion.items() if one.place == first)


def _parse_opinion(reply: Reply | ModelError, order: Sequence[str]) -> dict[str, _Opinion]:
    """Return what *reply* says of each answer in *order*; raises `ModelError` where a part is missing or impossible."""
    if isinstance(reply, ModelError):
        raise reply
    names = LETTERS[: len(order)]
    wanted = [f"{name.lower()}_{criterion}" for name in names for criterion in CRITERIA]
    given = parse_object(reply, [*wanted, "ranking"])
    places = parse_places(given.get("ranking"), names)
    scores = {name: {it: parse_score(given.get(f"{name.lower()}_{it}")) for it in CRITERIA} for name in names}
    if not places or not all(score for by_name in scores.values() for score in by_name.values()):
        raise ModelError("unparsable", "the judge's reply is not a ranking of all answers with scores from 1 to 10")
    return {
        text: _Opinion(
            places[name],
            scores[name],
            read_line(given.get(f"{name.lower()}_strengths")),
            read_line(given.get(f"{name.lower()}_weaknesses")),
            read_line(given.get("reason")),
        )
        for name, text in zip(names, order, strict=True)
    }


def parse_places(given: object, names: str) -> dict[str, float]:
    """Return the place of each of *names* in a ranking such as ``B > A = C``.

    Equals share the mean of the places they take. Empty where a name is missing or there twice.
    """
    text = re.sub(r"(?i)\banswers?\b", "", given) if isinstance(given, str) else ""
    groups = [re.findall(r"[A-Z]", group) for group in re.split(r"[>,;\n]|\bthen\b", text)]
    groups = [group for group in groups if group]
    if sorted(name for group in groups for name in group) != sorted(names):
        return {}
    places: dict[str, float] = {}
    for group in groups:
        place = len(places) + (len(group) + 1) / 2
        places |= dict.fromkeys(group, place)
    return places


def parse_score(given: object) -> float:
    """Return a score from 1 to 10; 0 for anything else."""
    match = _SCORE.fullmatch(given.strip()) if isinstance(given, str) else None
    score = float(match.group(1)) if match else 0.0
    return score if 1 <= score <= 10 else 0.0


def read_line(given: object) -> str:
    """Return what the judge wrote as one line of at most a thousand characters; empty where it is no text."""
    return " ".join(given.split())[:_MOST_REASON_CHARS] if isinstance(given, str) else ""


def _order(standings: Mapping[str, Standing]) -> tuple[Standing, ...]:
    """Return *standings* the best first, with their ranks: by place, then by score; who has both the same is equal."""
    listed = sorted(standings.values(), key=lambda one: (one.place, -one.score))
    ranked: list[Standing] = []
    for at, one in enumerate(listed):
        same = at and (listed[at - 1].place, listed[at - 1].score) == (one.place, one.score)
        ranked.append(replace(one, rank=ranked[-1].rank if same else at + 1))
    return tuple(ranked)


def average_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of *scores* for each criterion; empty where none is given."""
    given = [one for one in scores if one]
    return {name: fmean(one[name] for one in given) for name in CRITERIA} if given else {}
