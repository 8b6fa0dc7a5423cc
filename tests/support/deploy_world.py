"""The recipes of docs/deploy.md as files, and processes that run them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.conversing import read_plain_environment

ROOT: Final = Path(__file__).parents[2]
QUESTION: Final = "Does Jaco have any health concerns?"
IDS: Final = ["a", "b"]
"""Of the passages that the page's function finds."""


def write_recipes(folder: Path) -> Path:
    """Each example of the page that names its file in its first line, in *folder*."""
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    named = re.compile(r"^```python[^\n]*\n# ([\w.]+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    for name, code in named.findall(page):
        (folder / name).write_text(code, encoding="utf-8")
    return folder


def environment(address: str, **more: str) -> dict[str, str]:
    """That of a process whose model is at *address*, without settings of the machine's own."""
    kept = {
        name: value
        for name, value in read_plain_environment().items()
        if not name.upper().endswith("_PROXY")
    }
    # The model answers when the processor is free, which it may not be for a while.
    patient = {"QTM_LIMITS_LLM_TIMEOUT_MS": "20000", "QTM_LIMITS_DEADLINE_MS": "30000"}
    return kept | patient | {"OPENAI_API_KEY": "sk-x", "QTM_LLM_BASE_URL": address} | more


class Process:
    """A process of Python in *folder*: its standard output can be read line by line, its complaints at its end."""

    def __init__(
        self, folder: Path, *arguments: str, env: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> None:
        self._complaints = folder / f"{arguments[-1].replace('/', '-')[-40:]}.{id(self)}.stderr"
        with self._complaints.open("wb") as stderr:
            self.running = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=env,
                pass_fds=pass_fds,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def ask(self, line: str) -> str:
        """What the process answers to *line*."""
        self.tell(line)
        return self.hear()

    def tell(self, line: str) -> None:
        assert self.running.stdin is not None
        self.running.stdin.write(f"{line}\n")
        self.running.stdin.flush()

    def hear(self) -> str:
        assert self.running.stdout is not None
        return self.running.stdout.readline().strip() or self.complaints

    @property
    def complaints(self) -> str:
        return self._complaints.read_text("utf-8")

    def end(self) -> int:
        """Ask the process to end; its code."""
        self.running.terminate()
        self.running.communicate(timeout=200)
        return self.running.returncode

    def kill(self) -> None:
        """End the process and its children at once, if it still runs."""
        if self.running.poll() is None:
            os.killpg(self.running.pid, signal.SIGKILL)
        self.running.communicate()


class Server(Process):
    """A web server that takes its requests from a socket that listens before it is started."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str]) -> None:
        # Nobody waits for it to begin or fights for a port: what comes earlier waits in the socket.
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
            descriptor = listening.fileno()
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/search"
            given = tuple(it.format(fd=descriptor) for it in arguments)
            super().__init__(folder, *given, env=env, pass_fds=(descriptor,))

    def search(self, client: httpx.Client, question: str) -> Any:
        answered = client.get(self.url, params={"q": question})
        assert answered.status_code == 200, answered.text + self.complaints
        return answered.json()


@contextmanager
def running(*processes: Process) -> Iterator[None]:
    """The processes end here, whatever becomes of the tests."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
