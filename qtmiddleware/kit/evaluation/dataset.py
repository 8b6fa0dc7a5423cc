"""A judged collection in the layout of BEIR: passages, questions and which passage answers which question.

Source: Thakur et al. 2021 (BEIR).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.lines import name_line_in_errors, parse_object, read_lines
from qtmiddleware.kit.evaluation.tables import QUESTION_NAMES, TABLES, read_table
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message

T = TypeVar("T")

Qrels = Mapping[str, Mapping[str, int]]
"""The judgements: for each question's id, the grade of each judged passage's id; above 0 is relevant."""
HIGHEST_GRADE: Final = 10_000
"""The measures' library counts passages by grade, in memory that grows with the highest one."""
_GRADE: Final = re.compile("-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Question:
    """One judged question, with the *history* of its conversation where there is one."""

    id: str
    text: str = field(repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def reference(self) -> str:
        """The answer that is known to be right (``answer`` in the metadata), which a judge goes by; empty without."""
        given = self.metadata.get("answer")
        return given if isinstance(given, str) and given.strip() else ""

    def to_record(self) -> dict[str, Any]:
        """Return the question as a line of ``queries.jsonl`` has it."""
        history = [{"role": turn.role, "content": turn.content} for turn in self.history]
        return {
            "_id": self.id,
            "text": self.text,
            "metadata": {**self.metadata, "history": history},
        }


@dataclass(frozen=True, slots=True)
class Dataset:
    """Passages, the questions that are judged, and the judgements (*qrels*).

    A passage's text is what is indexed: its title, a line break and its text, or its text alone
    where it has no title. The title stands in its metadata too.
    """

    name: str
    passages: tuple[Passage, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path, *, split: str = "") -> Dataset:
        """Load the data set in *folder*: ``corpus.jsonl``, ``queries.jsonl`` and the ``.tsv`` files in ``qrels/``.

        *split* names one of those files (``test``); by default all are read. The files' own header
        lines are optional. Questions without a judgement are left out. Raises `ConfigError` naming
        file and line if something is missing, unreadable, there twice, judged but not there or
        judged in two ways.
        """
        root = Path(folder).expanduser()
        if root.is_file():
            raise ConfigError(
                f"{root} is a file, and a data set is a folder with corpus.jsonl, queries.jsonl and"
                " qrels/*.tsv: retrieval is measured by judgements of which passage answers which"
                " question. To measure a function of yours, a file with questions and ids is"
                " enough: add --function module:name. Questions with ideal answers need no ids:"
                f" qtm compare --data {root} lets a model rank the answers from your index",
                path=str(root),
            )
        passages = _read_records(root / "corpus.jsonl", _build_passage)
        questions = _read_records(root / "queries.jsonl", _build_question)
        qrels = _read_qrels(
            root,
            split,
            {question.id for question in questions},
            {passage.id for passage in passages},
        )
        return cls(
            root.resolve().name, passages, tuple(one for one in questions if one.id in qrels), qrels
        )

    def first(self, count: int) -> Dataset:
        """Return the same passages with the first *count* questions and their judgements."""
        return self.only({question.id for question in self.questions[:count]})

    def sampled(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the same passages with *count* questions drawn by *seed*, in their order; or all."""
        ids = [question.id for question in self.questions]
        return self.only(set(random.Random(seed).sample(ids, min(count, len(ids)))))

    def only(self, ids: Collection[str]) -> Dataset:
        """Return the same passages with the questions of these *ids* and their judgements."""
        kept = tuple(question for question in self.questions if question.id in ids)
        return Dataset(
            self.name,
            self.passages,
            kept,
            {question.id: self.qrels[question.id] for question in kept},
        )

    @property
    def is_synthetic(self) -> bool:
        """Whether a language model wrote any of the questions: their metadata says ``"synthetic": true``."""
        return any(question.metadata.get("synthetic") is True for question in self.questions)

    @property
    def data_hash(self) -> str:
        """The sha256, in hex, of the passages, questions and judgements, whichever files they came from."""
        found = hashlib.sha256()
        for passage in self.passages:
            _update_hash(found, "passage", passage.id, passage.text, passage.metadata)
        for question in self.questions:
            _update_hash(found, "question", question.to_record())
        for id_, grades in sorted(self.qrels.items()):
            _update_hash(found, "qrels", id_, grades)
        return found.hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """The sha256 of the ``questions``, the ``judgements`` and the ``passages``, which their order does not change.

        That of the passages is empty if they are not known.
        """
        questions = tuple(sorted(self.questions, key=attrgetter("id")))
        passages = tuple(sorted(self.passages, key=attrgetter("id")))
        return {
            "questions": replace(self, passages=(), questions=questions, qrels={}).data_hash,
            "judgements": replace(self, passages=(), questions=()).data_hash,
            "passages": (
                replace(self, passages=passages, questions=(), qrels={}).data_hash
                if passages
                else ""
            ),
        }


_REFERENCE: Final = ("ideal_answer", "reference_answer", "reference", "answer", "ground_truth")
_ADVICE: Final = "; a data set is a folder with corpus.jsonl, queries.jsonl and qrels/*.tsv"


def load_questions(path: str | Path) -> tuple[Question, ...]:
    """Load questions, with their ideal answers where they have some, for answers to be judged by.

    *path* is a JSON file with a list of objects (``{"question": ..., "ideal_answer": ...}``), one
    with such an object a line, a table (``.csv``, ``.tsv``) with such columns, or a data set's
    folder, whose ``queries.jsonl`` is read (``text``, and ``answer`` in the metadata). Without an
    ``_id`` or ``id`` of its own a question is called by its number. Raises `ConfigError` naming
    what is wrong where.
    """
    root = Path(path).expanduser()
    file = root / "queries.jsonl" if root.is_dir() else root
    questions: dict[str, Question] = {}
    for number, (place, given) in enumerate(read_records(file), 1):
        try:
            question = build_asked(given, str(number))
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} occurs a second time")
        except ValueError as error:
            raise ConfigError(f"{place}: {error}", path=str(file)) from None
        questions[question.id] = question
    if not questions:
        raise ConfigError(f"{file} holds no questions", path=str(file))
    return tuple(questions.values())


def read_records(file: Path, needs: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the records of *file*, each with its place in words.

    They are the rows of a table (see `read_table`, also for *needs*), the objects on the lines of a
    JSON file, or those in its list.
    """
    if file.suffix.lower() in TABLES:
        yield from read_table(file, needs)
        return
    lines = list(read_lines(file, _ADVICE))
    if not (lines and lines[0][1].lstrip().startswith("[")):
        for number, text in lines:
            with name_line_in_errors(file, number):
                record = parse_object(text)
            yield f"{file} line {number}", record
        return
    with name_line_in_errors(file, 1):
        try:
            whole = json.loads("\n".join(text for _, text in lines))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    for number, record in enumerate(whole, 1):
        yield f"{file} question {number}", record


def build_asked(record: Any, number: str) -> Question:
    """Return the question of a *record*, called by its *number* if it has no id; raises `ValueError`."""
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    text = next((record[name] for name in QUESTION_NAMES if name in record), None)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {type(metadata).__name__}')
    reference = next(
        (record[name] for name in _REFERENCE if isinstance(record.get(name), str)), None
    )
    if reference is not None:
        metadata = {**metadata, "answer": reference}
    id_ = record.get("_id", record.get("id"))
    return _build_question(
        {"_id": number if id_ is None else str(id_), "text": text, "metadata": dict(metadata)}
    )


def _update_hash(found: hashlib._Hash, *parts: Any) -> None:
    # A line each: no content can stand for two of them, as JSON escapes line breaks.
    found.update(json.dumps(parts, sort_keys=True, default=repr).encode() + b"\n")


def _read_records(file: Path, build: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Return what *build* makes of each JSON object in *file*, which has an ``_id`` that no other has."""
    built: dict[str, T] = {}
    for number, text in read_lines(file, _ADVICE):
        with name_line_in_errors(file, number):
            record = _parse_record(text)
            if record["_id"] in built:
                raise ValueError(f"the id {record['_id']!r} occurs a second time")
            built[record["_id"]] = build(record)
    return tuple(built.values())


def _parse_record(text: str) -> dict[str, Any]:
    record = parse_object(text)
    id_ = record.get("_id")
    # Ids are often written as numbers, and are taken as such.
    record["_id"] = (
        str(id_) if isinstance(id_, int) and not isinstance(id_, bool) else _get_text(record, "_id")
    )
    if not record["_id"]:
        raise ValueError('no "_id"')
    record["metadata"] = record.get("metadata") or {}
    if not isinstance(record["metadata"], dict):
        raise ValueError(f'"metadata" must be an object, not {type(record["metadata"]).__name__}')
    return record


def _get_text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if value is None:
        raise ValueError(f'no "{key}"')
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be text, not {type(value).__name__}')
    return value


def _build_passage(record: dict[str, Any]) -> Passage:
    title = "" if record.get("title") is None else _get_text(record, "title")
    text, metadata = _get_text(record, "text"), record["metadata"]
    if title:
        return Passage(record["_id"], f"{title}\n{text}", {**metadata, "title": title})
    return Passage(record["_id"], text, metadata)


def _build_question(record: dict[str, Any]) -> Question:
    metadata = record["metadata"]
    try:
        turns = [(turn["role"], turn["content"]) for turn in metadata.pop("history", None) or ()]
    except (TypeError, KeyError):
        raise ValueError('"history" must be a list of {"role": ..., "content": ...}') from None
    if not all(isinstance(part, str) for turn in turns for part in turn):
        raise ValueError('"history" must have text as role and content')
    history = tuple(Message(role, content) for role, content in turns)
    return Question(record["_id"], _get_text(record, "text"), history, metadata)


def load_judged_folder(root: Path, split: str) -> Dataset:
    """Load the questions and judgements of the data set in *root* without its passages, which may be missing."""
    questions = _read_records(root / "queries.jsonl", _build_question)
    qrels = _read_qrels(root, split, {question.id for question in questions}, None)
    return Dataset(
        root.resolve().name, (), tuple(one for one in questions if one.id in qrels), qrels
    )


def _read_qrels(
    root: Path, split: str, questions: set[str], passages: set[str] | None
) -> dict[str, dict[str, int]]:
    """Return the judgements of all files, or of the one of *split*.

    Without *passages* every passage may be judged.
    """
    folder = root / "qrels"
    files = [folder / f"{split}.tsv"] if split else sorted(folder.glob("*.tsv"))
    if not files:
        raise ConfigError(f"{folder} must hold a .tsv file with judgements", path=str(folder))
    qrels: dict[str, dict[str, int]] = {}
    for file in files:
        for number, text in read_lines(file, _ADVICE):
            columns = [column.strip() for column in text.split("\t")]
            if number == 1 and columns[-1][:1].isalpha():
                continue
            with name_line_in_errors(file, number):
                question, passage, grade = _parse_judgement(columns)
                for id_, known, name in (
                    (question, questions, "queries"),
                    (passage, passages, "corpus"),
                ):
                    if known is not None and id_ not in known:
                        raise ValueError(f"judges {id_!r}, which is not in {name}.jsonl")
                if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
                    raise ValueError(
                        f"judges {passage!r} for {question!r} a second time, with another grade"
                    )
    return qrels


def _parse_judgement(columns: Sequence[str]) -> tuple[str, str, int]:
    is_whole = len(columns) in (3, 4) and _GRADE.fullmatch(columns[-1])
    if not is_whole or int(columns[-1]) > HIGHEST_GRADE:
        raise ValueError(
            "is not a question's id, a passage's id and a whole number of at most"
            f" {HIGHEST_GRADE:,}, separated by tabs"
        )
    # Four columns are the older layout of TREC, whose second says nothing.
    return columns[0], columns[-2], int(columns[-1])
