"""Check whether the arguments of a middleware or of a wrapped function can be pickled.

Functions are pickled by name or, with cloudpickle, by value. Other objects are rejected, because
they may hold API keys.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

ADVICE: Final = "create the middleware in the worker, or import there the module that creates it"
# The packages whose frames lie between a pickler's caller and an object's own methods.
_PICKLING_PACKAGES: Final = ("qtmiddleware", "pickle", "_pickle", "copyreg")


def find_modules_pickled_by_value() -> frozenset[str] | None:
    """Return the modules whose functions the running pickler pickles by value.

    Returns ``None`` if the pickler pickles all functions by name, as `pickle` and
    `multiprocessing` do.

    Call this function while an object is being pickled. The module of the calling frame tells
    whether the pickler is cloudpickle. Ray, Dask and joblib also use cloudpickle.
    """
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and _read_module_name(frame).partition(".")[0] in _PICKLING_PACKAGES
    ):
        frame = frame.f_back
    # Libraries bundle cloudpickle under their own names, such as `ray.cloudpickle`.
    if not any(part.startswith("cloudpickle") for part in _read_module_name(frame).split(".")):
        return None
    registered = frame.f_globals.get("list_registry_pickle_by_value", frozenset)()
    return frozenset({"__main__", *registered})


def is_in_modules(module_name: str, modules: frozenset[str]) -> bool:
    """Return whether *module_name* or one of its parent packages is in *modules*."""
    return any(module_name == parent or module_name.startswith(f"{parent}.") for parent in modules)


def _read_module_name(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def find_import_name(fn: Any, expected_object: object) -> str | None:
    """Return the name by which *fn* can be imported, or ``None`` if there is none.

    The name is the qualified name of *fn*. In the module of *fn*, the name must refer to
    *expected_object*.
    """
    name = getattr(fn, "__qualname__", None)
    container: Any = sys.modules.get(str(getattr(fn, "__module__", None)))
    for part in (
        name.split(".") if isinstance(name, str) and isinstance(container, ModuleType) else ()
    ):
        container = getattr(container, part, None)
    return name if container is expected_object else None


def check_picklable(label: str, argument: Any, *, can_pickle_by_value: bool) -> None:
    """Raise `PicklingError` if *argument* cannot be pickled.

    Functions, strings and ``None`` can be pickled. Other objects may hold a key or a connection.

    Args:
        label: What the error message calls *argument*.
        argument: The object to check.
        can_pickle_by_value: Whether the pickler accepts functions that cannot be imported.
    """
    from pickle import PicklingError

    # A function that was wrapped twice checks its own parts when it is pickled.
    if argument is None or isinstance(argument, str) or hasattr(type(argument), "_is_qtmiddleware"):
        return
    if not isinstance(argument, FunctionType) and not (
        isinstance(argument, BuiltinFunctionType) and isinstance(argument.__self__, ModuleType)
    ):
        kind = type(argument).__qualname__
        raise PicklingError(
            f"{label} must be a function to be pickled, not {kind}, which may hold a key; {ADVICE}"
        )
    if not can_pickle_by_value and find_import_name(argument, argument) is None:
        raise PicklingError(
            f"{label} cannot be imported as {argument.__module__}.{argument.__qualname__}; pickle"
            f" it with cloudpickle, or {ADVICE}"
        )
