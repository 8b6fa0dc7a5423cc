"""From files to a searchable index, again and again at little cost.

    documents -> chunks -> [contexts] -> vectors -> one write to the store

Everything on the way is kept in a ledger, the SQLite file ``<indexPath>.ingest`` beside the index,
as soon as it is made; the store gets it all at the very end, in one write. So a run that was killed
goes on where it was, no text is embedded twice, and an atomic store never shows half of a run. The
ledger holds the texts of the documents and is readable by its owner alone. It can be deleted at any
time: the next run makes it anew, at the price of embedding again, and does not know any more which
passages of earlier runs have to leave the store.
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
from qtmiddleware.kit.documents import Converter, NotTaken, count_left_out, find_documents
from qtmiddleware.kit.documents import Reader as ReadDocument
from qtmiddleware.kit.engines import Engine, LocalEngine
from qtmiddleware.kit.engines.ray import RayEngine
from qtmiddleware.kit.index.ingestion.context_prompt import build_version
from qtmiddleware.kit.index.ingestion.contexts import Contexts
from qtmiddleware.kit.index.ingestion.embedding import embed_missing, identify_embedding
from qtmiddleware.kit.index.ingestion.ledger import Ledger, hold_ledger
from qtmiddleware.kit.index.ingestion.publishing import Publication
from qtmiddleware.kit.index.ingestion.reading import Reader, Root, make_absolute
from qtmiddleware.kit.index.retriever import StoreRetriever, open_retriever
from qtmiddleware.protocols import LanguageModel, Store
from qtmiddleware.providers.llms import as_language_model
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.logs import get_logger

Stage = Literal["reading", "contexts", "embedding", "publishing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: *done* of *total* documents (``reading``) or chunks; *path* is the document being read."""

    stage: Stage
    done: int
    total: int
    path: str = ""


Listener = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that could not be read, and why; *extra* of qtmiddleware would read it, where that is missing."""

    path: str
    reason: str
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest did.

    *documents* and *chunks* are what the index holds of the data path now. *added*, *changed*,
    *unchanged*, *removed* and *skipped* are documents; one that is skipped and was indexed before
    keeps its old chunks. *written* are the passages the store was given, *embedded* the texts that
    were, *reused* the passages whose vector was known.
    *contexts* came from the model in this run, *contexts_failed* are chunks that stand without one.
    Times are seconds.
    *left_out* counts the files of the folder or pattern that are no documents, by the ending of
    their names.
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
        """Whether there were documents and none could be read."""
        return bool(self.skipped) and not (self.added or self.changed or self.unchanged)

    def to_dict(self) -> dict[str, Any]:
        """Everything, by name, ready for JSON."""
        return asdict(self)


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
    reader: ReadDocument | None = None,
    progress: Listener | None = None,
    engine: Engine | None = None,
) -> IngestReport:
    """Bring the index up to date with the documents of *data_path*: a file, a folder or a glob (``dataPath``).

    New and changed documents are read, cut, embedded and stored; unchanged ones are left alone;
    those that are gone leave the index. One that cannot be read is reported and keeps what was
    indexed of it before. Other data paths in the same index are not touched; a file that lies in
    two of them belongs to the one ingested last. A data path without any document is an error and
    changes nothing.

    *config* is what `QueryMiddleware` takes. *client* is the language model of contextual chunks,
    as there. *embedder* and *store* stand in for those the configuration names; a given store is
    not closed. *progress* is told of every step; what it raises ends the run.

    *engine* does the embedding, by a model that runs on these machines: in this process by default,
    in several (`LocalEngine`), or on a Ray cluster (`RayEngine`). Ids, chunks and vectors are the
    same. It is not closed.

    *reader* is a function of a path, asked first for each file that is new or changed, in folders
    whatever its ending. It returns the text, or any iterable of texts or of pairs of a text and its
    place (``("...", {"page": 3})``), or ``None`` for what shall be read as usual. What it raises
    skips that file. It runs in this process, without a limit of time, and is known by its name:
    give one that reads otherwise than before another name.

    Killed or interrupted at any point, the next run completes the work, without embedding or asking
    for anything twice. Memory stays bounded however much there is to read. Log lines with counts go
    to ``qtmiddleware.ingest``.

    Raises `ConfigError` where there is no data path, or Ray is to fill an index in SQLite,
    `StoreError` where another ingest into this index is running or the store fails,
    `EmbeddingError`, `MissingExtra`, and `EngineError` where the workers of *engine* die again and
    again; not for the documents of a folder, which are skipped.
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
    if isinstance(engine, RayEngine) and store is None and settings.store.kind == "sqlite":
        raise ConfigError(
            "an index in SQLite is a file of one machine, searched from end to end: what takes a"
            " cluster to embed is too much for it; set store.kind to lancedb or pinecone",
            path="store.kind",
            value="sqlite",
            allowed="lancedb or pinecone",
        )
    model = _open_context_model(client, settings) if settings.contextual_chunks else None
    # Looked for before anything is opened: a wrong path leaves no empty index behind.
    paths = list(
        {make_absolute(it): it for it in find_documents(path, every=reader is not None)}.values()
    )
    with hold_ledger(settings, store) as ledger:
        retriever = open_retriever(settings, store=store, embedder=embedder)
        try:
            run = _Run(
                paths=paths,
                root=Root.of(path),
                settings=settings,
                ledger=ledger,
                retriever=retriever,
                model=model,
                read=reader,
                stages=_Stages(progress),
                engine=engine or LocalEngine(),
            )
            report = run.perform()
        finally:
            retriever.close()
    # What has changed in the folder meanwhile is no matter of what was done.
    if reader is None:
        with suppress(OSError):
            report = replace(report, left_out=count_left_out(path))
    if report.left_out:
        _log("Skipped files that are not documents", count=sum(report.left_out.values()))
    return report


def _open_context_model(client: Any, settings: Settings) -> LanguageModel:
    model = as_language_model(client, settings)
    # What fails again and again is given up here once and for all, so nothing is left alone for a
    # while.
    return GovernedModel(model, settings, Breaker(0, 1.0))


class _Stages:
    """Tells *progress* of the steps of each stage, and measures how many *seconds* the stage takes."""

    def __init__(self, progress: Listener | None) -> None:
        self._progress = progress
        self.seconds: defaultdict[Stage, float] = defaultdict(float)

    @contextmanager
    def run(self, stage: Stage) -> Iterator[Callable[..., None]]:
        """Lends a function that takes the number of steps done, that of all, and the path of the document."""

        def report(done: int, total: int, path: str = "") -> None:
            if self._progress is not None:
                self._progress(Progress(stage, done, total, path))

        began = perf_counter()
        yield report
        self.seconds[stage] += perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One run over the documents at *paths*, which are those of *root*.

    *model* writes contexts, if there is one. *read* is the user's own reader of documents.
    """

    paths: Sequence[Path]
    root: Root
    settings: Settings
    ledger: Ledger
    retriever: StoreRetriever
    model: LanguageModel | None
    read: ReadDocument | None
    stages: _Stages
    engine: Engine

    def perform(self) -> IngestReport:
        """Do all stages, and return what came of them."""
        began = perf_counter()
        _log("Reading documents", files=len(self.paths))
        kinds, skipped, left_out = self._read_documents()
        _log("Loaded documents", count=kinds.total(), skipped=len(skipped))
        _log("Created chunks", count=self._count_held()[1])
        contexts = self._write_contexts()
        embedding = identify_embedding(self.retriever.embedder)
        publication = Publication(self.ledger, self.root, self.retriever.store, embedding)
        written = publication.prepare()
        embedded = self._embed()
        with self.stages.run("publishing") as report:
            removed = publication.publish(report)
        documents, chunks = self._count_held()
        seconds = perf_counter() - began
        _log(
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
        """Return how many documents are new, changed or unchanged, which could not be read, and what none was."""
        version = "" if self.model is None else f"{build_version(self.settings)} {self.model.name}"
        kinds: Counter[str] = Counter()
        skipped: list[Skipped] = []
        left_out: Counter[str] = Counter()
        with self.stages.run("reading") as report, Converter() as converter:
            reader = Reader(self.ledger, self.settings, self.root, version, converter, self.read)
            # Whatever is not a target of this run leaves the index: to read fewer paths is to
            # delete the others. A document that is passed over needs `Reader.keep`.
            report(0, len(self.paths))
            for done, path in enumerate(self.paths, 1):
                try:
                    kinds[reader.take(path)] += 1
                except NotTaken:
                    left_out[path.suffix.casefold()] += 1
                except UnreadableDocument as error:
                    reader.keep(path)
                    detail = f" ({error.detail})" if error.detail else ""
                    skipped.append(Skipped(str(path), f"{error.reason}{detail}"))
                except MissingExtra as error:
                    if reader.is_file:
                        raise
                    reader.keep(path)
                    skipped.append(Skipped(str(path), str(error), error.extra))
                report(done, len(self.paths), str(path))
        return kinds, skipped, dict(left_out.most_common())

    def _write_contexts(self) -> Contexts | None:
        if self.model is None:
            return None
        contexts = Contexts(self.ledger, self.settings, self.model)
        with self.stages.run("contexts") as report:
            contexts.write(report)
        _log("Wrote contexts", count=contexts.written, failed=contexts.failed)
        return contexts

    def _embed(self) -> int:
        """Return how many texts were embedded, which is none if the store embeds them itself."""
        if self.retriever.embedder is None:
            return 0
        with self.stages.run("embedding") as report:
            embedded = embed_missing(self.ledger, self.retriever.embedder, self.engine, report)
        _log("Embedded chunks", count=embedded, seconds=round(self.stages.seconds["embedding"], 3))
        return embedded

    def _count_held(self) -> tuple[int, int]:
        """Return how many documents and chunks the index holds of this root."""
        ((documents, chunks),) = self.ledger.rows(_HELD, [self.root.key])
        return documents, chunks


def _log(event: str, **meta: float) -> None:
    """One line with its counts in the message and, for those who write JSON, as ``event`` and ``meta``."""
    counts = ", ".join(f"{name} {value}" for name, value in meta.items())
    about: dict[str, Any] = {"event": event, **meta}
    logger.info("%s: %s", event, counts, extra={"event": event, "meta": meta}, **about)


__all__ = ["IngestReport", "Progress", "Skipped", "Stage", "ingest"]
