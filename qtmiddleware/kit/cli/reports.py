"""Write the file of a report, and check in advance that a command can write it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.terminal import write_note
from qtmiddleware.kit.files import replace_file
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.files import refuse_link

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation import Report


def check_report(file: Path) -> None:
    """Check that the command can write its report to *file*, and create the file's folder.

    Raises `ConfigError` if the name does not end with .md, .json or .html, or if the command cannot
    write the file. Raises `MissingExtra` if *file* is an HTML page and jinja2 is not installed.
    """
    formats = (".md", ".json", ".html")
    if file.suffix not in formats:
        raise ConfigError(
            f"{file} must end with {' or '.join(formats)}, which is the report's format",
            path="--report",
            value=str(file),
        )
    if file.suffix == ".html":
        try:
            import jinja2  # noqa: F401
        except ImportError as error:
            raise MissingExtra("jinja2", "eval") from error
    check_file_writable(file, "--report")


def check_file_writable(file: Path, option_name: str) -> None:
    """Create the folder of *file*, and check that the command can write *file* to this folder.

    Raises `ConfigError` if the command cannot write the file. The error contains *option_name*, the
    command-line option that sets the file.
    """
    # Creating a file shows on every system whether the folder is writable.
    with name_option_in_errors(file.parent, option_name):
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=file.parent):
            pass
    with name_option_in_errors(file, option_name):
        refuse_link(file)
    if file.exists() and not file.is_file():
        message = (
            f"{file} cannot be written, because it is not a file; name another place with"
            f" {option_name}"
        )
        raise ConfigError(message, path=option_name, value=str(file))


def write_report(file: Path, report: Report, values: Mapping[str, Any]) -> None:
    """Write *report*, or *values* as JSON, to *file*, and a note that names *file* to stderr.

    An interrupt leaves no incomplete file. The file gets the default permissions, because teams
    share reports.
    """
    with name_option_in_errors(file, "--report"):
        if file.suffix == ".json":
            text = escape_json(json.dumps(values, ensure_ascii=False, indent=2)) + "\n"
        else:
            text = report.to_html() if file.suffix == ".html" else report.to_markdown()
        replace_file(file, text.encode("utf-8", "replace"))
    write_note(f"The report is in {file}.")


@contextmanager
def name_option_in_errors(path: Path, option_name: str) -> Iterator[None]:
    """Turn an `OSError` into a `ConfigError` that names *path* and the option to change."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"{path} cannot be written: {reason}; name another place with {option_name}"
        raise ConfigError(message, path=option_name, value=str(path)) from error
