"""Define the typer app behind ``qtm``, with all its commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = {
    "demo": "demo:demo_command",
    "bench": "bench:bench_command",
    "check": "check:check_command",
    "ingest": "ingest:ingest_command",
    "query": "query:query_command",
    "ask": "query:ask_command",
    "compare": "compare:compare_command",
    "playground": "playground:playground_command",
    "preprocess": "transform:preprocess_command",
    "transform": "transform:transform_command",
    "config": "config:app",
    "mcp": "mcp:mcp_command",
    "shadow": "shadow:shadow_command",
    "testset": "testset:write_questions_command",
}
"""The module and the function or typer app of each command, as ``module:name``."""


class _Commands(Mapping[str, Any]):
    """The typer commands by name. A lookup imports the module of the command.

    ``qtm`` starts faster this way, because it does not import the modules of other commands.
    """

    def __getitem__(self, name: str) -> Any:
        module_name, _, attribute = COMMANDS[name].partition(":")
        command = getattr(import_module(f"qtmiddleware.kit.cli.{module_name}"), attribute)
        # typer builds commands for an app only. The command itself is the same in any app.
        own_app = typer.Typer()
        if isinstance(command, typer.Typer):
            own_app.add_typer(command, name=name)
        else:
            own_app.command(name)(command)
        return get_group(own_app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    """The command group ``qtm``, which imports only the command that the user runs."""

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
