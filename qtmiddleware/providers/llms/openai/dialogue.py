"""The requests one prompt costs while a provider's dialect is being learned."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.providers.llms.openai.dialect import (
    FORMATS,
    OPENAI_TOKEN_LIMITS,
    STREAMS,
    TOKEN_LIMITS,
    Dialect,
    Memory,
    Part,
    is_openai,
    least_effort,
    read_refusal,
)
from qtmiddleware.providers.llms.openai.failures import as_model_error
from qtmiddleware.providers.llms.openai.request import build_request
from qtmiddleware.runtime.logs import get_logger

MOST_REQUESTS: Final = 5
"""Most requests one prompt may cost while a provider's dialect is being learned: each of four parts refused once."""

THINKING_TOKENS: Final = 10_000
"""Added to the limit of an answer where the model thinks first: what it thinks counts as written."""

_log = get_logger("qtmiddleware.llms")

Sent = tuple[Any, int]
"""What came back for one request, and how many retries the SDK needed for it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back in the end, how many requests it cost and the *dialect* that was understood."""

    answer: Any
    calls: int
    dialect: Dialect


Talk = Generator[dict[str, Any], Sent, Heard]
"""Yields the requests to send and is sent what came back, or has the error thrown in."""


class Dialogue:
    """Puts prompts to one *model*, at *where*, and learns what its provider understands.

    *response_format* ``None`` begins with a JSON schema and steps down where that is refused. *reasoning_effort*
    ``auto`` is the least that one of OpenAI's models takes, and none is sent to others; ``None`` sends none.
    """

    def __init__(
        self,
        model: str,
        where: Callable[[], str],
        *,
        temperature: float | None,
        max_tokens: int | None,
        response_format: str | None,
        reasoning_effort: str | None = "auto",
    ) -> None:
        self._model = model
        self._where = where
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._format = response_format
        self._reasons = least_effort(model) is not None
        self._effort = least_effort(model) if reasoning_effort == "auto" else reasoning_effort
        self._memory = Memory()

    def about(self, prompt: Prompt, *, streams: bool = False) -> Talk:
        """The requests it takes to put *prompt*; raises `ModelError`."""
        guess = Dialect()
        for sent in range(1, MOST_REQUESTS + 1):
            dialect = self._memory.dialect.joined(guess)
            request = self._request(prompt, dialect, streams=streams)
            try:
                answer, retries = yield request
            except ModelError:
                raise
            except Exception as error:
                lower = self._step_down(error, dialect, request)
                if lower is None or sent == MOST_REQUESTS:
                    raise self.failure(error) from None
                guess = lower
                continue
            return Heard(answer, sent + retries, dialect)
        raise AssertionError("the last request either returns or raises")  # pragma: no cover

    def failure(self, error: Exception) -> ModelError:
        """*error* of a client as a `ModelError`."""
        return as_model_error(error, f"{self._model} at {self._where()}")

    def understood(self, heard: Heard) -> None:
        """Remember the dialect of what could be read."""
        self._memory.learn(heard.dialect)

    def _request(self, prompt: Prompt, dialect: Dialect, *, streams: bool) -> dict[str, Any]:
        effort = None if dialect.reasoning_effort else self._effort
        # One of OpenAI's that is not told to leave it thinks, and takes no temperature then.
        thinks = self._reasons and effort != "none"
        limit = self._token_limit(dialect)
        room = THINKING_TOKENS if thinks or effort not in (None, "none") else 0
        options: dict[str, Any] = {
            "reasoning_effort": effort,
            "temperature": None if dialect.temperature or thinks else self._temperature,
        }
        if limit and self._max_tokens is not None:
            options[limit] = self._max_tokens + room
        response_format = self._format or FORMATS[dialect.response_format]
        request = build_request(prompt, model=self._model, response_format=response_format, **options)
        return {**request, **STREAMS[dialect.stream]} if streams else request

    def _token_limit(self, dialect: Dialect) -> str | None:
        """The name of the limit: other services than OpenAI often know the old one alone and pass over the new one."""
        is_new = self._reasons or is_openai(self._where())
        return (OPENAI_TOKEN_LIMITS if is_new else TOKEN_LIMITS)[dialect.tokens]

    def _step_down(self, error: Exception, dialect: Dialect, request: dict[str, Any]) -> Dialect | None:
        """The dialect to try next after *error*, ``None`` where nothing that was sent can be left out."""
        refusal = read_refusal(error)
        if refusal is None:
            return None
        part: Part = refusal.part
        if not refusal.certain and part not in request:
            # Of a request without a response format the stream's options are what is refused most often.
            part = "stream"
        keys = {"tokens": self._token_limit(dialect)}
        fixed = part == "response_format" and self._format is not None
        sent = not fixed and keys.get(part, part) in request
        lower = dialect.without(part) if sent else None
        if lower is not None:
            _log.info("%s refused %s; asking with less", self._model, part)
            if refusal.certain:
                self._memory.learn(lower)
        return lower
