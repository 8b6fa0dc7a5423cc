"""A real browser, and pages opened in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qtmiddleware.kit.evaluation import Comparison, report_comparison
from tests.support.report_world import Open, data, several

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's own Chromium; it is not of the project, so that its absence is told and no failure."""
    names = [os.environ.get("TEST_BROWSER") or "", "chromium", "chromium-browser", "google-chrome"]
    path = next((found for found in map(shutil.which, filter(None, names)) if found), None)
    if path is None:
        (pytest.fail if os.environ.get("NEEDS_BROWSER") else pytest.skip)(
            "no Chromium was found; install one, or set TEST_BROWSER to its path"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=FLAGS, chromium_sandbox=False)
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a comparison, or HTML, from a file; fails where it complains, asks or wants anything.

    It does not listen for that where a tool that the page's policy refuses is run in it.
    """
    complaints: list[str] = []
    contexts = []

    def open_(
        found: Comparison | None = None,
        *,
        text: str = "",
        with_data: bool = True,
        words: str = "words of",
        listens: bool = True,
        **options: Any,
    ) -> Page:
        found = found or several()
        file = tmp_path / "report.html"
        report = report_comparison(found, data(found, words=words) if with_data else None)
        file.write_text(text or report.to_html(), encoding="utf-8")
        options.setdefault("viewport", {"width": 1200, "height": 900})
        contexts.append(browser.new_context(**options))
        shown = contexts[-1].new_page()
        if listens:
            shown.on("console", lambda message: complaints.append(message.text))
            shown.on("pageerror", lambda error: complaints.append(str(error)))
            shown.on("dialog", lambda dialog: complaints.append(dialog.message))
            shown.on(
                "request",
                lambda it: (
                    None
                    if it.url.startswith(("data:", file.as_uri()))
                    else complaints.append(it.url)
                ),
            )
        shown.goto(file.as_uri())
        return shown

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
