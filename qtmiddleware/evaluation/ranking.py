"""Any number of answers to each question, ranked by a language model against a reference answer.

The judge sees them without the systems' names, once in an order that is drawn and once in the reverse of it, as what
stands first is preferred (Zheng et al. 2023); a place is the mean of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.evaluation.dataset import Question
from qtmiddleware.evaluation.prompts import CRITERIA, LETTERS, PromptRunner, build_ranking_prompt, parse_object
from qtmiddleware.protocols import LanguageModel, Prompt, Reply

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
    scores from 1 to 10 for each of `CRITERIA`, the means of both orders. *strengths* and *weaknesses* are its words,
    one for each order. *firsts* says how often the system was best, alone or with others, of *questions*.
    """

    system: str
    rank: int
    place: float
    scores: Mapping[str, float] = field(default_factory=dict)
    strengths: tuple[str, ...] = field(default=(), repr=False)
    weaknesses: tuple[str, ...] = field(default=(), repr=False)
    firsts: int = 0
    questions: int = 1

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
        }


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """The judge's ranking of the answers to one *question*, by its id, the best first.

    Empty where it could not be ranked; *error* says in one word why, and is ``equal`` where all answers were the same.
    *is_flip* says that another answer was best as soon as they changed places.
    """

    question: str
    standings: tuple[Standing, ...] = ()
    reasons: tuple[Reason, ...] = field(default=(), repr=False)
    is_flip: bool = False
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "question": self.question,
            "ranking": [standing.to_dict() for standing in self.standings],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "flip": self.is_flip,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class RankedSystems:
    """What the model *judge* made of all questions. *skipped* ones had no reference, or fewer than two answers.

    *cost_usd* is what its replies cost, ``None`` where its price is not known.
    """

    judge: str
    questions: tuple[RankedAnswers, ...]
    skipped: int = 0
    cost_usd: float | None = 0.0

    @property
    def standings(self) -> tuple[Standing, ...]:
        """The systems, the best first: by their mean place, then by their mean score."""
        found: dict[str, list[Standing]] = {}
        for ranked in self.questions:
            for one in ranked.standings:
                found.setdefault(one.system, []).append(one)
        return _order(
            {
                name: Standing(
                    name,
                    0,
                    fmean(one.place for one in held),
                    average_scores([one.scores for one in held]),
                    firsts=sum(one.rank == 1 for one in held),
                    questions=len(held),
                )
                for name, held in found.items()
            }
        )

    @property
    def failed(self) -> int:
        """Questions without a ranking, though there was something to rank."""
        return sum(not one.standings for one in self.questions)

    def summary(self) -> str:
        """The result in one or two sentences; one question says nothing of the next."""
        standings, judged = self.standings, len(self.questions) - self.failed
        aside = (
            ("Another answer was best when they changed places", sum(one.is_flip for one in self.questions)),
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
        return f"Ranked by {self.judge} on {questions}: {listed}.{said}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "judge": self.judge,
            "ranking": [standing.to_dict() for standing in self.standings],
            "questions": [one.to_dict() for one in self.questions],
            "failed": self.failed,
            "skipped": self.skipped,
            "costUsd": self.cost_usd,
        }


def rank(
    questions: Sequence[Question],
    answers: Mapping[str, Mapping[str, str]],
    model: LanguageModel,
    *,
    seed: int = 0,
    timeout: float = 60.0,
    concurrency: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> RankedSystems:
    """Let *model* rank the *answers*, by system and question's id, against each question's reference answer.

    A question's reference is the ``answer`` in its metadata. Those without one, or with fewer than two answers, are
    skipped; a system without an answer takes no part in that question. Answers that are the same are shown once and
    share a place; where all are, nothing is asked. *seed* draws the orders, *concurrency* judgements run at a time,
    each within *timeout* seconds. *progress* receives how many questions are done of how many.

    A reply that is missing or no ranking fails its question. Raises `ModelError` where that is so of every question
    that was asked about, and `ConfigError` for more than twelve systems, or impossible numbers.
    """
    if len(answers) > len(LETTERS):
        raise ConfigError(f"{len(answers)} systems are too many to rank: at most {len(LETTERS)}", path="answers")
    runner, random = PromptRunner(model, timeout, concurrency), Random(seed)
    pairs = [(question, _collect_answers(question, answers)) for question in questions if question.reference]
    ballots = [_Ballot(question, given, random) for question, given in pairs if len(given) > 1]
    ranked: list[RankedAnswers] = []
    errors: list[ModelError] = []
    # Both orders of a question are asked together.
    size = max(1, concurrency // 2)
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
    return RankedSystems(model.name, tuple(ranked), len(questions) - len(ballots), runner.cost_usd)


def _collect_answers(question: Question, answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {name: given[question.id].strip() for name, given in answers.items() if given.get(question.id, "").strip()}


class _Ballot:
    """The answers to one *question*, each text once, and the *orders* in which the judge is shown them."""

    def __init__(self, question: Question, answers: Mapping[str, str], random: Random) -> None:
        self.question = question
        self._answers = answers
        texts = list(dict.fromkeys(answers.values()))
        random.shuffle(texts)
        self.orders = (texts, texts[::-1]) if len(texts) > 1 else ()

    def build_prompts(self) -> list[Prompt]:
        """Return a prompt for each order; none where all answers are the same."""
        return [build_ranking_prompt(self.question, self.question.reference, order) for order in self.orders]

    def count(self, replies: Sequence[Reply | ModelError]) -> RankedAnswers:
        """Return what *replies*, one for each order, come to; raises `ModelError` where one is no ranking."""
        if not self.orders:
            return RankedAnswers(
                self.question.id, tuple(Standing(name, 1, 1.0) for name in self._answers), error="equal"
            )
        opinions = [_parse_opinion(reply, order) for reply, order in zip(replies, self.orders, strict=True)]
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
            text: " = ".join(name for name, given in self._answers.items() if given == text) for text in self.orders[0]
        }
        reasons = tuple(
            Reason(opinion[order[0]].reason, tuple(systems[text] for text in order))
            for opinion, order in zip(opinions, self.orders, strict=True)
        )
        best, best_reversed = (_find_best(opinion) for opinion in opinions)
        is_flip = best.isdisjoint(best_reversed)
        return RankedAnswers(self.question.id, _order(standings), reasons, is_flip=is_flip)


@dataclass(frozen=True, slots=True)
class _Opinion:
    """What the judge says once of one answer; *place* counts from 1, equals share it, and *reason* is the whole's."""

    place: float
    scores: Mapping[str, float]
    strengths: str
    weaknesses: str
    reason: str


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
