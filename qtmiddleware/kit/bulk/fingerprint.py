"""Build and compare fingerprints, the settings and prompt versions that affect transformations."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from qtmiddleware.config.keys import convert_to_json, list_all_keys
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message

# Settings that count in addition to those marked as affecting the model's reply.
_KEYS: Final = frozenset(
    {"transformationModel", "preprocess.keepWords", "preprocess.extraWords", "escalation.mode"}
)
_MOST_SHOWN: Final = 60
_MOST_UNKNOWN: Final = 5
"""The maximum number of unknown settings to list."""


def build_fingerprint(settings: Settings) -> dict[str, Any]:
    """Return the settings that affect how questions are transformed, with the prompts' versions.

    The result maps the name of each setting to its JSON value, and ``prompts`` to the versions.
    """
    keys = {
        key.name: convert_to_json(key.read_value(settings), key.hint)
        for key in list_all_keys()
        if key.name in _KEYS or Mark.REPLY in key.marks
    }
    # Some prompts exist only for questions with a history.
    histories = ((), (Message("user", "?"),))
    prompts = [
        [prompt.mode, prompt.version]
        for history in histories
        for prompt in build_prompts(settings, "?", history)
    ]
    # The stored fingerprint comes from JSON, in which tuples are lists.
    fingerprint: dict[str, Any] = json.loads(json.dumps({**keys, "prompts": prompts}))
    return fingerprint


def parse_fingerprint(json_text: Any) -> dict[str, Any]:
    """Return the fingerprint that is stored as *json_text*.

    Raises `ValueError` if *json_text* is not a JSON object. The message does not quote the text.
    """
    try:
        fingerprint = json.loads(json_text) if isinstance(json_text, str) else None
    except (ValueError, RecursionError):
        fingerprint = None
    if not isinstance(fingerprint, dict):
        raise ValueError("its record of the config is damaged")
    return fingerprint


def describe_changes(
    old_fingerprint: Mapping[str, Any], new_fingerprint: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a short description of each setting that differs between two fingerprints.

    A description has the setting's name, the old value and the new value, or only the name if the
    values are long. If *old_fingerprint* lacks a setting, the setting's default is the old value.
    """
    defaults = {key.name: convert_to_json(key.default, key.hint) for key in list_all_keys()}
    for name in (
        *new_fingerprint,
        *islice((key for key in old_fingerprint if key not in new_fingerprint), _MOST_UNKNOWN),
    ):
        old, new = old_fingerprint.get(name, defaults.get(name)), new_fingerprint.get(name)
        if old != new:
            values = f" (was {_format_value(old)}, is {_format_value(new)})"
            yield _format_value(name[:_MOST_SHOWN]) + (
                values if name != "prompts" and len(values) <= _MOST_SHOWN else ""
            )


def _format_value(value: Any) -> str:
    """Return *value* as text without line breaks and control characters."""
    return value if isinstance(value, str) and value.isprintable() else reprlib.repr(value)
