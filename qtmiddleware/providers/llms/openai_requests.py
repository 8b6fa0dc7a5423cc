"""Send the request for a prompt, and a simpler request if the service rejects an option.

The process remembers the levels of the options per address and model, so that each service rejects
an option only once.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.errors import (
    convert_client_error,
    read_body_field,
    read_status,
    require_seconds_left,
)
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

THINKING_TOKENS: Final = 10_000
"""The number of tokens added to an answer's limit if the model reasons first.

Providers count the reasoning as output tokens.
"""

_MOST_STEPS: Final = 4
_FORMATS: Final = ("json_schema", "json_object", "text")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_PATTERNS: Final = {
    "response_format": re.compile(
        r"response[_ ]?(?:format|mime|json)|json[_ ]?(?:schema|object|mode)|structured[_"
        r" ]?outputs?|schema|guided_|grammar|output[_ ](?:config(?!\.effort)|format)"
    ),
    "tokens": re.compile(r"max_(?:completion_|output_|new_)?tokens"),
    "temperature": re.compile(r"temperature"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort|thinking|output_config\.effort"),
    "stream_options": re.compile(r"stream|include_usage"),
}
# OpenAI's reasoning models, and the least effort that each accepts; the first match counts.
_LEAST_EFFORTS: Final = {
    re.compile(r"gpt-\d[\d.]*-astra\b|o\d\b"): "low",
    re.compile(r"gpt-5(?:-mini|-nano)?(?:-\d{4}-\d\d-\d\d)?$"): "minimal",
    re.compile(r"gpt-(?:[5-9]|\d\d)\b"): "none",
}
LONGEST_WAIT: Final = 600.0
"""The maximum number of seconds to wait for an answer, or for the next piece of a stream."""

_log = get_logger("qtmiddleware.llms")
LEARNED: Final[dict[tuple[str, str], dict[str, int]]] = {}
"""By address and model: the level of each option that the service accepts."""


def build_request(
    model: str,
    options: LlmSettings,
    prompt: Prompt,
    *,
    host: str,
    streams: bool = False,
    levels: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the arguments for ``chat.completions.create``; a higher level is a simpler option."""
    # A provider's name may stand before the model's, as in ``openai/gpt-6-luna``.
    name = model.lower().rpartition("/")[2]
    efforts = (effort for pattern, effort in _LEAST_EFFORTS.items() if pattern.match(name))
    least = next(efforts, None)
    effort = least if options.reasoning_effort == "auto" else options.reasoning_effort
    if levels.get("reasoning_effort"):
        effort = None
    request: dict[str, Any] = {"model": model, "reasoning_effort": effort}
    # OpenAI's reasoning models think unless told not to, and then accept no temperature.
    thinks = least is not None and effort != "none"
    if not thinks and not levels.get("temperature"):
        request["temperature"] = options.temperatures.get(prompt.mode, options.temperature)
    # Other services often ignore OpenAI's new name for the limit.
    is_openai = least is not None or f".{host}".endswith(".api.openai.com")
    limits = _LIMITS[::-1] if is_openai else _LIMITS
    if options.max_tokens and (level := levels.get("tokens", 0)) < len(limits):
        room = THINKING_TOKENS if thinks or effort not in (None, "none") else 0
        request[limits[level]] = options.max_tokens + room
    if streams:
        request["stream"] = True
        if not levels.get("stream_options"):
            request["stream_options"] = {"include_usage": True}
    shape: str = options.structured_output
    if shape == "auto":
        shape = _FORMATS[min(levels.get("response_format", 0), 2)]
    request |= _build_format(prompt, shape if prompt.fields else "text")
    return {key: value for key, value in request.items() if value is not None}


async def send_request(
    client: Any,
    build: Callable[..., dict[str, Any]],
    known: dict[str, int],
    service: str,
    deadline: Deadline,
) -> tuple[Any, int]:
    """Send the request of *build*, and simpler ones until *service* accepts one.

    Returns the answer and the number of requests. The accepted levels are added to *known*. Over a
    blocking *client*, nothing that is awaited ever suspends. Raises `ModelError`.
    """
    levels = dict(known)
    request_count = 0
    while True:
        request = build(levels=levels)
        seconds = _choose_timeout(client, deadline)
        request_count += 1
        try:
            answer = client.chat.completions.create(**request, timeout=seconds)
            if inspect.isawaitable(answer):
                # The client's own retries end with this time too.
                async with asyncio.timeout(seconds):
                    answer = await answer
        except Exception as error:
            option = find_rejected_option(error, request)
            levels[option] = levels.get(option, 0) + 1
            is_simpler = bool(option) and build(levels=levels) != request
            if not is_simpler or request_count > _MOST_STEPS:
                raise convert_client_error(error, service) from None
            model = request["model"]
            _log.info("%s rejected %s", model, option, event="option_rejected", model=model)
        else:
            known.update(levels)
            return answer, request_count


def _choose_timeout(client: Any, deadline: Deadline) -> float:
    """Return the maximum time of a request in seconds: the *client*'s own if that is shorter."""
    own = getattr(client, "timeout", None)
    limits = [require_seconds_left(deadline), LONGEST_WAIT, getattr(own, "read", own)]
    return min(limit for limit in limits if isinstance(limit, int | float))


def find_rejected_option(error: Exception, request: Mapping[str, Any]) -> str:
    """Return the option of *request* that the service rejected; ``""`` if *error* names none.

    If an error with status 400 or 422 says nothing of the cause, the response format is returned as
    a guess, because services reject it most often; without one, ``stream_options``.
    """
    status = read_status(error)
    if status not in (400, 404, 415, 422, 500, 501):
        return ""
    parameter = read_body_field(error, "param").lower()
    words = str(getattr(error, "body", ""))[:2_000].lower()
    for text in (parameter, words):
        # Errors name the rejected option first.
        matches = ((pattern.search(text), option) for option, pattern in _PATTERNS.items())
        if places := [(match.start(), option) for match, option in matches if match]:
            _, option = min(places)
            # Some local servers report a rejected response format as a server error.
            return option if status < 500 or option == "response_format" else ""
    if status in (400, 422) and not parameter and not read_body_field(error, "code"):
        return "response_format" if "response_format" in request else "stream_options"
    return ""


def _build_format(prompt: Prompt, shape: str) -> dict[str, Any]:
    system = prompt.system
    if prompt.fields and shape != "json_schema" and "json" not in system.lower():
        # Services refuse JSON mode if no message contains the word "JSON", and without a schema
        # nothing else names the keys.
        keys = ", ".join(field.name for field in prompt.fields)
        system += f"\n\nAnswer with one JSON object and nothing else. Its keys: {keys}."
    messages = [
        {"role": "system", "content": system.lstrip()},
        {"role": "user", "content": prompt.user},
    ]
    if shape == "text":
        return {"messages": messages}
    response_format: dict[str, Any] = {"type": shape}
    if shape == "json_schema":
        schema = {
            "type": "object",
            "properties": {field.name: _build_schema(field) for field in prompt.fields},
            "required": [field.name for field in prompt.fields],
            "additionalProperties": False,
        }
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", prompt.mode)[:64].strip("_") or "reply"
        response_format["json_schema"] = {
            "name": name,
            "strict": True,
            "schema": schema,
        }
    return {"messages": messages, "response_format": response_format}


def _build_schema(field: ReplyField) -> dict[str, Any]:
    if field.shape != "list":
        return {"type": "string", "description": field.description}
    description = field.description
    if field.max_items:
        # Some services reject ``maxItems``, so the description says how many.
        least = "" if field.min_items == field.max_items else f"{field.min_items} to "
        description += f" ({least}{field.max_items} items)"
    return {"type": "array", "items": {"type": "string"}, "description": description}
