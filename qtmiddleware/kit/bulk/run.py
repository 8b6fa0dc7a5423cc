"""A run over a file of questions: what is still to be done is transformed and written, and counted."""

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
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.bulk.fingerprint import read_fingerprint
from qtmiddleware.kit.bulk.journal import Journal, hold_journal
from qtmiddleware.kit.bulk.queries import (
    JSON_LINES,
    BrokenLine,
    InputQuery,
    count_queries,
    read_queries,
)
from qtmiddleware.kit.engines import Engine
from qtmiddleware.runtime.pace import Pace
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.transform_stream import Transformed

ROUNDS: Final = 4
"""Questions of a batch of an engine, for each call that is under way: what a driver that is killed asks again."""
CONCURRENCY: Final = 8
"""Calls of the model that are under way at most."""
MOST_NAMED: Final = 20
"""How many broken lines are named; all are counted."""
STDIN: Final = "-"

Record = dict[str, Any]
ShowBulk = Callable[["BulkReport"], None]
"""Is shown the report, which goes on changing, when the run begins and whenever a line is done."""


@dataclass(slots=True, kw_only=True)
class BulkReport:
    """What a run has done so far, in lines of the input.

    *total* is how many lines there are, ``None`` where that is not known; *before* were done by an
    earlier run. Of the others *asked* cost calls of the model, *unasked* none, as what is
    remembered or needs no model; *failed* counts why the model gave nothing, and *broken_lines*
    could not be read, the first of which are *broken*, with why. *cost_usd* is ``None`` where the
    model's price is not known.
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
        """The lines that are done now, by whatever run; those that failed or are broken too."""
        return self.before + self.made

    @property
    def made(self) -> int:
        """The lines that this run has done."""
        return self.asked + self.unasked + self.failed.total() + self.broken_lines

    @property
    def is_whole(self) -> bool:
        """Whether every line so far came out well."""
        return not (self.failed or self.broken_lines)

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        return {**asdict(self), "failed": dict(self.failed), "seconds": round(self.seconds, 3)}

    def add(self, record: Record) -> None:
        """Count one record of the output."""
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
    engine: Engine | None = None,
) -> BulkReport:
    """Transform every question of *source* (``-`` is standard input), and write what comes of each to *out*.

    A line of *out* is one of the input, in the order they are done: its number (``line``), the
    question, what was made of it, and what that cost; or, with an ``error``, why there is none.
    Where *out* holds some already the others are done, and those with an error again. *client* is
    the model, as `QueryMiddleware` takes it, *concurrency* how many calls of it are under way at
    most, as long as it keeps up: how `runtime.pace` says.

    With an *engine* the questions are transformed by its workers, each of which makes its own
    model, with its own
    *concurrency*, pace, budget and memory; this process reads and writes. The engine is not closed.

    Raises `ConfigError` where *source* cannot be read, *out* is of another config or input and is
    not to be
    *overwritten*, or a *client* is given to an *engine*, `StoreError` where *out* cannot be
    written, `ModelError` where the model cannot be asked any more, and `EngineError` where the
    workers of *engine* die again and again; what was done by then is in *out*, and the same call
    goes on from there.
    """
    if engine is not None and client is not None:
        raise ConfigError(
            "client cannot be passed with an engine, because workers make their own; name the model"
            " in the config",
            path="client",
        )
    path = Path(out)
    # Of what comes through a pipe the first line says it.
    has_json = None if source == STDIN else Path(source).suffix.casefold() in JSON_LINES
    report, began = BulkReport(), monotonic()

    def write(record: Record) -> None:
        journal.append(record)
        report.add(record)
        report.seconds = monotonic() - began
        if show is not None:
            show(report)

    with (
        open_source(source, path) as file,
        hold_journal(path, read_fingerprint(config.settings), overwrite=overwrite) as journal,
    ):
        report.total = None if source == STDIN else count_queries(Path(source))
        if show is not None:
            show(report)
        queries = select_open(
            read_queries(file, config.settings, has_json=has_json), journal, report, write
        )
        made = (
            _transform_here(queries, config, client, concurrency)
            if engine is None
            else _transform_by(engine, queries, config, concurrency)
        )
        with closing(made) as records:
            for record in records:
                write(record)
    report.seconds = monotonic() - began
    return report


def _transform_here(
    queries: Iterable[InputQuery], config: Config, client: Any, concurrency: int
) -> Generator[Record]:
    """The record of each of *queries*, as they are done in this process."""
    with (
        QueryMiddleware(config, client=client) as middleware,
        closing(middleware.transform_stream(queries, concurrency=concurrency)) as stream,
    ):
        for transformed in stream:
            yield build_record(transformed, middleware.preprocess(transformed.question.text))


def _transform_by(
    engine: Engine, queries: Iterable[InputQuery], config: Config, concurrency: int
) -> Generator[Record]:
    """The record of each of *queries*, as the workers of *engine* have done batches of them; raises their errors."""
    build = partial(build_transformer, config, concurrency)
    for batch in engine.map(build, _split(queries, concurrency * ROUNDS)):
        yield from batch.records
        if batch.error is not None:
            raise batch.error


def _split(queries: Iterable[InputQuery], size: int) -> Iterator[list[InputQuery]]:
    rest = iter(queries)
    return iter(lambda: list(islice(rest, size)), [])


@dataclass(frozen=True, slots=True)
class TransformedBatch:
    """The *records* of a batch and, where the model cannot be asked any more, the *error* that ended it."""

    records: list[Record]
    error: ModelError | None = None


def build_transformer(
    config: Config, concurrency: int
) -> Callable[[Sequence[InputQuery]], TransformedBatch]:
    """A function that transforms batches of questions, for an `Engine` to make in each of its workers.

    *concurrency* calls of the model are under way in each of them.
    """
    middleware, pace = QueryMiddleware(config), Pace(concurrency)

    def transform_batch(queries: Sequence[InputQuery]) -> TransformedBatch:
        records: list[Record] = []
        try:
            stream = middleware.transform_stream(queries, concurrency=concurrency, pace=pace)
            records.extend(
                build_record(it, middleware.preprocess(it.question.text)) for it in stream
            )
        except ModelError as error:
            return TransformedBatch(records, error)
        return TransformedBatch(records)

    return transform_batch


def build_record(transformed: Transformed[InputQuery], keywords: str) -> Record:
    """What the output says of one question."""
    replies = transformed.replies
    return {
        **transformed.question.to_record(),
        **({"error": transformed.failure} if transformed.failure else {}),
        "preprocessed": keywords,
        **asdict(transformed.transformation),
        "calls": sum(it.calls for it in replies),
        "input_tokens": sum(it.input_tokens for it in replies),
        "output_tokens": sum(it.output_tokens for it in replies),
        "cost_usd": transformed.cost_usd,
    }


def open_source(source: str | Path, out: Path) -> AbstractContextManager[BinaryIO]:
    """The questions of *source*; raises `ConfigError` where they cannot be read, or *out* is the same file."""
    if source == STDIN:
        return nullcontext(sys.stdin.buffer)
    try:
        file = Path(source).open("rb")  # noqa: SIM115 - whoever asked closes it
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}", path="--file") from error
    if out.exists() and out.samefile(source):
        file.close()
        raise ConfigError(f"--out must not be the input {out}; name another --out", path="--out")
    return file


def select_open(
    lines: Iterable[InputQuery | BrokenLine],
    journal: Journal,
    report: BulkReport,
    write: Callable[[Record], None],
) -> Iterator[InputQuery]:
    """The questions that are still to be done; of a broken line it is written that it is one."""
    for line in lines:
        if isinstance(line, BrokenLine):
            write(line.to_record())
        elif journal.holds(line):
            report.before += 1
        else:
            yield line
