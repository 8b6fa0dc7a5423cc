"""Build the request for a prompt, and a simpler request if the provider rejects an option."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.llms.openai.clients import Clients
from qtmiddleware.providers.openai_client import convert_client_error
from qtmiddleware.runtime.logs import get_logger

RequestOption = Literal["response_format", "tokens", "temperature", "reasoning_effort", "stream"]
"""A request option that some providers reject."""

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

_OPTION_PATTERNS: Final[Mapping[RequestOption, re.Pattern[str]]] = {
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
_OTHER_CAUSES: Final = re.compile(
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
    """Return the least reasoning effort that *model* accepts.

    Returns ``None`` if *model* is not a reasoning model of OpenAI. A provider's name before the
    model's name is ignored, as in ``openai/gpt-6-luna``.
    """
    name = model.lower().rpartition("/")[2]
    return next((effort for pattern, effort in _LEAST_EFFORTS if pattern.match(name)), None)


def is_openai_host(host: str) -> bool:
    """Return whether the host name *host* belongs to OpenAI.

    The phrase "the default address" also counts, because `Clients.host` returns it for OpenAI.
    """
    return (
        host == "the default address"
        or host == "api.openai.com"
        or host.endswith(".api.openai.com")
    )


@dataclass(frozen=True, slots=True)
class ProviderCapabilities:
    """The request options that a provider accepts, with one level per option.

    A level is an index in the option's list of alternatives, such as `FORMATS`. Level 0 is the
    preferred alternative. Each rejection raises the level by 1, and no level ever decreases.
    """

    response_format: int = 0
    tokens: int = 0
    temperature: int = 0
    stream: int = 0
    reasoning_effort: int = 0

    def merge(self, other_capabilities: ProviderCapabilities) -> ProviderCapabilities:
        """Return capabilities that have, for each option, the higher of the two levels."""
        return ProviderCapabilities(*map(max, astuple(self), astuple(other_capabilities)))

    def simplify_option(self, option: RequestOption) -> ProviderCapabilities | None:
        """Return a copy in which *option* is one level higher; ``None`` at the last level."""
        level: int = getattr(self, option)
        return replace(self, **{option: level + 1}) if level < _LAST_STEP[option] else None


_LAST_STEP: Final[Mapping[RequestOption, int]] = {
    "response_format": len(FORMATS) - 1,
    "tokens": len(TOKEN_LIMITS) - 1,
    "temperature": 1,
    "reasoning_effort": 1,
    "stream": len(STREAMS) - 1,
}


def find_rejected_option_and_certainty(
    error: Exception, request: Mapping[str, Any]
) -> tuple[RequestOption, bool] | None:
    """Return the option of *request* that the provider rejected, and whether *error* names it.

    Returns ``None`` if *error* was not caused by an option.

    If an error with status 400 or 422 names no option, the response format is returned as a guess,
    because providers reject it most often. If the request has no response format, the guess is
    ``stream``. For a server error (5xx), only a named response format is returned, because some
    local servers report this rejection as a server error.
    """
    status = getattr(error, "status_code", None)
    if status not in EXPLICIT:
        return None
    body = getattr(error, "body", None)
    parameter = str(body.get("param") or "").lower() if isinstance(body, Mapping) else ""
    words = " ".join(_collect_error_texts(body))[:MOST_WORDS].lower()
    option = _find_named_option(parameter) or _find_named_option(words)
    if option is not None:
        return (option, True) if status < 500 or option == "response_format" else None
    if status in UNSPECIFIC and not parameter and not _OTHER_CAUSES.search(words):
        return ("response_format" if "response_format" in request else "stream"), False
    return None


def _find_named_option(error_text: str) -> RequestOption | None:
    positions = [
        (match.start(), option)
        for option, pattern in _OPTION_PATTERNS.items()
        if (match := pattern.search(error_text))
    ]
    # Errors name the rejected option first.
    return min(positions)[1] if positions else None


def _collect_error_texts(body: Any, max_depth: int = 6) -> Iterator[str]:
    """Yield the texts that the provider wrote in *body*, the body of an error.

    The field ``input`` is skipped, because it repeats the query.
    """
    if isinstance(body, str):
        yield body
    elif max_depth and isinstance(body, Mapping):
        for key in ("code", "type", "message", "msg", "detail", "error", "loc"):
            yield from _collect_error_texts(body.get(key), max_depth - 1)
    elif max_depth and isinstance(body, list | tuple):
        for item in body:
            yield from _collect_error_texts(item, max_depth - 1)


def build_request(
    prompt: Prompt, *, model: str, response_format: str, **options: Any
) -> dict[str, Any]:
    """Return the keyword arguments for ``chat.completions.create``.

    Args:
        prompt: The instructions, the question and the reply fields.
        model: The name of the model to call.
        response_format: ``json_schema``, ``json_object`` or ``text``. A prompt without reply fields
            always uses ``text``.
        **options: More arguments, such as ``temperature``. An argument that is ``None`` is omitted.
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


def _make_messages(prompt: Prompt, response_format: str) -> list[dict[str, str]]:
    system = prompt.system
    if prompt.fields and response_format != "json_schema" and "json" not in system.lower():
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

    Every field is required, and no other field is allowed. The description of a list states its
    number of items, because some providers reject ``maxItems``.
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
"""The maximum number of requests per prompt. Up to four options may be rejected."""

THINKING_TOKENS: Final = 10_000
"""The number of tokens added to an answer's limit if the model reasons first.

Providers count the reasoning as output tokens.
"""

_log = get_logger("qtmiddleware.llms")

Received = tuple[Any, int]
"""The answer to one request, and the number of the SDK's retries."""


@dataclass(frozen=True, slots=True)
class Response:
    """The provider's answer to a prompt, after all fallbacks.

    Attributes:
        answer: The answer's pieces, as an iterator.
        calls: The number of requests, including the SDK's retries of the last request.
        capabilities: The level of each option in the accepted request.
    """

    answer: Any
    calls: int
    capabilities: ProviderCapabilities


_format_levels: Final[dict[tuple[str, str], int]] = {}
"""The level in `FORMATS` that each address and model accepts, if it rejected a format.

All models of the process share this table, so that each address rejects a format only once.
"""

Negotiation = Generator[dict[str, Any], Received, Response]
"""A generator that yields requests and returns the response.

The code that runs the generator sends each answer to the generator, or throws the error.
"""


class Negotiator:
    """Builds the requests for one model, and learns which options its provider accepts.

    Thread-safe.

    Args:
        model: The name of the model to call.
        clients: The clients that send the requests. Their address identifies the provider.
        temperature: The sampling temperature; ``None`` sends no temperature.
        temperatures: The temperature per prompt mode. An entry overrides *temperature*.
        max_tokens: The maximum number of tokens in an answer; ``None`` sends no limit.
        response_format: The response format, without fallbacks. ``None`` tries a JSON schema first,
            then ``json_object``, then plain text.
        reasoning_effort: The reasoning effort to request. ``auto`` uses the result of
            `find_least_effort`; ``None`` sends no effort.
    """

    def __init__(
        self,
        model: str,
        clients: Clients,
        *,
        temperature: float | None,
        temperatures: Mapping[str, float] | None = None,
        max_tokens: int | None,
        response_format: str | None,
        reasoning_effort: str | None = "auto",
    ) -> None:
        self._model = model
        self._clients = clients
        self._temperature = temperature
        self._temperatures = temperatures or {}
        self._max_tokens = max_tokens
        self._response_format = response_format
        least = find_least_effort(model)
        self._reasons = least is not None
        self._effort = least if reasoning_effort == "auto" else reasoning_effort
        self._capabilities = ProviderCapabilities()

    @property
    def capabilities(self) -> ProviderCapabilities:
        """The options that the provider is known to accept."""
        level = _format_levels.get((self._clients.address, self._model), 0)
        return self._capabilities.merge(ProviderCapabilities(response_format=level))

    def remember_capabilities(self, capabilities: ProviderCapabilities) -> None:
        """Remember *capabilities* for later requests.

        Every model of the process that calls the same address and model also starts at the level of
        ``response_format``.
        """
        # If two threads do this at the same time, one result may be lost. The next reply restores
        # it.
        self._capabilities = self._capabilities.merge(capabilities)
        level = self.capabilities.response_format
        # A client that does not show its address may call any service.
        if level and (address := self._clients.address):
            _format_levels[address, self._model] = level

    def negotiate_response(self, prompt: Prompt, *, should_stream: bool = False) -> Negotiation:
        """Yield a request for *prompt*, and return the provider's response.

        If the provider rejects an option, yields a simpler request. If *should_stream* is true, the
        requests ask for a stream. Raises `ModelError` if the provider accepts no request.
        """
        guess, request_count = ProviderCapabilities(), 0
        while True:
            request_count += 1
            capabilities = self.capabilities.merge(guess)
            request = self._build_request(prompt, capabilities, should_stream=should_stream)
            try:
                answer, retries = yield request
            except Exception as error:
                lower = self._find_simpler_capabilities(error, capabilities, request)
                if lower is None or request_count == MOST_REQUESTS:
                    raise self.convert_error(error) from None
                guess = lower
            else:
                return Response(answer, request_count + retries, capabilities)

    def convert_error(self, error: Exception) -> ModelError:
        """Return the `ModelError` for *error*. A `ModelError` is returned unchanged."""
        if isinstance(error, ModelError):
            return error
        return convert_client_error(error, f"{self._model} at {self._clients.host}")

    def _build_request(
        self, prompt: Prompt, capabilities: ProviderCapabilities, *, should_stream: bool
    ) -> dict[str, Any]:
        effort = None if capabilities.reasoning_effort else self._effort
        # OpenAI's reasoning models think unless told not to, and then accept no temperature.
        thinks = self._reasons and effort != "none"
        limit = self._choose_token_limit_parameter(capabilities)
        reasoning_tokens = THINKING_TOKENS if thinks or effort not in (None, "none") else 0
        temperature = self._temperatures.get(prompt.mode, self._temperature)
        options: dict[str, Any] = {
            "reasoning_effort": effort,
            "temperature": None if capabilities.temperature or thinks else temperature,
        }
        if limit and self._max_tokens is not None:
            options[limit] = self._max_tokens + reasoning_tokens
        response_format = self._response_format or FORMATS[capabilities.response_format]
        request = build_request(
            prompt, model=self._model, response_format=response_format, **options
        )
        return {**request, **STREAMS[capabilities.stream]} if should_stream else request

    def _choose_token_limit_parameter(self, capabilities: ProviderCapabilities) -> str | None:
        """Return the name of the parameter for the token limit; ``None`` to send no limit.

        The first choice is ``max_completion_tokens`` for OpenAI and for reasoning models. Other
        services often ignore this new name, so their first choice is ``max_tokens``.
        """
        is_new = self._reasons or is_openai_host(self._clients.host)
        return (OPENAI_TOKEN_LIMITS if is_new else TOKEN_LIMITS)[capabilities.tokens]

    def _find_simpler_capabilities(
        self, error: Exception, capabilities: ProviderCapabilities, request: dict[str, Any]
    ) -> ProviderCapabilities | None:
        """Return reduced capabilities for a retry after *error*.

        Returns ``None`` if no option caused *error*, or if no simpler request is left.
        """
        option, is_certain = find_rejected_option_and_certainty(error, request) or (None, False)
        # The user configured this format, so no other format replaces it.
        if option is None or (option == "response_format" and self._response_format is not None):
            return None
        key = self._choose_token_limit_parameter(capabilities) if option == "tokens" else option
        lower = capabilities.simplify_option(option) if key in request else None
        if lower is not None:
            _log.info(
                "%s rejected %s; retrying without it",
                self._model,
                option,
                event="asked_with_less",
                model=self._model,
            )
            # A guess is remembered only after the provider has accepted the simpler request.
            if is_certain:
                self.remember_capabilities(lower)
        return lower
