"""Read new and changed documents, and split them into chunks: the first stage of ingestion."""

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
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.providers import replace_surrogates

LONGEST: Final = 480
"""The maximum length of a document name, in characters.

A passage's id is the document name followed by the chunk's number. Pinecone allows ids of up to 512
characters.
"""
_SAFE: Final = "".join(sorted(set(string.printable) - set(string.whitespace) - set("%#~"))) + " "
_WILD: Final = "*?["


@dataclass(frozen=True, slots=True)
class Root:
    """A data path: a single document, a folder of documents, or a glob pattern.

    Attributes:
        key: the encoded data path; with this key, the ledger marks the documents of the data path.
        base: the folder to which document names are relative.
        is_file: whether the data path is a single document.
    """

    key: str
    base: Path
    is_file: bool

    @classmethod
    def from_data_path(cls, data_path: str | os.PathLike[str]) -> Root:
        """Return the `Root` for *data_path*.

        The base folder depends on *data_path*:

        - for a folder, it is the folder itself;
        - for a single file, it is the file's folder;
        - for a pattern, it is the last folder before the first wildcard.
        """
        named_path = Path(data_path).expanduser()
        path = Path(os.path.realpath(named_path))
        base = path
        # The folders before the first wildcard, unless a folder really has such a name.
        if not path.is_dir():
            base = path.parent
            while any(mark in part for part in base.parts for mark in _WILD) and not base.is_dir():
                base = base.parent
        return cls(encode_path(str(path)), base, os.path.lexists(named_path) and not path.is_dir())

    def build_relative_path(self, path: Path) -> str:
        """Return *path* relative to the base folder, with ``/`` as the separator on every system.

        If *path* is outside of the base folder, returns the file's name.
        """
        absolute_path = resolve_folder_links(path)
        # If a linked folder leads out of the base folder, there is no relative path.
        return (
            absolute_path.relative_to(self.base)
            if absolute_path.is_relative_to(self.base)
            else Path(path.name)
        ).as_posix()


def resolve_folder_links(path: Path) -> Path:
    """Return the absolute path of the file at *path*, with links to folders resolved.

    If the file itself is a link, this link is not resolved.
    """
    return Path(os.path.realpath(path.parent)) / path.name


def encode_path(path: str) -> str:
    """Return *path* in printable ASCII, with all other characters encoded as ``%XX``.

    The characters ``%``, ``#`` and ``~`` are encoded, too. Different paths have different
    encodings.
    """
    # The sign ~ separates a shortened name from its hash, so it must not occur in a path.
    return quote(os.fsencode(path), safe=_SAFE).replace("~", "%7E")


def build_document_name(relative_path: str) -> str:
    """Return the name of the document at *relative_path*.

    The ids of the document's passages begin with this name, which is the encoded path. If the
    encoded path is too long, its end is replaced by a hash.
    """
    name = encode_path(relative_path)
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 40]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


READER: Final = 3
"""The version of reading and splitting. After an increase, all documents are read again."""
BATCH: Final = 256
"""The number of chunks that are saved in one transaction."""
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}[ \t]++(\S.*)$", re.MULTILINE)
# Front matter and code blocks, whose lines may look like headings.
_NO_PROSE: Final = re.compile(
    r"\A---\n(?!\n).*?^---$|^ {0,3}(?P<fence>`{3,}|~{3,}).*?(?:^ {0,3}(?P=fence)|\Z)",
    re.DOTALL | re.MULTILINE,
)

# A stored document that lacks some of its contexts is read again as a new version: a stored version
# is never changed.
_KNOWN: Final = """
SELECT id FROM documents d WHERE file = ? AND fingerprint = ? AND complete \
AND NOT (stored AND contextual
AND EXISTS (SELECT 1 FROM chunks c WHERE c.document = d.id AND c.context IS NULL)) \
ORDER BY id DESC LIMIT 1
"""
_KEPT: Final = (
    "SELECT id FROM documents WHERE file = ? AND complete AND stored ORDER BY stored DESC, id DESC"
    " LIMIT 1"
)
_CHUNK: Final = """
INSERT INTO chunks (document, ordinal, start, stop, text, metadata, hash) \
VALUES (?, ?, ?, ?, ?, ?, ?)
"""


class Reader:
    """Reads the documents of one data path, and saves their chunks in the ledger.

    Args:
        ledger: the database in which the chunks are saved.
        settings: the settings, which tell how to split documents into chunks.
        root: the data path whose documents are read.
        context_version: the context prompt's version and the model's name; empty if contextual
            chunks are off.
        converter: the converter for documents that are not plain text.
        own_reader: the user's own reader, if any. If its name has changed since the last run, all
            documents are read again.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        root: Root,
        context_version: str,
        converter: Converter,
        own_reader: ReadDocument | None = None,
    ) -> None:
        self._converter = converter
        self._bound = TextBound()
        self._own_reader = own_reader
        self._ledger = ledger
        self._settings = settings
        self._root = root
        self._context_version = context_version
        # All that decides what the chunks of a file are; part of the file's fingerprint.
        self._fingerprint_values = [
            settings.chunk_size,
            settings.chunk_overlap,
            settings.chunk_boundary,
            READER,
            context_version,
        ]
        if own_reader is not None:
            # An object that is called has no name of its own, so its class's name counts.
            kind = (
                type(own_reader)
                if getattr(own_reader, "__qualname__", None) is None
                else own_reader
            )
            self._fingerprint_values.append(f"{kind.__module__}.{kind.__qualname__}")

    def add_document(self, path: Path) -> str:
        """Read the document at *path*, unless the ledger has the current version of the document.

        Returns ``added``, ``changed`` or ``unchanged``, compared with the index.

        Raises `UnreadableDocument` if the document cannot be read, or if it is a link in a folder
        or pattern. With such a link, people who can write to the folder could make this process
        read any file. If the data path itself is a link, the link is followed.
        """
        if path.is_symlink() and not self._root.is_file:
            raise UnreadableDocument(
                path, "cannot be opened", "it is a link; name the file it leads to"
            )
        file_key = encode_path(str(resolve_folder_links(path)))
        # The hash is computed before the file is read. If the file changes in between, the next run
        # sees another fingerprint and reads the file again.
        fingerprint = self._hash_file(path)
        self._claim_file(file_key)
        versions = self._ledger.execute(
            "SELECT stored, fingerprint FROM documents WHERE file = ?", [file_key]
        )
        known_versions = self._ledger.execute(_KNOWN, [file_key, fingerprint])
        document_id = (
            known_versions[0][0]
            if known_versions
            else self._read_document(path, file_key, fingerprint)
        )
        self._select_version(document_id, file_key)
        # 2 means that the store has this version.
        if (2, fingerprint) in versions:
            return "unchanged"
        return "changed" if any(stored for stored, _ in versions) else "added"

    @property
    def has_single_file(self) -> bool:
        """Whether the data path is a single document."""
        return self._root.is_file

    def keep_document(self, path: Path) -> None:
        """Keep the indexed version of the document at *path*, without reading the file."""
        file_key = encode_path(str(resolve_folder_links(path)))
        self._claim_file(file_key)
        for (document_id,) in self._ledger.execute(_KEPT, [file_key]):
            self._select_version(document_id, file_key)

    def _hash_file(self, path: Path) -> str:
        """Hash the content of the file at *path*, and all settings that affect the file's chunks.

        Raises `UnreadableDocument` if the file cannot be opened.
        """
        try:
            with open_regular_file(path, follow_link=self._root.is_file) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error
        return hashlib.sha256(json.dumps([content, *self._fingerprint_values]).encode()).hexdigest()

    def _claim_file(self, file_key: str) -> None:
        """In the ledger, assign a file to this data path, even if it belonged to another data path.

        A file belongs to only one data path, so that no file is indexed twice. *file_key* is the
        file's encoded absolute path.
        """
        values = [self._root.key, file_key, self._root.key]
        self._ledger.execute("UPDATE documents SET root = ? WHERE file = ? AND root <> ?", values)

    def _select_version(self, document_id: int, file_key: str) -> None:
        """Mark the version *document_id* of a file as the one to have in the index.

        The run removes all other versions of the file from the index. *file_key* is the file's
        encoded absolute path.
        """
        self._ledger.execute("INSERT OR REPLACE INTO target VALUES (?, ?)", [document_id, file_key])

    def _read_document(self, path: Path, file_key: str, fingerprint: str) -> int:
        """Read the document at *path*, and save its chunks in the ledger as a new version.

        Returns the number that the ledger gives the version. If reading fails, saves nothing.

        Args:
            path: the document's path.
            file_key: the encoded absolute path, which identifies the file in the ledger.
            fingerprint: the hash of the file and the settings; see `_hash_file`.
        """
        ledger, settings = self._ledger, self._settings
        # A run that was killed may have saved only some chunks of this file.
        ledger.execute("DELETE FROM documents WHERE file = ? AND NOT complete", [file_key])
        source = replace_surrogates(self._root.build_relative_path(path))
        name = self._choose_document_name(file_key, self._root.build_relative_path(path))
        document_id = ledger.insert_row(
            "INSERT INTO documents (root, file, name, source, fingerprint, contextual) VALUES (?,"
            " ?, ?, ?, ?, ?)",
            [self._root.key, file_key, name, source, fingerprint, bool(self._context_version)],
        )
        chunks = cut_document(
            path,
            size=settings.chunk_size,
            overlap=settings.chunk_overlap,
            boundary=settings.chunk_boundary,
            follow_link=self._root.is_file,
            reader=None if self._own_reader is None else self._call_own_reader,
            converter=self._converter,
            bound=self._bound,
        )
        rows = _build_chunk_rows(chunks, document_id, source, path)
        try:
            while batch := list(islice(rows, BATCH)):
                ledger.execute_many(_CHUNK, batch)
        except (UnreadableDocument, MissingExtra):
            # The chunks saved so far would otherwise stay until the same file is read again.
            ledger.execute("DELETE FROM documents WHERE id = ?", [document_id])
            raise
        ledger.execute("UPDATE documents SET complete = 1 WHERE id = ?", [document_id])
        return document_id

    def _call_own_reader(self, path: Path) -> Any:
        """Call the user's reader for the file at *path*, and return its result.

        Raises `NotTaken` if the result is ``None`` and no built-in reader supports the file.
        """
        result = None if self._own_reader is None else self._own_reader(path)
        if result is None and not self._root.is_file and not is_document(path):
            raise NotTaken(path, "not taken")
        return result

    def _choose_document_name(self, file_key: str, relative_path: str) -> str:
        """Return the name of a document; the ids of its passages begin with this name.

        A document in the ledger keeps its name. A new document is named after *relative_path*, the
        path relative to the base folder. If another file has this name, the method appends a hash
        of *file_key*.
        """
        ledger = self._ledger
        # With another name, the passages would have other ids, and all would be written again.
        known_name = ledger.fetch_first_value(
            "SELECT name FROM documents WHERE file = ?", [file_key]
        )
        if known_name is not None:
            return str(known_name)
        name = build_document_name(relative_path)
        is_taken = ledger.fetch_first_value("SELECT 1 FROM documents WHERE name = ?", [name])
        return f"{name}~{hashlib.sha256(file_key.encode()).hexdigest()[:6]}" if is_taken else name


def hash_text(text: str) -> bytes:
    """Hash *text*; the hash identifies the vector of this text in the ledger."""
    return hashlib.sha256(text.encode()).digest()


def _build_chunk_rows(
    chunks: Iterable[DocumentChunk], document_id: int, relative_path: str, path: Path
) -> Iterator[tuple[Any, ...]]:
    """Yield a ledger row for each chunk that is not blank.

    Args:
        chunks: the chunks of the document.
        document_id: the document's number in the ledger.
        relative_path: the document's path relative to the base folder.
        path: the document's path, from which the title is taken if there is no heading.
    """
    title = ""
    for located_chunk in chunks:
        chunk = located_chunk.chunk
        text = replace_surrogates(chunk.text)
        title = title or _find_title(path, text)
        if not text.strip():
            continue
        metadata: dict[str, Any] = {"source": relative_path, "title": title, "chunk": chunk.index}
        metadata |= {"start": chunk.start, "end": chunk.end}
        # A title from the document's own metadata overrides the one found in the text.
        metadata |= {
            name: _truncate_if_text(value)
            for name, value in located_chunk.location.items()
            # A chunk has one title, even if its pieces have different titles.
            if name != "last_title"
        }
        metadata_json = json.dumps(metadata, ensure_ascii=False)
        yield document_id, chunk.index, chunk.start, chunk.end, text, metadata_json, hash_text(text)


def _truncate_if_text(value: Any) -> Any:
    """Return the first `PLACE_CHARS` characters of a text; return any other value unchanged."""
    return replace_surrogates(value[:PLACE_CHARS]) if isinstance(value, str) else value


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
