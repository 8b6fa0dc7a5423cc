"""The comparison that ships with the project: its own text, its own questions and recorded replies."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from qtmiddleware.evaluation import Dataset
from qtmiddleware.providers.llms.recorded import RecordedModel


def dataset() -> Dataset:
    """The passages, questions and judgements shipped with the package."""
    return replace(Dataset.load(_data()), name="demo")


def recorded_model() -> RecordedModel:
    """The recorded replies shipped with the package, as a model."""
    questions = [question.to_record() for question in dataset().questions]
    return RecordedModel.from_file(_data() / "recordings.jsonl", questions)


def _data() -> Path:
    return Path(str(files(__package__))) / "data"
