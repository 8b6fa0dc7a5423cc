"""Find the documents at a data path, which is a file, a folder or a glob pattern."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.converting import READERS

# The file extensions of documents in folders and patterns; upper and lower case are equal.
EXTENSIONS: Final = (".txt", ".md", ".rst", *READERS)
_MOST_ENDINGS: Final = 8
_ALLOWED: Final = (
    f"a file, or a folder or pattern (docs/**/*.md) with files of {' '.join(EXTENSIONS)}"
)


def find_documents(
    data_path: str | Path, *, all_files: bool = False
) -> tuple[list[Path], dict[str, int]]:
    """Return the sorted documents at *data_path*, and the number of other files per extension.

    A single file is always a document. In a folder or pattern, only files with a known extension
    are, unless *all_files* is true. Hidden files and folders, and links to folders, are skipped.

    Raises `ConfigError` if there are no documents, or if a folder cannot be read: were it skipped,
    its documents would count as deleted.
    """
    documents, others = set(), Counter[str]()
    try:
        base, pattern = split_data_path(data_path)
        for file in _find_files(base, pattern):
            if all_files or file == base / pattern or is_document(file):
                documents.add(file)
            else:
                others[file.suffix.casefold()] += 1
    except (OSError, ValueError, NotImplementedError) as error:
        # Only an OSError names the path and has a reason without it.
        path = getattr(error, "filename", None)
        reason = getattr(error, "strerror", None) or error
        problem = f"but {repr(path) if path else 'it'} cannot be read: {reason}"
        raise _build_error(data_path, problem) from error
    if not documents:
        but = f" but {format_file_counts(others)}" if others else ""
        raise _build_error(data_path, f"which holds no documents{but}")
    return sorted(documents), dict(others.most_common())


def split_data_path(data_path: str | Path) -> tuple[Path, str]:
    """Return the folder at the beginning of *data_path*, and the file name or pattern in it.

    The second part is empty for a folder. Names that exist are no patterns, even with brackets.
    """
    if not str(data_path).strip():
        raise ValueError("it is empty")
    path = Path(data_path)
    # A name that begins with ~ need not be a home directory.
    with suppress(RuntimeError):
        path = path.expanduser()
    base = Path(path.anchor)
    # The first part of an absolute path is its anchor, such as "/".
    parts = list(path.parts[1:] if path.anchor else path.parts)
    while parts and (base / parts[0]).is_dir():
        base /= parts.pop(0)
    return base, str(Path(*parts)) if parts else ""


def format_file_counts(file_counts: Mapping[str, int]) -> str:
    """Format the number of files per extension, such as ``3 .html, 1 .csv``, at most eight."""
    shown = [f"{count} {ending or 'without an ending'}" for ending, count in file_counts.items()]
    others = sum(list(file_counts.values())[_MOST_ENDINGS:])
    return ", ".join(shown[:_MOST_ENDINGS] + ([f"{others} others"] if others else []))


def is_document(path: Path) -> bool:
    """Return whether the extension of the file at *path* is in `EXTENSIONS`."""
    return path.name.casefold().endswith(EXTENSIONS)


def _find_files(base: Path, pattern: str) -> Iterator[Path]:
    if not pattern:
        yield from _walk_folder(base)
    elif os.path.lexists(base / pattern):
        yield base / pattern
    elif not set("*?[").intersection(pattern):
        message = "the file or folder does not exist"
        raise FileNotFoundError(errno.ENOENT, message, str(base / pattern))
    else:
        # Before Python 3.13, a final ** matches only folders.
        found = base.glob(f"{pattern}/*" if pattern.endswith("**") else pattern)
        shows_hidden = any(part.startswith(".") for part in Path(pattern).parts)
        for file in found:
            inner = [folder for folder in file.parents if base in folder.parents]
            is_hidden = any(it.name.startswith(".") for it in (file, *inner))
            # A pattern may match a link to a folder.
            is_linked = any(folder.is_symlink() for folder in inner)
            if not (file.is_dir() or is_linked or (is_hidden and not shows_hidden)):
                yield file


def _walk_folder(folder: Path) -> Iterator[Path]:
    def raise_error(error: OSError) -> None:
        raise error

    for current_folder, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(current_folder, name) for name in names if not name.startswith("."))


def _build_error(data_path: str | Path, problem: str) -> ConfigError:
    return ConfigError(
        f"dataPath is {str(data_path)!r}, {problem}; it must be {_ALLOWED}",
        path="dataPath",
        value=str(data_path),
        allowed=_ALLOWED,
    )
