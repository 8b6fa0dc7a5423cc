"""Load the demo collection: passages, questions, judgements and recorded model replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Final

from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.recorded import RecordedModel

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


def load_recorded_model() -> RecordedModel:
    """Return a model that replays the recorded replies of the demo collection."""
    # The questions add the earlier messages, which the recordings do not contain.
    questions = [question.to_record() for question in load_dataset().questions]
    return RecordedModel.from_file(_FOLDER / "recordings.jsonl", questions)
