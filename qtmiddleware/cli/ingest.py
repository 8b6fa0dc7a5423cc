"""``qtm ingest``: documents into the index."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from qtmiddleware.cli.console import AsJson, ConfigFile, as_json, notes, out, show_progress, show_warnings
from qtmiddleware.cli.environment import files_of, note_files
from qtmiddleware.cli.terminal import FAILED, escape_json, escape_line, note
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.providers.stores.sqlite.files import MEMORY
from qtmiddleware.rag.ingestion import IngestReport, Progress, Stage, ingest

_LABELS: dict[Stage, str] = {
    "reading": "reading documents",
    "contexts": "writing contexts",
    "embedding": "embedding chunks",
    "publishing": "writing the index",
}


def ingest_command(
    data_path: Annotated[
        str | None, typer.Argument(help="File, folder or glob (in quotes); without one, dataPath of the config.")
    ] = None,
    config: ConfigFile = None,
    index: Annotated[str | None, typer.Option(help="Where the index is kept, in place of indexPath.")] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write log lines in JSON instead of a progress bar, as into a pipe.")
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Read, cut and embed documents and store them; what is known already is left alone."""
    loaded = Config.load(config)
    if index is not None:
        loaded = loaded.overridden({"indexPath": index})
    settings = loaded.settings
    if settings.store.kind == "memory" or (settings.store.kind == "sqlite" and settings.index_path == MEMORY):
        message = (
            "an index in memory would be gone when qtm ends; set store.kind to another, indexPath to a place on disk"
        )
        raise ConfigError(message, path="store.kind", value=settings.store.kind)
    documents = settings.data_path if data_path is None else None
    has_bars = notes.is_terminal and not log_json
    with _show_bars() if has_bars else _write_log_lines() as listener:
        # Where every line is an object, this one is too.
        tell = None if has_bars else logging.getLogger("qtmiddleware.ingest").info
        note_files({**files_of(loaded, ingests=True), "documents": documents}, config=config, tell=tell)
        report = ingest(data_path, config=loaded, progress=listener)
    for one in report.skipped:
        note(escape_line(f"skipped: {one.path}: {one.reason}"))
    if json_output:
        as_json(report.to_dict())
    else:
        out.print(_sum_up(report))
    if report.all_skipped:
        raise typer.Exit(FAILED)


@contextmanager
def _show_bars() -> Iterator[Callable[[Progress], None]]:
    """A progress bar for each stage, on a terminal, and warnings above it."""
    with show_progress() as update, show_warnings():
        yield lambda step: update(_LABELS[step.stage], step.done, step.total)


@contextmanager
def _write_log_lines() -> Iterator[None]:
    """Warnings of the package and every line of the ingest on standard error, one JSON object a line."""
    package, ingest_logger = logging.getLogger("qtmiddleware"), logging.getLogger("qtmiddleware.ingest")
    handler, before = logging.StreamHandler(sys.stderr), ingest_logger.level
    handler.setFormatter(_JsonLine())
    package.addHandler(handler)
    ingest_logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        package.removeHandler(handler)
        ingest_logger.setLevel(before)


class _JsonLine(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"level": record.levelname.lower(), "message": record.getMessage()}
        if hasattr(record, "event"):
            line |= {"message": record.event, "meta": record.meta}  # type: ignore[attr-defined]
        return escape_json(json.dumps(line))


def _sum_up(report: IngestReport) -> str:
    lines = [
        (
            f"{report.documents} documents in {report.chunks} chunks: {report.added} added, {report.changed} changed, "
            f"{report.unchanged} unchanged, {report.removed} removed, {len(report.skipped)} skipped"
        ),
        f"{report.written} chunks written, {report.embedded} texts embedded, {report.reused} vectors known already",
    ]
    if report.contexts or report.contexts_failed:
        lines.append(f"{report.contexts} contexts written by the model, {report.contexts_failed} chunks without one")
    rate = f" ({report.embedded / report.embed_seconds:.0f} texts a second)" if report.embedded else ""
    lines.append(f"{report.seconds:.1f} s, {report.embed_seconds:.1f} s of it embedding{rate}")
    return "\n".join(lines)
