"""The page in a real browser: how it is drawn, and how it is used: by mouse, by keyboard, on paper."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from io import BytesIO
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pypdf import PdfReader

from qtmiddleware.kit.evaluation import Comparison
from qtmiddleware.kit.evaluation.reporting import page as written
from qtmiddleware.kit.evaluation.reporting import ranking_page, shadow_page
from tests.support.judging_world import ranked_side_by_side
from tests.support.report_world import (
    Open,
    boxes,
    comparison,
    data,
    overlap,
    panels,
    run,
    score,
    several,
)
from tests.support.shadow_world import build_shadow_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

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
    svg .label | svg .axis | code | footer | .more-figures summary
"""
DRAWN = [
    ".better .bar",
    ".worse .bar",
    ".base .bar",
    ".helped",
    ".hurt",
    ".scatter .better rect",
    ".stages .p50",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_quietly_from_a_file_and_asks_the_network_for_nothing(
    opened: Open, scheme: str
) -> None:
    shown = opened(color_scheme=scheme)
    assert (
        shown.locator("h1")
        .inner_text()
        .startswith("The right passage comes first for 26 of 40 questions")
    )
    assert shown.locator("ul.notes li").all_inner_texts() == ["Replies are recorded."]


@pytest.mark.parametrize("viewport", [{"width": 1200, "height": 900}, PHONE])
def test_every_chart_has_a_mark_for_each_system(opened: Open, viewport: dict[str, int]) -> None:
    shown = opened(viewport=viewport)
    assert len(boxes(shown, "table.bars .bar")) == 7
    assert len(boxes(shown, "svg.scatter")) == 2
    assert len(boxes(shown, "svg.scatter rect")) == 14
    assert len(boxes(shown, "svg.scatter .label")) + len(boxes(shown, "ol.numbers li")) == 14
    assert len(boxes(shown, "svg.gains")) == 1
    assert len(boxes(shown, "table.all tbody tr")) == 7


@pytest.mark.parametrize(
    "found", [several(), several(20, 12), crowded()], ids=["several", "twelve", "crowded"]
)
def test_no_text_of_a_chart_lies_upon_another(opened: Open, found: Comparison) -> None:
    shown = opened(found)
    for width in (1200, 760, 375):
        shown.set_viewport_size({"width": width, "height": 900})
        assert len(boxes(shown, "svg.scatter .label")) >= len(boxes(shown, "svg.scatter")) > 0
        marks = boxes(shown, "svg.scatter rect")
        assert not [
            name
            for name in boxes(shown, "svg.scatter .label")
            if any(overlap(name, mark) for mark in marks)
        ]
        for selector in (
            "table.bars :is(th, .value, .gain, text)",
            "svg.scatter text",
            "ol.numbers bdi",
        ):
            assert not [pair for pair in combinations(boxes(shown, selector), 2) if overlap(*pair)]


@pytest.mark.parametrize("width", [390, 1280])
def test_names_in_a_chart_can_be_read_and_lie_inside_it(opened: Open, width: int) -> None:
    shown = opened(several(20, 12), viewport={"width": width, "height": 900})
    names, charts = boxes(shown, "svg.scatter .label"), boxes(shown, "svg.scatter")
    assert min(name["bottom"] - name["top"] for name in names) >= 11
    for name in names:
        assert any(
            chart["left"] <= name["left"]
            and name["right"] <= chart["right"] + 1
            and chart["top"] <= name["top"]
            for chart in charts
        )


def priced() -> Comparison:
    """A comparison with every column there is, and names as long as usual ones get."""
    found = several(40, 12)
    systems = (
        replace(
            system,
            name=system.name.replace("system", "preprocessed as text"),
            means={**system.means, "R@100": 0.987},
            runs={
                question: replace(run, searches=6, read_cost_usd=1e-5)
                for question, run in system.runs.items()
            },
        )
        for system in found.systems
    )
    return replace(found, systems=tuple(systems))


def test_the_table_of_all_figures_fits_a_wide_screen_and_scrolls_alone_on_a_narrow_one(
    opened: Open,
) -> None:
    shown = opened(priced())
    shown.locator(".more-figures summary").click()
    measure = (
        "[...document.querySelectorAll('.scrolled')].map(it => it.scrollWidth - it.clientWidth)"
    )
    shown.set_viewport_size({"width": 1280, "height": 900})
    assert shown.evaluate(measure) == [0, 0]
    shown.set_viewport_size({"width": 390, "height": 900})
    assert min(shown.evaluate(measure)) > 0
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390
    assert len(boxes(shown, "table.all thead th")) == 19


def test_the_policy_stops_what_is_not_the_pages_own(
    opened: Open, browser: Browser, tmp_path: Path
) -> None:
    text = written(several()).replace(
        "</main>",
        "<script>hacked = 1</script><img src='http://localhost:9/x' onerror='hacked = 2'></main>",
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
    shown.locator(".panel:visible summary").first.click()
    found = shown.evaluate(CONTRAST, [selector.strip() for selector in READ.split("|")])
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
    drawn = shown.evaluate(CONTRAST, DRAWN)
    assert {selector: ratio for selector, ratio in drawn.items() if ratio < 3.0} == {}
    assert (
        int(shown.evaluate("getComputedStyle(document.body).color.match(/[0-9]+/)[0]")) > 128
    ) is (scheme == "dark")


def test_a_browser_that_is_not_there_is_told_in_one_line() -> None:
    script = Path(__file__).parents[3] / "scripts" / "browser"
    for wanted, code, lines in (("/nowhere/chromium", 1, 1), (sys.executable, 0, 0)):
        done = subprocess.run(
            [script], env={**os.environ, "TEST_BROWSER": wanted}, capture_output=True, text=True
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (code, lines)
        assert done.stdout == ("" if code else f"{wanted}\n")


def test_the_chooser_works_by_mouse(opened: Open) -> None:
    shown = opened()
    shown.get_by_text("system 1", exact=True).locator("visible=true").and_(
        shown.locator("label bdi")
    ).click()
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
    assert len(boxes(shown, "table.all thead th")) == 11
    shown.locator("label[for=system-3]").click()
    assert panels(shown) == ["panel-3"]
    shown.locator("#panel-3 summary").nth(1).click()
    assert shown.locator("#panel-3 details").nth(1).locator(".both").is_visible()


def read_pages(shown: Page, **options: Any) -> list[str]:
    """The texts of the pages that *shown* is printed on."""
    printed = PdfReader(BytesIO(shown.pdf(prefer_css_page_size=True, **options)))
    assert {tuple(round(float(side)) for side in one.mediabox[2:]) for one in printed.pages} == {
        (595, 842)
    }
    return [" ".join(one.extract_text().split()) for one in printed.pages]


def test_it_is_printed_on_a4_with_folds_as_the_reader_left_them(opened: Open) -> None:
    shown = opened(several(12, 3))
    text = "\n".join(read_pages(shown))
    assert "System to look at" not in text
    assert "What was searched" not in text
    for place in (0, 2):
        shown.locator(".panel:visible summary").nth(place).click()
    assert "\n".join(read_pages(shown)).count("What was searched") == 2


def test_nothing_is_cut_on_paper_and_no_row_is_torn(opened: Open) -> None:
    found = priced()
    shown = opened(found)
    shown.locator(".more-figures summary").click()
    pages = read_pages(shown)
    for system in found.systems:
        row = f"{system.name} {system.means['nDCG@10']:.3f}"
        assert any(row in page for page in pages)
    assert all(any(heading in page for page in pages) for heading in ("reads $/1k", "$/+0.01"))
    shown.emulate_media(media="print")
    # What A4 leaves between its margins, in pixels.
    shown.set_viewport_size({"width": 687, "height": 1016})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 687
    assert shown.evaluate(
        "[...document.querySelectorAll('.scrolled')].every(it => it.firstElementChild.scrollWidth <= it.clientWidth)"
    )
    assert shown.evaluate(
        "[...document.querySelectorAll('tr')].every(it => getComputedStyle(it).breakInside === 'avoid')"
    )


def test_everything_that_can_be_used_has_a_name_and_its_place_among_headings(opened: Open) -> None:
    shown = opened()
    assert shown.evaluate(
        "[...document.querySelectorAll('input, button')].every(it => it.labels?.length || it.textContent)"
    )
    assert shown.evaluate(
        "[...document.querySelectorAll('svg')].every(it => it.ariaHidden || it.ariaLabel)"
    )
    levels = [
        int(one[1])
        for one in shown.evaluate(
            "[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(it => it.tagName)"
        )
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(it => it.id)")
    assert len(ids) == len(set(ids))


def write_shadow() -> str:
    report = build_shadow_report()
    return shadow_page(report, report.pick_examples(3))


PAGES = {
    "bench": lambda: written(several(), data(several())),
    "compare": lambda: ranking_page(ranked_side_by_side()),
    "shadow": write_shadow,
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_nobody_stumbles_over_a_report_at_any_width(
    opened: Open, browser: Browser, name: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = opened(text=PAGES[name](), listens=False, color_scheme=scheme)
    for is_open in (False, True):
        shown.evaluate(
            "open => document.querySelectorAll('details').forEach(it => { it.open = open })",
            is_open,
        )
        for width in (390, 1280):
            shown.set_viewport_size({"width": width, "height": 900})
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            results = Axe().run(shown)
            assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_shadow_mode_opens_quietly_and_can_be_read(opened: Open, scheme: str) -> None:
    shown = opened(text=write_shadow(), color_scheme=scheme)
    assert shown.locator("h1").inner_text() == (
        "Another passage would come first for 2 of 4 questions; 1 would get the same list."
    )
    assert len(boxes(shown, "table.bars .bar")) == 3
    shown.locator("summary").first.click()
    read = [
        "h1",
        ".lede",
        ".kicker",
        ".notes li",
        ".tile dt",
        ".tile dd",
        "section > p",
        "tbody td",
        ".asked",
    ]
    read += [".weight", "h3", ".bars .value", ".found li", ".method dd", "footer"]
    found = shown.evaluate(CONTRAST, read)
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_ranking_opens_quietly_fits_and_can_be_read(
    opened: Open, scheme: str
) -> None:
    shown = opened(text=ranking_page(ranked_side_by_side()), color_scheme=scheme)
    assert len(boxes(shown, "table.bars .bar")) == 3
    for width in (1200, 760, 375, 320):
        shown.set_viewport_size({"width": width, "height": 800})
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert not [
            pair
            for pair in combinations(boxes(shown, "table.bars :is(th, .value, .gain)"), 2)
            if overlap(*pair)
        ]
    read = [
        "h1",
        ".lede",
        ".kicker",
        ".tile dt",
        ".tile dd",
        "section > p",
        ".legend li",
        "thead th",
        "tbody td",
    ]
    read += [
        "small",
        "caption",
        ".asked",
        ".weight",
        ".bars .value",
        ".bars .gain",
        "svg .tick",
        ".method dd",
    ]
    found = shown.evaluate(CONTRAST, read)
    assert {selector: ratio for selector, ratio in found.items() if ratio < 4.5} == {}
