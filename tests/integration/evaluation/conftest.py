"""A real browser."""

from tests.support.browser import browser, opened

__all__ = ["browser", "opened"]
