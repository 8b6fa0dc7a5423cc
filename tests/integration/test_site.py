"""The documentation as a site: every link and anchor holds, every public name is explained."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import qtmiddleware as qtm

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".tmp/site"


def test_the_site_is_built_and_every_public_name_is_there_with_its_docstring() -> None:
    built = subprocess.run(
        ["scripts/docs"], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert built.returncode == 0, built.stderr
    page = (SITE / "docs/api/index.html").read_text("utf-8")
    assert ":::" not in page
    for name in qtm.__all__:
        assert re.search(rf'id="qtmiddleware\.(?:\w+\.)*{name}"', page), name
        first = re.findall(r"\w{4,}", (getattr(qtm, name).__doc__ or "").partition("\n")[0])
        assert all(word in page for word in first), name
