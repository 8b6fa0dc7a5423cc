"""Find the documents of a data path, and turn each into the passages to index."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import cut_document
from qtmiddleware.kit.documents.finding import find_documents
from qtmiddleware.kit.documents.pieces import PLACE_CHARS
from qtmiddleware.kit.documents.reading import Converter
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.protocols import Passage
from qtmiddleware.providers import replace_surrogates

# The version of reading and splitting. After an increase, all documents are read again.
READER: Final = 7
# The maximum length of a document's name, because Pinecone's ids have at most 512 characters.
LONGEST_NAME: Final = 480

_UNSAFE: Final = re.compile(rb"[^ -~]|[%#~]")
_HEADING: Final = re.compile(r"^ {0,3}#{1,6}[ \t]++(\S.*)$", re.MULTILINE)


class Source:
    """A data path: a single document, a folder of documents, or a glob pattern.

    The *settings* tell how to split documents into chunks. Raises `ConfigError` if there are no
    documents.
    """

    def __init__(self, data_path: str | Path, settings: Settings) -> None:
        found = find_documents(data_path)
        # Several links may lead to one document.
        self.paths = list({resolve_folder_links(path): path for path in found.paths}.values())
        self.left_out = found.left_out
        self.is_file = found.is_file
        self._base = Path(os.path.realpath(found.folder))
        self.key = encode_path(os.path.realpath(found.root))
        """The encoded data path, which marks its documents in the ledger."""
        self._cutting: dict[str, Any] = {
            "size": settings.chunk_size,
            "overlap": settings.chunk_overlap,
            "boundary": settings.chunk_boundary,
        }

    def compute_fingerprint(self, path: Path, version: str) -> str:
        """Return a hash of the file, of all settings that affect its passages, and of *version*.

        Raises `UnreadableDocument` if the file cannot be opened, or is a link.
        """
        try:
            # With a link, people who can write to the folder could make this process read any file.
            with open_regular_file(path, follow_link=False) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error
        identity = json.dumps([content, version, READER, self._cutting])
        return hashlib.sha256(identity.encode()).hexdigest()

    def has_lost(self, file: str, root: str) -> bool:
        """Return whether *file*, which was not found, is no document of the index any more.

        It was ingested last as part of *root*. In the folder of another data path, only files that
        no longer exist are lost, and none in an empty folder: a disk may not be mounted.
        """
        if root == self.key or self.is_file:
            return root == self.key
        path = Path(os.fsdecode(unquote_to_bytes(file)))
        if not path.is_relative_to(self._base):
            return False
        # A folder that cannot be read may hold the file.
        with suppress(OSError):
            folder = next(parent for parent in path.parents if parent.is_dir())
            held = list(folder.iterdir())
            return bool(held) and folder / path.relative_to(folder).parts[0] not in held
        return False

    def build_name(self, path: Path, is_taken: Callable[[str], object]) -> str:
        """Return a name for the document at *path* that is not taken; its ids begin with it."""
        name = build_document_name(self._build_relative_path(path))
        if is_taken(name):
            name = f"{name}~{hashlib.sha256(identify_file(path).encode()).hexdigest()[:6]}"
        return name

    def read_passages(self, path: Path, name: str, converter: Converter) -> list[Passage]:
        """Return a passage for each chunk that is not blank, with ids such as ``notes.md#0``."""
        source = replace_surrogates(self._build_relative_path(path))
        passages: list[Passage] = []
        title = ""
        for chunk in cut_document(path, converter, **self._cutting):
            text = replace_surrogates(chunk.text)
            title = title or _find_title(path, text)
            if text.strip():
                metadata = {
                    "source": source,
                    # A title from the document itself overrides the one found in the text.
                    "title": title,
                    "chunk": len(passages),
                    "start": chunk.start,
                    "end": chunk.end,
                    **chunk.location,
                }
                # A chunk has one title, even if its pieces have different titles.
                metadata.pop("last_title", None)
                passages.append(Passage(f"{name}#{len(passages)}", text, metadata))
        return passages

    def _build_relative_path(self, path: Path) -> str:
        """Return *path* relative to the base folder; outside of it, the file's name."""
        absolute = resolve_folder_links(path)
        if absolute.is_relative_to(self._base):
            return absolute.relative_to(self._base).as_posix()
        return path.name


def resolve_folder_links(path: Path) -> Path:
    """Return the absolute path of *path*, with links to folders resolved, but not a last link."""
    return Path(os.path.realpath(path.parent)) / path.name


def identify_file(path: Path) -> str:
    """Return the encoded absolute path under which the ledger knows a file."""
    return encode_path(str(resolve_folder_links(path)))


def encode_path(path: str) -> str:
    """Return *path* in printable ASCII, with other characters and ``%#~`` encoded as ``%XX``."""
    # The sign ~ separates a shortened name from its hash, so it must not occur in a path.
    encoded = _UNSAFE.sub(lambda byte: b"%%%02X" % byte[0][0], os.fsencode(path))
    return encoded.decode("ascii")


def build_document_name(relative_path: str) -> str:
    """Return the encoded path; if it is too long, its end is replaced by a hash."""
    name = encode_path(relative_path)
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: LONGEST_NAME - 40]}~{digest}"


def _find_title(path: Path, beginning: str) -> str:
    """Return the first heading at the beginning of a Markdown file, or else the file's name."""
    heading = _HEADING.search(beginning) if path.suffix.lower() == ".md" else None
    if heading is None:
        return replace_surrogates(path.stem)
    # A heading may also end in number signs.
    return (heading.group(1).rstrip(" \t#") or "#")[:PLACE_CHARS]
