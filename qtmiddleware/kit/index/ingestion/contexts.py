"""Let a model write a context for each chunk without one: the second stage of ingestion.

This stage runs only if contextual chunks are on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.index.ingestion.context_prompt import (
    DocumentViews,
    build_prompt,
    hash_prompt,
    parse_context,
)
from qtmiddleware.kit.index.ingestion.ledger import Ledger
from qtmiddleware.kit.index.ingestion.reading import hash_text
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import ModelOnly, Services, run
from qtmiddleware.types import Deadline

MOST_FAILURES: Final = 5
"""After this many failures in a row for the same reason, a run stops asking the model."""

GROUP: Final = 4
"""The number of chunks per group, for each concurrent call. With 1, a slow call would delay all."""

_MISSING: Final = """
INSERT INTO todo (chunk) SELECT c.id FROM target t JOIN documents d ON d.id = t.document \
AND d.contextual
JOIN chunks c ON c.document = d.id AND c.context IS NULL ORDER BY c.document, c.ordinal
"""
_TODO: Final = """
SELECT t.n, c.id, c.document, c.ordinal, c.start, c.stop, c.text FROM todo t \
JOIN chunks c ON c.id = t.chunk
WHERE t.n > ? ORDER BY t.n LIMIT ?
"""

logger: Final = get_logger("qtmiddleware.ingest")


class ContextWriter:
    """Asks *model* for the contexts of chunks, and saves each context in *ledger* as it arrives.

    *timeout_seconds* is the time limit of each model call.
    """

    def __init__(self, model: LanguageModel, ledger: Ledger, timeout_seconds: float) -> None:
        self._model = model
        self._ledger = ledger
        self._timeout_seconds = timeout_seconds
        self._lock = Lock()
        self._reason = ""
        self._failures = 0

    @property
    def has_given_up(self) -> bool:
        """Whether this run has stopped asking the model.

        True after five failures in a row for the same reason.
        """
        return self._failures >= MOST_FAILURES

    def write_context(self, prompt: Prompt, deadline: Deadline) -> None:
        """Ask the model to answer *prompt*, and save the context in the ledger.

        Raises `ModelError` if the model fails or its reply is unusable. If `has_given_up`, raises
        `ModelError` (``cancelled``) without asking the model.
        """
        if self.has_given_up:
            raise ModelError("cancelled")
        try:
            text = parse_context(
                prompt, self._model.complete(prompt, deadline.sooner(self._timeout_seconds))
            )
        except ModelError as error:
            self._count_failure(error)
            raise
        self._ledger.execute(
            "INSERT OR IGNORE INTO contexts VALUES (?, ?)",
            [hash_prompt(prompt, self._model.name), text],
        )
        # Only failures in a row count.
        self._failures = 0

    def count_timeout(self) -> None:
        """Count a model call that exceeded its time limit as a failure of the model."""
        self._count_failure(ModelError("timeout"))

    def _count_failure(self, error: ModelError) -> None:
        """Count *error* as a failure of the model, unless the call was cancelled.

        Logs a warning after five failures in a row for the same reason.
        """
        # A cancelled call says nothing about the model.
        if error.reason == "cancelled":
            return
        with self._lock:
            # Failures for different reasons may be chance. The same failure again and again is an
            # outage.
            self._failures = self._failures + 1 if error.reason == self._reason else 1
            self._reason = error.reason
            if self._failures == MOST_FAILURES:
                logger.warning(
                    "the model gave no context %d times in a row (%s: %s); chunks are indexed"
                    " without, and asked for again by the next ingest",
                    MOST_FAILURES,
                    error.reason,
                    error,
                    event="contexts_given_up",
                    reason=error.reason,
                    count=MOST_FAILURES,
                )


def build_embedded_text(text: str, context: str | None) -> str:
    """Return the text to embed for a chunk: its *context*, if any, followed by its *text*."""
    return f"{context}\n\n{text}" if context else text


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk of this run that needs a context.

    Attributes:
        id: the chunk's number in the ledger.
        text: the text of the chunk, without a context.
        prompt: the prompt that asks for the chunk's context.
        key: the key of the context in the ledger: a hash of the prompt and the model.
    """

    id: int
    text: str
    prompt: Prompt
    key: bytes


class Contexts:
    """Lets a model write the contexts for the chunks of one run.

    Attributes:
        written: the number of contexts that the model wrote.
        failed: the number of chunks that are left without a context.
    """

    def __init__(self, ledger: Ledger, settings: Settings, model: LanguageModel) -> None:
        self._ledger = ledger
        self._settings = settings
        self._model_name = model.name
        self._limit = settings.limits.max_concurrency
        self._writer = ContextWriter(model, ledger, settings.limits.llm_timeout_ms / 1e3)
        self._views = DocumentViews(ledger)
        self.written = 0
        self.failed = 0

    def write_contexts(self, report_progress: Callable[[int, int], None]) -> None:
        """Let the model write a context for each chunk without one.

        A chunk stays without a context if the model fails. *report_progress* is called with the
        number of processed chunks and the total number.
        """
        total = self._ledger.fill_work_table(_MISSING)
        done = 0
        report_progress(done, total)
        for page in self._ledger.fetch_row_pages(_TODO, GROUP * self._limit):
            group = [self._build_chunk(*row[1:]) for row in page]
            self._request_contexts(
                [chunk for chunk in group if self._find_context(chunk.key) is None]
            )
            self._assign_contexts(group)
            done += len(group)
            report_progress(done, total)

    def _build_chunk(
        self, id_: int, document_id: int, ordinal: int, start: int, stop: int, text: str
    ) -> _Chunk:
        prompt = build_prompt(
            self._settings, self._views.build_view(document_id, ordinal, start, stop), text
        )
        return _Chunk(id_, text, prompt, hash_prompt(prompt, self._model_name))

    def _find_context(self, context_key: bytes) -> str | None:
        context: str | None = self._ledger.fetch_first_value(
            "SELECT text FROM contexts WHERE key = ?", [context_key]
        )
        return context

    def _request_contexts(self, chunks: list[_Chunk]) -> None:
        # Equal chunks of equal documents share a key, so each context is asked for once.
        prompts = list({chunk.key: chunk.prompt for chunk in chunks}.values())
        if prompts and not self._writer.has_given_up:
            self.written += run(partial(self._complete_prompts, prompts), ModelOnly(None))

    async def _complete_prompts(self, prompts: list[Prompt], services: Services) -> int:
        """Ask the model to answer *prompts*, and return the number of contexts that it wrote."""
        rounds = -(-len(prompts) // self._limit)
        # Each call has its own time limit. This deadline is for a model that ignores the limit.
        budget = Deadline.after(rounds * self._settings.limits.llm_timeout_ms / 1e3)
        # Each context is saved as soon as it arrives, so that a killed run loses only the calls in
        # progress.
        io = services.io
        calls = [
            partial(io.call, partial(self._writer.write_context, prompt, budget))
            for prompt in prompts
        ]
        outcomes = await io.gather(calls, budget, self._limit)
        for outcome in outcomes:
            if outcome.late:
                self._writer.count_timeout()
        return sum(outcome.has_succeeded for outcome in outcomes)

    def _assign_contexts(self, chunk_group: list[_Chunk]) -> None:
        """Link each chunk in *chunk_group* to its context in the ledger, in one transaction.

        Counts the chunks without a context as failed.
        """
        with self._ledger.open_transaction():
            for chunk in chunk_group:
                context = self._find_context(chunk.key)
                if context is None:
                    self.failed += 1
                    continue
                self._ledger.execute(
                    "UPDATE chunks SET context = ?, hash = ? WHERE id = ?",
                    [chunk.key, hash_text(build_embedded_text(chunk.text, context)), chunk.id],
                )
