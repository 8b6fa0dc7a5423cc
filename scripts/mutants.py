"""Shows whether the tests protect the core: breaks one place at a time, and runs the tests of this place.

    python -m scripts.mutants [--count 150] [--seed 1] [--room retrieval ...]

Needs cosmic-ray, which makes the mutants, and coverage. A first run of the tests records which of them
run which line. A mutant is found if one of these tests fails or hangs. Annotations, log records and texts
for people are left alone. Ends with 1 if a mutant survives.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
ROOMS: Final = ("retrieval", "wrapping", "preprocessing", "transforms", "runtime", "providers")
TESTS: Final = (
    "tests/unit",
    "tests/laws",
    "tests/test_seeds",
    "tests/golden",
    "tests/robustness",
    "tests/integration",
)
SECONDS: Final = 240
AT_ONCE: Final = 400
"""How many tests run in one process for a mutant, those of its room first."""
_TOLD: Final = ("log", "note", "debug", "info", "warning", "error", "exception", "append_note")
PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


class Mutant(NamedTuple):
    """One change of one place."""

    path: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.operator.removeprefix('core/')}"


def list_mutants(path: str) -> Iterator[Mutant]:
    """Every mutant of the file at *path* that changes what it does."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    left_alone = set(_list_places_left_alone(ast.parse((ROOT / path).read_text())))
    nodes = list(ast_nodes(get_ast_from_path(ROOT / path)))
    for name in operator_names():
        operator: Any = get_operator(name)
        if operator.arguments():
            continue
        positions = [start for node in nodes for start, _ in operator().mutation_positions(node)]
        for occurrence, (line, column) in enumerate(positions):
            if (line, column) not in left_alone:
                yield Mutant(path, line, name, occurrence)


def _list_places_left_alone(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """The places in annotations, in type aliases, and in what is told to people."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=told) | ast.arg(annotation=ast.expr() as told):
                yield from _list_places(told)
            case (
                ast.FunctionDef(returns=ast.expr() as told)
                | ast.AsyncFunctionDef(returns=ast.expr() as told)
            ):
                yield from _list_places(told)
            case ast.Call(func=ast.Attribute(attr=name)) if name in _TOLD:
                yield from _list_places(node)
            case ast.Raise() | ast.ImportFrom() | ast.JoinedStr():
                yield from _list_places(node)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from _list_places(node)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
            yield from _list_places(statement)


def _list_places(node: ast.AST) -> Iterator[tuple[int, int]]:
    lines = range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]
    last = node.end_col_offset  # type: ignore[attr-defined]
    for line in lines:
        begin = node.col_offset if line == node.lineno else 0  # type: ignore[attr-defined]
        yield from ((line, column) for column in range(begin, last if line == lines[-1] else 200))


def choose_mutants(rooms: list[str], count: int, chance: random.Random) -> list[Mutant]:
    """Return *count* mutants, each of another place, of *rooms* by their numbers of places."""
    places: dict[tuple[str, int, str], list[Mutant]] = {}
    for room in rooms:
        for path in sorted((ROOT / "qtmiddleware" / room).rglob("*.py")):
            for mutant in list_mutants(str(path.relative_to(ROOT))):
                kind = mutant.operator.split("_")[0]
                places.setdefault((mutant.path, mutant.line, kind), []).append(mutant)
    return [chance.choice(places[place]) for place in chance.sample(sorted(places), count)]


def record_coverage(data: Path) -> None:
    """Run the tests once, and write to *data* which of them run which line."""
    options = (
        *PYTEST,
        "-n",
        "3",
        "-m",
        "not thorough",
        "--cov=qtmiddleware",
        "--cov-context=test",
        "--cov-report=",
    )
    subprocess.run(
        (*options, *TESTS), cwd=ROOT, env={**os.environ, "COVERAGE_FILE": str(data)}, check=False
    )


def choose_tests(mutant: Mutant, coverage: Any, chance: random.Random) -> list[str]:
    """Return the tests that run the mutant's line, its room's own first.

    A line outside of the bodies of functions runs once, on import, and one of a cached function for the
    first of many tests: then all tests of the file are returned.
    """
    by_line = coverage.contexts_by_lineno(str(ROOT / mutant.path))
    functions = [
        range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for node in ast.walk(ast.parse((ROOT / mutant.path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "cache" not in " ".join(map(ast.unparse, node.decorator_list))
    ]
    is_inside = any(mutant.line in lines for lines in functions)
    contexts = (
        by_line.get(mutant.line, ())
        if is_inside
        else {test for found in by_line.values() for test in found}
    )
    # The name of a test may hold a bar; what follows the last one is the phase.
    tests = sorted({context.rpartition("|")[0] for context in contexts if context})
    chance.shuffle(tests)
    room = mutant.path.split("/")[1]
    return sorted(tests, key=lambda test: f"/{room}/" not in test)


def list_tests(copy: Path) -> set[str]:
    """Return the names of the tests in *copy*, where a mutant may be tried.

    Data beside the repository, whose rows give tests their names, is not copied. Pytest would refuse a
    name that it does not know, and the mutant would seem to be found.
    """
    listed = subprocess.run(
        (*PYTEST, "--collect-only", "-n", "0", *TESTS),
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in listed.stdout.splitlines() if "::" in line}


def try_mutant(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """Return what became of *mutant* in *copy*: ``found``, ``survived`` or ``not run``."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    with use_mutation(copy / mutant.path, get_operator(mutant.operator)(), mutant.occurrence):
        for first in range(0, len(tests), AT_ONCE):
            if not _do_tests_pass(tests[first : first + AT_ONCE], copy):
                return "found"
    return "survived" if tests else "not run"


def _do_tests_pass(tests: list[str], copy: Path) -> bool:
    try:
        # No pipe: what a hung test started may hold one open.
        done = subprocess.run(
            (*PYTEST, "-x", "-n", "0", "--timeout", "60", *tests),
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> int:
    """Print each mutant and what became of it; 0 if all were found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", nargs="+", default=list(ROOMS), choices=ROOMS)
    parser.add_argument(
        "--coverage", type=Path, help="what an earlier run recorded; default: run the tests now"
    )
    options = parser.parse_args()
    from coverage import CoverageData

    with TemporaryDirectory() as folder:
        data = options.coverage or Path(folder, "coverage")
        if not data.exists():
            record_coverage(data)
        coverage = CoverageData(str(data))
        coverage.read()
        chance = random.Random(options.seed)
        mutants = choose_mutants(options.room, options.count, chance)
        copies: SimpleQueue[Path] = SimpleQueue()
        files = subprocess.run(
            ("git", "ls-files"), cwd=ROOT, capture_output=True, text=True, check=True
        )
        for number in range(2):
            copy = Path(folder, f"copy-{number}")
            for file in files.stdout.splitlines():
                copy.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, copy / file)
            copies.put(copy)
        known = list_tests(copy)

        def try_one(mutant: Mutant) -> str:
            copy = copies.get()
            try:
                tests = choose_tests(mutant, coverage, random.Random(1))
                ending = try_mutant(mutant, [test for test in tests if test in known], copy)
            finally:
                copies.put(copy)
            print(f"{ending}: {mutant}", flush=True)
            return ending

        with ThreadPoolExecutor(2) as pool:
            endings = list(pool.map(try_one, mutants))
    found = endings.count("found")
    print(f"{found} of {len(mutants)} mutants found, seed {options.seed}")
    return int(found < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
