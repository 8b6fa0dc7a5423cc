"""Build the request for a prompt, and a simpler request if the service rejects an option.

The first request asks for the best that a service may offer. If the service rejects an option, the
next request takes the next level of this option. The process remembers the levels per address and
model, so that each service rejects an option only once.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.errors import convert_client_error, read_body_field, read_retry_after
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
_LAST_LEVEL: Final = {"response_format": 2, "tokens": 2, "stream": 2}
"""The last level of each option; 1 for the others, which are sent or not."""
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
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 8.0

_log = get_logger("qtmiddleware.llms")
LEARNED: Final[dict[tuple[str, str], dict[str, int]]] = {}
"""By address and model: the level of each option that the service accepts."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to request.

    Attributes:
        model: The name of the model.
        options: The options of the requests.
        prompt: The prompt to send.
        host: The service's host.
        streams: Whether to ask for a stream.
    """

    model: str
    options: LlmSettings
    prompt: Prompt
    host: str
    streams: bool

    def build(self, levels: Mapping[str, int]) -> dict[str, Any]:
        """Return the keyword arguments for ``chat.completions.create``, at *levels* of the options.

        An option that *levels* does not name is at level 0, the best.
        """
        # A provider's name may stand before the model's, as in ``openai/gpt-6-luna``.
        name = self.model.lower().rpartition("/")[2]
        efforts = (effort for model, effort in _LEAST_EFFORTS.items() if model.match(name))
        least = next(efforts, None)
        effort: str | None = self.options.reasoning_effort
        if effort == "auto":
            effort = least
        if levels.get("reasoning_effort"):
            effort = None
        request: dict[str, Any] = {"model": self.model, "reasoning_effort": effort}
        # OpenAI's reasoning models think unless told not to, and then accept no temperature.
        thinks = least is not None and effort != "none"
        if not thinks and not levels.get("temperature"):
            temperatures = self.options.temperatures
            request["temperature"] = temperatures.get(self.prompt.mode, self.options.temperature)
        # Other services often ignore OpenAI's new name for the limit.
        is_openai = least is not None or f".{self.host}".endswith(".api.openai.com")
        limits = _LIMITS[::-1] if is_openai else _LIMITS
        if self.options.max_tokens and (level := levels.get("tokens", 0)) < len(limits):
            room = THINKING_TOKENS if thinks or effort not in (None, "none") else 0
            request[limits[level]] = self.options.max_tokens + room
        if self.streams:
            request |= _STREAMS[levels.get("stream", 0)]
        shape: str = self.options.structured_output
        if shape == "auto":
            shape = _FORMATS[levels.get("response_format", 0)]
        request |= _build_format(self.prompt, shape if self.prompt.fields else "text")
        return {key: value for key, value in request.items() if value is not None}


class Attempts:
    """The requests for one prompt.

    Build a request, and send it. If this fails, wait for the seconds that `choose_pause` returns,
    and build the next request.

    Args:
        request: What to request.
        known: The levels that the service is known to accept; new knowledge is added.
        deadline: The time limit. There is no retry that would begin later.
        retries: How often a request may be repeated after an outage.

    Attributes:
        count: The number of requests.
    """

    def __init__(
        self, request: Request, known: dict[str, int], deadline: Deadline, retries: int
    ) -> None:
        self.count = 0
        self._request, self._known, self._deadline = request, known, deadline
        self._levels, self._sent = dict(known), dict[str, Any]()
        self._retries, self._retry_count, self._step_count = retries, 0, 0

    def build_request(self) -> dict[str, Any]:
        """Return the keyword arguments of the next request."""
        self.count += 1
        self._sent = self._request.build(self._levels)
        return self._sent

    def choose_pause(self, error: Exception) -> float:
        """Return the seconds to wait before the next request.

        Raises the `ModelError` for *error* if no other request can help.
        """
        option, is_certain = find_rejected_option(error, self._sent)
        if option and self._lower_option(option):
            # A guess is remembered only after the service has accepted the simpler request.
            if is_certain:
                self.remember_levels()
            self._step_count += 1
            if self._step_count <= _MOST_STEPS:
                return 0.0
        elif self._retry_count < self._retries and _is_outage(error):
            pause = read_retry_after(error)
            if pause is None:
                # Random, so that callers that failed together do not retry at the same moment.
                pause = min(_FIRST_PAUSE * 2**self._retry_count, _LONGEST_PAUSE)
                pause *= random.uniform(0.75, 1)
            if pause < self._deadline.remaining():
                self._retry_count += 1
                return pause
        raise self.convert_error(error) from None

    def convert_error(self, error: Exception) -> ModelError:
        """Return the `ModelError` for *error*."""
        return convert_client_error(error, f"{self._request.model} at {self._request.host}")

    def remember_levels(self) -> None:
        """Remember the levels of the last request for later prompts."""
        for option, level in self._levels.items():
            self._known[option] = max(level, self._known.get(option, 0))

    def _lower_option(self, option: str) -> bool:
        """Choose the next level of *option*. Return ``False`` if this changes no request."""
        names = _LIMITS if option == "tokens" else (option,)
        level, model = self._levels.get(option, 0), self._request.model
        if level == _LAST_LEVEL.get(option, 1) or self._sent.keys().isdisjoint(names):
            return False
        # The user configured this format, so no other format replaces it.
        if option == "response_format" and self._request.options.structured_output != "auto":
            return False
        self._levels[option] = level + 1
        message = "%s rejected %s; retrying without it"
        _log.info(message, model, option, event="asked_with_less", model=model)
        return True


def find_rejected_option(error: Exception, request: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the option of *request* that the service rejected, and whether *error* names it.

    The option is ``""`` if *error* was not caused by an option. If an error with status 400 or 422
    names no option, the response format is returned as a guess, because services reject it most
    often. If the request has no response format, the guess is ``stream``. For a server error (5xx),
    only a named response format is returned, because some local servers report this rejection as a
    server error.
    """
    status = getattr(error, "status_code", None)
    if status not in (400, 404, 415, 422, 500, 501):
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


def _is_outage(error: Exception) -> bool:
    """Return whether the SDK itself would repeat the request after *error*."""
    import openai

    if isinstance(error, openai.APIStatusError):
        is_temporary = error.status_code in (408, 409, 429) or error.status_code >= 500
        return is_temporary and read_body_field(error, "code") != "insufficient_quota"
    return isinstance(error, openai.APIConnectionError)


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
        response_format["json_schema"] = {"name": name, "strict": True, "schema": schema}
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
