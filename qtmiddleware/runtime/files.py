"""Files and folders: created for their owner alone, written whole, and set aside where they are damaged."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700


def make_private_folders(folder: Path) -> None:
    """Create *folder*, and those above it that are missing, for their owner alone; what exists stays as it is.

    Raises `OSError`, also where something else than a folder is in the way.
    """
    try:
        folder.mkdir(PRIVATE_FOLDER)
    except FileNotFoundError:
        if folder.parent == folder:
            raise
        # With `parents=True` those above would get what the umask leaves.
        make_private_folders(folder.parent)
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    except OSError:
        # It is there, or in a place that cannot be written and has it: systems differ in which of
        # it they say.
        if not folder.is_dir():
            raise


def private_opener(path: str, flags: int) -> int:
    """For ``open(..., opener=)``: a new file is readable and writable by its owner alone."""
    return os.open(path, flags, PRIVATE)


def read_own_file(path: Path, most: int) -> bytes:
    """The bytes of a file that nobody but this account can have written, at most *most*.

    Raises `OSError`, also for a link, for what is no file, for one of another account or one that
    others may write to, and for one that is larger. Windows has neither that owner nor those
    permissions, so there they are not looked at.
    """
    with open_document(path, follow_link=False) as file:
        found = os.fstat(file.fileno())
        if os.name != "nt" and found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it belongs to another account", str(path))
        if os.name != "nt" and found.st_mode & 0o022:
            raise OSError(errno.EPERM, "others may write to it (fix: chmod go-w)", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content


def open_document(path: Path, *, follow_link: bool) -> BufferedReader:
    """Open the file at *path* for reading. Raises `OSError`, also for what is no file, such as a pipe.

    With *follow_link* false also for a link, whenever it was put there.
    """
    # Without waiting, as a pipe would have us do for ever; and what is looked at is what is read.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link", str(path))
        flags |= getattr(os, "O_NOFOLLOW", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def refuse_link(path: Path) -> None:
    """Raise `OSError` where *path* is a link: whoever put it there would choose what is written to."""
    if path.is_symlink():
        real = os.path.realpath(path)
        raise OSError(
            errno.ELOOP, f"it is a link, and links are not followed; name {real} itself", str(path)
        )


def check_link(path: Path) -> Path:
    """The real path of the file at *path*; raises `OSError` for a link or an empty file that others may have planted.

    That is a link to nothing, to an empty file, or of another account (root aside), and an empty
    file of another account, who would read what is put there. An index may lie behind a link, on
    another disk perhaps; but nothing is laid out where a planted one leads.
    """
    if not path.is_symlink():
        if path.is_file() and not path.stat().st_size and not _is_ours(path):
            raise OSError(errno.EPERM, "it is empty and belongs to another account", str(path))
        return Path(os.path.realpath(path.parent)) / path.name
    real = Path(os.path.realpath(path))
    if not _is_ours(path) or not real.exists() or (real.is_file() and not real.stat().st_size):
        refuse_link(path)
    return real


def _is_ours(path: Path) -> bool:
    return os.name == "nt" or path.lstat().st_uid in (0, os.geteuid())


def open_itself(path: Path, flags: int) -> int:
    """Open the file at *path* for writing with *flags*, made for its owner alone; raises `OSError`, also for a link."""
    refuse_link(path)
    # What is put there in the meantime is refused too; a pipe would be waited for.
    return os.open(
        path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), PRIVATE
    )


def append_line(path: Path, line: bytes) -> None:
    """Append *line* and a line break in one write, so that the lines of several threads and processes never mix.

    A file that is missing is made for its owner alone, a folder is not; a file that is there keeps
    its permissions. After a line that was left unfinished a new one is begun. Raises `OSError`,
    also for a link and where the disk was full in the middle.
    """
    data = line + b"\n"
    descriptor = open_itself(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        if os.lseek(descriptor, 0, os.SEEK_END):
            os.lseek(descriptor, -1, os.SEEK_END)
            if os.read(descriptor, 1) != b"\n":
                # A full disk or a killed process left half a line; it must not spoil this one.
                data = b"\n" + data
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, "the line was cut off", str(path))
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Put *data*, or its pieces, at *path* whole: readers see the old file or the new one, a crash leaves the old one.

    A new file is as readable as the umask has it, for what is written so is meant to be shared; one
    that is replaced hands on its permissions. What is no file is never replaced. Raises `OSError`,
    also for a link.
    """
    refuse_link(path)
    mode = _read_mode(path)
    # A name nobody can guess, which must be new: a file or link that was planted there would be
    # refused.
    draft = path.with_name(f".{secrets.token_hex(8)}.tmp")
    descriptor = os.open(
        draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else PRIVATE
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            # Else a power cut might leave the new name with none of the bytes.
            os.fsync(file.fileno())
            if mode is not None:
                # Of the file that was written; by its name another one might get them.
                os.chmod(descriptor if os.chmod in os.supports_fd else draft, mode)  # noqa: PTH101
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _read_mode(target: Path) -> int | None:
    """The permissions of the file at *target*, ``None`` where there is none."""
    try:
        found = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found):
        raise OSError(errno.EEXIST, "it exists but is not a file", str(target))
    return stat.S_IMODE(found)
