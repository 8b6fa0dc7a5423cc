"""Open what a command searches: the user's function or the index."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from warnings import catch_warnings

from typer import Abort, Exit

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, QtMiddlewareError, SetupWarning, WrapError
from qtmiddleware.kit.cli.environment import load_config
from qtmiddleware.kit.cli.options import TARGET
from qtmiddleware.kit.cli.output import divert_stdout, show_warnings
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

_SHOWN_ANYWAY: Final = ("retrieval_degraded", "answer_degraded", "nothing_was_improved")
"""The events of warnings that need no note, because the result of each question shows them."""
_DECISIVE_GROUPS: Final = (
    *("transformationType", "maxSubQueries", "preprocess", "keywordEvidence"),
    *("escalation", "fusion", "rerank", "scores"),
)


@dataclass(frozen=True, slots=True)
class Search:
    """The search of a command: a wrapped function, or the retriever of the index.

    *has_own_settings* says whether a setting of the user decides which passages it finds.
    """

    name: str
    wrapped: Any
    has_own_settings: bool


def has_own_settings(config: Config, *, has_model: bool) -> bool:
    """Return whether a setting of the user decides which passages are found.

    A config that asks a model has no effect without one.
    """
    if config.settings.transformation_type != "none" and not has_model:
        return False
    return any(
        origin != "default" and key.partition(".")[0] in _DECISIVE_GROUPS
        for key, _, origin in config.rows()
    )


@contextmanager
def open_search(
    function: str | None,
    config_name: str | None,
    assignments: Sequence[str] | None,
    *,
    embed: str | None = None,
) -> Iterator[Search]:
    """Yield the search by the function that *function* names, or the search of the index.

    The package's warnings appear on stderr, and so does what the function prints.
    """
    fn: Any = None if function is None else import_function(function)
    with show_warnings(hidden_events=_SHOWN_ANYWAY):
        if function is not None and isinstance(fn, Wrapped):
            if (config_name, embed) != (None, None) or assignments:
                raise ConfigError(
                    f"{function} is already wrapped; set the options where you wrap it", path=TARGET
                )
            yield Search(function, fn, has_own_settings=True)
            return
        config = load_config(config_name, assignments)
        with QueryMiddleware(config) as middleware:
            name, wrapped = f"{config.settings.store.kind} index", fn
            if function is None:
                wrapped = middleware.retriever
            else:
                name = function
                options: Any = {} if embed is None else {"embed": import_function(embed)}
                # The package also logs its warnings, and the log is shown.
                with catch_warnings(action="ignore", category=SetupWarning):
                    wrapped = middleware.wrap(fn, **options)
            has_own = has_own_settings(config, has_model=middleware.engine.has_model)
            yield Search(name, wrapped, has_own)


@contextmanager
def name_search_in_errors(name: str) -> Iterator[None]:
    """Turn an exception of the user's function into a `WrapError` with the function's *name*."""
    try:
        yield
    except WrapError as error:
        # The advice in such an error is Python code; on the command line, an option replaces it.
        if "embed=" not in str(error):
            raise
        raise WrapError(
            f"{error}. On the command line: --embed {name.partition(':')[0]}:embed"
        ) from error
    except (QtMiddlewareError, Abort, Exit):
        raise
    except Exception as error:
        from qtmiddleware.kit.check import describe_error

        # A measurement adds this note to an exception that occurs while a system answers.
        text = f"{name} raised {describe_error(error)}."
        for note in getattr(error, "__notes__", ()):
            if note.startswith("The system"):
                text += f" {note}"
        raise WrapError(text) from error


def import_function(target: str) -> Any:
    """Import and return the function that *target* names, such as ``app:search``.

    From now on, what the user's code prints goes to stderr. Raises `ConfigError` if there is no
    such function, and `WrapError` if the module cannot be imported.
    """
    module_path, _, path = target.partition(":")
    # Shells complete file names, so `app/search.py:find` is accepted for `app.search:find`.
    module = module_path.removeprefix("./").removesuffix(".py").replace("/", ".")
    if not path or not module or module.startswith("."):
        raise ConfigError(
            f"the function must be given as {TARGET}, such as app:search, not {target!r}",
            path=TARGET,
        )
    folder, top = Path.cwd(), module.partition(".")[0]
    # For a function of an installed package, no module of the folder is loaded. Python prefers such
    # a package to a folder without `__init__.py`.
    files = (folder / f"{top}.py", folder / top / "__init__.py")
    is_namespace = (folder / top).is_dir() and find_spec(top) is None
    if is_namespace or any(file.exists() for file in files):
        sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    divert_stdout()
    try:
        value: Any = import_module(module)
    # A module without a `__main__` guard may run its own command line and exit.
    except (Exception, SystemExit) as error:
        # If another module is missing, the user's module was found but could not import it.
        missing = f"{error.name}." if isinstance(error, ModuleNotFoundError) else ""
        if len(missing) > 1 and f"{module}.".startswith(missing):
            raise ConfigError(
                f"the module {missing[:-1]!r} was not found in {folder}", path=TARGET
            ) from error
        raise WrapError(
            f"{module} could not be imported: {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(value, name):
            raise ConfigError(f"{module} has no {path!r}: {name!r} is missing", path=TARGET)
        value = getattr(value, name)
    return value


def parse_arguments(assignments: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of ``--arg`` by name. A value that is not JSON is a text."""
    arguments = {}
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not (equals and name.isidentifier()):
            raise ConfigError(
                f"the argument must have the form name=value, not {assignment!r}", path="--arg"
            )
        try:
            arguments[name] = json.loads(value)
        except (ValueError, RecursionError):
            arguments[name] = value
    return arguments


def split_names(option: str) -> list[str]:
    """Split *option* at commas into names of systems, of which some contain a comma."""
    from qtmiddleware.kit.evaluation.systems import SYSTEMS

    known = "|".join(map(re.escape, sorted(SYSTEMS, key=len, reverse=True)))
    names = re.findall(rf"(?:{known})(?=\s*(?:,|$))|[^,\s][^,]*", option)
    return [name.strip() for name in names]
