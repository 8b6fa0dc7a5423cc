"""A prompt as the arguments of one chat completion."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from qtmiddleware.protocols import Prompt, ReplyField


def build_request(prompt: Prompt, *, model: str, response_format: str, **options: Any) -> dict[str, Any]:
    """The keyword arguments of ``chat.completions.create`` for *prompt*.

    *response_format* is ``json_schema``, ``json_object`` or ``text``; a prompt without fields is always asked in plain
    text. *options* are further arguments, such as ``temperature``; one that is ``None`` is not sent.
    """
    shape = response_format if prompt.fields else "text"
    request: dict[str, Any] = {"model": model, "messages": _messages(prompt, shape)}
    request |= {name: value for name, value in options.items() if value is not None}
    if shape == "json_schema":
        schema = {"name": _schema_name(prompt.mode), "strict": True, "schema": reply_schema(prompt.fields)}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif shape == "json_object":
        request["response_format"] = {"type": "json_object"}
    return request


def _messages(prompt: Prompt, shape: str) -> list[dict[str, str]]:
    system = prompt.system
    if prompt.fields and shape != "json_schema" and "json" not in system.lower():
        # Providers refuse their JSON mode where no message holds the word, and without a schema nothing names the keys.
        keys = ", ".join(field.name for field in prompt.fields)
        system = f"{system}\n\nAnswer with one JSON object and nothing else. Its keys: {keys}.".lstrip()
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt.user}]


def _schema_name(mode: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", mode)[:64].strip("_") or "reply"


@lru_cache(maxsize=64)
def reply_schema(fields: tuple[ReplyField, ...]) -> dict[str, Any]:
    """The JSON schema of a reply with *fields*, in the subset that strict structured output takes.

    Every field is required and no other is allowed. How many items a list may hold stands in its description, because
    not every provider accepts ``maxItems``.
    """
    from pydantic import ConfigDict, Field, create_model

    members: dict[str, Any] = {
        field.name: (list[str] if field.shape == "list" else str, Field(description=_description(field)))
        for field in fields
    }
    schema: dict[str, Any] = create_model("Reply", __config__=ConfigDict(extra="forbid"), **members).model_json_schema()
    return schema


def _description(field: ReplyField) -> str:
    if field.shape != "list" or not field.max_items:
        return field.description
    count = str(field.max_items) if field.min_items == field.max_items else f"{field.min_items} to {field.max_items}"
    return f"{field.description} ({count} items)"
