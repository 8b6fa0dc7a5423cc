"""What a provider understands of a request, and what its refusal says about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from qtmiddleware.runtime.forking import ForkLock

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
        r"response[_ ]?format|json[_ ]?(?:schema|object|mode)|structured[_ ]?outputs?|schema|guided_|grammar"
    ),
    "tokens": re.compile(r"max_(?:completion_|output_|new_)?tokens"),
    "temperature": re.compile(r"temperature"),
    "reasoning_effort": re.compile(r"reasoning[_. ]?effort"),
    "stream": re.compile(r"stream|include_usage"),
}
_OTHER_CAUSE: Final = re.compile(
    r"context[_ ]length|maximum context|too (?:long|many tokens)|api[_ ]?key|quota|billing|credit|"
    r"model\b.{0,80}(?:not[_ ]?found|not exist|unknown)|model_not_found|content[_ ](?:filter|policy|management)"
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


def least_effort(model: str) -> str | None:
    """The least reasoning effort that *model* takes; ``None`` where it is not known to be one of OpenAI's that reason.

    A provider's name before the model's (``openai/gpt-6-luna``) is passed over.
    """
    name = model.lower().rpartition("/")[2]
    return next((effort for pattern, effort in _LEAST_EFFORTS if pattern.match(name)), None)


def is_openai(host: str) -> bool:
    """Whether *host*, as `Clients.host` tells it, is OpenAI's own."""
    return host == "the default address" or host == "api.openai.com" or host.endswith(".api.openai.com")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How far a provider made us step down; each number is a place in a list that only ever goes forward."""

    response_format: int = 0
    tokens: int = 0
    temperature: int = 0
    stream: int = 0
    reasoning_effort: int = 0

    def joined(self, other: Dialect) -> Dialect:
        """What is understood by both; the order of joining does not matter."""
        return Dialect(
            max(self.response_format, other.response_format),
            max(self.tokens, other.tokens),
            max(self.temperature, other.temperature),
            max(self.stream, other.stream),
            max(self.reasoning_effort, other.reasoning_effort),
        )

    def without(self, part: Part) -> Dialect | None:
        """One step further down in *part*; ``None`` where there is no further step."""
        lists: Mapping[Part, int] = {
            "response_format": len(FORMATS),
            "tokens": len(TOKEN_LIMITS),
            "stream": len(STREAMS),
        }
        last = lists.get(part, 2) - 1
        level: int = getattr(self, part)
        return replace(self, **{part: level + 1}) if level < last else None


class Memory:
    """What was learned about one provider; threads may learn at the same time and nothing is lost."""

    __slots__ = ("_lock", "dialect")

    def __init__(self) -> None:
        self._lock = ForkLock()
        self.dialect = Dialect()

    def learn(self, dialect: Dialect) -> None:
        """Keep *dialect* beside what is known already."""
        with self._lock.free:
            self.dialect = self.dialect.joined(dialect)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The *part* a provider refused; *certain* says whether it named it, or whether it is our guess."""

    part: Part
    certain: bool


def read_refusal(error: Exception) -> Refusal | None:
    """Which part of the request *error* complains of, ``None`` where it is about something else.

    An unspecific 400 or 422 is taken for the response format, the part that is refused most often. A server error is
    only taken for a refusal where it names the format, as some local servers do.
    """
    status = getattr(error, "status_code", None)
    if status not in EXPLICIT:
        return None
    body = getattr(error, "body", None)
    named = str(body.get("param") or "").lower() if isinstance(body, Mapping) else ""
    words = " ".join(_words(body))[:MOST_WORDS].lower()
    part = _named_part(named) or _named_part(words)
    if part is not None:
        return Refusal(part, certain=True) if status < 500 or part == "response_format" else None
    if status in UNSPECIFIC and not named and not _OTHER_CAUSE.search(words):
        return Refusal("response_format", certain=False)
    return None


def _named_part(words: str) -> Part | None:
    found = [(match.start(), part) for part, pattern in _PARTS.items() if (match := pattern.search(words))]
    return min(found)[1] if found else None


def _words(body: Any, depth: int = 6) -> Iterator[str]:
    """The provider's own words; what it echoes of our request (``input``) is left out, since it holds the query."""
    if isinstance(body, str):
        yield body
    elif depth and isinstance(body, Mapping):
        for key in ("code", "type", "message", "msg", "detail", "error", "loc"):
            yield from _words(body.get(key), depth - 1)
    elif depth and isinstance(body, list | tuple):
        for item in body:
            yield from _words(item, depth - 1)
