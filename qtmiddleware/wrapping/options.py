"""Reject unknown options, and suggest the option that the user probably meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from qtmiddleware.errors import WrapError


def check_options(
    caller: Callable[..., Any], options: Mapping[str, Any], known_names: Collection[str]
) -> None:
    """Raise `WrapError` if *options* contains a name that *caller* does not accept.

    *known_names* holds the names that *caller* accepts as ``**options``.
    """
    unknown = next((name for name in options if name not in known_names), None)
    if unknown is None:
        return
    # Imported here, because most processes never meet an error.
    from qtmiddleware.config.errors import find_nearest_name

    parameters = inspect.signature(caller).parameters.values()
    own = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    allowed = sorted({*known_names, *own})
    nearest = find_nearest_name(unknown, allowed)
    advice = f"did you mean {nearest}?" if nearest else "its options are " + ", ".join(allowed)
    raise WrapError(f"{caller.__name__}() has no option {unknown!r}; {advice}")
