"""Build the errors for invalid settings.

An error shows the setting, its value and the allowed values, but never a secret.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.config.keys import (
    ENVIRONMENT_PREFIX,
    SHORTHANDS,
    format_dotted_key,
    list_all_keys,
    to_camel_case,
)
from qtmiddleware.errors import ConfigError

REPEATED: Final = object()
"""The value that replaces the values of a duplicate key in a JSON object."""

RESERVED: Final = ("QTM_CONFIG", "QTM_MODEL_DIR")
"""Environment variables that begin with ``QTM_`` but are not settings."""

KUBERNETES_VARIABLES: Final = r"QTM_(?:PORT(?:_\w+)?|SERVICE_(?:HOST|PORT)(?:_\w+)?)"
"""A pattern for the variables that Kubernetes sets in pods if a service has the name ``qtm``."""

_LONGEST_SHOWN: Final = 60
_SHORTEST_SECRET: Final = 6
_SECRET_WORDS: Final = frozenset(
    (
        "secret",
        "secrets",
        "password",
        "passwd",
        "passphrase",
        "credential",
        "credentials",
        "authorization",
        "bearer",
    )
)
_SECRET_NAME: Final = (
    r"(?i)(?:api|access|private|auth|secret)[-_]?(?:key|token)|password$|_(?:pass|pwd)$"
)
# Prefixes of the keys of language models and of code hosts.
_MODELS: Final = "sk|pk|pcsk|gsk|xai"
_HOSTS: Final = "gh[oprsu]|github_pat|glpat"
# Patterns are compiled on first use, as most processes never meet an error. This one matches a
# whole key: a setting that holds one is rejected. All repetitions are bounded, as long texts are
# searched too.
_KEY: Final = rf"""(?<![A-Za-z0-9])(?:
        (?:{_MODELS})[-_](?:\w{{1,40}}-){{0,4}}(?=\w{{0,99}}[0-9])(?=\w{{0,99}}[A-Za-z])\w{{10}}
        |hf_[A-Za-z0-9]{{10}}
        |(?:{_HOSTS})[-_]\w{{10}}
        |(?:AKIA|ASIA)[A-Z0-9]{{12}}
        |AIza[\w-]{{20}}
        |xox[abeprs]-[\w-]{{10}}
        |eyJ[\w-]{{8,2000}}\.eyJ[\w-]{{8}}                     # a JSON web token
    )"""
# A text that may be a key or a password: messages do not repeat it.
_MAYBE_SECRET: Final = rf"""{_KEY}
    |\b(?:{_MODELS}|{_HOSTS}|hf)[-_][\w-]{{8,}}
    |\bBearer\s
    |//[^/\s]*@                                            # a name and password in an address
    |[?&#][^\s=?&#]*=                                      # the query of an address
    |\b(?=\w*\d)(?=\w*[a-z])\w{{32,}}                       # a long run of letters and digits
    |\b[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\b"""
# The parts to hide in a longer text: a whole key, the credentials after an authorization scheme,
# and those in an address.
_SECRET_PARTS: Final = rf"""{_KEY}[\w.-]*
    |\b(?:{_MODELS}|{_HOSTS}|hf)[-_][\w-]{{8,}}
    |(?<=\bBearer\s)\S+
    |(?<=//)[^/\s@]*@"""
_HIDDEN: Final = "a text that looks like a key (not shown)"
_KEYS_ADVICE: Final = "set keys in the environment only (OPENAI_API_KEY, PINECONE_API_KEY)"


def build_value_error(dotted_key: str, value: Any, allowed_values: str, source: str) -> ConfigError:
    """Return the error for a setting whose value is not allowed.

    The error shows the value, unless it may be a secret.

    Args:
        dotted_key: The key of the setting, such as ``fusion.rrfK``.
        value: The rejected value.
        allowed_values: The allowed values, in words.
        source: The origin of the value.
    """
    if value is REPEATED:
        line = f"{dotted_key} must be set once per object, not more often ({source})"
    else:
        line = f"{dotted_key} must be {allowed_values}, not {format_value(value)} ({source})"
    shown_value = (
        value if isinstance(value, str | int | float) and not _is_secret(str(value)) else None
    )
    return ConfigError(
        line, path=dotted_key, value=shown_value, allowed=allowed_values, source=source
    )


def build_name_error(
    dotted_key: str, name: str, allowed_names: Sequence[str], source: str
) -> ConfigError:
    """Return the error for a setting whose value is an unknown name.

    The error lists the allowed names and suggests the most similar one.

    Args:
        dotted_key: The key of the setting, such as ``fusion.rrfK``.
        name: The unknown name.
        allowed_names: The allowed names.
        source: The origin of the value.
    """
    near = find_nearest_name(name, allowed_names)
    error = build_value_error(dotted_key, name, "one of " + ", ".join(allowed_names), source)
    if near is None:
        return error
    line = f"{error}; did you mean {near}?"
    return ConfigError(
        line, path=dotted_key, value=error.value, allowed=error.allowed, source=source
    )


def contains_api_key(value: Any) -> bool:
    """Return whether *value*, a string or a container of strings, contains an API key."""
    if isinstance(value, str):
        return re.search(_KEY, value, re.VERBOSE) is not None
    if isinstance(value, Mapping):
        return any(contains_api_key(item) for pair in value.items() for item in pair)
    return isinstance(value, list | tuple) and any(map(contains_api_key, value))


def build_misplaced_key_error(dotted_key: str, source: str) -> ConfigError:
    """Return the error for a setting that contains an API key. The error does not show the key."""
    return ConfigError(
        f"{dotted_key} must not hold a key ({source}); {_KEYS_ADVICE}",
        path=dotted_key,
        source=source,
    )


def build_unknown_key_error(
    key: Any, group_path: tuple[str, ...], group_keys: Sequence[str], source: str
) -> ConfigError:
    """Return the error for a key that does not exist in its group of settings.

    Args:
        key: The unknown key.
        group_path: The names of the groups that lead to the key.
        group_keys: The keys of the group.
        source: The origin of the key.
    """
    path = ".".join(filter(None, (format_dotted_key(group_path), format_key(key))))
    if not isinstance(key, str):
        return ConfigError(
            f"{path} is not a setting ({source}); the name of a setting must be text",
            path=path,
            source=source,
        )
    if is_secret_name(key):
        return ConfigError(
            f"{path} is not a setting ({source}); {_KEYS_ADVICE}", path=path, source=source
        )
    allowed = "one of " + ", ".join(group_keys)
    line = f"{path} is not a setting ({source}); {_suggest_key(key, group_keys)}"
    return ConfigError(line, path=path, allowed=allowed, source=source)


def build_unknown_variable_error(name: str, known_names: Iterable[str]) -> ConfigError:
    """Return the error for an unknown environment variable that begins with ``QTM_``.

    The error does not show the variable's value.

    Args:
        name: The name of the variable.
        known_names: The names of all variables that set options.
    """
    if _is_secret(name.removeprefix(ENVIRONMENT_PREFIX)):
        line = (
            f"the name of a variable that begins with {ENVIRONMENT_PREFIX} looks like a key (not"
            " shown)"
        )
        return ConfigError(f"{line}; {_KEYS_ADVICE}", path=ENVIRONMENT_PREFIX, source="environment")
    source = f"environment {name}"
    if is_secret_name(name):
        advice = "set OPENAI_API_KEY or PINECONE_API_KEY"
        return ConfigError(
            f"{name} is not a setting (environment); {advice}", path=name, source=source
        )
    groups = {
        ENVIRONMENT_PREFIX + group.upper(): f"_{key.upper()}" for group, key in SHORTHANDS.items()
    }
    # All names have the same prefix, which would make all of them look similar.
    names_by_suffix = {
        variable.removeprefix(ENVIRONMENT_PREFIX): variable
        for variable in (*known_names, *RESERVED)
    }
    nearest = find_nearest_name(name.removeprefix(ENVIRONMENT_PREFIX), list(names_by_suffix))
    suggestion = name + groups[name] if name in groups else names_by_suffix.get(nearest or "")
    hint = (
        f"did you mean {suggestion}?"
        if suggestion
        else f"names that begin with {ENVIRONMENT_PREFIX} are reserved for settings"
    )
    return ConfigError(
        f"{name} is not a setting (environment); {hint}",
        path=name,
        allowed=suggestion or "",
        source=source,
    )


def raise_joined_error(errors: Sequence[ConfigError]) -> None:
    """Raise one `ConfigError` with one line per error. If *errors* is empty, do nothing."""
    if errors:
        first_error, lines = errors[0], "\n".join(dict.fromkeys(map(str, errors)))
        raise ConfigError(
            lines,
            path=first_error.path,
            value=first_error.value,
            allowed=first_error.allowed,
            source=first_error.source,
        )


def format_value(value: Any) -> str:
    """Return *value* as a short text on one line, for an error message.

    Hides secrets and the items of containers.
    """
    if isinstance(value, str):
        short = value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
        return (
            _HIDDEN
            if _is_secret(value)
            else json.dumps(short, ensure_ascii=not short.isprintable())
        )
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    # `str` raises an error for integers with more than 4,300 digits.
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a very large number"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else "not a finite number"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    return f"a Python {type(value).__name__}"


def is_secret_name(name: str) -> bool:
    """Return whether *name* looks like the name of a secret, such as ``apiKey`` or ``MY_TOKEN``."""
    words = re.split(r"[\W_]+", _to_snake_case(name))
    if _SECRET_WORDS.intersection(words) or re.search(_SECRET_NAME, name):
        return True
    return words[-1] in ("key", "keys", "token") and "max" not in words


def _is_secret(text: str) -> bool:
    return re.search(_MAYBE_SECRET, text, re.IGNORECASE | re.VERBOSE) is not None


def hide_secrets(text: str) -> str:
    """Return *text* with everything that looks like an API key replaced by "(not shown)".

    The values of environment variables such as ``MY_TOKEN`` are replaced too.
    """
    # Short values are skipped: hiding every "1" or "true" would make the text unreadable.
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and value in text and is_secret_name(name):
            text = text.replace(value, "(not shown)")
    return re.sub(_SECRET_PARTS, "(not shown)", text, flags=re.IGNORECASE | re.VERBOSE)


def format_key(key: Any) -> str:
    """Return *key* on one line, for the path in an error message. Hides a secret."""
    text = format_value(key)
    return text[1:-1] if text.startswith('"') else f"<{text}>"


def _suggest_key(key: str, known_keys: Sequence[str]) -> str:
    """Return advice on an unknown key: the group that it belongs to, or the most similar key."""
    snake = _to_snake_case(key)
    groups = [
        format_dotted_key(known.path[:-1]) for known in list_all_keys() if known.path[-1] == snake
    ]
    if groups and fold_name(key) not in map(fold_name, known_keys):
        places = ", ".join(group_name or "the top level" for group_name in groups)
        return f"{to_camel_case(snake)} belongs to {places}"
    everywhere = [known.name for known in list_all_keys()]
    if key in everywhere:
        group, _, option_name = key.rpartition(".")
        return f'write {option_name} inside the object "{group}"'
    near = find_nearest_name(key, known_keys) or find_nearest_name(key, everywhere)
    return f"did you mean {near}?" if near else "the names here are " + ", ".join(known_keys)


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")


def find_nearest_name(name: str, known_names: Sequence[str]) -> str | None:
    """Return the most similar of *known_names*, ignoring case, dashes and underscores.

    Returns ``None`` if no name is similar.
    """
    # Reversed, so that the first of several names with the same folded form wins.
    folded = {fold_name(known_name): known_name for known_name in reversed(known_names)}
    # Imported here, because most processes never meet an error.
    from difflib import get_close_matches

    matches = get_close_matches(fold_name(name), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def fold_name(name: str) -> str:
    """Return *name* in lower case, without dashes, underscores and spaces, for comparison.

    The result is equal for ``multi_query``, ``multi-query`` and ``multiQuery``.
    """
    return re.sub(r"[-_\s]", "", name).casefold()
