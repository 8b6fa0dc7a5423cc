"""Open the engine that ``--engine`` and ``--workers`` choose: local processes or a Ray cluster."""

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
    """The engine that runs a command's work: local processes or a Ray cluster."""

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


def refuse_unused_engine(engine_name: EngineName, workers: int, *, is_engine_used: bool) -> None:
    """Raise `ConfigError` if ``--engine`` or ``--workers`` is set but *is_engine_used* is false."""
    if not is_engine_used and (engine_name, workers) != (EngineName.LOCAL, 1):
        message = "--engine and --workers need --file, without --batch"
        raise ConfigError(message, path="--engine")


@contextmanager
def open_engine(engine_name: EngineName, workers: int) -> Iterator[Engine | None]:
    """Yield an engine with *workers* processes, and close it at the end of the ``with`` block.

    Yields ``None`` for one local worker, because all work then runs in this process.
    """
    if engine_name is EngineName.LOCAL and workers == 1:
        yield None
        return
    engine = (
        RayEngine(workers=workers)
        if engine_name is EngineName.RAY
        else LocalEngine(workers=workers)
    )
    # Ray writes messages to stdout, among the JSON that other programs read.
    with redirect_stdout(sys.stderr), closing(engine):
        yield engine
