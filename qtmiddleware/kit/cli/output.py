"""Print text, JSON, notes, warnings and progress, and write reports."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.preprocessing.hidden_characters import escape_hidden, escape_json

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation import Report

_NO_LIMIT: Final = 10_000

ShowProgress = Callable[[str, int, int | None], None]
"""Shows progress. Takes a step's name, the number of finished items and the total, if known."""


class PlainConsole(Console):
    """A rich console that ignores markup, and shows hidden characters as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of *renderable*, without hidden characters."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(escape_hidden(part.text), part.style)

    def write(self, text: str = "") -> None:
        """Write *text* and a line feed. On a terminal, lines break between words."""
        self.print(escape_hidden(text), soft_wrap=not self.is_terminal)


out = PlainConsole()
notes = PlainConsole(stderr=True)


def divert_stdout() -> None:
    """Send to stderr what other code writes to stdout. Only this module goes on writing there.

    C libraries and child processes are diverted too, and so is what they write at exit. Call this
    before code of the user runs, because its output would break the command's JSON.
    """
    stream = sys.stdout
    if stream is sys.stderr:
        return
    try:
        is_descriptor = stream.fileno() == 1
    except OSError:
        is_descriptor = False
    if is_descriptor:
        stream.flush()
        stream = os.fdopen(os.dup(1), "w", encoding=stream.encoding, errors="replace")
        os.dup2(sys.stderr.fileno(), 1)
    out.file = stream
    sys.stdout = sys.stderr


def write_note(text: str) -> None:
    """Write *text* to stderr as one line, with escapes for line ends and tabs."""
    # A file name with a line break could otherwise forge a line of output.
    line = escape_hidden(text.replace("\r", "\\r")).replace("\n", "\\n").replace("\t", "\\t")
    notes.write(line)


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Write *value* to stdout as one JSON document; in one line if *indent* is ``None``."""
    # On Windows, stdout may not be UTF-8. JSON escapes are readable in every encoding.
    is_utf8 = getattr(out.file, "encoding", "").lower() == "utf-8"
    document = json.dumps(value, ensure_ascii=not is_utf8, indent=indent)
    out.file.write(escape_json(document) + "\n")
    out.file.flush()


def show_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Sequence[str] = ()
) -> None:
    """Write a table to stdout, and a blank line. The first column has names.

    If the output is too narrow, columns with *optional* headings are left out, in that order.
    """
    is_limited = out.is_terminal or os.environ.get("COLUMNS", "").isdecimal()
    # A file or a pipe has no limit but COLUMNS.
    width = out.width if is_limited else _NO_LIMIT
    columns = {heading: [row[at] for row in rows] for at, heading in enumerate(headings)}
    for heading in optional:
        widths = [max(map(len, (name, *cells))) for name, cells in columns.items()]
        if sum(widths) + 2 * len(widths) > width:
            columns.pop(heading, None)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for number, heading in enumerate(columns):
        if number:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    PlainConsole(file=out.file, width=width).print(table)
    out.write()


@contextmanager
def open_progress_bar() -> Iterator[ShowProgress]:
    """Yield a function that shows progress in a bar on stderr, if stderr is a terminal."""
    bar = Progress(
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=notes,
        transient=True,
        disable=not notes.is_terminal,
    )
    task = bar.add_task("", total=None)
    step = ""

    def update(step_name: str, done: int, total: int | None) -> None:
        nonlocal step
        if step_name != step:
            # The bar starts here, because the command may first ask something at the terminal.
            bar.start()
            bar.reset(task, description=step_name, total=total)
            step = step_name
        bar.update(task, completed=done, refresh=not done)

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def show_warnings(*, hidden_events: Iterable[str] = ()) -> Iterator[None]:
    """Show the package's warnings on stderr, each once, apart from those about *hidden_events*."""
    package, handler = logging.getLogger("qtmiddleware"), _NoteHandler(logging.WARNING)
    hidden = frozenset(hidden_events)
    handler.addFilter(lambda record: getattr(record, "qtm", {}).get("event") not in hidden)
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)


class _NoteHandler(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if text not in self._seen:
            self._seen.add(text)
            write_note(text)


def check_report(file: Path) -> None:
    """Check that a report can be written to *file*, and create its folder."""
    if file.suffix not in (".md", ".json", ".html"):
        raise ConfigError(f"{file} must end with .md or .json or .html", path="--report")
    if file.suffix != ".json":
        try:
            import jinja2  # noqa: F401
        except ImportError as error:
            raise MissingExtra("jinja2", "eval") from error
    from qtmiddleware.runtime.files import refuse_link

    with name_option_in_errors(file, "--report"):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Creating a file shows on every system whether the folder is writable.
        with TemporaryFile(dir=file.parent):
            refuse_link(file)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")


def write_report(
    file: Path,
    report: Report,
    values: Mapping[str, Any],
) -> None:
    """Write *report*, or *values* as JSON, to *file*, and a note that names *file* to stderr."""
    from qtmiddleware.kit.files import replace_file

    if file.suffix == ".json":
        text = escape_json(json.dumps(values, ensure_ascii=False, indent=2)) + "\n"
    else:
        text = report.to_html() if file.suffix == ".html" else report.to_markdown()
    with name_option_in_errors(file, "--report"):
        replace_file(file, text.encode("utf-8", "replace"))
    write_note(f"The report is in {file}.")


@contextmanager
def name_option_in_errors(path: Path, option_name: str) -> Iterator[None]:
    """Turn an `OSError` into a `ConfigError` that names *path* and the option to change."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or type(error).__name__}; name another"
            f" place with {option_name}",
            path=option_name,
        ) from error
