"""A real browser, and the command line with what it needs."""

from tests.support.browser import browser, opened
from tests.support.command_line import built, folder, qtm, qtm_process, service

__all__ = ["browser", "built", "folder", "opened", "qtm", "qtm_process", "service"]
