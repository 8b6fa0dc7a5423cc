"""One field of anything: read it, or make a copy in which only that field differs.

Mappings, dataclasses, named tuples, pydantic models, msgspec structs, the OpenAPI models of older SDKs and plain
objects, told apart by what they have and never by where they come from.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import ResponseShapeError

ABSENT: Final = object()
"""What stands for a field that is not there, since ``None`` may be a value."""

ADVICE: Final = "pass read= (response -> list of items) and write= (response, items -> response)"


def has(holder: Any, name: str) -> bool:
    """Whether *holder*, which is no mapping, declares an attribute *name*.

    Never asks the object itself: OpenAPI models answer ``None`` to any name, and documents answer with the user's own
    fields.
    """
    kind = type(holder)
    declared = getattr(kind, "attribute_map", None)
    if isinstance(declared, Mapping):
        return name in declared
    return hasattr(kind, name) or name in getattr(holder, "__dict__", ())


def step(holder: Any, name: str) -> Any:
    """The field *name* of *holder*, `ABSENT` where it has none."""
    if isinstance(holder, Mapping):
        return holder.get(name, ABSENT)
    return getattr(holder, name, ABSENT) if has(holder, name) else ABSENT


def follow(holder: Any, path: Sequence[str]) -> Any:
    """What lies at the end of *path*, `ABSENT` where the path breaks off."""
    for name in path:
        if (holder := step(holder, name)) is ABSENT:
            return ABSENT
    return holder


def own_fields(holder: Any) -> Mapping[str, Any]:
    """All fields of an object, by name."""
    kind = type(holder)
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    names = names or getattr(kind, "__dataclass_fields__", None) or getattr(holder, "__dict__", None)
    if names is None:
        return holder.to_dict() if callable(getattr(kind, "to_dict", None)) else {}
    return {name: getattr(holder, name, None) for name in names}


def is_list(value: Any) -> bool:
    """Whether *value* is a sequence of items and not a text."""
    return isinstance(value, (list, tuple)) or (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))
    )


def rebuilt(holder: Any, path: Sequence[str], items: Sequence[Any]) -> Any:
    """A copy of *holder* with *items* at the end of *path*; a tuple there stays a tuple, all else becomes a list."""
    if not path:
        return tuple(items) if type(holder) is tuple else list(items)
    return _with(holder, path[0], rebuilt(step(holder, path[0]), path[1:], items))


def unknown(value: Any, what: str) -> ResponseShapeError:
    """The error for a *value* that cannot be read; names its type and never its content."""
    kind = type(value)
    shape = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ResponseShapeError(f"{what} {shape}; {ADVICE}", shape=shape)


def _with(holder: Any, name: str, value: Any) -> Any:
    """A shallow copy of *holder*, of its own type, whose field *name* is *value*."""
    try:
        return _mapping_with(holder, name, value) if isinstance(holder, Mapping) else _object_with(holder, name, value)
    except ResponseShapeError:
        raise
    except Exception as error:
        raise unknown(holder, f"no copy with another {name!r} could be made of a") from error


def _mapping_with(holder: Mapping[str, Any], name: str, value: Any) -> Mapping[str, Any]:
    if type(holder) is dict or not isinstance(holder, MutableMapping):
        return {**holder, name: value}
    twin = _twin(holder)
    twin[name] = value
    return twin  # type: ignore[no-any-return]


def _object_with(holder: Any, name: str, value: Any) -> Any:
    kind = type(holder)
    if hasattr(kind, "__struct_fields__"):
        return kind(**{field: value if field == name else getattr(holder, field) for field in kind.__struct_fields__})
    if hasattr(kind, "model_copy"):
        return holder.model_copy(update={name: value})
    if isinstance(holder, tuple):
        return holder._replace(**{name: value})  # type: ignore[attr-defined]
    store = getattr(holder, "__dict__", {}).get("_data_store")
    if isinstance(store, dict):
        # OpenAPI models cannot be copied by the copy module, and their constructors check every item's type again.
        twin = object.__new__(kind)
        twin.__dict__.update(holder.__dict__, _data_store={**store, name: value})
        return twin
    twin = _twin(holder)
    object.__setattr__(twin, name, value)  # past the __setattr__ of frozen classes
    return twin


def _twin(holder: Any) -> Any:
    twin = copy.copy(holder)
    if twin is holder:
        raise unknown(holder, "copying gives the very same object of a")
    return twin
