"""``qtm transform``: apply the rules and the language model to questions or to a file of them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from qtmiddleware.catalogue import TEXT_FIELDS, Transformation
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.bulk import CONCURRENCY, transform_file
from qtmiddleware.kit.check import MODEL_FIXES
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.environment import load_config
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
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.transforms import NONE_NEEDED, SAME
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

# A failure of the model is noted in the transformation, so none means that the model was not asked.
_NOT_ASKED: Final = "a greeting or thanks, and codes and numbers alone, are searched as they are."


def command(
    questions: Questions = None,
    kind: Kind = None,
    config: ConfigFile = None,
    sets: Sets = None,
    file: Annotated[
        Path | None,
        Option(help="CSV, JSON or text file of questions, one per line; needs --out."),
    ] = None,
    output: Annotated[
        Path | None,
        Option(
            "--out",
            help=(
                "JSON-lines file to append to, one line per question of --file; questions already"
                " there are skipped."
            ),
        ),
    ] = None,
    concurrency: Annotated[
        int, Option(min=1, max=64, help="Most questions at the same time, with --file.")
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
    if ("transformation_type",) not in loaded.sources:
        loaded = loaded.overridden({"transformationType": "combined"})
    if file is not None and output is not None:
        if questions:
            raise ConfigError("pass questions or --file, not both", path="--file")
        _transform_file(loaded, file, output, concurrency, on_ray=bool(engine), as_json=json_output)
    elif file is not None or output is not None or engine is not None:
        raise ConfigError("--file and --out need each other, and --engine needs both", path="--out")
    else:
        _transform_questions(loaded, questions, as_json=json_output)


def _transform_questions(
    config: Config,
    questions: list[str] | None,
    *,
    as_json: bool,
) -> None:
    settings = config.settings
    calls_model = settings.transformation_type != "none" and settings.escalation.mode != "never"
    rows: list[dict[str, Any]] = []
    reasons: set[str] = set()
    # One usable reply shows that the model works.
    is_usable = False
    with QueryMiddleware(config) as middleware:
        for text in questions or filter(str.strip, (line.rstrip("\r\n") for line in sys.stdin)):
            transformation = middleware.transform(text)
            remarks = {remark for _, remark in transformation.notes}
            reasons |= remarks
            if not transformation.is_empty or remarks & {NONE_NEEDED, SAME}:
                is_usable = True
            elif calls_model and not remarks:
                write_note(f"No model was called for {shorten_text(text)!r}: {_NOT_ASKED}")
            keywords = middleware.preprocess(text)
            rows.append({"query": text, "preprocessed": keywords, **asdict(transformation)})
            if as_json:
                continue
            if not questions or len(questions) > 1:
                out.write(("\n" if len(rows) > 1 else "") + f"Question: {' '.join(text.split())}")
            if not calls_model:
                out.write(f"query: {text}\npreprocessed: {keywords}")
            _show_texts(transformation)
    if as_json:
        write_json(rows)
    if reasons and not is_usable:
        fixes = [f"; {MODEL_FIXES[reason]}" for reason in sorted(reasons) if reason in MODEL_FIXES]
        raise ModelError(
            "unavailable",
            f"the language model's reply was not usable ({', '.join(sorted(reasons))})"
            + "".join(fixes),
        )


def _show_texts(transformation: Transformation) -> None:
    for name, row in TEXT_FIELDS.items():
        for variant in transformation.texts(name):
            out.write(f"{row.label}: {variant}")
    for stage, remark in transformation.notes:
        notes.write(f"{stage}: {remark}")


def _transform_file(
    config: Config,
    questions: Path,
    results: Path,
    concurrency: int,
    *,
    on_ray: bool,
    as_json: bool,
) -> None:
    if on_ray:
        # Ray writes messages to stdout, where programs read the report.
        divert_stdout()
    try:
        with open_progress_bar() as update, show_warnings():
            report = transform_file(
                questions,
                results,
                config=config,
                concurrency=concurrency,
                show=lambda now: update("transforming", now.before + now.made, now.total),
                on_ray=on_ray,
            )
    except ConfigError:
        raise
    except (KeyboardInterrupt, QtMiddlewareError):
        # The lines are counted in the file, because an interrupt may come after a line is written
        # and before the report counts it.
        lines = results.read_bytes().count(b"\n") if results.is_file() else 0
        write_note(f"{format_count(lines, 'line')} in {results}; run the same command to continue")
        raise
    failed = sum(report.failed.values())
    if failed:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.failed.items())
        questions_failed = format_count(failed, "question")
        write_note(f"{questions_failed} failed ({reasons}); run the same command to retry")
    if as_json:
        write_json(asdict(report))
    else:
        out.write(
            f"{format_count(report.total, 'question')}: {report.made - failed:,} transformed,"
            f" {failed:,} failed, {report.before:,} done before"
        )
    if failed:
        raise typer.Exit(FAILED)
