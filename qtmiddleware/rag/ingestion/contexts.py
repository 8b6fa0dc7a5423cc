"""The second stage, where it is asked for: a context for each chunk that has none yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.rag.ingestion.asking import ContextWriter
from qtmiddleware.rag.ingestion.context_prompt import key, prompt
from qtmiddleware.rag.ingestion.ledger import Ledger
from qtmiddleware.rag.ingestion.reading import hash_of
from qtmiddleware.rag.ingestion.views import Views
from qtmiddleware.runtime.drivers import ModelOnly, run
from qtmiddleware.runtime.steps import Ask, Flow, Together
from qtmiddleware.types import Deadline

GROUP: Final = 4
"""Chunks in a group for each call that may be in flight, so that a slow one does not hold up the others."""

_MISSING: Final = """
INSERT INTO todo (chunk) SELECT c.id FROM target t JOIN documents d ON d.id = t.document AND d.contextual
JOIN chunks c ON c.document = d.id AND c.context IS NULL ORDER BY c.document, c.ordinal
"""
_TODO: Final = """
SELECT t.n, c.document, c.ordinal, c.start, c.stop, c.text FROM todo t JOIN chunks c ON c.id = t.chunk
WHERE t.n > ? ORDER BY t.n LIMIT ?
"""
_CLONE: Final = """
INSERT INTO documents (root, file, name, source, fingerprint, contextual)
SELECT root, file, name, source, fingerprint, contextual FROM documents WHERE id = ?
"""
_CLONE_CHUNKS: Final = """
INSERT INTO chunks (document, ordinal, start, stop, text, metadata, context, hash)
SELECT ?, ordinal, start, stop, text, metadata, context, hash FROM chunks WHERE document = ?
"""


def embedded_text(text: str, context: str | None) -> str:
    """What is embedded for a chunk."""
    return f"{context}\n\n{text}" if context else text


@dataclass(frozen=True, slots=True)
class _Chunk:
    document: int
    ordinal: int
    text: str
    asked: Prompt
    key: bytes


class Contexts:
    """Writes the contexts of one run."""

    def __init__(self, ledger: Ledger, settings: Settings, model: LanguageModel) -> None:
        self._ledger = ledger
        self._settings = settings
        self._limit = settings.limits.max_concurrency
        self._writer = ContextWriter(model, ledger, settings.limits.llm_timeout_ms / 1e3)
        self._views = Views(ledger)
        self._clones: dict[int, int] = {}
        self.written = 0
        self.failed = 0

    def write(self, tell: Callable[[int, int], None]) -> None:
        """Let every chunk of this run have its context, as far as the model gives one."""
        with self._ledger.transaction():
            self._ledger.rows("DELETE FROM todo")
            self._ledger.rows(_MISSING)
        total = self._ledger.value("SELECT count(*) FROM todo")
        done = 0
        for page in self._ledger.pages(_TODO, GROUP * self._limit):
            group = [self._chunk(*row[1:]) for row in page]
            self._ask([chunk for chunk in group if self._known(chunk.key) is None])
            self._take(group)
            done += len(group)
            tell(done, total)

    def _chunk(self, document: int, ordinal: int, start: int, stop: int, text: str) -> _Chunk:
        asked = prompt(self._settings, self._views.view(document, ordinal, start, stop), text)
        return _Chunk(document, ordinal, text, asked, key(asked, self._writer.name))

    def _known(self, wanted: bytes) -> str | None:
        found: str | None = self._ledger.value("SELECT text FROM contexts WHERE key = ?", [wanted])
        return found

    def _ask(self, chunks: list[_Chunk]) -> None:
        # Equal chunks of equal documents are asked for once.
        prompts = list({chunk.key: chunk.asked for chunk in chunks}.values())
        if prompts and not self._writer.has_given_up:
            self.written += run(self._asking(prompts), ModelOnly(self._writer))

    def _asking(self, prompts: list[Prompt]) -> Flow[int]:
        """How many of *prompts* were answered; what was answered is in the ledger by then."""
        rounds = -(-len(prompts) // self._limit)
        # Each call has a time limit of its own; this is for a model that minds none.
        budget = Deadline.after(rounds * self._settings.limits.llm_timeout_ms / 1e3)
        outcomes = yield Together([Ask(it, Deadline(budget.at)) for it in prompts], budget, self._limit)
        for outcome in outcomes:
            if outcome.late:
                self._writer.late()
        return sum(outcome.ok for outcome in outcomes)

    def _take(self, group: list[_Chunk]) -> None:
        with self._ledger.transaction():
            for chunk in group:
                context = self._known(chunk.key)
                if context is None:
                    self.failed += 1
                    continue
                document = self._writable(chunk.document)
                self._ledger.rows(
                    "UPDATE chunks SET context = ?, hash = ? WHERE document = ? AND ordinal = ?",
                    [chunk.key, hash_of(embedded_text(chunk.text, context)), document, chunk.ordinal],
                )

    def _writable(self, document: int) -> int:
        """*document*, or a new version of it where it is in the store as it is."""
        ledger = self._ledger
        if document not in self._clones:
            self._clones[document] = document
            if ledger.value("SELECT stored FROM documents WHERE id = ?", [document]):
                clone = ledger.insert(_CLONE, [document])
                ledger.rows(_CLONE_CHUNKS, [clone, document])
                ledger.rows("UPDATE documents SET complete = 1 WHERE id = ?", [clone])
                ledger.rows("UPDATE target SET document = ? WHERE document = ?", [clone, document])
                self._clones[document] = clone
        return self._clones[document]
