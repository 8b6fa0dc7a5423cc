"""Keep moved modules importable by their old names.

Pickles contain old names, and `docs/stability.md` promises to keep some of them. An import by an
old name returns the same module object as an import by the new name.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED: Final = {
    "bulk": "kit.bulk",
    "cli": "kit.cli",
    "demo": "kit.demo",
    "evaluation": "kit.evaluation",
    "judging": "kit.evaluation.judging",
    "playground": "kit.playground",
    "providers.embedders.minilm": "kit.embedding.minilm",
    "providers.stores": "kit.stores",
    "rag": "kit.index",
    "rag.answering": "answering",
    "rag.chunking": "kit.documents.chunking",
    "rag.documents": "kit.documents",
    "reporting": "kit.evaluation.reporting",
    "runtime.engines": "kit.engines",
    "testsets": "kit.evaluation.testsets",
}
"""Maps the old name of each moved module to its new name, both without ``qtmiddleware.``.

The submodules of a package have moved with the package.
"""

_PACKAGE: Final = "qtmiddleware."


def find_new_module_name(old_name: str) -> str | None:
    """Return the new name of the module whose old name is *old_name*.

    Returns ``None`` if *old_name* is not the old name of a moved module.
    """
    if not old_name.startswith(_PACKAGE):
        return None
    head, submodules = old_name.removeprefix(_PACKAGE), ""
    while head and head not in MOVED:
        head, _, last_name = head.rpartition(".")
        submodules = f".{last_name}{submodules}"
    return f"{_PACKAGE}{MOVED[head]}{submodules}" if head else None


class MovedModules:
    """An import finder that finds moved modules by their old names.

    This finder must come before Python's own finders, which would load a submodule of a moved
    package a second time.
    """

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004
        target: ModuleType | None = None,  # noqa: ARG004
    ) -> ModuleSpec | None:
        """Return an import spec for *name*, the old name of a moved module.

        Returns ``None`` if *name* is not the old name of a moved module.
        """
        new_name = find_new_module_name(name)
        if new_name is None:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        spec = find_spec(new_name)
        if spec is None:
            return None
        # `_AliasLoader` has a loader's methods without its base class, which takes milliseconds to
        # import.
        alias: Any = _AliasLoader(new_name)
        return ModuleSpec(
            name, alias, origin=spec.origin, is_package=spec.submodule_search_locations is not None
        )


class _AliasLoader:
    """An import loader that returns the module *new_name* when its old name is imported."""

    def __init__(self, new_name: str) -> None:
        self._new_name = new_name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module by its new name and return it."""
        module = import_module(self._new_name)
        self._spec = module.__spec__
        # Register the submodules under their old names too. If Python loaded them again, it would
        # set each one as an attribute of its package, but `evaluation.compare` must stay a
        # function.
        for name, loaded in list(sys.modules.items()):
            if name.startswith(f"{self._new_name}."):
                sys.modules.setdefault(f"{spec.name}{name.removeprefix(self._new_name)}", loaded)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the import spec of *module*, because the import by the old name replaced it."""
        module.__spec__ = self._spec


def install_import_finder() -> None:
    """Make the moved modules importable by their old names. A second call changes nothing."""
    if MovedModules not in sys.meta_path:
        sys.meta_path.insert(0, MovedModules)
