"""A judged collection in the layout of BEIR: passages, questions and which passage answers which question.

Source: Thakur et al. 2021 (BEIR).
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Passage
from qtmiddleware.runtime.files import open_document
from qtmiddleware.types import Message

Qrels = Mapping[str, Mapping[str, int]]
"""The judgements: for each question's id, the grade of each judged passage's id; above 0 is relevant."""
MOST_BYTES: Final = 1 << 24
"""A line that is longer is no passage and no question."""
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

    def to_record(self) -> dict[str, Any]:
        """Return the question as a line of ``queries.jsonl`` has it."""
        history = [{"role": turn.role, "content": turn.content} for turn in self.history]
        return {"_id": self.id, "text": self.text, "metadata": {**self.metadata, "history": history}}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Passages, the questions that are judged, and the judgements (*qrels*).

    A passage's text is what is indexed: its title, a line break and its text, or its text alone where it has no title.
    The title stands in its metadata too.
    """

    name: str
    passages: tuple[Passage, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path, *, split: str = "") -> Dataset:
        """Load the data set in *folder*: ``corpus.jsonl``, ``queries.jsonl`` and the ``.tsv`` files in ``qrels/``.

        *split* names one of those files (``test``); by default all are read. The files' own header lines are optional.
        Questions without a judgement are left out. Raises `ConfigError` naming file and line if something is missing,
        unreadable, there twice, judged but not there or judged in two ways.
        """
        root = Path(folder).expanduser()
        passages = tuple(_passages(root / "corpus.jsonl"))
        questions = tuple(_questions(root / "queries.jsonl"))
        qrels = _qrels(root, split, {question.id for question in questions}, {passage.id for passage in passages})
        return cls(root.resolve().name, passages, tuple(one for one in questions if one.id in qrels), qrels)

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
        return Dataset(self.name, self.passages, kept, {question.id: self.qrels[question.id] for question in kept})

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


def _update_hash(found: hashlib._Hash, *parts: Any) -> None:
    # A line each: no content can stand for two of them, as JSON escapes line breaks.
    found.update(json.dumps(parts, sort_keys=True, default=repr).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class _Line:
    """Where something was read, for errors that can be found."""

    file: Path
    number: int

    def refuse(self, what: str, allowed: str = "") -> NoReturn:
        where = f"{self.file}:{self.number}"
        # What is being handled may hold the whole line.
        raise ConfigError(f"{self.file} line {self.number}: {what}", path=where, allowed=allowed) from None


def _passages(file: Path) -> Iterator[Passage]:
    for line, record in _records(file):
        title, text = _text(line, record, "title", optional=True), _text(line, record, "text")
        metadata = _mapping(line, record)
        if title:
            metadata = {**metadata, "title": title}
        indexed = f"{title}\n{text}" if title else text
        yield Passage(record["_id"], indexed, metadata)


def _questions(file: Path) -> Iterator[Question]:
    for line, record in _records(file):
        metadata = dict(_mapping(line, record))
        history = _history(line, metadata.pop("history", None))
        yield Question(record["_id"], _text(line, record, "text"), history, metadata)


def _history(line: _Line, found: Any) -> tuple[Message, ...]:
    """Return the conversation before a question, which its metadata hold."""
    try:
        turns = [(turn["role"], turn["content"]) for turn in found or ()]
    except (TypeError, KeyError):
        line.refuse('"history" is no list of {"role": ..., "content": ...}')
    if not all(isinstance(part, str) for turn in turns for part in turn):
        line.refuse('"history" holds a role or content that is no text')
    return tuple(Message(role, content) for role, content in turns)


def _lines(path: Path) -> Iterator[tuple[_Line, str]]:
    """Yield the lines of the file at *path* that hold something, numbered from 1."""
    try:
        with open_document(path, follow_link=True) as file:
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), 1):
                line = _Line(path, number)
                if len(raw) > MOST_BYTES:
                    line.refuse(f"is longer than {MOST_BYTES:,} bytes")
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                except UnicodeDecodeError:
                    line.refuse("is not UTF-8")
                if text.strip():
                    yield line, text
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; a data set is a folder with corpus.jsonl, queries.jsonl and "
            "qrels/*.tsv",
            path=str(path),
        ) from error


def _records(file: Path) -> Iterator[tuple[_Line, dict[str, Any]]]:
    """Yield the JSON objects of *file*, each with an ``_id`` that no other has."""
    seen: set[str] = set()
    for line, text in _lines(file):
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            line.refuse(f"is not JSON ({getattr(error, 'msg', 'unreadable')})")
        if not isinstance(record, dict):
            line.refuse("is no JSON object")
        record["_id"] = _text(line, record, "_id")
        if record["_id"] in seen:
            line.refuse(f"the id {record['_id']!r} stands there a second time")
        seen.add(record["_id"])
        yield line, record


def _text(line: _Line, record: Mapping[str, Any], key: str, *, optional: bool = False) -> str:
    """Return the text under *key*; ids are often written as numbers, and are taken as such."""
    value = record.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and key == "_id":
        return str(value)
    if value is None and optional:
        return ""
    if value is None or (key == "_id" and value == ""):
        line.refuse(f'no "{key}"')
    if not isinstance(value, str):
        line.refuse(f'"{key}" is no text but {type(value).__name__}', "text")
    return value


def _mapping(line: _Line, record: Mapping[str, Any]) -> Mapping[str, Any]:
    found = record.get("metadata") or {}
    if not isinstance(found, dict):
        line.refuse(f'"metadata" is no object but {type(found).__name__}', "an object")
    return found


def _qrels(root: Path, split: str, questions: set[str], passages: set[str]) -> dict[str, dict[str, int]]:
    """Return the judgements of all files, or of the one of *split*."""
    folder = root / "qrels"
    files = [folder / f"{split}.tsv"] if split else sorted(folder.glob("*.tsv"))
    if not files:
        raise ConfigError(f"{folder} holds no .tsv file with judgements", path=str(folder))
    qrels: dict[str, dict[str, int]] = {}
    for file in files:
        for line, text in _lines(file):
            columns = [column.strip() for column in text.split("\t")]
            if line.number == 1 and columns[-1][:1].isalpha():
                continue
            if len(columns) not in (3, 4) or not _is_grade(columns[-1]):
                line.refuse(
                    "is not a question's id, a passage's id and a whole number of at most "
                    f"{HIGHEST_GRADE:,}, separated by tabs"
                )
            # Four columns are the older layout of TREC, whose second says nothing.
            question, passage = columns[0], columns[-2]
            for id_, known, name in ((question, questions, "queries"), (passage, passages, "corpus")):
                if id_ not in known:
                    line.refuse(f"judges {id_!r}, which is not in {name}.jsonl")
            grade = int(columns[-1])
            if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
                line.refuse(f"judges {passage!r} for {question!r} a second time, and not as before")
    return qrels


def _is_grade(text: str) -> bool:
    return bool(_GRADE.fullmatch(text)) and int(text) <= HIGHEST_GRADE
