"""Every promise of SECURITY.md is kept by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda it: it)
def test_a_test_that_shows_a_promise_is_there(file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    tests = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert any(name.startswith("test_") for name in tests) if not test else test in tests


def test_every_promise_names_what_shows_it() -> None:
    promises = re.findall(
        r"^\| \*\*.+?\.\*\* .*$", TEXT.partition("## What is promised")[2], re.MULTILINE
    )
    assert len(promises) >= 12
    for promise in promises:
        assert re.search(r"`(tests/|python -m tests\.)", promise), promise


def test_every_file_it_names_is_there() -> None:
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", TEXT):
        assert (ROOT / name).exists(), name
