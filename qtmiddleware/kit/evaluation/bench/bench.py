"""A data set, its index and a model, opened, and any system of a comparison made of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Final, cast

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.embedding import embedder_named
from qtmiddleware.kit.engines import Engine
from qtmiddleware.kit.evaluation import (
    MEASURED,
    TOP_K,
    Comparison,
    Dataset,
    Progress,
    Question,
    Run,
    System,
    load_judged,
    require_extras,
    require_measurable,
    run_of,
)
from qtmiddleware.kit.evaluation.bench.caches import CachedEmbedder, CachedModel
from qtmiddleware.kit.evaluation.bench.function import Forecast, FunctionSource, forecast_searches, open_function
from qtmiddleware.kit.evaluation.bench.kept_runs import KeptRuns
from qtmiddleware.kit.evaluation.bench.recordings import EstimatedModel, list_fields, select_recorded
from qtmiddleware.kit.evaluation.compare import measure_systems
from qtmiddleware.kit.evaluation.own_function import OwnFunction, refuse_running_loop
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Embedder, LanguageModel, Passage, Store
from qtmiddleware.providers.embedders import OpenAIEmbedder
from qtmiddleware.providers.llms import as_language_model, has_language_model
from qtmiddleware.providers.llms.openai import OpenAIModel, find_temperatures
from qtmiddleware.providers.llms.openai.clients import ADDRESS_VARIABLE
from qtmiddleware.providers.llms.recorded import RecordingModel, read_lines
from qtmiddleware.providers.openai_client import SDK_ADDRESS_VARIABLE
from qtmiddleware.runtime.files import make_private_folders, open_itself
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

CACHE: Final = Path(".qtm/bench")
CONCURRENCY: Final = 8
"""Questions the model is asked about at a time."""
BATCH: Final = 64
"""Passages that are embedded and stored at a time."""
_CACHE_FILE: Final = "cache.sqlite"
_NO_MODEL_ASKED: Final = (
    "No language model was asked: there are no recorded replies, and neither OPENAI_API_KEY nor QTM_LLM_BASE_URL"
    " is set."
)


@dataclass(frozen=True, slots=True)
class Bench:
    """An index, an embedder and a model, which any system can be made of; *read_price* is that of their searches."""

    store: Store = field(repr=False)
    embedder: Embedder = field(repr=False)
    model: LanguageModel
    read_price: float | None = None

    def wrap(self, settings: Mapping[str, Any]) -> Wrapped[..., Any]:
        """Return the search of the index with the middleware of *settings* around it."""
        config = build_config(settings).overridden({"store": {"readPrice": self.read_price}})
        wrapped: Any = QueryMiddleware(config, client=self.model, store=self.store, embedder=self.embedder).retriever
        return wrapped  # type: ignore[no-any-return]

    def retrieve(self, settings: Mapping[str, Any], question: Question) -> Retrieval:
        """Return what the system of *settings* finds for one question."""
        return self.wrap(settings).retrieve(question.text, top_k=TOP_K, history=question.history)

    def system(self, settings: Mapping[str, Any], top_k: int = TOP_K) -> System:
        """Return the system of *settings*, to be measured one question at a time.

        Vectors and replies that were kept take no time now; what they took at first is part of the time added.
        """
        wrapped = self.wrap(settings)

        def run(question: Question) -> Run:
            with self._record_replays() as replayed:
                found = wrapped.retrieve(question.text, top_k=top_k, history=question.history)
            measured = run_of(found)
            # The question itself is embedded in a plain search too.
            beyond = sum(replayed.values()) - replayed.get(found.variants[0].text, 0.0)
            return replace(measured, seconds_added=(measured.seconds_added or 0.0) + beyond)

        return run

    def _record_replays(self) -> AbstractContextManager[Mapping[str, float]]:
        return self.embedder.record_replays() if isinstance(self.embedder, CachedEmbedder) else nullcontext({})

    def measure(
        self,
        data: Dataset,
        systems: Mapping[str, Mapping[str, Any]],
        *,
        deep: bool = False,
        notes: Sequence[str] = (),
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Measure every one of the *systems* on every question of *data* against the raw query.

        With *deep* each is asked once more, for a hundred passages, which R@100 is measured by.
        """
        return measure_systems(self, data, systems, deep=deep, notes=notes, seed=seed, progress=progress)


def build_config(settings: Mapping[str, Any]) -> Config:
    """Return the config under which a system of these *settings* is measured, whatever the environment sets.

    A model that fails is asked all the same: what is measured is the system, not the outage before.
    """
    return Config.load(MEASURED, environ={}).overridden(settings).overridden({"breaker": {"enabled": False}})


def build_index(
    data: Dataset,
    path: str | Path,
    embedder: Embedder,
    *,
    progress: Progress | None = None,
) -> SQLiteStore:
    """Embed the passages of *data* and store them at *path*."""
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    try:
        done = 0
        for batch in _read_pages(data):
            store.upsert(batch, embedder.embed([passage.text for passage in batch]))
            done += len(batch)
            if progress is not None:
                progress("embedding passages", done, len(data.passages))
    except BaseException:
        store.close()
        raise
    return store


def _read_pages(data: Dataset) -> Iterator[Sequence[Passage]]:
    for start in range(0, len(data.passages), BATCH):
        yield data.passages[start : start + BATCH]


def open_index(
    data: Dataset,
    folder: Path,
    embedder: Embedder,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> SQLiteStore:
    """Open the index of *data* in *folder*, built where it is not there or was not finished.

    Its file is named by a hash of the passages and the embedding model, and nothing else is ever written to it: with
    as many passages as *data* has it is complete. Two processes may build it at once. *engine* embeds what is to be
    embedded for a `CachedEmbedder`, where its model runs on these machines; this process does by default.
    """
    passages = replace(data, questions=(), qrels={}).data_hash
    name = hashlib.sha256(f"{passages}\n{embedder.name}\n{embedder.dimension}".encode()).hexdigest()[:16]
    path = folder / f"index-{name}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    if store.count() == len(data.passages):
        return store
    store.close()
    if engine is not None and isinstance(embedder, CachedEmbedder):
        pages = ([passage.text for passage in page] for page in _read_pages(data))
        embedder.embed_ahead(pages, engine, None if progress is None else partial(progress, "embedding by the engine"))
    return build_index(data, path, embedder, progress=progress)


@dataclass(frozen=True, slots=True)
class OpenedBench:
    """A bench, the *data* it is to be measured on, and sentences (*notes*) that a reader of the figures must know.

    *bench* is an index and what embeds for it, or a function of the user's own. *has_model* says whether a model can be
    asked, or its recorded replies can be replayed. *recorded* are the names of the fields a recording holds, ``None``
    where there is none. *model* is the bench's, without what records its replies; ``None`` for a function that asks its
    own. *counts_model_time* is false where replies are replayed as if they had taken no time.
    """

    bench: Bench | OwnFunction
    data: Dataset
    notes: tuple[str, ...]
    has_model: bool
    model: LanguageModel | None
    recorded: frozenset[str] | None
    concurrency: int
    counts_model_time: bool = True

    @property
    def model_name(self) -> str | None:
        """The name of the model that is asked, ``None`` without one or if a function asks its own."""
        return self.model.name if self.has_model and self.model is not None else None

    def lacks(self, system: Mapping[str, Any]) -> frozenset[str]:
        """Return what a system of these settings asks for, where nothing of it was recorded; empty otherwise."""
        wanted = list_fields(system)
        return frozenset() if self.recorded is None or wanted & self.recorded else wanted

    def forecast(self, systems: Mapping[str, Mapping[str, Any]], *, deep: bool = False) -> Forecast:
        """Return how often a function of the user's own is called at most to measure *systems*."""
        return forecast_searches(cast(OwnFunction, self.bench), self.data, systems, has_model=self.has_model, deep=deep)

    def measure(
        self,
        systems: Mapping[str, Mapping[str, Any]],
        *,
        deep: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Measure every one of the *systems* against the raw query, on all questions.

        A live model is asked ahead, several questions at once, so that a question that is measured waits for no reply;
        the time its reply took counts. Raises what `measure` raises, `ModelError` for a model that does not answer, and
        `ConfigError` for a function of the user's own that never returned an id that is judged.
        """
        if self.has_model and self.recorded is None and self.bench.model is not None:
            ask_ahead(self.bench.model, self.data, systems, concurrency=self.concurrency, progress=progress)
        options: dict[str, Any] = {"deep": deep, "notes": self.notes, "seed": seed, "progress": progress}
        comparison = measure_systems(self.bench, self.data, systems, **options)
        if isinstance(self.bench, OwnFunction) and self.bench.ids is not None:
            self.bench.ids.finish()
        return replace(comparison, counts_model_time=self.counts_model_time)


@contextmanager
def open_bench(
    folder: str | Path | Dataset,
    *,
    settings: Settings,
    function: FunctionSource | None = None,
    client: Any = None,
    recordings: Path | None = None,
    record: Path | None = None,
    model_ms: float = 0.0,
    cache: Path = CACHE,
    questions: int | None = None,
    split: str = "",
    seed: int = 0,
    concurrency: int = CONCURRENCY,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Iterator[OpenedBench]:
    """Yield the data set in *folder*, or one already loaded, with its index and a model, to be closed afterwards.

    With a *function* of the user's own nothing is embedded or stored: it is what searches, and *folder* may be anything
    that `load_judged` reads. What it found is kept until the block ends, so that a measurement that was interrupted is
    taken up. A function that is wrapped already asks its own model, of which nothing is kept.

    The index, every vector and every reply of a model are kept in the folder *cache*, so that a second run costs next
    to nothing, and one that was interrupted is taken up. *settings* name the embedding model and the language model;
    *client* is asked in place of the latter. *recordings* is a file of recorded replies that are replayed in its place,
    each as if it had taken *model_ms* milliseconds: only the questions in it are asked then. *record* is a file that
    the model's replies are written to. *questions* are drawn by *seed* where not all are to be asked. *engine* embeds
    the passages where the embedding model runs on these machines, in this process by default; the figures are the same.

    Raises `ConfigError` for a data set or recording that cannot be read or an impossible time, `StoreError`,
    `EmbeddingError`, `EngineError` and `MissingExtra`.
    """
    if not 0 <= model_ms < inf:
        raise ConfigError("the milliseconds that stand for a reply are no time", path="model_ms", value=model_ms)
    if recordings is not None and record is not None:
        raise ConfigError("replies are either replayed or recorded, not both", path="record")
    has_own_model = function is not None and function.is_wrapped
    if has_own_model and (recordings is not None or record is not None or client is not None):
        raise ConfigError("the function is wrapped already and asks its own model; name the plain one", path="function")
    with ExitStack() as stack:
        load = Dataset.load if function is None else load_judged
        data = folder if isinstance(folder, Dataset) else load(folder, split=split)
        require_extras()
        # Before anything is embedded or asked.
        require_measurable(data)
        notes: list[str] = []
        recorded: frozenset[str] | None = None
        model: LanguageModel | None
        has_model = recordings is not None or client is not None or has_language_model(settings)
        if function is not None and has_own_model:
            model = None
            has_model = function.fn.middleware._factory.has_model
            notes.append(
                f"{function.name} asks its own model; its replies are not kept." if has_model else _NO_MODEL_ASKED
            )
        elif recordings is not None:
            whole = len(data.questions)
            replayed, data, recorded = select_recorded(data, recordings)
            prices = {"input_price": settings.llm.input_price, "output_price": settings.llm.output_price}
            estimated = EstimatedModel(replayed, settings.transformation_model, model_ms / 1e3, **prices)
            model = estimated
            notes += [*_describe_recording(recordings, model_ms, len(data.questions), whole), estimated.note]
        else:
            model = stack.enter_context(open_model(settings, client=client, cache=cache))
            notes.append(_describe_model(model, has_model=has_model))
            if record is not None and not has_model:
                raise ConfigError(f"there is nothing to record. {notes[0]}", path="record")
        # Around the cache, so that what is known already is recorded too.
        recording = model if record is None or model is None else RecordingModel(model, _require_writable(record))
        if questions is not None and questions < len(data.questions):
            notes.append(f"{questions} of {len(data.questions)} questions, drawn with seed {seed}.")
            data = data.sampled(questions, seed=seed)
        if data.is_synthetic:
            notes.append("The questions are synthetic: a language model wrote them from the passages they ask for.")
        counts_time = recordings is None or model_ms > 0
        bench: Bench | OwnFunction
        if function is not None:
            own = open_function(function, data, settings=settings, model=recording, cache=cache)
            bench = stack.enter_context(own)
            notes += _describe_function(function, bench)
        else:
            embedder = stack.enter_context(_open_embedder(settings, cache))
            store = stack.enter_context(open_index(data, cache, embedder, engine=engine, progress=progress))
            bench = Bench(store, embedder, cast(LanguageModel, recording), settings.store.read_price)
        yield OpenedBench(bench, data, tuple(notes), has_model, model, recorded, concurrency, counts_time)


@contextmanager
def _open_embedder(settings: Settings, cache: Path) -> Iterator[CachedEmbedder]:
    """Yield the embedding model of *settings*, its vectors kept in the folder *cache*."""
    inner = embedder_named(settings.embedding_model, dimensions=settings.embedding_dimensions)
    with ExitStack() as stack:
        if isinstance(inner, OpenAIEmbedder):
            stack.callback(inner.close)
        embedder = CachedEmbedder(inner, cache / _CACHE_FILE)
        stack.callback(embedder.close)
        yield embedder


@contextmanager
def open_model(settings: Settings, *, client: Any = None, cache: Path = CACHE) -> Iterator[CachedModel]:
    """Yield the language model of *settings*, or *client* in its place, its replies kept in the folder *cache*.

    Raises `ConfigError` for what is no model, and `StoreError` where the cache cannot be used.
    """
    asked = as_language_model(client, settings)
    llm = settings.llm
    address = llm.base_url or [os.environ.get(name) for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE)]
    own = [temperatures] if (temperatures := find_temperatures(settings)) else []
    options = json.dumps([address, llm.temperature, llm.max_tokens, llm.structured_output, llm.reasoning_effort, *own])
    kept = CachedModel(asked, cache / _CACHE_FILE, options=options)
    try:
        yield kept
    finally:
        kept.close()
        if client is None and isinstance(asked, OpenAIModel):
            asked.close()


def ask_ahead(
    model: LanguageModel,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    concurrency: int = CONCURRENCY,
    progress: Progress | None = None,
) -> None:
    """Ask *model*, which keeps its replies, all that *systems* will ask it about *data*, *concurrency* at a time.

    Left out are the questions of which a gate decides, since it decides by what was found before. Where this is
    interrupted, every reply that had come is kept. Raises `ModelError` where none of the first questions is answered:
    what would be measured then is the model's absence. Raises `WrapError` inside a running event loop.
    """
    with suppress(ImportError):
        # To load a client is no part of the time the first replies take.
        import_module("openai")
    refuse_running_loop("ask_ahead")
    asyncio.run(_ask_all(model, data, systems, concurrency, progress))


async def _ask_all(
    model: LanguageModel,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    concurrency: int,
    progress: Progress | None,
) -> None:
    free = asyncio.Semaphore(concurrency)

    async def ask(middleware: QueryMiddleware, question: Question) -> str:
        """Return why the model failed, in one word; empty where it did not."""
        async with free:
            transformed = await middleware.atransform(question.text, history=question.history)
        reasons = [reason for stage, reason in transformed.notes if stage.startswith("transform.")]
        return reasons[0] if transformed.is_empty and reasons else ""

    for name, settings in systems.items():
        config = build_config(settings)
        if config.settings.transformation_type == "none":
            continue
        gated = config.settings.escalation.mode == "auto"
        questions = [question for question in data.questions if question.history or not gated]
        middleware = QueryMiddleware(config, client=model)
        failures: list[str] = []
        # A few at first: a model that is not there is noticed before all of them wait for it.
        for part in (questions[:concurrency], questions[concurrency:]):
            for asked in asyncio.as_completed([ask(middleware, question) for question in part]):
                failures.append(await asked)
                if progress is not None:
                    progress(f"asking: {name}", len(failures), len(questions))
            if failures and all(failures):
                raise ModelError(
                    failures[0],
                    f"{model.name} answered none of the first {len(failures)} questions ({failures[0]}); check the "
                    "key, llm.baseUrl and the model's name, and see that the service is up",
                )


def _require_writable(recording: Path) -> Path:
    """*recording*; raises `ConfigError` where nothing can be recorded there, before anything is asked."""
    try:
        make_private_folders(recording.parent)
        os.close(open_itself(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    except OSError as error:
        raise ConfigError(f"the replies cannot be recorded in {recording}: {error.strerror}", path="record") from error
    for _ in read_lines(recording):
        pass
    return recording


def _describe_recording(path: Path, model_ms: float, kept: int, whole: int) -> Iterator[str]:
    time = (
        f"{model_ms:g} ms stand for the time of each"
        if model_ms
        else "the model's time is not part of the added milliseconds"
    )
    yield f"Recorded replies of a language model ({path.name}): none was asked, and {time}."
    if kept < whole:
        yield f"{kept} of {whole} questions were recorded; the others are left out."


def _describe_function(function: FunctionSource, own: OwnFunction) -> Iterator[str]:
    kept = own.memory
    if own.base.top_k_argument is None:
        yield f"{function.name} has no parameter for the number of passages, so it returns as many as it likes."
    if isinstance(kept, KeptRuns) and len(kept):
        yield (
            f"This goes on where the same measurement was interrupted: {len(kept):,} results are known. To measure "
            f"all anew, delete {kept.path}."
        )


def _describe_model(model: LanguageModel, *, has_model: bool) -> str:
    if not has_model:
        return _NO_MODEL_ASKED
    return (
        f"Replies of {model.name}. They are kept: one that is used again costs nothing more, and counts with the "
        "tokens, money and time it took at first."
    )
