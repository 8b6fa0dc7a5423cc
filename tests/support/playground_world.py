"""The playground as its users run it: a process of its own, whose page is asked for over HTTP."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import httpx

from tests.support.conversing import read_plain_environment
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
APP = "tests.support.playground_app"
QUESTION = "Does Jaco have any health concerns?"


@dataclass
class Served:
    """A playground that runs: the *url* it printed, and its process."""

    url: str
    process: subprocess.Popen[str]
    errors: Path

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    def at(self, question: str = "", **params: str) -> str:
        """The address of *question*."""
        pairs = {**({"q": question} if question else {}), **params}
        return self.url + ("?" + urlencode(pairs, errors="surrogatepass") if pairs else "")

    def get(self, question: str = "", **params: str) -> httpx.Response:
        """The page of *question*, whole."""
        return httpx.get(self.at(question, **params), timeout=PATIENCE)

    def end(self) -> int:
        """Interrupt it as Ctrl-C does; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


@contextmanager
def serve(
    folder: Path, *arguments: str, command: str = "playground", **environ: str
) -> Iterator[Served]:
    """Run ``qtm playground`` in *folder* without a key."""
    errors = folder / "stderr.txt"
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                reset + "from qtmiddleware.kit.cli import main; main()",
                command,
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            cwd=folder,
            env={
                **read_plain_environment(),
                "PYTHONPATH": str(ROOT),
                "PYTHONIOENCODING": "utf-8",
                **environ,
            },
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), errors.read_text()
        yield Served(url, process, errors)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


Serve = Callable[..., Served]
