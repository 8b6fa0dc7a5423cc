"""Build a searchable index from files, and update it without embedding any text twice.

    documents -> chunks -> [contexts] -> vectors -> one write to the store

Each intermediate result is saved at once in the ledger, the SQLite file ``<indexPath>.ingest``. At
the end, all changes are written to the store in one write. If a run is killed, the next run resumes
at the same point. Readers of an atomic store see all changes or none.

The ledger contains the documents' texts, and only its owner can read it. You can delete the ledger
at any time. The next run then embeds everything again, but cannot know which passages of earlier
runs are outdated.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
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
    find_documents,
)
from qtmiddleware.kit.documents import Reader as ReadDocument
from qtmiddleware.kit.index.ingestion.context_prompt import build_prompt_version
from qtmiddleware.kit.index.ingestion.contexts import Contexts
from qtmiddleware.kit.index.ingestion.embedding import build_embedding_name, embed_missing_texts
from qtmiddleware.kit.index.ingestion.ledger import Ledger, open_ledger
from qtmiddleware.kit.index.ingestion.publishing import Publication
from qtmiddleware.kit.index.ingestion.reading import Reader, Root, resolve_folder_links
from qtmiddleware.kit.index.retriever import StoreRetriever, open_retriever
from qtmiddleware.protocols import LanguageModel, Store
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
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_skipped(self) -> bool:
        """Whether none of the documents could be read; ``False`` if there were no documents."""
        return bool(self.skipped) and not (self.added or self.changed or self.unchanged)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, ready for JSON."""
        return asdict(self)


ConfigSource = str | os.PathLike[str] | Mapping[str, Any] | Config | Settings | None

logger: Final = get_logger("qtmiddleware.ingest")

_HELD: Final = """
SELECT count(DISTINCT d.id), count(c.id) FROM target t JOIN documents d ON d.id = t.document \
AND d.root = ?
LEFT JOIN chunks c ON c.document = d.id
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
    # Documents are searched before the index is opened, so that a wrong path leaves no empty index
    # behind. A document found by two paths, for example through a linked folder, is read once.
    paths = list(
        {
            resolve_folder_links(document): document
            for document in find_documents(path, should_include_all_files=reader is not None)
        }.values()
    )
    with open_ledger(settings, store) as ledger:
        retriever = open_retriever(settings, store=store, embedder=embedder)
        try:
            run = _Run(
                paths=paths,
                root=Root.from_data_path(path),
                settings=settings,
                ledger=ledger,
                retriever=retriever,
                model=model,
                own_reader=reader,
                stages=_Stages(progress),
                on_ray=on_ray,
            )
            report = run.run_stages()
        finally:
            retriever.close()
    # The folder may be gone by now. The run is complete, so a failure to count must not raise.
    if reader is None:
        with suppress(OSError):
            report = replace(report, left_out=count_unsupported_files_by_extension(path))
    if report.left_out:
        _log_counts("Skipped files that are not documents", count=sum(report.left_out.values()))
    return report


def _open_context_model(client: Any, settings: Settings) -> LanguageModel:
    model = make_language_model(client, settings)
    # `Contexts` stops asking after repeated failures, so the circuit breaker is switched off: while
    # open, it would fail chunks that the model could serve.
    return GovernedModel(model, settings, Breaker(0, 1.0))


class _Stages:
    """Measures the duration of each stage, and calls *progress* after each step of the stage.

    Attributes:
        seconds: the duration of each stage in seconds.
    """

    def __init__(self, progress: Listener | None) -> None:
        self._progress = progress
        self.seconds: defaultdict[Stage, float] = defaultdict(float)

    @contextmanager
    def measure_stage(self, stage: Stage) -> Iterator[Callable[..., None]]:
        """Measure the duration of the ``with`` block, and yield a function that reports progress.

        The function takes the number of finished steps, the total number of steps, and optionally a
        document's path.
        """

        def report_progress(done: int, total: int, path: str = "") -> None:
            if self._progress is not None:
                self._progress(Progress(stage, done, total, path))

        start = perf_counter()
        yield report_progress
        self.seconds[stage] += perf_counter() - start


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run over the documents of a data path.

    Attributes:
        paths: the paths of the documents.
        root: the data path from which the documents come.
        settings: the settings, which tell how to split, embed and store documents.
        ledger: the database that stores the results of each stage.
        retriever: the store and the embedder.
        model: the model that writes contexts; ``None`` if contextual chunks are off.
        own_reader: the user's own document reader, if any.
        stages: the object that measures time and reports progress.
        on_ray: whether to run a local embedding model on a Ray cluster.
    """

    paths: Sequence[Path]
    root: Root
    settings: Settings
    ledger: Ledger
    retriever: StoreRetriever
    model: LanguageModel | None
    own_reader: ReadDocument | None
    stages: _Stages
    on_ray: bool

    def run_stages(self) -> IngestReport:
        """Run all stages of the ingest, and return the report."""
        start = perf_counter()
        _log_counts("Reading documents", files=len(self.paths))
        kinds, skipped, left_out = self._read_documents()
        _log_counts("Loaded documents", count=kinds.total(), skipped=len(skipped))
        _log_counts("Created chunks", count=self._count_documents_and_chunks()[1])
        contexts = self._write_contexts()
        embedding = build_embedding_name(self.retriever.embedder)
        publication = Publication(self.ledger, self.root, self.retriever.store, embedding)
        # Only texts of passages that will be written are embedded, so these are selected first.
        written = publication.select_and_count_passages()
        embedded = self._embed_chunks()
        with self.stages.measure_stage("publishing") as report_progress:
            removed = publication.write_changes(report_progress)
        documents, chunks = self._count_documents_and_chunks()
        seconds = perf_counter() - start
        _log_counts(
            "Persisted vector index", documents=documents, chunks=chunks, seconds=round(seconds, 3)
        )
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
            reused=0 if self.retriever.embedder is None else written - embedded,
            contexts=contexts.written if contexts else 0,
            contexts_failed=contexts.failed if contexts else 0,
            seconds=seconds,
            embed_seconds=self.stages.seconds["embedding"],
            context_seconds=self.stages.seconds["contexts"],
            left_out=left_out,
        )

    def _read_documents(self) -> tuple[Counter[str], list[Skipped], dict[str, int]]:
        """Read all documents, and save their chunks in the ledger.

        Returns three values:

        - the numbers of ``added``, ``changed`` and ``unchanged`` documents;
        - the documents that could not be read;
        - the number of files that no reader supports, per file extension.
        """
        # After a change of the prompt or model, all documents are read again.
        version = (
            "" if self.model is None else f"{build_prompt_version(self.settings)} {self.model.name}"
        )
        kinds: Counter[str] = Counter()
        skipped: list[Skipped] = []
        left_out: Counter[str] = Counter()
        with self.stages.measure_stage("reading") as report_progress, Converter() as converter:
            reader = Reader(
                self.ledger, self.settings, self.root, version, converter, self.own_reader
            )
            # Each document that is neither added nor kept in this run is removed from the index. A
            # skipped document therefore needs `Reader.keep_document`.
            report_progress(0, len(self.paths))
            for done, path in enumerate(self.paths, 1):
                try:
                    kinds[reader.add_document(path)] += 1
                except NotTaken:
                    left_out[path.suffix.casefold()] += 1
                except UnreadableDocument as error:
                    reader.keep_document(path)
                    detail = f" ({error.detail})" if error.detail else ""
                    skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
                except MissingExtra as error:
                    # In a folder, one such file must not stop the run. A single file that the user
                    # named is different.
                    if reader.has_single_file:
                        raise
                    reader.keep_document(path)
                    skipped.append(Skipped(str(path), str(error), error.extra))
                report_progress(done, len(self.paths), str(path))
        return kinds, skipped, dict(left_out.most_common())

    def _write_contexts(self) -> Contexts | None:
        if self.model is None:
            return None
        contexts = Contexts(self.ledger, self.settings, self.model)
        with self.stages.measure_stage("contexts") as report_progress:
            contexts.write_contexts(report_progress)
        _log_counts("Wrote contexts", count=contexts.written, failed=contexts.failed)
        return contexts

    def _embed_chunks(self) -> int:
        """Embed the chunks that have no vector yet, and return how many texts were embedded.

        Returns 0 if the store embeds texts itself.
        """
        if self.retriever.embedder is None:
            return 0
        with self.stages.measure_stage("embedding") as report_progress:
            embedded = embed_missing_texts(
                self.ledger, self.retriever.embedder, report_progress, on_ray=self.on_ray
            )
        _log_counts(
            "Embedded chunks", count=embedded, seconds=round(self.stages.seconds["embedding"], 3)
        )
        return embedded

    def _count_documents_and_chunks(self) -> tuple[int, int]:
        """Return the numbers of documents and chunks of this data path in the index."""
        ((documents, chunks),) = self.ledger.execute(_HELD, [self.root.key])
        return documents, chunks


def _log_counts(event: str, **counts: float) -> None:
    """Log *event* with its *counts*, both in the message and as fields for JSON logs."""
    counts_text = ", ".join(f"{name} {value}" for name, value in counts.items())
    attributes: dict[str, Any] = {"event": event, **counts}
    logger.info("%s: %s", event, counts_text, extra={"event": event, "meta": counts}, **attributes)


__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
