"""Where reports and tuned configs go, looked at before anything is asked, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from qtmiddleware.cli.bench_show import note
from qtmiddleware.cli.harmless import harmless_json
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.runtime.files import refuse_link, replace_file


def require_jinja() -> None:
    """Raise `MissingExtra` where no page can be made."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtra("jinja2", "eval") from error


def check_places(folder: Path, names: Sequence[str], option: str) -> None:
    """Make the *folder* where it is missing; raise `ConfigError` where the files *names* cannot be written in it."""
    with named_errors(folder, option):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    for name in names:
        with named_errors(folder / name, option):
            refuse_link(folder / name)
        if (folder / name).exists() and not (folder / name).is_file():
            message = f"nothing can be written to {folder / name}: it is no file; name another place with {option}"
            raise ConfigError(message, path=option, value=str(folder / name))


def write_report(folder: Path, texts: Mapping[str, str]) -> None:
    """Write *texts* by name into *folder*, each whole, and say so.

    A report is made to be shown around, so its files are as readable as other files of their maker. It quotes questions
    of the data set.
    """
    for name, text in texts.items():
        with named_errors(folder / name, "--report"):
            # Markdown and page have been made harmless by who wrote them, in ways of their own.
            safe = harmless_json(text) if name.endswith(".json") else text
            replace_file(folder / name, safe.encode("utf-8", "replace"))
    note(f"The report is in {folder}.")


@contextmanager
def named_errors(path: Path, option: str) -> Iterator[None]:
    """Say what could not be written, and which *option* names another place."""
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        message = f"nothing can be written to {path}: {why}; name another place with {option}"
        raise ConfigError(message, path=option, value=str(path)) from error
