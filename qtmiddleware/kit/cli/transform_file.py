"""``qtm transform --file``: transform the questions of a file, and show progress and cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from time import monotonic
from typing import Final

import typer
from rich.progress import BarColumn, Progress, TextColumn

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.bulk.run import CONCURRENCY as CONCURRENCY
from qtmiddleware.kit.bulk.run import STDIN, BulkReport, ShowBulk, transform_file
from qtmiddleware.kit.cli import console
from qtmiddleware.kit.cli.console import notes, out, show_warnings
from qtmiddleware.kit.cli.terminal import FAILED, escape_line, write_note
from qtmiddleware.preprocessing.text import format_count

MOST_CONCURRENT: Final = 256
_LEAST_COST: Final = 0.00005
"""The lowest cost that is shown as a number, in US dollars. A lower cost would round to zero."""
_SECONDS_BETWEEN_LINES: Final = 10.0
_SECONDS_BETWEEN_LOOKS: Final = 0.1


def check_file_options(
    question_file: str | None,
    output_file: str | None,
    *,
    questions: Sequence[str] | None,
    history: Sequence[str] | None,
) -> None:
    """Raise `ConfigError` if the options of ``qtm transform`` contradict each other.

    ``--file`` needs ``--out``; ``--out`` and ``--engine`` need ``--file``. They exclude
    ``--history``, and questions on the command line.
    """
    if question_file is None or output_file is None:
        missing = "--file" if question_file is None else "--out"
        present = (
            "--file"
            if question_file is not None
            else "--out"
            if output_file is not None
            else "--engine"
        )
        raise ConfigError(
            f"{present} needs {missing}: the results of a file of questions are written to a file",
            path=missing,
        )
    if questions:
        raise ConfigError("pass questions or --file, not both", path="--file")
    if history:
        raise ConfigError(
            '--history cannot be used with --file; set "history" in the line of each question',
            path="--history",
        )


def transform_question_file(
    config: Config,
    question_file: str,
    output_file: str,
    concurrency: int,
    *,
    should_overwrite: bool,
    should_write_json: bool,
    on_ray: bool,
) -> None:
    """Transform the questions in *question_file*, and append the results to *output_file*.

    Shows the progress on stderr, and a summary of the run on stdout.

    Raises:
        typer.Exit: A question failed or a line was unreadable. The exit code is 1.
        ModelError: A model error stopped the run. *output_file* contains the results so far.
    """
    report = BulkReport()

    def update_report(new_report: BulkReport) -> None:
        nonlocal report
        report = new_report
        show(new_report)

    try:
        # Ray writes messages to stdout, where programs read the report.
        with _open_bulk_progress() as show, show_warnings(), redirect_stdout(sys.stderr):
            transform_file(
                question_file,
                output_file,
                config=config,
                concurrency=concurrency,
                overwrite=should_overwrite,
                show=update_report,
                on_ray=on_ray,
            )
    # However a run ends, its results so far are in the output file.
    except KeyboardInterrupt:
        _write_continuation_note(question_file, output_file)
        raise
    except ModelError as error:
        _write_continuation_note(question_file, output_file)
        raise ModelError(error.reason, _explain_why_run_stopped(error)) from error
    except QtMiddlewareError:
        if report.made:
            _write_continuation_note(question_file, output_file)
        raise
    for line in _describe_failures(report, question_file):
        write_note(escape_line(line))
    if should_write_json:
        console.write_json(report.to_dict())
    else:
        out.print(summarize_bulk_report(report))
    if not report.is_whole:
        raise typer.Exit(FAILED)


def summarize_bulk_report(report: BulkReport) -> str:
    """Return a summary of *report* in two lines: the questions, tokens, cost and time."""
    phrases = [f"{report.asked:,} asked", f"{report.unasked:,} without a call"]
    phrases += [f"{report.failed.total():,} failed"] if report.failed else []
    phrases += [f"{report.broken_lines:,} not read"] if report.broken_lines else []
    phrases += [f"{report.before:,} done before"] if report.before else []
    tokens = (
        f"{format_count(report.calls, 'call')}, {report.input_tokens:,} tokens read,"
        f" {report.output_tokens:,} written"
    )
    return (
        f"{format_count(report.done, 'line')}: {', '.join(phrases)}\n"
        f"{tokens}, {_describe_run_cost(report)};"
        f" {report.seconds:.1f} s ({_compute_rate(report):.1f} per second)"
    )


@contextmanager
def _open_bulk_progress() -> Iterator[ShowBulk]:
    """Yield a function that shows the progress, rate, cost and remaining time of a bulk run.

    On a terminal, the function updates a bar. Otherwise, the function writes a line to stderr at
    most every 10 seconds.
    """
    if not notes.is_terminal:
        yield _make_throttled_progress(
            _SECONDS_BETWEEN_LINES, lambda report: write_note(f"{_describe_progress(report)}")
        )
        return
    columns = BarColumn(bar_width=24), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=notes, transient=True) as bars:
        task = bars.add_task("reading", total=None)

        def update_bar(report: BulkReport) -> None:
            bars.update(
                task,
                completed=report.done,
                total=report.total,
                description=_describe_progress(report),
            )

        yield _make_throttled_progress(_SECONDS_BETWEEN_LOOKS, update_bar)


def _make_throttled_progress(
    min_pause_seconds: float, show_progress: ShowBulk
) -> Callable[[BulkReport], None]:
    """Return a function that calls *show_progress* at most once per *min_pause_seconds*.

    Other calls of the returned function do nothing. The first pause begins at once.
    """
    last = monotonic()

    def show_if_due(report: BulkReport) -> None:
        nonlocal last
        if monotonic() - last >= min_pause_seconds:
            last = monotonic()
            show_progress(report)

    return show_if_due


def _describe_progress(report: BulkReport) -> str:
    """Return a line with the finished questions, the rate, the cost and the remaining time."""
    total_text = "" if report.total is None else f" of {report.total:,}"
    phrases = [
        f"{report.done:,}{total_text} questions",
        f"{_compute_rate(report):.1f} per second",
        _describe_run_cost(report),
    ]
    if report.failed:
        phrases.append(f"{report.failed.total():,} failed")
    if report.total is not None and report.made:
        phrases.append(
            f"{_format_duration((report.total - report.done) / _compute_rate(report))} left"
        )
    return ", ".join(phrases)


def _compute_rate(report: BulkReport) -> float:
    """Return the number of questions that the run transforms per second."""
    return report.made / report.seconds if report.seconds else 0.0


def _describe_run_cost(report: BulkReport) -> str:
    if report.cost_usd is None:
        return "cost not known"
    # A few calls of a cheap model cost something, so rounding must not show $0.0000.
    return "<$0.0001" if 0 < report.cost_usd < _LEAST_COST else f"${report.cost_usd:,.4f}"


def _format_duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {seconds_left} s"
        if minutes
        else f"{seconds_left} s"
    )


def _describe_failures(report: BulkReport, question_file: str) -> Iterator[str]:
    """Yield messages about failed questions and unreadable lines."""
    if report.broken_lines:
        lines = "; ".join(f"line {number}: {reason}" for number, reason in report.broken)
        suffix = "; ..." if report.broken_lines > len(report.broken) else ""
        name = "standard input" if question_file == STDIN else question_file
        yield (
            f"{report.broken_lines:,} of {format_count(report.done, 'line')} of {name}"
            f" could not be read: {lines}{suffix}"
        )
    if report.failed:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.failed.most_common())
        yield (
            f"{report.failed.total():,} questions failed ({reasons}); run the same command to retry"
            " them"
        )


def _write_continuation_note(question_file: str, output_file: str) -> None:
    """Write a note with the number of results in *output_file*, and how to continue the run."""
    condition = (
        "the same questions and the same command" if question_file == STDIN else "the same command"
    )
    # The lines are counted in the file, because an interrupt may come after a line is written and
    # before the report counts it.
    try:
        with Path(output_file).open("rb") as file:
            lines = sum(1 for _ in file)
    except OSError:
        lines = 0
    count = format_count(lines, "line")
    write_note(escape_line(f"{count} in {output_file}; run {condition} to continue"))


def _explain_why_run_stopped(error: ModelError) -> str:
    """Return a sentence on why *error* stopped the run, with advice if the run used up a budget."""
    if error.reason == "over_budget":
        return (
            f"{error}, and the budget is spent; raise the limit and run the same command to"
            " continue"
        )
    return f"the run was stopped: {error}"
