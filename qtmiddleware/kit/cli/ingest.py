"""``qtm ingest``: put documents into the index."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.environment import load_config
from qtmiddleware.kit.cli.options import AsJson, ConfigFile, Engine, Sets
from qtmiddleware.kit.cli.output import (
    divert_stdout,
    notes,
    open_progress_bar,
    out,
    show_warnings,
    write_json,
    write_note,
)
from qtmiddleware.kit.documents.finding import EXTENSIONS, format_file_counts
from qtmiddleware.kit.index.ingestion import IngestReport, Progress, Stage, ingest
from qtmiddleware.kit.stores.database import MEMORY
from qtmiddleware.preprocessing.hidden_characters import escape_json
from qtmiddleware.preprocessing.text import format_count

_logger: Final = logging.getLogger("qtmiddleware.ingest")
_LABELS: Final[dict[Stage, str]] = {
    "reading": "reading documents",
    "contexts": "writing contexts",
    "embedding": "embedding chunks",
    "publishing": "writing the index",
}


def command(
    data_path: Annotated[
        str | None,
        Argument(help="File, folder or glob (in quotes). Default: dataPath of the config."),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    engine: Engine = None,
    json_output: AsJson = False,
) -> None:
    """Read, split, embed and store documents.

    Documents that have not changed since the last run are skipped.

    With --engine ray a local model runs on the Ray cluster at RAY_ADDRESS, or
    on a cluster that the command starts on this machine and ends again.
    """
    has_bars = notes.is_terminal
    if engine is not None:
        # Ray writes messages to stdout, where programs read the report.
        divert_stdout()
    with _open_bar() if has_bars else _open_json_log() as listener:
        loaded = load_config(config, sets, on_file=None if has_bars else _log_config_file)
        store = loaded.settings.store.kind
        if store == "memory" or (store == "sqlite" and loaded.settings.index_path == MEMORY):
            raise ConfigError(
                "the index must be kept on disk, because memory is lost when qtm ends; set"
                " store.kind and indexPath",
                path="store.kind",
            )
        report = ingest(data_path, config=loaded, progress=listener, on_ray=engine is not None)
    _report_files(report)
    if json_output:
        write_json(asdict(report))
    else:
        out.write("\n".join(_summarize(report)))
    if report.all_skipped:
        raise typer.Exit(FAILED)


def _log_config_file(path: str) -> None:
    _logger.info(
        "Loading config: %s", path, extra={"event": "Loading config", "meta": {"path": path}}
    )


@contextmanager
def _open_bar() -> Iterator[Callable[[Progress], None]]:
    with open_progress_bar() as update, show_warnings():
        yield lambda step: update(_LABELS[step.stage], step.done, step.total)


@contextmanager
def _open_json_log() -> Iterator[None]:
    """Write log records to stderr as JSON during the ``with`` block, one object per line."""
    package, old_level = logging.getLogger("qtmiddleware"), _logger.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLineFormatter())
    package.addHandler(handler)
    # The ingest logs its progress at this level, which is off by default.
    _logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        _logger.setLevel(old_level)


class _JsonLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"level": record.levelname.lower(), "message": record.getMessage()}
        if hasattr(record, "event"):
            line |= {"message": record.event, "meta": record.meta}  # type: ignore[attr-defined]
        return escape_json(json.dumps(line))


def _report_files(report: IngestReport) -> None:
    missing: dict[str, Counter[str]] = {}
    for file in report.skipped:
        if file.extra:
            # Files that lack only an installable extra share one line per extra.
            missing.setdefault(file.extra, Counter())[Path(file.path).suffix.casefold()] += 1
        else:
            write_note(f"skipped: {file.path}: {file.reason}")
    for extra, counts in sorted(missing.items()):
        endings = ", ".join(f"{ending} ({count})" for ending, count in sorted(counts.items()))
        files = format_count(counts.total(), "file")
        write_note(f'{files} not read: {endings}; run: pip install "qtmiddleware[{extra}]"')
    if report.left_out:
        write_note(
            f"left out: {format_file_counts(report.left_out)}; supported: {' '.join(EXTENSIONS)};"
            " save files that should be found in one of these formats"
        )


def _summarize(report: IngestReport) -> Iterator[str]:
    yield (
        f"{format_count(report.documents, 'document')} in {format_count(report.chunks, 'chunk')}:"
        f" {report.added} added, {report.changed} changed, {report.unchanged} unchanged,"
        f" {report.removed} removed, {len(report.skipped)} skipped"
    )
    yield (
        f"{format_count(report.written, 'chunk')} written,"
        f" {format_count(report.embedded, 'text')} embedded; {report.seconds:.1f} s"
    )
    if report.contexts or report.contexts_failed:
        yield (
            f"{format_count(report.contexts, 'context')} written by the model,"
            f" {format_count(report.contexts_failed, 'chunk')} without one"
        )
