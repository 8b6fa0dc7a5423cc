"""Find the files that a command uses by default: the config file, ``.env`` and the index."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.errors import build_value_error
from qtmiddleware.config.keys import find_marked_keys, find_name, find_part, list_all_keys
from qtmiddleware.config.reading import nest_value, parse_text
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.output import write_note
from qtmiddleware.kit.files import read_trusted_file

CREDENTIALS: Final = (
    "OPENAI_API_KEY",
    "PINECONE_API_KEY",
    "HF_TOKEN",
)
"""The variables that a ``.env`` file may set.

Never add an address, path, proxy, certificate or setting. A folder may come from somebody else, who
must not decide where keys are sent or which code is run.
"""

ASSIGNED: Final = "--set"
"""The origin of values from the option ``--set``."""

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
    """Set the environment variables in `CREDENTIALS` from the file ``.env`` in the current folder.

    Variables that are already set keep their values. A note on stderr names the new variables, but
    not their values. The function neither replaces ``${NAME}`` in a value nor searches parent
    folders.

    The function skips the file and writes a note to stderr if the file:

    - is unreadable or not UTF-8
    - is a link, or belongs to another account
    - is writable for other accounts
    """
    path = Path(".env").absolute()
    # A folder called .env is a virtual environment. `lexists`, because a link to a missing file
    # gets a note too.
    if path.is_dir() or not os.path.lexists(path):
        return
    try:
        import dotenv
    except ImportError as error:
        raise MissingExtra("python-dotenv", "cli") from error
    try:
        # utf-8-sig skips the byte order mark that some editors write.
        text = read_trusted_file(path, _MOST_BYTES).decode("utf-8-sig")
        values = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
        credentials = {
            name: value
            for name in CREDENTIALS
            if (value := values.get(name)) and name not in os.environ
        }
        os.environ.update(credentials)
    except OSError as error:
        _note(f"{path} was not read: {error.strerror or type(error).__name__}")
        return
    except ValueError:
        _note(f"{path} was not read: it is not UTF-8, or holds a value that no variable can hold")
        return
    # Names only: a value may be a key, and stderr often ends up in a log.
    sentences = []
    if credentials:
        sentences.append(f"{_join_variable_names(list(credentials))} read from {path}")
    if ignored := [name for name in values if name not in CREDENTIALS]:
        sentences.append(
            f"ignored {'there' if credentials else f'in {path}'}: {_join_variable_names(ignored)}"
            f" (a .env file can set only keys: {', '.join(CREDENTIALS)})"
        )
    if sentences:
        _note("; ".join(sentences))


def _join_variable_names(names: Sequence[str]) -> str:
    """Join up to `_MOST_NAMES` of *names* with commas, and add the number of remaining names.

    Omits names that do not consist of capital letters, digits and underscores.
    """
    # A text that does not look like a variable's name may be a piece of a key with broken lines, so
    # it is not shown.
    plain = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMES]
    more = [f"{len(names) - len(plain)} more"] if len(plain) < len(names) else []
    return ", ".join([*plain, *more])


def _note(text: str) -> None:
    write_note(f"qtm: note: {text}")


def load_config(
    config_name: str | None,
    assignments: Sequence[str] | None = None,
    *,
    transformation_type: str | None = None,
    report_config_path: Callable[[str], None] | None = None,
) -> Config:
    """Return the config of a command.

    The config file is the first of these:

    1. *config_name*, which may also be a preset.
    2. The file that ``QTM_CONFIG`` names.
    3. The first of `CONFIG_FILES` that the current folder contains. The file must belong to the
       user, and must not choose the code to run or the servers that receive texts and keys. A note
       on stderr names the file.

    Args:
        config_name: The file or preset that ``--config`` names.
        assignments: The values of ``--set``, which override the values in the file.
        transformation_type: The value of ``--type``, or ``None``.
        report_config_path: Receives the path of the config file, if there is one. This replaces
            the note on stderr.

    Raises:
        ConfigError: A setting is not valid, or a file that the user did not name must not contain
            the setting.
    """
    path = config_name or os.environ.get("QTM_CONFIG") or None
    default_file = _find_default_config() if path is None else None
    if report_config_path is not None and (file_used := path or default_file):
        report_config_path(file_used)
    elif default_file:
        _note(f"Loading config {default_file} (found in this folder; --config names another)")
    loaded = override_options(
        Config.load(config_name if default_file is None else default_file), assignments or ()
    )
    if default_file:
        _check_default_config(loaded, default_file)
    return (
        loaded
        if transformation_type is None
        else loaded.overridden({"transformationType": transformation_type}, origin="--type")
    )


def override_options(config: Config, assignments: Sequence[str]) -> Config:
    """Return *config* with the values of ``--set``, such as ``fusion.method=rrf``.

    The keys are dotted, and the values are JSON. Strings and lists of strings may be written
    without quotation marks, as in environment variables. Raises `ConfigError` if a key or value is
    not allowed.
    """
    layers = []
    for text in assignments:
        name, equals, value = text.partition("=")
        path = [part.strip() for part in name.split(".")]
        if not (equals and all(path)):
            allowed = "an assignment such as topK=8 or fusion.method=rrf"
            raise build_value_error(ASSIGNED, text, allowed, ASSIGNED)
        hint: Any = Settings
        for part in path:
            hint = find_part(hint, find_name(hint, part))
        layers.append(nest_value(path, parse_text(hint, value)))
    return config.overridden(*layers, origin=ASSIGNED)


def _find_default_config() -> str | None:
    """Return the first of `CONFIG_FILES` that exists and is safe to read, or ``None``.

    A note on stderr names each file that exists but is not used.
    """
    names = [name for name in CONFIG_FILES if os.path.lexists(name)]
    for name in names:
        try:
            read_trusted_file(Path(name), _MOST_BYTES)
        except OSError as error:
            _note(
                f"{name} was not used: {error.strerror or type(error).__name__}; --config {name}"
                " uses it anyway"
            )
            continue
        if unused := names[names.index(name) + 1 :]:
            _note(f"{', '.join(unused)} exists too and was not used")
        return name
    return None


def _check_default_config(config: Config, file_name: str) -> None:
    """Raise `ConfigError` if *config* sets a key that a file found by default must not set.

    *file_name* is the file in the current folder that contains *config*.
    """
    # Only the file's own keys are checked: the user typed the values of --set.
    origin = f"file {file_name}"
    if keys := list(
        _describe_forbidden_keys(
            config, {key for key, key_origin in config.origins.items() if key_origin == origin}
        )
    ):
        message = (
            f"{origin} was found in this folder and must not set {', '.join(keys)}: only a config"
            " that you name may decide where data and keys go and what is read, run, written, spent"
            f" or told to a model; if the file is yours, add --config {file_name} or set"
            f" QTM_CONFIG={file_name}"
        )
        raise ConfigError(message, path=keys[0], source=origin)


def _describe_forbidden_keys(config: Config, keys: Collection[str]) -> Iterator[str]:
    """Yield a phrase for each of *keys* that a config file found by default must not set."""
    settings = config.settings
    yield from (key.name for key in find_marked_keys(Mark.NAMED) if key.name in keys)
    for key, path in (("indexPath", settings.index_path), ("dataPath", settings.data_path)):
        if key in keys and path and not _is_in_current_folder(path):
            yield f"{key} outside this folder"
    if "dataPath" in keys and _is_hidden(settings.data_path or ""):
        yield "dataPath to hidden files"
    if "embeddingModel" in keys and Path(settings.embedding_model).expanduser().exists():
        yield "embeddingModel to a folder"
    budgets = [key for key in list_all_keys() if key.path[0] == "budget"]
    # A file overrides the environment, but a file that nobody named must not raise your limit.
    if any(key.environment_variable in os.environ for key in budgets):
        yield from (
            f"{key.name} in addition to the environment's" for key in budgets if key.name in keys
        )


def _is_in_current_folder(path: str) -> bool:
    """Return whether *path* is in the current folder, before and after resolving links.

    *path* may be a glob pattern. Checking the pattern covers all matching files, because wildcards
    do not match links to folders.
    """
    expanded = Path(path).expanduser()
    return all(
        Path(absolute_path).is_relative_to(Path.cwd())
        for absolute_path in (os.path.abspath(expanded), os.path.realpath(expanded))  # noqa: PTH100 - links stay links in one of them
    )


def _is_hidden(path: str) -> bool:
    """Return whether *path* leads to a hidden file or folder inside the current folder."""
    absolute_path = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - links stay links
    return absolute_path.is_relative_to(Path.cwd()) and any(
        part.startswith(".") for part in absolute_path.relative_to(Path.cwd()).parts
    )


def report_default_files(
    files: Mapping[str, str | Path | None],
    *,
    named_config: object = None,
    write_line: Callable[[str], None] | None = None,
) -> None:
    """Write a note to stderr that names the existing files that a command uses by default.

    Args:
        files: The paths of the files, by a description such as ``index``.
        named_config: The config that the command line names. If ``None``, the note also names the
            file in ``QTM_CONFIG``.
        write_line: Receives the note, which then does not go to stderr.
    """
    settings = None if named_config else os.environ.get("QTM_CONFIG")
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
        (write_line or _note)(f"used by default: {'; '.join(existing)}")


def list_default_files(config: Config, *, is_ingest: bool = False) -> dict[str, str | Path | None]:
    """Return the paths of the files that a command uses by default.

    The keys describe the files, such as ``index``. A path is ``None`` if the command uses no such
    file, or if an option names it.

    Args:
        config: The command's config.
        is_ingest: Whether the command ingests documents. An ingest uses a ledger of the documents.
            Other commands use a query log.
    """
    settings = config.settings
    is_named = config.origins["indexPath"] == ASSIGNED
    index = settings.index_path if settings.store.kind == "sqlite" and not is_named else None
    if is_ingest:
        # Every command imports this module, but only an ingest needs the rooms of the ledger.
        from qtmiddleware.kit.index.ledger import build_ledger_path

        return {"index": index, "ledger": None if is_named else build_ledger_path(settings)}
    return {"index": index, "query log": settings.log.path}
