"""What is taken from where ``qtm`` is run: the keys of a ``.env`` file, and other files that nobody named."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from qtmiddleware.catalogue import STORES
from qtmiddleware.cli.terminal import escape_line, note
from qtmiddleware.config import Config
from qtmiddleware.errors import MissingExtra
from qtmiddleware.rag.ingestion.ledger import ledger_path
from qtmiddleware.runtime.files import read_own_file

CREDENTIALS: Final = ("OPENAI_API_KEY", "PINECONE_API_KEY", "REDIS_USERNAME", "REDIS_PASSWORD", "HF_TOKEN")
"""All that a ``.env`` file may set. Whoever hands a folder over must not decide where keys are sent or what is run, so
no address, path, proxy, certificate or setting is ever added here."""

NO_MODEL: Final = (
    "No language model is configured: set OPENAI_API_KEY (a .env file will do), or QTM_LLM_BASE_URL for a service of "
    "your own."
)

_MOST_BYTES: Final = 1_000_000
_MOST_NAMES: Final = 20
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,49}")


def load_dotenv_file() -> None:
    """Set the `CREDENTIALS` that stand in the current folder's ``.env`` file and are not set yet, and say so on stderr.

    No folder above is looked at, and ``${NAME}`` in a value stays as it is. A file that is a link, is another
    account's or can be written by others is noted and not read, as is one that cannot be read; no value is shown.
    """
    path = Path(".env").absolute()
    try:
        # A folder of that name is somebody's virtual environment.
        if path.is_dir() or not os.path.lexists(path):
            return
        _set_credentials(path)
    except OSError as error:
        _note(f"{path} was not read: {error.strerror or type(error).__name__}")
    except ValueError:
        _note(f"{path} was not read: it is not UTF-8, or holds what no variable can hold")


def note_files(
    files: Mapping[str, str | Path | None], *, config: object = None, tell: Callable[[str], None] | None = None
) -> None:
    """Say on stderr which files are used that the command line did not name: those of *files* that are there.

    They stand under what they are. The one that ``QTM_CONFIG`` names is added, unless a *config* was named. *tell* is
    given the sentence in place of stderr.
    """
    settings = None if config else os.environ.get("QTM_CONFIG")
    found = {"settings (QTM_CONFIG)": settings, **files}
    places = {what: os.path.expanduser(place) for what, place in found.items() if place}  # noqa: PTH111 - needs no home
    there = [f"{what} {Path(place).absolute()}" for what, place in places.items() if os.path.lexists(place)]
    if there:
        (tell or _note)(f"used without being named: {'; '.join(there)}")


def files_of(config: Config, *, ingests: bool = False) -> dict[str, str | Path | None]:
    """The files that *config* means and the command line did not name, for `note_files`."""
    settings = config.settings
    is_named = config.origins["indexPath"] == "call"
    index = settings.index_path if STORES[settings.store.kind].keeps_files and not is_named else None
    if ingests:
        return {"index": index, "ledger": None if is_named else ledger_path(settings)}
    return {"index": index, "query log": settings.log.path}


def _set_credentials(path: Path) -> None:
    try:
        import dotenv
    except ImportError as error:
        raise MissingExtra("python-dotenv", "cli") from error
    # With or without the mark that some editors put before the first letter.
    text = read_own_file(path, _MOST_BYTES).decode("utf-8-sig")
    values = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
    new = {name: value for name in CREDENTIALS if (value := values.get(name)) and name not in os.environ}
    os.environ.update(new)
    parts = [f"{_list_names(list(new))} read from {path}"] if new else []
    if ignored := [name for name in values if name not in CREDENTIALS]:
        where = "there" if new else f"in {path}"
        parts.append(f"ignored {where}: {_list_names(ignored)} (a .env file sets keys alone: {', '.join(CREDENTIALS)})")
    if parts:
        _note("; ".join(parts))


def _list_names(names: Sequence[str]) -> str:
    # What is written in another way than names are may be a piece of a key whose lines were broken.
    shown = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMES]
    more = [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return ", ".join([*shown, *more])


def _note(text: str) -> None:
    note(escape_line(f"qtm: note: {text}"))
