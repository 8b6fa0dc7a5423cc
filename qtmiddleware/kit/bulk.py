"""Transform a file of many questions, in a run that can be stopped and continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, BinaryIO, Final

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.dataset import Question, load_questions, read_lines
from qtmiddleware.kit.ray_data import map_on_ray
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.providers.errors import convert_function_error
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.types import Deadline
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8
"""The default number of questions that are transformed at the same time."""
CALL_SECONDS: Final = 60.0
"""The timeout of a model call, unless ``limits.llmTimeoutMs`` is longer."""
PATIENCE: Final = 600.0
"""The run stops if no call is answered for so many seconds."""
PAUSE: Final = 5.0
"""The seconds that all calls pause after a temporary failure, if the service names no time."""

_BATCH: Final = 16
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
        OSError: *out* cannot be written.
        ModelError: The run stopped, for example because the key is rejected.
        EngineError: Ray cannot be reached, or ended the run.
    """
    path = Path(out)
    questions = _read_questions(Path(source))
    # The results would be appended to the questions.
    if path.exists() and path.samefile(source):
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    digest = _hash_config(config.settings)
    with os.fdopen(open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b") as file:
        done = _read_finished(file, path, digest)
        if _has_ids(Path(source)):
            rest = [question for question in questions if (question.id, question.text) not in done]
        else:
            rest = _list_unfinished(questions, done)
        report = BulkReport(total=len(questions), before=len(questions) - len(rest))
        transform = partial(_transform_questions, config, client, concurrency)
        records = _transform_on_ray(transform, rest) if on_ray else transform(rest)
        # If a line cannot be written, no further question is asked.
        with closing(records):
            for record in records:
                if error := record.get("error"):
                    report.failed[error] = report.failed.get(error, 0) + 1
                else:
                    line = json.dumps({**record, "config": digest}, ensure_ascii=False) + "\n"
                    file.write(line.encode(errors="backslashreplace"))
                    file.flush()
                report.made += 1
                if show is not None:
                    show(report)
    return report


def _read_questions(source: Path) -> tuple[Question, ...]:
    if _has_ids(source):
        questions = load_questions(source).questions
    else:
        questions = tuple(Question(str(number), line) for number, line in read_lines(source))
    for question in questions:
        validate_query(question.text, f"question {question.id} of {source}")
    return questions


def _has_ids(source: Path) -> bool:
    return source.is_dir() or source.suffix.casefold() in _RECORDS


def _list_unfinished(lines: Sequence[Question], done: set[tuple[str, str]]) -> list[Question]:
    """Return the lines of a text file that are not in *done*, the ids and texts of the results.

    The number of a line is no id: it changes when a line is inserted, and the text does not.
    """
    ids, results = {id_ for id_, _ in done}, Counter(text for _, text in done)
    rest = []
    for line in lines:
        results[line.text] -= 1
        if results[line.text] < 0:
            is_taken = line.id in ids
            rest.append(replace(line, id=f"{line.id}-{len(done)}") if is_taken else line)
    return rest


def _hash_config(settings: Settings) -> str:
    values = (
        settings.reply_values,
        settings.transformation_model,
        settings.preprocess,
        settings.escalation.mode,
    )
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _read_finished(file: BinaryIO, path: Path, digest: str) -> set[tuple[str, str]]:
    """Return the ids and texts of the finished questions, and cut off the line of a killed run."""
    done: set[tuple[str, str]] = set()
    complete = 0
    for line in file:
        # A killed run may have written only the first bytes of its last line.
        if not line.endswith(b"\n") and b'{"id": "'.startswith(line[:8]):
            break
        try:
            record = json.loads(line)
            is_ours = record["config"] == digest
            done.add((record["id"], record["query"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            is_ours = False
        if not is_ours:
            raise ConfigError(
                f"{path} holds lines that this config has not written; name another --out",
                path="--out",
            )
        complete += len(line)
    file.truncate(complete)
    return done


def _transform_on_ray(
    transform: Callable[[list[Question]], Iterator[Record]], questions: list[Question]
) -> Generator[Record]:
    batches = (questions[start : start + _BATCH] for start in range(0, len(questions), _BATCH))
    for records in map_on_ray(partial(partial, transform), batches):
        yield from records


def _transform_questions(
    config: Config, client: Any, concurrency: int, questions: list[Question]
) -> Generator[Record]:
    """Yield a record per question, which *concurrency* threads of this process transform."""
    settings = config.settings
    seconds = max(CALL_SECONDS, settings.limits.llm_timeout_ms / 1e3)
    model = _PacedModel(make_language_model(client, settings), seconds)
    # Nobody waits for an answer, so only single calls have a time limit.
    limits = replace(settings.limits, llm_timeout_ms=_MONTH_MS, deadline_ms=_MONTH_MS)
    patient = replace(settings, limits=limits, breaker=replace(settings.breaker, failures=0))
    middleware = QueryMiddleware(Config(patient, config.sources), client=model)
    transform = partial(_transform_question, middleware)
    # The threads of this pool are daemons, so a call that hangs does not keep the process alive.
    with ThreadPool(concurrency) as pool:
        try:
            yield from pool.imap_unordered(transform, questions)
        finally:
            model.is_stopped.set()
    if model.error is not None:
        raise model.error


def _transform_question(middleware: QueryMiddleware, question: Question) -> Record:
    transformation = middleware.transform(question.text, history=question.history)
    stages = ("transform.", "middleware")
    reasons = [reason for stage, reason in transformation.notes if stage.startswith(stages)]
    return {
        "id": question.id,
        "query": question.text,
        **({"error": reasons[-1]} if reasons and transformation.is_empty else {}),
        "preprocessed": middleware.preprocess(question.text),
        **asdict(transformation),
    }


class _PacedModel:
    """Calls *inner* at one pace for all questions of a run.

    A call that fails for a temporary reason is repeated, and all calls pause before that.
    """

    def __init__(self, inner: LanguageModel, call_seconds: float) -> None:
        self.name = inner.name
        self.error: ModelError | None = None
        self.is_stopped = Event()
        self._inner = inner
        self._call_seconds = call_seconds
        self._answered_at = self._resume_at = monotonic()

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        while not self.is_stopped.is_set():
            if (seconds := self._resume_at - monotonic()) > 0:
                self.is_stopped.wait(seconds)
                continue
            try:
                # The time counts from the call itself, not from the wait before it.
                reply = self._inner.complete(prompt, Deadline.after(self._call_seconds))
            except Exception as caught:
                error = convert_function_error(caught, self.name)
                now = monotonic()
                is_temporary = error.reason in _TEMPORARY
                is_down = is_temporary and now - self._answered_at >= PATIENCE
                if is_down or error.reason == "unauthorized":
                    self.error = error
                    self.is_stopped.set()
                if not is_temporary:
                    raise
                self._resume_at = max(self._resume_at, now + (error.retry_after or PAUSE))
            else:
                self._answered_at = monotonic()
                return reply
        raise ModelError("cancelled", "the run was stopped")

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)
