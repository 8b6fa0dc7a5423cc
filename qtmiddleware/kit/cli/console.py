"""What the commands share: options, consoles, JSON, progress bars and warnings."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.segment import Segment
from rich.text import Text

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.reading import list_presets
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import CONFIG_FILES
from qtmiddleware.kit.cli.terminal import escape_line, note, strip_control_characters
from qtmiddleware.runtime.control_characters import escape_json

ShowProgress = Callable[[str, int, int], None]
"""Shows what is done just now, how much of it is done and how much there is."""


class PlainConsole(Console):
    """A console that reads no markup into texts, which may be anybody's, and writes no control character of theirs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of what is written; those that control the terminal are the console's own."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(strip_control_characters(part.text), part.style)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Write *objects*; on a terminal, lines end between words, while a file or a pipe has no width."""
        if soft_wrap is None:
            soft_wrap = not self.is_terminal
        # A word that is longer than a line, such as a path, is left to the terminal, so that it can
        # be copied whole.
        super().print(
            *objects, soft_wrap=soft_wrap, **{"overflow": "ignore", "crop": False, **options}
        )


class _JobClock(ProgressColumn):
    """How long the whole job has taken, whatever part of it the bar shows."""

    max_refresh = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._began = clock, clock()

    def render(self, _: Task) -> Text:
        """Return the time as minutes and seconds."""
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        return Text(f"{minutes}:{seconds:02}")


class _TimeLeft(ProgressColumn):
    """About how long the part that the bar shows still takes, once something of it is done."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the time as minutes and seconds, or nothing if it cannot be told."""
        if task.time_remaining is None or not task.completed or task.finished:
            return Text("")
        minutes, seconds = divmod(int(task.time_remaining), 60)
        return Text(f"{minutes}:{seconds:02} left")


out = PlainConsole()
notes = PlainConsole(stderr=True)

Queries = Annotated[
    list[str] | None, typer.Argument(help="Questions. Default: the lines of standard input.")
]


def refuse_ambiguous(config: str | None) -> str | None:
    """Refuse a *config* that is the name of a preset and of a file here: whoever made the folder must not choose."""
    if (
        config is not None
        and config.isprintable()
        and config in list_presets()
        and Path(config).is_file()
    ):
        raise ConfigError(
            f"{config} is both a preset and a file in this folder; write ./{config} for the file",
            path="--config",
            value=config,
        )
    return config


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        "-c",
        help=(
            f"Config file or preset. Default: QTM_CONFIG, else {' or '.join(CONFIG_FILES)} in this"
            " folder."
        ),
        callback=refuse_ambiguous,
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


def as_json(value: Any) -> None:
    """Write *value* to stdout as one JSON document."""
    written = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", indent=2)
    sys.stdout.write(escape_json(written) + "\n")


def lines(given: list[str] | None) -> Iterator[str]:
    """The texts given as arguments or, without any, the lines of standard input."""
    if given:
        yield from given
        return
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text


def format_question_heading(text: str) -> str:
    """Return the line above the result of one of several questions."""
    return f"Question: {' '.join(text.split())}"


def to_messages(history: list[str] | None) -> list[dict[str, str]]:
    """The texts of ``--history`` as messages of user and assistant by turns."""
    return [
        {"role": ("user", "assistant")[at % 2], "content": text}
        for at, text in enumerate(history or [])
    ]


@contextmanager
def show_progress(
    console: Console = notes, clock: Callable[[], float] = monotonic
) -> Iterator[ShowProgress]:
    """A bar on stderr that shows what is done just now; none if that is no terminal.

    One bar for the whole job, with one clock; the count and the estimate are those of the part that
    is being done.
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
    with ExitStack() as shown:

        def update(what: str, done: int, total: int) -> None:
            nonlocal current
            is_first = current is None
            if what != current:
                bars.reset(task, description=what, total=total)
                current = what
            if is_first:
                # Not before, as a question may be asked on the same terminal first.
                shown.enter_context(bars)
            bars.update(task, completed=done, refresh=True)

        yield update


@contextmanager
def show_warnings(*, without: Iterable[str] = ()) -> Iterator[None]:
    """Show what the package warns of meanwhile as notes, each text once.

    *without* names the degradations (`LogSampler.log`) that are left out, as the command itself
    shows or counts them.
    """
    package, handler = logging.getLogger("qtmiddleware"), _NoteHandler(logging.WARNING)
    left_out = frozenset(without)
    handler.addFilter(lambda record: getattr(record, "degradation", "") not in left_out)
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
            note(escape_line(text))
