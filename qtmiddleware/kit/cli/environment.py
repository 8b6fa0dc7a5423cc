"""Finds the files used by default, such as the config file and the ``.env`` file."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from qtmiddleware.catalogue import STORES
from qtmiddleware.config import Config
from qtmiddleware.config.keys import all_keys, find_marked_keys
from qtmiddleware.config.reading import MOST_BYTES
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.terminal import escape_line, note
from qtmiddleware.kit.index.ingestion.ledger import build_ledger_path
from qtmiddleware.runtime.files import read_own_file

CREDENTIALS: Final = (
    "OPENAI_API_KEY",
    "PINECONE_API_KEY",
    "REDIS_USERNAME",
    "REDIS_PASSWORD",
    "HF_TOKEN",
)
"""The variables that a ``.env`` file may set.

A folder may come from somebody else, who must not decide where keys are sent or which code is run.
Therefore never add an address, path, proxy, certificate or setting here.
"""

CONFIG_FILES: Final = ("config/query-transform.config.json", "query-transform.config.json")
"""The names of config files in the current folder. The first file that exists is used.

These files are read only if neither ``--config`` nor ``QTM_CONFIG`` names a config.
"""

NO_MODEL: Final = (
    "No language model is configured: set OPENAI_API_KEY (a .env file works too), or"
    " QTM_LLM_BASE_URL for your own service."
)

_MOST_BYTES: Final = 1_000_000
_MOST_NAMES: Final = 20
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,49}")


def load_dotenv_file() -> None:
    """Load `CREDENTIALS` from the file ``.env`` in the current folder into the environment.

    Variables that are already set are kept. A note on stderr names the variables, but not their
    values. Parent folders are not searched, and ``${NAME}`` in a value is not replaced. The file is
    skipped, with a note, if it is a link, belongs to another account, can be written by others, or
    cannot be read.
    """
    path = Path(".env").absolute()
    try:
        # A folder called .env is a virtual environment.
        if path.is_dir() or not os.path.lexists(path):
            return
        _set_credentials(path)
    except OSError as error:
        _write_note(f"{path} was not read: {error.strerror or type(error).__name__}")
    except ValueError:
        _write_note(
            f"{path} was not read: it is not UTF-8, or holds a value that no variable can hold"
        )


def load_config(
    file: str | None,
    assignments: Sequence[str] | None = None,
    *,
    kind: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Config:
    """Return the config of a command. A note on stderr names a file that was found by default.

    The config file is *file*, else the file named by ``QTM_CONFIG``, else the first of
    `CONFIG_FILES` in the current folder. A file found in the current folder must belong to the
    user. It must not set which code is run, or where texts and keys are sent.

    Args:
        file: The file or preset of ``--config``.
        assignments: The values of ``--set``, which override the file.
        kind: The transformation type of ``--type``.
        tell: Called with the path of the file, if there is a file. Replaces the note on stderr.

    Raises:
        ConfigError: A setting is not valid, or is not allowed in a file found by default.
    """
    path = file or os.environ.get("QTM_CONFIG") or None
    default_file = _find_default_config() if path is None else None
    if tell is not None and (file_used := path or default_file):
        tell(file_used)
    elif default_file:
        _write_note(f"Loading config {default_file} (found in this folder; --config names another)")
    loaded = Config.load(file if default_file is None else default_file).assigned(assignments or ())
    if default_file:
        _check_default_config(loaded, default_file)
    return (
        loaded if kind is None else loaded.overridden({"transformationType": kind}, origin="--type")
    )


def _find_default_config() -> str | None:
    """Return the first of `CONFIG_FILES` in the current folder that may be used, or ``None``.

    Notes on stderr name the files that exist but are not used.
    """
    names = [name for name in CONFIG_FILES if os.path.lexists(name)]
    for name in names:
        try:
            read_own_file(Path(name), MOST_BYTES)
        except OSError as error:
            _write_note(
                f"{name} was not used: {error.strerror or type(error).__name__}; --config {name}"
                " uses it anyway"
            )
            continue
        if unused := names[names.index(name) + 1 :]:
            _write_note(f"{', '.join(unused)} exists too and was not used")
        return name
    return None


def _check_default_config(config: Config, name: str) -> None:
    """Raise `ConfigError` if the config file *name*, found by default, sets a forbidden key."""
    origin = f"file {name}"
    if keys := list(
        _find_forbidden(
            config, {key for key, key_origin in config.origins.items() if key_origin == origin}
        )
    ):
        message = (
            f"{origin} was found in this folder and must not set {', '.join(keys)}: only a config"
            " that you name may decide where data and keys go and what is read, run, written, spent"
            f" or told to a model; if the file is yours, add --config {name} or set"
            f" QTM_CONFIG={name}"
        )
        raise ConfigError(message, path=keys[0], source=origin)


def _find_forbidden(config: Config, keys: Collection[str]) -> Iterator[str]:
    """Yield a phrase for each of *keys* that a config file found by default must not set."""
    settings = config.settings
    yield from (key.name for key in find_marked_keys("named") if key.name in keys)
    for key, path in (("indexPath", settings.index_path), ("dataPath", settings.data_path)):
        if key in keys and path and not _is_in_this_folder(path):
            yield f"{key} outside this folder"
    if "dataPath" in keys and _is_hidden(settings.data_path or ""):
        yield "dataPath to hidden files"
    if "embeddingModel" in keys and Path(settings.embedding_model).expanduser().exists():
        yield "embeddingModel to a folder"
    budgets = [key for key in all_keys() if key.path[0] == "budget"]
    # A file overrides the environment, but a file that nobody named must not raise your limit.
    if any(key.environment in os.environ for key in budgets):
        yield from (
            f"{key.name} in addition to the environment's" for key in budgets if key.name in keys
        )


def _is_in_this_folder(path: str) -> bool:
    """Return whether *path* is in the current folder, as written and after resolving links.

    *path* may be a pattern. Wildcards do not match links to folders, so a check of the pattern
    covers all matching files.
    """
    expanded = Path(path).expanduser()
    return all(
        Path(whole).is_relative_to(Path.cwd())
        for whole in (os.path.abspath(expanded), os.path.realpath(expanded))  # noqa: PTH100 - links stay links in one of them
    )


def _is_hidden(path: str) -> bool:
    """Return whether *path* is in the current folder and contains a hidden file or folder."""
    whole = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - links stay links
    return whole.is_relative_to(Path.cwd()) and any(
        part.startswith(".") for part in whole.relative_to(Path.cwd()).parts
    )


def note_files(
    files: Mapping[str, str | Path | None],
    *,
    config: object = None,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Write to stderr which existing files are used by default.

    Args:
        files: The paths of the files, by a description such as ``index``.
        config: The config named on the command line. Without a config, the file named by
            ``QTM_CONFIG`` is listed too.
        tell: Called with the sentence, instead of writing the sentence to stderr.
    """
    settings = None if config else os.environ.get("QTM_CONFIG")
    candidates = {"settings (QTM_CONFIG)": settings, **files}
    paths = {
        description: os.path.expanduser(path)  # noqa: PTH111 - needs no home
        for description, path in candidates.items()
        if path
    }
    existing = [
        f"{description} {Path(path).absolute()}"
        for description, path in paths.items()
        if os.path.lexists(path)
    ]
    if existing:
        (tell or _write_note)(f"used by default: {'; '.join(existing)}")


def list_default_files(config: Config, *, ingests: bool = False) -> dict[str, str | Path | None]:
    """Return the files that *config* sets and the command line does not, for `note_files`.

    If *ingests* is true, the result contains the files that an ingest uses.
    """
    settings = config.settings
    is_named = config.origins["indexPath"] == "call"
    index = (
        settings.index_path if STORES[settings.store.kind].keeps_files and not is_named else None
    )
    if ingests:
        return {"index": index, "ledger": None if is_named else build_ledger_path(settings)}
    return {"index": index, "query log": settings.log.path}


def _set_credentials(path: Path) -> None:
    """Load `CREDENTIALS` from the ``.env`` file at *path* into the environment.

    Variables that are already set are kept. A note on stderr lists the names that were read and the
    names that were ignored.
    """
    try:
        import dotenv
    except ImportError as error:
        raise MissingExtra("python-dotenv", "cli") from error
    # utf-8-sig skips the byte order mark that some editors write.
    text = read_own_file(path, _MOST_BYTES).decode("utf-8-sig")
    values = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
    credentials = {
        name: value
        for name in CREDENTIALS
        if (value := values.get(name)) and name not in os.environ
    }
    os.environ.update(credentials)
    sentences = [f"{_join_names(list(credentials))} read from {path}"] if credentials else []
    if ignored := [name for name in values if name not in CREDENTIALS]:
        place = "there" if credentials else f"in {path}"
        sentences.append(
            f"ignored {place}: {_join_names(ignored)} (a .env file can set only keys:"
            f" {', '.join(CREDENTIALS)})"
        )
    if sentences:
        _write_note("; ".join(sentences))


def _join_names(names: Sequence[str]) -> str:
    """Join the first `_MOST_NAMES` of *names*, and say how many more there are."""
    # A text that does not look like a variable's name may be a piece of a key with broken lines, so
    # it is not shown.
    plain_names = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMES]
    hidden_count = (
        [f"{len(names) - len(plain_names)} more"] if len(plain_names) < len(names) else []
    )
    return ", ".join([*plain_names, *hidden_count])


def _write_note(text: str) -> None:
    note(escape_line(f"qtm: note: {text}"))
