"""The command line, in this process and as its users run it: in a process of its own."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.kit.cli import main
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.stores import SQLiteStore
from tests.support.answering_service import AnsweringService
from tests.support.conversing import INDEX, PASSAGES, PATIENCE, read_plain_environment


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def qtm(tmp_path: Path) -> Callable[..., Ended]:
    """Run ``qtm`` without a key in this process, in a folder that is empty or the one given."""

    def run(
        *arguments: str, text: bytes = b"", folder: Path | None = None, **environ: str
    ) -> Ended:
        # What shows the settings shows nobody's but those a test gives.
        patience = {} if "config" in arguments else PATIENCE
        return run_here(arguments, text, folder or tmp_path, {**patience, **environ})

    return run


@pytest.fixture
def qtm_process(tmp_path: Path) -> Callable[..., Ended]:
    """Run ``qtm`` without a key in a process of its own, with real streams."""

    def run(
        *arguments: str, text: bytes = b"", folder: Path | None = None, **environ: str
    ) -> Ended:
        ended = subprocess.run(
            [sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()", *arguments],
            input=text,
            capture_output=True,
            cwd=folder or tmp_path,
            env={**read_plain_environment(), "PYTHONIOENCODING": "utf-8", **environ},
            timeout=200,
            check=False,
        )
        out, err = (it.decode("utf-8", "replace") for it in (ended.stdout, ended.stderr))
        return Ended(ended.returncode, out, err)

    return run


def run_here(
    arguments: Sequence[str], text: bytes, folder: Path, environ: Mapping[str, str]
) -> Ended:
    """Run ``qtm`` in this process, and leave no trace of what it imported and set."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before, place, modules, path = dict(os.environ), Path.cwd(), set(sys.modules), list(sys.path)
    streams = sys.argv, sys.stdin, sys.stdout, sys.stderr
    plain = read_plain_environment()
    try:
        os.environ.clear()
        os.environ.update({**plain, **environ})
        os.chdir(folder)
        sys.argv = ["qtm", *arguments]
        sys.stdin, sys.stdout, sys.stderr = TextIOWrapper(BytesIO(text), "utf-8"), out, err
        main()
        code: Any = 0
    except SystemExit as left:
        code = left.code or 0
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(place)
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        importlib.invalidate_caches()
    said = (it.buffer.getvalue().decode("utf-8", "replace") for it in (out, err))  # type: ignore[attr-defined]
    return Ended(code, *said)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an index of the passages, with real vectors."""
    path = tmp_path_factory.mktemp("index") / INDEX.name
    embedder = find_embedder("all-MiniLM-L6-v2")
    with SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension) as store:
        store.write(
            zip(PASSAGES, embedder.embed([passage.text for passage in PASSAGES]), strict=True)
        )
    return path.parent


@pytest.fixture
def folder(tmp_path: Path, built: Path) -> Path:
    """The folder in which ``qtm`` runs, with an index where the config's default has it."""
    shutil.copytree(built, tmp_path / INDEX.parent)
    return tmp_path


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[AnsweringService]:
    """A language model's service."""
    answering = AnsweringService(httpserver)
    yield answering
    answering.released.set()
