"""Where the command line writes: results to stdout, notes and progress to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from qtmiddleware.cli.harmless import harmless, harmless_json


class PlainConsole(Console):
    """A console that reads nothing into texts, which may be anybody's, and lets no control character of theirs by."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The parts of what is written; those that control the terminal are the console's own."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(harmless(part.text), part.style)


out = PlainConsole(soft_wrap=True)
notes = PlainConsole(stderr=True)

Queries = Annotated[list[str] | None, typer.Argument(help="Questions; without any, the lines of standard input.")]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="Config file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def as_json(value: Any) -> None:
    """Write *value* to stdout as one JSON document."""
    written = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", indent=2)
    sys.stdout.write(harmless_json(written) + "\n")


def lines(given: list[str] | None) -> Iterator[str]:
    """The texts given as arguments or, without any, the lines of standard input."""
    if given:
        yield from given
        return
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text
