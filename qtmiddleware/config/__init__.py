"""Load the config from files, presets, mappings and environment variables.

`Config` holds all settings and the origin of each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.config.settings import Settings

if TYPE_CHECKING:
    from qtmiddleware.config.reading import Layer

Layers = tuple[Mapping[str, Any] | str, ...]
"""Mappings of settings, or names of presets. A later one overrides an earlier one."""

ASSIGNED: Final = "--set"
"""The origin of values from the command-line option ``--set``."""


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

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each value, by dotted camelCase key.

        An origin is, for example, ``default``, ``environment QTM_TOP_K``, ``file config/x.json``,
        ``preset auto``, ``--set`` or ``call``. The origin of a mapping names its receiver:
        ``decorator``, ``QueryMiddleware``, ``reload`` or ``config``.
        """
        return {name: origin for name, _, origin in self.rows()}

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

                - The path of a file, or the name of a preset. If both exist, the file is read.
                - A mapping. Its values override the file or preset that ``QTM_CONFIG`` names.
                - ``None``. Only the environment variables and ``QTM_CONFIG`` are read.
                - `Settings`. The environment variables are not read.
                - A `Config`, which is returned unchanged.
            environ: The environment variables; by default those of the process.
            origin: The name for a mapping in error messages and in `origins`.

        Raises:
            ConfigError: A setting is wrong, or a file cannot be read. The message has one line per
                error.
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

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Load the config from a JSON file. Its values override the environment variables.

        Raises:
            ConfigError: The file cannot be read, or a setting is wrong.
        """
        from pathlib import Path

        # A word in a `Path` is never the name of a preset.
        return cls.load(Path(path), environ=environ)

    @classmethod
    def preset(cls, name: str, *, environ: Mapping[str, str] | None = None) -> Config:
        """Load the preset *name*. Its values override the environment variables.

        ``qtm config presets`` lists the presets, such as ``auto``, ``balanced`` and ``rules``.

        Raises:
            ConfigError: There is no such preset. The message lists all presets.
        """
        from qtmiddleware.config.reading import read_environment, read_preset

        environ = os.environ if environ is None else environ
        return cls()._override([*read_environment(environ), read_preset(name)])

    def overridden(self, values: Mapping[str, Any] | str, *, origin: str = "call") -> Config:
        """Return a copy of this config with new *values*. All other keys keep their values.

        *values* are a mapping or the name of a preset.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        from qtmiddleware.config.reading import read_override

        return self._override([read_override(values, origin)])

    def assigned(self, texts: Sequence[str], *, origin: str = ASSIGNED) -> Config:
        """Return a copy of this config with assignments applied, such as ``fusion.method=rrf``.

        The key is dotted, and the value is JSON. Strings and lists of strings may be written
        without quotation marks.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        from qtmiddleware.config.reading import read_assignments

        return self._override(read_assignments(texts, origin))

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
        """Iterate over all options as (key, value, origin). Keys are dotted, in camelCase."""
        from qtmiddleware.config.keys import convert_to_json, list_all_keys

        for key in list_all_keys():
            value = convert_to_json(key.read_value(self.settings), key.hint)
            yield key.name, value, self.sources.get(key.path, "default")
