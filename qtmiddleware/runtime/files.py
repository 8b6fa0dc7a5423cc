"""Append lines to private files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600


def refuse_link(path: Path) -> None:
    """Raise `OSError` if *path* is a link, whose maker would choose the file to overwrite."""
    if path.is_symlink():
        real = os.path.realpath(path)
        raise OSError(
            errno.ELOOP, f"it is a link, and links are not followed; name {real} itself", str(path)
        )


def open_for_writing(path: str | Path, flags: int) -> int:
    """Open the file at *path* and return its descriptor. A new file is its owner's alone."""
    refuse_link(Path(path))
    # Somebody may create a link after the check, or a pipe, which would block forever.
    return os.open(
        path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), PRIVATE
    )


def append_line(path: Path, line: bytes) -> None:
    """Append *line* and a line break in one write, so that concurrent writers never mix lines.

    If the file ends with an unfinished line, *line* begins on a new line. Raises `OSError`.
    """
    with open(path, "a+b", opener=open_for_writing) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                # A full disk or a killed process left half a line; it must not spoil this one.
                line = b"\n" + line
        file.write(line + b"\n")
