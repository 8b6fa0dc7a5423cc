"""Read settings from files, presets, environment variables and ``key=value`` assignments.

The values are checked later, by `qtmiddleware.config.model`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import (
    KUBERNETES_VARIABLES,
    REPEATED,
    RESERVED,
    build_unknown_variable_error,
    find_nearest_name,
    fold_name,
    format_value,
    raise_joined_error,
)
from qtmiddleware.config.keys import ENVIRONMENT_PREFIX, Key, list_all_keys, to_camel_case
from qtmiddleware.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Layer = tuple[str, Mapping[Any, Any]]
"""The settings from one source: its name, and the settings as the user wrote them."""

MOST_BYTES: Final = 10_000_000
"""The largest size of a config file, in bytes."""

PRESETS: Final = (
    "off",
    "rules",
    "words",
    "balanced",
    "thorough",
    "auto",
    "research",
    "seed-parity",
    "strip-as-text",
)
"""The names of the presets."""

PRESET_ENDING: Final = ".config.json"

_BOOLEANS: Final = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)


def read_file_or_preset(source: str | os.PathLike[str]) -> Layer:
    """Return the settings in a file or a preset. If both exist, read the file.

    Raises:
        ConfigError: There is neither such a file nor such a preset, or the file cannot be read.
    """
    from pathlib import Path

    name = _find_preset_name(source) if isinstance(source, str) else None
    return (
        read_config_file(source)
        if name is None or Path(os.fspath(source)).is_file()
        else read_preset(name)
    )


def read_preset(name: str) -> Layer:
    """Return the settings of the preset *name*.

    Raises:
        ConfigError: There is no such preset. The message lists all presets.
    """
    preset = _find_preset_name(name)
    if preset is None:
        raise ConfigError(
            f"there is no preset {format_value(name)}; {_suggest_preset(name)}the presets are"
            f" {', '.join(PRESETS)}",
            path="preset",
            allowed="one of " + ", ".join(PRESETS),
            source="preset",
        )
    file = find_presets_folder() / f"{preset}{PRESET_ENDING}"
    return f"preset {preset}", read_config_file(file)[1]


def find_presets_folder() -> Path:
    """Return the folder that contains the preset files and ``schema.json``.

    This is ``presets`` next to this module or, in a checkout, ``config/``.
    """
    from pathlib import Path

    here = Path(__file__).resolve().parent
    return here / "presets" if (here / "presets").is_dir() else here.parents[1] / "config"


def _find_preset_name(written_name: object) -> str | None:
    """Return the preset that *written_name* means, ignoring case, dashes and underscores.

    Returns ``None`` if there is no such preset.
    """
    folded_name = fold_name(written_name) if isinstance(written_name, str) else None
    return next((preset for preset in PRESETS if fold_name(preset) == folded_name), None)


def _suggest_preset(name: object) -> str:
    """Return what *name* may mean: the most similar preset or transformation."""
    nearest = find_nearest_name(name, (*PRESETS, *TRANSFORMS)) if isinstance(name, str) else None
    if nearest in TRANSFORMS:
        return f'for this transformation set {{"transformationType": "{nearest}"}}; '
    return f"did you mean {nearest}? " if nearest else ""


def read_config_file(path: str | os.PathLike[str]) -> Layer:
    """Return the settings in a file: TOML if the file's name ends in ``.toml``, else JSON.

    Raises:
        ConfigError: The file cannot be read, is not valid JSON or TOML, or contains no object.
    """
    name = os.fsdecode(path)
    source = f"file {name if name.isprintable() else ascii(name)}"
    text = _read_config_text(name, source)
    values = (
        _parse_toml(text, source) if name.lower().endswith(".toml") else _parse_json(text, source)
    )
    if not isinstance(values, Mapping):
        raise _build_file_error(
            source, "must hold one JSON object, which begins with { and ends with }"
        )
    return source, values


def read_environment(environ: Mapping[str, str]) -> list[Layer]:
    """Return the settings in environment variables, with one layer per variable.

    Raises:
        ConfigError: The name of a variable begins with ``QTM_`` but is not a setting.
    """
    by_name = {key.environment_variable: key for key in list_all_keys()}
    names = sorted(name for name in environ if _is_setting_name(name))
    raise_joined_error(
        [build_unknown_variable_error(name, by_name) for name in names if name not in by_name]
    )
    return [
        (
            f"environment {name}",
            _nest_value(by_name[name].path, _parse_variable(by_name[name], environ[name])),
        )
        for name in names
    ]


def read_assignments(assignments: Sequence[str], source: str) -> list[Layer]:
    """Return the settings in ``key=value`` assignments, with one layer per assignment.

    Args:
        assignments: The assignments, with dotted keys. The values are JSON. Strings and lists of
            strings may be written without quotation marks, as in environment variables.
        source: The name for the assignments in error messages.

    Raises:
        ConfigError: A text does not have the form ``key=value``.
    """
    by_name = {key.name: key for key in list_all_keys()}
    layers: list[Layer] = []
    for text in assignments:
        name, equals, value = text.partition("=")
        path = [part.strip() for part in name.split(".")]
        if not (equals and all(path)):
            message = (
                f"{format_value(text)} must have the form key=value ({source}), such as topK=8 or"
                " fusion.method=rrf"
            )
            raise ConfigError(message, source=source)
        camel_path = list(map(to_camel_case, path))
        key, mapping = by_name.get(".".join(camel_path)), by_name.get(".".join(camel_path[:-1]))
        if key is not None:
            parsed = _parse_assignment(key, value)
        else:
            parsed = _parse_json_or_text(value)
            if mapping is not None and mapping.kind == "object" and not isinstance(parsed, str):
                parsed = value
        # An unknown key is reported later, together with all other errors.
        layers.append((source, _nest_value(path, parsed)))
    return layers


def _parse_assignment(key: Key, value_text: str) -> Any:
    """Return the value for *key* from the right-hand side of an assignment.

    A JSON string is decoded, and ``null`` becomes ``None`` if the key may be null. Any other text
    is parsed like the value of an environment variable.
    """
    value = _parse_json_or_text(value_text)
    is_meant = (isinstance(value, str) and value != value_text) or (
        value is None and key.is_nullable
    )
    return value if is_meant else _parse_variable(key, value_text)


def _is_setting_name(name: str) -> bool:
    """Return whether the environment variable *name* must be a setting.

    This is true for names that begin with ``QTM_``, except reserved names and variables that
    Kubernetes sets.
    """
    return (
        name.startswith(ENVIRONMENT_PREFIX)
        and name not in RESERVED
        and not re.fullmatch(KUBERNETES_VARIABLES, name)
    )


def _parse_variable(key: Key, value_text: str) -> Any:
    """Return the value for *key* from the text of an environment variable.

    A text that cannot be parsed is returned unchanged. A later check rejects it.
    """
    if key.is_nullable and not value_text.strip():
        return None
    match key.kind:
        case "str" | "choice":
            return value_text
        case "bool":
            return _BOOLEANS.get(value_text.strip().lower(), value_text)
        case "list" if not value_text.lstrip().startswith("["):
            return [word for part in value_text.split(",") if (word := part.strip())]
        # JSON does not allow a number such as .5.
        case "float" if re.fullmatch(r"\s*\.\d{1,20}\s*", value_text):
            return float(value_text)
        case _:
            return _parse_json_or_text(value_text)


def _nest_value(path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return *value* in nested dicts, such as ``{"a": {"b": value}}`` for the path a, b."""
    for name in reversed(path):
        value = {name: value}
    holder: dict[str, Any] = value
    return holder


def _parse_json_or_text(text: str) -> Any:
    """Return the value of the JSON *text*, or *text* itself if *text* is not JSON."""
    try:
        return json.loads(text, object_pairs_hook=_mark_repeated_keys)
    except (ValueError, RecursionError):
        return text


def _read_config_text(file_name: str, source: str) -> str:
    """Return the text of the config file *file_name*.

    Raises:
        ConfigError: The file cannot be read. The message says how to fix the problem.
    """
    # Users may pass the text of a config instead of its path.
    if file_name.lstrip().startswith("{"):
        raise _build_file_error(
            "config",
            "must be a path, not the text of a config; parse the text and pass the mapping",
        )
    from pathlib import Path

    try:
        with Path(os.path.expanduser(file_name)).open("rb") as file:  # noqa: PTH111 - pathlib's own fails without a home
            # A device may be endless, so the read has a limit.
            content = file.read(MOST_BYTES + 1)
        # Some editors on Windows write a byte order mark.
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        is_word = re.fullmatch(r"[\w-]+", file_name) is not None
        presets = (
            ", and no preset has this name;"
            f" {_suggest_preset(file_name)}`qtm config presets` lists them"
        )
        raise _build_file_error(
            source, f"does not exist (looked from {Path.cwd()}){presets if is_word else ''}"
        ) from None
    except IsADirectoryError:
        raise _build_file_error(source, "is a folder; name a file in it") from None
    except UnicodeDecodeError as error:
        raise _build_file_error(
            source, f"is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _build_file_error(source, f"cannot be read: {reason}") from None
    if len(content) > MOST_BYTES:
        raise _build_file_error(
            source,
            f"is larger than {MOST_BYTES:,} bytes, the limit for a config; name another file",
        )
    return text


def _parse_json(text: str, source: str) -> Any:
    """Parse *text*, the content of a JSON file.

    Raises:
        ConfigError: *text* is not valid JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_mark_repeated_keys)
    except json.JSONDecodeError as error:
        if source.lower().endswith((".yaml", ".yml")):
            ways = "write the same keys as JSON, or as TOML in a .toml file"
            raise _build_file_error(source, f"must be JSON or TOML, not YAML; {ways}") from None
        where = f"line {error.lineno}, column {error.colno}"
        raise _build_file_error(source, f"is not JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise _build_file_error(source, "is nested too deeply") from None
    except ValueError:
        # The only other ValueError: Python does not parse a number with thousands of digits.
        raise _build_file_error(source, "holds a number that is too long") from None


def _parse_toml(text: str, source: str) -> Any:
    """Parse *text*, the content of a TOML file.

    Raises:
        ConfigError: *text* is not valid TOML.
    """
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _build_file_error(source, f"is not TOML: {error}") from None


def _mark_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the *pairs* of a JSON object. The value of a duplicate key is `REPEATED`.

    By default, `json` silently uses the last value.
    """
    values: dict[str, Any] = {}
    for key, value in pairs:
        values[key] = REPEATED if key in values else value
    return values


def _build_file_error(source: str, problem: str) -> ConfigError:
    return ConfigError(f"{source} {problem}", source=source)
