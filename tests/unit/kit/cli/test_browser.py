"""Whose browser is opened, and what it is given."""

from __future__ import annotations

import platform
import stat
import sys
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from qtmiddleware.kit.cli import browser
from tests.support.waiting import wait_until

ADDRESS = "http://127.0.0.1:8765/secret/"


@pytest.fixture(autouse=True)
def screen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal with a screen; holds what a browser was opened with."""
    opened: list[str] = []
    for name in ("SSH_CONNECTION", "SSH_TTY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(platform, "release", lambda: "6.1.0-generic")
    monkeypatch.setattr(webbrowser, "open", opened.append)
    return opened


def test_a_browser_is_given_a_file_of_ones_own_and_not_the_address(screen: list[str]) -> None:
    with browser.open_page_in_browser(ADDRESS) as is_opened:
        assert is_opened
        wait_until(lambda: screen)
        assert "secret" not in screen[0]
        page = Path(urlsplit(screen[0]).path)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        assert f'content="0; url={ADDRESS}"' in page.read_text()
    assert not page.parent.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSH_CONNECTION", "1.2.3.4 5 6.7.8.9 22"), ("SSH_TTY", "/dev/pts/1"), ("DISPLAY", "")],
)
def test_a_browser_that_may_be_on_another_machine_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert browser.has_browser()
    monkeypatch.setenv(name, value)
    assert not browser.has_browser()
    with browser.open_page_in_browser(ADDRESS) as is_opened:
        assert not is_opened


def test_the_browser_of_windows_is_not_opened_from_wsl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "release", lambda: "5.15.153.1-microsoft-standard-WSL2")
    assert not browser.has_browser()


def test_nothing_is_opened_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not browser.has_browser()


def test_a_browser_that_is_a_snap_finds_the_file_where_it_may_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, screen: list[str]
) -> None:
    monkeypatch.setattr(browser, "_SNAP_FOLDER", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with browser.open_page_in_browser(ADDRESS):
        (folder,) = tmp_path.iterdir()
        assert not folder.name.startswith(".")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_for_the_file_no_browser_is_opened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(browser, "_SNAP_FOLDER", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    with browser.open_page_in_browser(ADDRESS) as is_opened:
        assert not is_opened
