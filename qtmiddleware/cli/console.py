"""Where the command line writes: results to stdout, notes and progress to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

out = Console(soft_wrap=True)
notes = Console(stderr=True)

# JSON leaves these as they are, and a terminal may obey them.
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}

Queries = Annotated[list[str] | None, typer.Argument(help="Questions; without any, the lines of standard input.")]
ConfigFile = Annotated[str | None, typer.Option("--config", "-c", help="Config file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]


def as_json(value: Any) -> None:
    """Write *value* to stdout as one JSON document."""
    written = json.dumps(value, ensure_ascii=sys.stdout.encoding.lower() != "utf-8", indent=2)
    sys.stdout.write(written.translate(_CONTROLS) + "\n")


def lines(given: list[str] | None) -> Iterator[str]:
    """The texts given as arguments or, without any, the lines of standard input."""
    if given:
        yield from given
        return
    for line in sys.stdin:
        text = line.rstrip("\r\n")
        if text.strip():
            yield text
