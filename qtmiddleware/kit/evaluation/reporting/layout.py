"""Lay out a report as one HTML page that loads no other files, or as Markdown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text, format_table
from qtmiddleware.preprocessing.text import shorten_text

if TYPE_CHECKING:
    import jinja2

# Only this page's own style may be used. The browser recognises the style by its hash.
_POLICY: Final = "default-src 'none'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_LONGEST: Final = 4_000
"""Markdown shows at most this many characters of a text. Most texts were shortened before."""


@dataclass(frozen=True, slots=True)
class Item:
    """A text in a list.

    Attributes:
        label: The id, kind or role of the text; empty if it has none.
        text: The text; empty if it is not known.
        remark: A remark on the text, such as ``relevant, grade 2``.
    """

    label: str
    text: str = field(repr=False)
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A question with lists of texts. The page shows the lists when the reader opens the question.

    Attributes:
        outcome: The outcome for the question, such as ``-12.5``.
        question: The question.
        remark: A sentence on the outcome; may be empty.
        lists: The heading and the items of each list.
    """

    outcome: str
    question: str = field(repr=False)
    remark: str
    lists: tuple[tuple[str, tuple[Item, ...]], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a report.

    Attributes:
        heading: The section's heading.
        remark: The sentences below the heading; may be empty.
        columns: The headings of the table's columns; empty if there is no table.
        rows: The table's rows. The first cell of a row is its name.
        entries: The questions.
    """

    heading: str
    remark: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    entries: Sequence[Entry] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A report, ready to be laid out. No text is escaped yet.

    Attributes:
        headline: The verdict.
        details: The sentences below the verdict.
        subject: The name of the data set or of the judge, for the page's title.
        notes: What to know before reading the figures.
        sections: The sections.
        method: How the figures were measured.
    """

    headline: str
    details: str
    subject: str
    notes: Sequence[str]
    sections: Sequence[Section]
    method: str


def render_page(report: Report) -> str:
    """Return *report* as one HTML page.

    The page's content security policy forbids scripts and loading other files. Raises
    `MissingExtra` if jinja2 is not installed.
    """
    template, style = _load_template_and_style()
    policy = _POLICY.format(b64encode(sha256(style.encode()).digest()).decode())
    return template.render(report=report, policy=policy, style=style)


def render_markdown(report: Report) -> str:
    """Return *report* as GitHub Markdown."""
    parts = [
        f"# {_escape(report.headline)}",
        _escape(report.details),
        *(f"> **Note:** {_escape(note)}" for note in report.notes),
        *(part for section in report.sections for part in _render_section(section)),
        _escape(report.method),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _render_section(section: Section) -> Iterator[str]:
    yield f"## {_escape(section.heading)}"
    yield _escape(section.remark)
    if section.columns:
        lines = [[_escape(cell) for cell in row] for row in section.rows]
        yield format_table(section.columns, lines)
    for entry in section.entries:
        yield f"### {_escape(entry.question)}"
        yield ". ".join(filter(None, map(_escape, (entry.outcome, entry.remark))))
        for heading, items in entry.lists:
            texts = (filter(None, (item.label, item.text, item.remark)) for item in items)
            bullets = (f"* {' '.join(map(_escape, parts))}" for parts in texts)
            yield "\n".join([f"{_escape(heading)}:", "", *bullets])


def _escape(text: str) -> str:
    return escape_text(text, _LONGEST)


@cache
def _load_template_and_style() -> tuple[jinja2.Template, str]:
    template = build_environment(_read_file, "eval").get_template("page.html.jinja")
    return template, _read_file("page.css")


def build_environment(read_template: Callable[[str], str], extra_name: str) -> jinja2.Environment:
    """Return a jinja2 environment that escapes every value.

    Args:
        read_template: Returns a template's text by its name.
        extra_name: The name of qtmiddleware's extra that installs jinja2.

    Raises:
        MissingExtra: jinja2 is not installed. The message names *extra_name*.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", extra_name) from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = shorten_text
    return environment


def _read_file(file_name: str) -> str:
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")
