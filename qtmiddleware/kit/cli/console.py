"""Define options, consoles, progress bars and JSON output for several commands."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.text import Text

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.kit.cli.environment import CONFIG_FILES
from qtmiddleware.kit.cli.terminal import escape_line, write_note
from qtmiddleware.runtime.control_characters import escape_hidden, escape_json

ShowProgress = Callable[[str, int, int], None]
"""Shows progress. Takes a step's name, the number of finished items and the total number."""


class PlainConsole(Console):
    """A rich console that prints untrusted text safely.

    The console ignores markup in the text, and shows hidden characters as escapes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of *renderable* with hidden characters in their texts as escapes.

        The console's own control sequences stay.
        """
        for part in super().render(renderable, options):
            yield part if part.control else Segment(escape_hidden(part.text), part.style)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Write *objects*. Long lines break between words on a terminal, but not elsewhere."""
        if soft_wrap is None:
            soft_wrap = not self.is_terminal
        # The terminal itself breaks a word that is longer than a line, such as a path. So the word
        # can be copied whole.
        super().print(
            *objects, soft_wrap=soft_wrap, **{"overflow": "ignore", "crop": False, **options}
        )


class _JobClock(ProgressColumn):
    """A progress-bar column that shows the time since the start of the whole job.

    Args:
        clock: Returns the current time in seconds.
    """

    # Seconds between two refreshes of the column; rich reads this attribute.
    max_refresh = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._began = clock, clock()

    def render(self, _: Task) -> Text:
        """Return the elapsed time as minutes and seconds."""
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        return Text(f"{minutes}:{seconds:02}")


class _TimeLeft(ProgressColumn):
    """A progress-bar column that shows the estimated remaining time of the current step."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the remaining time as minutes and seconds; empty if there is no estimate."""
        if task.time_remaining is None or not task.completed or task.finished:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        return Text(f"{minutes}:{seconds:02} left")


out = PlainConsole()
notes = PlainConsole(stderr=True)

Queries = Annotated[
    list[str] | None, typer.Argument(help="Questions. Default: the lines of standard input.")
]


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        help=(
            f"Config file or preset. Default: QTM_CONFIG, else {' or '.join(CONFIG_FILES)} in this"
            " folder."
        ),
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, such as fusion.method=rrf. Repeatable.",
    ),
]


class EngineName(StrEnum):
    """Where a command's work can run instead of in this process."""

    RAY = "ray"


EngineChoice = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="Run the work on the Ray cluster at RAY_ADDRESS. Default: in this process.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]
Kind = Annotated[
    str | None, typer.Option("--type", "-t", help=f"Transformation type: {', '.join(TRANSFORMS)}.")
]
History = Annotated[
    list[str] | None,
    typer.Option(
        "--history",
        "-H",
        help="One earlier message, user and assistant in turn, oldest first. Repeatable.",
    ),
]


def write_json(value: Any) -> None:
    """Write *value* to stdout as one JSON document."""
    # On Windows, stdout may not be UTF-8. JSON escapes are readable in every encoding.
    document = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", indent=2)
    sys.stdout.write(escape_json(document) + "\n")


def read_questions(arguments: list[str] | None) -> Iterator[str]:
    """Yield the questions in *arguments* or, without arguments, in the lines of standard input.

    Skips blank lines.
    """
    if arguments:
        yield from arguments
        return
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text


def format_question_heading(question: str) -> str:
    """Return a heading for the output on one of several questions."""
    return f"Question: {' '.join(question.split())}"


def build_messages(history_texts: list[str] | None) -> list[dict[str, str]]:
    """Return one message per text of ``--history``, alternately from the user and the assistant."""
    return [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(history_texts or [])
    ]


@contextmanager
def open_progress_bar(
    console: Console = notes, clock: Callable[[], float] = monotonic
) -> Iterator[ShowProgress]:
    """Yield a function that shows progress in a bar on stderr.

    One bar serves all steps of a job. The bar shows the elapsed time of the whole job, and the
    progress and the remaining time of the current step. If stderr is not a terminal, the function
    shows nothing.
    """
    columns = (
        TextColumn("{task.description:<24}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        _JobClock(clock),
        _TimeLeft(),
    )
    bars = Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, get_time=clock
    )
    task = bars.add_task("", total=None)
    current: str | None = None
    with ExitStack() as stack:

        def update_bar(step_name: str, finished_count: int, total: int) -> None:
            nonlocal current
            is_first = current is None
            if step_name != current:
                bars.reset(task, description=step_name, total=total)
                current = step_name
            if is_first:
                # The bar starts here, because the command may first ask something at the terminal.
                stack.enter_context(bars)
            bars.update(task, completed=finished_count, refresh=True)

        yield update_bar


@contextmanager
def show_warnings(*, hidden_events: Iterable[str] = ()) -> Iterator[None]:
    """Show the package's warnings on stderr during the ``with`` block, each text once.

    Hides warnings about *hidden_events*, such as ``retrieval_degraded``, because the command itself
    shows or counts them.
    """
    package, handler = logging.getLogger("qtmiddleware"), _NoteHandler(logging.WARNING)
    hidden = frozenset(hidden_events)
    handler.addFilter(lambda record: getattr(record, "qtm", {}).get("event") not in hidden)
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)


class _NoteHandler(logging.Handler):
    """A log handler that writes each message to stderr once, however often it is logged."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if text not in self._seen:
            self._seen.add(text)
            write_note(escape_line(text))
