"""What ``qtm bench`` shows: a bar while it works, the table, and notes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.cells import cell_len
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from qtmiddleware.cli.console import PlainConsole, notes, out
from qtmiddleware.evaluation import Comparison
from qtmiddleware.evaluation import Progress as Told

# What a narrow terminal does without, first of all the first.
_DISPENSABLE = ("R@100", "MRR@10", "R@10", "p95", "helped", "calls", "$/1k", "+ms p50")


def show(comparison: Comparison) -> None:
    """Write the table of *comparison* to stdout, with what to take home from it."""
    from qtmiddleware.evaluation import reporting

    headings, rows = reporting.headings(comparison), reporting.rows(comparison)
    shown = list(range(len(headings)))
    if out.is_terminal:
        for heading in _DISPENSABLE:
            if _width(headings, rows, shown) > out.width and heading in headings:
                shown.remove(headings.index(heading))
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    line(f"{comparison.dataset}: {comparison.questions:,} questions{passages}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in shown:
        # Where even that is too wide, names are cut, and numbers never.
        least = max(cell_len(row[at]) for row in (headings, *rows)) if at else None
        table.add_column(headings[at], justify="right" if at else "left", no_wrap=True, min_width=least)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    # A file or a pipe has no width.
    console = out if out.is_terminal else PlainConsole(width=_width(headings, rows, shown))
    console.print(table, soft_wrap=False)
    line(reporting.verdict(comparison))


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    """The characters a table with these columns takes."""
    return sum(3 + max(cell_len(row[at]) for row in (headings, *rows)) for at in shown)


def line(text: str) -> None:
    """Write *text* to stdout."""
    out.print(text)


@contextmanager
def progress() -> Iterator[Told]:
    """A bar on stderr that shows what is done just now; none where that is no terminal."""
    columns = TextColumn("{task.description:<32}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bars:
        task = bars.add_task("reading", total=None)
        shown = ""

        def told(what: str, done: int, total: int) -> None:
            nonlocal shown
            if what != shown:
                bars.reset(task, description=what, total=total)
                shown = what
            bars.update(task, completed=done)

        yield told


@contextmanager
def warnings_noted() -> Iterator[None]:
    """Show what is warned of meanwhile, but for what is counted: that a retrieval was degraded."""
    package, handler = logging.getLogger("qtmiddleware"), _Notes(logging.WARNING)
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)


class _Notes(logging.Handler):
    """Warnings as notes, each once."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if not said.startswith("retrieval ") and said not in self._said:
            self._said.add(said)
            note(f"{record.levelname.lower()}: {said}")


def note(text: str) -> None:
    """Write *text* to stderr."""
    notes.print(text, soft_wrap=True)
