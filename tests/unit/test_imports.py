"""What is loaded only by whoever needs it; the direction of imports is a contract in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys

import pytest

VENDORS = ("openai", "pinecone", "pydantic", "numpy", "httpx", "httpx2", "torch", "regex")
CALLS = {
    "a free call": "import qtmiddleware as qtm; qtm.middleware(search)('a question')",
    "a call of the model": (
        "import qtmiddleware as qtm; from qtmiddleware.testing import ScriptedModel\n"
        "qtm.QueryMiddleware('balanced', client=ScriptedModel({'rewrite': 'x'})).wrap(search)('a question')"
    ),
    "a config with a store": (
        "import qtmiddleware as qtm\n"
        "store = {'kind': 'pinecone', 'index': 'docs'}\n"
        "qtm.QueryMiddleware({'store': store, 'hybrid': {'enabled': True}, 'chunkSize': 500}).wrap(search)('a')"
    ),
}


def list_modules_after(statements: str) -> set[str]:
    """The modules that a fresh interpreter holds after *statements*."""
    script = f"{statements}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    ["qtmiddleware", "qtmiddleware.wrapping.query_middleware"],
)
def test_importing_the_package_loads_no_vendor_library(module: str) -> None:
    assert list_modules_after(f"import {module}") & {*VENDORS} == set()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_a_wrapped_function_loads_nothing_of_the_kit(call: str) -> None:
    search = "def search(query, top_k=4): return [{'id': 'a', 'score': 1.0, 'text': 'an answer'}]\n"
    loaded = list_modules_after(search + CALLS[call])
    assert {name for name in loaded if name.startswith("qtmiddleware.kit")} == set()
    assert ("qtmiddleware.transforms" in loaded) == ("balanced" in CALLS[call])
