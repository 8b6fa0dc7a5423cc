"""Find the documents at a data path, which is a file, a folder or a glob pattern."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.formats import READERS

# The file extensions of documents in folders and patterns; upper and lower case are equal.
EXTENSIONS: Final = (".txt", ".md", ".rst", *READERS)
_MOST_ENDINGS: Final = 8
_ALLOWED: Final = (
    f"a file, or a folder or pattern (docs/**/*.md) with files of {' '.join(EXTENSIONS)}"
)


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The documents at a data path.

    Attributes:
        root: the whole data path, with a home directory in place of ``~``.
        folder: the data path without its file name or pattern.
        paths: the documents, sorted.
        is_file: whether the data path names a single file.
        left_out: the number of other files, per file extension.
    """

    root: Path
    folder: Path
    paths: list[Path]
    is_file: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)


def find_documents(data_path: str | Path) -> FoundDocuments:
    """Return the documents at *data_path*.

    A single file is always a document; if it is a link, the file that it leads to. In a folder or
    pattern, only files with a known extension are. Hidden files and folders, and links to folders,
    are skipped.

    Raises `ConfigError` if there are no documents, or if a folder cannot be read: were it skipped,
    its documents would count as deleted.
    """
    try:
        root = Path(data_path).expanduser()
        # Names that exist are no patterns, even with brackets.
        if str(data_path).strip() and os.path.lexists(root) and not root.is_dir():
            file = Path(os.path.realpath(root)) if root.is_symlink() else root
            return FoundDocuments(file, file.parent, [file], is_file=True)
        folder = root
        while not folder.is_dir():
            folder = folder.parent
        pattern = str(root.relative_to(folder))
        walked = _walk_folder(root) if folder == root else _match_pattern(folder, pattern)
        files = list(walked) if str(data_path).strip() else []
    # A home directory that is unknown is a RuntimeError.
    except (OSError, ValueError, NotImplementedError, RuntimeError) as error:
        # The text of an OSError would name the whole path.
        reason = getattr(error, "strerror", None) or error
        raise _build_error(data_path, f"but it cannot be read: {reason}") from error
    documents = {file for file in files if file.name.casefold().endswith(EXTENSIONS)}
    others = Counter(file.suffix.casefold() for file in files if file not in documents)
    if not documents:
        but = f" but {format_file_counts(others)}" if others else ""
        raise _build_error(data_path, f"which holds no documents{but}")
    return FoundDocuments(root, folder, sorted(documents), left_out=dict(others.most_common()))


def format_file_counts(file_counts: Mapping[str, int]) -> str:
    """Format the number of files per extension, such as ``3 .html, 1 .csv``, at most eight."""
    shown = list(file_counts.items())[:_MOST_ENDINGS]
    return ", ".join(f"{count} {ending or 'without an ending'}" for ending, count in shown)


def _walk_folder(folder: Path) -> Iterator[Path]:
    def raise_error(error: OSError) -> None:
        raise error

    for current_folder, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(current_folder, name) for name in names if not name.startswith("."))


def _match_pattern(folder: Path, pattern: str) -> Iterator[Path]:
    shows_hidden = any(part.startswith(".") for part in Path(pattern).parts)
    # Before Python 3.13, a final ** matches only folders.
    for file in folder.glob(f"{pattern}/*" if pattern.endswith("**") else pattern):
        inner_folders = [parent for parent in file.parents if folder in parent.parents]
        is_hidden = any(path.name.startswith(".") for path in (file, *inner_folders))
        # A pattern may match a link to a folder.
        is_linked = any(parent.is_symlink() for parent in inner_folders)
        if not (file.is_dir() or is_linked or (is_hidden and not shows_hidden)):
            yield file


def _build_error(data_path: str | Path, problem: str) -> ConfigError:
    return ConfigError(
        f"dataPath is {str(data_path)!r}, {problem}; it must be {_ALLOWED}",
        path="dataPath",
        value=str(data_path),
        allowed=_ALLOWED,
    )
