"""``qtm transform``: apply the rules and the language model to questions or to a file of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.bulk.run import CONCURRENCY, STDIN, BulkReport, transform_file
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.environment import load_config, report_default_files
from qtmiddleware.kit.cli.options import AsJson, ConfigFile, Engine, Kind, Questions, Sets
from qtmiddleware.kit.cli.output import (
    divert_stdout,
    notes,
    open_progress_bar,
    out,
    show_warnings,
    write_json,
    write_note,
)
from qtmiddleware.preprocessing.text import format_count
from qtmiddleware.transforms import NONE_NEEDED, SAME
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_ADVICE: Final = {
    "unauthorized": "set OPENAI_API_KEY, or QTM_LLM_BASE_URL for your own service",
    "unavailable": "check llm.baseUrl and the network",
    "rejected": "check transformationModel and llm.baseUrl",
    "rate_limited": "wait, or check your account's quota",
    "timeout": "raise limits.llmTimeoutMs",
    "truncated": "raise llm.maxTokens",
}
"""What to do about a model call that failed, by the reason."""


def command(
    questions: Questions = None,
    kind: Kind = None,
    config: ConfigFile = None,
    sets: Sets = None,
    history: Annotated[
        list[str] | None,
        Option(
            "--history",
            "-H",
            help="One earlier message, user and assistant in turn, oldest first. Repeatable.",
        ),
    ] = None,
    file: Annotated[
        str | None,
        Option(help="File of questions; needs --out. Use - for standard input."),
    ] = None,
    output: Annotated[
        str | None,
        Option(
            "--out",
            help=(
                "JSON-lines file to append to, one line per question of --file; questions already"
                " there are skipped."
            ),
        ),
    ] = None,
    concurrency: Annotated[
        int, Option(min=1, max=256, help="Most model calls at the same time, with --file.")
    ] = CONCURRENCY,
    engine: Engine = None,
    json_output: AsJson = False,
) -> None:
    """Show the variants a model writes.

    Without --type and without a config, one call asks for all forms (combined).
    With the type none the command shows the question and its keywords.

    With --file the questions of a file are transformed, several at a time, and
    each result is appended to --out. If the run is interrupted, run the same
    command again to continue.

    With --engine ray the workers of a Ray cluster call the model, each with its
    own rate and its own budget.
    """
    loaded = load_config(config, sets, transformation_type=kind)
    if loaded.origins["transformationType"] == "default":
        loaded = loaded.overridden({"transformationType": "combined"})
    report_default_files({}, named_config=config)
    if (file, output, engine) == (None, None, None):
        _transform_questions(loaded, questions, history or [], as_json=json_output)
        return
    if file is None or output is None:
        missing = "--file" if file is None else "--out"
        present = "--file" if file else "--out" if output else "--engine"
        raise ConfigError(f"{present} needs {missing}", path=missing)
    if questions or history:
        raise ConfigError(
            'with --file, questions and their "history" must stand in the file', path="--file"
        )
    report = _transform_file(
        loaded, file, output, concurrency=concurrency, on_ray=engine is not None
    )
    if json_output:
        write_json(report.to_dict())
    else:
        out.write(_summarize(report))
    if not report.is_whole:
        raise typer.Exit(FAILED)


def _transform_questions(
    config: Config, questions: list[str] | None, history: list[str], *, as_json: bool
) -> None:
    """Transform *questions*, or the lines of stdin, and write the results to stdout."""
    calls_model = config.settings.transformation_type != "none"
    messages = [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(history)
    ]
    rows: list[dict[str, Any]] = []
    with QueryMiddleware(config) as middleware:
        for text in questions or filter(str.strip, (line.rstrip("\r\n") for line in sys.stdin)):
            transformation = middleware.transform(text, history=messages)
            keywords = middleware.preprocess(text)
            rows.append({"query": text, "preprocessed": keywords, **asdict(transformation)})
            if as_json:
                continue
            if not questions or len(questions) > 1:
                out.write(("\n" if len(rows) > 1 else "") + f"Question: {' '.join(text.split())}")
            if not calls_model:
                out.write(f"query: {text}\npreprocessed: {keywords}")
            for name, row in TEXT_FIELDS.items():
                for variant in transformation.texts(name):
                    out.write(f"{row.label}: {variant}")
            for stage, remark in transformation.notes:
                notes.write(f"{stage}: {remark}")
    if as_json:
        write_json(rows)
    # One usable reply shows that the model works, so the command succeeds.
    if calls_model and rows and not any(map(_has_usable_reply, rows)):
        reasons = sorted({reason for row in rows for _, reason in row["notes"]})
        advice = "".join(f"; {_ADVICE[reason]}" for reason in reasons if reason in _ADVICE)
        message = f"the language model's reply was not usable ({', '.join(reasons)}){advice}"
        raise ModelError("unavailable", message)


def _has_usable_reply(row: Mapping[str, Any]) -> bool:
    """Return whether the model's reply contains a text, or says that no text is needed."""
    return any(row[name] for name in TEXT_FIELDS) or any(
        remark in (NONE_NEEDED, SAME) for _, remark in row["notes"]
    )


def _transform_file(
    config: Config, questions: str, results: str, *, concurrency: int, on_ray: bool
) -> BulkReport:
    """Transform the questions in a file, append the results to another, and return a report.

    Shows the progress and what failed on stderr. If an error stopped the run, a note says how to
    continue, because the results so far are in the output.
    """
    if on_ray:
        # Ray writes messages to stdout, where programs read the report.
        divert_stdout()
    same = "the same questions and the same command" if questions == STDIN else "the same command"
    try:
        with open_progress_bar() as update, show_warnings():
            report = transform_file(
                questions,
                results,
                config=config,
                concurrency=concurrency,
                show=lambda it: update("transforming", it.done, it.total),
                on_ray=on_ray,
            )
    except (KeyboardInterrupt, QtMiddlewareError) as error:
        # The lines are counted in the file, because an interrupt may come after a line is written
        # and before the report counts it.
        path = Path(results)
        lines = path.read_bytes().count(b"\n") if path.is_file() else 0
        if not isinstance(error, ConfigError):
            write_note(f"{format_count(lines, 'line')} in {results}; run {same} to continue")
        if not isinstance(error, ModelError):
            raise
        message = f"the run was stopped: {error}"
        if error.reason == "over_budget":
            message = f"{error}, and the budget is spent; raise the limit and run {same}"
        raise ModelError(error.reason, message) from error
    if report.broken_lines:
        lines_read = "; ".join(f"line {number}: {reason}" for number, reason in report.broken)
        more = "; ..." if report.broken_lines > len(report.broken) else ""
        name = "standard input" if questions == STDIN else questions
        write_note(
            f"{report.broken_lines:,} of {format_count(report.done, 'line')} of {name}"
            f" could not be read: {lines_read}{more}"
        )
    if report.failed:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.failed.most_common())
        failed = format_count(report.failed.total(), "question")
        write_note(f"{failed} failed ({reasons}); run {same} to retry")
    return report


def _summarize(report: BulkReport) -> str:
    """Return a summary of *report* in two lines: the questions, tokens, cost and time."""
    counts = {
        "failed": report.failed.total(),
        "not read": report.broken_lines,
        "done before": report.before,
    }
    phrases = [f"{report.asked:,} asked", f"{report.unasked:,} without a call"]
    phrases += [f"{count:,} {name}" for name, count in counts.items() if count]
    rate = report.made / report.seconds if report.seconds else 0.0
    return (
        f"{format_count(report.done, 'line')}: {', '.join(phrases)}\n"
        f"{format_count(report.calls, 'call')}, {report.input_tokens:,} tokens read,"
        f" {report.output_tokens:,} written, {_describe_cost(report)};"
        f" {report.seconds:.1f} s ({rate:.1f} per second)"
    )


def _describe_cost(report: BulkReport) -> str:
    if report.cost_usd is None:
        return "cost not known"
    # A few calls of a cheap model cost something, so rounding must not show $0.0000.
    return "<$0.0001" if 0 < report.cost_usd < 0.00005 else f"${report.cost_usd:,.4f}"
