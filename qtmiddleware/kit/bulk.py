"""Transform a file of many questions, in a run that can be stopped and continued."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Semaphore, Thread
from time import monotonic
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.introspection import read_marked_values
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, ModelError, StoreError
from qtmiddleware.kit.evaluation.dataset import Question, load_questions, read_lines
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.retrieval.call import Call, validate_query
from qtmiddleware.retrieval.flow import transform
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.runtime.services import ModelOnly, run
from qtmiddleware.runtime.threads import UNLIMITED
from qtmiddleware.types import Deadline
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CONCURRENCY: Final = 8
"""The default maximum number of concurrent model calls."""
CALL_SECONDS: Final = 60.0
"""The timeout of a model call, unless ``limits.llmTimeoutMs`` is set."""
PATIENCE: Final = 600.0
"""For how many seconds a call that fails for a temporary reason is repeated."""

_FIRST_FAILURES: Final = 3
"""If this many calls fail before any call is answered, the run stops."""
_LONGEST_PAUSE: Final = 30.0
_SHORTEST_PAUSE: Final = 0.1
_NEVER_MS: Final = 30 * 24 * 3_600_000
_BATCHES_PER_WORKER: Final = 4
_RECORDS: Final = (".csv", ".tsv", ".json", ".jsonl")
_TEMPORARY: Final = ("timeout", "unavailable", "rate_limited", "overloaded")
# Failures that show that the service is working.
_ANSWERS: Final = ("refused", "too_long", "empty", "truncated")

Record = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """The progress of a run.

    Attributes:
        total: The number of questions in the file.
        before: The number of questions done by earlier runs.
        made: The number of questions that this run is done with, including failed ones.
        failed: The number of questions without a transformation, by reason.
        calls: The number of answered model calls.
        input_tokens: The number of input tokens.
        output_tokens: The number of output tokens.
        cost_usd: The cost in US dollars; ``None`` if a price is unknown.
        seconds: The duration in seconds.
    """

    total: int = 0
    before: int = 0
    made: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0

    def to_dict(self) -> Record:
        """Return the attributes as JSON values."""
        return {**asdict(self), "failed": dict(self.failed), "seconds": round(self.seconds, 3)}

    def _add(self, record: Record) -> None:
        self.made += 1
        if error := record.get("error"):
            self.failed[error] += 1
        self.calls += record["calls"]
        self.input_tokens += record["input_tokens"]
        self.output_tokens += record["output_tokens"]
        cost = record["cost_usd"]
        self.cost_usd = None if None in (cost, self.cost_usd) else self.cost_usd + cost


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
    began, path = monotonic(), Path(out)
    # The results would be appended to the questions.
    if path.exists() and Path(source).exists() and path.samefile(source):
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    questions = _read_questions(Path(source))
    digest = _hash_config(config.settings)
    with _open_output(path) as descriptor:
        done = _read_finished(descriptor, path, digest)
        for question in questions:
            if question.id in done and done[question.id] != _identify(question):
                raise ConfigError(
                    f"{path} has another question with the id {question.id}; name another --out",
                    path="--out",
                )
        rest = [question for question in questions if question.id not in done]
        report = BulkReport(total=len(questions), before=len(questions) - len(rest))
        build = partial(_Transformer, config, client, concurrency)
        # Both begin with the first record that is taken from them.
        records = _transform_on_ray(build, rest, concurrency) if on_ray else build()(rest)
        with closing(records):
            while True:
                report.seconds = monotonic() - began
                if show is not None:
                    show(report)
                if (record := next(records, None)) is None:
                    return report
                if "error" not in record:
                    _append(descriptor, {**record, "config": digest})
                report._add(record)


def _read_questions(source: Path) -> tuple[Question, ...]:
    if source.is_dir() or source.suffix.casefold() in _RECORDS:
        questions = load_questions(source).questions
    else:
        questions = tuple(Question(str(number), line) for number, line in read_lines(source))
    for question in questions:
        validate_query(question.text, f"question {question.id} of {source}")
    return questions


def _identify(question: Question) -> Record:
    """Return the fields with which an output line identifies its question."""
    history = [{"role": turn.role, "content": turn.content} for turn in question.history]
    record = {"id": question.id, "query": question.text}
    return {**record, "history": history} if history else record


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
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; name another --out", path="--out"
        ) from error
    try:
        if sys.platform != "win32":
            import fcntl

            # The system ends the lock when this process ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise StoreError(f"another run is writing to {path}; name another --out") from None
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror}; run the same command to continue"
        ) from error
    finally:
        os.close(descriptor)


def _read_finished(descriptor: int, path: Path, digest: str) -> dict[str, Record]:
    """Return what identifies the finished questions, and cut off the line of a killed run."""
    done: dict[str, Record] = {}
    complete = 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        for line in file:
            # A killed run may have written only the first bytes of its last line.
            is_of_run = b'{"id": "'.startswith(line[:8])
            is_cut = not line.endswith(b"\n")
            if is_of_run and is_cut:
                break
            try:
                record = json.loads(line)
                config = record["config"]
                done[record["id"]] = {
                    name: record[name] for name in ("id", "query", "history") if name in record
                }
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
    build: Callable[[], _Transformer], questions: Iterable[Question], concurrency: int
) -> Generator[Record]:
    from qtmiddleware.kit.ray_data import map_on_ray

    rest = iter(questions)
    batches = iter(lambda: list(islice(rest, concurrency * _BATCHES_PER_WORKER)), [])
    for records in map_on_ray(build, batches):
        yield from records


class _Transformer:
    """Transforms questions in threads of this process."""

    def __init__(self, config: Config, client: Any, concurrency: int) -> None:
        limits = config.settings.limits
        is_default = config.origins["limits.llmTimeoutMs"] == "default"
        self._call_seconds = CALL_SECONDS if is_default else limits.llm_timeout_ms / 1e3
        # Nobody waits for an answer, so only single calls have a time limit.
        patient = replace(limits, llm_timeout_ms=_NEVER_MS, deadline_ms=_NEVER_MS)
        self._settings = replace(config.settings, limits=patient)
        self._middleware = QueryMiddleware(config, client=client)
        self._concurrency = concurrency

    def __call__(self, questions: Iterable[Question]) -> Generator[Record]:
        pace, lock, rest = _Pace(self._concurrency), Lock(), iter(questions)
        results: SimpleQueue[Record | BaseException | None] = SimpleQueue()

        def work() -> None:
            try:
                while not pace.is_stopped.is_set():
                    with lock:
                        question = next(rest, None)
                    if question is None:
                        break
                    results.put(self._transform(question, pace))
            # Nobody else would notice an error in this thread.
            except BaseException as error:
                results.put(error)
            results.put(None)

        # Daemons, so that a call that hangs does not keep the process from ending.
        for _ in range(self._concurrency):
            Thread(target=work, daemon=True).start()
        running = self._concurrency
        try:
            while running:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    running -= 1
                # Questions that failed because the run stopped are no results.
                elif not (pace.is_stopped.is_set() and "error" in result):
                    yield result
            if pace.error is not None:
                raise pace.error
        finally:
            pace.is_stopped.set()

    def _transform(self, question: Question, pace: _Pace) -> Record:
        engine = self._middleware.engine
        model = _PacedModel(engine.model, self._settings, pace, self._call_seconds)
        call = Call(
            original=question.text,
            history=question.history,
            settings=self._settings,
            learned=Learned(),
            engine=engine,
            model=model,
            observation=engine.observation,
        )
        transformation = run(partial(transform, call), ModelOnly(model, UNLIMITED))
        reasons = [
            reason
            for stage, reason in transformation.notes
            if stage.startswith(("transform.", "middleware"))
        ]
        has_failed = bool(reasons) and transformation.is_empty
        costs = [reply.cost_usd for reply in model.replies]
        return {
            **_identify(question),
            **({"error": reasons[-1]} if has_failed else {}),
            "preprocessed": self._middleware.preprocess(question.text),
            **asdict(transformation),
            "calls": sum(reply.calls for reply in model.replies),
            "input_tokens": sum(reply.input_tokens for reply in model.replies),
            "output_tokens": sum(reply.output_tokens for reply in model.replies),
            "cost_usd": None if None in costs else sum(cost or 0.0 for cost in costs),
        }


class _Pace:
    """The pace of all model calls of a run: at most *concurrency* at once, and none in a pause.

    A call that fails for a temporary reason is repeated. Its failure pauses all calls, for as long
    as the service says, or else for twice as long as the last time.
    """

    def __init__(self, concurrency: int) -> None:
        self.error: ModelError | None = None
        self.is_stopped = Event()
        self._slots = Semaphore(concurrency)
        self._lock = Lock()
        self._answers = self._failures = 0
        self._pause = _SHORTEST_PAUSE
        self._resume_at = 0.0

    def call(self, complete: Callable[[], Reply]) -> Reply:
        """Return the reply of *complete*. Raises its last `ModelError`."""
        with self._slots:
            give_up_at, answers = monotonic() + PATIENCE, self._answers
            while True:
                while (seconds := self._resume_at - monotonic()) > 0:
                    if self.is_stopped.wait(seconds):
                        break
                if self.is_stopped.is_set():
                    raise ModelError("cancelled", "the run was stopped")
                try:
                    reply = complete()
                except ModelError as error:
                    should_repeat = self._handle_failure(error)
                    if should_repeat and monotonic() < give_up_at:
                        continue
                    # While nothing is answered, the failure is the service's, not this call's.
                    if should_repeat and self._answers == answers:
                        self._stop(error)
                    raise
                self._record_answer()
                return reply

    def _record_answer(self) -> None:
        with self._lock:
            self._answers += 1
            self._pause = _SHORTEST_PAUSE

    def _handle_failure(self, error: ModelError) -> bool:
        """Pause all calls or stop the run after *error*; return whether to repeat the call."""
        if error.reason in _ANSWERS:
            self._record_answer()
            return False
        with self._lock:
            if error.reason not in _TEMPORARY and error.retry_after is None:
                self._failures += not self._answers
                # Each further call would fail in the same way.
                is_hopeless = error.reason in ("unauthorized", "over_budget")
                if is_hopeless or self._failures >= _FIRST_FAILURES:
                    self._stop(error)
                return False
            now = monotonic()
            # Calls that fail together lengthen the pause only once.
            if error.retry_after is None and now >= self._resume_at:
                self._resume_at = now + self._pause
                self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            self._resume_at = max(self._resume_at, now + (error.retry_after or 0.0))
        return True

    def _stop(self, error: ModelError) -> None:
        self.error = self.error or error
        self.is_stopped.set()


class _PacedModel(GovernedModel):
    """Calls the model for one question at the pace of the run, and keeps the replies."""

    def __init__(
        self, model: GovernedModel, settings: Settings, pace: _Pace, seconds: float
    ) -> None:
        # No breaker, because the pace decides when to call again after a failure.
        super().__init__(
            model.inner,
            settings,
            Breaker(0, 1.0),
            meter=model.meter,
            relevance=model.relevance,
        )
        self.can_async = False
        self.replies: list[Reply] = []
        self._pace, self._seconds = pace, seconds

    def complete(self, prompt: Prompt, _: Deadline) -> Reply:
        call = super().complete
        # The time counts from the call itself, not from the wait for the pace.
        reply = self._pace.call(lambda: call(prompt, Deadline.after(self._seconds)))
        self.replies.append(reply)
        return reply

    def find_blocking_error(self) -> None:
        return None
