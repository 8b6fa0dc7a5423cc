"""Write what messages show of settings: names, values and suggestions, but never a secret."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from qtmiddleware.errors import ConfigError

# Keys as the services write them. All repetitions are bounded, because long texts are searched too.
_KEY: Final = r"""(?<![A-Za-z0-9])(?:
    (?:sk|pk|pcsk|gsk|xai)[-_](?:\w{1,40}-){0,4}(?=\w{0,99}[0-9])(?=\w{0,99}[A-Za-z])\w{10}
    |hf_[A-Za-z0-9]{10} |(?:gh[oprsu]|github_pat|glpat)[-_]\w{10} |(?:AKIA|ASIA)[A-Z0-9]{12}
    |AIza[\w-]{20} |xox[abeprs]-[\w-]{10} |eyJ[\w-]{8,2000}\.eyJ[\w-]{8})"""
_SECRET: Final = rf"{_KEY}[\w.-]* |(?<=\b[Bb]earer\s)\S+ |(?<=//)[^/\s]*@ |(?<=[?&])[\w-]+=\S+"
_SECRET_NAME: Final = (
    r"(api|access|private|auth|secret)_?(key|token)|secret|passw|passphrase|credential"
    r"|authorization|bearer|(?<!max)(^|_)(keys?|token|pass)$|_pwd$"
)
_HIDDEN: Final = "a text that looks like a key (not shown)"
_LONGEST_SHOWN: Final = 60
_SHORTEST_SECRET: Final = 6
KEYS_ADVICE: Final = "set keys only in the environment: OPENAI_API_KEY, PINECONE_API_KEY"


def build_value_error(path: str, value: Any, allowed: str, source: str) -> ConfigError:
    """Return the error for a *value* that is none of the *allowed* ones. A secret is not shown."""
    shown, hint = format_value(value), ""
    if isinstance(value, str) and allowed.startswith("one of "):
        nearest = find_nearest_name(value, allowed.removeprefix("one of ").split(", "))
        hint = f"; did you mean {nearest}?" if nearest else ""
    return ConfigError(
        f"{path} must be {allowed}, not {shown} ({source}){hint}",
        path=path,
        value=value if isinstance(value, str | int | float) and shown != _HIDDEN else None,
        allowed=allowed,
        source=source,
    )


def build_unknown_error(
    path: str, name: str, source: str, places: Mapping[str, str], allowed: str
) -> ConfigError:
    """Return the error for a setting that does not exist.

    *name* is the last part of *path*; *places* are the names that may be meant, with their keys.
    """
    if is_secret_name(name):
        advice = KEYS_ADVICE
    elif nearest := find_nearest_name(name, places):
        advice = f"did you mean {places[nearest]}?"
    else:
        advice = allowed
    line = f"{path} is not a setting ({source}); {advice}"
    return ConfigError(line, path=path, allowed=allowed, source=source)


def contains_api_key(text: str) -> bool:
    """Return whether *text* contains an API key."""
    return re.search(_KEY, text, re.VERBOSE) is not None


def hide_secrets(text: str) -> str:
    """Return *text* with everything that looks like an API key replaced by "(not shown)".

    The values of environment variables such as ``MY_TOKEN`` are replaced too.
    """
    # Short values are skipped: hiding every "1" or "true" would make the text unreadable.
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and value in text and is_secret_name(name):
            text = text.replace(value, "(not shown)")
    return re.sub(_SECRET, "(not shown)", text, flags=re.VERBOSE)


def is_secret_name(name: str) -> bool:
    """Return whether *name* looks like the name of a secret, such as ``apiKey`` or ``MY_TOKEN``."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W", "_", name).lower()
    return re.search(_SECRET_NAME, snake) is not None


def format_value(value: Any) -> str:
    """Return *value* as a short text on one line. Hides secrets and the items of containers."""
    if isinstance(value, tuple):
        return "a list"
    if value is not None and not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = str(value)
    if re.search(_SECRET, text, re.VERBOSE):
        return _HIDDEN
    if len(text) > _LONGEST_SHOWN:
        value = text[:_LONGEST_SHOWN] + "..."
    return json.dumps(value, ensure_ascii=not text.isprintable())


def format_key(key: Any) -> str:
    """Return *key* on one line, for the path in an error message. Hides a secret."""
    text = format_value(key)
    return text[1:-1] if text.startswith('"') else f"<{text}>"


def find_nearest_name(name: str, known_names: Iterable[str]) -> str | None:
    """Return the most similar of *known_names*, ignoring case, dashes and underscores."""
    # Imported here, because most processes never meet an error.
    from difflib import get_close_matches

    # Reversed, so that the first of several names with the same folded form wins.
    folded = {fold_name(known_name): known_name for known_name in reversed([*known_names])}
    matches = get_close_matches(fold_name(name), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None


def fold_name(name: str) -> str:
    """Return *name* for comparison: ``multi_query``, ``multi-query`` and ``multiQuery`` agree."""
    return re.sub(r"[-_\s]", "", name).casefold()
