"""What can be seen of a page that is open in a browser."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

Open = Callable[..., Page]


def boxes(shown: Page, selector: str) -> list[dict[str, float]]:
    """Where each visible text of *selector* is drawn."""
    found: list[dict[str, float]] = shown.evaluate(
        """selector => [...document.querySelectorAll(selector)].filter(it => it.checkVisibility()).map(it => {
            const {left, top, right, bottom} = it.getBoundingClientRect();
            return {left, top, right, bottom};
        })""",
        selector,
    )
    return found


def panels(shown: Page) -> list[str]:
    """The ids of the panels that can be seen."""
    found: list[str] = shown.evaluate(
        "[...document.querySelectorAll('.panel')].filter(it => it.checkVisibility()).map(it => it.id)"
    )
    return found


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two boxes share more than the hair that rounding makes."""
    across = min(one["right"], other["right"]) - max(one["left"], other["left"])
    down = min(one["bottom"], other["bottom"]) - max(one["top"], other["top"])
    return across > 0.5 and down > 1.5
