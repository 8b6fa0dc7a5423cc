"""Modules by the names they had before they moved into the kit."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import qtmiddleware
from qtmiddleware.kit.engines.local import LocalEngine
from qtmiddleware.moved import MOVED, find_new_module_name

PACKAGE = Path(qtmiddleware.__file__).parent


def modules_below(name: str) -> list[str]:
    """The names of *name* and of the modules in its folder, relative to the package."""
    folder = PACKAGE.joinpath(*name.split("."))
    files = sorted(folder.rglob("*.py"))
    paths = [it.relative_to(folder).with_suffix("").parts for it in files]
    return [name, *(".".join((name, *parts)) for parts in paths if parts[-1] != "__init__")]


OLD = {
    f"qtmiddleware.{old}{name.removeprefix(new)}": f"qtmiddleware.{name}"
    for old, new in MOVED.items()
    for name in modules_below(new)
}


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_gives_the_module_itself(old: str) -> None:
    pytest.importorskip("ray") if old.endswith(".ray") else None
    module = import_module(old)
    assert module is import_module(OLD[old])
    assert module.__name__ == OLD[old]
    assert module.__spec__ is not None
    assert module.__spec__.name == OLD[old]


@pytest.mark.parametrize(
    "first", ["qtmiddleware.runtime.engines.local", "qtmiddleware.kit.engines.local"]
)
def test_both_names_give_one_class_whichever_comes_first(first: str) -> None:
    code = (
        f"import {first}\n"
        "from qtmiddleware.runtime.engines.local import LocalEngine as old\n"
        "from qtmiddleware.kit.engines.local import LocalEngine as new\n"
        "assert old is new, (old, new)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_an_old_name_leaves_the_function_of_the_same_name_where_it_is() -> None:
    code = "import qtmiddleware.evaluation.compare, qtmiddleware as qtm\nassert callable(qtm.evaluation.compare)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_a_pickle_that_names_an_old_module_is_read() -> None:
    kept = pickle.dumps(LocalEngine, protocol=0)
    assert b"qtmiddleware.kit.engines.local" in kept
    old = kept.replace(b"qtmiddleware.kit.engines.local", b"qtmiddleware.runtime.engines.local")
    assert pickle.loads(old) is LocalEngine


@pytest.mark.parametrize(
    "name", ["qtmiddleware.evaluation.nothing", "qtmiddleware.nothing", "qtmiddleware.bulky"]
)
def test_what_was_never_there_is_not_found(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name):
        import_module(name)


@pytest.mark.parametrize(
    "name", ["qtmiddleware", "qtmiddleware.types", "evaluation", "qtmiddleware.kit.bulk"]
)
def test_a_module_that_did_not_move_has_no_new_name(name: str) -> None:
    assert find_new_module_name(name) is None


def test_installing_twice_changes_nothing() -> None:
    before = list(sys.meta_path)
    qtmiddleware.moved.install_import_finder()
    assert sys.meta_path == before
