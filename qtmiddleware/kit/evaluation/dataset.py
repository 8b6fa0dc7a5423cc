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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message

Qrels = Mapping[str, Mapping[str, int]]
"""The judgements: grades by question id and passage id. A grade above 0 means relevant."""
HIGHEST_GRADE: Final = 10_000
"""The highest grade that is allowed. The memory that ir-measures needs grows with the grade."""
QUESTION_NAMES: Final = ("question", "query", "text", "user_input", "input")
"""The names of a key or column that can contain the question."""
TABLES: Final = (".csv", ".tsv")
"""The file name extensions of tables."""
_OWN_ID_NAMES: Final = ("_id", "question_id", "query_id", "qid")
_IDS_NAMES: Final = (
    *("ids", "relevant", "relevant_ids", "relevant_docs", "expected_ids"),
    "reference_context_ids",
    *("passage_ids", "doc_ids", "document_ids", "chunk_ids"),
    *("passage_id", "doc_id", "document_id", "chunk_id", "corpus_id"),
)
_GRADE_NAMES: Final = dict.fromkeys(("relevance", "grade", "score", "label")).keys()
_TEXTS_NAMES: Final = ("reference_contexts", "context", "ground_truth_context")
_ANSWER_NAMES: Final = (
    *("ideal_answer", "reference_answer", "reference", "answer", "ground_truth"),
    *("expected_output", "expected_answer"),
)
_GRADE_WORDS: Final = {
    **dict.fromkeys(("yes", "y", "true", "relevant"), 1),
    **dict.fromkeys(("no", "n", "false", "irrelevant", "not relevant"), 0),
}
_SEPARATORS: Final = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
_BETWEEN_IDS: Final = re.compile(r"[,;|\r\n]")
_MOST_BYTES: Final = 1 << 28
_FOLDER: Final = "; a data set is a folder with corpus.jsonl, queries.jsonl and qrels/*.tsv"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to measure.

    Attributes:
        id: The question's id, unique in its data set.
        text: The question, as a user asks it.
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
        record = {
            "_id": self.id,
            "text": self.text,
            "metadata": {**self.metadata, "history": history},
        }
        texts = {"reference_contexts": dict(self.relevant_texts)} if self.relevant_texts else {}
        return {**record, **texts}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Questions with their judgements and, if they were loaded, all passages.

    Attributes:
        name: The name of the file or folder.
        passages: The passages; empty if they are in your index.
        questions: The questions.
        qrels: The grades, by question id and passage id.
    """

    name: str
    passages: tuple[Passage, ...] = field(repr=False)
    questions: tuple[Question, ...] = field(repr=False)
    qrels: Qrels = field(repr=False)

    @classmethod
    def load(cls, folder: str | Path) -> Dataset:
        """Load the passages, the judged questions and the judgements of a data set's folder.

        To read one file of judgements only, name it instead of the folder, such as
        ``my-set/qrels/test.tsv``. Raises `ConfigError` with the file and line of an error.
        """
        root, files = _find_judgements(folder)
        if root.is_file():
            raise ConfigError(
                f"{root} is a file, and a data set is a folder with corpus.jsonl, queries.jsonl"
                " and qrels/*.tsv: retrieval is measured by judgements of which passage answers"
                " which question. To measure a function of yours, a file with questions and ids"
                " is enough: add --function module:name. Questions with ideal answers need no ids:"
                f" qtm compare --questions {root} lets a model rank the answers from your index",
                path=str(root),
            )
        passages: dict[str, Passage] = {}
        for number, text in read_lines(root / "corpus.jsonl", _FOLDER):
            with name_line_in_errors(root / "corpus.jsonl", number):
                passage = _parse_passage(parse_json_object(text))
                if passage.id in passages:
                    raise ValueError(f"the id {passage.id!r} occurs a second time")
            passages[passage.id] = passage
        data = _load_folder(root, files, passages.keys())
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
    def is_synthetic(self) -> bool:
        """Whether a language model wrote questions of the data set."""
        return any(question.metadata.get("synthetic") is True for question in self.questions)

    @property
    def data_hash(self) -> str:
        """The sha256 of all questions, judgements and passages, in hex."""
        digest = hashlib.sha256()
        rows: list[tuple[Any, ...]] = [
            ("passage", passage.id, passage.text, passage.metadata) for passage in self.passages
        ]
        rows += [("question", question.to_record()) for question in self.questions]
        rows += [("qrels", *judged) for judged in sorted(self.qrels.items())]
        for row in rows:
            digest.update(json.dumps(row, sort_keys=True, default=repr).encode() + b"\n")
        return digest.hexdigest()

    @property
    def fingerprints(self) -> dict[str, str]:
        """The hashes of the questions, the judgements and the passages, whatever their order.

        The hash of the passages is empty if there are none.
        """
        questions = tuple(sorted(self.questions, key=attrgetter("id")))
        passages = tuple(sorted(self.passages, key=attrgetter("id")))
        empty = Dataset(self.name, (), (), {})
        return {
            "questions": replace(empty, questions=questions).data_hash,
            "judgements": replace(empty, qrels=self.qrels).data_hash,
            "passages": replace(empty, passages=passages).data_hash if passages else "",
        }


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
    root, files = _find_judgements(path)
    if root.is_dir():
        data = _load_folder(root, files if needs_judgements or files else None)
        return data.only(data.qrels) if needs_judgements else data
    builder = _Builder(root, needs_judgements=needs_judgements)
    for place, record in _read_records(root):
        builder.add(place, record)
    if not builder.questions:
        kind = "questions with the ids of their passages" if needs_judgements else "questions"
        raise ConfigError(f"{root} must hold {kind}; it holds none", path=str(root))
    return Dataset(root.stem, (), tuple(builder.questions.values()), builder.qrels)


class _Builder:
    """Collects questions and judgements, and merges the rows of one question."""

    def __init__(self, file: Path, *, needs_judgements: bool = False) -> None:
        self.questions: dict[str, Question] = {}
        self.qrels: dict[str, dict[str, int]] = {}
        self._file = file
        self._needs_judgements = needs_judgements
        self._by_text: dict[str, str] = {}

    def add(self, place: str, record: Any) -> None:
        try:
            question, grades = self._parse(record)
            known = self.questions.setdefault(question.id, question)
            if known.text != question.text:
                raise ValueError(f"the id {question.id!r} occurs a second time")
            texts = {**known.relevant_texts, **question.relevant_texts}
            self.questions[question.id] = replace(known, relevant_texts=texts)
            if grades:
                _merge_grades(self.qrels.setdefault(question.id, {}), grades)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}", path=str(self._file)) from None

    def _parse(self, record: Any) -> tuple[Question, dict[str, int]]:
        if not isinstance(record, Mapping):
            raise ValueError("must be a JSON object")
        by_name = {
            re.sub(r"[\s-]+", "_", str(name).strip().casefold()): value
            for name, value in record.items()
        }
        fields = {name: value for name, value in by_name.items() if not _is_blank(value)}
        text = _find(fields, QUESTION_NAMES)
        if not isinstance(text, str):
            raise ValueError(f"must have a question, under one of {', '.join(QUESTION_NAMES)}")
        # White space around a question is not part of what a user would ask.
        text = text.strip()
        texts = _parse_texts(_find(fields, _TEXTS_NAMES))
        own_id, ids = _find(fields, _OWN_ID_NAMES), _find(fields, _IDS_NAMES)
        if ids is None and not texts and self._needs_judgements:
            # The whole value is one id, even if it contains a comma.
            ids = _as_list(fields.pop("id", None))
        if own_id is None and "id" in fields:
            # In a table for `load_judged`, two questions may have the id of one passage.
            known = self.questions.get(str(fields["id"]))
            own_id = fields["id"] if known is None or known.text == text or ids else None
        if own_id is None:
            own_id = self._by_text.setdefault(text, str(len(self.questions) + 1))
        passages: Any = ids
        if not isinstance(ids, dict):
            listed = _parse_ids(ids)
            if listed and listed[0] not in texts:
                # The ids and the texts of the same passages, in the same order.
                texts = dict(zip(listed, texts.values(), strict=False))
            passages = listed or list(texts)
        if not passages and self._needs_judgements:
            raise ValueError(
                'has no passage id under "id" or "ids". Fill it in, or remove the question'
            )
        question = Question(
            str(own_id), text, _parse_history(record), _parse_metadata(record, fields), texts
        )
        if passages and by_name.keys() & _GRADE_NAMES and not fields.keys() & _GRADE_NAMES:
            raise ValueError("has no grade. Fill it in, or remove the row")
        return question, _parse_grades(passages, fields)


def _find(fields: Mapping[str, Any], names: Collection[str]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_list(value: Any) -> list[Any] | None:
    """Return the list in *value*, which a cell contains as JSON or as Python prints it."""
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return value if isinstance(value, list) else None
    for read in (json.loads, ast.literal_eval):
        try:
            parsed = read(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return parsed if isinstance(parsed, list) else None
    return None


def _parse_ids(value: Any) -> list[str]:
    """Return the ids in *value*: a list, a list in a cell, or text with separators."""
    values = _read_list(value)
    if values is None and isinstance(value, str):
        if value.lstrip().startswith("["):
            raise ValueError(
                'must have ids with commas between them, or a JSON list such as ["a", "b"]'
            )
        values = _BETWEEN_IDS.split(value)
    values = _as_list(value) if values is None else values
    if not all(isinstance(id_, str | int) and not isinstance(id_, bool) for id_ in values):
        raise ValueError('must have texts or numbers as passage ids, such as ["a", "b"]')
    return list(dict.fromkeys(id_ for id_ in (str(value).strip() for value in values) if id_))


def _parse_texts(value: Any) -> dict[str, str]:
    """Return the texts of right passages in *value*, each by an id that depends on the text."""
    if isinstance(value, dict):
        return {str(id_): str(text) for id_, text in value.items()}
    texts = _read_list(value) or _as_list(value)
    return {
        f"text {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}": text
        for text in texts
        if isinstance(text, str) and text.strip()
    }


def _parse_grades(
    passages: list[str] | dict[str, Any], fields: Mapping[str, Any]
) -> dict[str, int]:
    if isinstance(passages, dict):
        return {str(id_): parse_grade(grade) for id_, grade in passages.items()}
    value = _find(fields, _GRADE_NAMES)
    if value is None or not passages:
        return dict.fromkeys(passages, 1)
    grades = _read_list(value) or [value]
    if len(passages) > 1 and isinstance(value, str) and len(grades) == 1:
        grades = _BETWEEN_IDS.split(value)
    if len(grades) == 1:
        return dict.fromkeys(passages, parse_grade(grades[0]))
    if len(grades) != len(passages):
        raise ValueError(f"has {len(grades)} grades for {len(passages)} passages")
    return dict(zip(passages, map(parse_grade, grades), strict=True))


def parse_grade(value: Any) -> int:
    """Return the grade in *value*: a whole number, or yes or no. Raises `ValueError` otherwise."""
    text = str(value).strip().casefold()
    if text in _GRADE_WORDS:
        return _GRADE_WORDS[text]
    if re.fullmatch(r"-?[0-9]{1,9}(\.0*)?", text) and int(float(text)) <= HIGHEST_GRADE:
        return int(float(text))
    raise ValueError(
        f"has {text[:40]!r} as a grade. A grade is a whole number of at most {HIGHEST_GRADE:,}, or"
        " yes or no; 0 and no mean not relevant. Rename the column if it holds something else"
    )


def _merge_grades(known: dict[str, int], grades: Mapping[str, int]) -> None:
    for passage, grade in grades.items():
        if known.setdefault(passage, grade) != grade:
            raise ValueError(f"judges {passage!r} a second time, with another grade")


def _parse_metadata(record: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {type(metadata).__name__}')
    answer, day = _find(fields, _ANSWER_NAMES), fields.get("date")
    return {
        **{name: value for name, value in metadata.items() if name != "history"},
        **({"answer": answer} if isinstance(answer, str) else {}),
        **({} if day is None else {"date": str(day)}),
    }


def _parse_history(record: Mapping[str, Any]) -> tuple[Message, ...]:
    metadata = record.get("metadata")
    history = record.get("history") or (
        metadata.get("history") if isinstance(metadata, dict) else None
    )
    try:
        turns = [(turn["role"], turn["content"]) for turn in history or ()]
    except (TypeError, KeyError):
        turns = [(None, None)]
    if not all(isinstance(value, str) for turn in turns for value in turn):
        raise ValueError('"history" must be a list of {"role": ..., "content": ...}')
    return tuple(Message(role, content) for role, content in turns)


# --- folders --------------------------------------------------------------------------------------


def _find_judgements(path: str | Path) -> tuple[Path, list[Path]]:
    """Return the file or folder that *path* names, and the folder's files of judgements."""
    root = Path(path).expanduser()
    if root.parent.name == "qrels" and root.suffix == ".tsv":
        return root.parent.parent, [root]
    return root, sorted((root / "qrels").glob("*.tsv"))


def _load_folder(
    root: Path, files: list[Path] | None, passage_ids: Collection[str] | None = None
) -> Dataset:
    """Return the questions of a data set's folder, and the judgements in *files*.

    If *files* is ``None``, there are no judgements, and all questions are returned.
    """
    builder = _Builder(root / "queries.jsonl")
    for number, text in read_lines(root / "queries.jsonl", _FOLDER):
        with name_line_in_errors(root / "queries.jsonl", number):
            record = parse_json_object(text)
            if str(record.get("_id")) in builder.questions:
                raise ValueError(f"the id {record['_id']!r} occurs a second time")
        builder.add(f"{root / 'queries.jsonl'} line {number}", record)
    questions = builder.questions
    data = Dataset(root.resolve().name, (), tuple(questions.values()), builder.qrels)
    if files is None:
        return data
    if not files:
        folder = root / "qrels"
        raise ConfigError(f"{folder} must hold a .tsv file with judgements", path=str(folder))
    qrels: dict[str, dict[str, int]] = {}
    for file in files:
        for number, text in read_lines(file, _FOLDER):
            columns = [column.strip() for column in text.split("\t" if "\t" in text else None)]
            # A header names the last column, which holds grades everywhere else.
            if number == 1 and columns[-1][:1].isalpha():
                continue
            with name_line_in_errors(file, number):
                # Four columns are TREC's older layout, whose second column has no information.
                if len(columns) not in (3, 4):
                    raise ValueError(
                        "is not a question's id, a passage's id and a grade, separated by tabs"
                    )
                question_id, passage_id = columns[0], columns[-2]
                for id_, known, name in (
                    (question_id, questions, "queries"),
                    (passage_id, passage_ids, "corpus"),
                ):
                    if known is not None and id_ not in known:
                        raise ValueError(f"judges {id_!r}, which is not in {name}.jsonl")
                grades = {passage_id: parse_grade(columns[-1])}
                _merge_grades(qrels.setdefault(question_id, {}), grades)
    return replace(data, qrels=qrels)


def _parse_passage(record: Mapping[str, Any]) -> Passage:
    id_, text, title = record.get("_id"), record.get("text"), record.get("title") or ""
    metadata = record.get("metadata") or {}
    if not isinstance(id_, str | int) or _is_blank(id_):
        raise ValueError('no "_id"')
    if not (isinstance(text, str) and isinstance(title, str)):
        raise ValueError('"text" must be text, and "title" too if there is one')
    if not isinstance(metadata, dict):
        raise ValueError(f'"metadata" must be an object, not {type(metadata).__name__}')
    if title:
        return Passage(str(id_), f"{title}\n{text}", {**metadata, "title": title})
    return Passage(str(id_), text, metadata)


# --- files ----------------------------------------------------------------------------------------


def _read_records(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield each record of *file* with its place for messages, such as ``a.csv line 3``."""
    text = read_text(file)
    if file.suffix.lower() in TABLES:
        yield from _read_table(file, text)
        return
    whole: Any = None
    try:
        whole = json.loads(text)
    except RecursionError:
        pass
    except ValueError as error:
        if text.lstrip().startswith("["):
            why = f"is not JSON ({getattr(error, 'msg', 'unreadable')})"
            place = f"{file} line {getattr(error, 'lineno', 1)}"
            raise ConfigError(f"{place}: {why}", path=str(file)) from None
    if isinstance(whole, dict):
        whole = _find_list(whole)
    if isinstance(whole, list):
        for number, record in enumerate(whole, 1):
            yield f"{file} question {number}", record
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with name_line_in_errors(file, number):
                record = parse_json_object(line)
            yield f"{file} line {number}", record


def _find_list(whole: dict[str, Any]) -> list[Any]:
    """Return the list of records in a JSON file that is one object."""
    queries, right = whole.get("queries"), whole.get("relevant_docs")
    if isinstance(queries, dict) and isinstance(right, dict):  # LlamaIndex
        corpus: Any = whole.get("corpus")
        texts = corpus if isinstance(corpus, dict) else {}
        return [
            {
                "_id": id_,
                "question": text,
                "ids": right.get(id_, []),
                "reference_contexts": {
                    passage: texts[passage]
                    for passage in _as_list(right.get(id_))
                    if isinstance(passage, str) and passage in texts
                },
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
    names, separator = _read_header(file, text)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    is_header = True
    while True:
        # A row may span several lines; the first one names it.
        place = f"{file} line {rows.line_num + 1}"
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise ConfigError(
                f"{place}: cannot be read as CSV ({error}). Put a cell that begins with a quote"
                " into quotes, and double the quotes in it",
                path=str(file),
            ) from None
        if not any(cell.strip() for cell in cells):
            continue
        # Spreadsheet programs may write empty cells after the last column.
        if any(cell.strip() for cell in cells[len(names) :]):
            raise ConfigError(
                f"{place}: has {len(cells)} cells, but the first line names {len(names)} columns."
                f" Put a cell that holds {_SEPARATORS[separator]} in quotes",
                path=str(file),
            )
        if not is_header:
            yield place, dict(zip(names, cells, strict=False))
        is_header = False


def _read_header(file: Path, text: str) -> tuple[list[str], str]:
    """Return the column names and the separator: the first one that gives a column of questions."""
    if not text.strip():
        raise ConfigError(f"{file} must hold questions, one per row; it is empty", path=str(file))
    longest: list[str] = []
    for separator in _SEPARATORS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        try:
            header = next((row for row in rows if any(map(str.strip, row))), [])
        except csv.Error:
            continue
        names = [cell.strip() for cell in header]
        if not {name.casefold() for name in names}.isdisjoint(QUESTION_NAMES):
            return names, separator
        longest = max(longest, names, key=len)
    shown = ", ".join(repr(name[:40]) for name in longest[:6])
    raise ConfigError(
        f"{file} must name a column question in its first line, not {shown}", path=str(file)
    )


def read_text(file: Path) -> str:
    """Return the text of *file*. Raises `ConfigError` if it is no text or too large."""
    try:
        with open_regular_file(file, follow_link=True) as stream:
            content = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", path=str(file)) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{file} is larger than {_MOST_BYTES:,} bytes", path=str(file))
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

    Raises `ConfigError` with *advice* if the file cannot be read, and with the number of a line
    that is not UTF-8.
    """
    try:
        with open_regular_file(path, follow_link=True) as file:
            for number, raw in enumerate(file, 1):
                with name_line_in_errors(path, number):
                    # Windows programs may begin a file with a byte order mark.
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                if text.strip():
                    yield number, text
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}{advice}", path=str(path)
        ) from error


@contextmanager
def name_line_in_errors(path: Path, number: int) -> Iterator[None]:
    """Convert a `ValueError` in the ``with`` block to a `ConfigError` that names the line."""
    try:
        yield
    except ValueError as error:
        why = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        # "from None", because the handled error may hold the whole line.
        raise ConfigError(f"{path} line {number}: {why}", path=f"{path}:{number}") from None


def parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in *text*. Raises `ValueError`, which does not quote the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON ({getattr(error, 'msg', 'unreadable')})") from None
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    return record
