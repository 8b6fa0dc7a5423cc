"""Read HTML pages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.text import Piece

_SKIPPED: Final = frozenset(
    (
        *("script", "style", "noscript", "template", "nav", "footer"),
        *("svg", "iframe", "button", "select", "textarea"),
    )
)
_HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_BLOCKS: Final = _HEADINGS.union(
    ("address", "article", "aside", "blockquote", "body", "br", "caption", "dd", "details", "div"),
    ("dl", "dt", "fieldset", "figcaption", "figure", "form", "header", "hr", "li", "main", "ol"),
    ("p", "pre", "section", "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul"),
)
_CELLS: Final = frozenset(("td", "th"))
_DECLARED: Final = re.compile(
    rb"""<(?:meta|\?xml)[^>]{1,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""",
    re.IGNORECASE,
)


class _Page:
    """Collects the paragraphs of a page from lxml's parser, each with the heading above it.

    Attributes:
        title: the page's title; ``""`` if there is none.
        paragraphs: a (text, heading) pair for each paragraph; the heading may be ``""``.
    """

    def __init__(self) -> None:
        self.title = ""
        self.paragraphs: list[tuple[str, str]] = []
        self._heading = ""
        self._words: list[str] = []
        self._has_words = False
        self._skipped = self._pre = 0

    def start(self, tag: str, _: object) -> None:
        """End the current paragraph if *tag*, a start tag such as ``p``, begins a new block."""
        if tag in _SKIPPED:
            self._skipped += 1
        elif self._skipped:
            return
        elif tag in _BLOCKS:
            self._end_paragraph()
            self._pre += tag == "pre"
        elif tag in _CELLS and self._has_words:
            self._words.append(" | ")

    def end(self, tag: str) -> None:
        """End the current paragraph if *tag*, an end tag such as ``p``, ends a block."""
        if tag in _SKIPPED:
            self._skipped -= 1
        elif tag in _BLOCKS and not self._skipped:
            self._end_paragraph(tag)
            self._pre -= tag == "pre"

    def data(self, text: str) -> None:
        """Add *text* to the current paragraph, unless an element such as ``script`` contains it."""
        if not self._skipped:
            self._words.append(text)
            self._has_words = self._has_words or not text.isspace()

    def close(self) -> None:
        """End the last paragraph."""
        self._end_paragraph()

    def _end_paragraph(self, end_tag: str = "") -> None:
        """Save the text since the last paragraph as a new paragraph, unless the text is blank.

        *end_tag* is the end tag after the text, if any. After ``title``, the text becomes the
        page's title instead. After a heading, such as ``h1``, the text also becomes the heading of
        the following paragraphs.
        """
        text = "".join(self._words)
        self._words.clear()
        self._has_words = False
        text = text.strip("\n") if self._pre and text.strip() else " ".join(text.split())
        if end_tag == "title":
            self.title = self.title or text
        elif text:
            if end_tag in _HEADINGS:
                self._heading = text
            self.paragraphs.append((text, self._heading))


def read_html(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs of an HTML page, without navigation, scripts and styles.

    The location of a paragraph is the page's title and the last heading above it. A page that is
    not UTF-8 has the encoding that it declares. Raises `UnreadableDocument` if the page is empty,
    and `MissingExtra` if lxml is not installed.
    """
    try:
        from lxml import etree
    except ImportError as error:
        raise MissingExtra("lxml", "documents") from error
    content = file.read()
    if not content.strip():
        raise UnreadableDocument(path, "empty")
    text = content.decode(_find_encoding(content), "replace")
    page = _Page()
    # The page's events are enough: a tree of deeply nested elements would take much memory.
    # huge_tree allows long texts and attributes, such as embedded images.
    parser = etree.HTMLParser(target=page, encoding="utf-8", huge_tree=True)
    parser.feed(text.encode("utf-8", "replace"))
    parser.close()
    for paragraph, heading in page.paragraphs:
        location = {"title": page.title, "heading": heading}
        yield Piece(paragraph + "\n\n", {name: value for name, value in location.items() if value})


def _find_encoding(content: bytes) -> str:
    """Return the first encoding that fits: byte order mark, UTF-8, declared, Windows-1252."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    declared = _DECLARED.search(content[:2048])
    for encoding in ("utf-8", declared.group(1).decode() if declared else ""):
        try:
            content.decode(encoding)
        except (LookupError, ValueError):
            continue
        # On the web, Latin-1 means Windows-1252.
        is_latin = encoding.lower() in ("iso-8859-1", "latin-1", "latin1")
        return "cp1252" if is_latin else encoding
    return "cp1252"
