"""The lines of a recording, and what of a text, a history or a reply they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import ReplyField

MOST_CHARS: Final = 10_000_000
"""A line that is longer is no recorded reply."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records at *path*; raises `ConfigError`, which names the line, where they cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            # No more than that: a device may have no end.
            for number, line in enumerate(iter(partial(lines.readline, MOST_CHARS + 1), ""), 1):
                if len(line) > MOST_CHARS:
                    raise ConfigError(
                        f"{path}, line {number} is longer than {MOST_CHARS:,} characters, so it is none; take it out",
                        path="recording",
                    )
                if line.strip():
                    yield _read_record(line, f"{path}, line {number}")
    except UnicodeDecodeError:
        raise ConfigError(
            f"the recording {path} cannot be read: it is not UTF-8; save it as UTF-8, or record it again",
            path="recording",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the recording {path} cannot be read: {error.strerror or type(error).__name__}", path="recording"
        ) from error


def _read_record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ConfigError(f"{where} is not a JSON object; mend that line or take it out", path="recording")
    if not isinstance(record.get("history") or [], list):
        raise ConfigError(f"{where} has a history that is no list; mend that line or take it out", path="recording")
    return record


def shaped(value: Any, wanted: ReplyField) -> Any:
    """*value* where it has the shape of the field *wanted*, else ``None``."""
    if wanted.shape != "list":
        return value if isinstance(value, str) and value.strip() else None
    items = [item for item in value if isinstance(item, str) and item.strip()] if isinstance(value, list) else []
    return items[: wanted.max_items or None]


def normal(text: Any) -> str:
    """*text* with single blanks for its white space, empty where it is no text."""
    return " ".join(text.split()) if isinstance(text, str) else ""


def contents(history: Iterable[Any], query: str = "") -> tuple[str, ...]:
    """What the messages of a conversation say, white space aside.

    Left out are blank messages, those of the system, and a last one that is *query* itself, as prompts leave them out.
    """
    turns = ((_part(message, "role"), normal(_part(message, "content"))) for message in history)
    said = [text for role, text in turns if text and role != "system"]
    if said and said[-1] == query:
        said.pop()
    return tuple(said)


def _part(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)
