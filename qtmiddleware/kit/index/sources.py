"""Read the documents of a data path, and split them into the passages to index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Converter, NotTaken, cut_document, find_documents
from qtmiddleware.kit.documents import Reader as ReadDocument
from qtmiddleware.kit.documents.finding import is_document
from qtmiddleware.kit.documents.text import PLACE_CHARS
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.kit.index.ledger import Ledger
from qtmiddleware.protocols import Passage
from qtmiddleware.providers import replace_surrogates

READER: Final = 4
"""The version of reading and splitting. After an increase, all documents are read again."""
LONGEST_NAME: Final = 480
"""The maximum length of a document name, in characters.

A passage's id is the document name followed by the chunk's number. Pinecone allows ids of up to 512
characters.
"""

_SAFE: Final = "".join(sorted(set(string.printable) - set(string.whitespace) - set("%#~"))) + " "
_WILD: Final = "*?["
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}[ \t]++(\S.*)$", re.MULTILINE)
# Front matter and code blocks, whose lines may look like headings.
_NO_PROSE: Final = re.compile(
    r"\A---\n(?!\n).*?^---$|^ {0,3}(?P<fence>`{3,}|~{3,}).*?(?:^ {0,3}(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Document:
    """A document that has been read and split.

    Attributes:
        file: the file's encoded absolute path, which identifies it in the ledger.
        fingerprint: a hash of the file and of all settings that affect its passages.
        passages: the passages, with ids such as ``notes.md#0``. Their metadata has the positions
            ``start`` and ``end`` in the document.
    """

    file: str
    fingerprint: str
    passages: list[Passage]


@dataclass(frozen=True, slots=True)
class Root:
    """A data path: a single document, a folder of documents, or a glob pattern.

    Attributes:
        key: the encoded data path, which marks its documents in the ledger.
        base: the folder to which document names are relative: the folder itself, the folder of a
            single file, or the last folder before the first wildcard of a pattern.
        is_file: whether the data path is a single document.
    """

    key: str
    base: Path
    is_file: bool

    @classmethod
    def from_data_path(cls, data_path: str | os.PathLike[str]) -> Root:
        """Return the `Root` for *data_path*."""
        named_path = Path(data_path).expanduser()
        path = Path(os.path.realpath(named_path))
        base = path
        if not path.is_dir():
            base = path.parent
            # A folder may really have a name with a bracket.
            while any(mark in part for part in base.parts for mark in _WILD) and not base.is_dir():
                base = base.parent
        return cls(encode_path(str(path)), base, os.path.lexists(named_path) and not path.is_dir())

    def find_documents(self, data_path: str | Path, *, all_files: bool) -> list[Path]:
        """Return the documents at *data_path*, each once, although several links lead to it."""
        paths = find_documents(data_path, should_include_all_files=all_files)
        return list({resolve_folder_links(path): path for path in paths}.values())

    def build_relative_path(self, path: Path) -> str:
        """Return *path* relative to the base folder, with ``/`` as the separator on every system.

        If *path* is outside of the base folder, returns the file's name.
        """
        absolute = resolve_folder_links(path)
        is_inside = absolute.is_relative_to(self.base)
        return (absolute.relative_to(self.base) if is_inside else Path(path.name)).as_posix()


def resolve_folder_links(path: Path) -> Path:
    """Return the absolute path of *path*, with links to folders resolved, but not a last link."""
    return Path(os.path.realpath(path.parent)) / path.name


def encode_path(path: str) -> str:
    """Return *path* in printable ASCII, with other characters and ``%#~`` encoded as ``%XX``."""
    # The sign ~ separates a shortened name from its hash, so it must not occur in a path.
    return quote(os.fsencode(path), safe=_SAFE).replace("~", "%7E")


def build_document_name(relative_path: str) -> str:
    """Return the name of the document at *relative_path*; the ids of its passages begin with it.

    The name is the encoded path. If it is too long, its end is replaced by a hash.
    """
    name = encode_path(relative_path)
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


class DocumentReader:
    """Reads the new and changed documents of one data path.

    Args:
        ledger: the ledger, which knows the documents of earlier runs.
        settings: the settings, which tell how to split documents into chunks.
        root: the data path whose documents are read.
        converter: the converter for documents that are not plain text.
        context_version: the context prompt's version and the model's name; empty if contextual
            chunks are off.
        own_reader: the user's own reader, if any. If its name has changed since the last run, all
            documents are read again.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        root: Root,
        converter: Converter,
        *,
        context_version: str = "",
        own_reader: ReadDocument | None = None,
    ) -> None:
        self._ledger, self._settings, self._root = ledger, settings, root
        self._converter, self._own_reader = converter, own_reader
        # An object that is called has no name of its own, so its class's name counts.
        named: Any = own_reader if hasattr(own_reader, "__qualname__") else type(own_reader)
        self._versions = [
            settings.chunk_size,
            settings.chunk_overlap,
            settings.chunk_boundary,
            READER,
            context_version,
            f"{named.__module__}.{named.__qualname__}",
        ]
        self.files: set[str] = set()
        """The encoded paths of all documents of this run."""

    def read(self, path: Path) -> Document | None:
        """Read the document at *path*; return ``None`` if the index has it as it is.

        Raises `UnreadableDocument` if the document cannot be read, or if it is a link in a folder
        or pattern. With such a link, people who can write to the folder could make this process
        read any file. If the data path itself is a link, the link is followed.
        """
        file = encode_path(str(resolve_folder_links(path)))
        self.files.add(file)
        if path.is_symlink() and not self._root.is_file:
            raise UnreadableDocument(
                path, "cannot be opened", "it is a link; name the file it leads to"
            )
        # The hash is computed before the file is read. If the file changes in between, the next run
        # sees another fingerprint and reads the file again.
        fingerprint = self._hash_file(path)
        # A file in two data paths belongs to the one that is ingested last.
        self._ledger.execute("UPDATE documents SET root = ? WHERE file = ?", [self._root.key, file])
        known = "SELECT fingerprint FROM documents WHERE file = ?"
        if self._ledger.find_value(known, file) == fingerprint:
            return None
        relative_path = self._root.build_relative_path(path)
        passages = list(self._read_passages(path, relative_path))
        name = self._register(file, relative_path)
        return Document(
            file,
            fingerprint,
            [Passage(f"{name}#{it.metadata['chunk']}", it.text, it.metadata) for it in passages],
        )

    def _hash_file(self, path: Path) -> str:
        try:
            with open_regular_file(path, follow_link=self._root.is_file) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error
        return hashlib.sha256(json.dumps([content, *self._versions]).encode()).hexdigest()

    def _read_passages(self, path: Path, relative_path: str) -> Iterator[Passage]:
        """Yield a passage without an id for each chunk that is not blank."""
        source = replace_surrogates(relative_path)
        title, ordinal = "", 0
        for located in cut_document(
            path,
            size=self._settings.chunk_size,
            overlap=self._settings.chunk_overlap,
            boundary=self._settings.chunk_boundary,
            follow_link=self._root.is_file,
            reader=None if self._own_reader is None else self._call_own_reader,
            converter=self._converter,
        ):
            chunk = located.chunk
            text = replace_surrogates(chunk.text)
            title = title or _find_title(path, text)
            if not text.strip():
                continue
            metadata: dict[str, Any] = {"source": source, "title": title, "chunk": ordinal}
            metadata |= {"start": chunk.start, "end": chunk.end}
            # A title from the document's own metadata overrides the one found in the text. A chunk
            # has one title, even if its pieces have different titles.
            metadata |= {
                name: replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value
                for name, value in located.location.items()
                if name != "last_title"
            }
            yield Passage("", text, metadata)
            ordinal += 1

    def _call_own_reader(self, path: Path) -> Any:
        """Call the user's reader. Raises `NotTaken` if no reader supports the file."""
        result = None if self._own_reader is None else self._own_reader(path)
        if result is None and not self._root.is_file and not is_document(path):
            self.files.discard(encode_path(str(resolve_folder_links(path))))
            raise NotTaken(path, "not taken")
        return result

    def _register(self, file: str, relative_path: str) -> str:
        """Add a new document to the ledger, and return the document's name.

        If another file has the name, a hash is appended. A known document keeps its name, because
        its passages would otherwise have other ids.
        """
        ledger, find_name = self._ledger, "SELECT name FROM documents WHERE file = ?"
        if known_name := ledger.find_value(find_name, file):
            return str(known_name)
        name = build_document_name(relative_path)
        if ledger.find_value("SELECT 1 FROM documents WHERE name = ?", name):
            name = f"{name}~{hashlib.sha256(file.encode()).hexdigest()[:6]}"
        ledger.execute(
            "INSERT INTO documents (file, root, name) VALUES (?, ?, ?)",
            [file, self._root.key, name],
        )
        return name


def _find_title(path: Path, text_beginning: str) -> str:
    """Return the title of the document at *path*.

    For Markdown, the title is the first heading in *text_beginning*, the first part of the text.
    For other files, and without a heading, it is the file's name without the extension.
    """
    is_markdown = path.suffix.lower() == ".md"
    heading = _HEADING.search(_NO_PROSE.sub("", text_beginning)) if is_markdown else None
    if heading is None:
        return replace_surrogates(path.stem)
    # A heading may also end in number signs.
    return (heading.group(1).rstrip(" \t#") or "#")[:PLACE_CHARS]
