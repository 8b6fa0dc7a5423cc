"""Which documents a path means: a file, all of a folder, or what a pattern matches."""

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

EXTENSIONS: Final = (".txt", ".md", ".markdown", ".rst", ".pdf", *READERS)
"""The files that are taken from folders and by patterns, in capitals too."""
_MOST_ENDINGS: Final = 8
_WILD: Final = frozenset("*?[")
_ALLOWED: Final = (
    f"a file, or a folder or pattern (docs/**/*.md) with files of {' '.join(EXTENSIONS)}"
)


def find_documents(data_path: str | Path, *, every: bool = False) -> list[Path]:
    """The documents *data_path* means, in order: a file, the files below a folder, or those a pattern matches.

    Of folders and patterns, files of `EXTENSIONS` and those that an installed package reads are
    taken, or
    *every* file, and hidden ones left out, as are hidden folders; links to folders are not
    followed, unless
    *data_path* names them. A single file is taken whatever its name, and a name that exists is
    never a pattern.

    Raises `ConfigError` where there are none, and where a folder cannot be looked into: its
    documents would seem gone.
    """
    if not str(data_path).strip():
        raise _build_error(data_path, "dataPath must not be empty")
    path = Path(data_path)
    # A name that begins with ~ need not be somebody's home.
    with suppress(RuntimeError):
        path = path.expanduser()
    try:
        found = sorted(set(_find(path, every)))
    except (OSError, ValueError, NotImplementedError) as error:
        where, why = getattr(error, "filename", None), getattr(error, "strerror", None) or error
        message = (
            f"dataPath is {str(data_path)!r}, but {repr(where) if where else 'it'} cannot be read:"
            f" {why}"
        )
        raise _build_error(data_path, message) from error
    if not found:
        others = describe_left_out(count_left_out(path))
        where = f"dataPath is {str(data_path)!r}, which holds no documents"
        raise _build_error(data_path, f"{where} but {others}" if others else where)
    return found


def count_left_out(data_path: str | Path) -> dict[str, int]:
    """How many files below a folder, or of those a pattern matches, are no documents, by the ending of their names.

    The most frequent ending comes first; ``""`` stands for those without one, hidden files do not
    count. Empty for a single file.
    """
    path = Path(data_path)
    with suppress(RuntimeError):
        path = path.expanduser()
    found = Counter(it.suffix.casefold() for it in _find_all(path) if not is_document(it))
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def describe_left_out(counts: Mapping[str, int]) -> str:
    """*counts* as words: ``3 .html, 1 .csv``; the rarest endings are put together."""
    shown = [f"{count} {ending or 'without an ending'}" for ending, count in counts.items()]
    more = sum(list(counts.values())[_MOST_ENDINGS:])
    return ", ".join([*shown[:_MOST_ENDINGS], *([f"{more} others"] if more else [])])


def _find(path: Path, every: bool) -> Iterable[Path]:
    if os.path.lexists(path) and not path.is_dir():
        return [path]
    return (it for it in _find_all(path) if every or is_document(it))


def _find_all(path: Path) -> Iterable[Path]:
    """All files below a folder or of a pattern, whatever their ending; none where *path* is a file itself."""
    if path.is_dir():
        return _walk_folder(path)
    if os.path.lexists(path):
        return []
    if _WILD.isdisjoint(str(path)):
        raise FileNotFoundError(errno.ENOENT, "the file or folder does not exist", str(path))
    return _match_pattern(path)


def _walk_folder(folder: Path) -> Iterator[Path]:
    def unreadable(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(here, name) for name in names if not name.startswith("."))


def _match_pattern(path: Path) -> Iterator[Path]:
    """The files a pattern matches. As far as its beginning exists it is a name, also with brackets in it."""
    base, *rest = (Path(path.anchor), *path.parts[bool(path.anchor) :])
    while len(rest) > 1 and (base / rest[0]).is_dir():
        base /= rest.pop(0)
    if rest[-1] == "**":
        rest.append("*")
    shows_hidden = any(part.startswith(".") for part in rest)
    for found in base.glob(str(Path(*rest))):
        hidden = any(part.startswith(".") for part in found.relative_to(base).parts)
        if any(
            above.is_symlink()
            for above in found.parents
            if above != base and above.is_relative_to(base)
        ):
            continue
        if (shows_hidden or not hidden) and not found.is_dir():
            yield found


def is_document(path: Path) -> bool:
    """Whether the file at *path* is taken from folders and by patterns."""
    return path.name.casefold().endswith(EXTENSIONS) or has_own_reader(path)


def has_own_reader(path: Path) -> bool:
    """Whether an installed package reads the file at *path*, whose ending is none of `EXTENSIONS`."""
    ending = path.suffix.casefold()
    if not ending or ending in EXTENSIONS:
        return False
    # Known endings are never looked up.
    from qtmiddleware.plugins import has_reader

    return has_reader(ending)


def _build_error(data_path: str | Path, message: str) -> ConfigError:
    return ConfigError(
        f"{message}; it must be {_ALLOWED}", path="dataPath", value=str(data_path), allowed=_ALLOWED
    )
