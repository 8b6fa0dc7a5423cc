"""Reject unknown options, and suggest the option that the user probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.errors import WrapError

# A name that more groups than this share, such as `enabled`, does not show which setting is meant.
_MOST_GROUPS: Final = 2


def check_options(
    caller: Callable[..., Any], options: Mapping[str, Any], known_names: Collection[str]
) -> None:
    """Raise `WrapError` if *options* contains a name that *caller* does not accept.

    *known_names* holds the names that *caller* accepts as ``**options``.
    """
    for name in options:
        if name not in known_names:
            raise WrapError(
                f"{caller.__name__}() has no option {name!r};"
                f" {_build_option_advice(name, caller, known_names)}"
            )


def _build_option_advice(
    option_name: str, caller: Callable[..., Any], known_names: Collection[str]
) -> str:
    # Imported here, because most processes never meet an error.
    from qtmiddleware.config.errors import find_nearest_name, is_secret_name
    from qtmiddleware.wrapping.engine import MiddlewareOptions

    if is_secret_name(option_name):
        return (
            "set the key in the environment (OPENAI_API_KEY, PINECONE_API_KEY), or pass your own"
            " client="
        )
    parameters = inspect.signature(caller).parameters.values()
    own = {it.name for it in parameters if it.kind is it.KEYWORD_ONLY}
    names = sorted({*known_names, *own})
    if option_name in {"config", *MiddlewareOptions.__optional_keys__}:
        return "it is an option of QueryMiddleware"
    settings = _list_setting_paths()
    nearest = find_nearest_name(option_name, [*names, *settings]) or ""
    if nearest in names:
        return f"did you mean {nearest}?"
    if not (paths := settings.get(nearest)):
        return "its options are " + ", ".join(names)
    destination = next(
        (f"{option}=" for option in ("config", "qtm_config") if option in names),
        "the config of QueryMiddleware: ",
    )
    return f"it is a setting: put it into {destination}" + " or ".join(
        map(_format_config_example, paths)
    )


def _list_setting_paths() -> dict[str, list[Sequence[str]]]:
    """Return the config paths of each setting and group, by name.

    Names that occur in more than two groups, such as ``enabled``, are left out.
    """
    from qtmiddleware.config.errors import fold_name
    from qtmiddleware.config.keys import list_all_keys

    paths_by_name: dict[str, list[Sequence[str]]] = {}
    for key in list_all_keys():
        paths_by_name[fold_name(key.path[0])] = [key.path[:1]]
    for key in list_all_keys():
        if len(key.path) == 2:
            paths_by_name.setdefault(fold_name(key.path[1]), []).append(key.path)
    return {name: paths for name, paths in paths_by_name.items() if len(paths) <= _MOST_GROUPS}


def _format_config_example(path: Sequence[str]) -> str:
    """Return a JSON object that sets the key at *path*, such as ``{"fusion": {"rrfK": ...}}``."""
    key, *rest = path
    return f'{{"{to_camel_case(key)}": {_format_config_example(rest) if rest else "..."}}}'
