"""Pages of HTML, and EPUB, which is a folder of them."""

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
"""A larger page is a dump; it is held as a whole."""

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
# Possessive throughout. An opening quotation mark that nothing closes can only be the last one of a
# page, so its end is searched for once.
_TAG: Final = re.compile(
    r"""<(?P<closes>/?)(?P<name>[a-zA-Z][^\t\n\f\r />]*+)
    (?: [^>=]++ | = [\t\n\f\r ]*+ (?: "[^"]*+" | '[^']*+' | (?P<bare>[^\t\n\f\r >]*+) ) )*+ >?""",
    re.VERBOSE,
)
_RAW_ENDS: Final = {
    name: re.compile(rf"</{name}(?=[\t\n\f\r />])", re.IGNORECASE) for name in ("script", "style")
}
"""Where the content of these elements ends, in which nothing else is a tag."""
# Python refuses to read longer numbers, and no character has one.
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{4000,}+;?")


class _Page:
    """Collects the paragraphs of a page, each with the heading it stands under."""

    def __init__(self) -> None:
        self.title = ""
        self.paragraphs: list[tuple[str, str]] = []
        self._heading = ""
        self._words: list[str] = []
        self._has_words = False
        self._skipped = self._pre = 0

    def start_tag(self, tag: str) -> None:
        """Take the start of an element."""
        if tag in _SKIPPED:
            self._skipped += 1
        elif self._skipped:
            return
        elif tag in _BLOCKS:
            self.end_paragraph()
            self._pre += tag == "pre"
        elif tag in _CELLS and self._has_words:
            self._words.append(" | ")

    def end_tag(self, tag: str) -> None:
        """Take the end of an element."""
        if tag in _SKIPPED:
            self._skipped = max(0, self._skipped - 1)
        elif self._skipped:
            return
        elif tag in _BLOCKS:
            self.end_paragraph(tag)
            self._pre = max(0, self._pre - (tag == "pre"))

    def add_text(self, text: str) -> None:
        """Take what stands between two tags."""
        if text and not self._skipped:
            self._words.append(unescape(_LONG_NUMBER.sub("\ufffd", text)))
            self._has_words = self._has_words or not self._words[-1].isspace()

    def end_paragraph(self, tag: str = "") -> None:
        """Keep what was collected: as the title, or as a paragraph, which *tag* may make a heading."""
        text = "".join(self._words)
        self._words.clear()
        self._has_words = False
        text = text.strip("\n") if self._pre and text.strip() else " ".join(text.split())
        if tag == "title":
            self.title = self.title or text
        elif text:
            if tag in _HEADINGS:
                self._heading = text
            self.paragraphs.append((text, self._heading))


def _parse(text: str, page: _Page) -> None:
    """Give *page* the tags and the text of *text*, as browsers tell them apart, in time linear in its length.

    `html.parser` takes the square of the length for tags and comments that nothing closes. Nothing
    here is read twice: a mark is only searched for up to the last one of its kind.
    """
    at, lasts = 0, {mark: text.rfind(mark) for mark in _ENDS}
    # Behind the last ">" there can be no tag.
    while 0 <= (begin := text.find("<", at)) < lasts[">"]:
        page.add_text(text[at:begin])
        if tag := _TAG.match(text, begin):
            at = tag.end()
            name = tag["name"].lower()
            # In <p class=a/> the slash belongs to the value.
            closes_itself = text.endswith("/>", begin, at) and tag.end("bare") != at - 1
            if not tag["closes"]:
                page.start_tag(name)
            if tag["closes"] or closes_itself:
                page.end_tag(name)
            elif name in _RAW_ENDS:
                end = _RAW_ENDS[name].search(text, at)
                at = end.start() if end else len(text)
        elif text[begin + 1] in "!?/":
            at = _find_comment_end(text, begin, lasts)
        else:
            page.add_text("<")
            at = begin + 1
    page.add_text(text[at:])


def _find_comment_end(text: str, begin: int, lasts: Mapping[str, int]) -> int:
    """Where the comment, declaration or instruction at *begin* ends: what nothing closes ends at the next ``>``."""
    kind = (
        "-->"
        if text.startswith("<!--", begin)
        else "]]>"
        if text.startswith("<![CDATA[", begin)
        else ">"
    )
    end = kind if begin + 2 <= lasts[kind] else ">"
    return text.index(end, begin + 2) + len(end)


def read_html(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The paragraphs of a page, without what is navigation, script or style; its title and headings are the place.

    The encoding is that of a byte order mark, else what the page says, else UTF-8, else that of
    Windows, as browsers have it.
    """
    content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UnreadableDocument(path, "too large", f"a page of more than {MOST_BYTES >> 20} MB")
    if not content.strip():
        raise UnreadableDocument(path, "empty")
    yield from _read_page(decode_page(content))


def _read_page(text: str, title: str = "") -> Iterator[Piece]:
    page = _Page()
    _parse(text, page)
    page.end_paragraph()
    for paragraph, heading in page.paragraphs:
        place = {"title": title or page.title, "heading": heading}
        yield Piece(paragraph + "\n\n", {name: value for name, value in place.items() if value})


def decode_page(content: bytes) -> str:
    """The text of a page in the encoding that its first bytes name."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    named = _CHARSET.search(content[:2048])
    for encoding in (named.group(1).decode() if named else "utf-8", "utf-8"):
        try:
            # Latin-1 is another name of it on the web.
            return content.decode(
                "cp1252" if encoding.lower() in ("iso-8859-1", "latin-1", "latin1") else encoding
            )
        except (LookupError, ValueError):
            continue
    return content.decode("cp1252", "replace")


def read_epub(path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The paragraphs of a book in the order it is read; its title and the headings are the place."""
    with ZipFile(file) as book:
        if "META-INF/rights.xml" in book.namelist():
            raise UnreadableDocument(path, "encrypted")
        root = ET.fromstring(book.read("META-INF/container.xml"))
        where = next(it.attrib["full-path"] for it in root.iterfind(".//{*}rootfile"))
        package = ET.fromstring(book.read(where))
        title = " ".join((package.findtext(".//{*}title") or "").split())
        files = {
            it.get("id"): it.get("href", "") for it in package.iterfind(".//{*}manifest/{*}item")
        }
        hrefs = dict.fromkeys(
            files[it.get("idref")] for it in package.iterfind(".//{*}spine/{*}itemref")
        )
        # A page is read once, however often and in whichever ways the book names it.
        for name in dict.fromkeys(
            str(PurePosixPath(where).parent / unquote(href)) for href in hrefs
        ):
            yield from _read_page(decode_page(book.read(name)), title)
