"""Create private files, replace files so that readers never see half a file, and read tables."""

from __future__ import annotations

import csv
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Final

from qtmiddleware.runtime.files import PRIVATE, refuse_link

PRIVATE_FOLDER: Final = 0o700

# Of equal separators, the first is chosen: texts contain commas most often.
_SEPARATORS: Final = "\t;|,"
# How much of a table shows its separator.
_SAMPLE_CHARS: Final = 100_000
_SAMPLE_ROWS: Final = 20


def make_private_folders(folder: Path) -> None:
    """Create *folder* and its missing parents, accessible only to their owner.

    Existing folders keep their permissions. Raises `OSError` if a folder cannot be created, or if
    *folder* is a file.
    """
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        # `mkdir(parents=True)` would give the parents the permissions that the umask leaves.
        make_private_folders(folder.parent)
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    except OSError:
        # The folder may exist. Systems differ in the error that they raise then, for example on a
        # read-only disk.
        if not folder.is_dir():
            raise


def open_privately(path: str, flags: int) -> int:
    """Open *path* so that only the owner can access a new file. Returns the descriptor.

    Pass this function to `open`: ``open(..., opener=open_privately)``. An existing file keeps its
    permissions.
    """
    return os.open(path, flags, PRIVATE)


def read_trusted_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file that only the current account can write.

    On Windows the owner and the permissions are not checked.

    Raises:
        OSError: The file cannot be read, is a link, is not a regular file, belongs to another
            account, can be written by other accounts, or is larger than *max_bytes*.
    """
    with open_regular_file(path, follow_link=False) as file:
        status = os.fstat(file.fileno())
        if os.name != "nt" and status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it belongs to another account", str(path))
        if os.name != "nt" and status.st_mode & 0o022:
            raise OSError(errno.EPERM, "others may write to it (fix: chmod go-w)", str(path))
        # The size that the system reports may be out of date, so one more byte is read.
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return content


def open_regular_file(path: Path, *, follow_link: bool) -> BufferedReader:
    """Open the file at *path* for reading.

    Raises `OSError` if the file cannot be read, if it is not a regular file (such as a pipe), or if
    it is a link and *follow_link* is false.
    """
    # A pipe without a writer would block for ever, hence O_NONBLOCK. The open file is checked, not
    # its path, because somebody may replace the file in between.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link; put the file itself there", str(path))
        # Somebody may create the link after the check above.
        flags |= getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def replace_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Replace the file at *path* with *content*. Readers see the old or the new file, never both.

    After a crash the old file is still there. A replaced file keeps its permissions. A new file
    gets the permissions that the umask allows, because these files are meant to be shared.

    Raises:
        OSError: The file cannot be written, or *path* is a link or not a regular file.
    """
    refuse_link(path)
    mode = _read_permissions(path)
    # The name cannot be guessed and must be new, so that nobody can plant a file or link there.
    draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(
        draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else PRIVATE
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            # Without this, a power cut might leave the new name on an empty file.
            os.fsync(file.fileno())
            if mode is not None:
                # The open file is changed, not its path, because somebody may replace the file.
                os.chmod(descriptor if os.chmod in os.supports_fd else draft, mode)  # noqa: PTH101
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read_permissions(target: Path) -> int | None:
    """Return the permissions of the file at *target*; ``None`` if there is no file."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "it exists but is not a file", str(target))
    return stat.S_IMODE(mode)


def find_separator(table: str) -> str:
    """Return the comma, semicolon, tab or ``|`` between the cells of *table*.

    This is the separator that gives all of the first rows the same number of cells, two or more. If
    there is none or several, it is the one that gives the first row the most cells.
    """
    lines = list(filter(str.strip, table[:_SAMPLE_CHARS].splitlines()))

    def rate(separator: str) -> tuple[bool, int]:
        rows = islice(csv.reader(lines, delimiter=separator), _SAMPLE_ROWS)
        counts = [len(row) for row in rows] or [0]
        return min(counts) == max(counts) > 1, counts[0]

    return max(_SEPARATORS, key=rate)
