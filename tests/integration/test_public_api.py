"""What `import qtmiddleware` promises, and what it costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import qtmiddleware as qtm

SOURCE = Path(qtm.__file__)


def type_checking_imports() -> dict[str, set[str]]:
    """The names that type checkers see, by the module they come from."""
    block = next(
        node
        for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
    found: dict[str, set[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        home = node.module.removeprefix("qtmiddleware.")
        found.setdefault(home, set()).update(alias.asname or alias.name for alias in node.names)
    return found


def python(code: str) -> Any:
    """What *code* prints as JSON, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    return json.loads(done.stdout)


def test_every_public_name_is_loaded_from_where_type_checkers_see_it() -> None:
    homes = {home: set(names) for home, names in qtm._HOMES.items()}
    seen = type_checking_imports()
    rooms = seen.pop("kit")
    assert rooms == set(qtm._ROOMS)
    assert homes == seen


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
