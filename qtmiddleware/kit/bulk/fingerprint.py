"""What decides the texts that a run gets, as it is kept beside its output, and what has changed of it since."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from qtmiddleware.config.keys import all_keys, to_json
from qtmiddleware.config.settings import Settings
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message

# Beside the keys that decide the model's reply.
_KEYS: Final = frozenset(
    {"transformationModel", "preprocess.keepWords", "preprocess.extraWords", "escalation.mode"}
)
_MOST_SHOWN: Final = 60
_MOST_UNKNOWN: Final = 5
"""Keys that are named though the present version has none of that name."""


def read_fingerprint(settings: Settings) -> dict[str, Any]:
    """Every setting that decides what a question is transformed to, and the versions of the prompts, as JSON has it."""
    keys = {
        key.name: to_json(key.read(settings))
        for key in all_keys()
        if key.name in _KEYS or "reply" in key.marks
    }
    histories = ((), (Message("user", "?"),))
    prompts = [
        [it.mode, it.version]
        for history in histories
        for it in build_prompts(settings, "?", history)
    ]
    # What is kept is compared with this, and pairs are lists in JSON.
    fingerprint: dict[str, Any] = json.loads(json.dumps({**keys, "prompts": prompts}))
    return fingerprint


def parse_fingerprint(text: Any) -> dict[str, Any]:
    """Return the fingerprint that was kept as *text*; raises `ValueError`, which quotes none of it."""
    try:
        fingerprint = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        fingerprint = None
    if not isinstance(fingerprint, dict):
        raise ValueError("its record of the config is damaged")
    return fingerprint


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs, a part of a sentence each; long values are not shown.

    An option that *before* lacks is newer than it. It counts as its default, under which the texts
    are as before.
    """
    defaults = {key.name: to_json(key.make_hashable(key.default)) for key in all_keys()}
    for name in (*now, *islice((it for it in before if it not in now), _MOST_UNKNOWN)):
        was, is_ = before.get(name, defaults.get(name)), now.get(name)
        if was != is_:
            shown = f" (was {_show(was)}, is {_show(is_)})"
            yield _show(name[:_MOST_SHOWN]) + (
                shown if name != "prompts" and len(shown) <= _MOST_SHOWN else ""
            )


def _show(value: Any) -> str:
    """*value* on one line; of a text of somebody else no line break or control character is left."""
    return value if isinstance(value, str) and value.isprintable() else reprlib.repr(value)
