"""Run batches of work on a Ray cluster, as Ray Data tasks: ``--engine ray``.

    this process -> ray.data.from_items -> map_batches (a task per batch) -> this process

Only this process writes results. If a worker process dies, Ray runs its task again in another one.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

from qtmiddleware.errors import EngineError, MissingExtra, QtMiddlewareError

B = TypeVar("B")
R = TypeVar("R")


def map_on_ray(
    build: Callable[[], Callable[[B], Iterable[R]]], batches: Iterable[B]
) -> Iterator[list[R]]:
    """Yield the results of each of *batches*, in the order in which the batches finish.

    If this process is not connected to a cluster yet, it connects to ``RAY_ADDRESS``, or starts a
    cluster on this machine until the last result is read. Each task uses one processor. Every
    machine of a cluster needs this package, and API keys in its own environment.

    Raises:
        MissingExtra: The extra ``ray`` is not installed.
        EngineError: Ray cannot be started or reached, Ray ended the run, or a batch failed with an
            exception that is not a `QtMiddlewareError`.
        QtMiddlewareError: A batch failed. The results before the failure have been yielded.
    """
    ray = _import_ray()
    pickled = [pickle.dumps(batch) for batch in batches]
    if not pickled:
        return
    with connect_to_ray():
        # One block per batch, because Ray returns the results of a whole block.
        items = ray.data.from_items(pickled, override_num_blocks=len(pickled))
        outcomes = items.map_batches(
            _process_batch,
            fn_kwargs={"pickled_build": pickle.dumps(build)},
            batch_size=1,
            num_cpus=1,
        )
        for row in outcomes.iter_rows():
            results, error = pickle.loads(row["outcome"])
            yield results
            if error is not None:
                raise error


def _process_batch(batch: dict[str, Any], pickled_build: bytes) -> dict[str, list[bytes]]:
    """Process one batch in a worker, and return the results and the error, if any, as bytes."""
    results: list[Any] = []
    error: QtMiddlewareError | None = None
    # Errors are returned, because Ray drops the results of a task that raises. These may be paid
    # for, such as a model's replies.
    try:
        # `extend` keeps the results before an error.
        results.extend(_build_work(pickled_build)(pickle.loads(batch["item"][0])))
    except QtMiddlewareError as problem:
        error = problem
    except Exception as problem:
        # Only the type is named, because the message may quote a text.
        error = EngineError(f"a batch failed with {type(problem).__name__}")
    return {"outcome": [pickle.dumps((results, error))]}


@lru_cache(maxsize=1)
def _build_work(pickled_build: bytes) -> Callable[[Any], Iterable[Any]]:
    """Return the function that processes batches; a worker process loads a model only once."""
    work: Callable[[Any], Iterable[Any]] = pickle.loads(pickled_build)()
    return work


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    return ray


@contextmanager
def connect_to_ray() -> Iterator[None]:
    """Connect to a cluster for the ``with`` block, unless this process is already connected.

    Raises `EngineError` if Ray cannot be started or reached, or ends the run during the block.
    """
    ray = _import_ray()
    is_connected = ray.is_initialized()
    # Without an address, Ray would also use a cluster that somebody else runs on this machine.
    address = os.environ.get("RAY_ADDRESS") or "local"
    try:
        if not is_connected:
            _start_ray(ray, address)
        # Otherwise Ray Data writes its plans and bars beside the command's own progress bar.
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    except ray.exceptions.RayError as error:
        raise EngineError(
            f"Ray ended the run ({type(error).__name__}). Finished work is kept; run the same"
            " command again"
        ) from error
    finally:
        if not is_connected:
            ray.shutdown()


def _start_ray(ray: Any, address: str) -> None:
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        place = "started on this machine" if address == "local" else f"reached at {address}"
        raise EngineError(f"Ray cannot be {place}: {error}") from error
