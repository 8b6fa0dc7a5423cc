"""A data set, its index and a model, opened, and any system of a comparison made of them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from qtmiddleware.kit.evaluation.bench.function import (
    Forecast,
    FunctionSource,
    forecast_searches,
    open_function,
)
from qtmiddleware.kit.evaluation.bench.kept_runs import KeptRuns
from qtmiddleware.kit.evaluation.bench.recordings import (
    EstimatedModel,
    list_fields,
    select_recorded,
)
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
    "No language model was called: there are no recorded replies, and neither OPENAI_API_KEY nor"
    " QTM_LLM_BASE_URL is set."
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
        wrapped: Any = QueryMiddleware(
            config, client=self.model, store=self.store, embedder=self.embedder
        ).retriever
        return wrapped  # type: ignore[no-any-return]

    def retrieve(self, settings: Mapping[str, Any], question: Question) -> Retrieval:
        """Return what the system of *settings* finds for one question."""
        return self.wrap(settings).retrieve(question.text, top_k=TOP_K, history=question.history)

    def system(self, settings: Mapping[str, Any], top_k: int = TOP_K) -> System:
        """Return the system of *settings*, to be measured one question at a time.

        Vectors and replies that were kept take no time now; what they took at first is part of the
        time added.
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
        return (
            self.embedder.record_replays()
            if isinstance(self.embedder, CachedEmbedder)
            else nullcontext({})
        )

    # A method: the bench is what the systems are made of.
    measure = measure_systems


def build_config(settings: Mapping[str, Any]) -> Config:
    """Return the config under which a system of these *settings* is measured, whatever the environment sets.

    A model that fails is asked all the same: what is measured is the system, not the outage before.
    """
    return (
        Config.load(MEASURED, environ={})
        .overridden(settings)
        .overridden({"breaker": {"enabled": False}})
    )


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

    Its file is named by a hash of the passages and the embedding model, and nothing else is ever
    written to it: with as many passages as *data* has it is complete. Two processes may build it at
    once. *engine* embeds what is to be embedded for a `CachedEmbedder`, where its model runs on
    these machines; this process does by default.
    """
    passages = replace(data, questions=(), qrels={}).data_hash
    name = hashlib.sha256(
        f"{passages}\n{embedder.name}\n{embedder.dimension}".encode()
    ).hexdigest()[:16]
    path = folder / f"index-{name}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    if store.count() == len(data.passages):
        return store
    store.close()
    if engine is not None and isinstance(embedder, CachedEmbedder):
        pages = ([passage.text for passage in page] for page in _read_pages(data))
        embedder.embed_ahead(
            pages,
            engine,
            None if progress is None else partial(progress, "embedding by the engine"),
        )
    return build_index(data, path, embedder, progress=progress)


@dataclass(frozen=True, slots=True)
class OpenedBench:
    """A bench, the *data* it is to be measured on, and sentences (*notes*) that a reader of the figures must know.

    *bench* is an index and what embeds for it, or a function of the user's own. *has_model* says
    whether a model can be asked, or its recorded replies can be replayed. *recorded* are the names
    of the fields a recording holds, ``None`` where there is none. *model* is the bench's, without
    what records its replies; ``None`` for a function that asks its own. *counts_model_time* is
    false where replies are replayed as if they had taken no time.
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
        return forecast_searches(
            cast(OwnFunction, self.bench), self.data, systems, has_model=self.has_model, deep=deep
        )

    def measure(
        self,
        systems: Mapping[str, Mapping[str, Any]],
        *,
        deep: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Measure every one of the *systems* against the raw query, on all questions.

        A live model is asked ahead, several questions at once, so that a question that is measured
        waits for no reply; the time its reply took counts. Raises what `measure` raises,
        `ModelError` for a model that does not answer, and `ConfigError` for a function of the
        user's own that never returned an id that is judged.
        """
        if self.has_model and self.recorded is None and self.bench.model is not None:
            ask_ahead(
                self.bench.model,
                self.data,
                systems,
                concurrency=self.concurrency,
                progress=progress,
            )
        comparison = measure_systems(
            self.bench,
            self.data,
            systems,
            deep=deep,
            notes=self.notes,
            seed=seed,
            progress=progress,
        )
        if isinstance(self.bench, OwnFunction) and self.bench.ids is not None:
            self.bench.ids.finish()
        return replace(comparison, counts_model_time=self.counts_model_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How a bench is opened.

    Attributes:
        settings: Name the embedding model and the language model.
        function: A function of the user's own, which is then what searches. Nothing is embedded or
            stored. What it found is kept until the block ends, so that a measurement that was
            interrupted is taken up. A function that is wrapped already asks its own model.
        client: Asked in place of the language model of *settings*.
        recordings: A file of recorded replies, replayed in the model's place. Only the questions in
            it are asked.
        record: A file that the model's replies are written to.
        model_ms: Milliseconds that stand for the time of each recorded reply.
        cache: The folder where the index, every vector and every reply are kept, so that a second
            run costs next to nothing.
        questions: How many are asked, drawn by *seed*; all by default.
        split: The one file of judgements that is read; all by default.
        seed: Draws the questions.
        concurrency: How many questions the model is asked about at a time.
        engine: Embeds the passages if the embedding model runs on these machines; this process does
            by default. The figures are the same.
        progress: Is told what is done of how much.
        check: Is given the questions that are asked, with their data set, before anything is
            embedded, and may raise.

    Raises `ConfigError` for an impossible time and for options that do not go together.
    """

    settings: Settings
    function: FunctionSource | None = None
    client: Any = None
    recordings: Path | None = None
    record: Path | None = None
    model_ms: float = 0.0
    cache: Path = CACHE
    questions: int | None = None
    split: str = ""
    seed: int = 0
    concurrency: int = CONCURRENCY
    engine: Engine | None = None
    progress: Progress | None = None
    check: Callable[[Dataset], None] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.model_ms < inf:
            message = "--model-ms must be a time in milliseconds"
            raise ConfigError(message, path="model_ms", value=self.model_ms)
        if self.recordings is not None and self.record is not None:
            raise ConfigError("pass --recordings or --record, not both", path="record")
        if self.has_own_model and (self.recordings, self.record, self.client) != (None, None, None):
            message = (
                "the function is already wrapped and uses its own model; name the plain function"
            )
            raise ConfigError(message, path="function")

    @property
    def has_own_model(self) -> bool:
        """Whether the function is wrapped already, and asks a model of its own."""
        return self.function is not None and self.function.is_wrapped


@dataclass(frozen=True, slots=True)
class _Replies:
    """Where the model's replies come from: the *model*, if any, and what is said of it in *notes*.

    *data* has the questions that can be asked; *recorded* are the fields a recording holds.
    """

    data: Dataset
    model: LanguageModel | None
    has_model: bool
    notes: tuple[str, ...]
    recorded: frozenset[str] | None = None


@contextmanager
def open_bench(folder: str | Path | Dataset, options: BenchOptions) -> Iterator[OpenedBench]:
    """Yield the data set in *folder*, or one already loaded, with its index and a model, to be closed afterwards.

    With a function of the user's own *folder* may be anything that `load_judged` reads. Raises
    `ConfigError` for a data set or recording that cannot be read, `StoreError`, `EmbeddingError`,
    `EngineError` and `MissingExtra`.
    """
    with ExitStack() as stack:
        replies = _open_replies(_open_data(folder, options), options, stack)
        data, drawn = _draw_questions(replies.data, options)
        if options.check is not None:
            options.check(data)
        bench = _open_searching(data, replies.model, options, stack)
        notes = (*replies.notes, *drawn)
        if options.function is not None:
            notes = (*notes, *_describe_function(options.function, cast(OwnFunction, bench)))
        yield OpenedBench(
            bench,
            data,
            notes,
            replies.has_model,
            replies.model,
            replies.recorded,
            options.concurrency,
            counts_model_time=options.recordings is None or options.model_ms > 0,
        )


def _open_data(folder: str | Path | Dataset, options: BenchOptions) -> Dataset:
    """Return the data set; raises `ConfigError` if nothing can be measured on it, before anything is embedded."""
    load = Dataset.load if options.function is None else load_judged
    data = folder if isinstance(folder, Dataset) else load(folder, split=options.split)
    require_extras()
    require_measurable(data)
    return data


def _open_replies(data: Dataset, options: BenchOptions, stack: ExitStack) -> _Replies:
    settings, function, recordings = options.settings, options.function, options.recordings
    if function is not None and options.has_own_model:
        has_model = function.fn.middleware._components.has_model
        note = (
            f"{function.name} uses its own model; its replies are not kept."
            if has_model
            else _NO_MODEL_ASKED
        )
        return _Replies(data, None, has_model, (note,))
    if recordings is not None:
        replayed, known, recorded = select_recorded(data, recordings)
        prices = {
            "input_price": settings.llm.input_price,
            "output_price": settings.llm.output_price,
        }
        estimated = EstimatedModel(
            replayed, settings.transformation_model, options.model_ms / 1e3, **prices
        )
        notes = _describe_recording(
            recordings, options.model_ms, len(known.questions), len(data.questions)
        )
        return _Replies(known, estimated, True, (*notes, estimated.note), recorded)
    has_model = options.client is not None or has_language_model(settings)
    model = stack.enter_context(open_model(settings, client=options.client, cache=options.cache))
    note = _describe_model(model, has_model=has_model)
    if options.record is not None and not has_model:
        raise ConfigError(f"--record needs a language model. {note}", path="record")
    return _Replies(data, model, has_model, (note,))


def _draw_questions(data: Dataset, options: BenchOptions) -> tuple[Dataset, list[str]]:
    """Return the questions that are asked, and what must be known of them."""
    notes: list[str] = []
    count = options.questions
    if count is not None and count < len(data.questions):
        notes.append(f"{count} of {len(data.questions)} questions, drawn with seed {options.seed}.")
        data = data.sampled(count, seed=options.seed)
    if data.is_synthetic:
        notes.append(
            "The questions are synthetic: a language model wrote them from the passages that answer"
            " them."
        )
    return data, notes


def _open_searching(
    data: Dataset, model: LanguageModel | None, options: BenchOptions, stack: ExitStack
) -> Bench | OwnFunction:
    """Return what searches: the user's own function, or the index of the passages of *data*."""
    settings, cache = options.settings, options.cache
    if options.record is not None and model is not None:
        # Around the cache, so that what is known already is recorded too.
        model = RecordingModel(model, _require_writable(options.record))
    if options.function is not None:
        own = open_function(options.function, data, settings=settings, model=model, cache=cache)
        return stack.enter_context(own)
    embedder = stack.enter_context(_open_embedder(settings, cache))
    index = open_index(data, cache, embedder, engine=options.engine, progress=options.progress)
    return Bench(
        stack.enter_context(index), embedder, cast(LanguageModel, model), settings.store.read_price
    )


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
def open_model(
    settings: Settings, *, client: Any = None, cache: Path = CACHE
) -> Iterator[CachedModel]:
    """Yield the language model of *settings*, or *client* in its place, its replies kept in the folder *cache*.

    Raises `ConfigError` for what is no model, and `StoreError` where the cache cannot be used.
    """
    asked = as_language_model(client, settings)
    llm = settings.llm
    address = llm.base_url or [
        os.environ.get(name) for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE)
    ]
    own = [temperatures] if (temperatures := find_temperatures(settings)) else []
    options = json.dumps(
        [
            address,
            llm.temperature,
            llm.max_tokens,
            llm.structured_output,
            llm.reasoning_effort,
            *own,
        ]
    )
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

    Left out are the questions of which a gate decides, since it decides by what was found before.
    Where this is interrupted, every reply that had come is kept. Raises `ModelError` where none of
    the first questions is answered: what would be measured then is the model's absence. Raises
    `WrapError` inside a running event loop.
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
                    f"{model.name} replied to none of the first {len(failures)} questions"
                    f" ({failures[0]}); check the key, llm.baseUrl and the model's name, and see"
                    " that the service is up",
                )


def _require_writable(recording: Path) -> Path:
    """*recording*; raises `ConfigError` where nothing can be recorded there, before anything is asked."""
    try:
        make_private_folders(recording.parent)
        os.close(open_itself(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    except OSError as error:
        raise ConfigError(
            f"the replies cannot be recorded in {recording}: {error.strerror}", path="record"
        ) from error
    for _ in read_lines(recording):
        pass
    return recording


def _describe_recording(path: Path, model_ms: float, kept: int, whole: int) -> Iterator[str]:
    time = (
        f"{model_ms:g} ms are counted for each"
        if model_ms
        else "the added milliseconds do not include the model's time"
    )
    yield f"Recorded replies of a language model ({path.name}): no model was called, and {time}."
    if kept < whole:
        yield f"{kept} of {whole} questions were recorded; the others are skipped."


def _describe_function(function: FunctionSource, own: OwnFunction) -> Iterator[str]:
    kept = own.memory
    if own.base.top_k_argument is None:
        yield (
            f"{function.name} has no parameter for the number of passages, so its own number is"
            " used."
        )
    if isinstance(kept, KeptRuns) and len(kept):
        yield (
            f"Continuing an interrupted measurement: {len(kept):,} results are known. To start "
            f"over, delete {kept.path}."
        )


def _describe_model(model: LanguageModel, *, has_model: bool) -> str:
    if not has_model:
        return _NO_MODEL_ASKED
    return (
        f"Replies of {model.name}. They are kept: one that is used again costs nothing more, and"
        " counts with the tokens, money and time it took at first."
    )
