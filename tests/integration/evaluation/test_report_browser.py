"""The page in a real browser: how it is drawn, and how it is used: by mouse, by keyboard, on paper."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pypdf import PdfReader

from qtmiddleware.kit.evaluation import Comparison
from qtmiddleware.kit.evaluation.reporting import page as written
from qtmiddleware.kit.evaluation.reporting import ranking_page
from tests.support.judging_world import ranked_side_by_side
from tests.support.report_world import Open, boxes, comparison, overlap, panels, run, score, several

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.thorough

PHONE = {"width": 375, "height": 800}


def crowded() -> Comparison:
    """Many systems in one place, with names of all lengths and scripts."""
    gains = {f"q{number}": 0.1 for number in range(10)}
    names = [
        "a",
        "combined, no hyde",
        "preprocessed as text",
        "日本語のシステム名がここに",
        "שיטה ארוכה מאוד",
        "WWWWWWWWWWWWWWWWW",
    ]
    return comparison(*(score(f"{name} {place}", gains) for place in range(2) for name in names))


CONTRAST = """selectors => {
    const channel = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = color => {
        const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(it => channel(it / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (color !== "rgba(0, 0, 0, 0)") return color;
        }
        return "rgb(255, 255, 255)";
    };
    const found = {};
    for (const selector of selectors) {
        const element = [...document.querySelectorAll(selector)].find(it => it.checkVisibility());
        const style = getComputedStyle(element);
        const front = luminance(element instanceof SVGElement ? style.fill : style.color);
        const field = element.matches(".number") && element.parentElement.querySelector("rect");
        const back = luminance(field ? getComputedStyle(field).fill : behind(element));
        found[selector] = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    }
    return found;
}"""
READ = """
    h1 | .lede | .kicker | .notes li | .tile dt | .tile dd | .tile .more | section > p | .legend li |
    .chooser label | .chooser input:checked + label | thead th | tbody td |
    tbody tr.better th | small | tbody tr.worse th | caption | .loss | .asked | .aside | .weight | .found li |
    .found .relevant | .tag | h5 | .method dd | .meanings dd | .bars .value | .bars .gain | svg .tick |
    svg .better .number | svg .same .number | svg .worse .number | svg .base .number |
    ol.numbers li | svg .axis | code
"""
DRAWN = [".better .bar", ".worse .bar", ".base .bar", ".helped", ".hurt", ".scatter .better rect", ".stages .p50"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_from_a_file_and_asks_the_network_for_nothing(opened: Open, scheme: str) -> None:
    shown = opened(color_scheme=scheme)
    assert shown.locator("h1").inner_text().startswith("“system")
    assert shown.locator("ul.notes li").all_inner_texts() == ["Replies are recorded."]


@pytest.mark.parametrize("viewport", [{"width": 1200, "height": 900}, PHONE])
def test_every_chart_has_a_mark_for_each_system(opened: Open, viewport: dict[str, int]) -> None:
    shown = opened(viewport=viewport)
    assert len(boxes(shown, "table.bars .bar")) == 7
    assert len(boxes(shown, "svg.scatter")) == 2
    assert len(boxes(shown, "svg.scatter rect")) == 14
    assert len(boxes(shown, "ol.numbers li")) == 14
    assert len(boxes(shown, "svg.gains")) == 1
    assert len(boxes(shown, "table.all tbody tr")) == 7


@pytest.mark.parametrize("found", [several(), several(20, 12), crowded()], ids=["several", "twelve", "crowded"])
def test_no_text_of_a_chart_lies_upon_another(opened: Open, found: Comparison) -> None:
    shown = opened(found)
    for width in (1200, 760, 375):
        shown.set_viewport_size({"width": width, "height": 900})
        assert len(boxes(shown, "svg.scatter .number")) >= len(boxes(shown, "svg.scatter")) > 0
        for selector in ("table.bars :is(th, .value, .gain, text)", "svg.scatter text", "ol.numbers bdi"):
            assert not [pair for pair in combinations(boxes(shown, selector), 2) if overlap(*pair)]


def test_the_policy_stops_what_is_not_the_pages_own(opened: Open, browser: Browser, tmp_path: Path) -> None:
    text = written(several()).replace(
        "</main>", "<script>hacked = 1</script><img src='http://localhost:9/x' onerror='hacked = 2'></main>"
    )
    file = tmp_path / "tampered.html"
    file.write_text(text, encoding="utf-8")
    with browser.new_context() as context:
        shown = context.new_page()
        refused: list[str] = []
        shown.on("console", lambda message: refused.append(message.text))
        shown.goto(file.as_uri())
        assert shown.evaluate("typeof hacked") == "undefined"
        assert len([message for message in refused if "Content Security Policy" in message]) >= 2


def test_it_fits_a_narrow_screen(opened: Open) -> None:
    gains = {"q" * 120: -0.1, "r" * 90: 0.2}
    runs = {question: run(question, text="w" * 300, ids=("i" * 200, "p1")) for question in gains}
    long = score("n" * 200, gains, runs=runs, stages={"s" * 80: (1.0, 2.0)})
    for found in (several(), comparison(long, notes=("o" * 200,), name="d" * 200)):
        shown = opened(found, is_mobile=True, has_touch=True, viewport=PHONE)
        for width in (320, 375, 768):
            shown.set_viewport_size({"width": width, "height": 800})
            assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast_enough_in_both_schemes(opened: Open, scheme: str) -> None:
    shown = opened(color_scheme=scheme)
    found = shown.evaluate(CONTRAST, [selector.strip() for selector in READ.split("|")])
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
    drawn = shown.evaluate(CONTRAST, DRAWN)
    assert {selector: ratio for selector, ratio in drawn.items() if ratio < 3.0} == {}
    assert (int(shown.evaluate("getComputedStyle(document.body).color.match(/[0-9]+/)[0]")) > 128) is (scheme == "dark")


def test_a_browser_that_is_not_there_is_told_in_one_line() -> None:
    script = Path(__file__).parents[3] / "scripts" / "browser"
    for wanted, code, lines in (("/nowhere/chromium", 1, 1), (sys.executable, 0, 0)):
        done = subprocess.run([script], env={**os.environ, "TEST_BROWSER": wanted}, capture_output=True, text=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, lines)
        assert done.stdout == ("" if code else f"{wanted}\n")


def test_the_chooser_works_by_mouse(opened: Open) -> None:
    shown = opened()
    shown.get_by_text("system 1", exact=True).locator("visible=true").and_(shown.locator("label bdi")).click()
    assert panels(shown) == ["panel-1"]
    assert shown.locator("#panel-1 h3").inner_text().startswith("system 1: ")
    assert len(boxes(shown, "details.hurt-question")) == 10


def test_the_chooser_works_by_keyboard(opened: Open) -> None:
    shown = opened()
    shown.locator("#system-0").focus()
    shown.keyboard.press("Space")
    assert panels(shown) == ["panel-0"]
    shown.keyboard.press("ArrowRight")
    assert panels(shown) == ["panel-1"]


def test_a_hurt_question_opens_by_keyboard(opened: Open) -> None:
    shown = opened()
    folded = shown.locator(".panel:visible details").nth(1)
    assert not folded.locator(".both").is_visible()
    folded.locator("summary").focus()
    shown.keyboard.press("Enter")
    assert folded.locator(".both").is_visible()
    assert "rewritten q" in folded.inner_text()
    assert "relevant, grade 2" in folded.inner_text()


def test_where_scripts_are_forbidden_it_can_be_read_and_a_system_chosen(opened: Open) -> None:
    shown = opened(java_script_enabled=False)
    assert len(boxes(shown, "table.bars .bar")) == 7
    assert len(boxes(shown, "table.all thead th")) == 15
    shown.locator("label[for=system-3]").click()
    assert panels(shown) == ["panel-3"]
    shown.locator("#panel-3 summary").nth(1).click()
    assert shown.locator("#panel-3 details").nth(1).locator(".both").is_visible()


def test_it_is_printed_with_what_is_folded(opened: Open) -> None:
    shown = opened(several(12, 3))
    printed = PdfReader(BytesIO(shown.pdf(format="A4")))
    text = "\n".join(one.extract_text() for one in printed.pages)
    last = shown.locator(".panel:visible details").last
    assert not last.locator(".both").is_visible()
    assert "System to look at" not in text
    assert text.count("What was searched") == shown.locator(".panel:visible details").count() > 1


def test_everything_that_can_be_used_has_a_name_and_its_place_among_headings(opened: Open) -> None:
    shown = opened()
    assert shown.evaluate(
        "[...document.querySelectorAll('input, button')].every(it => it.labels?.length || it.textContent)"
    )
    assert shown.evaluate("[...document.querySelectorAll('svg')].every(it => it.ariaHidden || it.ariaLabel)")
    levels = [
        int(one[1]) for one in shown.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(it => it.tagName)")
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(it => it.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_ranking_opens_quietly_fits_and_can_be_read(opened: Open, scheme: str) -> None:
    shown = opened(text=ranking_page(ranked_side_by_side()), color_scheme=scheme)
    assert len(boxes(shown, "table.bars .bar")) == 3
    for width in (1200, 760, 375, 320):
        shown.set_viewport_size({"width": width, "height": 800})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert not [
            pair for pair in combinations(boxes(shown, "table.bars :is(th, .value, .gain)"), 2) if overlap(*pair)
        ]
    read = ["h1", ".lede", ".kicker", ".tile dt", ".tile dd", "section > p", ".legend li", "thead th", "tbody td"]
    read += ["small", "caption", ".asked", ".weight", "h5", ".bars .value", ".bars .gain", "svg .tick", ".method dd"]
    found = shown.evaluate(CONTRAST, read)
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
