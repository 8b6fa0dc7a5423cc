"""Answer prompts with the stored replies of batches, and collect the requests still to be sent."""

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
    """Raised if no reply to *request* is stored yet."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__("unrecorded", "the reply will come with a batch")
        self.request = request


class Refused(Exception):
    """Raised if the service rejected a request.

    Like errors of the OpenAI client, it has the attributes ``status_code`` and ``body``.
    """

    def __init__(self, status_code: int, body: Any) -> None:
        super().__init__(f"HTTP {status_code}")
        self.status_code = status_code
        self.body = body


class BatchModel:
    """Answers prompts with the replies stored in *state*, without calling the service.

    *settings* name the model, and *address* is the service's URL. If there is no reply to a prompt,
    raises `ModelError` (``unrecorded``), and `take_unsent_requests` returns the request to send.
    Use a `BatchModel` for only one question at a time.
    """

    # `OpenAIModel` builds the requests and reads the replies, so both are the same as in live
    # calls. Only its client is replaced.

    can_async = True

    def __init__(self, settings: Settings, state: BatchState, address: str) -> None:
        self._settings = settings
        self._client = _Client(state, address)
        self._missing: list[tuple[str, Mapping[str, Any]]] = []
        self.prices = self._build_model().prices

    def __repr__(self) -> str:
        return f"BatchModel({self.name!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._settings.transformation_model

    @property
    def is_waiting(self) -> bool:
        """Whether the last question needs a reply that is not stored yet."""
        return bool(self._missing)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the stored reply to *prompt*.

        Raises `ModelError` (``unrecorded``) if there is no reply.
        """
        try:
            # Each prompt has its own `OpenAIModel`. The model changes its requests after the
            # service rejects a parameter, but replies are found by the body of a request.
            return self._build_model().complete(prompt, deadline)
        except Unsent as unsent:
            self._missing.append((prompt.mode, unsent.request))
            raise

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the stored reply to *prompt*, like `complete`."""
        return self.complete(prompt, deadline)

    def take_unsent_requests(self) -> list[Mapping[str, Any]]:
        """Return the requests of the last question that have no reply yet, and forget them.

        If one of them asks to make a follow-up question independent of the conversation, returns
        only that request.
        """
        missing, self._missing = self._missing, []
        # In a conversation, the other prompts may contain the standalone question, so its request
        # is sent first.
        standalone = [request for mode, request in missing if mode == STANDALONE]
        return standalone or [request for _, request in missing]

    def _build_model(self) -> OpenAIModel:
        return make_model(self._client, self._settings)


class _Client:
    """A client for `OpenAIModel` that returns the replies in *state* and calls no service."""

    def __init__(self, state: BatchState, address: str) -> None:
        self._state = state
        self.base_url = address
        self.chat = self.completions = self

    def create(self, *, timeout: float, **request: Any) -> Iterator[bytes] | bytes:  # noqa: ARG002 (it does not wait)
        reply = self._state.find_reply_status_and_body(compute_request_id(request))
        if reply is None:
            raise Unsent(request)
        status, body = reply
        if status >= 400:
            content = _parse_json(body)
            raise Refused(
                status, content.get("error", content) if isinstance(content, Mapping) else content
            )
        return body.encode()


def _parse_json(body: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def compute_request_id(request: Mapping[str, Any]) -> str:
    """Return the id of *request* in a batch, a hash of 32 hexadecimal digits.

    Equal requests have equal ids, so they are sent only once.
    """
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
