"""The documentation as a site: every link and anchor holds, every public name is explained, nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import qtmiddleware as qtm

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".tmp/site"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of each page by its address in the site."""
    built = subprocess.run(
        ["scripts/docs"], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert built.returncode == 0, built.stderr
    return {str(it.relative_to(SITE)): it.read_text("utf-8") for it in SITE.rglob("*.html")}


def test_every_public_name_is_there_with_its_docstring(pages: dict[str, str]) -> None:
    page = pages["docs/api/index.html"]
    assert ":::" not in page
    for name in qtm.__all__:
        assert re.search(rf'id="qtmiddleware\.(?:\w+\.)*{name}"', page), name
        first = re.findall(r"\w{4,}", (getattr(qtm, name).__doc__ or "").partition("\n")[0])
        assert all(word in page for word in first), name


def test_nothing_is_loaded_from_another_machine(pages: dict[str, str]) -> None:
    loading = re.compile(
        r'<(?:script|img|iframe|source)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//'
    )
    assert [address for address, text in pages.items() if loading.search(text)] == []
    styles = [
        it
        for it in SITE.rglob("*.css")
        if re.search(r"@import|url\((?:\"|')?https?:", it.read_text("utf-8"))
    ]
    assert styles == []
