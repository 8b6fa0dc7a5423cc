"""What of a middleware may be pickled: functions, by name or, with cloudpickle, as they are; nothing with keys."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

ADVICE: Final = "create the middleware in the worker, or import there the module that creates it"
# What stands between a pickler and an object's own methods.
_BETWEEN: Final = ("qtmiddleware", "pickle", "_pickle", "copyreg")


def modules_by_value() -> frozenset[str] | None:
    """The modules whose functions the pickler that asks takes as they are, not by name; ``None`` where it cannot.

    To be called while it asks. A pickler does not say who it is, but the frame that called it does:
    Ray, Dask and joblib use cloudpickle or a copy of it. `pickle` itself, and so multiprocessing,
    takes names alone.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    if not any(part.startswith("cloudpickle") for part in _module_of(frame).split(".")):
        return None
    registered = frame.f_globals.get("list_registry_pickle_by_value", frozenset)()
    return frozenset({"__main__", *registered})


def is_in(module: str, modules: frozenset[str]) -> bool:
    """Whether *module* is one of *modules* or lies in one of them."""
    return any(module == it or module.startswith(f"{it}.") for it in modules)


def _module_of(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", ""))


def find_import_name(fn: Any, found: object) -> str | None:
    """The name under which the module of *fn* holds *found*, ``None`` where it holds something else or nothing."""
    name = getattr(fn, "__qualname__", None)
    place: Any = sys.modules.get(str(getattr(fn, "__module__", None)))
    for part in name.split(".") if isinstance(name, str) and isinstance(place, ModuleType) else ():
        place = getattr(place, part, None)
    return name if place is found else None


def check_picklable(what: str, given: Any, *, by_value: bool) -> None:
    """Raise `PicklingError` where *given*, which is *what*, cannot go along.

    That is an object, which may hold a key or a connection, or a function that cloudpickle alone
    could take.
    """
    from pickle import PicklingError

    # A function that was wrapped twice says itself what it takes along.
    if given is None or isinstance(given, str) or hasattr(type(given), "_is_qtmiddleware"):
        return
    if not isinstance(given, FunctionType) and not (
        isinstance(given, BuiltinFunctionType) and isinstance(given.__self__, ModuleType)
    ):
        kind = type(given).__qualname__
        raise PicklingError(
            f"{what} must be a function to be pickled, not {kind}, which may hold a key; {ADVICE}"
        )
    if not by_value and find_import_name(given, given) is None:
        raise PicklingError(
            f"{what} cannot be imported as {given.__module__}.{given.__qualname__}; pickle it with"
            f" cloudpickle, or {ADVICE}"
        )
