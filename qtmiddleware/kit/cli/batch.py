"""Run the steps that ``--batch`` names: submit questions to a Batch API, or collect replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import console
from qtmiddleware.kit.cli.console import open_progress_bar, out, show_warnings
from qtmiddleware.kit.cli.own_function import COUNTED
from qtmiddleware.kit.cli.terminal import FAILED, escape_line, write_note
from qtmiddleware.kit.cli.transform_file import open_bulk_progress, summarize_bulk_report
from qtmiddleware.preprocessing.text import format_count

if TYPE_CHECKING:
    from qtmiddleware.kit.bulk.batch import BatchStatus, BatchWork, Part
    from qtmiddleware.kit.bulk.batch.costs import Cost
    from qtmiddleware.kit.bulk.run import BulkReport
    from qtmiddleware.kit.evaluation.bench import BenchOptions

_MOST_NAMED: Final = 10
_HOUR: Final = 3_600


class BatchCommand(StrEnum):
    """A step of a batch run, such as submitting requests or collecting replies."""

    SUBMIT = "submit"
    STATUS = "status"
    COLLECT = "collect"
    CANCEL = "cancel"


Batch = Annotated[
    BatchCommand | None,
    typer.Option(
        "--batch", help="Step to run with OpenAI's Batch API (half the price, within 24 hours)."
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        min=1_000,
        help="Most tokens queued in batches at once, as your account allows. Default: no limit.",
    ),
]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The values of ``--batch`` and the related options.

    Creating the options raises `ConfigError` if two values exclude each other.

    Attributes:
        command: The step to run, or ``None`` without ``--batch``.
        tokens: The maximum number of tokens in unfinished batches; ``None`` for no limit.
        overwrite: Whether ``submit`` overwrites existing output.
        as_json: Whether to write the outcome as JSON.
    """

    command: BatchCommand | None
    tokens: int | None
    overwrite: bool = False
    as_json: bool = False

    def __post_init__(self) -> None:
        if not self.is_given:
            return
        if self.tokens is not None and self.command is not BatchCommand.SUBMIT:
            raise ConfigError("--batch-tokens needs --batch submit", path="--batch-tokens")
        if self.overwrite and self.command is not BatchCommand.SUBMIT:
            reason = "the other steps continue with what is there"
            raise ConfigError(f"--overwrite needs --batch submit: {reason}", path="--overwrite")

    @property
    def is_given(self) -> bool:
        """``True`` if the user set ``--batch`` or ``--batch-tokens``."""
        return self.command is not None or self.tokens is not None

    def run_step(self, work: BatchWork) -> BatchStatus:
        """Run the step `command` on *work*, and return the new status of the batches."""
        match self.command:
            case BatchCommand.SUBMIT:
                return work.submit(self.tokens)
            case BatchCommand.COLLECT:
                return work.collect()
            case BatchCommand.CANCEL:
                return work.cancel()
            case _:
                return work.status()


def run_transform_batch(
    config: Config, question_file: str, output_file: str, options: BatchOptions
) -> None:
    """Run one batch step for the questions in *question_file*, and show the outcome.

    Args:
        config: The settings of the model and of the transformation.
        question_file: The path of the file that contains the questions.
        output_file: The path of the file for the transformed questions.
        options: The step to run, and the options of the step.

    Raises:
        typer.Exit: A question failed, or ``collect`` left open requests. The exit code is 1.
    """
    from qtmiddleware.kit.bulk.batch.transforming import open_batch_work

    with (
        open_bulk_progress() as show,
        show_warnings(),
        open_batch_work(
            question_file, output_file, config=config, overwrite=options.overwrite, show=show
        ) as (work, report),
    ):
        status = options.run_step(work)
    if options.as_json:
        console.write_json({**status.to_dict(), "report": report.to_dict()})
    else:
        show_batch_status(status, options.command, report)
    if not report.is_whole or (options.command is BatchCommand.COLLECT and status.open):
        raise typer.Exit(FAILED)


def run_bench_batch(
    systems: Mapping[str, Mapping[str, Any]],
    dataset_path: Path,
    bench_options: BenchOptions,
    batch_options: BatchOptions,
) -> None:
    """Run one batch step for all model calls of *systems* on a data set, and show the outcome.

    Args:
        systems: The settings of the systems, by name.
        dataset_path: The path of the data set.
        bench_options: The options for opening the data set.
        batch_options: The step to run, and the options of the step.

    Raises:
        typer.Exit: ``collect`` left open requests. The exit code is 1.
    """
    from qtmiddleware.kit.bulk.batch import BatchService, BatchState, BatchWork
    from qtmiddleware.kit.evaluation.bench.batch import BenchPass

    settings = bench_options.settings
    with (
        open_progress_bar() as update,
        show_warnings(hidden_degradations=COUNTED),
        closing(BatchService(settings)) as service,
        BatchState(bench_options.cache / "batch") as state,
    ):
        bench_pass = BenchPass(systems, dataset_path, replace(bench_options, progress=update))
        status = batch_options.run_step(BatchWork(settings, service, state, bench_pass))
    if batch_options.as_json:
        console.write_json(status.to_dict())
    else:
        show_batch_status(status, batch_options.command)
    if batch_options.command is BatchCommand.COLLECT:
        if not bench_options.model_ms:
            write_note(
                "The time of a batch reply is not known; each one counts as --model-ms (here 0 ms)."
            )
        if status.open:
            raise typer.Exit(FAILED)


def show_batch_status(
    status: BatchStatus, command: BatchCommand | None, report: BulkReport | None = None
) -> None:
    """Write the status of the batches, and the next command to run.

    Args:
        status: The status of the batches.
        command: The step that produced *status*.
        report: The report on the transformed questions, if there is one.
    """
    # `submit` shows only the batches it has just sent. The other steps show all batches.
    _show_batch_table(status.parts if command is not BatchCommand.SUBMIT else status.sent)
    if report is not None and (report.made or command is BatchCommand.COLLECT):
        out.print(summarize_bulk_report(report))
    for line in _describe_batch_status(status, command):
        out.print(line)
    for line in _describe_batch_problems(status):
        write_note(escape_line(line))


def _show_batch_table(batch_parts: tuple[Part, ...]) -> None:
    """Write a table of the batches to stdout, with one row per batch."""
    if not batch_parts:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in (
        "part",
        "batch",
        "status",
        "requests",
        "done",
        "failed",
        "MB",
        "age",
        "expires in",
    ):
        table.add_column(
            heading, justify="left" if heading in ("batch", "status") else "right", no_wrap=True
        )
    for part in batch_parts:
        created, expires = part.batch.get("created_at"), part.batch.get("expires_at")
        age = "" if not created else _format_duration(time() - created)
        time_left = "" if part.settled or not expires else _format_duration(expires - time())
        status = f"{part.status}, collected" if part.settled and part.batch else part.status
        counts = (f"{count:,}" for count in (part.requests, part.completed, part.failed))
        id_ = escape_line(str(part.batch.get("id", "")))
        table.add_row(
            str(part.number),
            id_,
            escape_line(status),
            *counts,
            f"{part.size / 1e6:.1f}",
            age,
            time_left,
        )
    # A file or a pipe has no width.
    (out if out.is_terminal else console.PlainConsole(width=200)).print(table, soft_wrap=False)


def _describe_batch_status(status: BatchStatus, command: BatchCommand | None) -> Iterator[str]:
    """Yield lines on the open requests, the cost of the answered requests, and the next step."""
    if status.expected.read:
        yield (
            f"under way: {format_count(status.underway, 'request')}, at most"
            f" {_describe_cost(status.expected)}"
        )
    if status.spent.read or status.spent.written:
        yield f"answered: {_describe_cost(status.spent)}"
    # A part is saved before it is sent, so an interruption leaves a part without a batch.
    if any(not part.batch and not part.settled for part in status.parts):
        yield "a submit was interrupted; run --batch submit again to continue"
    if status.missing:
        condition = "when other batches have ended" if status.underway else "to send them"
        yield (
            f"{format_count(status.missing, 'request')} not sent yet: run --batch submit again"
            f" {condition}"
        )
    elif status.underway and command is not BatchCommand.CANCEL:
        yield "next: --batch status, and --batch collect once batches have ended"
    elif status.underway:
        yield "next: --batch collect, for what was answered before they stop"
    elif command is not BatchCommand.COLLECT:
        yield "nothing is under way"


def _describe_cost(cost: Cost) -> str:
    tokens = f"{cost.read:,} tokens read, {cost.written:,} written"
    if cost.live is None:
        return f"{tokens}; the price of the model is not known"
    if cost.batch is None:
        return f"{tokens}: ${cost.live:,.4f} with single calls; the batch price is not known"
    return f"{tokens}: ${cost.batch:,.4f} by batch, ${cost.live:,.4f} with single calls"


def _describe_batch_problems(status: BatchStatus) -> Iterator[str]:
    """Yield lines on rejected batches, failed requests, and unreadable or skipped replies."""
    tally = status.tally
    for part in status.parts:
        # A rejected batch may have many errors; one is shown, and the rest are counted.
        for error in part.errors[:1]:
            suffix = f" and {len(part.errors) - 1:,} more" if len(part.errors) > 1 else ""
            yield f"part {part.number} was rejected: {error}{suffix}{_suggest_batch_fix(error)}"
    if tally.failures:
        failed = ", ".join(
            f"{count:,} {problem}" for problem, count in tally.failures.most_common()
        )
        refused = f"; {tally.refused:,} of them would be rejected again" if tally.refused else ""
        yield f"requests that were not answered: {failed}{refused}"
    for lines, problem in ((tally.broken, "not read"), (tally.short, "fewer lines than expected")):
        if lines:
            suffix = "; ..." if len(lines) > _MOST_NAMED else ""
            yield f"{problem}: {'; '.join(lines[:_MOST_NAMED])}{suffix}"
    for count, problem in (
        (tally.repeated, "came twice"),
        (tally.unknown, "do not belong to any request"),
    ):
        if count:
            yield f"{count:,} replies {problem} and were skipped"


def _suggest_batch_fix(error_message: str) -> str:
    """Return advice on how to fix a rejected batch, or ``""`` if no advice is known."""
    if not error_message.startswith("token_limit_exceeded"):
        return ""
    return "; submit again when other batches have ended, with --batch-tokens below that limit"


def _format_duration(seconds: float) -> str:
    hours, seconds_left = divmod(max(0, round(seconds)), _HOUR)
    return f"{hours} h {seconds_left // 60} min" if hours else f"{seconds_left // 60} min"
