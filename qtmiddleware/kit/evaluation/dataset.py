"""Load data sets in BEIR's layout: passages, questions and judgements.

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
from qtmiddleware.kit.evaluation.lines import name_line_in_errors, parse_json_object, read_lines
from qtmiddleware.kit.evaluation.tables import QUESTION_NAMES, TABLES, read_table
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message

T = TypeVar("T")

Qrels = Mapping[str, Mapping[str, int]]
"""The judgements: grades by question id and passage id. A grade above 0 means relevant."""
HIGHEST_GRADE: Final = 10_000
"""The highest grade that is allowed. The memory that ir-measures needs grows with the grade."""
_GRADE: Final = re.compile("-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the conversation before it if there is one.

    Attributes:
        id: The question's id.
        text: The question as the user asks it.
        history: The earlier messages of the conversation; empty by default.
        metadata: Other fields, such as ``answer``, the reference answer.
    """

    id: str
    text: str = field(repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def reference(self) -> str:
        """The reference answer: ``answer`` in the metadata, or an empty string."""
        answer = self.metadata.get("answer")
        return answer if isinstance(answer, str) and answer.strip() else ""

    def to_record(self) -> dict[str, Any]:
        """Return the question as a record of ``queries.jsonl``."""
        history = [{"role": turn.role, "content": turn.content} for turn in self.history]
        return {
            "_id": self.id,
            "text": self.text,
            "metadata": {**self.metadata, "history": history},
        }


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions, passages, and judgements of which passages answer which question.

    Attributes:
        name: The data set's name. A loaded data set has the name of its folder or file.
        passages: The passages; empty if they are not known. If a passage has a title, its text
            begins with the title and a line break, and its metadata has the title too.
        questions: The questions that have judgements.
        qrels: The judgements: grades by question id and passage id.
    """

    name: str
    passages: tuple[Passage, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path, *, split: str = "") -> Dataset:
        """Load a data set from *folder*: ``corpus.jsonl``, ``queries.jsonl``, ``qrels/*.tsv``.

        Questions without a judgement are left out. A header line in a ``.tsv`` file is optional.

        Args:
            folder: The folder of the data set.
            split: The name of a file in ``qrels/``, such as ``test``, to read only that file.
                Default: all files.

        Raises:
            ConfigError: A file or field is missing or unreadable, an id occurs twice, a judgement
                names an unknown id, or two judgements contradict each other. The error names the
                file and line.
        """
        root = Path(folder).expanduser()
        if root.is_file():
            raise ConfigError(
                f"{root} is a file, and a data set is a folder with corpus.jsonl, queries.jsonl and"
                " qrels/*.tsv: retrieval is measured by judgements of which passage answers which"
                " question. To measure a function of yours, a file with questions and ids is"
                " enough: add --function module:name. Questions with ideal answers need no ids:"
                f" qtm compare --questions {root} lets a model rank the answers from your index",
                path=str(root),
            )
        passages = _load_objects(root / "corpus.jsonl", _build_passage)
        questions = _load_objects(root / "queries.jsonl", _build_question)
        qrels = _read_qrels(
            root,
            split,
            {question.id for question in questions},
            {passage.id for passage in passages},
        )
        return cls(
            # Resolved, because a path such as "." has no name.
            root.resolve().name,
            passages,
            tuple(question for question in questions if question.id in qrels),
            qrels,
        )

    def first(self, count: int) -> Dataset:
        """Return the data set with only its first *count* questions and their judgements."""
        return self.only({question.id for question in self.questions[:count]})

    def sampled(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data set with only *count* of its questions, drawn at random with *seed*.

        The questions keep their order. If there are fewer than *count* questions, all of them stay.
        """
        ids = [question.id for question in self.questions]
        return self.only(set(random.Random(seed).sample(ids, min(count, len(ids)))))

    def only(self, ids: Collection[str]) -> Dataset:
        """Return the data set with only the questions in *ids*, and their judgements."""
        questions = tuple(question for question in self.questions if question.id in ids)
        return Dataset(
            self.name,
            self.passages,
            questions,
            {question.id: self.qrels[question.id] for question in questions},
        )

    @property
    def is_synthetic(self) -> bool:
        """``True`` if a model wrote any of the questions, according to their metadata."""
        return any(question.metadata.get("synthetic") is True for question in self.questions)

    @property
    def data_hash(self) -> str:
        """The sha256 of all passages, questions and judgements, in hex."""
        digest = hashlib.sha256()
        for passage in self.passages:
            _update_hash(digest, "passage", passage.id, passage.text, passage.metadata)
        for question in self.questions:
            _update_hash(digest, "question", question.to_record())
        for question_id, grades in sorted(self.qrels.items()):
            _update_hash(digest, "qrels", question_id, grades)
        return digest.hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """One sha256 each for ``questions``, ``judgements`` and ``passages``, in hex.

        The order of the questions or passages does not matter. The value for ``passages`` is an
        empty string if the passages are not known.
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
    """Load questions from a file or folder, with their reference answers if there are any.

    Args:
        path: One of four sources. If a question has no ``_id`` or ``id``, its number is its id.

            - A JSON file with a list of objects: ``{"question": ..., "ideal_answer": ...}``.
            - A file with one such JSON object per line.
            - A table (``.csv``, ``.tsv``) with the columns ``question`` and ``ideal_answer``.
            - The folder of a data set. Its ``queries.jsonl`` has the question in ``text``, and the
              reference answer as ``answer`` in the metadata.

    Raises:
        ConfigError: The file cannot be read, has no questions, or has a record that is not valid.
            The error names the record's line or number.
    """
    root = Path(path).expanduser()
    file = root / "queries.jsonl" if root.is_dir() else root
    questions: dict[str, Question] = {}
    for number, (place, record) in enumerate(read_records(file), 1):
        try:
            question = parse_question(record, str(number))
            if question.id in questions:
                raise ValueError(f"the id {question.id!r} occurs a second time")
        except ValueError as error:
            raise ConfigError(f"{place}: {error}", path=str(file)) from None
        questions[question.id] = question
    if not questions:
        raise ConfigError(f"{file} holds no questions", path=str(file))
    return tuple(questions.values())


def read_records(file: Path, needed_columns: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the location and the content of each record in *file*.

    The location is text for messages, such as ``questions.jsonl line 3``.

    Args:
        file: A table (see `read_table`), a file with one JSON object per line, or a JSON list.
        needed_columns: Names of columns. A table must have at least one of them.

    Raises:
        ConfigError: The file or a record cannot be read.
    """
    if file.suffix.lower() in TABLES:
        yield from read_table(file, needed_columns)
        return
    lines = list(read_lines(file, _ADVICE))
    if not (lines and lines[0][1].lstrip().startswith("[")):
        for number, text in lines:
            with name_line_in_errors(file, number):
                record = parse_json_object(text)
            yield f"{file} line {number}", record
        return
    # A JSON list may have any line breaks, so all lines are parsed as one text.
    with name_line_in_errors(file, 1):
        try:
            whole = json.loads("\n".join(text for _, text in lines))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    for number, record in enumerate(whole, 1):
        yield f"{file} question {number}", record


def parse_question(record: Any, default_id: str) -> Question:
    """Return the question in *record*, with *default_id* if the record has no id.

    Raises `ValueError` if the record is not an object or has no question.
    """
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
        {"_id": default_id if id_ is None else str(id_), "text": text, "metadata": dict(metadata)}
    )


def _update_hash(digest: hashlib._Hash, *values: Any) -> None:
    """Add *values* to *digest*, written as one line of JSON."""
    # JSON escapes line breaks, so the content of one call cannot look like two calls.
    digest.update(json.dumps(values, sort_keys=True, default=repr).encode() + b"\n")


def _load_objects(file: Path, build_object: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """Return one object per line of *file*: the result of *build_object* for the line's JSON.

    Raises `ConfigError` if a line is not a JSON object with a unique ``_id``.
    """
    built: dict[str, T] = {}
    for number, text in read_lines(file, _ADVICE):
        with name_line_in_errors(file, number):
            record = _parse_record(text)
            if record["_id"] in built:
                raise ValueError(f"the id {record['_id']!r} occurs a second time")
            built[record["_id"]] = build_object(record)
    return tuple(built.values())


def _parse_record(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*, with ``_id`` as text and ``metadata`` as a dict.

    Raises `ValueError` if *text* is not a JSON object, or if ``_id`` or ``metadata`` is not valid.
    """
    record = parse_json_object(text)
    id_ = record.get("_id")
    # Ids are often written as numbers; a number counts as its text.
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
    """Return the value of *key* in *record*, which must be text.

    Raises `ValueError` if *key* is missing or its value is not text.
    """
    value = record.get(key)
    if value is None:
        raise ValueError(f'no "{key}"')
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be text, not {type(value).__name__}')
    return value


def _build_passage(record: dict[str, Any]) -> Passage:
    """Return the passage in *record*, a parsed line of ``corpus.jsonl``.

    Raises `ValueError` if a field is not valid.
    """
    title = "" if record.get("title") is None else _get_text(record, "title")
    text, metadata = _get_text(record, "text"), record["metadata"]
    # Search must also find the words of the title, so the text begins with it.
    if title:
        return Passage(record["_id"], f"{title}\n{text}", {**metadata, "title": title})
    return Passage(record["_id"], text, metadata)


def _build_question(record: dict[str, Any]) -> Question:
    """Return the question in *record*, a parsed line of ``queries.jsonl``.

    Raises `ValueError` if a field is not valid.
    """
    metadata = record["metadata"]
    try:
        messages = [
            (message["role"], message["content"]) for message in metadata.pop("history", None) or ()
        ]
    except (TypeError, KeyError):
        raise ValueError('"history" must be a list of {"role": ..., "content": ...}') from None
    if not all(isinstance(value, str) for message in messages for value in message):
        raise ValueError('"history" must have text as role and content')
    history = tuple(Message(role, content) for role, content in messages)
    return Question(record["_id"], _get_text(record, "text"), history, metadata)


def load_judged_folder(dataset_folder: Path, split: str) -> Dataset:
    """Load the questions and judgements of the data set in *dataset_folder*, but no passages.

    Reads the judgements in ``qrels/<split>.tsv``, or all judgements if *split* is empty.
    """
    questions = _load_objects(dataset_folder / "queries.jsonl", _build_question)
    qrels = _read_qrels(dataset_folder, split, {question.id for question in questions}, None)
    return Dataset(
        dataset_folder.resolve().name,
        (),
        tuple(question for question in questions if question.id in qrels),
        qrels,
    )


def _read_qrels(
    dataset_folder: Path, split: str, question_ids: set[str], passage_ids: set[str] | None
) -> dict[str, dict[str, int]]:
    """Return the judgements in ``qrels/<split>.tsv``, or in all files if *split* is empty.

    The judgements are grades by question id and passage id. If *passage_ids* is ``None``, any
    passage id is allowed. Raises `ConfigError` if a judgement is not valid, names an unknown id, or
    contradicts another judgement.
    """
    folder = dataset_folder / "qrels"
    files = [folder / f"{split}.tsv"] if split else sorted(folder.glob("*.tsv"))
    if not files:
        raise ConfigError(f"{folder} must hold a .tsv file with judgements", path=str(folder))
    qrels: dict[str, dict[str, int]] = {}
    for file in files:
        for number, text in read_lines(file, _ADVICE):
            columns = [column.strip() for column in text.split("\t")]
            # A first line that does not end with a grade is a header.
            if number == 1 and columns[-1][:1].isalpha():
                continue
            with name_line_in_errors(file, number):
                question, passage, grade = _parse_judgement(columns)
                for id_, known_ids, name in (
                    (question, question_ids, "queries"),
                    (passage, passage_ids, "corpus"),
                ):
                    if known_ids is not None and id_ not in known_ids:
                        raise ValueError(f"judges {id_!r}, which is not in {name}.jsonl")
                # The same judgement may be in two files. Only different grades are an error.
                if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
                    raise ValueError(
                        f"judges {passage!r} for {question!r} a second time, with another grade"
                    )
    return qrels


def _parse_judgement(columns: Sequence[str]) -> tuple[str, str, int]:
    """Return the question id, the passage id and the grade in *columns*.

    Raises `ValueError` if *columns* do not form a judgement.
    """
    is_whole = len(columns) in (3, 4) and _GRADE.fullmatch(columns[-1])
    if not is_whole or int(columns[-1]) > HIGHEST_GRADE:
        raise ValueError(
            "is not a question's id, a passage's id and a whole number of at most"
            f" {HIGHEST_GRADE:,}, separated by tabs"
        )
    # Four columns are TREC's older layout, whose second column carries no information.
    return columns[0], columns[-2], int(columns[-1])
