"""Define the typer app behind ``qtm``, with all its commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = (
    *("check", "compare", "bench", "testset", "shadow", "demo", "playground"),
    *("ingest", "query", "transform", "mcp", "config"),
)
"""The names of the commands, each of which is defined in the module of its name."""


class _Commands(Mapping[str, Any]):
    """The typer commands by name. A lookup imports the module of the command.

    ``qtm`` starts faster this way, because it does not import the modules of other commands.
    """

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        module = import_module(f"qtmiddleware.kit.cli.{name}")
        # typer builds commands for an app only. The command itself is the same in any app.
        own_app = typer.Typer(rich_markup_mode=None)
        if name == "config":
            own_app.add_typer(module.app, name=name)
        else:
            settings = getattr(module, "CONTEXT_SETTINGS", None)
            own_app.command(name, context_settings=settings)(module.command)
        return get_group(own_app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("dict[str, Any]", _Commands())


app = typer.Typer(
    name="qtm",
    help="Better retrieval from the function you already have.",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Plain help: rich's would take longer to import than the command itself.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version_and_exit(is_requested: bool) -> None:
    # Typer calls this for every command, with or without the option.
    if is_requested:
        typer.echo(f"qtmiddleware {version_of('qtmiddleware')}")
        raise typer.Exit


@app.callback()
def handle_common_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version_and_exit,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Better retrieval from the function you already have."""
