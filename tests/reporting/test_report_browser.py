"""The page in a real browser: how it is drawn, and that nothing in it acts."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
from comparisons import comparison, run, score, several
from page_reading import Open, boxes, overlap
from playwright.sync_api import Browser

from qtmiddleware.evaluation import Comparison
from qtmiddleware.reporting import page as written

PHONE = {"width": 375, "height": 800}
HOSTILE = (
    "</script><script>hacked = 1</script><img src=x onerror='hacked = 2'>\"><svg onload=alert(3)>"
    "<a href='javascript:hacked = 4'>\u202ex</a></title></style><iframe src='http://localhost:9/'></iframe>{{ 7 * 7 }}"
)


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
        const back = luminance(behind(element));
        found[selector] = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    }
    return found;
}"""
READ = [
    "h1",
    ".lede",
    ".kicker",
    ".notes li",
    ".tile dt",
    ".tile dd",
    ".tile .more",
    "section > p",
    ".legend li",
    ".chooser label",
]
READ += [
    ".chooser input:checked + label",
    ".walk output",
    ".walk label",
    "thead th",
    "tbody td",
    "tbody tr.better th",
    "small",
]
READ += [
    "tbody tr.worse th",
    "caption",
    ".loss",
    ".asked",
    ".aside",
    ".weight",
    ".found li",
    ".found .relevant",
    ".tag",
    "h5",
]
READ += [".method dd", ".meanings dd", "svg .name", "svg .gain", "svg .tick", "svg .label", "svg .axis", "code"]
DRAWN = [".better .bar", ".worse .bar", ".base .bar", ".scatter .better circle", ".stages .p50"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_from_a_file_and_asks_the_network_for_nothing(opened: Open, scheme: str) -> None:
    shown = opened(color_scheme=scheme)
    assert shown.locator("h1").inner_text().startswith("“system")
    assert shown.locator("ul.notes li").all_inner_texts() == ["Replies are recorded."]


@pytest.mark.parametrize("viewport", [{"width": 1200, "height": 900}, PHONE])
def test_every_chart_has_a_mark_for_each_system(opened: Open, viewport: dict[str, int]) -> None:
    shown = opened(viewport=viewport)
    assert len(boxes(shown, "svg.bars")) == 1
    assert len(boxes(shown, "svg.bars .bar")) == 7
    assert len(boxes(shown, "svg.scatter")) == 2
    assert len(boxes(shown, "svg.scatter circle")) == 14
    assert len(boxes(shown, "svg.scatter .label")) == 14
    assert len(boxes(shown, "svg.wins")) == 1
    assert len(boxes(shown, "table.all tbody tr")) == 7


@pytest.mark.parametrize("found", [several(), several(20, 12), crowded()], ids=["several", "twelve", "crowded"])
def test_no_text_of_a_chart_lies_upon_another(opened: Open, found: Comparison) -> None:
    shown = opened(found)
    for width in (1200, 760, 375):
        shown.set_viewport_size({"width": width, "height": 900})
        charts = len(boxes(shown, "svg.scatter"))
        assert len(boxes(shown, "svg.scatter .label")) >= charts * (len(found.systems) - 1) > 0
        for texts in (boxes(shown, "svg.bars text"), boxes(shown, "svg.scatter text")):
            assert not [pair for pair in combinations(texts, 2) if overlap(*pair)]


def test_hostile_texts_do_nothing(opened: Open) -> None:
    runs = {HOSTILE: run(HOSTILE, text=HOSTILE, ids=(HOSTILE, "p1"), variants=[("hyde", HOSTILE, 0.5)])}
    shown = opened(
        comparison(
            score(HOSTILE, {HOSTILE: -0.2}, runs=runs, stages={HOSTILE: (1, 2)}), notes=(HOSTILE,), name=HOSTILE
        ),
        words=HOSTILE,
    )
    for label in shown.locator("details summary").all():
        label.click()
    shown.wait_for_timeout(100)
    assert shown.evaluate("typeof hacked") == "undefined"
    assert shown.evaluate("document.querySelectorAll('img, iframe, a, script').length") == 2
    assert shown.evaluate("document.querySelectorAll('[onload], [onerror]').length") == 0
    assert "<img src=x onerror='hacked = 2'>" in shown.locator("header").inner_text()
    assert "{{ 7 * 7 }}" in shown.locator("header").inner_text()


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
    shown.get_by_role("button", name="nDCG@10").click()
    found = shown.evaluate(CONTRAST, READ)
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
    drawn = shown.evaluate(CONTRAST, DRAWN)
    assert {selector: ratio for selector, ratio in drawn.items() if ratio < 3.0} == {}
    assert (int(shown.evaluate("getComputedStyle(document.body).color.match(/[0-9]+/)[0]")) > 128) is (scheme == "dark")


def test_a_browser_that_is_not_there_is_told_in_one_line() -> None:
    script = Path(__file__).parents[2] / "scripts" / "browser"
    for wanted, code, lines in (("/nowhere/chromium", 1, 1), (sys.executable, 0, 0)):
        done = subprocess.run([script], env={**os.environ, "TEST_BROWSER": wanted}, capture_output=True, text=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, lines)
        assert done.stdout == ("" if code else f"{wanted}\n")
