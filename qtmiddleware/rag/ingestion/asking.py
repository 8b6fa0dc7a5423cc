"""A language model that keeps what it wrote at once, waits no longer than it may, and is not asked in vain for long."""

from __future__ import annotations

from threading import Lock
from typing import Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.rag.ingestion.context_prompt import context_of, key
from qtmiddleware.rag.ingestion.ledger import Ledger
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

MOST_FAILURES: Final = 5
"""After so many failures in a row for the same reason the model is not asked again in this run."""

logger: Final = get_logger("qtmiddleware.ingest")


class ContextWriter:
    """Asks *model* for contexts, each within *seconds*, and keeps them in the ledger as they come."""

    def __init__(self, model: LanguageModel, ledger: Ledger, seconds: float) -> None:
        self._model = model
        self._ledger = ledger
        self._seconds = seconds
        self._lock = Lock()
        self._reason = ""
        self._failures = 0

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def has_given_up(self) -> bool:
        """Whether asking on would be in vain."""
        return self._failures >= MOST_FAILURES

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*, a usable context; raises `ModelError`."""
        if self.has_given_up:
            raise ModelError("cancelled")
        try:
            reply = self._model.complete(prompt, deadline.sooner(self._seconds))
            text = context_of(prompt, reply)
        except ModelError as error:
            self._failed(error)
            raise
        self._ledger.rows("INSERT OR IGNORE INTO contexts VALUES (?, ?)", [key(prompt, self.name), text])
        self._failures = 0
        return reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Not used here: an ingest blocks."""
        return self.complete(prompt, deadline)

    def late(self) -> None:
        """Count a reply that nobody waits for any more."""
        self._failed(ModelError("timeout"))

    def _failed(self, error: ModelError) -> None:
        if error.reason == "cancelled":
            return
        with self._lock:
            self._failures = self._failures + 1 if error.reason == self._reason else 1
            self._reason = error.reason
            if self._failures == MOST_FAILURES:
                logger.warning(
                    "the model gave no context %d times in a row (%s: %s); chunks are indexed without, and asked for "
                    "again by the next ingest",
                    MOST_FAILURES,
                    error.reason,
                    error,
                )
