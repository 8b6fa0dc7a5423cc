"""Transform a file of many questions, in a run that can be stopped and continued."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.introspection import read_marked_values
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, ModelError, StoreError
from qtmiddleware.kit.evaluation.dataset import Question, load_questions, read_lines
from qtmiddleware.kit.ray_data import map_on_ray
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.types import Deadline
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8
"""The default number of questions that are transformed at the same time."""
CALL_SECONDS: Final = 60.0
"""The timeout of a model call, unless ``limits.llmTimeoutMs`` is set."""
PATIENCE: Final = 600.0
"""For how many seconds a call that fails for a temporary reason is repeated."""

_LONGEST_PAUSE: Final = 30.0
_SHORTEST_PAUSE: Final = 0.1
_BATCHES_PER_WORKER: Final = 4
_RECORDS: Final = (".csv", ".tsv", ".json", ".jsonl")
_TEMPORARY: Final = ("timeout", "unavailable", "rate_limited", "overloaded")
_MONTH_MS: Final = 30 * 24 * 3_600_000

Record = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """The progress of a run.

    Attributes:
        total: The number of questions in the file.
        before: The number of questions done by earlier runs.
        made: The number of questions that this run is done with, including failed ones.
        failed: The number of questions without a transformation, by reason.
    """

    total: int
    before: int
    made: int = 0
    failed: dict[str, int] = field(default_factory=dict)


def transform_file(
    source: str | Path,
    out: str | Path,
    *,
    config: Config,
    client: Any = None,
    concurrency: int = CONCURRENCY,
    show: Callable[[BulkReport], None] | None = None,
    on_ray: bool = False,
) -> BulkReport:
    """Transform each question in *source*, append the results to *out*, and return a report.

    Each result is written as one line of JSON as soon as it is ready. Questions with a line in
    *out* are skipped. A failed question gets no line, so the next run asks it again.

    Raises:
        ConfigError: *source* cannot be read, or *out* belongs to another config or file.
        StoreError: *out* is in use or cannot be written.
        ModelError: The run stopped, for example because the key is rejected.
        EngineError: Ray cannot be reached, or ended the run.
    """
    path = Path(out)
    # The results would be appended to the questions.
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    questions = _read_questions(Path(source))
    digest = _hash_config(config.settings)
    with _open_output(path) as descriptor:
        done = _read_finished(descriptor, path, digest)
        rest = [question for question in questions if _build_key(_to_record(question)) not in done]
        report = BulkReport(total=len(questions), before=len(questions) - len(rest))
        transform = partial(_transform_questions, config, client, concurrency)
        records = _transform_on_ray(transform, rest, concurrency) if on_ray else transform(rest)
        with closing(records):
            while True:
                if show is not None:
                    show(report)
                if (record := next(records, None)) is None:
                    return report
                if error := record.get("error"):
                    report.failed[error] = report.failed.get(error, 0) + 1
                else:
                    _append(descriptor, {**record, "config": digest})
                report.made += 1


def _read_questions(source: Path) -> tuple[Question, ...]:
    if source.is_dir() or source.suffix.casefold() in _RECORDS:
        questions = load_questions(source).questions
    else:
        questions = tuple(Question(str(number), line) for number, line in read_lines(source))
    for question in questions:
        validate_query(question.text, f"question {question.id} of {source}")
    return questions


def _to_record(question: Question) -> Record:
    record: Record = {"id": question.id, "query": question.text}
    if question.history:
        record["history"] = [asdict(message) for message in question.history]
    return record


def _build_key(record: Record) -> str:
    """Return what identifies a question: not only its id, as its text may change."""
    return json.dumps([record["id"], record["query"], record.get("history")])


def _hash_config(settings: Settings) -> str:
    """Return a short hash of the settings that affect a transformation."""
    values = (
        read_marked_values(settings, Mark.REPLY),
        settings.transformation_model,
        settings.preprocess,
        settings.escalation.mode,
    )
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


@contextmanager
def _open_output(path: Path) -> Iterator[int]:
    """Open and lock the output, and yield its descriptor."""
    try:
        descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor):
            if sys.platform != "win32":
                import fcntl

                # The system ends the lock when this process ends.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
    except BlockingIOError:
        raise StoreError(f"another run is writing to {path}; name another --out") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def _read_finished(descriptor: int, path: Path, digest: str) -> set[str]:
    """Return the keys of the finished questions, and cut off the line of a killed run."""
    done = set()
    complete = 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        for line in file:
            # A killed run may have written only the first bytes of its last line.
            if not line.endswith(b"\n") and b'{"id": "'.startswith(line[:8]):
                break
            try:
                record = json.loads(line)
                config = record["config"]
                done.add(_build_key(record))
            except (ValueError, TypeError, KeyError, RecursionError):
                raise ConfigError(
                    f"{path} holds lines that no run has written; name another --out", path="--out"
                ) from None
            if config != digest:
                raise ConfigError(
                    f"{path} was started with another config; delete it, or name another --out",
                    path="--out",
                )
            complete += len(line)
    os.ftruncate(descriptor, complete)
    return done


def _append(descriptor: int, record: Record) -> None:
    data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
    # An almost full disk takes only a part of the line; the next write then raises.
    while data:
        data = data[os.write(descriptor, data) :]


def _transform_on_ray(
    transform: Callable[[list[Question]], Iterator[Record]],
    questions: list[Question],
    concurrency: int,
) -> Generator[Record]:
    size = concurrency * _BATCHES_PER_WORKER
    batches = (questions[start : start + size] for start in range(0, len(questions), size))
    for records in map_on_ray(partial(partial, transform), batches):
        yield from records


def _transform_questions(
    config: Config, client: Any, concurrency: int, questions: list[Question]
) -> Generator[Record]:
    """Yield a record per question, which *concurrency* threads of this process transform."""
    settings = config.settings
    is_default = config.origins["limits.llmTimeoutMs"] == "default"
    seconds = CALL_SECONDS if is_default else settings.limits.llm_timeout_ms / 1e3
    model = _PacedModel(make_language_model(client, settings), seconds)
    # Nobody waits for an answer, so only single calls have a time limit.
    limits = replace(settings.limits, llm_timeout_ms=_MONTH_MS, deadline_ms=_MONTH_MS)
    patient = replace(settings, limits=limits, breaker=replace(settings.breaker, failures=0))
    middleware = QueryMiddleware(Config(patient, config.sources), client=model)
    results: SimpleQueue[Record | Exception] = SimpleQueue()
    waiting = iter(questions)

    def work() -> None:
        # The threads share the iterator, so each question is taken once.
        for question in waiting:
            try:
                results.put(_transform_question(middleware, question))
            # Nobody else would notice an error in this thread.
            except Exception as error:
                results.put(error)

    # Daemons, so that a call that hangs does not keep the process from ending.
    for _ in range(concurrency):
        Thread(target=work, daemon=True).start()
    try:
        for _ in questions:
            result = results.get()
            if isinstance(result, Exception):
                raise result
            if result.get("error") == "over_budget":
                model.stop(ModelError("over_budget", "the budget allows no more calls for now"))
            # Questions that failed because the run stopped are no results.
            if not (model.is_stopped.is_set() and "error" in result):
                yield result
        if model.error is not None:
            raise model.error
    finally:
        model.is_stopped.set()


def _transform_question(middleware: QueryMiddleware, question: Question) -> Record:
    transformation = middleware.transform(question.text, history=question.history)
    reasons = [
        reason
        for stage, reason in transformation.notes
        if stage.startswith(("transform.", "middleware"))
    ]
    return {
        **_to_record(question),
        **({"error": reasons[-1]} if reasons and transformation.is_empty else {}),
        "preprocessed": middleware.preprocess(question.text),
        **asdict(transformation),
    }


class _PacedModel:
    """Calls *inner* at one pace for all questions of a run.

    A call that fails for a temporary reason is repeated. Its failure pauses all calls, for as long
    as the service says, or else for twice as long as the last time.
    """

    can_async = False

    def __init__(self, inner: LanguageModel, call_seconds: float) -> None:
        self.name = inner.name
        self.error: ModelError | None = None
        self.is_stopped = Event()
        self._inner = inner
        self._call_seconds = call_seconds
        self._lock = Lock()
        self._answered_at = self._resume_at = monotonic()
        self._pause = _SHORTEST_PAUSE

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        began = monotonic()
        while True:
            while (seconds := self._resume_at - monotonic()) > 0 and not self.is_stopped.is_set():
                self.is_stopped.wait(seconds)
            if self.is_stopped.is_set():
                raise ModelError("cancelled", "the run was stopped")
            try:
                # The time counts from the call itself, not from the wait before it.
                reply = self._inner.complete(prompt, Deadline.after(self._call_seconds))
            except ModelError as error:
                if error.reason == "unauthorized":
                    self.stop(error)
                if error.reason not in _TEMPORARY:
                    raise
                self._pause_all(error)
                if monotonic() - began >= PATIENCE:
                    # While nothing is answered, the failure is the service's, not this call's.
                    if self._answered_at < began:
                        self.stop(error)
                    raise
            else:
                with self._lock:
                    self._answered_at, self._pause = monotonic(), _SHORTEST_PAUSE
                return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)

    def stop(self, error: ModelError) -> None:
        """End the run; *error* is raised."""
        self.error = self.error or error
        self.is_stopped.set()

    def _pause_all(self, error: ModelError) -> None:
        with self._lock:
            now = monotonic()
            # Calls that fail together lengthen the pause only once.
            if error.retry_after is None and now >= self._resume_at:
                self._resume_at = now + self._pause
                self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            self._resume_at = max(self._resume_at, now + (error.retry_after or 0.0))
