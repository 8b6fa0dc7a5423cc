"""What is sent for one prompt: the request, and fewer of its parts where a provider refuses one."""

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
"""A part of the request that providers differ on."""

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


# OpenAI's models that reason, and the least of it that each takes; the first that fits counts.
_LEAST_EFFORTS: Final = tuple(
    (re.compile(pattern), effort)
    for pattern, effort in (
        (r"gpt-\d[\d.]*-astra\b|o\d\b", "low"),
        (r"gpt-5(?:-mini|-nano)?(?:-\d{4}-\d\d-\d\d)?$", "minimal"),
        (r"gpt-(?:[5-9]|\d\d)\b", "none"),
    )
)


def find_least_effort(model: str) -> str | None:
    """The least reasoning effort that *model* takes; ``None`` where it is not known to be one of OpenAI's that reason.

    A provider's name before the model's (``openai/gpt-6-luna``) is passed over.
    """
    name = model.lower().rpartition("/")[2]
    return next((effort for pattern, effort in _LEAST_EFFORTS if pattern.match(name)), None)


def is_openai(host: str) -> bool:
    """Whether *host*, as `Clients.host` tells it, is OpenAI's own."""
    return (
        host == "the default address"
        or host == "api.openai.com"
        or host.endswith(".api.openai.com")
    )


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """How far a provider made us step down; each number is a place in a list that only ever goes forward."""

    response_format: int = 0
    tokens: int = 0
    temperature: int = 0
    stream: int = 0
    reasoning_effort: int = 0

    def merge(self, other: ProviderCapabilities) -> ProviderCapabilities:
        """What both understand; the order of merging does not matter."""
        return ProviderCapabilities(*map(max, astuple(self), astuple(other)))

    def step_down(self, part: Part) -> ProviderCapabilities | None:
        """One step further down in *part*; ``None`` where there is no further step."""
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
    """Which part of *request* the provider complains of by *error*, and whether it named it or that is our guess.

    ``None`` where it is about something else. An unspecific 400 or 422 is taken for the response
    format, the part that is refused most often, and of a request without one for the stream's
    options. A server error is only taken for a refusal where it names the format, as some local
    servers do.
    """
    status = getattr(error, "status_code", None)
    if status not in EXPLICIT:
        return None
    body = getattr(error, "body", None)
    named = str(body.get("param") or "").lower() if isinstance(body, Mapping) else ""
    words = " ".join(_collect_words(body))[:MOST_WORDS].lower()
    part = _find_named_part(named) or _find_named_part(words)
    if part is not None:
        return (part, True) if status < 500 or part == "response_format" else None
    if status in UNSPECIFIC and not named and not _OTHER_CAUSE.search(words):
        return ("response_format" if "response_format" in request else "stream"), False
    return None


def _find_named_part(words: str) -> Part | None:
    found = [
        (match.start(), part)
        for part, pattern in _PARTS.items()
        if (match := pattern.search(words))
    ]
    return min(found)[1] if found else None


def _collect_words(body: Any, depth: int = 6) -> Iterator[str]:
    """The provider's own words; what it echoes of our request (``input``) is left out, since it holds the query."""
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
    """The keyword arguments of ``chat.completions.create`` for *prompt*.

    *response_format* is ``json_schema``, ``json_object`` or ``text``; a prompt without fields is
    always asked in plain text. *options* are further arguments, such as ``temperature``; one that
    is ``None`` is not sent.
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
        # Providers refuse their JSON mode where no message holds the word, and without a schema
        # nothing names the keys.
        keys = ", ".join(field.name for field in prompt.fields)
        system = (
            f"{system}\n\nAnswer with one JSON object and nothing else. Its keys: {keys}.".lstrip()
        )
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt.user}]


def _make_schema_name(mode: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", mode)[:64].strip("_") or "reply"


@lru_cache(maxsize=64)
def make_reply_schema(fields: tuple[ReplyField, ...]) -> dict[str, Any]:
    """The JSON schema of a reply with *fields*, in the subset that strict structured output takes.

    Every field is required and no other is allowed. How many items a list may hold stands in its
    description, because not every provider accepts ``maxItems``.
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
"""Most requests one prompt may cost while capabilities are being learned: each of four parts refused once."""

THINKING_TOKENS: Final = 10_000
"""Added to the limit of an answer where the model thinks first: what it thinks counts as written."""

_log = get_logger("qtmiddleware.llms")

Received = tuple[Any, int]
"""What came back for one request, and how many retries the SDK needed for it."""


@dataclass(frozen=True, slots=True)
class Response:
    """What came back in the end, how many requests it cost and the *capabilities* that were understood."""

    answer: Any
    calls: int
    capabilities: ProviderCapabilities


Negotiation = Generator[dict[str, Any], Received, Response]
"""Yields the requests to send and is sent what came back, or has the error thrown in."""


class Negotiator:
    """Puts prompts to one *model*, at *where*, and learns what its provider understands; thread-safe.

    *response_format* ``None`` begins with a JSON schema and steps down where that is refused.
    *reasoning_effort* ``auto`` is the least that one of OpenAI's models takes, and none is sent to
    others; ``None`` sends none.
    *temperatures* are those of single prompts, by their mode, in place of *temperature*.
    *find_effort* gives the least effort of a model that reasons, and *advice* goes to
    `read_client_error`.
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
        """Remember *capabilities* beside what is known already."""
        # What is lost where two threads do this at once, the reply of the later one teaches again.
        self.capabilities = self.capabilities.merge(capabilities)

    def negotiate(self, prompt: Prompt, *, streams: bool = False) -> Negotiation:
        """The requests it takes to put *prompt*; raises `ModelError`."""
        guess, sent = ProviderCapabilities(), 0
        while True:
            sent += 1
            capabilities = self.capabilities.merge(guess)
            request = self._build(prompt, capabilities, streams=streams)
            try:
                answer, retries = yield request
            except Exception as error:
                lower = self._step_down(error, capabilities, request)
                if lower is None or sent == MOST_REQUESTS:
                    raise self.read_error(error) from None
                guess = lower
            else:
                return Response(answer, sent + retries, capabilities)

    def read_error(self, error: Exception) -> ModelError:
        """*error* of a client as a `ModelError`, which it may be already."""
        if isinstance(error, ModelError):
            return error
        return read_client_error(error, f"{self._model} at {self._where()}", **self._advice)

    def _build(
        self, prompt: Prompt, capabilities: ProviderCapabilities, *, streams: bool
    ) -> dict[str, Any]:
        effort = None if capabilities.reasoning_effort else self._effort
        # One of OpenAI's that is not told to leave it thinks, and takes no temperature then.
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
        """The name of the limit: other services than OpenAI often know the old one alone and pass over the new one."""
        is_new = self._reasons or is_openai(self._where())
        return (OPENAI_TOKEN_LIMITS if is_new else TOKEN_LIMITS)[capabilities.tokens]

    def _step_down(
        self, error: Exception, capabilities: ProviderCapabilities, request: dict[str, Any]
    ) -> ProviderCapabilities | None:
        """The capabilities to try next after *error*, ``None`` where nothing that was sent can be left out."""
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
