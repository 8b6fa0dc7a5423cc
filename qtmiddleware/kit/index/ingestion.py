"""Build a searchable index from files, and update it without embedding any text twice.

    documents -> chunks -> [contexts] -> vectors -> store

Ids are deterministic, and a write replaces passages with the same ids. A document is marked as done
in the ledger, the SQLite file ``<indexPath>.ingest``, after the store has all its passages. If a
run is killed, the next run does the unmarked documents again. Vectors and contexts are saved in the
ledger at once, so that nothing is paid for twice.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import Converter, Reader
from qtmiddleware.kit.index.contexts import ContextWriter
from qtmiddleware.kit.index.ledger import Ledger, open_ledger
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.index.sources import NotTaken, Source, identify_file
from qtmiddleware.kit.index.vectors import build_embedding_name, embed_batches
from qtmiddleware.kit.ray_data import connect_to_ray
from qtmiddleware.protocols import Embedder, Passage, Store
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.logs import get_logger

Stage = Literal["reading", "contexts", "embedding", "publishing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one stage of an ingest.

    Attributes:
        stage: the stage that is running, such as ``reading``.
        done: the number of documents (stage ``reading``) or chunks (other stages) done so far.
        total: the total number of documents or chunks in this stage.
        path: the document that was just read; empty in stages other than ``reading``.
    """

    stage: Stage
    done: int
    total: int
    path: str = ""


Listener = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that could not be read.

    Attributes:
        path: the path of the document.
        reason: the reason why it could not be read.
        extra: the extra of qtmiddleware whose installation would help; empty if there is none.
    """

    path: str
    reason: str
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """The result of an ingest: the content of the index, and the changes of this run.

    Attributes:
        documents: how many documents of the data path the index now contains.
        chunks: how many chunks of these documents the index now contains.
        added: the number of new documents.
        changed: the number of documents that changed since they were indexed.
        unchanged: the number of documents that did not change since they were indexed.
        removed: the number of documents that were removed from the index.
        skipped: the documents that could not be read; chunks of an earlier run stay.
        written: the number of passages written to the store.
        embedded: the number of texts that were embedded.
        contexts: the number of contexts that the model wrote in this run.
        contexts_failed: the number of chunks that are indexed without a context.
        seconds: the duration of the whole run, in seconds.
        left_out: the number of files that are not documents, per file extension.
    """

    documents: int = 0
    chunks: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: tuple[Skipped, ...] = ()
    written: int = 0
    embedded: int = 0
    contexts: int = 0
    contexts_failed: int = 0
    seconds: float = 0.0
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_skipped(self) -> bool:
        """Whether none of the documents could be read; ``False`` if there were no documents."""
        return bool(self.skipped) and not (self.added or self.changed or self.unchanged)


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None

logger: Final = get_logger("qtmiddleware.ingest")

# The number of chunks that are embedded and written together.
_GROUP: Final = 512
# The passages of a document that has become shorter.
_STALE: Final = "FROM chunks WHERE file = ? AND ordinal >= ?"


def ingest(
    data_path: str | os.PathLike[str] | None = None,
    *,
    config: ConfigSource = None,
    client: Any = None,
    embedder: Any = None,
    store: Store | None = None,
    reader: Reader | None = None,
    progress: Listener | None = None,
    on_ray: bool = False,
) -> IngestReport:
    """Update the index with the documents of *data_path*, and return a report.

    New and changed documents are read, split into chunks, embedded and stored. Unchanged documents
    are skipped, and deleted documents are removed. A document that cannot be read is reported, and
    its old chunks stay. Documents of other data paths in the same index are not changed.

    If the run is killed or interrupted, the next run completes the work, without embedding a text
    or asking for a context twice. Counts are logged to ``qtmiddleware.ingest``.

    Args:
        data_path: a file, a folder or a glob. By default, the setting ``dataPath``.
        config: the config, in any form that `QueryMiddleware` accepts.
        client: the language model for contextual chunks, in any form that `QueryMiddleware`
            accepts.
        embedder: an embedder or embedding function, used instead of the configured model.
        store: an open store, used instead of the configured store. The store stays open.
        reader: your own reader, a function of a path that returns a text, several texts, or pairs
            of a text and its location (``("...", {"page": 3})``). The function is called for each
            new or changed file, and in folders for all file types. For ``None``, the built-in
            reader is used. If the function raises, the file is skipped. It has no time limit. If
            you change the texts that the function returns, rename it, because the ledger identifies
            a reader by its name.
        progress: a function that is called with a `Progress` after each step. An exception from
            this function ends the run.
        on_ray: whether to run a built-in local embedding model on the Ray cluster at
            ``RAY_ADDRESS``, or on a cluster that is started on this machine. The ids, chunks and
            vectors are the same.

    Raises:
        ConfigError: if there is no data path, or if the data path contains no documents.
        StoreError: if another ingest into this index is running, or if the store fails.
        EmbeddingError: if the texts cannot be embedded.
        MissingExtra: if a package is missing. In a folder, a document that needs the package is
            skipped instead.
        EngineError: if Ray cannot be reached, or ended the run.
    """
    settings = Config.load(config).settings
    path = os.fspath(data_path) if data_path is not None else settings.data_path
    if not path:
        message = "dataPath is not set; name a file, a folder or a glob, or set dataPath"
        raise ConfigError(message, path="dataPath", allowed="a file, a folder or a glob")
    model = None
    if settings.contextual_chunks:
        inner = make_language_model(client, settings)
        limits = settings.breaker
        breaker = Breaker(limits.failures, limits.seconds, name=inner.name)
        model = GovernedModel(inner, settings, breaker)
    # Documents are searched before the index is opened, so that a wrong path leaves no empty index
    # behind.
    source = Source(path, settings, reader=reader)
    start = perf_counter()
    with closing(open_ledger(settings, store)) as ledger:
        retriever = open_retriever(settings, store=store, embedder=embedder)
        try:
            contexts = None if model is None else ContextWriter(model, ledger, settings)
            run = _Run(ledger, source, retriever.store, retriever.embedder, contexts, progress)
            run.forget_emptied_store()
            _log_counts("Reading documents", files=len(source.paths))
            with connect_to_ray() if on_ray else nullcontext(), Converter() as converter:
                run.index_documents(converter, on_ray=on_ray)
            run.remove_gone_documents()
            return run.build_report(perf_counter() - start)
        finally:
            retriever.close()


@dataclass(slots=True)
class _Document:
    """A new or changed document, with the identity under which the ledger knows it.

    Attributes:
        keys: The hash of each passage's text, in the order of *passages*.
    """

    file: str
    name: str
    fingerprint: str
    passages: list[Passage]
    keys: list[bytes] = field(default_factory=list)


class _Run:
    """One run over the documents of a data path."""

    def __init__(
        self,
        ledger: Ledger,
        source: Source,
        store: Store,
        embedder: Embedder,
        contexts: ContextWriter | None,
        progress: Listener | None,
    ) -> None:
        self._ledger, self._source, self._store, self._embedder = ledger, source, store, embedder
        self._contexts, self._progress = contexts, progress
        self._embedding = build_embedding_name(embedder)
        context_version = contexts.version if contexts else ""
        self._version = f"{store.identity} {self._embedding} {context_version}"
        self._files: set[str] = set()
        # By the name of a field of the report.
        self._counts: Any = Counter()
        self._left_out = Counter(source.left_out)
        self._skipped: list[Skipped] = []

    def forget_emptied_store(self) -> None:
        """Forget which documents are done if the store has no passages any more."""
        if not self._store.count():
            self._ledger.execute("UPDATE documents SET fingerprint = ''")

    def index_documents(self, converter: Converter, *, on_ray: bool) -> None:
        """Index the new and changed documents."""
        paths = self._source.paths
        group: list[_Document] = []
        self._report("reading", 0, len(paths))
        for done, path in enumerate(paths, 1):
            if document := self._read(path, converter):
                group.append(document)
            self._report("reading", done, len(paths), str(path))
            is_full = sum(len(document.passages) for document in group) >= _GROUP
            if group and (is_full or done == len(paths)):
                self._index(group, on_ray=on_ray)
                group = []

    def _read(self, path: Path, converter: Converter) -> _Document | None:
        """Read a document; return ``None`` if it is unchanged or cannot be read."""
        ledger, file = self._ledger, identify_file(path)
        self._files.add(file)
        find_name = "SELECT 1 FROM documents WHERE name = ?"
        try:
            # The hash is computed before the file is read. If the file changes in between, the next
            # run sees another fingerprint and reads the file again.
            fingerprint = self._source.compute_fingerprint(path, self._version)
            # A file in two data paths belongs to the one that is ingested last.
            ledger.execute("UPDATE documents SET root = ? WHERE file = ?", self._source.key, file)
            known = ledger.execute("SELECT name, fingerprint FROM documents WHERE file = ?", file)
            if known and known[0][1] == fingerprint:
                self._counts["unchanged"] += 1
                return None
            name = (
                known[0][0]
                if known
                else self._source.build_name(path, lambda name: ledger.find_value(find_name, name))
            )
            passages = self._source.read_passages(path, name, converter)
            return _Document(file, name, fingerprint, passages)
        except NotTaken:
            self._files.discard(file)
            self._left_out[path.suffix.casefold()] += 1
        except UnreadableDocument as error:
            detail = f" ({error.detail})" if error.detail else ""
            self._skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
        except MissingExtra as error:
            # In a folder, one such file must not stop the run. A file that the user named is
            # different.
            if self._source.is_file:
                raise
            self._skipped.append(Skipped(str(path), str(error), error.extra))
        return None

    def _index(self, documents: list[_Document], *, on_ray: bool) -> None:
        """Write the passages of *documents* to the store, and mark the documents as done."""
        texts: dict[bytes, str] = {}
        for document in documents:
            self._add_contexts(document)
            for passage in document.passages:
                context = passage.metadata.get("context")
                text = f"{context}\n\n{passage.text}" if context else passage.text
                key = hashlib.sha256(f"{self._embedding}\n{text}".encode()).digest()
                document.keys.append(key)
                texts[key] = text
        missing = self._register(documents, texts)
        self._embed(missing, on_ray=on_ray)
        ledger = self._ledger
        stale_ids = [
            f"{document.name}#{ordinal}"
            for document in documents
            for (ordinal,) in ledger.execute(
                f"SELECT CAST(ordinal AS INTEGER) {_STALE}", document.file, len(document.keys)
            )
        ]
        total = sum(len(document.passages) for document in documents)
        self._report("publishing", 0, total)
        # The vectors are read one by one, as the store asks for them.
        pairs = (
            (passage, ledger.read_vector(document.file, ordinal))
            for document in documents
            for ordinal, passage in enumerate(document.passages)
        )
        self._store.write(pairs, delete=stale_ids)
        self._report("publishing", total, total)
        mark = "UPDATE documents SET fingerprint = ? WHERE file = ?"
        with ledger.open_transaction():
            for document in documents:
                ledger.execute(f"DELETE {_STALE}", document.file, len(document.keys))
                ledger.execute(mark, document.fingerprint, document.file)
        self._counts["written"] += total
        self._counts["embedded"] += len(missing)

    def _add_contexts(self, document: _Document) -> None:
        if self._contexts is None:
            return
        report = partial(self._report, "contexts")
        document.passages = self._contexts.add_contexts(document.passages, report)
        if not all("context" in passage.metadata for passage in document.passages):
            # Without a fingerprint, the next run asks again.
            document.fingerprint = ""

    def _register(
        self, documents: list[_Document], texts: Mapping[bytes, str]
    ) -> list[tuple[bytes, str]]:
        """Note what may be in the store from now on, and return the texts without a vector."""
        ledger = self._ledger
        find = "SELECT vector FROM chunks WHERE hash = ? AND vector IS NOT NULL"
        find_document = "SELECT 1 FROM chunks WHERE file = ?"
        # Read before the first row is replaced: a vector may only change its place.
        vectors = {key: ledger.find_value(find, key) for key in texts}
        with ledger.open_transaction():
            for document in documents:
                is_known = ledger.find_value(find_document, document.file)
                self._counts["changed" if is_known else "added"] += 1
                ledger.execute(
                    "INSERT INTO documents (file, root, name) VALUES (?, ?, ?)"
                    " ON CONFLICT (file) DO UPDATE SET fingerprint = ''",
                    document.file,
                    self._source.key,
                    document.name,
                )
                ledger.execute_many(
                    "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?)",
                    [
                        (document.file, ordinal, key, vectors[key])
                        for ordinal, key in enumerate(document.keys)
                    ],
                )
        return [(key, text) for key, text in texts.items() if vectors[key] is None]

    def _embed(self, texts: list[tuple[bytes, str]], *, on_ray: bool) -> None:
        """Embed *texts* and save each batch of vectors at once."""
        done = 0
        for vectors in embed_batches(self._embedder, texts, on_ray=on_ray):
            with self._ledger.open_transaction():
                save = "UPDATE chunks SET vector = ? WHERE hash = ?"
                self._ledger.execute_many(save, vectors)
            done += len(vectors)
            self._report("embedding", done, len(texts))

    def remove_gone_documents(self) -> None:
        """Remove the documents of this data path that were not found any more."""
        ledger = self._ledger
        rows = ledger.execute("SELECT file FROM documents WHERE root = ?", self._source.key)
        gone = [row for row in rows if row[0] not in self._files]
        find = (
            "SELECT name || '#' || ordinal FROM documents JOIN chunks USING (file) WHERE file = ?"
        )
        ids = [id_ for row in gone for (id_,) in ledger.execute(find, *row)]
        # If this run is killed now, a document that comes back is not taken for unchanged.
        with ledger.open_transaction():
            ledger.execute_many("UPDATE documents SET fingerprint = '' WHERE file = ?", gone)
        if ids:
            self._store.write((), delete=ids)
        with ledger.open_transaction():
            ledger.execute_many("DELETE FROM chunks WHERE file = ?", gone)
            ledger.execute_many("DELETE FROM documents WHERE file = ?", gone)
        self._counts["removed"] = len(gone)

    def build_report(self, seconds: float) -> IngestReport:
        """Return the report of this run, and log its counts."""
        ((documents, chunks),) = self._ledger.execute(
            "SELECT count(DISTINCT file), count(*) FROM documents JOIN chunks USING (file)"
            " WHERE root = ?",
            self._source.key,
        )
        report = IngestReport(
            documents=documents,
            chunks=chunks,
            skipped=tuple(self._skipped),
            contexts=self._contexts.written if self._contexts else 0,
            contexts_failed=self._contexts.failed if self._contexts else 0,
            seconds=seconds,
            left_out=dict(self._left_out.most_common()),
            **self._counts,
        )
        read = report.added + report.changed + report.unchanged
        _log_counts("Loaded documents", count=read, skipped=len(report.skipped))
        _log_counts("Created chunks", count=chunks)
        _log_counts("Embedded chunks", count=report.embedded)
        _log_counts("Persisted vector index", documents=documents, chunks=chunks)
        return report

    def _report(self, stage: Stage, done: int, total: int, path: str = "") -> None:
        if self._progress is not None and (total or stage == "reading"):
            self._progress(Progress(stage, done, total, path))


def _log_counts(event: str, **counts: float) -> None:
    """Log *event* with its *counts*, both in the message and as fields for JSON logs."""
    counts_text = ", ".join(f"{name} {value}" for name, value in counts.items())
    attributes: dict[str, Any] = {"event": event, **counts}
    logger.info("%s: %s", event, counts_text, extra={"event": event, "meta": counts}, **attributes)


__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
