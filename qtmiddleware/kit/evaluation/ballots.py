"""Ask a language model to compare texts, in several orders and without the systems' names.

Language models prefer the text that comes first. The judge therefore also sees each order reversed
(Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.prompts import (
    CRITERIA,
    LETTERS,
    PromptRunner,
    Task,
    build_ranking_prompt,
    parse_reply,
)
from qtmiddleware.protocols import LanguageModel, Reply
from qtmiddleware.runtime.logs import get_logger

MOST_FAILURES: Final = 16
"""Judging stops after this many failed questions in a row."""
_SCORE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,9})?)(?: ?/ ?10)?")
_MOST_REASON_CHARS: Final = 1_000

logger: Final = get_logger("qtmiddleware.judging")


@dataclass(frozen=True, slots=True)
class Reason:
    """The judge's reason for preferring an answer. The text may call the answers A, B and so on.

    Attributes:
        text: The reason in the judge's words.
        order: The names of the systems behind the answers A, B and so on, in this order.
    """

    text: str = field(repr=False)
    order: tuple[str, ...]

    @property
    def legend(self) -> str:
        """The system behind each answer's letter, such as ``A is raw, B is rules``."""
        return ", ".join(
            f"{letter} is {name}" for letter, name in zip(LETTERS, self.order, strict=False)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the reason's text and the system behind each letter as a dict for JSON."""
        return {"text": self.text, **dict(zip(LETTERS, self.order, strict=False))}


@dataclass(frozen=True, slots=True)
class Mark:
    """The judge's opinion of one text.

    Attributes:
        place: The text's rank, from 1. Equal texts share the mean of their ranks.
        scores: A score from 1 to 10 per criterion; empty if the judge was not asked for scores.
        strengths: The strengths of the text, in the judge's words.
        weaknesses: The weaknesses of the text, in the judge's words.
    """

    place: float
    scores: Mapping[str, float] = field(default_factory=dict)
    strengths: str = ""
    weaknesses: str = ""


@dataclass(frozen=True, slots=True)
class Opinion:
    """The judge's opinion of all compared texts, after reading them in one order.

    Attributes:
        marks: The opinion of each text, in the order of `Ballot.candidates`.
        reason: The judge's reason for its choice of the best text.
    """

    marks: tuple[Mark, ...]
    reason: str = field(default="", repr=False)

    def prefers(self, index: int, other_index: int) -> bool:
        """Return whether the judge ranks the text at *index* above the text at *other_index*."""
        return self.marks[index].place < self.marks[other_index].place

    def find_better_text(self) -> int | None:
        """Return the index of the better of two texts: 0, 1, or ``None`` if they are equal."""
        return 0 if self.prefers(0, 1) else 1 if self.prefers(1, 0) else None


@dataclass(slots=True)
class Ballot:
    """One question, the texts to compare, and the judge's opinions of the texts.

    Attributes:
        question: The question.
        candidates: The texts to compare. A list of passages counts as one text.
        orders: The orders in which the judge sees the texts, as lists of indices of *candidates*.
            If there are no orders, the judge is not asked.
        error: The error of a system or of the judge; ``None`` if both succeeded.
        opinions: The judge's opinions, one per order.
    """

    question: Question
    candidates: Sequence[str | Sequence[str]] = ()
    orders: Sequence[Sequence[int]] = ()
    error: ModelError | None = None
    opinions: Sequence[Opinion] = ()

    @property
    def depends_on_order(self) -> bool:
        """``True`` if the judge changed its choice between two texts when their order changed."""
        return len({opinion.find_better_text() for opinion in self.opinions}) > 1

    def find_winner(self) -> int | None:
        """Return the index of the text that the judge preferred in every order of presentation.

        Returns ``None`` if the judge gave no opinion, found the texts equal, or changed its choice
        when the order changed.
        """
        return (
            self.opinions[0].find_better_text()
            if self.opinions and not self.depends_on_order
            else None
        )

    def average_scores(self, index: int) -> dict[str, float]:
        """Return the mean score per criterion of the text at *index*."""
        return average_scores([opinion.marks[index].scores for opinion in self.opinions])

    def list_reasons(self, systems: Sequence[str]) -> tuple[Reason, ...]:
        """Return the judge's reasons, one per order. Orders without a reason are skipped.

        *systems* has the name of each text's system, in the order of `candidates`.
        """
        return tuple(
            Reason(opinion.reason, tuple(systems[index] for index in order))
            for opinion, order in zip(self.opinions, self.orders, strict=False)
            if opinion.reason
        )


class Judge:
    """Asks a language model to rank several texts for each question.

    The model ranks the texts several times: in random orders, and in the reverse of each order.
    """

    def __init__(
        self,
        task: Task,
        model: LanguageModel,
        *,
        repeats: int = 2,
        seed: int,
        timeout: float,
        concurrency: int,
    ) -> None:
        """Create a judge.

        Args:
            task: The template of the ranking prompt.
            model: The model that judges.
            repeats: The number of orders per question. It must be even.
            seed: The seed that draws the orders.
            timeout: Seconds allowed per judgement.
            concurrency: The largest number of judgements that run at the same time.

        Raises:
            ConfigError: *timeout* or *concurrency* is not valid.
        """
        self.random = Random(seed)
        self._task = task
        self._criteria = [field.name for field in task.fields if field.name in CRITERIA]
        self._runner = PromptRunner(model, timeout, concurrency)
        self._repeats = repeats
        # All orders of a question are asked at the same time, so a batch has fewer questions.
        self._batch_size = max(1, concurrency // repeats)
        self._unused_orders: dict[int, list[list[int]]] = {}

    @property
    def cost_usd(self) -> float | None:
        """The cost of all replies so far, in US dollars; ``None`` if a reply's cost is unknown."""
        return self._runner.cost_usd

    def draw_orders(self, text_count: int) -> list[list[int]]:
        """Return random orders of *text_count* texts, as lists of indices.

        Each order is followed by its reverse.
        """
        # A judge that prefers the first of two texts helps each text once.
        orders = [self._draw_order(text_count) for _ in range(self._repeats // 2)]
        return [variant for order in orders for variant in (order, order[::-1])]

    def _draw_order(self, text_count: int) -> list[int]:
        """Return a random order of *text_count* texts, as a list of indices.

        Over many calls, each index appears equally often at each position.
        """
        unused = self._unused_orders.setdefault(text_count, [])
        # All rotations of one random order together put each text at each position once.
        if not unused:
            order = self.random.sample(range(text_count), text_count)
            unused += [order[start:] + order[:start] for start in range(text_count)]
            self.random.shuffle(unused)
        return unused.pop()

    def judge_questions(
        self,
        questions: Sequence[Question],
        build_ballot: Callable[[Question], Ballot],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Ballot]:
        """Ask the judge about each question, and return one ballot per question.

        A ballot contains the judge's opinions or an error. Judging stops if `MOST_FAILURES`
        questions in a row fail, or if the service refuses the API key. The remaining questions
        then fail as ``cancelled``.

        Args:
            questions: The questions to judge.
            build_ballot: Returns the ballot of a question, with the texts to compare or an error.
                It runs in the caller's thread, for one question at a time.
            progress: Receives the number of questions done and the total number.

        Raises:
            ModelError: Judging stopped before the judge gave any opinion.
        """
        ballots: list[Ballot] = []
        failures = 0
        while len(ballots) < len(questions):
            batch = [
                build_ballot(question) for question in questions[len(ballots) :][: self._batch_size]
            ]
            self._collect_opinions(batch)
            for ballot in batch:
                ballots.append(ballot)
                if ballot.error is None:
                    # Equal answers are not shown to the judge, so they do not prove that it works.
                    failures = 0 if ballot.opinions else failures
                    continue
                failures += 1
                if failures >= MOST_FAILURES or ballot.error.reason == "unauthorized":
                    _stop_judging(ballot.error, ballots, questions)
                    break
            if progress is not None:
                progress(len(ballots), len(questions))
        return ballots

    def _collect_opinions(self, ballots: Sequence[Ballot]) -> None:
        """Ask the judge about all *ballots*, and add the judge's opinions or error to each."""
        pairs = [
            (ballot, order) for ballot in ballots if ballot.error is None for order in ballot.orders
        ]
        prompts = [
            build_ranking_prompt(
                self._task, ballot.question, [ballot.candidates[index] for index in order]
            )
            for ballot, order in pairs
        ]
        for (ballot, order), reply in zip(pairs, self._runner.run_prompts(prompts), strict=True):
            try:
                ballot.opinions = (*ballot.opinions, parse_opinion(reply, order, self._criteria))
            except ModelError as error:
                ballot.error = ballot.error or error
        # Without its reverse, an order would favour the text that the judge saw first.
        for ballot in ballots:
            if ballot.error is not None:
                ballot.opinions = ()


def _stop_judging(error: ModelError, ballots: list[Ballot], questions: Sequence[Question]) -> None:
    """Append a failed ballot to *ballots* for each remaining question, and log a warning.

    *ballots* has one ballot for each question that is done. Raises *error* instead if no ballot has
    opinions.
    """
    if not any(ballot.opinions for ballot in ballots):
        raise error
    remaining = questions[len(ballots) :]
    ballots += [Ballot(question, error=ModelError("cancelled")) for question in remaining]
    record: dict[str, Any] = {
        "event": "judging_given_up",
        "reason": error.reason,
        "left": len(remaining),
    }
    logger.warning(
        "judging stopped with %d questions left (%s: %s)",
        len(remaining),
        error.reason,
        error,
        **record,
    )


def parse_opinion(
    reply: Reply | ModelError, order: Sequence[int], criteria: Sequence[str] = CRITERIA
) -> Opinion:
    """Return the judge's opinion in *reply*.

    Args:
        reply: The judge's reply, or the error of the model call.
        order: The order in which the judge saw the texts.
        criteria: The names of the scores that the reply must have.

    Raises:
        ModelError: *reply* is an error, or a field of the reply is missing or not valid
            (reason ``unparsable``).
    """
    if isinstance(reply, ModelError):
        raise reply
    letters = LETTERS[: len(order)]
    score_names = [f"{letter.lower()}_{criterion}" for letter in letters for criterion in criteria]
    members = parse_reply(reply, [*score_names, "ranking"])
    places = parse_ranks(members.get("ranking"), letters)
    scores = {name: parse_score(members.get(name)) for name in score_names}
    if not places or not all(scores.values()):
        raise ModelError(
            "unparsable",
            "the judge's reply is not a ranking of all answers with scores from 1 to 10",
        )
    marks = {}
    for letter, index in zip(letters, order, strict=True):
        name = letter.lower()
        marks[index] = Mark(
            places[letter],
            {criterion: scores[f"{name}_{criterion}"] for criterion in criteria},
            shorten_to_line(members.get(f"{name}_strengths")),
            shorten_to_line(members.get(f"{name}_weaknesses")),
        )
    return Opinion(
        tuple(marks[index] for index in sorted(marks)), shorten_to_line(members.get("reason"))
    )


def parse_ranks(ranking: object, letters: str) -> dict[str, float]:
    """Return the rank of each of *letters* in a ranking such as ``B > A = C``.

    Ranks start at 1. Tied letters share the mean of their ranks. The result is empty if *ranking*
    is not text, lacks a letter or repeats a letter.
    """
    text = re.sub(r"(?i)\banswers?\b", "", ranking) if isinstance(ranking, str) else ""
    # Some judges write "b > a". In mixed text, lower-case letters belong to words.
    if text.islower():
        text = text.upper()
    groups = [re.findall(r"[A-Z]", group) for group in re.split(r"[>,;\n]|\b(?i:then)\b", text)]
    groups = [group for group in groups if group]
    if sorted(name for group in groups for name in group) != sorted(letters):
        return {}
    places: dict[str, float] = {}
    for group in groups:
        place = len(places) + (len(group) + 1) / 2
        places |= dict.fromkeys(group, place)
    return places


def parse_score(value: object) -> float:
    """Return the score in *value*, a number or a text such as ``7.5`` or ``7/10``.

    Returns 0 if *value* is not a score from 1 to 10.
    """
    match = _SCORE.fullmatch(str(value).strip())
    score = float(match.group(1)) if match else 0.0
    return score if 1 <= score <= 10 else 0.0


def shorten_to_line(value: object) -> str:
    """Return the text *value* on one line, cut to 1,000 characters; ``""`` if it is not text."""
    return " ".join(value.split())[:_MOST_REASON_CHARS] if isinstance(value, str) else ""


def average_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean score per criterion.

    Each of *scores* has the scores of one judgement by criterion. Empty mappings are ignored. If
    all are empty, the result is empty.
    """
    nonempty = [entry for entry in scores if entry]
    return {name: fmean(entry[name] for entry in nonempty) for name in CRITERIA} if nonempty else {}
