"""Which documents are meant by a data path, and what their passages are called."""

from __future__ import annotations

import hashlib
import os
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

LONGEST: Final = 480
"""Characters of a document's name; Pinecone allows 512 for an id, which has the chunk's number too."""
_KEPT: Final = "".join(sorted(set(string.printable) - set(string.whitespace) - set("%#~"))) + " "
_WILD: Final = "*?["


@dataclass(frozen=True, slots=True)
class Root:
    """A data path: *key* tells it from all others, and documents are named by where they lie below *base*.

    *is_file* where the data path names one document itself, and does not have it found in a folder or by a pattern.
    """

    key: str
    base: Path
    is_file: bool

    @classmethod
    def of(cls, data_path: str | os.PathLike[str]) -> Root:
        """The root of a file (its folder), a folder, or a glob (the folders before its first wildcard)."""
        given = Path(data_path).expanduser()
        path = Path(os.path.realpath(given))
        base = path
        if not path.is_dir():
            base = path.parent
            while any(mark in part for part in base.parts for mark in _WILD) and not base.is_dir():
                base = base.parent
        return cls(encoded(str(path)), base, os.path.lexists(given) and not path.is_dir())

    def source(self, path: Path) -> str:
        """Where *path* lies below the data path, with ``/`` on every system."""
        whole = absolute(path)
        # Where a link leads out of the data path there is no way from one to the other.
        return (whole.relative_to(self.base) if whole.is_relative_to(self.base) else Path(path.name)).as_posix()


def absolute(path: Path) -> Path:
    """*path* from the top, with the folders it really lies in; a document that is a link keeps its own name."""
    return Path(os.path.realpath(path.parent)) / path.name


def encoded(path: str) -> str:
    """*path* in printable ASCII, different for different paths; whatever else stands in it becomes ``%XX``."""
    return quote(os.fsencode(path), safe=_KEPT).replace("~", "%7E")


def document_name(source: str) -> str:
    """What the ids of a document's passages begin with."""
    name = encoded(source)
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def readable(text: str) -> str:
    """*text* with whatever has no UTF-8, as undecodable bytes of a file's name, replaced."""
    return text.encode("utf-8", "replace").decode()
