"""Load questions, with their answers and judgements, from the files that people have.

A table (``.csv``, ``.tsv``) starts with a line of column names. A JSON file is a list of objects,
one object per line, or an object that contains the list. The names of columns and keys are:

- ``question`` (or ``query``, ``text``, ``user_input``, ``input``): the question.
- ``ids`` (or ``relevant``, ``passage_id`` and similar): the ids of the right passages, as a list or
  separated by commas, or an object of grades by id.
- ``relevance`` (or ``grade``, ``score``, ``label``): the grade of the row's passages: a whole
  number, or yes or no. 0 means not relevant. Default: 1.
- ``reference_contexts`` (or ``context``): the texts of the right passages, instead of their ids.
- ``answer`` (or ``ideal_answer``, ``reference``, ``ground_truth``, ``expected_output``): the ideal
  answer.
- ``_id`` (or ``question_id``, ``query_id``): the question's own id. Default: its number.
- ``history``: the messages before the question. ``date``: the day on which it was asked.

Test sets of ragas, DeepEval and LlamaIndex can be read as they are. The folder of a data set in
BEIR's layout has ``queries.jsonl``, ``qrels/*.tsv`` and, if the passages are needed,
``corpus.jsonl``.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.files import find_separator, open_regular_file
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message

# The judgements: grades by question id and passage id. A grade above 0 means relevant.
Qrels = Mapping[str, Mapping[str, int]]
# The last name is that of the query log.
QUESTION_NAMES: Final = ("question", "query", "text", "user_input", "input", "queries")
TABLES: Final = (".csv", ".tsv")
_OWN_ID_NAMES: Final = ("_id", "question_id", "query_id", "qid")
_IDS_NAMES: Final = (
    *("ids", "relevant", "relevant_ids", "expected_ids", "reference_context_ids"),
    *("passage_ids", "doc_ids", "document_ids", "chunk_ids"),
    *("passage_id", "doc_id", "document_id", "chunk_id", "corpus_id"),
)
_GRADE_NAMES: Final = ("relevance", "grade", "score", "label")
_TEXTS_NAMES: Final = ("reference_contexts", "context", "ground_truth_context")
_ANSWER_NAMES: Final = (
    *("ideal_answer", "reference_answer", "reference", "answer", "ground_truth"),
    *("expected_output", "expected_answer"),
)
_GRADE_WORDS: Final = {
    **dict.fromkeys(("yes", "y", "true", "relevant"), 1),
    **dict.fromkeys(("no", "n", "false", "irrelevant", "not relevant"), 0),
}
_BETWEEN_IDS: Final = re.compile(r"[,;|\r\n]")
_FOLDER: Final = "; a data set is a folder with corpus.jsonl, queries.jsonl and qrels/*.tsv"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to measure.

    Attributes:
        id: The question's id, unique in its data set.
        history: The messages before the question, oldest first.
        metadata: Other facts, such as the ideal ``answer``.
        relevant_texts: The texts of the right passages, by the ids that the judgements give them.
            A passage with such a text counts as the judged one, whatever its own id is.
    """

    id: str
    text: str = field(repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    relevant_texts: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def reference(self) -> str:
        """The ideal answer in the metadata; ``""`` if there is none."""
        answer = self.metadata.get("answer")
        return answer if isinstance(answer, str) and answer.strip() else ""

    def to_record(self) -> dict[str, Any]:
        """Return the question as a line of ``queries.jsonl``."""
        history = [{"role": turn.role, "content": turn.content} for turn in self.history]
        return {
            "_id": self.id,
            "text": self.text,
            "metadata": {**self.metadata, "history": history},
            **({"reference_contexts": self.relevant_texts} if self.relevant_texts else {}),
        }


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions with their judgements and, if they were loaded, all passages.

    Attributes:
        name: The name of the file or folder.
        passages: The passages; empty if they are in your index.
        qrels: The grades, by question id and passage id.
    """

    name: str
    passages: tuple[Passage, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Dataset:
        """Load the passages, the judged questions and the judgements of a data set's folder.

        Raises `ConfigError` with the file and line of an error.
        """
        root = Path(folder).expanduser()
        if root.is_file():
            raise ConfigError(
                f"{root} is a file{_FOLDER}. To measure your function with the file, add"
                " --function module:name. Questions with ideal answers need no ids:"
                f" qtm compare --questions {root}",
                path=str(root),
            )
        passages: dict[str, Passage] = {}
        for place, record in read_records(root / "corpus.jsonl", _FOLDER):
            with name_place_in_errors(root / "corpus.jsonl", place):
                passage = _parse_passage(record)
                if passage.id in passages:
                    raise ValueError(f"the id {passage.id!r} occurs a second time")
            passages[passage.id] = passage
        data = _load_folder(root, passages, needs_judgements=True)
        return replace(data, passages=tuple(passages.values())).only(data.qrels)

    def only(self, ids: Collection[str]) -> Dataset:
        """Return the data set with only the questions in *ids*, and all passages."""
        questions = tuple(question for question in self.questions if question.id in ids)
        qrels = {id_: grades for id_, grades in self.qrels.items() if id_ in ids}
        return replace(self, questions=questions, qrels=qrels)

    def sampled(self, count: int, *, seed: int = 0) -> Dataset:
        """Return the data set with at most *count* questions, drawn with *seed*."""
        ids = [question.id for question in self.questions]
        return self.only(set(random.Random(seed).sample(ids, min(count, len(ids)))))

    @property
    def fingerprints(self) -> dict[str, str]:
        """The hashes of the questions, the judgements and the passages, whatever their order.

        The hash of the passages is empty if there are none.
        """
        passages = [(row.id, row.text, row.metadata) for row in self.passages]
        return {
            "questions": _hash(question.to_record() for question in self.questions),
            "judgements": _hash(self.qrels.items()),
            "passages": _hash(passages) if passages else "",
        }


def _hash(rows: Iterable[Any]) -> str:
    lines = sorted(json.dumps(row, sort_keys=True, default=repr) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def load_questions(path: str | Path) -> Dataset:
    """Load questions with the answers and judgements that the file or folder at *path* has.

    The module's docstring has the formats. Passages are not loaded.

    Raises:
        ConfigError: A file cannot be read, or a record has no question. The error names the line.
    """
    return _load(path, needs_judgements=False)


def load_judged(path: str | Path) -> Dataset:
    """Load judged questions for your own index, like `load_questions`.

    Each question must have the ids or texts of its right passages. If a table has a column ``id``
    and no other column of passages, ``id`` is the id of a passage.

    Raises:
        ConfigError: As for `load_questions`, and if a question has no right passage.
    """
    return _load(path, needs_judgements=True)


def _load(path: str | Path, *, needs_judgements: bool) -> Dataset:
    root = Path(path).expanduser()
    if root.is_dir():
        data = _load_folder(root, needs_judgements=needs_judgements)
        return data.only(data.qrels) if needs_judgements else data
    builder = _Builder(needs_judgements=needs_judgements)
    for place, record in _read_questions(root):
        with name_place_in_errors(root, place):
            builder.add(record)
    if not builder.questions:
        kind = "questions with the ids of their passages" if needs_judgements else "questions"
        raise ConfigError(f"{root} must hold {kind}; it holds none", path=str(root))
    return builder.build(root.stem)


def build_dataset(queries: Mapping[str, str] | Iterable[Question], qrels: Qrels) -> Dataset:
    """Return the judged ones of *queries* as a data set; grades may be written as in files.

    Raises `ConfigError` if an id or a grade is not valid.
    """
    if isinstance(queries, Mapping):
        queries = [Question(*entry) for entry in queries.items()]
    questions: list[Any] = list(queries)
    if not all(isinstance(question, Question) for question in questions):
        raise ConfigError("queries must be texts by id, or Questions", path="queries")
    question_ids = {question.id for question in questions}
    if len(question_ids) < len(questions):
        raise ConfigError("two of the queries have the same id", path="queries")
    if unknown := [id_ for id_ in qrels if id_ not in question_ids]:
        raise ConfigError(
            f"{len(unknown)} judged questions are not among the queries, the first is"
            f" {unknown[0]!r}",
            path="qrels",
        )
    parsed: dict[str, dict[str, int]] = {}
    for id_, grades in qrels.items():
        if not isinstance(grades, Mapping):
            raise ConfigError(
                f"the judgements of {id_!r} must be a mapping of passage ids to whole numbers, such"
                " as {'passage-1': 1}",
                path="qrels",
            )
        parsed[id_] = {}
        for passage_id, grade in grades.items():
            with name_place_in_errors(Path("qrels"), f"question {id_!r}, passage {passage_id!r}"):
                parsed[id_][str(passage_id)] = _parse_grade(str(grade))
    return Dataset("live function", (), tuple(questions), parsed).only(parsed)


class _Builder:
    def __init__(self, *, needs_judgements: bool = False) -> None:
        self.questions: dict[str, Question] = {}
        self.qrels: dict[str, dict[str, int]] = {}
        self._needs_judgements = needs_judgements
        self._by_text: dict[str, str] = {}

    def build(self, name: str) -> Dataset:
        return Dataset(name, (), tuple(self.questions.values()), self.qrels)

    def add(self, record: Any) -> None:
        fields = _read_fields(record)
        text = _find(fields, QUESTION_NAMES)
        if isinstance(text, list):
            text = next(iter(text), None)
        if not isinstance(text, str):
            raise ValueError(
                f"must have a question, under one of {', '.join(QUESTION_NAMES)}, not"
                f" {', '.join(fields)[:200] or 'nothing'}"
            )
        # White space around a question is not part of what a user would ask.
        text = text.strip()
        grades, texts = self._parse_judgements(fields)
        if not grades and self._needs_judgements:
            raise ValueError(
                'has no passage id under "id" or "ids". Fill it in, or remove the question'
            )
        question_id = self._choose_id(text, fields, has_ids=bool(grades))
        history, metadata = _parse_context(record, fields)
        question = Question(question_id, text, history, metadata, texts)
        known = self.questions.setdefault(question_id, question)
        if known.text != text:
            raise ValueError(f"the id {question_id!r} occurs a second time")
        self.questions[question_id] = replace(
            known, relevant_texts={**known.relevant_texts, **texts}
        )
        for id_, grade in grades.items():
            self.add_grade(question_id, str(id_), _parse_grade(grade))

    def _parse_judgements(self, fields: dict[str, Any]) -> tuple[dict[Any, Any], dict[str, str]]:
        texts = _parse_texts(_find(fields, _TEXTS_NAMES))
        ids = _find(fields, _IDS_NAMES)
        if isinstance(ids, dict):
            return ids, texts
        if ids is None and not texts and self._needs_judgements and "id" in fields:
            # The whole value is one id, even if it contains a comma.
            ids = [fields.pop("id")]
        ids = _parse_ids(ids)
        if ids and ids[0] not in texts:
            # The ids and the texts of the same passages, in the same order.
            texts = dict(zip(ids, texts.values(), strict=False))
        return dict.fromkeys(ids or texts, _find(fields, _GRADE_NAMES)), texts

    def add_grade(self, question_id: str, passage_id: str, grade: int) -> None:
        grades = self.qrels.setdefault(question_id, {})
        if grades.setdefault(passage_id, grade) != grade:
            raise ValueError(f"judges {passage_id!r} a second time, with another grade")

    def _choose_id(self, text: str, fields: Mapping[str, Any], *, has_ids: bool) -> str:
        own_id = _find(fields, _OWN_ID_NAMES)
        if own_id is None and "id" in fields:
            # In a table for `load_judged`, two questions may have the id of one passage.
            known = self.questions.get(str(fields["id"]))
            if known is None or known.text == text or has_ids:
                own_id = fields["id"]
        if own_id is None:
            return self._by_text.setdefault(text, str(len(self.questions) + 1))
        return str(own_id)


def _read_fields(record: Any) -> dict[str, Any]:
    """Return the values that are not blank, by the normalised names of their columns or keys."""
    if not isinstance(record, Mapping):
        raise ValueError("must be a JSON object")
    fields: dict[str, Any] = {}
    for written, value in record.items():
        name = re.sub(r"[\s-]+", "_", str(written).strip().casefold())
        if not _is_blank(value):
            fields[name] = value
        elif name in _GRADE_NAMES:
            raise ValueError("has no grade. Fill it in, or remove the row")
    return fields


def _find(fields: Mapping[str, Any], names: Collection[str]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _read_list(value: Any) -> list[Any]:
    """Return the list that *value* is or, as text in JSON or in Python, contains."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return list(read(value.strip()))
    return value if isinstance(value, list) else [] if value is None else [value]


def _parse_ids(value: Any) -> list[str]:
    values = _read_list(value)
    if isinstance(value, str) and values == [value]:
        if value.lstrip().startswith("["):
            raise ValueError(
                'must have ids with commas between them, or a JSON list such as ["a", "b"]'
            )
        values = _BETWEEN_IDS.split(value)
    if not all(isinstance(id_, str | int) and not isinstance(id_, bool) for id_ in values):
        raise ValueError('must have texts or numbers as passage ids, such as ["a", "b"]')
    return list(dict.fromkeys(filter(None, (str(id_).strip() for id_ in values))))


def _parse_texts(value: Any) -> dict[str, str]:
    """Return the texts of right passages in *value*, each by an id that depends on the text."""
    if isinstance(value, dict):
        return {str(id_): str(text) for id_, text in value.items()}
    return {
        f"text {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}": text
        for text in _read_list(value)
        if isinstance(text, str) and text.strip()
    }


def _parse_grade(value: Any) -> int:
    """Return the grade in *value*; 1 if it is ``None``. Raises `ValueError` for other values."""
    text = "1" if value is None else str(value).strip().casefold()
    if text in _GRADE_WORDS:
        return _GRADE_WORDS[text]
    # The memory that ir-measures needs grows with the highest grade.
    if re.fullmatch(r"-?[0-9]{1,4}(\.0*)?", text):
        return int(float(text))
    raise ValueError(
        f"has {text[:40]!r} as a grade. A grade is a whole number of at most 9,999, or yes or no."
        " Rename the column if it holds something else"
    )


def _parse_context(
    record: Mapping[str, Any], fields: Mapping[str, Any]
) -> tuple[tuple[Message, ...], dict[str, Any]]:
    metadata = _read_metadata(record)
    history = fields.get("history", metadata.pop("history", None))
    try:
        turns = [(turn["role"], turn["content"]) for turn in _read_list(history)]
    except (TypeError, KeyError):
        turns = [(None, None)]
    if not all(isinstance(value, str) for turn in turns for value in turn):
        raise ValueError('"history" must be a list of {"role": ..., "content": ...}')
    answer, day = _find(fields, _ANSWER_NAMES), fields.get("date")
    if isinstance(answer, str):
        metadata["answer"] = answer
    if day is not None:
        metadata["date"] = str(day)
    return tuple(Message(role, content) for role, content in turns), metadata


def _read_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {type(metadata).__name__}')
    return {**metadata}


# --- folders --------------------------------------------------------------------------------------


def _load_folder(
    root: Path,
    passage_ids: Collection[str] | None = None,
    *,
    needs_judgements: bool,
) -> Dataset:
    builder, queries = _Builder(), root / "queries.jsonl"
    for place, record in read_records(queries, _FOLDER):
        with name_place_in_errors(queries, place):
            builder.add(record)
    files = sorted((root / "qrels").glob("*.tsv"))
    if needs_judgements and not files:
        folder = root / "qrels"
        raise ConfigError(f"{folder} must hold a .tsv file with judgements", path=str(folder))
    if files:
        builder.qrels = {}
    for file in files:
        for number, text in read_lines(file, _FOLDER):
            columns = [column.strip() for column in text.split("\t")]
            # A header names the last column, which holds grades everywhere else.
            if number == 1 and columns[-1][:1].isalpha():
                continue
            with name_place_in_errors(file, f"line {number}"):
                if len(columns) != 3:
                    raise ValueError(
                        "is not a question's id, a passage's id and a grade, separated by tabs"
                    )
                question_id, passage_id, grade = columns
                if question_id not in builder.questions:
                    raise ValueError(f"judges {question_id!r}, which is not in queries.jsonl")
                if passage_ids is not None and passage_id not in passage_ids:
                    raise ValueError(f"judges {passage_id!r}, which is not in corpus.jsonl")
                builder.add_grade(question_id, passage_id, _parse_grade(grade))
    return builder.build(root.resolve().name)


def _parse_passage(record: Mapping[str, Any]) -> Passage:
    id_, text, title = record.get("_id"), record.get("text"), record.get("title") or ""
    metadata = _read_metadata(record)
    if not isinstance(id_, str | int) or _is_blank(id_):
        raise ValueError('no "_id"')
    if not (isinstance(text, str) and isinstance(title, str)):
        raise ValueError('"text" must be text, and "title" too if there is one')
    if title:
        return Passage(str(id_), f"{title}\n{text}", {**metadata, "title": title})
    return Passage(str(id_), text, metadata)


# --- files ----------------------------------------------------------------------------------------


def _read_questions(file: Path) -> Iterator[tuple[str, Any]]:
    text = read_text(file)
    if file.suffix.lower() in TABLES:
        yield from _read_table(file, text)
        return
    whole: Any = None
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("["):
            with name_place_in_errors(file, f"line {getattr(error, 'lineno', 1)}"):
                parse_json_object(text)
    if isinstance(whole, dict):
        whole = _find_list(whole)
    if isinstance(whole, list):
        for number, record in enumerate(whole, 1):
            yield f"question {number}", record
    else:
        yield from read_records(file)


def _find_list(whole: dict[str, Any]) -> list[Any]:
    queries, right, corpus = map(whole.get, ("queries", "relevant_docs", "corpus"))
    if isinstance(queries, dict) and isinstance(right, dict):  # LlamaIndex
        texts = corpus if isinstance(corpus, dict) else {}
        ids = {id_: _parse_ids(right.get(id_)) for id_ in queries}
        return [
            {
                "_id": id_,
                "question": text,
                "ids": ids[id_],
                "reference_contexts": {key: texts[key] for key in ids[id_] if key in texts},
            }
            for id_, text in queries.items()
        ]
    # The only line of a file may be a question with a history.
    if whole.keys().isdisjoint(QUESTION_NAMES):
        for value in whole.values():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                return value
    return [whole]


def _read_table(file: Path, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    separator = find_separator(text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    names: list[str] = []
    while True:
        # A row may span several lines; the first one names it.
        place = f"line {rows.line_num + 1}"
        with name_place_in_errors(file, place):
            try:
                cells = [cell.strip() for cell in next(rows)]
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"cannot be read as CSV ({error}). Put a cell with quotes into quotes, and"
                    " double the quotes in it"
                ) from None
            # Spreadsheet programs may write empty cells after the last column.
            if names and any(cells[len(names) :]):
                raise ValueError(
                    f"has {len(cells)} cells, but the first line names {len(names)} columns. Put a"
                    f" cell that holds {separator!r} in quotes"
                )
        if not any(cells):
            continue
        if names:
            yield place, dict(zip(names, cells, strict=False))
        else:
            names = cells


def read_text(file: Path, advice: str = "") -> str:
    """Return the text of *file*. Raises `ConfigError` with *advice* if it cannot be read."""
    try:
        with open_regular_file(file, follow_link=True) as stream:
            content = stream.read()
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}{advice}", path=str(file)
        ) from error
    # Windows programs may begin a file with a byte order mark, and PowerShell writes UTF-16.
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{file} line {number}: is not UTF-8. Save the file as UTF-8 (in Excel, choose"
            ' "CSV UTF-8")',
            path=str(file),
        ) from None


def read_lines(path: Path, advice: str = "") -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line that is not blank.

    Raises `ConfigError` with *advice* if the file cannot be read.
    """
    for number, line in enumerate(read_text(path, advice).split("\n"), 1):
        if line.strip():
            yield number, line.strip("\r")


def read_records(path: Path, advice: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the JSON object of each line that is not blank.

    Raises `ConfigError`, with *advice* if the file cannot be read.
    """
    for number, line in read_lines(path, advice):
        place = f"line {number}"
        with name_place_in_errors(path, place):
            record = parse_json_object(line)
        yield place, record


@contextmanager
def name_place_in_errors(path: Path, place: str) -> Iterator[None]:
    """Convert a `ValueError` in the ``with`` block to a `ConfigError` that names the place."""
    try:
        yield
    except ValueError as error:
        # "from None", because the handled error may hold the whole line.
        raise ConfigError(f"{path} {place}: {error}", path=str(path)) from None


def parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*. Raises `ValueError`, which does not quote the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    return record
