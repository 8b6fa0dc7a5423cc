"""Read JSON from a model's reply: complete or cut off, alone, in a code fence or in prose."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_DECODER: Final = json.JSONDecoder(strict=False)
_OPENING: Final = re.compile(r"[{\[](\s*+[\"'{\[])?")
_MOST_OPENINGS: Final = 10
"""Prose with more brackets than this is not read to its end, so that reading takes linear time."""
_CHARACTERS: Final = re.compile(r"[\x00-\x1f\ud800-\udfff]")


def read_json(text: str) -> tuple[list[Any], bool]:
    """Return the outermost JSON objects and lists in *text*, and whether the last one is cut off.

    A value that is cut off lacks its incomplete text.
    """
    text = _CHARACTERS.sub(" ", text)
    values: list[Any] = []
    position = 0
    for _ in range(_MOST_OPENINGS):
        opening = _OPENING.search(text, position)
        if not opening:
            break
        position = opening.start()
        try:
            value, position = _DECODER.raw_decode(text, position)
            values.append(value)
        except (ValueError, RecursionError):
            if (cut_value := _read_cut_json(text[position:])) is not None:
                return [*values, cut_value], True
            # What is inside broken JSON may be anything. Other brackets belong to prose.
            if opening[1]:
                break
            position += 1
    return values, False


def _read_cut_json(text: str) -> Any:
    """Return the value at the start of *text* without its incomplete text; ``None`` if none."""
    # pydantic takes long to import, and most processes never see a reply that is cut off.
    from pydantic_core import from_json

    try:
        from_json(text)
    except ValueError as error:
        # Other errors are mistakes: what follows them would be lost, or read as something else.
        if str(error).startswith("EOF"):
            return from_json(text, allow_partial=True)
    return None
