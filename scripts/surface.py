"""Prints how much there is to know: what users choose from, and what a reader of the code has before them.

Run it as ``python -m scripts.surface``; CI does.
"""

from __future__ import annotations

import ast
from pathlib import Path

import qtmiddleware
from qtmiddleware.config.keys import list_all_keys
from qtmiddleware.config.reading import list_presets
from qtmiddleware.kit.cli.app import COMMANDS

PACKAGE = Path(qtmiddleware.__file__).parent


def count_code(files: list[Path]) -> str:
    """Return how many modules and statements *files* are; a docstring is no statement."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    statements = sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))
    docstrings = sum(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for tree in trees
        for node in ast.walk(tree)
    )
    return f"{len(files):,} modules, {statements - docstrings:,} statements"


def main() -> None:
    """Print the surface."""
    files = sorted(PACKAGE.rglob("*.py"))
    kit = [file for file in files if PACKAGE / "kit" in file.parents]
    rows = {
        "config keys": len(list_all_keys()),
        "presets": len(list_presets()),
        "commands of qtm": len(COMMANDS),
        "public names": len(qtmiddleware.__all__),
        "core": count_code([file for file in files if file not in kit]),
        "kit": count_code(kit),
    }
    for what, count in rows.items():
        print(f"{what:<16} {count}")


if __name__ == "__main__":
    main()
