"""The page in a real browser: it opens quietly, asks for nothing, and can be read and used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qtmiddleware.kit.evaluation import report_comparison
from tests.support.report_world import Open, data, several

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.thorough


def test_it_opens_quietly_from_a_file_and_asks_the_network_for_nothing(opened: Open) -> None:
    shown = opened()
    headline = "The right passage comes first for 26 of 40 questions"
    assert shown.locator("h1").inner_text().startswith(headline)
    question = shown.locator("details").first
    assert not question.locator("ol").first.is_visible()
    question.locator("summary").focus()
    shown.keyboard.press("Enter")
    assert question.locator("ol").first.is_visible()
    assert "relevant, grade 2" in question.inner_text()


def test_the_policy_stops_what_is_not_the_pages_own(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>hacked = 1</script><img src='http://localhost:9/x' onerror='hacked = 2'></main>"
    file = tmp_path / "tampered.html"
    page = (
        report_comparison(several())
        .to_html()
        .replace(
            "</main>",
            evil,
        )
    )
    file.write_text(page, encoding="utf-8")
    with browser.new_context() as context:
        shown = context.new_page()
        refused: list[str] = []
        shown.on(
            "console",
            lambda message: refused.append(message.text),
        )
        shown.goto(file.as_uri())
        assert shown.evaluate("typeof hacked") == "undefined"
        assert len([message for message in refused if "Content Security Policy" in message]) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_stumbles_over_a_report_at_any_width(opened: Open, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = report_comparison(several(), data(several())).to_html()
    shown = opened(text=page, listens=False, color_scheme=scheme)
    shown.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")
    for width in (390, 1280):
        shown.set_viewport_size({"width": width, "height": 900})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        results = Axe().run(shown)
        assert results.violations_count == 0, results.generate_report()
