"""Transform a file of questions into a file of JSON lines, in a run that can be continued."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final

from qtmiddleware.config import Config
from qtmiddleware.config.keys import convert_to_json, list_all_keys
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, InvalidQuery, StoreError
from qtmiddleware.kit.bulk.stream import Transformed, transform_stream
from qtmiddleware.kit.files import open_regular_file, replace_file
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.retrieval.history import History, read_history
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8
"""The default maximum number of concurrent model calls."""
MOST_BYTES: Final = 10_000_000
"""The maximum size of a line with a question, in bytes."""
STDIN: Final = "-"

_ROUNDS: Final = 4
"""The number of questions in a batch of a Ray worker, per concurrent call."""
_MOST_NAMED: Final = 20
"""The maximum number of broken lines to list. All broken lines are counted."""
_TEXT_NAMES: Final = ("query", "text", "question")
# Settings that count in addition to those marked as affecting the model's reply.
_KEYS: Final = frozenset(
    {"transformationModel", "preprocess.keepWords", "preprocess.extraWords", "escalation.mode"}
)

Record = dict[str, Any]
ShowBulk = Callable[["BulkReport"], None]
"""A function that receives the report when the run begins and after each line.

Each call gets the same report object, which the run keeps up to date.
"""


@dataclass(frozen=True, slots=True)
class InputQuery:
    """One question from the input file: its line number from 1, text, id and earlier messages."""

    line: int
    text: str = field(repr=False)
    id: str | int | None = None
    history: History = field(default=History(), repr=False)

    def to_record(self) -> Record:
        """Return the fields with which an output record identifies the question."""
        record: Record = {"line": self.line}
        if self.id is not None:
            record["id"] = self.id
        record["query"] = self.text
        if self.history.messages:
            record["history"] = [
                {"role": message.role, "content": message.content}
                for message in self.history.messages
            ]
        return record


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """The progress of a run, counted in lines of the input.

    Attributes:
        total: The number of lines in the input; ``None`` if unknown.
        before: The number of lines done by earlier runs.
        asked: The number of lines transformed in this run with model calls.
        unasked: The number of lines transformed in this run without model calls, because the reply
            was cached or no model was needed.
        failed: The number of lines without a transformation, per reason.
        broken: The first lines that could not be read: line numbers and reasons.
        broken_lines: The number of lines that could not be read.
        calls: The number of model calls.
        input_tokens: The number of input tokens.
        output_tokens: The number of output tokens.
        cost_usd: The cost in US dollars; ``None`` if the model's price is unknown.
        seconds: The duration of the run in seconds.
    """

    total: int | None = None
    before: int = 0
    asked: int = 0
    unasked: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[int, str]] = field(default_factory=list)
    broken_lines: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        """The number of lines done by all runs so far, including failed and broken lines."""
        return self.before + self.made

    @property
    def made(self) -> int:
        """The number of lines done by this run, including failed and broken lines."""
        return self.asked + self.unasked + self.failed.total() + self.broken_lines

    @property
    def is_whole(self) -> bool:
        """Whether all lines of this run succeeded."""
        return not (self.failed or self.broken_lines)

    def to_dict(self) -> Record:
        """Return all attributes of this report as JSON values."""
        return {**asdict(self), "failed": dict(self.failed), "seconds": round(self.seconds, 3)}

    def add(self, record: Record) -> None:
        """Add *record*, one line of the output, to the counts of this report."""
        # The record of a broken line has no question.
        if "query" not in record:
            self.broken_lines += 1
            if len(self.broken) < _MOST_NAMED:
                self.broken.append((record["line"], record["error"]))
            return
        if error := record.get("error"):
            self.failed[error] += 1
        elif record["calls"]:
            self.asked += 1
        else:
            self.unasked += 1
        self.calls += record["calls"]
        self.input_tokens += record["input_tokens"]
        self.output_tokens += record["output_tokens"]
        cost = record["cost_usd"]
        self.cost_usd = None if cost is None or self.cost_usd is None else self.cost_usd + cost


def transform_file(
    source: str | Path,
    out: str | Path,
    *,
    config: Config,
    client: Any = None,
    concurrency: int = CONCURRENCY,
    overwrite: bool = False,
    show: ShowBulk | None = None,
    on_ray: bool = False,
) -> BulkReport:
    """Transform each question in *source*, write the results to *out*, and return a report.

    Questions with a result in *out* are skipped. Each new result is appended as one line as soon as
    it is ready. A line with an ``error``, and one that a killed run left unfinished, is removed
    first, and its question is transformed again.

    Args:
        source: The file of questions: a table (``.csv``, ``.tsv``) with a column ``query``,
            ``text`` or ``question``; JSON in each line (``.json``, ``.jsonl``); or a question in
            each line. ``-`` is standard input, whose first line decides whether it is JSON.
        out: The JSON-lines file to append to.
        config: The config of the transformation.
        client: The language model, in any form that `QueryMiddleware` accepts.
        concurrency: The maximum number of model calls at a time.
        overwrite: Whether to replace *out* instead of continuing it.
        show: A function that is called with the report whenever the report changes.
        on_ray: Whether the workers of a Ray cluster make the model calls. By default, this process
            makes them. Each worker has its own model, pace, budget and cache, and *concurrency*
            applies per worker.

    Raises:
        ConfigError: *source* cannot be read, *out* belongs to another config or input, or both
            *client* and *on_ray* are given.
        StoreError: *out* is in use or cannot be written.
        ModelError: The model cannot be called any more, for example because the budget is used up.
        EngineError: Ray cannot be reached, or ended the run.
        MissingExtra: *on_ray* is set, and Ray is not installed.
    """
    if on_ray and client is not None:
        raise ConfigError(
            "client cannot be passed with on_ray, because workers make their own; name the model in"
            " the config",
            path="client",
        )
    path = Path(out)
    report, began = BulkReport(), monotonic()
    digest = build_config_digest(config.settings)

    def write_record(record: Record) -> None:
        output.append({**record, "config": digest})
        report.add(record)
        report.seconds = monotonic() - began
        if show is not None:
            show(report)

    def select_open_questions() -> Iterator[InputQuery]:
        for question in read_questions(file, Path(source).suffix.casefold()):
            if isinstance(question, dict):
                write_record(question)
            elif output.has_result(question):
                report.before += 1
            else:
                yield question

    with _open_input(source, path) as file, _open_output(path, digest, overwrite) as output:
        # Standard input can be read only once, so its lines cannot be counted in advance.
        if source != STDIN:
            report.total = sum(1 for _ in read_questions(file, Path(source).suffix.casefold()))
            file.seek(0)
        if show is not None:
            show(report)
        questions = select_open_questions()
        records = (
            _transform_on_ray(questions, config, concurrency)
            if on_ray
            else _transform_here(questions, config, client, concurrency)
        )
        # If a record cannot be written, this stops the model calls at once.
        with closing(records):
            for record in records:
                write_record(record)
    report.seconds = monotonic() - began
    return report


def read_questions(file: BinaryIO, extension: str) -> Iterator[InputQuery | Record]:
    """Yield the question in each line of *file*, or a record with the error of the line.

    A JSON line is either the question as a string, or an object with the question as ``query`` (or
    ``text``, as in BEIR), and optionally an ``id`` (or ``_id``) and a ``history``. A table has
    these as columns. Blank lines are skipped, but count in line numbers. An error never quotes the
    line. *extension* is the file's extension, such as ``.csv``.
    """
    if extension in (".csv", ".tsv"):
        yield from _read_table(file, "\t" if extension == ".tsv" else ",")
        return
    has_json = True if extension in (".json", ".jsonl") else None if not extension else False
    for number, line in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), 1):
        if len(line) > MOST_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MOST_BYTES)  # noqa: PLW2901 - the rest of a line
            yield {"line": number, "error": f"longer than {MOST_BYTES:,} bytes"}
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            if not text or text.isspace():
                continue
            if has_json is None:
                has_json = text.lstrip()[:1] in ("{", '"')
            yield _parse_question(number, _parse_json(text) if has_json else text)
        except UnicodeError:
            yield {"line": number, "error": "not UTF-8"}
        except ValueError as error:
            yield {"line": number, "error": str(error)}


def _read_table(file: BinaryIO, separator: str) -> Iterator[InputQuery | Record]:
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    rows = csv.DictReader(lines, delimiter=separator)
    try:
        for row in rows:
            record = {str(name).strip().casefold(): value or None for name, value in row.items()}
            try:
                yield _parse_question(rows.line_num, record)
            except ValueError as error:
                yield {"line": rows.line_num, "error": str(error)}
    except csv.Error:
        yield {"line": rows.line_num + 1, "error": "not a row of a table"}
    # Otherwise the wrapper would close the file.
    lines.detach()


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


def _parse_question(number: int, record: Any) -> InputQuery:
    """Return the question in *record*. Raises `ValueError` if there is none."""
    if isinstance(record, str):
        record = {"query": record}
    if not isinstance(record, dict):
        raise ValueError("neither an object nor text")
    text = next((record[name] for name in _TEXT_NAMES if record.get(name) is not None), None)
    if text is None:
        raise ValueError("no query")
    id_ = next((record[name] for name in ("id", "_id") if record.get(name) is not None), None)
    if id_ is not None and type(id_) not in (str, int):
        raise ValueError("an id that is neither text nor a whole number")
    metadata = record.get("metadata")
    messages = record.get("history") or (
        metadata.get("history") if isinstance(metadata, dict) else None
    )
    history = read_history(messages or [])
    if history.problem is not None or isinstance(messages, str):
        raise ValueError("a history that is not a list of messages with role and content")
    try:
        question = InputQuery(number, validate_query(text, "the query"), id_, history)
    except InvalidQuery as error:
        raise ValueError(str(error)) from None
    # JSON can contain a lone surrogate, which cannot be encoded.
    json.dumps(question.to_record(), ensure_ascii=False).encode()
    return question


def build_config_digest(settings: Settings) -> str:
    """Return a short hash of all settings and prompts that affect how questions are transformed."""
    keys = {
        key.name: convert_to_json(key.read_value(settings), key.hint)
        for key in list_all_keys()
        if key.name in _KEYS or Mark.REPLY in key.marks
    }
    # Some prompts exist only for questions with a history.
    prompts = [
        [prompt.mode, prompt.version]
        for history in ((), (Message("user", "?"),))
        for prompt in build_prompts(settings, "?", history)
    ]
    return hashlib.sha256(json.dumps([keys, prompts]).encode()).hexdigest()[:16]


class _Output:
    """The output file: one record per question, appended when the question is done."""

    def __init__(self, descriptor: int, done: Mapping[int, int]) -> None:
        self._descriptor, self._done = descriptor, done

    def has_result(self, question: InputQuery) -> bool:
        """Return whether the output already has a result for *question*."""
        known = self._done.get(question.line)
        if known is not None and known != _hash_question(question.to_record()):
            raise _build_output_error(
                f"line {question.line} of the input is not the question that the output holds for"
                " it: the output is of another input, or of one that has changed"
            )
        return known is not None

    def append(self, record: Record) -> None:
        """Append *record* as one line, or raise `OSError` and leave the file as it was."""
        data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            # An almost full disk may take only a part of the line. The second write then raises.
            if written < len(data):
                os.write(self._descriptor, data[written:])
        except OSError:
            os.ftruncate(self._descriptor, size)
            raise


@contextmanager
def _open_output(path: Path, digest: str, overwrite: bool) -> Iterator[_Output]:
    """Open and lock the output, without the lines whose questions are to be transformed again."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; name another --out", path="--out")
    try:
        descriptor = _open_locked(path)
        try:
            if overwrite:
                os.ftruncate(descriptor, 0)
            done: dict[int, int] = {}
            finished_bytes = sum(map(len, _read_finished(path, digest, done)))
            if finished_bytes < path.stat().st_size:
                replace_file(path, _read_finished(path, digest, {}))
                os.close(descriptor)
                descriptor = _open_locked(path)
            yield _Output(descriptor, done)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; its lines are complete: run the same"
            " command to continue"
        ) from error


def _open_locked(path: Path) -> int:
    """Open *path* for appending. The system ends the lock when this process ends."""
    descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise StoreError(
                f"another run is writing to this output, {path}; wait until it ends, or name"
                " another --out"
            ) from None
    return descriptor


def _read_finished(path: Path, digest: str, done: dict[int, int]) -> Iterator[bytes]:
    """Yield the lines of the output that have a result, and put their questions into *done*."""
    with open_regular_file(path, follow_link=False) as file:
        for line in iter(partial(file.readline, 4 * MOST_BYTES), b""):
            if not b'{"line": '.startswith(line[:9]):
                raise _build_output_error(f"{path} holds lines that no run has written")
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except (ValueError, RecursionError):
                continue
            if not isinstance(record, dict) or "query" not in record or "error" in record:
                continue
            if record.get("config") != digest:
                raise _build_output_error(f"{path} was started with another config")
            if isinstance(record.get("line"), int):
                done[record["line"]] = _hash_question(record)
                yield line


def _hash_question(record: Mapping[str, Any]) -> int:
    # Python's hashes of texts have a random key, so nobody can construct two equal ones.
    return hash(json.dumps([record.get("id"), record["query"], record.get("history")]))


def _build_output_error(reason: str) -> ConfigError:
    return ConfigError(f"{reason}; delete it, or name another --out", path="--out")


@contextmanager
def _open_input(source: str | Path, out: Path) -> Iterator[BinaryIO]:
    if source == STDIN:
        yield sys.stdin.buffer
        return
    # The output would overwrite the questions.
    if out.exists() and Path(source).exists() and out.samefile(source):
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", path="--file") from error
    with file:
        yield file


def _transform_here(
    questions: Iterable[InputQuery], config: Config, client: Any, concurrency: int
) -> Generator[Record]:
    with (
        QueryMiddleware(config, client=client) as middleware,
        closing(transform_stream(middleware, questions, concurrency=concurrency)) as stream,
    ):
        for transformed in stream:
            yield _build_record(transformed, middleware)


def _transform_on_ray(
    questions: Iterable[InputQuery], config: Config, concurrency: int
) -> Generator[Record]:
    from qtmiddleware.kit.ray_data import map_on_ray

    build = partial(_build_batch_transformer, config, concurrency)
    rest = iter(questions)
    batches = iter(lambda: list(islice(rest, concurrency * _ROUNDS)), [])
    for records in map_on_ray(build, batches):
        yield from records


def _build_batch_transformer(
    config: Config, concurrency: int
) -> Callable[[Sequence[InputQuery]], Iterator[Record]]:
    """Return a function that transforms a batch of questions. Each worker builds its own."""
    middleware = QueryMiddleware(config)

    def transform_batch(questions: Sequence[InputQuery]) -> Iterator[Record]:
        for transformed in transform_stream(middleware, questions, concurrency=concurrency):
            yield _build_record(transformed, middleware)

    return transform_batch


def _build_record(transformed: Transformed[InputQuery], middleware: QueryMiddleware) -> Record:
    """Return a question's output record, with the transformation, the token counts and the cost."""
    replies = transformed.replies
    return {
        **transformed.question.to_record(),
        **({"error": transformed.failure} if transformed.failure else {}),
        "preprocessed": middleware.preprocess(transformed.question.text),
        **asdict(transformed.transformation),
        "calls": sum(reply.calls for reply in replies),
        "input_tokens": sum(reply.input_tokens for reply in replies),
        "output_tokens": sum(reply.output_tokens for reply in replies),
        "cost_usd": transformed.cost_usd,
    }
