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

EXAMPLES: Final[Mapping[str, Mapping[str, str]]] = {
    "data": {
        "gains": "q16",
        "loses": "q13",
        "code": "q40",
        "conversation": "q53",
        "nothing found": "q19",
        "typo": "q17",
    },
    "small": {
        "gains": "s1",
        "loses": "s2",
        "code": "s3",
        "conversation": "s4",
        "nothing found": "s5",
        "typo": "s6",
    },
}
"""The id of each example question in the playground, by collection and type of question."""


def load_dataset(folder: str = "data") -> Dataset:
    """Return the passages, questions and judgements of a demo collection.

    *folder* is ``data`` for the large collection, or ``small`` for the small collection.
    """
    # The folder names the data set, and reports would show the name "data".
    data = Dataset.load(_find_collection_folder(folder))
    return replace(data, name="demo") if folder == "data" else data


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


def load_recorded_model(folder: str = "data") -> RecordedModel:
    """Return a model that replays the recorded replies of the demo collection in *folder*."""
    # The questions add the earlier messages, which the recordings do not contain.
    questions = [question.to_record() for question in load_dataset(folder).questions]
    return RecordedModel.from_file(_find_collection_folder(folder) / "recordings.jsonl", questions)


def has_recording(recorded_model: RecordedModel, question: str, history: Sequence[Message]) -> bool:
    """Return whether *recorded_model* has a reply to *question* after the messages in *history*."""
    # The demo's recordings answer every prompt, so one prompt stands for all.
    prompt = PROMPTS["combined"].build_prompt(Settings(), question, history)
    try:
        recorded_model.complete(prompt, Deadline())
    except ModelError:
        return False
    return True


def _find_collection_folder(folder_name: str) -> Path:
    return Path(str(files(__package__))) / folder_name
