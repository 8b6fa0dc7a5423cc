"""The arguments and options of ``qtm`` that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from qtmiddleware.catalogue import TRANSFORMS

TARGET: Final = "MODULE:FUNCTION"
"""The form in which the command line names a function."""


class EngineName(StrEnum):
    """Where a command's work can run instead of in this process."""

    RAY = "ray"


Target = Annotated[
    str,
    Argument(
        metavar=TARGET,
        help="Your function, such as search in app.py in this folder: app:search.",
    ),
]
Function = Annotated[
    str | None,
    Option("--function", "-f", metavar=TARGET, help="Your function, instead of the index."),
]
Arguments = Annotated[
    list[str] | None,
    Option(
        "--arg",
        "-a",
        metavar="NAME=VALUE",
        help="Argument of the function; the value is JSON or text. Repeatable.",
    ),
]
Embed = Annotated[
    str | None,
    Option(metavar=TARGET, help="Function that embeds a text, if your function takes a vector."),
]
Questions = Annotated[list[str] | None, Argument(help="Questions. Default: standard input.")]
QuestionFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="CSV or JSON file of questions, or the folder of a data set."),
]
QuestionCount = Annotated[
    int | None, Option(min=1, help="Number of questions to ask. Default: all.")
]
ConfigFile = Annotated[
    str | None,
    Option(
        "--config",
        "-c",
        help="Config file or preset. Default: QTM_CONFIG, or the config in this folder.",
    ),
]
Sets = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one setting, such as fusion.method=rrf. Repeatable.",
    ),
]
Kind = Annotated[
    str | None, Option("--type", "-t", help=f"Transformation type: {', '.join(TRANSFORMS)}.")
]
Systems = Annotated[
    str | None, Option(help="Systems to compare, separated by commas. Default: the usual ones.")
]
ReportFile = Annotated[
    Path | None,
    Option("--report", metavar="FILE", help="Write a report to this file: .md, .json or .html."),
]
Port = Annotated[
    int | None,
    Option(
        min=0, max=65_535, help="Port on this machine. Default: 8765 (mcp: 8766), or a free one."
    ),
]
Engine = Annotated[
    EngineName | None,
    Option(
        "--engine",
        help="Run the work on the Ray cluster at RAY_ADDRESS. Default: in this process.",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Write JSON.")]
