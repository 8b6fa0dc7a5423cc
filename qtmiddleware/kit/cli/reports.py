"""Write report files, and check in advance that a command can write the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.terminal import write_note
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.files import refuse_link, replace_file


def require_jinja() -> None:
    """Raise `MissingExtra` if jinja2, which renders HTML pages, is not installed."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtra("jinja2", "eval") from error


def check_files_writable(folder: Path, file_names: Sequence[str], option_name: str) -> None:
    """Create *folder*, and check that the command can write *file_names* to this folder.

    Raises `ConfigError` if the command cannot write a file. The error contains *option_name*, the
    command-line option that sets the folder.
    """
    # Creating a file shows on every system whether the folder is writable.
    with name_option_in_errors(folder, option_name):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    for name in file_names:
        with name_option_in_errors(folder / name, option_name):
            refuse_link(folder / name)
        if (folder / name).exists() and not (folder / name).is_file():
            message = (
                f"{folder / name} cannot be written, because it is not a file; name another place"
                f" with {option_name}"
            )
            raise ConfigError(message, path=option_name, value=str(folder / name))


def write_report(folder: Path, text_by_name: Mapping[str, str]) -> None:
    """Write the files of a report to *folder*, and a note that names *folder* to stderr.

    *text_by_name* contains the text of each file, by file name. An interrupt leaves no incomplete
    file. The files get the default permissions, because teams share reports.
    """
    for name, text in text_by_name.items():
        with name_option_in_errors(folder / name, "--report"):
            # Markdown and pages were escaped when they were made, each by its own rules.
            safe = escape_json(text) if name.endswith(".json") else text
            replace_file(folder / name, safe.encode("utf-8", "replace"))
    write_note(f"The report is in {folder}.")


@contextmanager
def name_option_in_errors(path: Path, option_name: str) -> Iterator[None]:
    """Turn an `OSError` into a `ConfigError` that names *path* and the option to change."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        message = f"{path} cannot be written: {reason}; name another place with {option_name}"
        raise ConfigError(message, path=option_name, value=str(path)) from error
