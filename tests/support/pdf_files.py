"""PDF files for tests, written byte by byte, so that they can be broken in exactly one place."""

from __future__ import annotations

from collections.abc import Sequence

CATALOG, TREE, FONT, FIRST = 1, 2, 3, 4
HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"


def content(*lines: str) -> bytes:
    """What draws *lines*, one below the other."""
    shown = b"".join(b"(%s) Tj T* " % line.encode("cp1252") for line in lines)
    return b"BT /F1 12 Tf 14 TL 72 720 Td " + shown + b"ET"


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


def pdf(
    pages: Sequence[bytes],
    *,
    font: bytes = HELVETICA,
    more: Sequence[bytes] = (),
    resources: bytes = b"",
    trailer: bytes = b"",
) -> bytes:
    """A PDF of *pages*, each the content that draws it; *more* objects follow, from number ``4 + 2 * len(pages)``."""
    kids = b" ".join(b"%d 0 R" % (FIRST + 2 * at) for at in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages %d 0 R >>" % TREE,
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        font,
    ]
    for at, drawn in enumerate(pages):
        objects.append(
            b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 %d 0 R >> %s >> >>"
            % (TREE, FIRST + 2 * at + 1, FONT, resources)
        )
        objects.append(stream(drawn))
    objects.extend(more)
    body, places = b"%PDF-1.7\n", []
    for number, made in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, made)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    tail = b"trailer\n<< /Size %d /Root %d 0 R %s >>\n" % (len(objects) + 1, CATALOG, trailer)
    return body + head + table + tail + b"startxref\n%d\n%%%%EOF\n" % len(body)
