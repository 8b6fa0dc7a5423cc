"""Open a page in the user's browser without showing its address to other accounts."""

from __future__ import annotations

import html
import os
import platform
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from qtmiddleware.kit.files import open_privately

_REDIRECT: Final = """<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>qtm playground</title>
<p><a href="{address}">Open the playground</a></p>
"""
_SNAP_FOLDER: Final = Path("/snap")


@contextmanager
def open_page_in_browser(address: str) -> Iterator[bool]:
    """Open *address* in the user's browser, and yield whether a browser started.

    The browser gets the path of a private file that redirects to *address*, because every account
    on the machine can read the browser's command-line arguments. The end of the ``with`` block
    removes the file.
    """
    if not has_browser():
        yield False
        return
    try:
        folder = TemporaryDirectory(prefix="qtm-playground-", dir=_find_page_folder())
    except (OSError, RuntimeError):
        # The folder cannot be made, or the home folder is not known.
        yield False
        return
    with folder as name:
        page = Path(name) / "open.html"
        with open(page, "x", encoding="utf-8", opener=open_privately) as file:
            file.write(_REDIRECT.format(address=html.escape(address)))
        # `webbrowser` waits for some browsers until they end. Meanwhile the page must be served.
        threading.Thread(target=_open_browser, args=(page.as_uri(),), daemon=True).start()
        yield True


def _open_browser(uri: str) -> None:
    # The address is also printed, so a browser that does not start is no failure.
    with suppress(OSError, webbrowser.Error):
        webbrowser.open(uri)


def has_browser() -> bool:
    """Return whether this terminal can open a graphical browser on this machine.

    - Returns ``False`` without a screen, because a text browser would take over the terminal.
    - Returns ``False`` in WSL and in a remote shell, because the user's browser then runs on
      another system and cannot read this machine's files.
    """
    if not sys.stdout.isatty() or "microsoft" in platform.release().casefold():
        return False
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("win32", "darwin") or bool(has_screen)


def _find_page_folder() -> Path | None:
    """Return the folder for the file that redirects the browser; ``None`` for the temporary folder.

    On a system with snaps, returns the home folder, because a browser installed as a snap cannot
    read the temporary folder.
    """
    return Path.home() if _SNAP_FOLDER.is_dir() else None
