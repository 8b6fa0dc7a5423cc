"""Load judged questions for your own index from a table, JSON or a folder.

The passages are in your index; the judgements name their ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.dataset import (
    Dataset,
    Question,
    load_judged_folder,
    parse_question,
    read_records,
)

_ID: Final = "id"
_IDS: Final = ("ids", "relevant")
_BETWEEN_IDS: Final = str.maketrans(dict.fromkeys(";|\n\r", ","))


def load_judged(path: str | Path, *, split: str = "") -> Dataset:
    """Load judged questions from a table, a file of JSON objects, or a data set's folder.

    A table (``.csv``, ``.tsv``) starts with a line of column names, separated by commas, semicolons
    or tabs. The column names of a table, and the keys of a JSON object, are:

    - ``question`` (or ``query``, ``text``): the question. Rows with the same question are merged.
    - ``id``: the id of a passage that answers the question. If the table also has ``ids``, ``id``
      is the question's own id.
    - ``ids`` (or ``relevant``): the ids of several passages, separated by commas or as a JSON list.

    If a question has no id, its number is its id. Every passage gets grade 1. If *path* is the
    folder of a data set, the grades are read from the folder, but the passages are not.

    Args:
        path: The file or folder.
        split: The name of a file in the folder's ``qrels/``, such as ``test``, to read only that
            file. Default: all files.

    Raises:
        ConfigError: A file cannot be read, or a record has no question or no passage id. The error
            names the file and line.
    """
    root = Path(path).expanduser()
    if root.is_dir():
        return load_judged_folder(root, split)
    if split:
        raise ConfigError(
            f"{root} is a file, which has no splits; leave --split out", path="split", value=split
        )
    questions: dict[str, Question] = {}
    qrels: dict[str, dict[str, int]] = {}
    by_text: dict[str, str] = {}
    for place, record in read_records(root, needed_columns=(_ID, *_IDS)):
        try:
            question, ids, is_named = _parse_judged_record(record, str(len(questions) + 1))
            question_id = by_text.get(question.text) if not is_named else None
            if question_id is None and question.id in questions:
                raise ValueError(f"the id {question.id!r} occurs a second time")
        except ValueError as error:
            raise ConfigError(f"{place}: {error}", path=str(root)) from None
        if question_id is None:
            question_id = question.id
            questions[question_id] = question
            # The table may have one row per passage. Rows without a question id are merged by
            # the question's text.
            if not is_named:
                by_text[question.text] = question_id
        qrels.setdefault(question_id, {}).update(dict.fromkeys(ids, 1))
    if not questions:
        raise ConfigError(
            f"{root} must hold questions with the ids of their passages; it holds none",
            path=str(root),
        )
    return Dataset(root.stem, (), tuple(questions.values()), qrels)


def _parse_judged_record(record: Any, default_id: str) -> tuple[Question, list[str], bool]:
    """Return the question in *record*, its passage ids, and whether *record* has a question id.

    A question without an id gets *default_id*. Raises `ValueError` if a field is missing or not
    valid.
    """
    if not isinstance(record, Mapping):
        raise ValueError("must be a JSON object")
    ids_name = next((name for name in _IDS if name in record), None)
    rest = dict(record)
    value = rest.pop(ids_name if ids_name is not None else _ID, None)
    if ids_name is None and _ID not in record:
        raise ValueError(
            f'must have the id of a passage, under "{_ID}", or several ids under "{_IDS[0]}"'
        )
    # An empty cell of a table means that the question has no id.
    for name in ("_id", _ID):
        if name in rest and not str(rest[name]).strip():
            del rest[name]
    # White space around a question is not part of what a user would ask.
    question = parse_question(rest, default_id)
    question = replace(question, text=question.text.strip())
    ids = _split_ids(value) if ids_name is not None else _clean_ids([value])
    if not ids:
        id_name = ids_name or _ID
        raise ValueError(f'has no passage id under "{id_name}". Fill it in, or remove the question')
    return question, ids, "_id" in rest or _ID in rest


def _split_ids(value: Any) -> list[str]:
    """Return the ids in *value*, which is a list, a JSON list, or text with separators.

    The separators are commas, semicolons, vertical bars and line breaks. Raises `ValueError` if an
    id is not valid.
    """
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise ValueError(
                    'must have ids with commas between them, or a JSON list such as ["a", "b"]'
                ) from None
        else:
            value = value.translate(_BETWEEN_IDS).split(",")
    return _clean_ids(value if isinstance(value, list) else [value])


def _clean_ids(values: list[Any]) -> list[str]:
    """Return the ids in *values* as texts, without blank ids and duplicates.

    Raises `ValueError` if a value is neither text nor an integer.
    """
    if not all(
        value is None or (isinstance(value, str | int) and not isinstance(value, bool))
        for value in values
    ):
        raise ValueError('must have texts or numbers as passage ids, such as ["a", "b"]')
    ids = (str(value).strip() for value in values if value is not None)
    return list(dict.fromkeys(id_ for id_ in ids if id_))
