"""The config: what is set, where each value came from, and settings overridden for a block of code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.config.errors import bad_value, raise_all
from qtmiddleware.config.keys import (
    ABSENT,
    Key,
    all_keys,
    build_settings,
    get_value,
    merge,
    to_json,
)
from qtmiddleware.config.reading import (
    Layer,
    read_assignments,
    read_environment,
    read_file,
    read_preset,
    read_source,
)
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError

Layers = tuple[Mapping[str, Any], ...]
"""Settings to lay over others, the last on top."""

ASSIGNED: Final = "--set"
"""The origin of what was assigned on the command line."""

_overrides: Final[ContextVar[Layers]] = ContextVar("qtmiddleware_overrides", default=())


@dataclass(frozen=True, slots=True)
class Config:
    """What is set (*settings*) and where each value came from (*origins*, by dotted camelCase key).

    An origin is ``default``, ``environment QTM_TOP_K``, ``file config/x.json``, ``preset auto``,
    ``settings``, ``--set``, ``call``, or what a mapping was given to: ``decorator``,
    ``QueryMiddleware``, ``reload``, else ``config``. Of two that set the same key the stronger
    wins: call, mapping, file or preset, environment, default.
    """

    settings: Settings
    origins: Mapping[str, str]

    def __post_init__(self) -> None:
        origins = dict(self.origins)
        if len(origins) < len(all_keys()):
            # A pickle of an earlier version lacks what was added since.
            origins = dict.fromkeys(known_keys(), "default") | origins
        # A pickle may come to where a package with parts of its own is not installed.
        _ = self.settings.transform, self.settings.fusion.row
        object.__setattr__(self, "origins", MappingProxyType(origins))

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
        """The config that *source* describes, over the environment (*environ*, or the process's own).

        A path is read as a file; a text that names no file may be the name of a preset. A mapping,
        which messages call by its *origin*, lies over the file or preset that ``QTM_CONFIG`` names,
        as does ``None``, which adds nothing. `Settings` are complete: nothing lies under them. A
        `Config` comes back as it is. Raises `ConfigError` with everything that is wrong, a line
        each.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Settings):
            return _default().overridden(asdict(source), origin="settings")
        environ = os.environ if environ is None else environ
        if isinstance(source, str | os.PathLike):
            return _lay_over(_default(), [*read_environment(environ), read_source(source)])
        if source is not None and not isinstance(source, Mapping):
            allowed = "a path, the name of a preset, a mapping, a Config, Settings or None"
            raise bad_value("config", source, allowed, origin)
        named = environ.get("QTM_CONFIG")
        layers = [*read_environment(environ), *([read_source(named)] if named else [])]
        return _lay_over(_default(), layers if source is None else [*layers, (origin, source)])

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
    ) -> Config:
        """The config in a file, over the environment; JSON, or TOML where the name ends in ``.toml``.

        Raises `ConfigError` where the file cannot be read or anything in it is wrong.
        """
        environ = os.environ if environ is None else environ
        return _lay_over(_default(), [*read_environment(environ), read_file(path)])

    @classmethod
    def preset(cls, name: str, *, environ: Mapping[str, str] | None = None) -> Config:
        """The preset called *name*, over the environment: ``auto``, ``combined``, ``rules`` and the others.

        ``qtm config presets`` lists them. Raises `ConfigError` with their names where there is none
        of that name.
        """
        environ = os.environ if environ is None else environ
        return _lay_over(_default(), [*read_environment(environ), read_preset(name)])

    def overridden(self, values: Mapping[str, Any], *, origin: str = "call") -> Config:
        """This config with *values* on top, merged key by key; raises `ConfigError`."""
        if not isinstance(values, Mapping):
            raise bad_value("config", values, "a mapping", origin)
        return _lay_over(self, [(origin, values)])

    def assigned(self, texts: Sequence[str], *, origin: str = ASSIGNED) -> Config:
        """This config with *texts* on top, each ``key=value`` with a dotted key: ``fusion.method=rrf``.

        A value is JSON; a text, a word or a list may stand there without quotes. Raises
        `ConfigError`.
        """
        return _lay_over(self, read_assignments(texts, origin))

    def to_dict(self) -> dict[str, Any]:
        """Every value by its camelCase key, in nested dicts that `json.dumps` takes and `Config.load` reads."""
        found: dict[str, Any] = {}
        for name, value, _ in self.rows():
            *groups, last = name.split(".")
            holder = found
            for group in groups:
                holder = holder.setdefault(group, {})
            holder[last] = value
        return found

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Every option as (dotted camelCase key, value ready for JSON, origin)."""
        values = asdict(self.settings)
        return (
            (key.name, to_json(get_value(values, key)), self.origins[key.name])
            for key in all_keys()
        )


def current_overrides() -> Layers:
    """Returns what the `override` blocks around the caller set, the outermost first."""
    return _overrides.get()


@contextmanager
def override(values: Mapping[str, Any] | str | os.PathLike[str]) -> Iterator[None]:
    """Within this block every wrapped function uses *values* over its own settings; inner blocks win.

    They are a mapping, or the path of a file or the name of a preset, of which nothing but what
    stands there counts. Raises `ConfigError` for another kind of value and for what cannot be read.
    The values are checked at the first call, which raises `ConfigError` where they are impossible.
    """
    if isinstance(values, str | os.PathLike):
        _, values = read_source(values)
    if not isinstance(values, Mapping):
        raise bad_value(
            "override", values, "a mapping of settings, a path or the name of a preset", "override"
        )
    # A copy, so that what the caller changes in it later has no effect.
    token = _overrides.set((*_overrides.get(), deepcopy(dict(values))))
    try:
        yield
    finally:
        _overrides.reset(token)


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a config file, with every key's meaning, default and limits."""
    from qtmiddleware.config import model

    return model.json_schema()


def known_keys() -> tuple[str, ...]:
    """Every key, dotted and in camelCase: ``topK``, ``fusion.rrfK``."""
    return tuple(key.name for key in all_keys())


def markdown_table() -> str:
    """The reference of all keys as Markdown: a table for the top level and one for each group."""
    groups: dict[str, list[Key]] = {}
    for key in all_keys():
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    return "\n".join(_markdown_section(group, keys) for group, keys in groups.items())


def _markdown_section(group: str, keys: Sequence[Key]) -> str:
    rows = [("Key", "Default", "Allowed", "Meaning", "Environment"), ("---",) * 5]
    for key in keys:
        default = json.dumps(to_json(key.default))
        rows.append(
            (f"`{key.name}`", f"`{default}`", key.allowed, key.description, f"`{key.environment}`")
        )
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"### {group or 'Top level'}", "", *lines, ""])


def _default() -> Config:
    return Config(Settings(), dict.fromkeys(known_keys(), "default"))


def _lay_over(base: Config, layers: Sequence[Layer]) -> Config:
    """*base* under *layers*, the strongest last. All layers are checked before anything is raised."""
    if not any(values for _, values in layers):
        return base
    from qtmiddleware.config.model import check

    values, origins = asdict(base.settings), dict(base.origins)
    errors: list[ConfigError] = []
    own = _name_transforms(base, layers)
    for origin, written in layers:
        found, wrongs = check(written, origin, own)
        errors.extend(wrongs)
        origins.update(
            (key.name, origin) for key in all_keys() if get_value(found, key) is not ABSENT
        )
        # A transform is defined in one piece: the fields of another layer's are none of it.
        found["transforms"] = {**values["transforms"], **found.get("transforms", {})}
        values = merge({**values, "transforms": {}}, found)
    raise_all(errors)
    settings: Settings = build_settings(Settings, values)
    raise_all(list(_find_conflicts(settings, origins)))
    return Config(settings, origins)


def _name_transforms(base: Config, layers: Sequence[Layer]) -> tuple[str, ...]:
    """The names of all transforms that *base* and *layers* define; a layer may use what another one defines."""
    given = [written.get("transforms") for _, written in layers]
    names = [
        name for definitions in given if isinstance(definitions, Mapping) for name in definitions
    ]
    return tuple(
        dict.fromkeys(
            [*base.settings.transforms, *(name for name in names if isinstance(name, str))]
        )
    )


def _find_conflicts(settings: Settings, origins: Mapping[str, str]) -> Iterator[ConfigError]:
    """The values that are allowed each for itself and not together, and what a single limit cannot say."""
    if settings.chunk_overlap >= settings.chunk_size:
        limit = f"less than chunkSize, which is {settings.chunk_size} ({origins['chunkSize']})"
        yield bad_value("chunkOverlap", settings.chunk_overlap, limit, origins["chunkOverlap"])
    weights = asdict(settings.fusion.weights)
    if not any(weights.values()):
        source = origins["fusion.weights.original"]
        line = f"at least one of fusion.weights must be above 0 ({source})"
        yield ConfigError(
            line,
            path="fusion.weights",
            value=weights,
            allowed="at least one above 0",
            source=source,
        )
    hybrid = settings.hybrid
    if hybrid.enabled and not (hybrid.vector_weight or hybrid.bm25_weight):
        yield bad_value(
            "hybrid.vectorWeight",
            0,
            "above 0 if hybrid.bm25Weight is 0",
            origins["hybrid.vectorWeight"],
        )
    store = settings.store
    if store.kind == "pinecone" and not (store.index or store.host):
        yield bad_value(
            "store.index",
            None,
            "the name of a Pinecone index, or store.host",
            origins["store.index"],
        )
    if store.integrated and (store.sparse_index or store.sparse_host):
        yield bad_value(
            "store.integrated",
            True,
            "false if a sparse index is named",
            origins["store.integrated"],
        )
    address = settings.llm.base_url
    if address is not None and (
        not address.lower().startswith(("http://", "https://")) or _may_hold_a_key(address)
    ):
        allowed = (
            "an address that begins with http:// or https://, without a user name, password or"
            " query"
        )
        yield bad_value("llm.baseUrl", address, allowed, origins["llm.baseUrl"])
    for key, host in (("store.host", store.host), ("store.sparseHost", store.sparse_host)):
        if host is not None and _may_hold_a_key(host):
            yield bad_value(
                key,
                host,
                "the host of an index, without a user name, password or query",
                origins[key],
            )
    if settings.cache.redis_url is not None:
        yield from _check_redis(settings.cache.redis_url, origins["cache.redisUrl"])


def _may_hold_a_key(address: str) -> bool:
    """Whether *address* holds a name and password, or a query, in which some services are given their keys."""
    return any(mark in address for mark in "@?#")


def _check_redis(address: str, source: str) -> Iterator[ConfigError]:
    from qtmiddleware.config.redis_address import ALLOWED, RedisAddress

    try:
        RedisAddress(address)
    except ConfigError as error:
        # It says what is wrong without the address, which may hold a password.
        said = f"{error} ({source})"
        yield ConfigError(said, path="cache.redisUrl", allowed=ALLOWED, source=source)
