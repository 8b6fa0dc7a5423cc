"""The files of reports: whether they can be written, before anything is measured, and how they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.terminal import note
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.files import refuse_link, replace_file


def require_jinja() -> None:
    """Raise `MissingExtra` where no page can be made."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtra("jinja2", "eval") from error


def check_places(folder: Path, names: Sequence[str], option: str) -> None:
    """Make the *folder* where it is missing; raise `ConfigError` where the files *names* cannot be written in it."""
    with name_option_in_errors(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    for name in names:
        with name_option_in_errors(folder / name, option):
            refuse_link(folder / name)
        if (folder / name).exists() and not (folder / name).is_file():
            message = (
                f"{folder / name} cannot be written, because it is not a file; name another place"
                f" with {option}"
            )
            raise ConfigError(message, path=option, value=str(folder / name))


def write_report(folder: Path, texts: Mapping[str, str]) -> None:
    """Write *texts* by name into *folder*, each whole, and say so.

    A report is made to be shown around, so its files are as readable as other files of their maker.
    It quotes questions of the data set.
    """
    for name, text in texts.items():
        with name_option_in_errors(folder / name, "--report"):
            # Markdown and page are escaped by who wrote them, in ways of their own.
            safe = escape_json(text) if name.endswith(".json") else text
            replace_file(folder / name, safe.encode("utf-8", "replace"))
    note(f"The report is in {folder}.")


@contextmanager
def name_option_in_errors(path: Path, option: str) -> Iterator[None]:
    """Say what could not be written, and which *option* names another place."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        message = f"{path} cannot be written: {why}; name another place with {option}"
        raise ConfigError(message, path=option, value=str(path)) from error
