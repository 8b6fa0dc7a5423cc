"""Define the typer app behind ``qtm``, with all its commands."""

from __future__ import annotations

from importlib.metadata import version as version_of
from typing import Annotated

import typer

from qtmiddleware.kit.cli import (
    bench,
    check,
    compare,
    config,
    demo,
    ingest,
    mcp,
    playground,
    query,
    shadow,
    transform,
    tune,
)

app = typer.Typer(
    name="qtm",
    help="Better retrieval from the function you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo_command)
app.command("bench")(bench.bench_command)
app.command("check")(check.check_command)
app.command("ingest")(ingest.ingest_command)
app.command("query")(query.query_command)
app.command("ask")(query.ask_command)
app.command("compare")(compare.compare_command)
app.command("playground")(playground.playground_command)
app.command("preprocess")(transform.preprocess_command)
app.command("transform")(transform.transform_command)
app.command("tune")(tune.tune_command)
app.add_typer(config.app, name="config")
app.add_typer(mcp.app, name="mcp")
app.add_typer(shadow.app, name="shadow")


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
