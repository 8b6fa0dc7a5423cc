"""What is taken from where ``qtm`` is run: a config, the keys of a ``.env`` file, and other files nobody named."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from qtmiddleware.catalogue import STORES
from qtmiddleware.config import Config
from qtmiddleware.config.keys import all_keys, keys_with
from qtmiddleware.config.reading import MOST_BYTES
from qtmiddleware.errors import ConfigError, MissingExtra
from qtmiddleware.kit.cli.terminal import escape_line, note
from qtmiddleware.kit.index.ingestion.ledger import ledger_path
from qtmiddleware.runtime.files import read_own_file

CREDENTIALS: Final = (
    "OPENAI_API_KEY",
    "PINECONE_API_KEY",
    "REDIS_USERNAME",
    "REDIS_PASSWORD",
    "HF_TOKEN",
)
"""All that a ``.env`` file may set. Whoever hands a folder over must not decide where keys are sent or what is run, so
no address, path, proxy, certificate or setting is ever added here."""

CONFIG_FILES: Final = ("config/query-transform.config.json", "query-transform.config.json")
"""The config of the working folder, where ``--config`` and ``QTM_CONFIG`` name none: the first that is there."""

NO_MODEL: Final = (
    "No language model is configured: set OPENAI_API_KEY (a .env file works too), or QTM_LLM_BASE_URL for your own "
    "service."
)

_MOST_BYTES: Final = 1_000_000
_MOST_NAMES: Final = 20
_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]{1,49}")


def load_dotenv_file() -> None:
    """Set the `CREDENTIALS` that stand in the current folder's ``.env`` file and are not set yet, and say so on stderr.

    No folder above is looked at, and ``${NAME}`` in a value stays as it is. A file that is a link,
    is another account's or can be written by others is noted and not read, as is one that cannot be
    read; no value is shown.
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
        _note(f"{path} was not read: it is not UTF-8, or holds a value that no variable can hold")


def load_config(
    file: str | None,
    assignments: Sequence[str] | None = None,
    *,
    kind: str | None = None,
    tell: Callable[[str], None] | None = None,
) -> Config:
    """The config a command works with: *assignments* (``--set``) over *file*, else ``QTM_CONFIG``, else `CONFIG_FILES`.

    *kind* is the transformation of ``--type``. *tell* is given the path of the file that is read,
    if any; without it a note on stderr tells of one that nobody named. Such a file is one's own, as
    a ``.env`` file is, and sets nothing that decides where texts and keys go or what is run. Raises
    `ConfigError`.
    """
    path = file or os.environ.get("QTM_CONFIG") or None
    found = _find_config() if path is None else None
    if tell is not None and (read := path or found):
        tell(read)
    elif found:
        _note(f"Loading config {found} (found in this folder; --config names another)")
    loaded = Config.load(file if found is None else found).assigned(assignments or ())
    if found:
        _check_found(loaded, found)
    return (
        loaded if kind is None else loaded.overridden({"transformationType": kind}, origin="--type")
    )


def _find_config() -> str | None:
    """The first of `CONFIG_FILES` that may be used; one that may not, or that stands behind another, is noted."""
    there = [name for name in CONFIG_FILES if os.path.lexists(name)]
    for name in there:
        try:
            read_own_file(Path(name), MOST_BYTES)
        except OSError as error:
            _note(
                f"{name} was not used: {error.strerror or type(error).__name__}; --config {name} uses it anyway"
            )
            continue
        if behind := there[there.index(name) + 1 :]:
            _note(f"{', '.join(behind)} exists too and was not used")
        return name
    return None


def _check_found(config: Config, name: str) -> None:
    """Raise `ConfigError` where the file *name*, which nobody named, sets what whoever made the folder must not."""
    origin = f"file {name}"
    if keys := list(
        _find_forbidden(config, {key for key, found in config.origins.items() if found == origin})
    ):
        said = (
            f"{origin} was found in this folder and must not set {', '.join(keys)}: only a config that you name may "
            "decide where data and keys go and what is read, run, written, spent or told to a model; if the file is "
            f"yours, add --config {name} or set QTM_CONFIG={name}"
        )
        raise ConfigError(said, path=keys[0], source=origin)


def _find_forbidden(config: Config, given: Collection[str]) -> Iterator[str]:
    """What of the keys *given* by a file that nobody named is not its to decide."""
    settings = config.settings
    yield from (key.name for key in keys_with("named") if key.name in given)
    for key, path in (("indexPath", settings.index_path), ("dataPath", settings.data_path)):
        if key in given and path and not _lies_here(path):
            yield f"{key} outside this folder"
    if "dataPath" in given and _is_hidden(settings.data_path or ""):
        yield "dataPath to hidden files"
    if "embeddingModel" in given and Path(settings.embedding_model).expanduser().exists():
        yield "embeddingModel to a folder"
    budgets = [key for key in all_keys() if key.path[0] == "budget"]
    # A file goes before the environment, but this one must not undo what you allow to be spent.
    if any(key.environment in os.environ for key in budgets):
        yield from (
            f"{key.name} in addition to the environment's" for key in budgets if key.name in given
        )


def _lies_here(path: str) -> bool:
    """Whether *path* lies in the working folder, by its name and by what the links on its way lead to.

    The wildcards of a pattern match no links to folders, so as a name it leads no further than what
    it matches.
    """
    given = Path(path).expanduser()
    return all(
        Path(whole).is_relative_to(Path.cwd())
        for whole in (os.path.abspath(given), os.path.realpath(given))  # noqa: PTH100 - links stay links in one of them
    )


def _is_hidden(path: str) -> bool:
    whole = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - links stay links
    return whole.is_relative_to(Path.cwd()) and any(
        it.startswith(".") for it in whole.relative_to(Path.cwd()).parts
    )


def note_files(
    files: Mapping[str, str | Path | None],
    *,
    config: object = None,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Say on stderr which files are used that the command line did not name: those of *files* that are there.

    They stand under what they are. The one that ``QTM_CONFIG`` names is added, unless a *config*
    was named. *tell* is given the sentence in place of stderr.
    """
    settings = None if config else os.environ.get("QTM_CONFIG")
    found = {"settings (QTM_CONFIG)": settings, **files}
    places = {what: os.path.expanduser(place) for what, place in found.items() if place}  # noqa: PTH111 - needs no home
    there = [
        f"{what} {Path(place).absolute()}"
        for what, place in places.items()
        if os.path.lexists(place)
    ]
    if there:
        (tell or _note)(f"used by default: {'; '.join(there)}")


def files_of(config: Config, *, ingests: bool = False) -> dict[str, str | Path | None]:
    """The files that *config* means and the command line did not name, for `note_files`."""
    settings = config.settings
    is_named = config.origins["indexPath"] == "call"
    index = (
        settings.index_path if STORES[settings.store.kind].keeps_files and not is_named else None
    )
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
    new = {
        name: value
        for name in CREDENTIALS
        if (value := values.get(name)) and name not in os.environ
    }
    os.environ.update(new)
    parts = [f"{_list_names(list(new))} read from {path}"] if new else []
    if ignored := [name for name in values if name not in CREDENTIALS]:
        where = "there" if new else f"in {path}"
        parts.append(
            f"ignored {where}: {_list_names(ignored)} (a .env file can set only keys: {', '.join(CREDENTIALS)})"
        )
    if parts:
        _note("; ".join(parts))


def _list_names(names: Sequence[str]) -> str:
    # What is written in another way than names are may be a piece of a key whose lines were broken.
    shown = [name for name in names if _NAME.fullmatch(name)][:_MOST_NAMES]
    more = [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return ", ".join([*shown, *more])


def _note(text: str) -> None:
    note(escape_line(f"qtm: note: {text}"))
