"""Transform a file of questions with a model, and write and count the results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.bulk.fingerprint import build_fingerprint
from qtmiddleware.kit.bulk.journal import Journal, open_journal
from qtmiddleware.kit.bulk.queries import (
    JSON_LINES,
    BrokenLine,
    InputQuery,
    count_non_blank_lines,
    read_queries,
)
from qtmiddleware.kit.bulk.stream import Transformed, transform_stream
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

ROUNDS: Final = 4
"""The number of questions in a batch of a Ray worker, per concurrent call.

If the run is killed, the questions of unfinished batches are asked again.
"""
CONCURRENCY: Final = 8
"""The default maximum number of concurrent model calls."""
MOST_NAMED: Final = 20
"""The maximum number of broken lines to list. All broken lines are counted."""
STDIN: Final = "-"

Record = dict[str, Any]
ShowBulk = Callable[["BulkReport"], None]
"""A function that receives the report when the run begins and after each line.

Each call gets the same report object, which the run keeps up to date.
"""


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

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes of this report as JSON values."""
        return {**asdict(self), "failed": dict(self.failed), "seconds": round(self.seconds, 3)}

    def add(self, record: Record) -> None:
        """Add *record*, one line of the output, to the counts of this report."""
        # The record of a broken line has no question.
        if "query" not in record:
            self.broken_lines += 1
            self.broken += (
                [(record["line"], record["error"])] if len(self.broken) < MOST_NAMED else []
            )
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

    The output has one JSON line per question or broken line of the input, in the order in which the
    input lines are finished. An output line has the input line's number (``line``), the question,
    the transformation and its cost. A failed question has an ``error`` with the reason.

    If *out* exists, only questions without a result are transformed. After an exception, *out* has
    all results so far; repeat the call to continue.

    Args:
        source: The path of the input file; ``-`` stands for standard input.
        out: The path of the output file.
        config: The config with the settings of the run.
        client: The language model, in any form that `QueryMiddleware` accepts.
        concurrency: The maximum number of model calls at a time. During an overload of the service,
            fewer calls run at a time; see `kit.bulk.pace`.
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
    # Standard input has no file extension, so its first line decides whether it is JSON.
    has_json = None if source == STDIN else Path(source).suffix.casefold() in JSON_LINES
    report, began = BulkReport(), monotonic()

    def write_record(record: Record) -> None:
        journal.append_record(record)
        report.add(record)
        report.seconds = monotonic() - began
        if show is not None:
            show(report)

    with (
        _open_input_file(source, path) as file,
        open_journal(path, build_fingerprint(config.settings), overwrite=overwrite) as journal,
    ):
        # Standard input can be read only once, so its lines cannot be counted in advance.
        report.total = None if source == STDIN else count_non_blank_lines(Path(source))
        if show is not None:
            show(report)
        queries = _select_open_questions(
            read_queries(file, has_json=has_json), journal, report, write_record
        )
        generator = (
            _transform_on_ray(queries, config, concurrency)
            if on_ray
            else _transform_in_process(queries, config, client, concurrency)
        )
        # If a record cannot be written, this stops the model calls at once.
        with closing(generator) as records:
            for record in records:
                write_record(record)
    report.seconds = monotonic() - began
    return report


def _transform_in_process(
    queries: Iterable[InputQuery], config: Config, client: Any, concurrency: int
) -> Generator[Record]:
    """Transform *queries* in this process, and yield each output record as soon as it is ready."""
    with (
        QueryMiddleware(config, client=client) as middleware,
        closing(transform_stream(middleware, queries, concurrency=concurrency)) as stream,
    ):
        for transformed in stream:
            yield _build_record(transformed, middleware.preprocess(transformed.question.text))


def _transform_on_ray(
    queries: Iterable[InputQuery], config: Config, concurrency: int
) -> Generator[Record]:
    """Transform *queries* on a Ray cluster, and yield the output records of each finished batch."""
    from qtmiddleware.kit.ray_data import map_on_ray

    build = partial(_build_batch_transformer, config, concurrency)
    rest = iter(queries)
    batches = iter(lambda: list(islice(rest, concurrency * ROUNDS)), [])
    for records in map_on_ray(build, batches):
        yield from records


def _build_batch_transformer(
    config: Config, concurrency: int
) -> Callable[[Sequence[InputQuery]], Iterator[Record]]:
    """Return a function that transforms a batch of questions with the model in *config*.

    The returned function makes at most *concurrency* model calls at a time. Each worker of a
    cluster builds its own function.
    """
    middleware = QueryMiddleware(config)

    def transform_batch(queries: Sequence[InputQuery]) -> Iterator[Record]:
        for transformed in transform_stream(middleware, queries, concurrency=concurrency):
            yield _build_record(transformed, middleware.preprocess(transformed.question.text))

    return transform_batch


def _build_record(transformed_query: Transformed[InputQuery], keywords: str) -> Record:
    """Return a question's output record, with the transformation, the token counts and the cost.

    *keywords* are the keywords that rules extracted from the question.
    """
    replies = transformed_query.replies
    return {
        **transformed_query.question.to_record(),
        **({"error": transformed_query.failure} if transformed_query.failure else {}),
        "preprocessed": keywords,
        **asdict(transformed_query.transformation),
        "calls": sum(reply.calls for reply in replies),
        "input_tokens": sum(reply.input_tokens for reply in replies),
        "output_tokens": sum(reply.output_tokens for reply in replies),
        "cost_usd": transformed_query.cost_usd,
    }


def _open_input_file(source: str | Path, out: Path) -> AbstractContextManager[BinaryIO]:
    """Open the file of questions *source*, or standard input if *source* is ``-``.

    Raises `ConfigError` if the file cannot be read, or if it is also the output file *out*.
    """
    if source == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - whoever asked closes it
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", path="--file") from error
    # The output would overwrite the questions.
    if out.exists() and out.samefile(source):
        file.close()
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    return file


def _select_open_questions(
    lines: Iterable[InputQuery | BrokenLine],
    journal: Journal,
    report: BulkReport,
    write_record: Callable[[Record], None],
) -> Iterator[InputQuery]:
    """Yield each question in *lines* that has no result in *journal* yet.

    Calls *write_record* with the record of each broken line. In *report*, counts the questions that
    already have a result.
    """
    for line in lines:
        if isinstance(line, BrokenLine):
            write_record(line.to_record())
        elif journal.has_result(line):
            report.before += 1
        else:
            yield line
