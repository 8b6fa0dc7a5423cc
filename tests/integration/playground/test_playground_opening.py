"""The playground opens somebody's browser, and no other account learns its address by that."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.browser import browser  # noqa: F401
from tests.support.playground_world import APP, QUESTION, ROOT
from tests.support.terminal import CTRL_C, Terminal
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.thorough


def list_arguments() -> str:
    """What every account can read of every process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return "\n".join(found)


@pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="there is no list of processes to read"
)
def test_the_address_stands_in_no_list_of_processes_and_the_browser_is_led_to_the_page(
    browser: Browser,  # noqa: F811
    tmp_path: Path,
) -> None:
    script, given = tmp_path / "browser.sh", tmp_path / "given.txt"
    script.write_text(f'#!/bin/sh\necho "$@" > {given}\nsleep 600\n')
    script.chmod(0o700)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_", "SSH_"))
    }
    environ = {**kept, "PYTHONPATH": str(ROOT), "DISPLAY": ":0", "BROWSER": str(script)}
    arguments = ("playground", "-f", f"{APP}:plain", "--port", "0")
    with Terminal(*arguments, folder=tmp_path, environ=environ) as terminal:
        (url,) = re.findall(
            r"http://127\.0\.0\.1:\d+/(?:\S+)/", terminal.wait_for("open the address above.")
        )
        wait_until(lambda: given.exists() and given.read_text().endswith("\n"))
        # The script runs on, as a browser does.
        assert str(script) in list_arguments()
        assert urlsplit(url).path.strip("/") not in list_arguments()
        page = Path(urlsplit(given.read_text().strip()).path)
        assert (stat.S_IMODE(page.stat().st_mode), stat.S_IMODE(page.parent.stat().st_mode)) == (
            0o600,
            0o700,
        )
        shown = browser.new_page()
        shown.goto(page.as_uri())
        shown.wait_for_url(url)
        shown.locator("#q").fill(QUESTION)
        shown.locator("#q").press("Enter")
        shown.wait_for_selector("#together")
        shown.close()
        terminal.type(CTRL_C, enter=False)
        assert terminal.ended() == 130
    assert not page.parent.exists()
