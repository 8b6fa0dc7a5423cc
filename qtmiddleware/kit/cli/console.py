"""Options, consoles, JSON output, progress bars and warnings for several commands."""

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
"""A function that shows progress: takes the current step's name, its count and its total."""


class PlainConsole(Console):
    """A rich console that prints untrusted text safely.

    Markup in the text has no effect, and control characters in the text are removed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of the output, without control characters in texts.

        Control sequences of the console itself are kept.
        """
        for part in super().render(renderable, options):
            yield part if part.control else Segment(strip_control_characters(part.text), part.style)

    def print(self, *objects: Any, soft_wrap: bool | None = None, **options: Any) -> None:
        """Write *objects*.

        On a terminal, lines break between words. In a file or a pipe, lines are not broken.
        """
        if soft_wrap is None:
            soft_wrap = not self.is_terminal
        # The terminal itself breaks a word that is longer than a line, such as a path. So the word
        # can be copied whole.
        super().print(
            *objects, soft_wrap=soft_wrap, **{"overflow": "ignore", "crop": False, **options}
        )


class _JobClock(ProgressColumn):
    """A progress column that shows the time since the start of the whole job."""

    max_refresh = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._began = clock, clock()

    def render(self, _: Task) -> Text:
        """Return the elapsed time as minutes and seconds."""
        minutes, seconds = divmod(int(self._clock() - self._began), 60)
        return Text(f"{minutes}:{seconds:02}")


class _TimeLeft(ProgressColumn):
    """A progress column that shows the estimated remaining time of the current step."""

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


def refuse_ambiguous_config(config: str | None) -> str | None:
    """Return *config* unchanged, unless it is ambiguous.

    Raises `ConfigError` if *config* names both a preset and a file in the current folder.
    Otherwise, the owner of the folder could replace a preset.
    """
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
        callback=refuse_ambiguous_config,
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
    document = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", indent=2)
    sys.stdout.write(escape_json(document) + "\n")


def read_questions(texts: list[str] | None) -> Iterator[str]:
    """Yield the questions in *texts* or, if there are none, the lines of standard input.

    Blank lines of standard input are skipped.
    """
    if texts:
        yield from texts
        return
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text


def format_question_heading(text: str) -> str:
    """Return a heading with the question *text*, for output that covers several questions."""
    return f"Question: {' '.join(text.split())}"


def to_messages(history: list[str] | None) -> list[dict[str, str]]:
    """Convert the texts of ``--history`` to messages.

    The first text is a message of the user, the second one of the assistant, and so on.
    """
    return [
        {"role": ("user", "assistant")[index % 2], "content": text}
        for index, text in enumerate(history or [])
    ]


@contextmanager
def show_progress(
    console: Console = notes, clock: Callable[[], float] = monotonic
) -> Iterator[ShowProgress]:
    """Yield a function that shows progress in a bar on stderr.

    If stderr is not a terminal, nothing is shown. One bar shows all steps of a job. The elapsed
    time is that of the whole job; the count and the estimate are those of the current step.
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

        def update(step: str, done: int, total: int) -> None:
            nonlocal current
            is_first = current is None
            if step != current:
                bars.reset(task, description=step, total=total)
                current = step
            if is_first:
                # The bar starts here, because the command may first ask something at the terminal.
                stack.enter_context(bars)
            bars.update(task, completed=done, refresh=True)

        yield update


@contextmanager
def show_warnings(*, without: Iterable[str] = ()) -> Iterator[None]:
    """Show the package's warnings on stderr during the ``with`` block, each text once.

    Warnings about the degradations named in *without* (see `LogSampler.log`) are hidden, because
    the command itself shows or counts these degradations.
    """
    package, handler = logging.getLogger("qtmiddleware"), _NoteHandler(logging.WARNING)
    hidden = frozenset(without)
    handler.addFilter(lambda record: getattr(record, "degradation", "") not in hidden)
    package.addHandler(handler)
    try:
        yield
    finally:
        package.removeHandler(handler)


class _NoteHandler(logging.Handler):
    """A log handler that writes records to stderr. Repeated texts are written only once."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if text not in self._seen:
            self._seen.add(text)
            note(escape_line(text))
