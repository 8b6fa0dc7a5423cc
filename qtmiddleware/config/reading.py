"""Read settings from files, presets and environment variables.

The values are checked later, by `qtmiddleware.config.checking`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_origin

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import errors, introspection
from qtmiddleware.errors import ConfigError

Layer = tuple[str, Mapping[Any, Any]]
"""The settings from one source: its name, and the settings as the user wrote them."""

PRESETS: Final = (
    *("off", "rules", "words", "balanced", "thorough", "auto", "research"),
    *("seed-parity", "strip-as-text"),
)
"""The names of the presets."""

PRESET_ENDING: Final = ".config.json"

# `QTM_CONFIG`, `QTM_MODEL_DIR`, and what Kubernetes sets in pods beside a service named ``qtm``.
_NO_SETTINGS: Final = r"QTM_(CONFIG|MODEL_DIR|PORT(_\w+)?|SERVICE_(HOST|PORT)(_\w+)?)"


def read_layers(source: object, environ: Mapping[str, str], origin: str) -> list[Layer]:
    """Return the settings in *environ* and *source*, the strongest last.

    A path or preset replaces the one that ``QTM_CONFIG`` names; a mapping overrides its values.
    """
    layers = read_environment(environ)
    named = environ.get("QTM_CONFIG")
    if named and not isinstance(source, str | os.PathLike):
        layers.append(read_source(named, origin))
    return layers if source is None else [*layers, read_source(source, origin)]


def read_source(source: object, origin: str) -> Layer:
    """Return the settings in *source*: a mapping, the name of a preset, or the path of a file."""
    if isinstance(source, Mapping):
        return origin, source
    # A word is the name of a preset, never of a file: no folder may replace a preset.
    if isinstance(source, str) and re.fullmatch(r"[\w-]+", source):
        return read_preset(source)
    if isinstance(source, str | os.PathLike):
        return read_config_file(source)
    allowed = "the path of a file, a preset's name, or a mapping of settings"
    raise errors.build_value_error("config", source, allowed, origin)


def read_preset(name: str) -> Layer:
    """Return the settings of the preset *name*. If there is none, the error lists all presets."""
    if name in PRESETS:
        values = read_config_file(find_presets_folder() / (name + PRESET_ENDING))[1]
        return f"preset {name}", values
    allowed = f"one of {', '.join(PRESETS)}"
    if name in TRANSFORMS:
        allowed += f', or {{"transformationType": "{name}"}}'
    raise errors.build_value_error("preset", name, allowed, "preset")


def find_presets_folder() -> Path:
    """Return the folder of presets, next to this module or, in a checkout, ``config``."""
    here = Path(__file__).resolve().parent
    return here / "presets" if (here / "presets").is_dir() else here.parents[1] / "config"


def read_config_file(path: str | os.PathLike[str]) -> Layer:
    """Return the settings in a JSON file."""
    name = os.fsdecode(path)
    # Users may pass the text of a config, which may hold a key, instead of its path.
    if name.lstrip().startswith("{"):
        raise ConfigError("config must be a path, not the text of a config; pass the mapping")
    source = f"file {name if name.isprintable() else ascii(name)}"
    try:
        values = json.loads(Path(name).expanduser().read_text("utf-8-sig"))
        problem = "must hold one JSON object, which begins with { and ends with }"
    except FileNotFoundError:
        values, problem = None, f"does not exist (looked from {Path.cwd()})"
    # A file that is nested too deeply, or `~` without a home, is a `RuntimeError`.
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        values, problem = None, f"cannot be read as JSON: {reason}"
    if isinstance(values, Mapping):
        return source, values
    raise ConfigError(f"{source} {problem}", source=source)


def read_environment(environ: Mapping[str, str]) -> list[Layer]:
    """Return the settings in environment variables, with one layer per variable."""
    prefix = introspection.ENVIRONMENT_PREFIX
    options = introspection.list_all_keys()
    by_name = {key.environment_variable: key for key in options}
    # All names have the same prefix, which would make all of them look similar.
    places = {name.removeprefix(prefix): name for name in (*by_name, "QTM_CONFIG")}
    layers: list[Layer] = []
    for name in sorted(environ):
        if not name.startswith(prefix) or re.fullmatch(_NO_SETTINGS, name):
            continue
        if name not in by_name:
            shown = errors.format_key(name)
            allowed = f"{prefix} is reserved for settings"
            suffix = name.removeprefix(prefix)
            raise errors.build_unknown_error(shown, suffix, "environment", places, allowed)
        value = parse_text(by_name[name].hint, environ[name])
        layers.append((f"environment {name}", nest_value(by_name[name].path, value)))
    return layers


def parse_text(hint: Any, text: str) -> Any:
    """Return the value in *text* for an option whose annotation is *hint*.

    A text that cannot be parsed is returned unchanged. A later check rejects it.
    """
    type_, _, is_nullable = introspection.unwrap(hint)
    if is_nullable and text.strip() in ("", "null"):
        return None
    if get_origin(type_) is tuple and not text.strip().startswith("["):
        return [word for part in text.split(",") if (word := part.strip())]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # The name of a model or a namespace may be 7.
    is_text = type_ is str or bool(introspection.list_choices(hint))
    return text if is_text and not isinstance(value, str) else value


def nest_value(path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return *value* in nested dicts, such as ``{"a": {"b": value}}`` for the path a, b."""
    nested: Any = value
    for name in reversed(path):
        nested = {name: nested}
    return nested  # type: ignore[no-any-return]
