"""Questions to learn from and questions to report on."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from math import ceil
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import Dataset, Question

LEAST: Final = 20
"""Fewer questions on either side say nothing."""


def split(data: Dataset, *, seed: int = 0, holdout: float = 0.5) -> tuple[Dataset, Dataset]:
    """The questions of *data* to train on and those to hold out, the share *holdout* of them.

    Questions of one conversation (the same first message) and single questions of equal text, white space and case
    aside, stay on one side. These groups are ordered by the SHA-256 of *seed* and their text and held out until the
    share is reached, so that the same questions are split alike in any order and on any machine. Raises `ConfigError`
    where a side would have fewer than `LEAST` questions.
    """
    if not 0.0 < holdout < 1.0:
        raise ConfigError(f"holdout is {holdout}; allowed: above 0 and below 1", path="holdout", value=holdout)
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in data.questions:
        groups[_conversation(question)].append(question)
    wanted = round(holdout * len(data.questions))
    held: set[str] = set()
    for group in sorted(groups, key=lambda text: sha256(f"{seed}\n{text}".encode()).digest()):
        if len(held) >= wanted:
            break
        held.update(question.id for question in groups[group])
    sides = data.only({question.id for question in data.questions} - held), data.only(held)
    _check(data, sides, len(groups), holdout)
    return sides


def _conversation(question: Question) -> str:
    first = question.history[0].content if question.history else question.text
    return " ".join(first.split()).casefold()


def _check(data: Dataset, sides: tuple[Dataset, Dataset], groups: int, holdout: float) -> None:
    train, held = (len(side.questions) for side in sides)
    if min(train, held) >= LEAST:
        return
    needed = max(ceil(LEAST / holdout), ceil(LEAST / (1.0 - holdout)))
    total = len(data.questions)
    if total < needed:
        message = f"{total} judged questions are too few to tune on: {needed} are needed"
    else:
        message = f"{total} judged questions are of too few conversations or texts ({groups}), kept on one side"
    raise ConfigError(
        f"{message}, so that at least {LEAST} are left to train on ({train} now) and {LEAST} to report on ({held} now)",
        path="dataset",
        value=data.name,
    )
