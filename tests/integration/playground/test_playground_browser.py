"""The page in a real browser: how it fills, how it is used, and that nothing on it is stumbled over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from pypdf import PdfReader

from tests.support.browser import browser  # noqa: F401
from tests.support.playground_world import APP, QUESTION, Served, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.thorough

Open = Callable[..., "Page"]
TIERS = ["raw", "rules", "rewrite", "stepback", "decompose", "combined", "yours"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("playground"), "-f", f"{APP}:search", "--no-open") as it:
        yield it


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Open]:  # noqa: F811
    """Opens an address of the playground, and fails where the page complains or asks anybody else for anything."""
    complaints: list[str] = []
    contexts = []

    def open_(address: str = "", *, listens: bool = True, **options: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options}))
        shown = contexts[-1].new_page()
        if listens:
            shown.on("console", lambda message: complaints.append(message.text))
            shown.on("pageerror", lambda error: complaints.append(str(error)))
            shown.on("dialog", lambda dialog: complaints.append(dialog.message))
            shown.on(
                "request",
                lambda it: None if it.url.startswith(("http://127.0.0.1:", "data:")) else complaints.append(it.url),
            )
        shown.goto(address or served.url)
        return shown

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def list_cards(shown: Page) -> list[str]:
    """The tiers that are shown, from top left to bottom right."""
    found: list[str] = shown.evaluate(
        """[...document.querySelectorAll("article")].map(it => [it.getBoundingClientRect(), it.dataset.tier])
        .sort(([a], [b]) => Math.round(a.top) - Math.round(b.top) || a.left - b.left).map(([, name]) => name)"""
    )
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nobody_stumbles_over_it_at_any_width(opened: Open, served: Served, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # What axe does itself, the page's policy forbids, and is no complaint of the page.
    for question, widths in (("", (380,)), (QUESTION, (380, 1000, 1600))):
        shown = opened(
            served.at(question, user="Who is Jaco?", tier="combined", topK="3"), listens=False, color_scheme=scheme
        )
        shown.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")
        for width in widths:
            shown.set_viewport_size({"width": width, "height": 900})
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
            results = Axe().run(shown)
            assert results.violations_count == 0, results.generate_report()


def test_a_question_is_asked_by_keyboard_and_every_tier_stands_in_its_place(opened: Open) -> None:
    shown = opened()
    assert shown.evaluate("document.activeElement.id") == "q"
    shown.keyboard.type(QUESTION)
    shown.keyboard.press("Enter")
    shown.wait_for_selector("#together")
    shown.wait_for_load_state()
    assert shown.url.endswith("?q=Does+Jaco+have+any+health+concerns%3F")
    assert list_cards(shown) == TIERS
    assert "changes" in shown.locator("#status").inner_text()
    assert shown.title() == f"{QUESTION} · qtm playground"


def test_the_first_list_is_seen_while_the_others_are_waited_for(opened: Open, served: Served) -> None:
    shown = opened()
    shown.goto(served.at(QUESTION), wait_until="commit")
    shown.wait_for_selector("article[data-tier=raw]")
    shown.wait_for_selector("#together")
    assert list_cards(shown) == TIERS


def test_tiers_and_weights_are_chosen_and_stand_in_the_address(opened: Open, served: Served) -> None:
    shown = opened(served.at(QUESTION))
    for name in ("stepback", "decompose", "combined", "yours"):
        shown.get_by_role("checkbox", name=name).uncheck()
    shown.get_by_text("Weights and passages").click()
    shown.get_by_label("passages", exact=True).fill("2")
    shown.get_by_label("rewrite’s weight").fill("2.5")
    shown.get_by_role("button", name="Ask", exact=True).click()
    shown.wait_for_load_state()
    assert list_cards(shown) == ["raw", "rules", "rewrite"]
    assert shown.url.endswith("&tier=rules&tier=rewrite&topK=2&fusion.weights.rewrite=2.5")
    assert "weight 2.50" in shown.locator("article[data-tier=rewrite]").inner_text()
    assert shown.locator("article[data-tier=rewrite] .rows > .row:not(.gone)").count() == 2
    shown.go_back()
    assert list_cards(shown) == TIERS


def test_a_follow_up_has_the_question_before_it(opened: Open, served: Served) -> None:
    shown = opened(served.at(QUESTION))
    shown.get_by_role("link", name="Ask a follow-up").click()
    assert shown.locator("#turn-1").input_value() == QUESTION
    shown.locator("#q").fill("And what does he eat?")
    shown.locator("#q").press("Enter")
    shown.wait_for_selector("#together")
    assert "standalone" in (shown.locator("article[data-tier=combined]").text_content() or "")


def test_a_passage_lights_up_wherever_it_stands(opened: Open, served: Served) -> None:
    shown = opened(served.at(QUESTION))
    row = shown.locator("article[data-tier=rewrite] .row").first
    key = row.get_attribute("data-p")
    row.hover()
    assert shown.locator(f'[data-p="{key}"]:not(.lit)').count() == 0
    assert shown.locator(f'.lit:not([data-p="{key}"])').count() == 0
    assert shown.locator("tr.lit").count() == 1


def test_the_config_is_copied(opened: Open, served: Served) -> None:
    shown = opened(served.at(QUESTION), permissions=["clipboard-read", "clipboard-write"])
    card = shown.locator("article[data-tier=combined]")
    card.get_by_text("Config that gives this").click()
    card.get_by_role("button", name="Copy").click()
    card.get_by_role("button", name="Copied").wait_for()
    assert '"transformationType": "combined"' in shown.evaluate("navigator.clipboard.readText()")


def test_without_scripts_it_is_the_same_page(opened: Open, served: Served) -> None:
    shown = opened(served.url, java_script_enabled=False)
    shown.locator("#q").fill(QUESTION)
    shown.get_by_role("button", name="Ask", exact=True).click()
    shown.locator("#together").wait_for()
    assert shown.url.endswith("?q=Does+Jaco+have+any+health+concerns%3F")
    assert shown.locator("article").count() == len(TIERS)


def test_it_is_printed_with_what_is_folded(opened: Open, served: Served) -> None:
    shown = opened(served.at(QUESTION))
    printed = PdfReader(BytesIO(shown.pdf(format="A4")))
    text = "\n".join(one.extract_text() for one in printed.pages)
    assert "Side by side" in text
    assert '"transformationType": "combined"' in text
    assert "Tiers to compare" not in text


def test_the_headline_says_where_the_answer_went(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:  # noqa: F811
    folder = tmp_path_factory.mktemp("demo")
    with serve(folder, "--playground", "--recorded", "--no-open", "--port", "0", command="demo") as served:
        shown = browser.new_page()
        for question in ("my bike wont turn on, screen is completely black", "flat again"):
            shown.goto(served.url)
            shown.get_by_role("link", name=question).first.click()
            shown.wait_for_selector("#together")
            headline = shown.locator("#headline").inner_text()
            assert re.match(r"The (answer|first of \d answers): (\d+\w\w|not) in the plain list, ", headline)
            assert "brings" not in headline
            said = dict(find_places(headline))
            assert said
            # The very places that the cards show.
            (key,) = {find_key(shown, tier, place) for tier, place in said.items()}
            for tier in re.findall(r"(?:lost|not found).* with (.*)\.$", headline)[:1]:
                for name in re.findall(r"[a-z]+", re.sub(r"\(.*?\)| and ", " ", tier)):
                    assert shown.locator(f'[data-tier={name}] .row:not(.gone)[data-p="{key}"]').count() == 0
        shown.close()


def find_places(headline: str) -> Iterator[tuple[str, int]]:
    """Each tier that the *headline* names, with the place that it names."""
    first = re.search(r": (\d+)\w\w in the plain list", headline)
    if first:
        yield "raw", int(first[1])
    for place, names in re.findall(r"(\d+)(?:st|nd|rd|th) with ([a-z, ]+?)(?=, \d|, lost|, not|\.)", headline):
        for name in re.split(r", | and ", names):
            yield name, int(place)


def find_key(shown: Page, tier: str, place: int) -> str | None:
    """Which passage *tier* shows at *place*."""
    return shown.locator(f"[data-tier={tier}] .row:not(.gone)").nth(place - 1).get_attribute("data-p")


def test_hostile_passages_do_nothing(opened: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    with serve(tmp_path_factory.mktemp("hostile"), "-f", f"{APP}:hostile", "--no-open", "--port", "0") as served:
        for width in (380, 1600):
            shown = opened(served.at(QUESTION), viewport={"width": width, "height": 900})
            assert list_cards(shown) == TIERS
            assert shown.title() == f"{QUESTION} · qtm playground"
            assert shown.locator("article img, article a, article script").count() == 0
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
