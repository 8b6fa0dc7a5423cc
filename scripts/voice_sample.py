"""Draws docstrings and definitions of the package by lot, for an editor to grade.

A: clear on first reading. B: needs a second reading. C: unclear. Grade with nothing but the list.

    python -m scripts.voice_sample --seed 36 [--count 40] [--root FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

PACKAGE = "qtmiddleware"
Item = TypeVar("Item")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Print the sample as a numbered list of docstrings and one of definitions."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="of the lot")
    parser.add_argument("--count", type=int, default=40, help="items of each kind (default: 40)")
    parser.add_argument("--root", type=Path, default=Path(), help="the checkout (default: .)")
    options = parser.parse_args()
    nodes = list(_find_nodes(options.root))
    lot = random.Random(options.seed)
    documented = [(place, text) for place, node in nodes if (text := ast.get_docstring(node))]
    functions = [(place, node) for place, node in nodes if isinstance(node, Functions)]
    print("## Docstrings")
    for number, (place, text) in enumerate(_draw(lot, documented, options.count), 1):
        print(f"\n{number}. `{place}`\n\n" + "\n".join(f"   {line}" for line in text.splitlines()))
    print("\n## Definitions\n")
    for number, (place, node) in enumerate(_draw(lot, functions, options.count), 1):
        print(f"{number}. `{place}`: `{_write_definition(node)}`")


Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


def _find_nodes(root: Path) -> Iterator[tuple[str, Documented]]:
    for file in sorted((root / PACKAGE).rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, Documented):
                place = file.relative_to(root / PACKAGE).as_posix()
                name = "" if isinstance(node, ast.Module) else f":{node.name}"
                yield place + name, node


def _draw(lot: random.Random, items: list[Item], count: int) -> list[Item]:
    return lot.sample(items, min(count, len(items)))


def _write_definition(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{kind} {node.name}({ast.unparse(node.args)}){result}"


if __name__ == "__main__":
    main()
