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
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.reading import Converter
from qtmiddleware.kit.embedding import SentenceTransformersEmbedder
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder
from qtmiddleware.kit.index.contexts import ContextWriter
from qtmiddleware.kit.index.ledger import Ledger, open_ledger
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.index.sources import Source, identify_file
from qtmiddleware.kit.ray_data import connect_to_ray, map_on_ray
from qtmiddleware.protocols import Embedder, Passage, Store
from qtmiddleware.providers.embedding import read_vectors
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


logger: Final = get_logger("qtmiddleware.ingest")

# The number of chunks that are embedded and written together.
_GROUP: Final = 512
# The number of texts per call of an embedder, and of a local model: there, larger batches are no
# faster, and progress is shown less often.
_BATCH: Final = 64
_LOCAL_BATCH: Final = 16

# Texts to embed, with their hashes.
_Texts = list[tuple[bytes, str]]


def ingest(
    data_path: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None = None,
    client: Any = None,
    embedder: Any = None,
    store: Store | None = None,
    progress: Listener | None = None,
    on_ray: bool = False,
) -> IngestReport:
    """Update the index with the documents of *data_path*, and return a report.

    New and changed documents are read, split into chunks, embedded and stored. Unchanged documents
    are skipped, and deleted documents are removed. A document that cannot be read is reported, and
    its old chunks stay. Documents of other data paths in the same index are not changed, unless
    they were deleted from the folder *data_path* or from the folder of a glob.

    If the run is killed, the next run completes the work, without embedding a text or asking for a
    context twice.

    Args:
        data_path: a file, a folder or a glob. By default, the setting ``dataPath``.
        config: the config, in any form that `QueryMiddleware` accepts.
        client: the language model for contextual chunks, in any form that `QueryMiddleware`
            accepts.
        embedder: an embedder or embedding function, used instead of the configured model.
        store: an open store, used instead of the configured store. The store stays open.
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
    source = Source(path, settings)
    start = perf_counter()
    with closing(open_ledger(settings, store)) as ledger:
        retriever = open_retriever(settings, store=store, embedder=embedder)
        try:
            contexts = None if model is None else ContextWriter(model, ledger, settings)
            run = _Run(ledger, source, retriever.store, retriever.embedder, contexts, progress)
            _log_counts("Reading documents", files=len(source.paths))
            with connect_to_ray() if on_ray else nullcontext(), Converter() as converter:
                run.index_documents(converter, on_ray=on_ray)
            run.remove_gone_documents()
            return run.build_report(perf_counter() - start)
        finally:
            retriever.close()


@dataclass(slots=True)
class _Document:
    """A new or changed document; *keys* are the hashes of its passages' texts."""

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
        self._ledger = ledger
        self._source = source
        self._store = store
        self._embedder = embedder
        self._contexts = contexts
        self._progress = progress
        # Only vectors of one model and one length can be compared.
        self._embedding = f"{embedder.name}/{embedder.dimension}"
        context_version = contexts.version if contexts else ""
        self._version = f"{store.identity} {self._embedding} {context_version}"
        self._files: set[str] = set()
        # By the name of a field of the report.
        self._counts: Any = Counter()
        self._skipped: list[Skipped] = []

    def index_documents(self, converter: Converter, *, on_ray: bool) -> None:
        """Index the new and changed documents, or all if the store has been emptied."""
        if not self._store.count():
            self._ledger.execute("UPDATE documents SET fingerprint = ''")
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
            is_taken = partial(ledger.find_value, "SELECT 1 FROM documents WHERE name = ?")
            name = known[0][0] if known else self._source.build_name(path, is_taken)
            passages = self._source.read_passages(path, name, converter)
            return _Document(file, name, fingerprint, passages)
        except UnreadableDocument as error:
            detail = f" ({error.detail})" if error.detail else ""
            self._skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
        except MissingExtra as error:
            # In a folder, such a file does not stop the run.
            if self._source.is_file:
                raise
            self._skipped.append(Skipped(str(path), str(error), error.extra))
        return None

    def _index(self, documents: list[_Document], *, on_ray: bool) -> None:
        """Write the passages of *documents* to the store, and mark the documents as done."""
        ledger = self._ledger
        texts: dict[bytes, str] = {}
        files: dict[bytes, str] = {}
        for document in documents:
            self._add_contexts(document)
            for passage in document.passages:
                context = passage.metadata.get("context")
                text = f"{context}\n\n{passage.text}" if context else passage.text
                key = hashlib.sha256(f"{self._embedding}\n{text}".encode()).digest()
                document.keys.append(key)
                texts[key] = text
                files[key] = document.file
        find = "SELECT 1 FROM vectors WHERE key = ?"
        missing = [(key, text) for key, text in texts.items() if not ledger.find_value(find, key)]
        stale_ids = self._register(documents)
        done = 0
        for vectors in _embed_texts(self._embedder, missing, on_ray=on_ray):
            rows = [(key, files[key], vector) for key, vector in vectors]
            # Each batch is saved at once: it may be paid for.
            with ledger.open_transaction():
                ledger.execute_many("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", rows)
            done += len(rows)
            self._report("embedding", done, len(missing))
        total = sum(len(document.passages) for document in documents)
        self._report("publishing", 0, total)
        # The vectors are read one by one, as the store asks for them.
        pairs = (
            (passage, ledger.read_vector(key))
            for document in documents
            for passage, key in zip(document.passages, document.keys, strict=True)
        )
        self._store.write(pairs, delete=stale_ids)
        self._report("publishing", total, total)
        mark = "UPDATE documents SET chunks = ?, fingerprint = ? WHERE file = ?"
        with ledger.open_transaction():
            for document in documents:
                ledger.keep_vectors(document.file, document.keys)
                ledger.execute(mark, len(document.keys), document.fingerprint, document.file)
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

    def _register(self, documents: list[_Document]) -> list[str]:
        """Note what may be in the store from now on, and return the ids that must leave it."""
        ledger = self._ledger
        find = "SELECT chunks FROM documents WHERE file = ?"
        insert = (
            "INSERT INTO documents (file, root, name, chunks) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (file) DO UPDATE SET fingerprint = '', chunks = max(chunks, ?4)"
        )
        stale_ids: list[str] = []
        with ledger.open_transaction():
            for document in documents:
                old_count = ledger.find_value(find, document.file) or 0
                count = len(document.passages)
                self._counts["changed" if old_count else "added"] += 1
                ledger.execute(insert, document.file, self._source.key, document.name, count)
                stale_ids += _list_ids(document.name, count, old_count)
        return stale_ids

    def remove_gone_documents(self) -> None:
        """Remove the documents of this data path that were not found any more."""
        ledger = self._ledger
        files, ids = [], []
        rows = ledger.execute("SELECT file, root, name, chunks FROM documents")
        for file, root, name, chunks in rows:
            if file not in self._files and self._source.has_lost(file, root):
                files.append((file,))
                ids += _list_ids(name, 0, chunks)
        # If this run is killed now, a document that comes back is not taken for unchanged.
        with ledger.open_transaction():
            ledger.execute_many("UPDATE documents SET fingerprint = '' WHERE file = ?", files)
        if ids:
            self._store.write((), delete=ids)
        with ledger.open_transaction():
            ledger.execute_many("DELETE FROM vectors WHERE file = ?", files)
            ledger.execute_many("DELETE FROM documents WHERE file = ?", files)
        self._counts["removed"] = len(files)

    def build_report(self, seconds: float) -> IngestReport:
        """Return the report of this run, and log its counts."""
        ((documents, chunks),) = self._ledger.execute(
            "SELECT count(*), ifnull(sum(chunks), 0) FROM documents WHERE root = ?",
            self._source.key,
        )
        report = IngestReport(
            documents=documents,
            chunks=chunks,
            skipped=tuple(self._skipped),
            contexts=self._contexts.written if self._contexts else 0,
            contexts_failed=self._contexts.failed if self._contexts else 0,
            seconds=seconds,
            left_out=self._source.left_out,
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


def _list_ids(name: str, start: int, end: int) -> list[str]:
    return [f"{name}#{number}" for number in range(start, end)]


def _embed_texts(
    embedder: Embedder, texts: _Texts, *, on_ray: bool
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the vectors of *texts* with the texts' hashes, batch by batch, in any order on Ray.

    A vector is in single precision, little endian. Raises `EmbeddingError` for invalid vectors;
    exceptions of *embedder* are raised unchanged.
    """
    is_local_model = isinstance(embedder, MiniLMEmbedder | SentenceTransformersEmbedder)
    size = _LOCAL_BATCH if is_local_model else _BATCH
    batches = (texts[start : start + size] for start in range(0, len(texts), size))
    if on_ray and is_local_model:
        # Each worker builds `partial(_embed_batch, embedder)`, and so loads the model once.
        yield from map_on_ray(partial(partial, _embed_batch, embedder), batches)
    else:
        yield from map(partial(_embed_batch, embedder), batches)


def _embed_batch(embedder: Embedder, texts: _Texts) -> list[tuple[bytes, bytes]]:
    returned = embedder.embed([text for _, text in texts])
    vectors = read_vectors(returned, len(texts), embedder.name, embedder.dimension)
    layout = struct.Struct(f"<{embedder.dimension}f")
    return [(key, layout.pack(*vector)) for (key, _), vector in zip(texts, vectors, strict=True)]


def _log_counts(event: str, **counts: float) -> None:
    """Log *event* with its *counts*, both in the message and as fields for JSON logs."""
    counts_text = ", ".join(f"{name} {value}" for name, value in counts.items())
    attributes: dict[str, Any] = {"event": event, **counts}
    extra = {"event": event, "meta": counts}
    logger.info("%s: %s", event, counts_text, extra=extra, **attributes)


__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
