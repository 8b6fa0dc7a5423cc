"""A real browser, and the command line with what it needs."""

from tests.support.browser import browser, opened
from tests.support.command_line import built, folder, qtm, service

__all__ = ["browser", "built", "folder", "opened", "qtm", "service"]
