"""The first stage: which documents are new or changed, and their chunks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter, DocumentChunk, NotTaken, TextBound, cut_document
from qtmiddleware.kit.documents import Reader as ReadDocument
from qtmiddleware.kit.documents.finding import is_document
from qtmiddleware.kit.documents.text import PLACE_CHARS
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.files import open_document

LONGEST: Final = 480
"""Characters of a document's name; Pinecone allows 512 for an id, which has the chunk's number too."""
_SAFE: Final = "".join(sorted(set(string.printable) - set(string.whitespace) - set("%#~"))) + " "
_WILD: Final = "*?["


@dataclass(frozen=True, slots=True)
class Root:
    """A data path: *key* tells it from all others, and documents are named by where they lie below *base*.

    *is_file* where the data path names one document itself, and does not have it found in a folder
    or by a pattern.
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
        return cls(encode_path(str(path)), base, os.path.lexists(given) and not path.is_dir())

    def source(self, path: Path) -> str:
        """Where *path* lies below the data path, with ``/`` on every system."""
        whole = make_absolute(path)
        # Where a link leads out of the data path there is no way from one to the other.
        return (
            whole.relative_to(self.base) if whole.is_relative_to(self.base) else Path(path.name)
        ).as_posix()


def make_absolute(path: Path) -> Path:
    """*path* from the top, with the folders it really lies in; a document that is a link keeps its own name."""
    return Path(os.path.realpath(path.parent)) / path.name


def encode_path(path: str) -> str:
    """*path* in printable ASCII, different for different paths; whatever else stands in it becomes ``%XX``."""
    return quote(os.fsencode(path), safe=_SAFE).replace("~", "%7E")


def build_document_name(source: str) -> str:
    """What the ids of a document's passages begin with."""
    name = encode_path(source)
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


READER: Final = 3
"""Raised whenever documents are read or cut in another way, so that all are read again."""
BATCH: Final = 256
"""Chunks that are kept in one step."""
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}[ \t]++(\S.*)$", re.MULTILINE)
# Front matter, and blocks of code: a line of either may begin like a heading.
_NO_PROSE: Final = re.compile(
    r"\A---\n(?!\n).*?^---$|^ {0,3}(?P<fence>`{3,}|~{3,}).*?(?:^ {0,3}(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)

# One that is in the store without some of its contexts is read again: a version that is there is
# never changed.
_KNOWN: Final = """
SELECT id FROM documents d WHERE file = ? AND fingerprint = ? AND complete AND NOT (stored AND contextual
AND EXISTS (SELECT 1 FROM chunks c WHERE c.document = d.id AND c.context IS NULL)) ORDER BY id DESC LIMIT 1
"""
_KEPT: Final = (
    "SELECT id FROM documents WHERE file = ? AND complete AND stored ORDER BY stored DESC, id DESC"
    " LIMIT 1"
)
_CHUNK: Final = """
INSERT INTO chunks (document, ordinal, start, stop, text, metadata, hash) VALUES (?, ?, ?, ?, ?, ?, ?)
"""


class Reader:
    """Reads the documents of one data path into the ledger.

    *context_version* names how contexts are written for the chunks; empty where none are.
    *converter* reads what is no text, and *own* is the user's reader, which is known by its name
    alone.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        root: Root,
        context_version: str,
        converter: Converter,
        own: ReadDocument | None = None,
    ) -> None:
        self._converter = converter
        self._bound = TextBound()
        self._own = own
        self._ledger = ledger
        self._settings = settings
        self._root = root
        self._context_version = context_version
        self._kind = [
            settings.chunk_size,
            settings.chunk_overlap,
            settings.chunk_boundary,
            READER,
            context_version,
        ]
        if own is not None:
            kind = type(own) if getattr(own, "__qualname__", None) is None else own
            self._kind.append(f"{kind.__module__}.{kind.__qualname__}")

    def take(self, path: Path) -> str:
        """Make the document at *path* part of this run. Returns ``added``, ``changed`` or ``unchanged``.

        What is known of it already is not read again. Raises `UnreadableDocument`, also for a link,
        unless the data path names that itself: whoever filled the folder must not choose what else
        of this machine is read.
        """
        if path.is_symlink() and not self._root.is_file:
            raise UnreadableDocument(
                path, "cannot be opened", "it is a link; name the file it leads to"
            )
        file = encode_path(str(make_absolute(path)))
        # Before it is read: what is changed in the meantime has another fingerprint in the next
        # run.
        fingerprint = self._hash_file(path)
        self._claim(file)
        versions = self._ledger.rows(
            "SELECT stored, fingerprint FROM documents WHERE file = ?", [file]
        )
        known = self._ledger.rows(_KNOWN, [file, fingerprint])
        document = known[0][0] if known else self._read(path, file, fingerprint)
        self._add_target(document, file)
        if (2, fingerprint) in versions:
            return "unchanged"
        return "changed" if any(stored for stored, _ in versions) else "added"

    @property
    def is_file(self) -> bool:
        """Whether the data path names the one document itself."""
        return self._root.is_file

    def keep(self, path: Path) -> None:
        """Let what is indexed of the document at *path* stay as it is."""
        file = encode_path(str(make_absolute(path)))
        self._claim(file)
        for (document,) in self._ledger.rows(_KEPT, [file]):
            self._add_target(document, file)

    def _hash_file(self, path: Path) -> str:
        try:
            with open_document(path, follow_link=self._root.is_file) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error
        return hashlib.sha256(json.dumps([content, *self._kind]).encode()).hexdigest()

    def _claim(self, file: str) -> None:
        """A file that another data path found before belongs to this one from now on; it is not indexed twice."""
        values = [self._root.key, file, self._root.key]
        self._ledger.rows("UPDATE documents SET root = ? WHERE file = ? AND root <> ?", values)

    def _add_target(self, document: int, file: str) -> None:
        self._ledger.rows("INSERT OR REPLACE INTO target VALUES (?, ?)", [document, file])

    def _read(self, path: Path, file: str, fingerprint: str) -> int:
        """A new version of the document, all of it or nothing."""
        ledger, settings = self._ledger, self._settings
        ledger.rows("DELETE FROM documents WHERE file = ? AND NOT complete", [file])
        source = replace_surrogates(self._root.source(path))
        name = self._choose_name(file, self._root.source(path))
        document = ledger.insert(
            "INSERT INTO documents (root, file, name, source, fingerprint, contextual) VALUES (?,"
            " ?, ?, ?, ?, ?)",
            [self._root.key, file, name, source, fingerprint, bool(self._context_version)],
        )
        found = cut_document(
            path,
            size=settings.chunk_size,
            overlap=settings.chunk_overlap,
            boundary=settings.chunk_boundary,
            follow_link=self._root.is_file,
            reader=None if self._own is None else self._ask,
            converter=self._converter,
            bound=self._bound,
        )
        rows = _build_rows(found, document, source, path)
        try:
            while batch := list(islice(rows, BATCH)):
                ledger.many(_CHUNK, batch)
        except (UnreadableDocument, MissingExtra):
            # Nobody else takes out what was kept of it, unless the same file is read again.
            ledger.rows("DELETE FROM documents WHERE id = ?", [document])
            raise
        ledger.rows("UPDATE documents SET complete = 1 WHERE id = ?", [document])
        return document

    def _ask(self, path: Path) -> Any:
        """What the user's reader makes of the file at *path*. Raises `NotTaken` for one that nobody else reads."""
        found = None if self._own is None else self._own(path)
        if found is None and not self._root.is_file and not is_document(path):
            raise NotTaken(path, "not taken")
        return found

    def _choose_name(self, file: str, source: str) -> str:
        """What the ids of the document begin with: as before, else the path, marked where another file has that."""
        ledger = self._ledger
        held = ledger.value("SELECT name FROM documents WHERE file = ?", [file])
        if held is not None:
            return str(held)
        name = build_document_name(source)
        taken = ledger.value("SELECT 1 FROM documents WHERE name = ?", [name])
        return f"{name}~{hashlib.sha256(file.encode()).hexdigest()[:6]}" if taken else name


def hash_text(text: str) -> bytes:
    """What tells the texts that are embedded from one another."""
    return hashlib.sha256(text.encode()).digest()


def _build_rows(
    found: Iterable[DocumentChunk], document: int, source: str, path: Path
) -> Iterator[tuple[Any, ...]]:
    title = ""
    for one in found:
        chunk = one.chunk
        text = replace_surrogates(chunk.text)
        title = title or _find_title(path, text)
        if not text.strip():
            continue
        metadata: dict[str, Any] = {"source": source, "title": title, "chunk": chunk.index}
        metadata |= {"start": chunk.start, "end": chunk.end}
        # A title that the document says of itself takes the place of the one that was found.
        metadata |= {
            name: _cut_place(value) for name, value in one.place.items() if name != "last_title"
        }
        written = json.dumps(metadata, ensure_ascii=False)
        yield document, chunk.index, chunk.start, chunk.end, text, written, hash_text(text)


def _cut_place(value: Any) -> Any:
    return replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value


def _find_title(path: Path, opening: str) -> str:
    """The first heading in the *opening* of a Markdown document, else the file's name."""
    is_markdown = path.suffix.lower() in (".md", ".markdown")
    heading = _HEADING.search(_NO_PROSE.sub("", opening)) if is_markdown else None
    if heading is None:
        return replace_surrogates(path.stem)
    # Marks may stand behind it too.
    return (heading.group(1).rstrip(" \t#") or "#")[:PLACE_CHARS]
