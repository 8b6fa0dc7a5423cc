"""Options by name: an unknown one is refused, and the message names the one that was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.config.errors import find_nearest, fold, is_secret_name
from qtmiddleware.config.keys import all_keys, camel
from qtmiddleware.errors import WrapError

_OF_MIDDLEWARE: Final = frozenset(
    {"config", "client", "reranker", "store", "embedder", "redact", "observers"}
)
# A setting's name that more groups share, such as `enabled`, says nothing.
_MOST_HOMES: Final = 2


def check_options(
    caller: Callable[..., Any], options: Mapping[str, Any], known: Collection[str]
) -> None:
    """Raise `WrapError`, a `TypeError`, if *caller* does not know one of *options*.

    *known* are the names that its ``**options`` may hold.
    """
    for name in options:
        if name not in known:
            raise WrapError(
                f"{caller.__name__}() has no option {name!r}; {_advise(name, caller, known)}"
            )


def _advise(name: str, caller: Callable[..., Any], known: Collection[str]) -> str:
    if is_secret_name(name):
        return (
            "set the key in the environment (OPENAI_API_KEY, PINECONE_API_KEY), or pass your own"
            " client="
        )
    parameters = inspect.signature(caller).parameters.values()
    names = sorted({*known, *(it.name for it in parameters if it.kind is it.KEYWORD_ONLY)})
    if name in _OF_MIDDLEWARE:
        return "it is an option of QueryMiddleware"
    settings = _list_settings()
    nearest = find_nearest(name, [*names, *settings]) or ""
    if nearest in names:
        return f"did you mean {nearest}?"
    if not (paths := settings.get(nearest)):
        return "its options are " + ", ".join(names)
    place = next(
        (f"{it}=" for it in ("config", "qtm_config") if it in names),
        "the config of QueryMiddleware: ",
    )
    return f"it is a setting: put it into {place}" + " or ".join(map(_write, paths))


def _list_settings() -> dict[str, list[Sequence[str]]]:
    """Return where each setting and group stands, by its own name."""
    homes: dict[str, list[Sequence[str]]] = {}
    for key in all_keys():
        homes[fold(key.path[0])] = [key.path[:1]]
    for key in all_keys():
        if len(key.path) == 2:
            homes.setdefault(fold(key.path[1]), []).append(key.path)
    return {name: paths for name, paths in homes.items() if len(paths) <= _MOST_HOMES}


def _write(path: Sequence[str]) -> str:
    """Return the object that sets *path*, as in ``{"fusion": {"rrfK": ...}}``."""
    first, *rest = path
    return f'{{"{camel(first)}": {_write(rest) if rest else "..."}}}'
