"""Load the config from files, presets, mappings and environment variables.

`Config` holds all settings and the origin of each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.config.errors import build_value_error, raise_joined_error
from qtmiddleware.config.keys import (
    ABSENT,
    Key,
    build_settings,
    get_value,
    list_all_keys,
    merge_settings,
    nest_values,
)
from qtmiddleware.config.reading import (
    Layer,
    read_assignments,
    read_config_file,
    read_environment,
    read_file_or_preset,
    read_preset,
)
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError

Layers = tuple[Mapping[str, Any] | str, ...]
"""Mappings of settings, or names of presets. A later one overrides an earlier one."""

ASSIGNED: Final = "--set"
"""The origin of values from the command-line option ``--set``."""


@dataclass(frozen=True, slots=True)
class Config:
    """All settings, and the origin of each value.

    If several sources set the same key, the first of these wins: call, mapping, file or preset,
    environment, default.

    Attributes:
        settings: the values.
        origins: the origin of each value, by dotted camelCase key, such as ``default``,
            ``environment QTM_TOP_K``, ``file config/x.json``, ``preset auto``, ``--set`` or
            ``call``. The origin of a mapping names its receiver: ``decorator``,
            ``QueryMiddleware``, ``reload`` or ``config``.
    """

    settings: Settings
    origins: Mapping[str, str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origins", MappingProxyType(dict(self.origins)))

    def __reduce__(self) -> tuple[type[Config], tuple[Settings, dict[str, str]]]:
        return Config, (self.settings, dict(self.origins))

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
            return _build_default_config().overridden(asdict(source), origin="settings")
        environ = os.environ if environ is None else environ
        if isinstance(source, str | os.PathLike):
            return _apply_layers(
                _build_default_config(), [*read_environment(environ), read_file_or_preset(source)]
            )
        if source is not None and not isinstance(source, Mapping):
            allowed = "a path, the name of a preset, a mapping, a Config, Settings or None"
            raise build_value_error("config", source, allowed, origin)
        # An explicit path or preset replaces QTM_CONFIG. A mapping only overrides its values.
        config_name = environ.get("QTM_CONFIG")
        layers = [
            *read_environment(environ),
            *([read_file_or_preset(config_name)] if config_name else []),
        ]
        return _apply_layers(
            _build_default_config(), layers if source is None else [*layers, (origin, source)]
        )

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Load the config from a file. Its values override the environment variables.

        The file is JSON, or TOML if its name ends in ``.toml``.

        Raises:
            ConfigError: The file cannot be read, or a setting is wrong.
        """
        environ = os.environ if environ is None else environ
        return _apply_layers(
            _build_default_config(), [*read_environment(environ), read_config_file(path)]
        )

    @classmethod
    def preset(cls, name: str, *, environ: Mapping[str, str] | None = None) -> Config:
        """Load the preset *name*. Its values override the environment variables.

        ``qtm config presets`` lists the presets, such as ``auto``, ``balanced`` and ``rules``.

        Raises:
            ConfigError: There is no such preset. The message lists all presets.
        """
        environ = os.environ if environ is None else environ
        return _apply_layers(
            _build_default_config(), [*read_environment(environ), read_preset(name)]
        )

    def overridden(self, values: Mapping[str, Any], *, origin: str = "call") -> Config:
        """Return a copy of this config with new *values*. All other keys keep their values.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        if not isinstance(values, Mapping):
            raise build_value_error("config", values, "a mapping", origin)
        return _apply_layers(self, [(origin, values)])

    def assigned(self, texts: Sequence[str], *, origin: str = ASSIGNED) -> Config:
        """Return a copy of this config with assignments applied, such as ``fusion.method=rrf``.

        The key is dotted, and the value is JSON. Strings and lists of strings may be written
        without quotation marks.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        return _apply_layers(self, read_assignments(texts, origin))

    def to_dict(self) -> dict[str, Any]:
        """Return all values as nested dicts with camelCase keys, ready for JSON.

        `Config.load` accepts the result.
        """
        return nest_values({name: value for name, value, _ in self.rows()})

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Iterate over all options as (key, value, origin). Keys are dotted, in camelCase."""
        values = asdict(self.settings)
        return (
            (key.name, key.convert_to_json(get_value(values, key)), self.origins[key.name])
            for key in list_all_keys()
        )


def build_json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a config file.

    The schema describes every key with its default and limits, for editors and validators.
    """
    from qtmiddleware.config import model

    return model.build_json_schema()


def list_key_names() -> tuple[str, ...]:
    """Return all keys, dotted and in camelCase, such as ``topK`` and ``fusion.rrfK``."""
    return tuple(key.name for key in list_all_keys())


def build_markdown_reference() -> str:
    """Return the reference of all keys as Markdown, with one table per group of settings."""
    groups: dict[str, list[Key]] = {}
    for key in list_all_keys():
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    return "\n".join(_format_reference_table(group, keys) for group, keys in groups.items())


def _format_reference_table(group_name: str, keys: Sequence[Key]) -> str:
    rows = [("Key", "Default", "Allowed", "Meaning", "Environment"), ("---",) * 5]
    for key in keys:
        default = json.dumps(key.convert_to_json(key.default))
        rows.append(
            (
                f"`{key.name}`",
                f"`{default}`",
                key.allowed,
                key.description,
                f"`{key.environment_variable}`",
            )
        )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"### {group_name or 'Top level'}", "", *lines, ""])


def _build_default_config() -> Config:
    return Config(Settings(), dict.fromkeys(list_key_names(), "default"))


def _apply_layers(base: Config, layers: Sequence[Layer]) -> Config:
    """Return a copy of *base* with the settings in *layers* applied.

    A layer holds the settings from one source. A later layer overrides an earlier layer.

    Raises:
        ConfigError: A setting is wrong. The message has one line per error in any layer.
    """
    # Without values to check, pydantic need not be imported.
    if not any(values for _, values in layers):
        return base
    from qtmiddleware.config.model import check_settings_layer

    values, origins = asdict(base.settings), dict(base.origins)
    errors: list[ConfigError] = []
    user_transforms = _collect_transform_names(base, layers)
    for origin, layer_values in layers:
        layer_settings, layer_errors = check_settings_layer(layer_values, origin, user_transforms)
        errors.extend(layer_errors)
        origins.update(
            (key.name, origin)
            for key in list_all_keys()
            if get_value(layer_settings, key) is not ABSENT
        )
        # A transform is defined as a whole: its fields are not merged with the fields of another
        # layer's definition.
        layer_settings["transforms"] = {
            **values["transforms"],
            **layer_settings.get("transforms", {}),
        }
        values = merge_settings({**values, "transforms": {}}, layer_settings)
    # Conflicts are checked last, because only the merged values show them.
    raise_joined_error(errors)
    settings: Settings = build_settings(Settings, values)
    raise_joined_error(list(_find_conflict_errors(settings, origins)))
    return Config(settings, origins)


def _collect_transform_names(base: Config, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the names of all user-defined transforms in *base* and *layers*.

    All layers are searched, because a layer may use a transform that another layer defines.
    """
    definitions_per_layer = [layer_values.get("transforms") for _, layer_values in layers]
    names = [
        name
        for definitions in definitions_per_layer
        if isinstance(definitions, Mapping)
        for name in definitions
    ]
    return tuple(
        dict.fromkeys(
            [*base.settings.transforms, *(name for name in names if isinstance(name, str))]
        )
    )


def _find_conflict_errors(settings: Settings, origins: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield an error for each conflict between two settings, and for each invalid address."""
    if settings.chunk_overlap >= settings.chunk_size:
        limit = f"less than chunkSize, which is {settings.chunk_size} ({origins['chunkSize']})"
        yield build_value_error(
            "chunkOverlap", settings.chunk_overlap, limit, origins["chunkOverlap"]
        )
    # Without any weight, no variant could contribute a passage.
    weights = settings.fusion.weights
    if not any(weights.values()):
        source = origins["fusion.weights"]
        line = f"at least one of fusion.weights must be above 0 ({source})"
        yield ConfigError(
            line,
            path="fusion.weights",
            value=dict(weights),
            allowed="at least one above 0",
            source=source,
        )
    hybrid = settings.hybrid
    if hybrid.enabled and not (hybrid.vector_weight or hybrid.bm25_weight):
        yield build_value_error(
            "hybrid.vectorWeight",
            0,
            "above 0 if hybrid.bm25Weight is 0",
            origins["hybrid.vectorWeight"],
        )
    store = settings.store
    if store.kind == "pinecone" and not (store.index or store.host):
        yield build_value_error(
            "store.index",
            None,
            "the name of a Pinecone index, or store.host",
            origins["store.index"],
        )
    address = settings.llm.base_url
    if address is not None and (
        not address.lower().startswith(("http://", "https://")) or _may_contain_secret(address)
    ):
        allowed = (
            "an address that begins with http:// or https://, without a user name, password or"
            " query"
        )
        yield build_value_error("llm.baseUrl", address, allowed, origins["llm.baseUrl"])
    if store.host is not None and _may_contain_secret(store.host):
        yield build_value_error(
            "store.host",
            store.host,
            "the host of an index, without a user name, password or query",
            origins["store.host"],
        )


def _may_contain_secret(address: str) -> bool:
    """Return whether *address* has a user name, password, query or fragment.

    Some services expect their keys in the query.
    """
    return any(mark in address for mark in "@?#")
