"""A process like one of AWS Lambda: reused, on a read-only file system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.deploy_world import IDS, QUESTION, Process, running

pytestmark = pytest.mark.thorough

RUNTIME: Final = """
import errno, json, os, sys

def refuse_to_write(event, arguments):
    if event in ("os.mkdir", "os.remove", "os.rename", "os.symlink", "sqlite3.connect"):
        raise OSError(errno.EROFS, "Read-only file system", str(arguments[0]))
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and arguments[0] != os.devnull:
        raise OSError(errno.EROFS, "Read-only file system", str(arguments[0]))

sys.addaudithook(refuse_to_write)
from retrieval import qm, retrieve

qm.warm_up()
print("begun", flush=True)
for line in sys.stdin:
    r = retrieve.retrieve(line)
    print(json.dumps({"passages": r.response, "status": r.status}), flush=True)
"""


@pytest.fixture(scope="module")
def function(recipes: Path, env: dict[str, str]) -> Iterator[Process]:
    """One process that cannot write anywhere and has no home."""
    (recipes / "runtime.py").write_text(RUNTIME, encoding="utf-8")
    started = Process(
        recipes, "runtime.py", env={name: it for name, it in env.items() if name != "HOME"}
    )
    with running(started):
        assert started.hear() == "begun"
        yield started


def is_full(reply: str) -> bool:
    answered = json.loads(reply)
    return answered["status"] == "full" and [it["id"] for it in answered["passages"]] == IDS


def test_a_reused_process_answers_on_a_read_only_file_system_without_a_home(
    function: Process,
) -> None:
    assert is_full(function.ask(QUESTION))
    assert is_full(function.ask("Which dog does Jaco like?"))
    assert function.complaints == ""
