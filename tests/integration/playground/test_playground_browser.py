"""The page in a real browser: how it fills, how it is used, and that nothing on it is stumbled over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser import browser  # noqa: F401
from tests.support.playground_world import APP, QUESTION, Served, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.thorough

Open = Callable[..., "Page"]
TIERS = ["off", "rules", "balanced", "yours"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("playground"), "-f", f"{APP}:search") as it:
        yield it


@pytest.fixture
def opened(browser: Browser, served: Served) -> Iterator[Open]:  # noqa: F811
    """Opens an address of the playground, and fails where the page complains or asks anybody else for anything."""
    complaints: list[str] = []
    addresses: list[str] = []
    contexts = []

    def open_(address: str = "", *, listens: bool = True, **options: Any) -> Page:
        contexts.append(
            browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        )
        shown = contexts[-1].new_page()
        if listens:
            shown.on("console", lambda message: complaints.append(message.text))
            shown.on("pageerror", lambda error: complaints.append(str(error)))
            shown.on("dialog", lambda dialog: complaints.append(dialog.message))
            shown.on("request", lambda it: addresses.append(it.url))
        shown.goto(address or served.url)
        return shown

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert all(it.startswith(("http://127.0.0.1:", "data:")) for it in addresses)


def list_cards(shown: Page) -> list[str]:
    """The tiers that are shown, from top left to bottom right."""
    found: list[str] = shown.evaluate(
        """[...document.querySelectorAll("article")].map(it => [it.getBoundingClientRect(), it.dataset.tier])
        .sort(([a], [b]) => Math.round(a.top) - Math.round(b.top) || a.left - b.left).map(([, name]) => name)"""
    )
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("demo")
    with serve(folder, "--playground", "--recorded", command="demo") as it:
        yield it


def list_states(demo: Served, served: Served) -> list[str]:
    """Addresses of every state of the page."""
    asked = served.at(QUESTION, user="Who is Jaco?")
    more = "".join(f"&tier={name}" for name in ("rules", "balanced", "thorough", "decompose"))
    lost = demo.at("my bike wont turn on, screen is completely black")
    return [demo.url, lost + more, demo.at("helmets for dogs?"), asked]


def open_details(shown: Page) -> None:
    shown.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")


@pytest.mark.parametrize(
    "look", [{}, {"color_scheme": "dark"}, {"forced_colors": "active"}], ids=str
)
def test_nobody_stumbles_over_any_state(
    opened: Open, demo: Served, served: Served, look: Any
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    # What axe does itself, the page's policy forbids, and is no complaint of the page.
    for address in list_states(demo, served):
        shown = opened(address, listens=False, viewport={"width": 500, "height": 900}, **look)
        open_details(shown)
        results = Axe().run(shown)
        assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("has_scripts", [True, False])
def test_a_question_is_asked_with_and_without_scripts_and_every_tier_stands_in_its_place(
    opened: Open, served: Served, has_scripts: bool
) -> None:
    shown = opened(served.url, java_script_enabled=has_scripts)
    if has_scripts:
        shown.keyboard.type(QUESTION)
        shown.keyboard.press("Enter")
    else:
        shown.locator("#q").fill(QUESTION)
        shown.get_by_role("button", name="Ask", exact=True).click()
    shown.locator("#headline").wait_for()
    shown.wait_for_load_state()
    assert shown.url.endswith("?q=Does+Jaco+have+any+health+concerns%3F")
    assert list_cards(shown) == TIERS
    assert shown.title() == f"{QUESTION} · qtm playground"


@pytest.mark.parametrize("width", [390, 1280])
def test_a_line_leads_from_each_place_in_the_plain_list_to_the_place_in_the_result(
    opened: Open, demo: Served, width: int
) -> None:
    shown = opened(demo.at("flat again"), viewport={"width": width, "height": 900})
    shown.locator(".drawn summary").first.click()
    shown.wait_for_function(
        """() => [...document.querySelectorAll(".drawn")].every(card => {
          const rows = [...card.querySelectorAll(".row")];
          const middle = it => { const box = it.getBoundingClientRect(); return box.top + box.height / 2; };
          return rows.length > 4 && rows.every(row => {
            const { p, start, way } = row.dataset;
            const from = card.querySelector(`g[data-p="${p}"] circle`), path = card.querySelector(`path[data-p="${p}"]`);
            const top = card.querySelector("svg").getBoundingClientRect().top;
            const end = path.getPointAtLength(path.getTotalLength()).y + top;
            const isSeated = way === "new" ? middle(from) > middle(rows.at(-1))
              : Math.abs(middle(from) - middle(rows[start - 1].querySelector(".place"))) < 2;
            return isSeated && Math.abs(end - middle(row.querySelector(".place"))) < 2;
          });
        })"""
    )


def test_hostile_passages_do_nothing(
    opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serve(tmp_path_factory.mktemp("hostile"), "-f", f"{APP}:hostile", "--port", "0") as served:
        for width in (380, 1600):
            shown = opened(served.at(QUESTION), viewport={"width": width, "height": 900})
            assert sorted(list_cards(shown)) == sorted(TIERS)
            assert shown.title() == f"{QUESTION} · qtm playground"
            assert shown.locator("article img, article a, article script").count() == 0
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
