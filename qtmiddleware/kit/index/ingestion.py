"""Build a searchable index from files, and update it without embedding any text twice.

    documents -> chunks -> [contexts] -> vectors -> store

The run works on a few documents at a time. Ids are deterministic, and a write replaces passages
with the same ids. A document is marked as done in the ledger, the SQLite file
``<indexPath>.ingest``, after the store has all its passages. If a run is killed, the next run does
the unmarked documents again. Vectors and contexts are saved in the ledger at once, so that nothing
is paid for twice.

Only the owner can read the ledger. You can delete it at any time. The next run then embeds
everything again, but cannot know which passages of earlier runs are outdated.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents import (
    Converter,
    NotTaken,
    count_unsupported_files_by_extension,
)
from qtmiddleware.kit.documents import Reader as ReadDocument
from qtmiddleware.kit.index.contexts import ContextWriter
from qtmiddleware.kit.index.ledger import Ledger, open_ledger
from qtmiddleware.kit.index.retriever import open_retriever
from qtmiddleware.kit.index.sources import Document, DocumentReader, Root
from qtmiddleware.kit.index.vectors import build_embedding_name, decode_vector, embed_batches
from qtmiddleware.kit.stores.database import explain_errors
from qtmiddleware.protocols import Embedder, LanguageModel, Passage, Store
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
        skipped: the documents that could not be read. If a skipped document was indexed before, its
            old chunks stay.
        written: the number of passages written to the store.
        embedded: the number of texts that were embedded.
        reused: the number of written passages whose vector was in the ledger already.
        contexts: the number of contexts that the model wrote in this run.
        contexts_failed: the number of chunks that are indexed without a context.
        seconds: the duration of the whole run, in seconds.
        embed_seconds: the seconds spent on embedding.
        context_seconds: the seconds spent on contexts.
        left_out: the number of files in the folder or pattern that are not documents, per file
            extension.
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
    reused: int = 0
    contexts: int = 0
    contexts_failed: int = 0
    seconds: float = 0.0
    embed_seconds: float = 0.0
    context_seconds: float = 0.0
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def all_skipped(self) -> bool:
        """Whether none of the documents could be read; ``False`` if there were no documents."""
        return bool(self.skipped) and not (self.added or self.changed or self.unchanged)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, ready for JSON."""
        return asdict(self)


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None

logger: Final = get_logger("qtmiddleware.ingest")

_GROUP: Final = 256
"""The number of chunks that are embedded and written together."""
_RAY_GROUP: Final = 16_384
"""The same with Ray, whose workers embed many batches at a time."""
_STEP: Final = 500
"""The number of passages between two progress reports of a write."""

_UNUSED_VECTORS: Final = """
DELETE FROM vectors WHERE embedding <> ? OR hash NOT IN (SELECT hash FROM chunks)
"""


def ingest(
    data_path: str | os.PathLike[str] | None = None,
    *,
    config: ConfigSource = None,
    client: Any = None,
    embedder: Any = None,
    store: Store | None = None,
    reader: ReadDocument | None = None,
    progress: Listener | None = None,
    on_ray: bool = False,
) -> IngestReport:
    """Update the index with the documents of *data_path*, and return a report.

    New and changed documents are read, split into chunks, embedded and stored. Unchanged documents
    are skipped. Deleted documents are removed from the index. A document that cannot be read is
    reported, and its old chunks stay. Documents of other data paths in the same index are not
    changed. A file in two data paths belongs to the data path ingested last.

    If the run is killed or interrupted, the next run completes the work, without embedding a text
    or asking for a context twice. Only a few chunks are in memory at a time, for any number of
    documents. Counts are logged to ``qtmiddleware.ingest``.

    Args:
        data_path: a file, a folder or a glob. By default, the setting ``dataPath``.
        config: the config, in any form that `QueryMiddleware` accepts.
        client: the language model for contextual chunks, in any form that `QueryMiddleware`
            accepts.
        embedder: an embedder or embedding function, used instead of the configured model.
        store: an open store, used instead of the configured store. The store stays open.
        reader: your own reader, a function of a path that returns a text, several texts, or pairs
            of a text and its location (``("...", {"page": 3})``). The function is called for each
            new or changed file, and in folders for all file types. For a file that your function
            does not support, return ``None``; then the built-in reader is used. If the function
            raises, the file is skipped. The function runs in this process, without a time limit. If
            you change the texts that the function returns, rename it, because the ledger identifies
            a reader by its name.
        progress: a function that is called with a `Progress` after each step. An exception from
            this function ends the run.
        on_ray: whether to run a built-in local embedding model on the Ray cluster at
            ``RAY_ADDRESS``, or on a cluster that is started on this machine. By default, the model
            runs in this process. The ids, chunks and vectors are the same.

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
        raise ConfigError(
            "dataPath is not set; name a file, a folder or a glob, or set dataPath",
            path="dataPath",
            value=path,
            allowed="a file, a folder or a glob",
        )
    model = _open_context_model(client, settings) if settings.contextual_chunks else None
    root = Root.from_data_path(path)
    # Documents are searched before the index is opened, so that a wrong path leaves no empty index
    # behind.
    paths = root.find_documents(path, all_files=reader is not None)
    start = perf_counter()
    with open_ledger(settings, store) as ledger:
        retriever = open_retriever(settings, store=store, embedder=embedder)
        try:
            run = _Run(ledger, root, retriever.store, retriever.embedder, progress, on_ray=on_ray)
            if model is not None:
                run.contexts = ContextWriter(model, ledger, settings)
            run.prepare()
            _log_counts("Reading documents", files=len(paths))
            with _connect_to_ray() if on_ray else nullcontext(), Converter() as converter:
                run.read_documents(
                    paths,
                    DocumentReader(
                        ledger,
                        settings,
                        root,
                        converter,
                        context_version=run.contexts.version if run.contexts else "",
                        own_reader=reader,
                    ),
                )
            report = run.build_report(perf_counter() - start)
        finally:
            retriever.close()
    if reader is None:
        # The folder may be gone by now. The run is complete, so this failure must not raise.
        with suppress(OSError):
            report.left_out.update(count_unsupported_files_by_extension(path))
    if report.left_out:
        _log_counts("Skipped files that are not documents", count=sum(report.left_out.values()))
    return report


def _open_context_model(client: Any, settings: Settings) -> LanguageModel:
    model = make_language_model(client, settings)
    # `ContextWriter` stops asking after repeated failures, so the circuit breaker is switched off:
    # while open, it would fail chunks that the model could serve.
    return GovernedModel(model, settings, Breaker(0, 1.0))


def _connect_to_ray() -> Any:
    from qtmiddleware.kit.ray_data import connect_to_ray

    return connect_to_ray()


class _Run:
    """One run over the documents of a data path.

    Args:
        ledger: the database that knows what earlier runs did.
        root: the data path from which the documents come.
        store: the store to write to.
        embedder: the embedder of the passages.
        progress: the user's listener, if any.
        on_ray: whether to run a local embedding model on a Ray cluster.
    """

    def __init__(
        self,
        ledger: Ledger,
        root: Root,
        store: Store,
        embedder: Embedder,
        progress: Listener | None,
        *,
        on_ray: bool,
    ) -> None:
        self._ledger, self._root, self._store, self._embedder = ledger, root, store, embedder
        self._progress, self._on_ray = progress, on_ray
        self._embedding = build_embedding_name(embedder)
        self._counts: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._skipped: list[Skipped] = []
        self._left_out: Counter[str] = Counter()
        self.contexts: ContextWriter | None = None

    def prepare(self) -> None:
        """Forget what the ledger knows of another store, or of one that has lost its passages."""
        ledger, place = self._ledger, f"{self._store.identity} {self._embedding}"
        known_place = ledger.find_value("SELECT value FROM meta WHERE key = 'place'")
        expected = ledger.find_value("SELECT count(*) FROM chunks")
        held = self._store.count()
        if not known_place and held:
            logger.warning(
                "the index holds %d passages that %s, which ingest keeps beside it, does not know"
                " of; those of documents that are gone, or were cut in another way, stay in it: for"
                " a clean index, ingest into a new one",
                held,
                ledger.path,
                event="index_unknown_passages",
                count=held,
            )
        if known_place != place or (expected and not held):
            with ledger.open_transaction():
                ledger.execute("UPDATE documents SET fingerprint = ''")
                ledger.execute("UPDATE meta SET value = ? WHERE key = 'place'", [place])

    def read_documents(self, paths: list[Path], reader: DocumentReader) -> None:
        """Index the new and changed documents, and remove documents that are gone."""
        group: list[Document] = []
        size = _RAY_GROUP if self._on_ray else _GROUP
        self._report("reading", 0, len(paths))
        for done, path in enumerate(paths, 1):
            document = self._read(path, reader)
            if document is not None:
                group.append(document)
            self._report("reading", done, len(paths), str(path))
            if sum(len(document.passages) for document in group) >= size:
                self._index(group)
                group = []
        self._index(group)
        self._remove_gone(reader.files)
        # Contexts stay: they are small, and each was paid for.
        self._ledger.execute(_UNUSED_VECTORS, [self._embedding])

    def _read(self, path: Path, reader: DocumentReader) -> Document | None:
        """Read a document; return ``None`` if it is unchanged or cannot be read."""
        try:
            document = reader.read(path)
        except NotTaken:
            self._left_out[path.suffix.casefold()] += 1
        except UnreadableDocument as error:
            detail = f" ({error.detail})" if error.detail else ""
            self._skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
        except MissingExtra as error:
            # In a folder, one such file must not stop the run. A file that the user named is
            # different.
            if self._root.is_file:
                raise
            self._skipped.append(Skipped(str(path), str(error), error.extra))
        else:
            if document is None:
                self._counts["unchanged"] += 1
            return document
        return None

    def _index(self, documents: list[Document]) -> None:
        """Write the passages of *documents* to the store, and mark the documents as done."""
        if self.contexts is not None:
            start = perf_counter()
            documents = [
                self.contexts.add_contexts(
                    document, lambda done, total: self._report("contexts", done, total)
                )
                for document in documents
            ]
            self._seconds["contexts"] += perf_counter() - start
        if not documents:
            return
        texts = {
            (document.file, ordinal): _build_embedded_text(passage)
            for document in documents
            for ordinal, passage in enumerate(document.passages)
        }
        hashes = {key: hashlib.sha256(text.encode()).digest() for key, text in texts.items()}
        self._embed({hashes[key]: text for key, text in texts.items()})
        stale_ids = self._begin(documents, hashes)
        self._store.write(self._build_pairs(documents, hashes), delete=stale_ids)
        with self._ledger.open_transaction():
            for document in documents:
                self._ledger.execute(
                    "DELETE FROM chunks WHERE file = ? AND ordinal >= ?",
                    [document.file, len(document.passages)],
                )
                self._ledger.execute(
                    "UPDATE documents SET fingerprint = ? WHERE file = ?",
                    [document.fingerprint, document.file],
                )
        self._counts["written"] += len(texts)

    def _embed(self, texts: dict[bytes, str]) -> None:
        """Embed the *texts*, by hash, that have no vector yet, and save the vectors at once."""
        start = perf_counter()
        known = "SELECT 1 FROM vectors WHERE embedding = ? AND hash = ?"
        missing = [
            (key, text)
            for key, text in texts.items()
            if self._ledger.find_value(known, self._embedding, key) is None
        ]
        done = 0
        for vectors in embed_batches(self._embedder, missing, on_ray=self._on_ray):
            self._ledger.execute_many(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                [(self._embedding, *row) for row in vectors],
            )
            done += len(vectors)
            self._report("embedding", done, len(missing))
        self._counts["embedded"] += len(missing)
        self._seconds["embedding"] += perf_counter() - start

    def _begin(
        self, documents: list[Document], hashes: Mapping[tuple[str, int], bytes]
    ) -> list[str]:
        """Note in the ledger what may be in the store from now on, and return the outdated ids."""
        stale_ids = []
        with self._ledger.open_transaction():
            for document in documents:
                old = self._ledger.execute(
                    "SELECT name || '#' || ordinal, CAST(ordinal AS INTEGER)"
                    " FROM documents JOIN chunks USING (file) WHERE file = ?",
                    [document.file],
                )
                self._counts["changed" if old else "added"] += 1
                stale_ids += [id_ for id_, ordinal in old if ordinal >= len(document.passages)]
                self._ledger.execute(
                    "UPDATE documents SET fingerprint = '' WHERE file = ?", [document.file]
                )
            self._ledger.execute_many(
                "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?)",
                [(*key, digest) for key, digest in hashes.items()],
            )
        return stale_ids

    def _build_pairs(
        self, documents: list[Document], hashes: Mapping[tuple[str, int], bytes]
    ) -> Iterator[tuple[Passage, list[float]]]:
        """Yield each passage with its vector, which is read from the ledger."""
        done = 0
        find = "SELECT vector FROM vectors WHERE embedding = ? AND hash = ?"
        self._report("publishing", done, len(hashes))
        for document in documents:
            for ordinal, passage in enumerate(document.passages):
                key = hashes[document.file, ordinal]
                blob = self._ledger.find_value(find, self._embedding, key)
                with explain_errors(self._ledger.path, struct.error, TypeError):
                    vector = decode_vector(blob)
                yield passage, vector
                done += 1
                if done % _STEP == 0 or done == len(hashes):
                    self._report("publishing", done, len(hashes))

    def _remove_gone(self, files: set[str]) -> None:
        """Remove the documents of this data path that are not in *files*."""
        rows = self._ledger.execute("SELECT file FROM documents WHERE root = ?", [self._root.key])
        gone = [file for file in rows if file[0] not in files]
        ids = [
            id_
            for file in gone
            for (id_,) in self._ledger.execute(
                "SELECT name || '#' || ordinal FROM documents JOIN chunks USING (file)"
                " WHERE file = ?",
                file,
            )
        ]
        # If this run is killed now, a document that comes back is not taken for unchanged.
        self._ledger.execute_many("UPDATE documents SET fingerprint = '' WHERE file = ?", gone)
        if ids:
            self._store.write((), delete=ids)
        self._counts["removed"] = len({id_.rpartition("#")[0] for id_ in ids})
        with self._ledger.open_transaction():
            self._ledger.execute_many("DELETE FROM chunks WHERE file = ?", gone)
            self._ledger.execute_many("DELETE FROM documents WHERE file = ?", gone)

    def build_report(self, seconds: float) -> IngestReport:
        """Return the report of this run, and log its counts."""
        ((documents, chunks),) = self._ledger.execute(
            "SELECT count(DISTINCT file), count(*) FROM documents JOIN chunks USING (file)"
            " WHERE root = ?",
            [self._root.key],
        )
        counts, contexts = self._counts, self.contexts
        read = sum(counts[kind] for kind in ("added", "changed", "unchanged"))
        _log_counts("Loaded documents", count=read, skipped=len(self._skipped))
        _log_counts("Created chunks", count=chunks)
        if contexts is not None:
            _log_counts("Wrote contexts", count=contexts.written, failed=contexts.failed)
        embed_seconds = self._seconds["embedding"]
        _log_counts("Embedded chunks", count=counts["embedded"], seconds=round(embed_seconds, 3))
        _log_counts(
            "Persisted vector index", documents=documents, chunks=chunks, seconds=round(seconds, 3)
        )
        return IngestReport(
            documents=documents,
            chunks=chunks,
            added=counts["added"],
            changed=counts["changed"],
            unchanged=counts["unchanged"],
            removed=counts["removed"],
            skipped=tuple(self._skipped),
            written=counts["written"],
            embedded=counts["embedded"],
            reused=counts["written"] - counts["embedded"],
            contexts=contexts.written if contexts else 0,
            contexts_failed=contexts.failed if contexts else 0,
            seconds=seconds,
            embed_seconds=embed_seconds,
            context_seconds=self._seconds["contexts"],
            left_out=dict(self._left_out.most_common()),
        )

    def _report(self, stage: Stage, done: int, total: int, path: str = "") -> None:
        if self._progress is not None and (total or stage == "reading"):
            self._progress(Progress(stage, done, total, path))


def _build_embedded_text(passage: Passage) -> str:
    """Return the text to embed for a passage: its context, if any, followed by its text."""
    context = passage.metadata.get("context")
    return f"{context}\n\n{passage.text}" if context else passage.text


def _log_counts(event: str, **counts: float) -> None:
    """Log *event* with its *counts*, both in the message and as fields for JSON logs."""
    counts_text = ", ".join(f"{name} {value}" for name, value in counts.items())
    attributes: dict[str, Any] = {"event": event, **counts}
    logger.info("%s: %s", event, counts_text, extra={"event": event, "meta": counts}, **attributes)


__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
