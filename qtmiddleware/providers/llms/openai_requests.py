"""Send the request for a prompt, and a simpler request if the service rejects an option.

The first request asks for the best that a service may offer. If the service rejects an option, the
next request takes the next level of this option. The process remembers the levels per address and
model, so that each service rejects an option only once.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import is_outage
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.errors import (
    convert_client_error,
    read_body_field,
    read_retry_after,
    read_status,
    require_seconds_left,
)
from qtmiddleware.providers.openai_client import is_async_client, is_plain_client
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

THINKING_TOKENS: Final = 10_000
"""The number of tokens added to an answer's limit if the model reasons first.

Providers count the reasoning as output tokens.
"""

_MOST_STEPS: Final = 4
_FORMATS: Final = ("json_schema", "json_object", "text")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
_STREAMS: Final[tuple[dict[str, Any], ...]] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
    {},
)
_PATTERNS: Final = {
    "response_format": re.compile(
        r"response[_ ]?(?:format|mime|json)|json[_ ]?(?:schema|object|mode)|structured[_"
        r" ]?outputs?|schema|guided_|grammar|output[_ ](?:config(?!\.effort)|format)"
    ),
    "tokens": re.compile(r"max_(?:completion_|output_|new_)?tokens"),
    "temperature": re.compile(r"temperature"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort|thinking|output_config\.effort"),
    "stream": re.compile(r"stream|include_usage"),
}
_OTHER_CAUSES: Final = re.compile(
    r"context[_ ]length|maximum context|too (?:long|many tokens)|api[_ ]?key|quota|billing|credit|"
    r"model\b.{0,80}(?:not[_ ]?found|not exist|unknown)|model_not_found|content[_"
    r" ](?:filter|policy|management)"
)
# OpenAI's reasoning models, and the least effort that each accepts; the first match counts.
_LEAST_EFFORTS: Final = {
    re.compile(r"gpt-\d[\d.]*-astra\b|o\d\b"): "low",
    re.compile(r"gpt-5(?:-mini|-nano)?(?:-\d{4}-\d\d-\d\d)?$"): "minimal",
    re.compile(r"gpt-(?:[5-9]|\d\d)\b"): "none",
}
LONGEST_WAIT: Final = 600.0
"""The maximum number of seconds to wait for an answer, or for the next piece of a stream."""
_LONGEST_CONNECT: Final = 5.0
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 8.0

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
        request |= _STREAMS[min(levels.get("stream", 0), 2)]
    shape: str = options.structured_output
    if shape == "auto":
        shape = _FORMATS[min(levels.get("response_format", 0), 2)]
    request |= _build_format(prompt, shape if prompt.fields else "text")
    return {key: value for key, value in request.items() if value is not None}


async def send_request(
    client: Any,
    retries: int,
    build: Callable[..., dict[str, Any]],
    known: dict[str, int],
    service: str,
    deadline: Deadline,
) -> tuple[Any, int]:
    """Send the request of *build*, and simpler ones until *service* accepts one.

    Returns the answer and the number of requests. *known* holds the levels that the service is
    known to accept; new knowledge is added. Outages are retried up to *retries* times. Over a
    blocking *client*, nothing that is awaited ever suspends. Raises `ModelError`.
    """
    levels = dict(known)
    request_count = simpler_count = retry_count = 0
    while True:
        seconds, timeout = _choose_timeout(client, deadline)
        request = build(levels=levels)
        request_count += 1
        try:
            answer = client.chat.completions.create(**request, timeout=timeout)
            if inspect.isawaitable(answer):
                async with asyncio.timeout(seconds):
                    answer = await answer
        except Exception as error:
            option, is_certain = find_rejected_option(error, request)
            simpler = {**levels, option: levels.get(option, 0) + 1}
            if option and build(levels=simpler) != request:
                levels = simpler
                # A guess is remembered only after the service has accepted the simpler request.
                if is_certain:
                    _remember_levels(known, levels)
                simpler_count += 1
                pause = 0.0 if simpler_count <= _MOST_STEPS else None
                model = request["model"]
                _log.info("%s rejected %s", model, option, event="option_rejected", model=model)
            else:
                may_retry = retry_count < retries
                pause = _choose_pause(error, retry_count, deadline) if may_retry else None
                retry_count += 1
            if pause is None:
                raise convert_client_error(error, service) from None
        else:
            _remember_levels(known, levels)
            return answer, request_count
        if is_async_client(client):
            await asyncio.sleep(pause)
        else:
            time.sleep(pause)


def _choose_timeout(client: Any, deadline: Deadline) -> tuple[float, Any]:
    """Return the maximum time of a request in seconds, and the *client*'s option for it."""
    own = getattr(client, "timeout", None)
    limits = [require_seconds_left(deadline), LONGEST_WAIT, getattr(own, "read", own)]
    seconds: float = min(limit for limit in limits if isinstance(limit, int | float))
    if not is_plain_client(client):
        return seconds, seconds
    import openai

    # A model may be slow, but its host accepts connections quickly. Connecting times out sooner
    # than the request, because a TLS handshake is cleaned up then, but not if it is cancelled.
    connect = min(0.9 * seconds, _LONGEST_CONNECT)
    return seconds, openai.Timeout(seconds, connect=connect)


def _choose_pause(error: Exception, retry_count: int, deadline: Deadline) -> float | None:
    """Return the seconds to wait before a retry; ``None`` if a retry is of no use or too late."""
    # The SDK itself would repeat the request after the same errors.
    is_over = read_body_field(error, "code") == "insufficient_quota"
    if is_over or not (is_outage(error) or read_status(error) in (408, 409)):
        return None
    pause = read_retry_after(error)
    if pause is None:
        # Random, so that callers that failed together do not retry at the same moment.
        pause = min(_FIRST_PAUSE * 2**retry_count, _LONGEST_PAUSE) * random.uniform(0.75, 1)
    return pause if pause < deadline.remaining() else None


def _remember_levels(known: dict[str, int], levels: Mapping[str, int]) -> None:
    for option, level in levels.items():
        known[option] = max(level, known.get(option, 0))


def find_rejected_option(error: Exception, request: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the option of *request* that the service rejected, and whether *error* names it.

    The option is ``""`` if *error* was not caused by an option. If an error with status 400 or 422
    names no option, the response format is returned as a guess, because services reject it most
    often. If the request has no response format, the guess is ``stream``. For a server error (5xx),
    only a named response format is returned, because some local servers report this rejection as a
    server error.
    """
    if (status := read_status(error)) not in (400, 404, 415, 422, 500, 501):
        return "", False
    parameter = read_body_field(error, "param").lower()
    words = " ".join(_collect_texts(getattr(error, "body", None)))[:2_000].lower()
    for text in (parameter, words):
        # Errors name the rejected option first.
        matches = ((pattern.search(text), option) for option, pattern in _PATTERNS.items())
        if places := [(match.start(), option) for match, option in matches if match]:
            option = min(places)[1]
            return (option, True) if status < 500 or option == "response_format" else ("", False)
    if status in (400, 422) and not parameter and not _OTHER_CAUSES.search(words):
        return ("response_format" if "response_format" in request else "stream"), False
    return "", False


def _collect_texts(body: Any, max_depth: int = 6) -> Iterator[str]:
    """Yield the texts in an error's *body*, without ``input``, which repeats the query."""
    if isinstance(body, str):
        yield body
    elif max_depth and isinstance(body, Mapping):
        for key in ("code", "type", "message", "msg", "detail", "error", "loc"):
            yield from _collect_texts(body.get(key), max_depth - 1)
    elif max_depth and isinstance(body, list | tuple):
        for item in body:
            yield from _collect_texts(item, max_depth - 1)


def _build_format(prompt: Prompt, shape: str) -> dict[str, Any]:
    """Return the messages and the response format for a reply of the *shape*."""
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
