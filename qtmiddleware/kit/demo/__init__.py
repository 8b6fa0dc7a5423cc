"""Load the demo collections: passages, questions, judgements and recorded model replies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from time import sleep
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.recorded import RecordedModel
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.transforms import PROMPTS
from qtmiddleware.types import Deadline, Message

EXAMPLES: Final[Mapping[str, str]] = {
    "q16": "gains",
    "q13": "loses",
    "q40": "code",
    "q53": "conversation",
    "q19": "nothing found",
    "q17": "typo",
}
"""The kind of each example question in the playground, by id."""

_FOLDER: Final = Path(str(files(__package__))) / "data"


def load_dataset() -> Dataset:
    """Return the passages, questions and judgements of the demo collection."""
    # The folder names the data set, and reports would show the name "data".
    return replace(Dataset.load(_FOLDER), name="demo")


class DelayedModel:
    """A model that delays another model's replies, to imitate the response time of a service."""

    def __init__(self, inner_model: LanguageModel, delay_seconds: float) -> None:
        """Delay each reply of *inner_model* by *delay_seconds*, but not beyond the deadline."""
        self._inner = inner_model
        self._delay_seconds = delay_seconds

    @property
    def name(self) -> str:
        """The name of the inner model."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the inner model's reply to *prompt* after the delay."""
        sleep(min(self._delay_seconds, deadline.remaining()))
        return self._inner.complete(prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the inner model's reply to *prompt* after the delay."""
        await asyncio.sleep(min(self._delay_seconds, deadline.remaining()))
        return await self._inner.acomplete(prompt, deadline)


def load_recorded_model() -> RecordedModel:
    """Return a model that replays the recorded replies of the demo collection."""
    # The questions add the earlier messages, which the recordings do not contain.
    questions = [question.to_record() for question in load_dataset().questions]
    return RecordedModel.from_file(_FOLDER / "recordings.jsonl", questions)


def has_recording(recorded_model: RecordedModel, question: str, history: Sequence[Message]) -> bool:
    """Return whether *recorded_model* has a reply to *question* after the messages in *history*."""
    # The demo's recordings answer every prompt, so one prompt stands for all.
    prompt = PROMPTS["combined"].build_prompt(Settings(), question, history)
    try:
        recorded_model.complete(prompt, Deadline())
    except ModelError:
        return False
    return True
