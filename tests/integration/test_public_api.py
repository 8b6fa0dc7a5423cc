"""What `import qtmiddleware` promises, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import qtmiddleware as qtm


def python(code: str) -> Any:
    """What *code* prints as JSON, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_public_callables_stay_callable_after_everything_was_imported() -> None:
    kinds = python(
        "import contextlib, importlib, json, pkgutil, qtmiddleware as qtm\n"
        "from qtmiddleware.errors import MissingExtra\n"
        "for module in pkgutil.walk_packages(qtm.__path__, 'qtmiddleware.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        # A framework may not be installed.
        "        with contextlib.suppress(MissingExtra):\n"
        "            importlib.import_module(module.name)\n"
        "print(json.dumps({name: callable(getattr(qtm, name)) for name in qtm.__all__}))"
    )
    assert [name for name, is_callable in kinds.items() if not is_callable] == []


def test_rooms_are_used_by_name_and_loaded_when_they_are() -> None:
    for name in qtm._ROOMS:
        assert getattr(qtm, name).__name__ == f"qtmiddleware.{qtm._ROOMS[name]}"


def test_nothing_is_written_where_nobody_configured_logging() -> None:
    code = (
        "import qtmiddleware as qtm\n"
        "def model(messages): raise OSError('down')\n"
        "qm = qtm.QueryMiddleware({'transformationType': 'rewrite'}, client=model)\n"
        "search = qm.wrap(lambda query: [{'id': 'a', 'score': 1.0}])\n"
        "assert search.retrieve('where is it kept').status == 'degraded'\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
