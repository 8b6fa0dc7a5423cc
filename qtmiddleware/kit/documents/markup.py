"""Read HTML pages and EPUB books."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from zipfile import ZipFile

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents.text import Piece

MOST_BYTES: Final = 1 << 26
"""The maximum size of a page, in bytes. A page is read into memory as a whole."""

_SKIPPED: Final = frozenset(
    (
        "script",
        "style",
        "noscript",
        "template",
        "nav",
        "footer",
        "svg",
        "iframe",
        "button",
        "select",
        "textarea",
    )
)
_HEADINGS: Final = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_BLOCKS: Final = _HEADINGS.union(
    (
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "caption",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
    ),
    (
        "fieldset",
        "figcaption",
        "figure",
        "form",
        "header",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
    ),
    ("table", "tbody", "tfoot", "thead", "title", "tr", "ul"),
)
_CELLS: Final = frozenset(("td", "th"))
_CHARSET: Final = re.compile(
    rb"""<(?:meta|\?xml)[^>]{1,200}?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""",
    re.IGNORECASE,
)
_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


_ENDS: Final = (">", "-->", "]]>")
# All quantifiers are possessive, so that the pattern never backtracks. Only the last quotation mark
# of a page can be unclosed, so its end is searched once.
_TAG: Final = re.compile(
    r"""<(?P<closes>/?)(?P<name>[a-zA-Z][^\t\n\f\r />]*+)
    (?: [^>=]++ | = [\t\n\f\r ]*+ (?: "[^"]*+" | '[^']*+' | (?P<bare>[^\t\n\f\r >]*+) ) )*+ >?""",
    re.VERBOSE,
)
_RAW_ENDS: Final = {
    name: re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE) for name in ("script", "style")
}
"""For each element whose content has no tags, such as ``script``, the pattern of its end tag."""
# Python refuses to parse longer numbers, and no character has such a number.
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{4000,}+;?")


class _Page:
    """Collects the paragraphs of an HTML page, each with the heading above the paragraph.

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

    def handle_start_tag(self, tag: str) -> None:
        """End the current paragraph if *tag*, a start tag such as ``p``, begins a new block.

        The start of an element such as ``script``, which has no readable text, is also recorded.
        """
        if tag in _SKIPPED:
            self._skipped += 1
        elif self._skipped:
            return
        elif tag in _BLOCKS:
            self.end_paragraph()
            self._pre += tag == "pre"
        elif tag in _CELLS and self._has_words:
            self._words.append(" | ")

    def handle_end_tag(self, tag: str) -> None:
        """End the current paragraph if *tag*, an end tag such as ``p``, ends a block.

        The end of an element such as ``script``, which has no readable text, is also recorded.
        """
        if tag in _SKIPPED:
            self._skipped = max(0, self._skipped - 1)
        elif self._skipped:
            return
        elif tag in _BLOCKS:
            self.end_paragraph(tag)
            self._pre = max(0, self._pre - (tag == "pre"))

    def add_text(self, text: str) -> None:
        """Add *text*, the text between two tags, to the current paragraph.

        Does nothing inside an element such as ``script``, which has no readable text.
        """
        if text and not self._skipped:
            self._words.append(unescape(_LONG_NUMBER.sub("\ufffd", text)))
            self._has_words = self._has_words or not self._words[-1].isspace()

    def end_paragraph(self, end_tag: str = "") -> None:
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


def _parse_page(html: str, page: _Page) -> None:
    """Parse *html* like a browser, and pass its tags and texts to *page*.

    Unlike `html.parser`, this function takes linear time even for unclosed tags and comments.
    """
    position, last_mark_positions = 0, {mark: html.rfind(mark) for mark in _ENDS}
    # A tag must end, so the text after the last ">" has none.
    while 0 <= (tag_start := html.find("<", position)) < last_mark_positions[">"]:
        page.add_text(html[position:tag_start])
        if tag := _TAG.match(html, tag_start):
            position = tag.end()
            name = tag["name"].lower()
            # In <p class=a/> the slash belongs to the value.
            closes_itself = (
                html.endswith("/>", tag_start, position) and tag.end("bare") != position - 1
            )
            if not tag["closes"]:
                page.handle_start_tag(name)
            if tag["closes"] or closes_itself:
                page.handle_end_tag(name)
            elif name in _RAW_ENDS:
                end = _RAW_ENDS[name].search(html, position)
                position = end.start() if end else len(html)
        # Browsers treat <? and </ without a name like comments.
        elif html[tag_start + 1] in "!?/":
            position = _find_comment_end(html, tag_start, last_mark_positions)
        else:
            page.add_text("<")
            position = tag_start + 1
    page.add_text(html[position:])


def _find_comment_end(html: str, begin: int, last_mark_positions: Mapping[str, int]) -> int:
    """Return the position after the comment or declaration that begins at *begin* in *html*.

    An unclosed comment ends at the next ``>``. *last_mark_positions* maps each end mark, such as
    ``-->``, to its last position in *html*.
    """
    end_mark = (
        "-->"
        if html.startswith("<!--", begin)
        else "]]>"
        if html.startswith("<![CDATA[", begin)
        else ">"
    )
    end = end_mark if begin + 2 <= last_mark_positions[end_mark] else ">"
    return html.index(end, begin + 2) + len(end)


def read_html(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs of an HTML page, without navigation, scripts and styles.

    The location of a paragraph is the page's title and the last heading above it. See `decode_page`
    for the encoding. Raises `UnreadableDocument` if the page is empty or too large.
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UnreadableDocument(path, "too large", f"a page of more than {MOST_BYTES >> 20} MB")
    if not content.strip():
        raise UnreadableDocument(path, "empty")
    yield from _read_page(decode_page(content))


def _read_page(html: str, title: str = "") -> Iterator[Piece]:
    """Yield the paragraphs of the page *html*, each with a title and a heading as its location.

    The title is *title*, or the page's own title if *title* is empty. The heading is the last one
    above the paragraph.
    """
    page = _Page()
    _parse_page(html, page)
    page.end_paragraph()
    for paragraph, heading in page.paragraphs:
        location = {"title": title or page.title, "heading": heading}
        yield Piece(paragraph + "\n\n", {name: value for name, value in location.items() if value})


def decode_page(content: bytes) -> str:
    """Decode the bytes of an HTML page, and return the text.

    Uses the first encoding that fits, in the order of browsers: the encoding of the byte order
    mark, the encoding that the page declares, UTF-8, and Windows-1252.
    """
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    declaration = _CHARSET.search(content[:2048])
    # A page may declare an encoding that does not exist, or that its bytes do not have.
    for encoding in (declaration.group(1).decode() if declaration else "utf-8", "utf-8"):
        try:
            # On the web, Latin-1 means Windows-1252.
            return content.decode(
                "cp1252" if encoding.lower() in ("iso-8859-1", "latin-1", "latin1") else encoding
            )
        except (LookupError, ValueError):
            continue
    return content.decode("cp1252", "replace")


def read_epub(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the paragraphs of an EPUB book in reading order.

    The location of a paragraph is the book's title and the last heading above it. Raises
    `UnreadableDocument` if the book is encrypted.
    """
    with ZipFile(file) as book:
        # Only books with digital rights management have this file.
        if "META-INF/rights.xml" in book.namelist():
            raise UnreadableDocument(path, "encrypted")
        root = ET.fromstring(book.read("META-INF/container.xml"))
        package_path = next(
            rootfile.attrib["full-path"] for rootfile in root.iterfind(".//{*}rootfile")
        )
        package = ET.fromstring(book.read(package_path))
        title = " ".join((package.findtext(".//{*}title") or "").split())
        files = {
            item.get("id"): item.get("href", "")
            for item in package.iterfind(".//{*}manifest/{*}item")
        }
        hrefs = dict.fromkeys(
            files[item.get("idref")] for item in package.iterfind(".//{*}spine/{*}itemref")
        )
        # A page is read once, even if the book lists it repeatedly or by several paths.
        for name in dict.fromkeys(
            str(PurePosixPath(package_path).parent / unquote(href)) for href in hrefs
        ):
            yield from _read_page(decode_page(book.read(name)), title)
