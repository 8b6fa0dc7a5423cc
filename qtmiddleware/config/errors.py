"""The errors for bad settings: where, what was found, what is allowed. A secret is never repeated."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.config.keys import ENVIRONMENT_PREFIX, SHORTHANDS, all_keys, camel, dotted
from qtmiddleware.errors import ConfigError

REPEATED: Final = object()
"""Stands in a read file where one object held the same key more than once."""

RESERVED: Final = ("QTM_CONFIG", "QTM_MCP_TOKEN", "QTM_MODEL_DIR")
"""Variables with the settings' prefix that are no settings."""

OF_KUBERNETES: Final = r"QTM_(?:PORT(?:_\w+)?|SERVICE_(?:HOST|PORT)(?:_\w+)?)"
"""What Kubernetes sets in every pod beside a service that is called ``qtm``."""

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
# What the keys of language models and of code hosts begin with.
_MODELS: Final = "sk|pk|pcsk|gsk|xai"
_HOSTS: Final = "gh[oprsu]|github_pat|glpat"
# Patterns are compiled when they are first used, as most processes never meet an error. A key and
# nothing else: a setting that holds one is refused. All lengths have an end, as long texts are
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
# What may be a key or password: messages do not repeat it.
_MAYBE_SECRET: Final = rf"""{_KEY}
    |\b(?:{_MODELS}|{_HOSTS}|hf)[-_][\w-]{{8,}}
    |\bBearer\s
    |//[^/\s]*@                                            # a name and password in an address
    |[?&#][^\s=?&#]*=                                      # the query of an address
    |\b(?=\w*\d)(?=\w*[a-z])\w{{32,}}                       # a long run of letters and digits
    |\b[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\b"""
# What stands out of a longer text: a key whole, what follows a scheme of authorization, credentials
# in an address.
_SECRET_PARTS: Final = rf"""{_KEY}[\w.-]*
    |\b(?:{_MODELS}|{_HOSTS}|hf)[-_][\w-]{{8,}}
    |(?<=\bBearer\s)\S+
    |(?<=//)[^/\s@]*@"""
_HIDDEN: Final = "a text that looks like a key (not shown)"
_KEYS_ADVICE: Final = "set keys in the environment only (OPENAI_API_KEY, PINECONE_API_KEY)"


def bad_value(path: str, value: Any, allowed: str, source: str) -> ConfigError:
    """The error for a *value* that may not stand at *path*; it keeps the value unless that is or may hold a secret."""
    if value is REPEATED:
        line = f"{path} must be set once per object, not more often ({source})"
    else:
        line = f"{path} must be {allowed}, not {display(value)} ({source})"
    kept = value if isinstance(value, str | int | float) and not _is_secret(str(value)) else None
    return ConfigError(line, path=path, value=kept, allowed=allowed, source=source)


def unknown_name(path: str, name: str, names: Sequence[str], source: str) -> ConfigError:
    """The error for a *name* at *path* that is none of *names*; the nearest of them is suggested."""
    near = find_nearest(name, names)
    error = bad_value(path, name, "one of " + ", ".join(names), source)
    if near is None:
        return error
    line = f"{error}; did you mean {near}?"
    return ConfigError(line, path=path, value=error.value, allowed=error.allowed, source=source)


def broken_part(path: str, name: str, problem: Exception, source: str) -> ConfigError:
    """The error for a *name* at *path* that an installed package has, which cannot be used because of *problem*."""
    line = f"{path} is {display(name)} ({source}); {hide_secrets(str(problem))}"
    return ConfigError(line, path=path, value=name, source=source)


def holds_key(value: Any) -> bool:
    """Whether a setting's *value*, a text or what holds texts, has a key in it, wherever it stands there."""
    if isinstance(value, str):
        return re.search(_KEY, value, re.VERBOSE) is not None
    if isinstance(value, Mapping):
        return any(holds_key(part) for pair in value.items() for part in pair)
    return isinstance(value, list | tuple) and any(map(holds_key, value))


def misplaced_key(path: str, source: str) -> ConfigError:
    """The error for a text setting at *path* that holds a key, which is not repeated."""
    return ConfigError(
        f"{path} must not hold a key ({source}); {_KEYS_ADVICE}", path=path, source=source
    )


def unknown_key(key: Any, above: tuple[str, ...], names: Sequence[str], source: str) -> ConfigError:
    """The error for a *key* that the group at *above* does not have; *names* are those it has."""
    path = ".".join(filter(None, (dotted(above), as_key(key))))
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
    allowed = "one of " + ", ".join(names)
    line = f"{path} is not a setting ({source}); {_hint(key, names)}"
    return ConfigError(line, path=path, allowed=allowed, source=source)


def unknown_variable(name: str, known: Iterable[str]) -> ConfigError:
    """The error for an environment variable that looks like a setting and is none. Its value is not looked at."""
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
    # Without the prefix, which any two of them have in common.
    plain = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in (*known, *RESERVED)}
    found = find_nearest(name.removeprefix(ENVIRONMENT_PREFIX), list(plain))
    near = name + groups[name] if name in groups else plain.get(found or "")
    hint = (
        f"did you mean {near}?"
        if near
        else f"names that begin with {ENVIRONMENT_PREFIX} are reserved for settings"
    )
    return ConfigError(
        f"{name} is not a setting (environment); {hint}",
        path=name,
        allowed=near or "",
        source=source,
    )


def raise_all(errors: Sequence[ConfigError]) -> None:
    """Raise *errors*, if there are any, as one whose message has a line for each."""
    if errors:
        first, lines = errors[0], "\n".join(dict.fromkeys(map(str, errors)))
        raise ConfigError(
            lines, path=first.path, value=first.value, allowed=first.allowed, source=first.source
        )


def display(value: Any) -> str:
    """A found value, fit for a message: short, on one line, and never a secret or the inside of a container."""
    if isinstance(value, str):
        short = value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "..."
        return (
            _HIDDEN
            if _is_secret(value)
            else json.dumps(short, ensure_ascii=not short.isprintable())
        )
    if value is None or isinstance(value, bool):
        return json.dumps(value)
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
    """Whether a key by this name would hold a secret."""
    parts = re.split(r"[\W_]+", _snake(name))
    if _SECRET_WORDS.intersection(parts) or re.search(_SECRET_NAME, name):
        return True
    return parts[-1] in ("key", "keys", "token") and "max" not in parts


def _is_secret(text: str) -> bool:
    return re.search(_MAYBE_SECRET, text, re.IGNORECASE | re.VERBOSE) is not None


def hide_secrets(text: str) -> str:
    """*text* without what looks like a key in it, and without the values of variables that are named like one."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and value in text and is_secret_name(name):
            text = text.replace(value, "(not shown)")
    return re.sub(_SECRET_PARTS, "(not shown)", text, flags=re.IGNORECASE | re.VERBOSE)


def as_key(key: Any) -> str:
    """Return *key* as it may stand in a path: on one line, and not a secret."""
    text = display(key)
    return text[1:-1] if text.startswith('"') else f"<{text}>"


def _hint(key: str, names: Sequence[str]) -> str:
    """Where an unknown key may have been meant to stand."""
    snake = _snake(key)
    homes = [dotted(known.path[:-1]) for known in all_keys() if known.path[-1] == snake]
    if homes and fold(key) not in map(fold, names):
        places = ", ".join(home or "the top level" for home in homes)
        return f"{camel(snake)} belongs to {places}"
    everywhere = [known.name for known in all_keys()]
    if key in everywhere:
        group, _, last = key.rpartition(".")
        return f'write {last} inside the object "{group}"'
    near = find_nearest(key, names) or find_nearest(key, everywhere)
    return f"did you mean {near}?" if near else "the names here are " + ", ".join(names)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")


def find_nearest(name: str, names: Sequence[str]) -> str | None:
    """The closest of *names*; case, dashes and underscores do not count."""
    folded = {fold(each): each for each in reversed(names)}
    from difflib import get_close_matches

    found = get_close_matches(fold(name), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def fold(text: str) -> str:
    """*text* without what tells ``multi_query``, ``multi-query`` and ``multiQuery`` apart."""
    return re.sub(r"[-_\s]", "", text).casefold()
