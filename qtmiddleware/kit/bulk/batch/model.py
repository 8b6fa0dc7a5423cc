"""A model that is asked in batches: it answers out of what came back, and notes what is still to be sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from qtmiddleware.catalogue import STANDALONE
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.batch.state import BatchState
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.openai import OpenAIModel, make_model
from qtmiddleware.types import Deadline


class Unsent(ModelError):
    """There is no reply to *request* yet."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__("unrecorded", "the reply will come with a batch")
        self.request = request


class Refused(Exception):
    """A request got the HTTP status *status_code*, with this *body*, as the client's own error has them."""

    def __init__(self, status_code: int, body: Any) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code
        self.body = body


class BatchModel:
    """The model of *settings* at *address*, answered out of *state*. Raises `ModelError`.

    Requests are built, stepped down and their replies read as `OpenAIModel` does it, which this
    only gives another client. A prompt without a reply raises ``unrecorded``, and its request is
    noted for `take_requests`. It is to be asked one question after the other, since what depends on
    a reply that is missing is not noted.
    """

    can_async = True

    def __init__(self, settings: Settings, state: BatchState, address: str) -> None:
        self._settings = settings
        self._client = _Client(state, address)
        self._missing: list[tuple[str, Mapping[str, Any]]] = []
        self.prices = self._make().prices

    def __repr__(self) -> str:
        return f"BatchModel({self.name!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._settings.transformation_model

    @property
    def is_waiting(self) -> bool:
        """Whether the last question still lacks a reply."""
        return bool(self._missing)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt* that a batch brought; raises `ModelError`."""
        try:
            # Each by its own: what one prompt teaches of the service must not change the requests
            # of the others, which are found again by their bodies.
            return self._make().complete(prompt, deadline)
        except Unsent as unsent:
            self._missing.append((prompt.mode, unsent.request))
            raise

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """`complete`, which waits for nothing."""
        return self.complete(prompt, deadline)

    def take_requests(self) -> list[Mapping[str, Any]]:
        """The requests that the last question still lacks a reply to; empty where it was answered."""
        missing, self._missing = self._missing, []
        # In a conversation all other prompts may be made of the standalone question, which is asked
        # for first.
        first = [request for mode, request in missing if mode == STANDALONE]
        return first or [request for _, request in missing]

    def _make(self) -> OpenAIModel:
        return make_model(self._client, self._settings)


class _Client:
    """What `OpenAIModel` asks in place of the service's own client."""

    def __init__(self, state: BatchState, address: str) -> None:
        self._state = state
        self.base_url = address
        self.chat = self.completions = self

    def create(self, *, timeout: float, **request: Any) -> Iterator[bytes] | bytes:  # noqa: ARG002 (it does not wait)
        reply = self._state.find_reply(digest(request))
        if reply is None:
            raise Unsent(request)
        status, body = reply
        if status >= 400:
            said = _parse(body)
            raise Refused(status, said.get("error", said) if isinstance(said, Mapping) else said)
        return body.encode()


def _parse(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def digest(request: Mapping[str, Any]) -> str:
    """The ``custom_id`` of *request*: 32 hex digits that stand for all of it, so that equal ones are sent once."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
