"""Share transformations between processes, in a cache that the user passes."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Cache
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.steps import Flow, Outcome, Recall, Together
from qtmiddleware.types import Deadline, Degradation, Transformation

MAX_SECONDS: Final = 0.25
"""How long a question waits for a read, and for a write, in seconds."""

MAX_CHARS: Final = 1 << 20
"""The length of the longest value that is written or read, in characters."""


class SharedCache:
    """A cache that several processes share.

    A question waits at most `MAX_SECONDS` for a read, and at most a quarter of the time that is
    left for the model. After a failure, no question uses the cache for *pause_seconds*, so that a
    hanging cache does not slow down every question.

    Args:
        cache: The user's cache.
        pause_seconds: The pause after a failure, in seconds.

    Raises:
        ConfigError: *cache* has no methods ``get`` and ``set``.
    """

    def __init__(self, cache: Cache, pause_seconds: float) -> None:
        if not (callable(getattr(cache, "get", None)) and callable(getattr(cache, "set", None))):
            raise ConfigError(
                "cache= must be an object with get(key) and set(key, value, seconds), not"
                f" {type(cache).__name__}",
                path="cache",
            )
        self._cache = cache
        self._breaker = Breaker(1, pause_seconds)

    def change_pause(self, seconds: float) -> None:
        """Set the pause after a failure, in seconds."""
        self._breaker.change_limits(1, seconds)

    def read(
        self, key: str, deadline: Deadline, degradations: list[Degradation]
    ) -> Flow[Transformation | None]:
        """Return the transformation stored under *key*; ``None`` if there is none.

        Problems are added to *degradations*.
        """
        value = yield from self._call(partial(self._cache.get, key), deadline, degradations)
        if value is None:
            return None
        transformation = decode_transformation(value, key)
        if transformation is None:
            degradations.append(Degradation("cache", "unreadable"))
        return transformation

    def write(
        self,
        key: str,
        transformation: Transformation,
        ttl_seconds: int,
        deadline: Deadline,
        degradations: list[Degradation],
    ) -> Flow[None]:
        """Store *transformation* under *key* for *ttl_seconds*, unless it is too long.

        Problems are added to *degradations*.
        """
        value = encode_transformation(transformation, key)
        if len(value) <= MAX_CHARS:
            call = partial(self._cache.set, key, value, ttl_seconds)
            yield from self._call(call, deadline, degradations)

    def _call(
        self, call: partial[Any], deadline: Deadline, degradations: list[Degradation]
    ) -> Flow[Any]:
        """Return the result of *call*; ``None`` if it fails, is late or is not made."""
        seconds = min(MAX_SECONDS, deadline.remaining() / 4)
        deadline = deadline.sooner(seconds)
        attempt = self._breaker.begin_attempt(deadline.at, has_enough_time=seconds == MAX_SECONDS)
        if attempt is None:
            return None
        outcome: Outcome
        try:
            # The step's own limit only ends an awaitable that nobody waits for any more.
            (outcome,) = yield Together([Recall(call, 2 * MAX_SECONDS)], deadline, 1)
            if outcome.has_succeeded:
                attempt.report_success()
                return outcome.value
            if outcome.late:
                attempt.report_timeout()
            elif outcome.reason == "failed":
                attempt.report_failure()
        finally:
            # The caller may have stopped waiting, or no thread was free.
            attempt.report_unknown_result()
        degradations.append(Degradation("cache", outcome.reason, outcome.detail))
        return None


def encode_transformation(transformation: Transformation, key: str) -> str:
    """Return *transformation* as JSON, with *key*. Empty fields are omitted."""
    fields: dict[str, Any] = {"key": key}
    for name in (*TEXT_FIELDS, "notes"):
        value = getattr(transformation, name)
        if value is not None and value != ():
            fields[name] = value
    return json.dumps(fields, separators=(",", ":"))


def decode_transformation(value: Any, key: str) -> Transformation | None:
    """Return the transformation that `encode_transformation` encoded as *value* with *key*.

    Returns ``None`` if *value* is anything else. It may be `bytes`, as some clients return them.
    """
    if not isinstance(value, str | bytes) or len(value) > MAX_CHARS:
        return None
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError):
        return None
    # A cache that returns the value of another key would answer another question.
    if not isinstance(fields, dict) or fields.pop("key", None) != key:
        return None
    notes = fields.pop("notes", [])
    if not isinstance(notes, list) or not all(
        _is_list_of_strings(note) and len(note) == 2 for note in notes
    ):
        return None
    texts: dict[str, Any] = {}
    for name, text in fields.items():
        row = TEXT_FIELDS.get(name)
        if row is None or not (
            _is_list_of_strings(text) if row.shape == "list" else isinstance(text, str)
        ):
            return None
        texts[name] = tuple(text) if row.shape == "list" else text
    transformation = Transformation(**texts, notes=tuple((field, note) for field, note in notes))
    return None if transformation.is_empty else transformation


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
