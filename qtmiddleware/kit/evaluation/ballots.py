"""Texts compared by a language model that does not know whose they are, each question in several orders.

Judges of this kind prefer what stands first, so each order is shown again in reverse (Zheng et al.
2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
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
    parse_object,
)
from qtmiddleware.protocols import LanguageModel, Reply
from qtmiddleware.runtime.logs import get_logger

MOST_FAILURES: Final = 16
"""After so many failures in a row, of the systems or of the judge, nothing is asked any more."""
_SCORE: Final = re.compile(r"(\d{1,2}(?:\.\d{1,9})?)(?: ?/ ?10)?")
_MOST_REASON_CHARS: Final = 1_000

logger: Final = get_logger("qtmiddleware.judging")


@dataclass(frozen=True, slots=True)
class Reason:
    """The judge's own words, which may call answers by letters: *order* are the systems that were A, B and so on."""

    text: str = field(repr=False)
    order: tuple[str, ...]

    @property
    def legend(self) -> str:
        """Which system each letter stands for."""
        return ", ".join(
            f"{letter} is {name}" for letter, name in zip(LETTERS, self.order, strict=False)
        )

    def to_dict(self) -> dict[str, Any]:
        """The words and the letters."""
        return {"text": self.text, **dict(zip(LETTERS, self.order, strict=False))}


@dataclass(frozen=True, slots=True)
class Mark:
    """What the judge says of one text: its *place* from 1, which equals share, and its *scores* from 1 to 10."""

    place: float
    scores: Mapping[str, float] = field(default_factory=dict)
    strengths: str = ""
    weaknesses: str = ""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the judge says when it sees one order: a mark for each text of the ballot, and why."""

    marks: tuple[Mark, ...]
    reason: str = field(default="", repr=False)

    def prefers(self, one: int, other: int) -> bool:
        """Whether the text at *one* stands before the text at *other*."""
        return self.marks[one].place < self.marks[other].place

    def find_better(self) -> int | None:
        """Return which of two texts is better; ``None`` if neither is."""
        return 0 if self.prefers(0, 1) else 1 if self.prefers(1, 0) else None


@dataclass(slots=True)
class Ballot:
    """One question with the texts that are *shown* to the judge in each of *orders*.

    An order is a permutation of places in *shown*. Without orders the judge is not asked.
    *opinions* has one opinion for each order; *error* says why there is none.
    """

    question: Question
    shown: Sequence[str | Sequence[str]] = ()
    orders: Sequence[Sequence[int]] = ()
    error: ModelError | None = None
    opinions: Sequence[Opinion] = ()

    @property
    def is_flip(self) -> bool:
        """Whether another of two texts is better, or neither, when they change places."""
        return len({opinion.find_better() for opinion in self.opinions}) > 1

    def find_winner(self) -> int | None:
        """Return which of two texts is better in every order; ``None`` if neither is."""
        return self.opinions[0].find_better() if self.opinions and not self.is_flip else None

    def average_scores(self, at: int) -> dict[str, float]:
        """Return the mean scores of the text at this place, as `average_scores` does."""
        return average_scores([opinion.marks[at].scores for opinion in self.opinions])

    def list_reasons(self, names: Sequence[str]) -> tuple[Reason, ...]:
        """Return the judge's words, if it gave any, with the *names* of the texts in its order."""
        return tuple(
            Reason(opinion.reason, tuple(names[at] for at in order))
            for opinion, order in zip(self.opinions, self.orders, strict=False)
            if opinion.reason
        )


class Judge:
    """Lets *model* do the ranking *task* for many questions, each in *repeats* orders that *seed* draws.

    *concurrency* judgements run at a time, each within *timeout* seconds. Raises `ConfigError` for
    impossible numbers.
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
        self.random = Random(seed)
        self._task = task
        self._criteria = [field.name for field in task.fields if field.name in CRITERIA]
        self._runner = PromptRunner(model, timeout, concurrency)
        self._repeats = repeats
        # All orders of a question are asked together.
        self._size = max(1, concurrency // repeats)
        self._left: dict[int, list[list[int]]] = {}

    @property
    def cost_usd(self) -> float | None:
        """What the replies have cost so far; ``None`` if the price of one is unknown."""
        return self._runner.cost_usd

    def draw_orders(self, count: int) -> list[list[int]]:
        """Return orders of *count* texts, every second one the reverse of the one before."""
        orders = [self._draw_order(count) for _ in range(self._repeats // 2)]
        return [shown for order in orders for shown in (order, order[::-1])]

    def _draw_order(self, count: int) -> list[int]:
        """Return an order. Over many questions each text has each place equally often, so chance favours none."""
        left = self._left.setdefault(count, [])
        if not left:
            order = self.random.sample(range(count), count)
            left += [order[at:] + order[:at] for at in range(count)]
            self.random.shuffle(left)
        return left.pop()

    def ask(
        self,
        questions: Sequence[Question],
        fill: Callable[[Question], Ballot],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Ballot]:
        """Return the ballot that *fill* makes for each question, with the judge's opinions or its error.

        *fill* is called in the caller's thread, one question after the other. A ballot that comes
        with an error counts as a failure. *progress* receives how many questions are done of how
        many.

        Raises `ModelError` after `MOST_FAILURES` failures in a row, or for a refused key, if the
        judge has compared nothing yet. Otherwise the questions that are left fail as ``cancelled``.
        """
        ballots: list[Ballot] = []
        failures = 0
        while len(ballots) < len(questions):
            batch = [fill(question) for question in questions[len(ballots) :][: self._size]]
            self._collect_opinions(batch)
            for ballot in batch:
                ballots.append(ballot)
                if ballot.error is None:
                    # A question that was not asked, as its answers are equal, says nothing of the
                    # judge.
                    failures = 0 if ballot.opinions else failures
                    continue
                failures += 1
                if failures >= MOST_FAILURES or ballot.error.reason == "unauthorized":
                    _give_up(ballot.error, ballots, questions)
                    break
            if progress is not None:
                progress(len(ballots), len(questions))
        return ballots

    def _collect_opinions(self, ballots: Sequence[Ballot]) -> None:
        asked = [
            (ballot, order) for ballot in ballots if ballot.error is None for order in ballot.orders
        ]
        prompts = [
            build_ranking_prompt(self._task, ballot.question, [ballot.shown[at] for at in order])
            for ballot, order in asked
        ]
        for (ballot, order), reply in zip(asked, self._runner.run(prompts), strict=True):
            try:
                ballot.opinions = (*ballot.opinions, parse_opinion(reply, order, self._criteria))
            except ModelError as error:
                ballot.error = ballot.error or error
        for ballot in ballots:
            if ballot.error is not None:
                ballot.opinions = ()


def _give_up(error: ModelError, ballots: list[Ballot], questions: Sequence[Question]) -> None:
    """Raise *error* if the judge has compared nothing yet; else add a failed ballot for all that is left."""
    if not any(ballot.opinions for ballot in ballots):
        raise error
    left = questions[len(ballots) :]
    ballots += [Ballot(question, error=ModelError("cancelled")) for question in left]
    about: dict[str, Any] = {"event": "judging_given_up", "reason": error.reason, "left": len(left)}
    logger.warning(
        "judging stopped with %d questions left (%s: %s)", len(left), error.reason, error, **about
    )


def parse_opinion(
    reply: Reply | ModelError, order: Sequence[int], criteria: Sequence[str] = CRITERIA
) -> Opinion:
    """Return what *reply* says of each text, which the judge saw in *order*.

    Raises `ModelError` (``unparsable``) if a part is missing or impossible, or *reply* itself if it
    is one.
    """
    if isinstance(reply, ModelError):
        raise reply
    letters = LETTERS[: len(order)]
    wanted = [f"{letter.lower()}_{criterion}" for letter in letters for criterion in criteria]
    given = parse_object(reply, [*wanted, "ranking"])
    places = parse_places(given.get("ranking"), letters)
    scores = {name: parse_score(given.get(name)) for name in wanted}
    if not places or not all(scores.values()):
        raise ModelError(
            "unparsable",
            "the judge's reply is not a ranking of all answers with scores from 1 to 10",
        )
    marks = {}
    for letter, at in zip(letters, order, strict=True):
        name = letter.lower()
        marks[at] = Mark(
            places[letter],
            {criterion: scores[f"{name}_{criterion}"] for criterion in criteria},
            read_line(given.get(f"{name}_strengths")),
            read_line(given.get(f"{name}_weaknesses")),
        )
    return Opinion(tuple(marks[at] for at in sorted(marks)), read_line(given.get("reason")))


def parse_places(given: object, names: str) -> dict[str, float]:
    """Return the place of each of *names* in a ranking such as ``B > A = C``.

    Equals share the mean of the places they take. Empty where a name is missing or there twice.
    """
    text = re.sub(r"(?i)\banswers?\b", "", given) if isinstance(given, str) else ""
    if text.islower():
        text = text.upper()
    groups = [re.findall(r"[A-Z]", group) for group in re.split(r"[>,;\n]|\b(?i:then)\b", text)]
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


def average_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of *scores* for each criterion; empty where none is given."""
    given = [one for one in scores if one]
    return {name: fmean(one[name] for one in given) for name in CRITERIA} if given else {}
