"""Show somebody's browser a page whose address no other account may read."""

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

from qtmiddleware.runtime.files import private_opener

_LEAD: Final = """<!DOCTYPE html>
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}">
<title>qtm playground</title>
<p><a href="{address}">Open the playground</a></p>
"""
_SNAPS: Final = Path("/snap")


@contextmanager
def show_page(address: str) -> Iterator[bool]:
    """Open *address* in the user's browser; yield whether that was tried.

    Every account of the machine can read the arguments of a browser. So the browser gets the name
    of a file instead, which this account alone can read and which leads to *address*. The file is
    removed at the end of the block.
    """
    if not has_browser():
        yield False
        return
    try:
        folder = TemporaryDirectory(prefix="qtm-playground-", dir=_find_parent())
    except (OSError, RuntimeError):
        # No such folder can be made, or nobody knows where the home is.
        yield False
        return
    with folder as name:
        page = Path(name) / "open.html"
        with open(page, "x", encoding="utf-8", opener=private_opener) as file:
            file.write(_LEAD.format(address=html.escape(address)))
        # Some browsers are waited for until they end, and the page must be served by then.
        threading.Thread(target=_open, args=(page.as_uri(),), daemon=True).start()
        yield True


def _open(uri: str) -> None:
    with suppress(OSError, webbrowser.Error):
        webbrowser.open(uri)


def has_browser() -> bool:
    """Whether somebody sits at a terminal with a screen whose browser can read this machine's files.

    Without a screen, a browser of text would take over the terminal. In WSL and in a remote shell
    the browser may be one of another system, which has no such files.
    """
    if not sys.stdout.isatty() or "microsoft" in platform.release().casefold():
        return False
    if os.environ.get("SSH_CONNECTION") or os.environ.get("SSH_TTY"):
        return False
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform in ("win32", "darwin") or bool(has_screen)


def _find_parent() -> Path | None:
    """Where the file is put; ``None`` for the folder of temporary files.

    A browser that was installed as a snap has a folder of temporary files of its own, and reads no
    hidden folder.
    """
    return Path.home() if _SNAPS.is_dir() else None
