"""Find the documents at a data path, which is a file, a folder or a glob pattern."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.documents.converting import READERS
from qtmiddleware.kit.documents.records import RECORD_READERS

EXTENSIONS: Final = (".txt", ".md", ".rst", *READERS, *RECORD_READERS)
"""The file extensions of documents in folders and patterns; upper and lower case are equal."""
_MOST_ENDINGS: Final = 8
_WILD: Final = frozenset("*?[")
_ALLOWED: Final = (
    f"a file, or a folder or pattern (docs/**/*.md) with files of {' '.join(EXTENSIONS)}"
)


def find_documents(data_path: str | Path, *, should_include_all_files: bool = False) -> list[Path]:
    """Return the sorted paths of all documents at *data_path*: a file, a folder or a glob pattern.

    - A file that exists is always a document, even if its name looks like a pattern.
    - From a folder or a pattern, only files that `is_document` accepts are returned, or all files
      if *should_include_all_files* is true. Hidden files and folders are skipped. Links to folders
      are not followed, unless *data_path* itself is such a link.

    Raises `ConfigError` if there are no documents, or if a folder cannot be read. If an unreadable
    folder were skipped, its documents would count as deleted.
    """
    if not str(data_path).strip():
        raise _build_data_path_error(data_path, "dataPath must not be empty")
    path = Path(data_path)
    # A name that begins with ~ need not be a home directory.
    with suppress(RuntimeError):
        path = path.expanduser()
    try:
        documents = sorted(set(_select_documents(path, should_include_all_files)))
    except (OSError, ValueError, NotImplementedError) as error:
        where, reason = getattr(error, "filename", None), getattr(error, "strerror", None) or error
        message = (
            f"dataPath is {str(data_path)!r}, but {repr(where) if where else 'it'} cannot be read:"
            f" {reason}"
        )
        raise _build_data_path_error(data_path, message) from error
    if not documents:
        left_out = format_file_counts(count_unsupported_files_by_extension(path))
        where = f"dataPath is {str(data_path)!r}, which holds no documents"
        raise _build_data_path_error(data_path, f"{where} but {left_out}" if left_out else where)
    return documents


def count_unsupported_files_by_extension(data_path: str | Path) -> dict[str, int]:
    """Count the files at *data_path* that are not documents, and return their number per extension.

    The most frequent extension comes first. The key ``""`` stands for files without an extension.
    Hidden files are not counted. For a single file, returns an empty dictionary.
    """
    path = Path(data_path)
    with suppress(RuntimeError):
        path = path.expanduser()
    counts = Counter(file.suffix.casefold() for file in _find_files(path) if not is_document(file))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def format_file_counts(file_counts: Mapping[str, int]) -> str:
    """Format the number of files per extension, such as ``3 .html, 1 .csv``.

    Only the first eight extensions are listed. The files with other extensions follow as a sum,
    such as ``5 others``.
    """
    shown_counts = [
        f"{count} {extension or 'without an ending'}" for extension, count in file_counts.items()
    ]
    rest_count = sum(list(file_counts.values())[_MOST_ENDINGS:])
    return ", ".join(
        [*shown_counts[:_MOST_ENDINGS], *([f"{rest_count} others"] if rest_count else [])]
    )


def _select_documents(path: Path, should_include_all_files: bool) -> Iterable[Path]:
    """Return the documents at *path*: a file, a folder or a glob pattern.

    A file is always returned. From a folder or a pattern, only files with the file extension of a
    document are returned, or all files if *should_include_all_files* is true.
    """
    if os.path.lexists(path) and not path.is_dir():
        return [path]
    return (file for file in _find_files(path) if should_include_all_files or is_document(file))


def _find_files(path: Path) -> Iterable[Path]:
    """Return all files in the folder *path*, or all files that match the glob pattern *path*.

    Hidden files are skipped, unless a pattern names them. The result is empty if *path* is a single
    file. Raises `FileNotFoundError` if *path* does not exist and is not a pattern.
    """
    if path.is_dir():
        return _walk_folder(path)
    if os.path.lexists(path):
        return []
    if _WILD.isdisjoint(str(path)):
        raise FileNotFoundError(errno.ENOENT, "the file or folder does not exist", str(path))
    return _find_matching_files(path)


def _walk_folder(folder: Path) -> Iterator[Path]:
    """Yield the files in *folder* and its subfolders, except hidden files and folders.

    Raises `OSError` if a folder cannot be read.
    """

    def raise_error(error: OSError) -> None:
        raise error

    for current_folder, folders, names in os.walk(folder, onerror=raise_error):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(current_folder, name) for name in names if not name.startswith("."))


def _find_matching_files(path: Path) -> Iterator[Path]:
    """Yield the files that match the glob pattern *path*.

    The name of a folder that exists is not read as a pattern, even if it contains brackets. Hidden
    files are skipped, unless the pattern names them. Links to folders are not followed.
    """
    base, *pattern_parts = (Path(path.anchor), *path.parts[bool(path.anchor) :])
    # A folder's name may contain brackets, so each part that exists is used as a name.
    while len(pattern_parts) > 1 and (base / pattern_parts[0]).is_dir():
        base /= pattern_parts.pop(0)
    # Before Python 3.13, a final ** matches only folders.
    if pattern_parts[-1] == "**":
        pattern_parts.append("*")
    shows_hidden = any(part.startswith(".") for part in pattern_parts)
    for file in base.glob(str(Path(*pattern_parts))):
        is_hidden = any(part.startswith(".") for part in file.relative_to(base).parts)
        # `Path.glob` follows a link to a folder that * matches.
        if any(
            folder.is_symlink()
            for folder in file.parents
            if folder != base and folder.is_relative_to(base)
        ):
            continue
        if (shows_hidden or not is_hidden) and not file.is_dir():
            yield file


def is_document(path: Path) -> bool:
    """Return whether the extension of the file at *path* is in `EXTENSIONS`."""
    return path.name.casefold().endswith(EXTENSIONS)


def _build_data_path_error(data_path: str | Path, message: str) -> ConfigError:
    return ConfigError(
        f"{message}; it must be {_ALLOWED}", path="dataPath", value=str(data_path), allowed=_ALLOWED
    )
