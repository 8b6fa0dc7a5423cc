"""What of a data set was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.evaluation import Dataset, Question
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.llms.recorded import RecordedModel, read_lines
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Deadline

_ALONE = "standalone"


def recorded_part(data: Dataset, path: Path) -> tuple[RecordedModel, Dataset, frozenset[str]]:
    """The recording at *path*, the questions of *data* that are in it, and the names of the fields it holds for them.

    Raises `ConfigError` where it cannot be read or is one of other questions.
    """
    lines = list(read_lines(path))
    # Another question of equal text is not the one that was recorded, where the recording says which one was.
    named = {str(line.get("_id")) for line in lines} & {question.id for question in data.questions}
    data = data.only(named) if named else data
    asked = [question.to_record() for question in data.questions]
    try:
        model = RecordedModel(lines, queries=asked, name=f"recorded:{path.stem}")
    except ConfigError as error:
        raise _of_others(data, path) from error
    kept: set[str] = set()
    fields: set[str] = set()
    for question in data.questions:
        try:
            reply = model.complete(_whole(question), Deadline())
        except ModelError as error:
            if error.reason != "unrecorded":
                kept.add(question.id)
        else:
            kept.add(question.id)
            fields |= json.loads(reply.text).keys()
    if not kept:
        raise _of_others(data, path)
    return model, data.only(kept), frozenset(fields)


def _of_others(data: Dataset, path: Path) -> ConfigError:
    return ConfigError(
        f"none of the {len(data.questions)} questions of {data.name} is in the recording {path}; it belongs to another "
        "data set",
        path="recordings",
    )


def fields_of(system: Mapping[str, Any]) -> frozenset[str]:
    """The names of what a system of these settings asks the model for, the standalone form of a question aside."""
    settings = Config.load(system, environ={}).settings
    return frozenset(field.name for prompt in build_prompts(settings, "?") for field in prompt.fields) - {_ALONE}


def _whole(question: Question) -> Prompt:
    """A prompt that asks for everything that can be asked about *question*."""
    prompt = PROMPTS["combined"].build_prompt(Settings(), question.text, question.history)
    return replace(prompt, mode="", fields=_every_field())


def _every_field() -> tuple[ReplyField, ...]:
    found = {field.name: field for it in PROMPTS.values() for field in it.build_prompt(Settings(), "?").fields}
    return tuple(found.values())
