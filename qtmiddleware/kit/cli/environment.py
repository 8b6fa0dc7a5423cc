"""Read the config and the keys of a command, and what a file that nobody named may decide."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.errors import build_value_error
from qtmiddleware.config.introspection import find_name, find_part
from qtmiddleware.config.reading import nest_value, parse_text
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.output import write_note
from qtmiddleware.kit.files import read_trusted_file
from qtmiddleware.preprocessing.text import format_count

CREDENTIALS: Final = ("OPENAI_API_KEY", "PINECONE_API_KEY", "HF_TOKEN")
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

# Where texts and keys are sent, which files are written, and a model's instructions.
_FORBIDDEN: Final = (
    "llm.baseUrl",
    "llm.prompts",
    "llm.inputPrice",
    "llm.outputPrice",
    "rerank.model",
    "store.index",
    "store.host",
    "log.path",
    "log.texts",
    "transforms",
    "glossary.path",
    "glossary.terms",
)
_MOST_BYTES: Final = 1_000_000
# The library for these files needs quadratic time for some lines.
_DOTENV_BYTES: Final = 20_000


def load_dotenv_file() -> None:
    """Set the missing `CREDENTIALS` from the file ``.env`` in the current folder.

    A note on stderr names what was set, without the values. A file that is a link, or
    that another account may have written, is skipped with a note.
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
        text = read_trusted_file(path, _DOTENV_BYTES).decode("utf-8-sig")
        values = dotenv.dotenv_values(stream=io.StringIO(text), interpolate=False)
        found = {
            name: value
            for name in CREDENTIALS
            if (value := values.get(name)) and name not in os.environ
        }
        os.environ.update(found)
    except (OSError, ValueError) as error:
        # The message of a ValueError may quote a key.
        reason = "it is not UTF-8, or holds a value that no variable can hold"
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
        _note(f"{path} was not read: {reason}")
        return
    if found:
        _note(f"{', '.join(found)} read from {path}")
    # The other names are not shown: a line of a broken key would look like a name.
    if ignored := len(values.keys() - set(CREDENTIALS)):
        entries = format_count(ignored, "other entry", "other entries")
        _note(f"{entries} of {path} ignored: a .env file sets only {', '.join(CREDENTIALS)}")


def _note(text: str) -> None:
    write_note(f"qtm: note: {text}")


def load_config(
    name: str | None,
    assignments: Sequence[str] | None = None,
    *,
    transformation_type: str | None = None,
    on_file: Callable[[str], None] | None = None,
) -> Config:
    """Return the config of a command.

    The file is the one that *name* or else ``QTM_CONFIG`` names, or else the first of
    `CONFIG_FILES` that exists. A note names a file that nobody named, unless *on_file* receives its
    path. Such a file must belong to the user, and must not choose the code to run or the servers
    that receive texts and keys. *assignments* are the values of ``--set``.
    """
    named = name or os.environ.get("QTM_CONFIG") or None
    found = _find_config_file() if named is None else None
    if on_file is not None and (file := named or found):
        on_file(file)
    elif found:
        _note(f"Loading config {found} (found in this folder; --config names another)")
    config = override_options(Config.load(name if found is None else found), assignments or ())
    if found:
        _check_found_config(config, found)
    if transformation_type is not None:
        values = {"transformationType": transformation_type}
        config = config.overridden(values, origin="--type")
    return config


def override_options(config: Config, assignments: Sequence[str]) -> Config:
    """Return *config* with the values of ``--set``, such as ``fusion.method=rrf``."""
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


def _find_config_file() -> str | None:
    for name in filter(os.path.lexists, CONFIG_FILES):
        try:
            read_trusted_file(Path(name), _MOST_BYTES)
        except OSError as error:
            _note(
                f"{name} was not used: {error.strerror or type(error).__name__}; --config {name}"
                " uses it anyway"
            )
        else:
            return name
    return None


def _check_found_config(config: Config, file_name: str) -> None:
    origin = f"file {file_name}"
    if forbidden := list(_list_forbidden_keys(config, origin)):
        raise ConfigError(
            f"{origin} was found in this folder and must not set {', '.join(forbidden)}; if the"
            f" file is yours, name it: --config {file_name}, or qtm config show {file_name}",
            path=forbidden[0],
            source=origin,
        )


def _list_forbidden_keys(config: Config, origin: str) -> Iterator[str]:
    settings = config.settings
    # Only the file's own keys: the user typed the values of --set.
    keys = {key for key, _, key_origin in config.rows() if key_origin == origin}
    yield from (key for key in _FORBIDDEN if key in keys)
    for key, path in (("indexPath", settings.index_path), ("dataPath", settings.data_path)):
        if key in keys and path:
            parts = _split_path_in_folder(path)
            if parts is None:
                yield f"{key} outside this folder"
            elif key == "dataPath" and any(part.startswith(".") for part in parts):
                yield "dataPath to hidden files"
    if "embeddingModel" in keys and Path(settings.embedding_model).expanduser().exists():
        yield "embeddingModel to a folder"


def _split_path_in_folder(path: str) -> tuple[str, ...] | None:
    """Return the parts of *path* below the current folder; ``None`` if it leads elsewhere."""
    # In a pattern, `**/..` may lead out of the folder.
    expanded = Path(path).expanduser()
    if ".." in expanded.parts:
        return None
    folder = Path.cwd()
    absolute = Path(os.path.abspath(expanded))  # noqa: PTH100 - links stay links
    target = Path(os.path.realpath(expanded))
    if absolute.is_relative_to(folder) and target.is_relative_to(folder):
        return absolute.relative_to(folder).parts
    return None
