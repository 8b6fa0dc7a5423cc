"""The short form of the soak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[3]


def test_hundreds_of_questions_at_once_do_not_cross_or_leave_anything_behind() -> None:
    command = [sys.executable, "-m", "tests.robustness.soak", "--seconds", "1"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "laws broken: 0\n" in done.stdout
