"""Open the engine of ``--engine`` and ``--workers``: this process, several processes, or Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from enum import StrEnum
from typing import Annotated, Final

import typer

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.engines import Engine, LocalEngine
from qtmiddleware.kit.engines.ray import RayEngine

MOST_WORKERS: Final = 10_000


class EngineName(StrEnum):
    """The name of an engine, which runs batches of work."""

    LOCAL = "local"
    RAY = "ray"


EngineChoice = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Where the work runs: on this machine, or on the Ray cluster at RAY_ADDRESS.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        min=1, max=MOST_WORKERS, help="Number of worker processes, each with one processor."
    ),
]


def refuse_unused_engine(name: EngineName, workers: int, *, uses_engine: bool) -> None:
    """Raise `ConfigError` if the user set an engine or workers but the command uses no engine."""
    if not uses_engine and (name, workers) != (EngineName.LOCAL, 1):
        message = "--engine and --workers need --file, without --batch"
        raise ConfigError(message, path="--engine")


@contextmanager
def open_engine(name: EngineName, workers: int) -> Iterator[Engine | None]:
    """Yield the engine *name*, and close it at the end of the ``with`` block.

    Yields ``None`` if all work runs in this process.
    """
    if name is EngineName.LOCAL and workers == 1:
        yield None
        return
    engine = RayEngine(workers=workers) if name is EngineName.RAY else LocalEngine(workers=workers)
    # Ray writes messages to stdout, among the JSON that other programs read.
    with redirect_stdout(sys.stderr), closing(engine):
        yield engine
