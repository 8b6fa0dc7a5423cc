"""The command line as its users run it: a process of its own, with real streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def qtm(tmp_path: Path) -> Callable[..., Ended]:
    """Run ``qtm`` in an empty folder, without a key."""

    def run(*arguments: str, text: bytes = b"", **environ: str) -> Ended:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "QTM_"))}
        ended = subprocess.run(
            [sys.executable, "-c", "from qtmiddleware.cli import main; main()", *arguments],
            input=text,
            capture_output=True,
            cwd=tmp_path,
            env={**kept, "PYTHONIOENCODING": "utf-8", **environ},
            timeout=50,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout.decode("utf-8", "replace"), ended.stderr.decode("utf-8", "replace"))

    return run
