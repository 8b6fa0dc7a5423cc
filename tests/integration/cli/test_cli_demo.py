"""``qtm demo`` on a few of its questions, with real vectors and recorded replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.evaluation import BASELINE, USUAL
from tests.support.command_line import Ended

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]


@pytest.fixture
def found(qtm: Run, tmp_path: Path) -> dict[str, Any]:
    ended = qtm("demo", "--questions", "6", "--json")
    assert ended.code == 0, ended.err
    assert "Replaying recorded replies" in ended.err
    assert list((tmp_path / ".tmp" / "demo").glob("index-*.sqlite"))
    return json.loads(ended.out)  # type: ignore[no-any-return]


def test_every_system_is_compared(found: dict[str, Any]) -> None:
    assert [system["name"] for system in found["systems"]] == list(USUAL)
    assert (found["dataset"], found["questions"]) == ("demo", 6)
    assert found["baseline"] == BASELINE
    calls = {system["name"]: system["llmCalls"] for system in found["systems"]}
    assert (calls["off"], calls["rules"], calls["balanced"], calls["all"]) == (0, 0, 6, 18)


def test_the_table_fits_a_plain_terminal(qtm: Run) -> None:
    ended = qtm("demo", "--questions", "2", COLUMNS="80")
    assert ended.code == 0, ended.err
    rows = [
        line
        for line in ended.out.splitlines()
        if line.split()[:1] in ([name.split()[0]] for name in USUAL)
    ]
    assert len(rows) >= len(USUAL)
    assert "…" not in "".join(rows[: len(USUAL)])
    assert "Step by step" in ended.out
