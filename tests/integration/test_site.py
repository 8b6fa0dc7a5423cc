"""The documentation as a site: every link holds, every public name is explained, nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest

import qtmiddleware as qtm

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
SITE = ROOT / ".tmp/site"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of each page by its address in the site."""
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "scripts.site"]
    built = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert built.returncode == 0, built.stderr
    return {str(it.relative_to(SITE)): it.read_text("utf-8") for it in SITE.rglob("*.html")}


def test_every_link_leads_to_a_page_and_a_place_in_it(pages: dict[str, str]) -> None:
    wrong = []
    for address, text in pages.items():
        if address == "404.html":
            continue
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:|//", link):
                continue
            target, place = urldefrag(urljoin(f"/{address}", link))
            file = unquote(target).lstrip("/") or "index.html"
            file = f"{file}index.html" if file.endswith("/") else file
            held = pages.get(file)
            if not (SITE / file).is_file() or (
                place and held is not None and f'id="{unquote(place)}"' not in held
            ):
                wrong.append((address, link))
    assert wrong == []


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


def test_llms_txt_lists_every_page_of_the_menu_as_markdown(pages: dict[str, str]) -> None:
    text = (SITE / "llms.txt").read_text("utf-8")
    assert text.startswith("# qtmiddleware\n\n> ")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .*\w", text, re.MULTILINE)
    assert len(listed) == len(re.findall(r"\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    for page in listed:
        assert (SITE / page).read_text("utf-8").startswith("# "), page


def test_a_link_between_pages_holds_in_their_markdown(pages: dict[str, str]) -> None:
    copies = list(SITE.rglob("*.md"))
    links = [
        (copy, unquote(link))
        for copy in copies
        for link in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", copy.read_text("utf-8"))
    ]
    assert links
    assert [(copy, link) for copy, link in links if not (copy.parent / link).exists()] == []
