"""One ingest, from the data path to the report."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, UnreadableDocument
from qtmiddleware.protocols import LanguageModel, Store
from qtmiddleware.providers.llms import as_language_model
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.rag.documents import find_documents
from qtmiddleware.rag.ingestion.context_prompt import version
from qtmiddleware.rag.ingestion.contexts import Contexts
from qtmiddleware.rag.ingestion.embedding import embed_missing, embedding_of
from qtmiddleware.rag.ingestion.ledger import Ledger, ledger_for
from qtmiddleware.rag.ingestion.names import Root, absolute
from qtmiddleware.rag.ingestion.publishing import Publication
from qtmiddleware.rag.ingestion.reading import Reader
from qtmiddleware.rag.ingestion.report import IngestReport, Listener, Progress, Skipped, Stage
from qtmiddleware.rag.retriever import Kit, open_kit
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.logs import get_logger

ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None

logger: Final = get_logger("qtmiddleware.ingest")

_HELD: Final = """
SELECT count(DISTINCT d.id), count(c.id) FROM target t JOIN documents d ON d.id = t.document AND d.root = ?
LEFT JOIN chunks c ON c.document = d.id
"""


def ingest(
    data_path: str | os.PathLike[str] | None = None,
    *,
    config: ConfigSource = None,
    client: Any = None,
    embedder: Any = None,
    store: Store | None = None,
    progress: Listener | None = None,
) -> IngestReport:
    """Bring the index up to date with the documents of *data_path*: a file, a folder or a glob (``dataPath``).

    New and changed documents are read, cut, embedded and stored; unchanged ones are left alone; those that are gone
    leave the index. One that cannot be read is reported and keeps what was indexed of it before. Other data paths in
    the same index are not touched; a file that lies in two of them belongs to the one ingested last. A data path
    without any document is an error and changes nothing.

    *config* is what `QueryMiddleware` takes. *client* is the language model of contextual chunks, as there. *embedder*
    and *store* stand in for those the configuration names; a given store is not closed. *progress* is told of every
    step; what it raises ends the run.

    Killed or interrupted at any point, the next run completes the work, without embedding or asking for anything twice.
    Memory stays bounded however much there is to read. Log lines with counts go to ``qtmiddleware.ingest``.

    Raises `ConfigError` where there is no data path, `StoreError` where another ingest into this index is running or
    the store fails, `EmbeddingError` and `MissingExtra`.
    """
    settings = Config.load(config).settings
    path = os.fspath(data_path) if data_path is not None else settings.data_path
    if not path:
        raise ConfigError(
            "there is nothing to ingest: name a file, a folder or a glob, or set dataPath",
            path="dataPath",
            value=path,
            allowed="a file, a folder or a glob",
        )
    model = _context_model(client, settings) if settings.contextual_chunks else None
    # Looked for before anything is opened: a wrong path leaves no empty index behind.
    paths = list({absolute(it): it for it in find_documents(path)}.values())
    with ledger_for(settings, store) as ledger:
        kit = open_kit(settings, store=store, embedder=embedder)
        try:
            return _Run(Root.of(path), settings, ledger, kit, model, progress).report(paths)
        finally:
            kit.close()


def _context_model(client: Any, settings: Settings) -> LanguageModel:
    model = as_language_model(client, settings)
    # What fails again and again is given up here once and for all, so nothing is left alone for a while.
    return GovernedModel(model, settings, Breaker(0, 1.0))


class _Run:
    """One run over one data path."""

    def __init__(
        self,
        root: Root,
        settings: Settings,
        ledger: Ledger,
        kit: Kit,
        model: LanguageModel | None,
        progress: Listener | None,
    ) -> None:
        self._root = root
        self._settings = settings
        self._ledger = ledger
        self._kit = kit
        self._model = model
        self._progress = progress
        self._seconds: defaultdict[Stage, float] = defaultdict(float)

    def report(self, paths: Sequence[Path]) -> IngestReport:
        """Perform the run over the documents at *paths*; what came of it."""
        began = perf_counter()
        kinds, skipped = self._read(paths)
        contexts = self._contexts()
        embedding = embedding_of(self._kit.embedder)
        publication = Publication(self._ledger, self._root, self._kit.store, embedding)
        written = publication.prepare()
        embedded = self._embed()
        removed = self._publish(publication)
        ((documents, chunks),) = self._ledger.rows(_HELD, [self._root.key])
        seconds = perf_counter() - began
        _log("Persisted vector index", documents=documents, chunks=chunks, seconds=round(seconds, 3))
        return IngestReport(
            documents=documents,
            chunks=chunks,
            added=kinds["added"],
            changed=kinds["changed"],
            unchanged=kinds["unchanged"],
            removed=removed,
            skipped=tuple(skipped),
            written=written,
            embedded=embedded,
            reused=written - embedded if embedding else 0,
            contexts=contexts.written if contexts else 0,
            contexts_failed=contexts.failed if contexts else 0,
            seconds=seconds,
            embed_seconds=self._seconds["embedding"],
            context_seconds=self._seconds["contexts"],
        )

    def _read(self, paths: Sequence[Path]) -> tuple[Counter[str], list[Skipped]]:
        model = self._model
        flavour = "" if model is None else f"{version(self._settings)} {model.name}"
        reader = Reader(self._ledger, self._settings, self._root, flavour)
        kinds: Counter[str] = Counter()
        skipped: list[Skipped] = []
        with self._stage("reading"):
            for done, path in enumerate(paths, 1):
                try:
                    kinds[reader.take(path)] += 1
                except UnreadableDocument as error:
                    reader.keep(path)
                    detail = f" ({error.detail})" if error.detail else ""
                    skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
                self._tell("reading", done, len(paths), str(path))
        _log("Loaded documents", count=kinds.total(), skipped=len(skipped))
        _log("Created chunks", count=self._ledger.rows(_HELD, [self._root.key])[0][1])
        return kinds, skipped

    def _contexts(self) -> Contexts | None:
        if self._model is None:
            return None
        contexts = Contexts(self._ledger, self._settings, self._model)
        with self._stage("contexts"):
            contexts.write(lambda done, total: self._tell("contexts", done, total))
        _log("Wrote contexts", count=contexts.written, failed=contexts.failed)
        return contexts

    def _embed(self) -> int:
        if self._kit.embedder is None:
            return 0
        with self._stage("embedding"):
            count = embed_missing(
                self._ledger, self._kit.embedder, lambda done, total: self._tell("embedding", done, total)
            )
        _log("Embedded chunks", count=count, seconds=round(self._seconds["embedding"], 3))
        return count

    def _publish(self, publication: Publication) -> int:
        with self._stage("publishing"):
            return publication.publish(lambda done, total: self._tell("publishing", done, total))

    def _tell(self, stage: Stage, done: int, total: int, path: str = "") -> None:
        if self._progress is not None:
            self._progress(Progress(stage, done, total, path))

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        began = perf_counter()
        yield
        self._seconds[stage] += perf_counter() - began


def _log(event: str, **meta: float) -> None:
    """One line with its counts in the message and, for those who write JSON, as ``event`` and ``meta``."""
    told = ", ".join(f"{name} {value}" for name, value in meta.items())
    logger.info("%s: %s", event, told, extra={"event": event, "meta": meta})
