"""The comparison that ships with the project: its own text, its own questions and recorded replies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from time import sleep

from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms.recorded import RecordedModel
from qtmiddleware.types import Deadline


def dataset() -> Dataset:
    """The passages, questions and judgements shipped with the package."""
    return replace(Dataset.load(_data()), name="demo")


class UnhurriedModel:
    """Passes on the replies of *inner*, each after *seconds*, as if it had thought about it."""

    def __init__(self, inner: LanguageModel, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds

    @property
    def name(self) -> str:
        """The name of the model that answers."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        sleep(min(self._seconds, deadline.remaining()))
        return self._inner.complete(prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises what the inner model raises."""
        await asyncio.sleep(min(self._seconds, deadline.remaining()))
        return await self._inner.acomplete(prompt, deadline)


def recorded_model() -> RecordedModel:
    """The recorded replies shipped with the package, as a model."""
    questions = [question.to_record() for question in dataset().questions]
    return RecordedModel.from_file(_data() / "recordings.jsonl", questions)


def _data() -> Path:
    return Path(str(files(__package__))) / "data"
