"""The page in a real browser as it is used: by mouse, by keyboard, on paper, without its script."""

from __future__ import annotations

from io import BytesIO
from itertools import pairwise

from comparisons import comparison, run, score, several
from page_reading import Open, boxes, panels
from playwright.sync_api import Page
from pypdf import PdfReader


def column(shown: Page, place: int) -> list[str]:
    return [
        text.split("\n")[0] for text in shown.locator(f"table.all tbody tr > :nth-child({place})").all_inner_texts()
    ]


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


def test_the_table_is_sorted_by_mouse_and_keyboard(opened: Open) -> None:
    shown = opened()
    heading = shown.locator("table.all thead th").nth(1)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    values = column(shown, 2)
    assert values == sorted(values, reverse=True)
    heading.get_by_role("button").focus()
    shown.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(shown, 2) == sorted(values)
    shown.locator("table.all thead th").first.get_by_role("button").click()
    assert column(shown, 1) == ["raw", *(f"system {place}" for place in range(6))]
    assert heading.get_attribute("aria-sort") is None


def test_what_is_not_known_is_sorted_last_both_ways(opened: Open) -> None:
    gains = {"q1": 0.1, "q2": 0.2}
    unknown = score("unknown", gains, runs={question: run(question, calls=1, cost=None) for question in gains})
    paid = score("paid", gains, runs={question: run(question, calls=1, cost=0.1) for question in gains})
    shown = opened(comparison(unknown, paid))
    button = shown.get_by_role("button", name="$/1k")
    button.click()
    assert column(shown, 1) == ["paid", "raw", "unknown"]
    button.click()
    assert column(shown, 1) == ["raw", "paid", "unknown"]


def test_questions_are_walked_through_by_keyboard_and_pointer(opened: Open) -> None:
    shown = opened()
    panel = shown.locator(".panel:visible")
    output, slider = panel.locator("output"), panel.get_by_role("slider")
    assert output.inner_text().startswith("40 of 40 · −")
    slider.focus()
    shown.keyboard.press("Home")
    assert output.inner_text().startswith("1 of 40 · +")
    assert "words of question q" in output.inner_text()
    assert slider.get_attribute("aria-valuetext") == output.inner_text()
    box = panel.locator("svg.wins.wide").bounding_box()
    assert box
    shown.mouse.move(box["x"] + box["width"] * 0.53, box["y"] + box["height"] / 2)
    assert output.inner_text().startswith(("20 of 40", "21 of 40"))


def test_a_hurt_question_opens_by_keyboard(opened: Open) -> None:
    shown = opened()
    folded = shown.locator(".panel:visible details").nth(1)
    assert not folded.locator(".both").is_visible()
    folded.locator("summary").focus()
    shown.keyboard.press("Enter")
    assert folded.locator(".both").is_visible()
    assert "rewritten q" in folded.inner_text()
    assert "relevant, grade 2" in folded.inner_text()


def test_without_its_script_it_can_be_read_and_a_system_chosen(opened: Open) -> None:
    shown = opened(java_script_enabled=False)
    assert len(boxes(shown, "svg.bars .bar")) == 7
    assert len(boxes(shown, "table.all thead th")) == 14
    assert boxes(shown, ".walk") == []
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
