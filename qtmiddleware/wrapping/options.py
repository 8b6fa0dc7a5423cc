"""Reject unknown options, and suggest the option that the user probably meant."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.errors import WrapError


def check_options(
    caller: Callable[..., Any], options: Mapping[str, Any], known_names: Collection[str]
) -> None:
    """Raise `WrapError` if *options* contains a name that *caller* does not accept.

    *known_names* holds the names that *caller* accepts as ``**options``.
    """
    for name in options:
        if name not in known_names:
            advice = _build_advice(name, caller, known_names)
            raise WrapError(f"{caller.__name__}() has no option {name!r}; {advice}")


def _build_advice(name: str, caller: Callable[..., Any], known_names: Collection[str]) -> str:
    # Imported here, because most processes never meet an error.
    from qtmiddleware.config.errors import KEYS_ADVICE, find_nearest_name, is_secret_name
    from qtmiddleware.config.introspection import list_all_keys
    from qtmiddleware.config.reading import nest_value
    from qtmiddleware.wrapping.engine import MiddlewareOptions

    if is_secret_name(name):
        return f"{KEYS_ADVICE}, or pass your own client="
    if name in {"config", *MiddlewareOptions.__optional_keys__}:
        return "it is an option of QueryMiddleware"
    parameters = inspect.signature(caller).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    options = sorted({*known_names, *own})
    # A name such as `method` is an option of several groups.
    settings: dict[str, dict[str, None]] = {}
    for key in list_all_keys():
        for path in (key.path[:1], key.path):
            example = json.dumps(nest_value([*map(to_camel_case, path)], "..."))
            settings.setdefault(path[-1], {})[example] = None
    nearest = find_nearest_name(name, [*options, *settings])
    if nearest is None:
        return "its options are " + ", ".join(options)
    if nearest in options:
        return f"did you mean {nearest}?"
    takers = [f"{option}=" for option in ("config", "qtm_config") if option in options]
    place = takers[0] if takers else "the config of QueryMiddleware: "
    return f"it is a setting: put it into {place}" + " or ".join(settings[nearest])
