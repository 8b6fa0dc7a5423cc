"""The house: one table of floors, and what no file of it may do."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "qtmiddleware"
ROOT = Path(__file__).resolve().parents[2] / PACKAGE

# Bottom to top. A room is a file or a folder; those of one line do not import each other, only what
# lies below.
CORE: tuple[frozenset[str], ...] = tuple(
    frozenset(line.split())
    for line in """
    errors catalogue notebook
    types
    protocols
    plugins
    config preprocessing
    transforms
    runtime
    retrieval
    providers
    answering tools
    wrapping
    testing
    integrations
    """.strip().splitlines()
)
KIT: tuple[frozenset[str], ...] = tuple(
    frozenset(f"kit.{room}" for room in line.split())
    for line in """
    __init__ engines embedding documents stores
    index
    bulk
    evaluation
    demo
    playground
    mcp
    cli
    """.strip().splitlines()
)
FLOORS = (*CORE, *KIT, frozenset({"__init__"}))
# What the core may import of the kit, by the file that does. Nothing else is allowed.
REACHES_UP = {
    "qtmiddleware/__init__.py": "its names are loaded when they are first used",
    "qtmiddleware/wrapping/own_search.py": "opens the own store for whoever has no function to wrap",
}
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
ROOF = "__init__"


@dataclass(frozen=True)
class Import:
    """One import statement: what is imported, on which line, and whether it happens when the file is."""

    module: str
    line: int
    at_load: bool


@dataclass(frozen=True)
class Source:
    """One file of the package."""

    path: Path
    module: str
    room: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT.parent))


def room_of(module: str) -> str:
    """The room of a *module*: its folder or file within the package, or within the kit."""
    _, room, *rest = module.split(".")
    return f"kit.{(*rest, '__init__')[0]}" if room == "kit" else room


def is_kit(room: str) -> bool:
    return room.startswith("kit.")


def source(path: Path) -> Source:
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = [PACKAGE, *(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)]
    return Source(
        path,
        ".".join(dotted),
        room_of(".".join((PACKAGE, *parts))),
        ast.parse(path.read_text(encoding="utf-8")),
    )


SOURCES = [source(path) for path in sorted(ROOT.rglob("*.py"))]
MODULES = {it.module for it in SOURCES}
each_source = pytest.mark.parametrize("file", SOURCES, ids=lambda it: it.name)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(node: ast.AST, *, at_load: bool = True) -> Iterator[Import]:
    """Every import below *node*; those inside functions and under TYPE_CHECKING do not happen when the file loads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, at_load) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(name, child.lineno, at_load) for name in imported_from(child))
        else:
            inside = isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            ) or is_type_checking(child)
            yield from imports_of(child, at_load=at_load and not inside)


def imported_from(statement: ast.ImportFrom) -> list[str]:
    """The modules a ``from`` statement imports: submodules of ours by their own name, the module itself otherwise."""
    base = "." * statement.level + (statement.module or "")
    submodules = [
        f"{base}.{alias.name}" for alias in statement.names if f"{base}.{alias.name}" in MODULES
    ]
    return submodules if len(submodules) == len(statement.names) else [base, *submodules]


def is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def test_every_file_has_a_floor_and_no_room_has_two() -> None:
    assert sum(len(rooms) for rooms in FLOORS) == len(FLOOR_OF)
    assert {it.room for it in SOURCES} - set(FLOOR_OF) == set()


def test_everything_of_ours_that_is_imported_exists() -> None:
    wanted = {
        found.module for it in SOURCES for found in imports_of(it.tree) if is_ours(found.module)
    }
    assert wanted - MODULES - {PACKAGE} == set()


@each_source
def test_a_file_imports_from_lower_floors_and_its_own_folder_alone(file: Source) -> None:
    wrong = [
        f"{file.name}:{found.line} imports {found.module}"
        for found in imports_of(file.tree)
        if is_ours(found.module)
        and found.module != PACKAGE
        and room_of(found.module) != file.room
        and FLOOR_OF[room_of(found.module)] >= FLOOR_OF[file.room]
        and not (file.name in REACHES_UP and is_kit(room_of(found.module)))
    ]
    assert wrong == []


@each_source
def test_the_core_imports_nothing_of_the_kit(file: Source) -> None:
    reached = {
        found.module
        for found in imports_of(file.tree)
        if is_ours(found.module) and found.module != PACKAGE
    }
    texts = {
        it.value
        for it in ast.walk(file.tree)
        if isinstance(it, ast.Constant) and isinstance(it.value, str)
    }
    named = {text for text in texts if text.startswith(f"{PACKAGE}.kit")}  # as for import_module
    wrong = (
        []
        if is_kit(file.room) or file.name in REACHES_UP
        else sorted(it for it in reached | named if is_kit(room_of(it)))
    )
    assert wrong == [], "the core must not import the kit; name a protocol that the kit fulfils"


def test_every_file_that_may_reach_up_does() -> None:
    reaching = {
        file.name
        for file in SOURCES
        if not is_kit(file.room)
        and any(
            is_ours(found.module) and found.module != PACKAGE and is_kit(room_of(found.module))
            for found in imports_of(file.tree)
        )
    }
    assert reaching == set(REACHES_UP)


def test_no_file_imports_itself_by_a_detour() -> None:
    graph = {
        it.module: {
            found.module
            for found in imports_of(it.tree)
            # A folder's own package is loaded before its files in any case; what counts is what
            # they take from it.
            if is_ours(found.module) and found.module in MODULES and found.module != it.module
        }
        for it in SOURCES
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


@each_source
def test_vendor_libraries_are_imported_inside_functions_alone(file: Source) -> None:
    wrong = [
        f"{file.name}:{found.line} imports {found.module}"
        for found in imports_of(file.tree)
        if found.at_load
        and not found.module.startswith(".")
        and not is_ours(found.module)
        and found.module.partition(".")[0] not in sys.stdlib_module_names
        # The command line is written in typer and rich; `qtmiddleware.kit.cli` loads it behind a
        # guard of its own.
        and not (file.room == "kit.cli" and found.module.partition(".")[0] in {"typer", "rich"})
        # An adapter is a class of its framework; nothing of ours loads it.
        and file.room != "integrations"
    ]
    assert wrong == []


@each_source
def test_imports_are_absolute_and_never_of_the_package_itself(file: Source) -> None:
    for found in imports_of(file.tree):
        assert not found.module.startswith("."), f"{file.name}:{found.line}"
        assert found.module != PACKAGE or file.room == ROOF, f"{file.name}:{found.line}"


@each_source
def test_nothing_is_printed_asserted_or_swallowed(file: Source) -> None:
    wrong = [
        f"{file.name}:{node.lineno} {ast.unparse(node).splitlines()[0]}"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.ExceptHandler) and node.type is None)
        or (
            file.room != "kit.cli"
            and isinstance(node, ast.Call)
            and ast.unparse(node.func) == "print"
        )
    ]
    assert wrong == []


@each_source
def test_no_lock_is_held_for_a_cached_property_on_the_way_of_a_query(file: Source) -> None:
    # Before Python 3.12 all objects of a class share one, which a fork at the wrong moment leaves
    # held for ever.
    if file.room != "kit.evaluation":
        assert "cached_property" not in ast.unparse(file.tree)


@each_source
def test_every_file_says_what_it_is_for(file: Source) -> None:
    assert ast.get_docstring(file.tree)


VENDORS = (
    "openai",
    "pinecone",
    "pydantic",
    "numpy",
    "httpx",
    "httpx2",
    "torch",
    "regex",
)


def modules_after(statement: str) -> set[str]:
    """The vendor libraries a fresh interpreter holds after *statement*."""
    script = (
        f"{statement}\nimport sys\nprint(*(name for name in {VENDORS!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    return set(done.stdout.split())


ENTRANCES = ("wrapping.query_middleware", "wrapping.decorator")


@pytest.mark.parametrize("module", [PACKAGE, *(f"{PACKAGE}.{it}" for it in ENTRANCES)])
def test_importing_the_package_loads_no_vendor_library(module: str) -> None:
    assert modules_after(f"import {module}") == set()


CALLS = {
    "a free call": "import qtmiddleware as qtm; qtm.middleware(search)('a question')",
    "a call of the model": (
        "import qtmiddleware as qtm; from qtmiddleware.testing import ScriptedModel\n"
        "qtm.QueryMiddleware('combined', client=ScriptedModel({'rewrite': 'x'})).wrap(search)('a question')"
    ),
    "a config with a store": (
        "import qtmiddleware as qtm\n"
        "store = {'kind': 'pinecone', 'index': 'docs'}\n"
        "qtm.QueryMiddleware({'store': store, 'hybrid': {'enabled': True}, 'chunkSize': 500}).wrap(search)('a')"
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_wrapped_function_loads_nothing_of_the_kit(call: str) -> None:
    script = (
        "def search(query, top_k=4): return [{'id': 'a', 'score': 1.0, 'text': 'an answer'}]\n"
        f"{CALLS[call]}\n"
        f"import sys\nprint(*(name for name in sys.modules if name.startswith('{PACKAGE}.kit')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout.split() == []


# Whoever has none of these can still collect every test, and run those that need none.
NOT_EVERYDAY = {
    *("torch", "transformers", "sentence_transformers", "ray"),
    *(
        "playwright",
        "axe_playwright_python",
        "redis",
        "celery",
        "ipykernel",
        "jupyter_client",
        "mkdocs",
    ),
}


def test_every_test_can_be_collected_without_a_browser_a_server_or_the_largest_packages() -> None:
    tests = Path(__file__).resolve().parents[1]
    wrong = [
        f"{path.relative_to(tests)}:{found.line} imports {found.module}"
        for path in sorted(tests.rglob("*.py"))
        for found in imports_of(ast.parse(path.read_text(encoding="utf-8")))
        if found.at_load and found.module.partition(".")[0] in NOT_EVERYDAY
    ]
    assert wrong == []
