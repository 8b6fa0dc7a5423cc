"""Build the request for a prompt, and a simpler request if a provider rejects a part of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.openai_client import read_client_error
from qtmiddleware.runtime.logs import get_logger

Part = Literal["response_format", "tokens", "temperature", "reasoning_effort", "stream"]
"""A part of the request in which providers differ."""

FORMATS: Final = ("json_schema", "json_object", "text")
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens", None)
OPENAI_TOKEN_LIMITS: Final = ("max_completion_tokens", "max_tokens", None)
STREAMS: Final[tuple[Mapping[str, Any], ...]] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
    {},
)

EXPLICIT: Final = frozenset({400, 404, 415, 422, 500, 501})
UNSPECIFIC: Final = frozenset({400, 422})
MOST_WORDS: Final = 2_000

_PARTS: Final[Mapping[Part, re.Pattern[str]]] = {
    "response_format": re.compile(
        r"response[_ ]?(?:format|mime|json)|json[_ ]?(?:schema|object|mode)|structured[_"
        r" ]?outputs?|schema|guided_"
        r"|grammar|output[_ ](?:config(?!\.effort)|format)"
    ),
    "tokens": re.compile(r"max_(?:completion_|output_|new_)?tokens"),
    "temperature": re.compile(r"temperature"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort|thinking|output_config\.effort"),
    "stream": re.compile(r"stream|include_usage"),
}
_OTHER_CAUSE: Final = re.compile(
    r"context[_ ]length|maximum context|too (?:long|many tokens)|api[_ ]?key|quota|billing|credit|"
    r"model\b.{0,80}(?:not[_ ]?found|not exist|unknown)|model_not_found|content[_"
    r" ](?:filter|policy|management)"
)


# OpenAI's reasoning models, and the least effort that each accepts; the first match counts.
_LEAST_EFFORTS: Final = tuple(
    (re.compile(pattern), effort)
    for pattern, effort in (
        (r"gpt-\d[\d.]*-astra\b|o\d\b", "low"),
        (r"gpt-5(?:-mini|-nano)?(?:-\d{4}-\d\d-\d\d)?$", "minimal"),
        (r"gpt-(?:[5-9]|\d\d)\b", "none"),
    )
)


def find_least_effort(model: str) -> str | None:
    """Return the least reasoning effort that *model* accepts; ``None`` if unknown.

    Only OpenAI's reasoning models are known. A provider before the model's name
    (``openai/gpt-6-luna``) is ignored.
    """
    name = model.lower().rpartition("/")[2]
    return next((effort for pattern, effort in _LEAST_EFFORTS if pattern.match(name)), None)


def is_openai(host: str) -> bool:
    """Return whether *host*, as returned by `Clients.host`, belongs to OpenAI."""
    return (
        host == "the default address"
        or host == "api.openai.com"
        or host.endswith(".api.openai.com")
    )


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """How far each option of a request must be simplified until a provider accepts the request.

    Each number is a position in a list of alternatives, such as `FORMATS`, and never decreases. At
    0, the option is not simplified.
    """

    response_format: int = 0
    tokens: int = 0
    temperature: int = 0
    stream: int = 0
    reasoning_effort: int = 0

    def merge(self, other: ProviderCapabilities) -> ProviderCapabilities:
        """Return the capabilities that satisfy both objects: the larger number for each option."""
        return ProviderCapabilities(*map(max, astuple(self), astuple(other)))

    def step_down(self, part: Part) -> ProviderCapabilities | None:
        """Return a copy with *part* simplified one step more; ``None`` if there is no such step."""
        level: int = getattr(self, part)
        return replace(self, **{part: level + 1}) if level < _LAST_STEP[part] else None


_LAST_STEP: Final[Mapping[Part, int]] = {
    "response_format": len(FORMATS) - 1,
    "tokens": len(TOKEN_LIMITS) - 1,
    "temperature": 1,
    "reasoning_effort": 1,
    "stream": len(STREAMS) - 1,
}


def read_refusal(error: Exception, request: Mapping[str, Any]) -> tuple[Part, bool] | None:
    """Return the part of *request* that the provider rejected, and whether *error* names the part.

    Returns ``None`` if the error has another cause. If an error with status 400 or 422 names no
    cause, the part is guessed. The guess is the response format, which is rejected most often, or
    the stream's options if there is no response format. A server error counts only if it names the
    response format, as some local servers do.
    """
    status = getattr(error, "status_code", None)
    if status not in EXPLICIT:
        return None
    body = getattr(error, "body", None)
    parameter = str(body.get("param") or "").lower() if isinstance(body, Mapping) else ""
    words = " ".join(_collect_words(body))[:MOST_WORDS].lower()
    part = _find_named_part(parameter) or _find_named_part(words)
    if part is not None:
        return (part, True) if status < 500 or part == "response_format" else None
    if status in UNSPECIFIC and not parameter and not _OTHER_CAUSE.search(words):
        return ("response_format" if "response_format" in request else "stream"), False
    return None


def _find_named_part(words: str) -> Part | None:
    positions = [
        (match.start(), part)
        for part, pattern in _PARTS.items()
        if (match := pattern.search(words))
    ]
    return min(positions)[1] if positions else None


def _collect_words(body: Any, depth: int = 6) -> Iterator[str]:
    """Yield the provider's own texts in *body*, the body of an error.

    The ``input`` is skipped because it repeats the query.
    """
    if isinstance(body, str):
        yield body
    elif depth and isinstance(body, Mapping):
        for key in ("code", "type", "message", "msg", "detail", "error", "loc"):
            yield from _collect_words(body.get(key), depth - 1)
    elif depth and isinstance(body, list | tuple):
        for item in body:
            yield from _collect_words(item, depth - 1)


def build_request(
    prompt: Prompt, *, model: str, response_format: str, **options: Any
) -> dict[str, Any]:
    """Return the keyword arguments of ``chat.completions.create`` for *prompt*.

    Args:
        prompt: The prompt; a prompt without fields always gets the format ``text``.
        model: The model's name.
        response_format: ``json_schema``, ``json_object`` or ``text``.
        **options: More arguments, such as ``temperature``; ``None`` is not sent.
    """
    shape = response_format if prompt.fields else "text"
    request: dict[str, Any] = {"model": model, "messages": _make_messages(prompt, shape)}
    request |= {name: value for name, value in options.items() if value is not None}
    if shape == "json_schema":
        schema = {
            "name": _make_schema_name(prompt.mode),
            "strict": True,
            "schema": make_reply_schema(prompt.fields),
        }
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif shape == "json_object":
        request["response_format"] = {"type": "json_object"}
    return request


def _make_messages(prompt: Prompt, shape: str) -> list[dict[str, str]]:
    system = prompt.system
    if prompt.fields and shape != "json_schema" and "json" not in system.lower():
        # Providers refuse JSON mode if no message contains the word "JSON", and without a schema
        # nothing else names the keys.
        keys = ", ".join(field.name for field in prompt.fields)
        system = (
            f"{system}\n\nAnswer with one JSON object and nothing else. Its keys: {keys}.".lstrip()
        )
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt.user}]


def _make_schema_name(mode: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", mode)[:64].strip("_") or "reply"


@lru_cache(maxsize=64)
def make_reply_schema(fields: tuple[ReplyField, ...]) -> dict[str, Any]:
    """Return the JSON schema of a reply with *fields*, for strict structured output.

    Every field is required, and no other field is allowed. The number of items of a list is in the
    field's description, because not every provider accepts ``maxItems``.
    """
    from pydantic import ConfigDict, Field, create_model

    members: dict[str, Any] = {
        field.name: (
            list[str] if field.shape == "list" else str,
            Field(description=_describe_field(field)),
        )
        for field in fields
    }
    schema: dict[str, Any] = create_model(
        "Reply", __config__=ConfigDict(extra="forbid"), **members
    ).model_json_schema()
    return schema


def _describe_field(field: ReplyField) -> str:
    if field.shape != "list" or not field.max_items:
        return field.description
    count = (
        str(field.max_items)
        if field.min_items == field.max_items
        else f"{field.min_items} to {field.max_items}"
    )
    return f"{field.description} ({count} items)"


MOST_REQUESTS: Final = 5
"""The most requests per prompt while capabilities are learned: each of four parts refused once."""

THINKING_TOKENS: Final = 10_000
"""How many tokens are added to an answer's limit if the model thinks first.

The tokens of its thinking count as written.
"""

_log = get_logger("qtmiddleware.llms")

Received = tuple[Any, int]
"""The answer to one request, and how many retries the SDK made for it."""


@dataclass(frozen=True, slots=True)
class Response:
    """The final answer to a prompt.

    Attributes:
        answer: The answer.
        calls: How many requests were needed.
        capabilities: How far the request was simplified until the provider accepted it.
    """

    answer: Any
    calls: int
    capabilities: ProviderCapabilities


Negotiation = Generator[dict[str, Any], Received, Response]
"""Yields requests, and is sent the answer to each or has the error thrown in."""


class Negotiator:
    """Builds the requests for one model, and learns which options its provider accepts.

    Thread-safe.

    Args:
        model: The model's name.
        where: Returns the provider's host.
        temperature: The temperature; ``None`` sends none.
        temperatures: The temperatures for prompts of certain modes, by mode. They override
            *temperature*.
        max_tokens: The most tokens of an answer; ``None`` sends no limit.
        response_format: The only format to use; ``None`` begins with a JSON schema and steps down
            if the schema is rejected.
        reasoning_effort: The effort; ``auto`` for the result of *find_effort*; ``None`` sends none.
        find_effort: Returns the least effort that a model accepts; ``None`` for a model that does
            not reason.
        advice: More arguments for `read_client_error`.
    """

    def __init__(
        self,
        model: str,
        where: Callable[[], str],
        *,
        temperature: float | None,
        temperatures: Mapping[str, float] | None = None,
        max_tokens: int | None,
        response_format: str | None,
        reasoning_effort: str | None = "auto",
        find_effort: Callable[[str], str | None] = find_least_effort,
        advice: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._advice = advice
        self._where = where
        self._temperature = temperature
        self._temperatures = temperatures or {}
        self._max_tokens = max_tokens
        self._format = response_format
        least = find_effort(model)
        self._reasons = least is not None
        self._effort = least if reasoning_effort == "auto" else reasoning_effort
        self.capabilities = ProviderCapabilities()

    def learn(self, capabilities: ProviderCapabilities) -> None:
        """Remember *capabilities* for later requests."""
        # If two threads do this at the same time, one result may be lost; a later reply brings it
        # back.
        self.capabilities = self.capabilities.merge(capabilities)

    def negotiate(self, prompt: Prompt, *, streams: bool = False) -> Negotiation:
        """Yield requests for *prompt* until the provider accepts one, and return the response.

        Raises `ModelError` if the provider accepts none. If *streams* is true, the requests ask for
        a stream.
        """
        guess, request_count = ProviderCapabilities(), 0
        while True:
            request_count += 1
            capabilities = self.capabilities.merge(guess)
            request = self._build(prompt, capabilities, streams=streams)
            try:
                answer, retries = yield request
            except Exception as error:
                lower = self._step_down(error, capabilities, request)
                if lower is None or request_count == MOST_REQUESTS:
                    raise self.read_error(error) from None
                guess = lower
            else:
                return Response(answer, request_count + retries, capabilities)

    def read_error(self, error: Exception) -> ModelError:
        """Return *error* as a `ModelError`; a `ModelError` is returned unchanged."""
        if isinstance(error, ModelError):
            return error
        return read_client_error(error, f"{self._model} at {self._where()}", **self._advice)

    def _build(
        self, prompt: Prompt, capabilities: ProviderCapabilities, *, streams: bool
    ) -> dict[str, Any]:
        effort = None if capabilities.reasoning_effort else self._effort
        # OpenAI's reasoning models think unless told not to, and then accept no temperature.
        thinks = self._reasons and effort != "none"
        limit = self._name_token_limit(capabilities)
        room = THINKING_TOKENS if thinks or effort not in (None, "none") else 0
        temperature = self._temperatures.get(prompt.mode, self._temperature)
        options: dict[str, Any] = {
            "reasoning_effort": effort,
            "temperature": None if capabilities.temperature or thinks else temperature,
        }
        if limit and self._max_tokens is not None:
            options[limit] = self._max_tokens + room
        response_format = self._format or FORMATS[capabilities.response_format]
        request = build_request(
            prompt, model=self._model, response_format=response_format, **options
        )
        return {**request, **STREAMS[capabilities.stream]} if streams else request

    def _name_token_limit(self, capabilities: ProviderCapabilities) -> str | None:
        """Return the name of the parameter for the token limit; ``None`` if no limit is sent.

        Services other than OpenAI often know only the old name ``max_tokens`` and ignore the new
        name.
        """
        is_new = self._reasons or is_openai(self._where())
        return (OPENAI_TOKEN_LIMITS if is_new else TOKEN_LIMITS)[capabilities.tokens]

    def _step_down(
        self, error: Exception, capabilities: ProviderCapabilities, request: dict[str, Any]
    ) -> ProviderCapabilities | None:
        """Return the capabilities for a simpler request after *error*.

        Returns ``None`` if nothing can be simplified.
        """
        part, is_certain = read_refusal(error, request) or (None, False)
        if part is None or (part == "response_format" and self._format is not None):
            return None
        key = self._name_token_limit(capabilities) if part == "tokens" else part
        lower = capabilities.step_down(part) if key in request else None
        if lower is not None:
            _log.info(
                "%s rejected %s; retrying without it",
                self._model,
                part,
                event="asked_with_less",
                model=self._model,
            )
            if is_certain:
                self.learn(lower)
        return lower
