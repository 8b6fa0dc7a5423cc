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
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.keys import convert_to_json, list_all_keys
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, InvalidQuery, StoreError
from qtmiddleware.kit.bulk.stream import Transformed, transform_stream
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.retrieval.history import History, read_history
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8
"""The default maximum number of concurrent model calls."""
MOST_BYTES: Final = 256 << 20
"""The maximum size of the input, and of a line of the output, in bytes."""
STDIN: Final = "-"

_ROUNDS: Final = 4
"""The number of questions in a batch of a Ray worker, per concurrent call."""
_MOST_NAMED: Final = 20
"""The maximum number of broken lines to list. All broken lines are counted."""
_TABLES: Final = {".csv": ",", ".tsv": "\t"}
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
        before: The number of questions done by earlier runs.
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
        """Add *record*, the result of a question, to the counts of this report."""
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
    it is ready. A question that fails gets no line, so the next run transforms it again.

    Args:
        source: The file of questions: a table (``.csv``, ``.tsv``) with a column ``query``,
            ``text`` or ``question``; JSON in each line (``.json``, ``.jsonl``); or a question in
            each line. ``-`` is standard input, whose first character decides whether it is JSON.
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
    # The output would overwrite the questions.
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    began = monotonic()
    lines = list(read_questions(source))
    broken = [line for line in lines if isinstance(line, tuple)]
    report = BulkReport(total=len(lines), broken=broken[:_MOST_NAMED], broken_lines=len(broken))
    digest = build_config_digest(config.settings)
    with _open_output(path, digest, overwrite=overwrite) as (descriptor, done):
        questions = []
        for question in lines:
            if isinstance(question, InputQuery):
                known = done.get(question.line)
                if known is None:
                    questions.append(question)
                elif known != _hash_question(question.to_record()):
                    raise _build_output_error(
                        f"line {question.line} of the input is not the question that the output"
                        " holds for it: the output is of another input, or of one that has changed"
                    )
        report.before = len(lines) - len(broken) - len(questions)
        if show is not None:
            show(report)
        records = (
            _transform_on_ray(questions, config, concurrency)
            if on_ray
            else _transform_here(questions, config, client, concurrency)
        )
        # If a record cannot be written, this stops the model calls at once.
        with closing(records):
            for record in records:
                if "error" not in record:
                    _append_line(descriptor, {**record, "config": digest})
                report.add(record)
                report.seconds = monotonic() - began
                if show is not None:
                    show(report)
    report.seconds = monotonic() - began
    return report


def read_questions(source: str | Path) -> Iterator[InputQuery | tuple[int, str]]:
    """Yield the question in each line of *source*, or the number of the line and what is wrong.

    A JSON line is either the question as a string, or an object with the question as ``query`` (or
    ``text``, as in BEIR), and optionally an ``id`` (or ``_id``) and a ``history``. A table has
    these as columns. Blank lines are skipped, but count in line numbers. Raises `ConfigError` if
    *source* cannot be read.
    """
    text = _read_input(source)
    extension = Path(source).suffix.casefold()
    records: Iterator[tuple[int, Any]]
    if extension in _TABLES:
        rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=_TABLES[extension])
        records = (
            (rows.line_num, {str(name).strip().casefold(): row[name] or None for name in row})
            for row in rows
        )
    else:
        has_json = extension in (".json", ".jsonl") or (
            not extension and text.lstrip()[:1] in ("{", '"')
        )
        records = (
            (number, _parse_json(line) if has_json else line.strip("\r"))
            for number, line in enumerate(text.split("\n"), 1)
            if line and not line.isspace()
        )
    try:
        for number, record in records:
            try:
                yield _parse_question(number, record)
            except UnicodeError:
                yield number, "not UTF-8"
            except ValueError as error:
                yield number, str(error)
    except csv.Error as error:
        raise ConfigError(f"{source} is not a table: {error}", path="--file") from None


def _read_input(source: str | Path) -> str:
    try:
        with sys.stdin.buffer if source == STDIN else Path(source).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", path="--file") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(
            f"{source} must have at most {MOST_BYTES >> 20} MB; split it", path="--file"
        )
    # A byte that is not UTF-8 becomes a surrogate, and its line is then reported.
    return data.decode("utf-8-sig", "surrogateescape")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        # Returned, because the lines after it are read too.
        return ValueError("not JSON")


def _parse_question(number: int, record: Any) -> InputQuery:
    """Return the question in *record*. Raises `ValueError` if there is none."""
    if isinstance(record, ValueError):
        raise record
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
    history = read_history(record.get("history") or [])
    if history.problem is not None or isinstance(record.get("history"), str):
        raise ValueError("a history that is not a list of messages with role and content")
    try:
        question = InputQuery(number, validate_query(text, "the query"), id_, history)
    except InvalidQuery as error:
        raise ValueError(str(error)) from None
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


@contextmanager
def _open_output(
    path: Path, digest: str, *, overwrite: bool
) -> Iterator[tuple[int, dict[int, int]]]:
    """Open and lock the output, and yield its descriptor and a hash per line with a result."""
    try:
        descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; name another --out", path="--out"
        ) from error
    try:
        if sys.platform != "win32":
            import fcntl

            # The system ends the lock when this process ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if overwrite:
            os.ftruncate(descriptor, 0)
        yield descriptor, _read_finished(descriptor, path, digest)
        os.fsync(descriptor)
    except BlockingIOError:
        raise StoreError(
            f"another run is writing to this output, {path}; wait until it ends, or name another"
            " --out"
        ) from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; its lines are complete: run the same"
            " command to continue"
        ) from error
    finally:
        os.close(descriptor)


def _read_finished(descriptor: int, path: Path, digest: str) -> dict[int, int]:
    """Return a hash of each question in the output, and cut off a line that a killed run left."""
    done: dict[int, int] = {}
    complete = 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        for line in iter(partial(file.readline, MOST_BYTES), b""):
            if b'{"line": '.startswith(line[:9]) and not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                number, config, hashed = record["line"], record["config"], _hash_question(record)
            except (ValueError, TypeError, KeyError, RecursionError):
                raise _build_output_error(f"{path} holds lines that no run has written") from None
            if config != digest:
                raise _build_output_error(f"{path} was started with another config")
            done[number] = hashed
            complete += len(line)
    os.ftruncate(descriptor, complete)
    return done


def _append_line(descriptor: int, record: Record) -> None:
    """Append *record* as one line, or raise `OSError` and leave the file as it was."""
    data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, data)
        # An almost full disk may take only a part of the line. The second write then raises.
        if written < len(data):
            os.write(descriptor, data[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _hash_question(record: Mapping[str, Any]) -> int:
    # Python's hashes of texts have a random key, so nobody can construct two equal ones.
    return hash(json.dumps([record.get("id"), record["query"], record.get("history")]))


def _build_output_error(reason: str) -> ConfigError:
    return ConfigError(f"{reason}; delete it, or name another --out", path="--out")


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
