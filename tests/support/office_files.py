"""A small Word file."""

from __future__ import annotations

from pathlib import Path

import docx


def write_word_file(folder: Path) -> Path:
    """A report about pumps."""
    path = folder / "report.docx"
    document = docx.Document()
    document.add_heading("Maintenance", 1)
    document.add_paragraph("The pump in hall seven is oiled each Monday.")
    document.save(str(path))
    return path
