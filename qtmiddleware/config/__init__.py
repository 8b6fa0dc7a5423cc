"""Load the config from files, presets, mappings and environment variables.

`Config` holds all settings and the origin of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from qtmiddleware.config.settings import Settings

if TYPE_CHECKING:
    from qtmiddleware.config.reading import Layer

Layers = tuple[Mapping[str, Any] | str, ...]
"""Mappings of settings, or names of presets. A later one overrides an earlier one."""


@dataclass(frozen=True)
class Config:
    """All settings, and the origin of each value.

    If several sources set the same key, the first of these wins: call, mapping, file or preset,
    environment, default.

    Attributes:
        settings: the values.
        sources: the source of each value that is set, by its path of field names.
    """

    settings: Settings = field(default_factory=Settings)
    sources: Mapping[tuple[Any, ...], str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        origin: str = "config",
    ) -> Config:
        """Load the config from *source*. Its values override the environment variables.

        Args:
            source: One of these:

                - The path of a file, or the name of a preset. A word such as ``auto`` is always a
                  preset; write ``./auto`` for a file. ``qtm config init --help`` lists them.
                - A mapping. Its values override the file or preset that ``QTM_CONFIG`` names.
                - ``None``. Only the environment variables and ``QTM_CONFIG`` are read.
                - `Settings`. The environment variables are not read.
                - A `Config`, which is returned unchanged.
            environ: The environment variables; by default those of the process.
            origin: The name for a mapping in error messages and in `rows`.

        Raises:
            ConfigError: A setting is wrong, a file cannot be read, or there is no such preset. The
                message has one line per wrong setting.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Settings):
            return cls()._override([("settings", asdict(source))])
        environ = os.environ if environ is None else environ
        # Without values to check, no part of the config need be imported.
        if source is None and not any(name.startswith("QTM_") for name in environ):
            return cls()
        from qtmiddleware.config.reading import read_layers

        return cls()._override(read_layers(source, environ, origin))

    def overridden(
        self, *layers: Mapping[str, Any] | str | os.PathLike[str], origin: str = "call"
    ) -> Config:
        """Return a copy of this config with other values. All other keys keep their values.

        Each of *layers* is a mapping, the name of a preset or the path of a file. A later one
        overrides an earlier one.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        from qtmiddleware.config.reading import read_source

        return self._override([read_source(layer, origin) for layer in layers])

    def _override(self, layers: Sequence[Layer]) -> Config:
        if not any(values for _, values in layers):
            return self
        from qtmiddleware.config.checking import check_layers

        return Config(*check_layers(self.settings, self.sources, layers))

    def to_dict(self, *, with_defaults: bool = True) -> dict[str, Any]:
        """Return the values as nested dicts with camelCase keys, ready for JSON.

        `Config.load` accepts the result. Without *with_defaults*, only keys that are set.
        """
        tree: dict[str, Any] = {}
        for name, value, origin in self.rows():
            if with_defaults or origin != "default":
                *groups, option = name.split(".")
                holder = tree.setdefault(groups[0], {}) if groups else tree
                holder[option] = value
        return tree

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Iterate over all options as (key, value, origin). Keys are dotted, in camelCase.

        An origin is, for example, ``default``, ``environment QTM_TOP_K``, ``file config/x.json``,
        ``preset auto``, ``--set`` or ``call``. The origin of a mapping names its receiver:
        ``decorator``, ``QueryMiddleware``, ``reload`` or ``config``.
        """
        from qtmiddleware.config.introspection import convert_to_json, list_all_keys

        for key in list_all_keys():
            value = convert_to_json(key.read_value(self.settings), key.hint)
            yield key.name, value, self.sources.get(key.path, "default")
