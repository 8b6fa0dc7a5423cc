"""Open a data set with its index and a model, and build the systems that a comparison measures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, Final, cast

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.embedding import OpenAIEmbedder, find_embedder
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
from qtmiddleware.kit.evaluation.bench.recordings import (
    EstimatedModel,
    list_reply_fields,
    select_recorded_questions,
)
from qtmiddleware.kit.evaluation.compare import measure_systems
from qtmiddleware.kit.evaluation.own_function import OwnFunction, refuse_running_loop
from qtmiddleware.kit.evaluation.recorded import RecordingModel, read_records
from qtmiddleware.kit.files import make_private_folders
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Embedder, LanguageModel, Store
from qtmiddleware.providers.llms import has_language_model, make_language_model
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.openai_client import ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE
from qtmiddleware.runtime.files import open_for_writing
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

CACHE: Final = Path(".qtm/bench")
"""The default folder of indexes, vectors and replies."""
CONCURRENCY: Final = 8
"""The number of questions that the model is asked at a time."""
BATCH: Final = 64
"""The number of passages that are embedded and stored at a time."""
_CACHE_FILE: Final = "cache.sqlite"
_NO_MODEL_ASKED: Final = (
    "No language model was called: there are no recorded replies, and neither OPENAI_API_KEY nor"
    " QTM_LLM_BASE_URL is set."
)


@dataclass(frozen=True, slots=True)
class Bench:
    """Builds systems from an index, an embedder and a model.

    Attributes:
        store: The index.
        embedder: Embeds the queries.
        model: The model that the systems ask.
        read_price: The price of searches, as in ``store.readPrice``, or ``None`` if the price is
            not known.
    """

    store: Store = field(repr=False)
    embedder: Embedder = field(repr=False)
    model: LanguageModel
    read_price: float | None = None

    def build_wrapped_function(self, settings: Mapping[str, Any]) -> Wrapped[..., Any]:
        """Return the search of the index, wrapped by the middleware with *settings*."""
        config = build_config(settings).overridden({"store": {"readPrice": self.read_price}})
        wrapped: Any = QueryMiddleware(
            config, client=self.model, store=self.store, embedder=self.embedder
        ).retriever
        return wrapped  # type: ignore[no-any-return]

    def retrieve(self, settings: Mapping[str, Any], question: Question) -> Retrieval:
        """Search the index for *question* with *settings*, and return the result."""
        return self.build_wrapped_function(settings).retrieve(
            question.text, top_k=TOP_K, history=question.history
        )

    def build_system(self, settings: Mapping[str, Any], top_k: int = TOP_K) -> System:
        """Return a function that measures one question with *settings*.

        Cached vectors and replies count with the time that they took originally.
        """
        wrapped = self.build_wrapped_function(settings)

        def measure_question(question: Question) -> Run:
            with self._record_replays() as replayed:
                retrieval = wrapped.retrieve(question.text, top_k=top_k, history=question.history)
            measured = run_of(retrieval)
            # A plain search also embeds the question, so this time does not count as added.
            replayed_seconds = sum(replayed.values()) - replayed.get(
                retrieval.variants[0].text, 0.0
            )
            return replace(
                measured, seconds_added=(measured.seconds_added or 0.0) + replayed_seconds
            )

        return measure_question

    def _record_replays(self) -> AbstractContextManager[Mapping[str, float]]:
        """Return a context manager that records which cached vectors the ``with`` block reads.

        The context manager yields a mapping from each text to the seconds that its vector took
        originally. If the embedder has no cache, the mapping stays empty.
        """
        return (
            self.embedder.record_replays()
            if isinstance(self.embedder, CachedEmbedder)
            else nullcontext({})
        )

    # This function becomes a method: its first parameter is the bench.
    measure = measure_systems


def build_config(settings: Mapping[str, Any]) -> Config:
    """Return the config for measuring a system with *settings*.

    Environment variables are ignored. The circuit breaker is off, so that a model's failure does
    not affect the questions after it.
    """
    return (
        Config.load(MEASURED, environ={})
        .overridden(settings)
        .overridden({"breaker": {"failures": 0}})
    )


def build_index(
    dataset: Dataset,
    path: str | Path,
    embedder: Embedder,
    *,
    progress: Progress | None = None,
) -> SQLiteStore:
    """Build the index of the passages of *dataset* at *path*, and return the open index."""
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    try:
        for start in range(0, len(dataset.passages), BATCH):
            batch = dataset.passages[start : start + BATCH]
            store.upsert(batch, embedder.embed([passage.text for passage in batch]))
            if progress is not None:
                progress("embedding passages", start + len(batch), len(dataset.passages))
    except BaseException:
        store.close()
        raise
    return store


def open_index(
    dataset: Dataset,
    folder: Path,
    embedder: Embedder,
    *,
    progress: Progress | None = None,
) -> SQLiteStore:
    """Open the index of *dataset* in *folder*. If the index is missing or unfinished, build it.

    The name of the index file is a hash of the passages and the embedding model. The index is
    finished if it has as many passages as *dataset*. Two processes may build the same index at the
    same time.

    Args:
        dataset: The data set.
        folder: The folder of the index.
        embedder: The embedding model.
        progress: Receives the stage's name, the passages done and their total.
    """
    # Other questions about the same passages use the same index.
    passages = replace(dataset, questions=(), qrels={}).data_hash
    name = hashlib.sha256(
        f"{passages}\n{embedder.name}\n{embedder.dimension}".encode()
    ).hexdigest()[:16]
    path = folder / f"index-{name}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    if store.count() == len(dataset.passages):
        return store
    store.close()
    return build_index(dataset, path, embedder, progress=progress)


@dataclass(frozen=True, slots=True)
class OpenedBench:
    """A bench, ready to measure systems on a data set.

    Attributes:
        bench: An index with its embedder, or your own function.
        dataset: The data set.
        notes: Notes for the report, such as the number of questions without a recorded reply.
        has_model: Whether a model can be asked, or recorded replies can be replayed.
        model: The bench's model, without the wrapper that records replies. ``None`` if your
            function asks its own model.
        recorded_fields: The reply fields in the recording, or ``None`` without a recording.
        concurrency: The maximum number of questions that the model works on at the same time.
        counts_model_time: Whether the figures include the model's time. ``False`` if replayed
            replies count as taking no time.
    """

    bench: Bench | OwnFunction
    dataset: Dataset
    notes: tuple[str, ...]
    has_model: bool
    model: LanguageModel | None
    recorded_fields: frozenset[str] | None
    concurrency: int
    counts_model_time: bool = True

    @property
    def model_name(self) -> str | None:
        """The model's name, or ``None`` without a model or if your function asks its own model."""
        return self.model.name if self.has_model and self.model is not None else None

    def list_missing_fields(self, system_settings: Mapping[str, Any]) -> frozenset[str]:
        """Return the reply fields that a system needs if the recording has none of them.

        Returns an empty set if the recording has at least one of these fields, or if there is no
        recording.
        """
        # A system with some of its fields can still be measured.
        fields = list_reply_fields(system_settings)
        return (
            frozenset() if self.recorded_fields is None or fields & self.recorded_fields else fields
        )

    def forecast_searches(
        self, systems: Mapping[str, Mapping[str, Any]], *, deep: bool = False
    ) -> Forecast:
        """Return the maximum number of searches for measuring *systems*, and their cost.

        The bench must have your own function. If *deep* is true, each system is also asked for a
        hundred passages.
        """
        return forecast_searches(
            cast(OwnFunction, self.bench),
            self.dataset,
            systems,
            has_model=self.has_model,
            deep=deep,
        )

    def measure(
        self,
        systems: Mapping[str, Mapping[str, Any]],
        *,
        deep: bool = False,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Measure each of *systems* on all questions, and compare them with the raw query.

        Without a recording, the model is asked first, for several questions at a time, and the
        replies are cached. The figures include the time of each reply.

        Args:
            systems: The settings of each system.
            deep: Also ask each system for a hundred passages, to measure R@100.
            seed: The seed of every resampling.
            progress: Receives the stage's or system's name, the questions done and their total.

        Raises:
            ModelError: The model does not answer.
            ConfigError: Your own function never returned a judged id.
            Exception: Any exception that `measure` raises.
        """
        # Recorded replies come at once, so only a live model is asked in advance.
        if self.has_model and self.recorded_fields is None and self.bench.model is not None:
            ask_ahead(
                self.bench.model,
                self.dataset,
                systems,
                concurrency=self.concurrency,
                progress=progress,
            )
        comparison = measure_systems(
            self.bench,
            self.dataset,
            systems,
            is_deep=deep,
            notes=self.notes,
            seed=seed,
            progress=progress,
        )
        if isinstance(self.bench, OwnFunction) and self.bench.ids is not None:
            self.bench.ids.require_judged_id()
        return replace(comparison, counts_model_time=self.counts_model_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options for opening a bench.

    Attributes:
        settings: The settings. They name the embedding model and the language model.
        function: Your own function, which the bench calls instead of searching an index. A wrapped
            function asks its own model.
        client: A model to ask instead of the language model of *settings*.
        recordings: A file of recorded replies to use instead of asking the model. Only questions
            with recorded replies are measured.
        record: A file to write the model's replies to.
        model_ms: The assumed duration of each recorded reply, in milliseconds.
        cache: The folder for the index, all vectors and all replies. A second run reuses them.
        questions: The number of questions to measure, drawn with *seed*. Default: all questions.
        split: The file of judgements to read, by name. Default: all files.
        seed: The seed that draws the questions.
        concurrency: The maximum number of questions that the model works on at the same time.
        progress: Receives the stage's name, the steps done and their total.
        check: Receives the data set with the questions to measure, before any passage is embedded.
            Exceptions of this function pass through.
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
    progress: Progress | None = None
    check: Callable[[Dataset], None] | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigError` if `model_ms` is not valid or two options exclude each other."""
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
        """``True`` if the function is already wrapped, so that it asks its own model."""
        return self.function is not None and self.function.is_wrapped


@dataclass(frozen=True, slots=True)
class _ReplySource:
    """A source of replies: a model, a recording, or a wrapped function's own model.

    Attributes:
        dataset: The data set with the questions that the source can reply to.
        model: The model, or the recording that replaces the model. ``None`` if a function asks its
            own model.
        has_model: Whether a model or recording can reply.
        notes: Sentences about the source, for the report.
        recorded_fields: The reply fields in the recording, or ``None`` without a recording.
    """

    dataset: Dataset
    model: LanguageModel | None
    has_model: bool
    notes: tuple[str, ...]
    recorded_fields: frozenset[str] | None = None


@contextmanager
def open_bench(
    folder_or_dataset: str | Path | Dataset, options: BenchOptions
) -> Iterator[OpenedBench]:
    """Yield an opened bench: a data set with its index and a model. Close the bench at the end.

    Args:
        folder_or_dataset: The folder of the data set, or the loaded data set. With your own
            function, a path that `load_judged` can read.
        options: The options for opening the bench.

    Raises:
        ConfigError: The data set or the recording cannot be read, or an option is not valid.
        StoreError: The index or the cache cannot be used.
        EmbeddingError: Embedding failed.
        MissingExtra: A package is not installed.
    """
    with ExitStack() as stack:
        replies = _open_reply_source(_load_dataset(folder_or_dataset, options), options, stack)
        dataset, question_notes = _select_questions(replies.dataset, options)
        # Embedding costs time or money, so a check that fails must come before it.
        if options.check is not None:
            options.check(dataset)
        bench = _open_search_backend(dataset, replies.model, options, stack)
        notes = (*replies.notes, *question_notes)
        if options.function is not None:
            notes = (*notes, *_describe_function(options.function, cast(OwnFunction, bench)))
        yield OpenedBench(
            bench,
            dataset,
            notes,
            replies.has_model,
            replies.model,
            replies.recorded_fields,
            options.concurrency,
            counts_model_time=options.recordings is None or options.model_ms > 0,
        )


def _load_dataset(folder_or_dataset: str | Path | Dataset, options: BenchOptions) -> Dataset:
    """Return the data set in a folder, or the loaded data set itself.

    Raises `ConfigError` if the data set cannot be measured.
    """
    load = Dataset.load if options.function is None else load_judged
    dataset = (
        folder_or_dataset
        if isinstance(folder_or_dataset, Dataset)
        else load(folder_or_dataset, split=options.split)
    )
    require_extras()
    require_measurable(dataset)
    return dataset


def _open_reply_source(dataset: Dataset, options: BenchOptions, stack: ExitStack) -> _ReplySource:
    """Return a source of replies: a wrapped function's own model, a recording, or a model.

    *stack* closes the model at the end.
    """
    settings, function, recordings = options.settings, options.function, options.recordings
    if function is not None and options.has_own_model:
        has_model = function.fn.middleware.has_model
        note = (
            f"{function.name} uses its own model; its replies are not kept."
            if has_model
            else _NO_MODEL_ASKED
        )
        return _ReplySource(dataset, None, has_model, (note,))
    if recordings is not None:
        replayed, recorded_data, fields = select_recorded_questions(dataset, recordings)
        prices = {
            "input_price": settings.llm.input_price,
            "output_price": settings.llm.output_price,
        }
        estimated = EstimatedModel(
            replayed, settings.transformation_model, options.model_ms / 1e3, **prices
        )
        notes = _describe_recording(
            recordings, options.model_ms, len(recorded_data.questions), len(dataset.questions)
        )
        return _ReplySource(recorded_data, estimated, True, (*notes, estimated.note), fields)
    has_model = options.client is not None or has_language_model(settings)
    model = stack.enter_context(open_model(settings, client=options.client, cache=options.cache))
    note = _describe_model(model, has_model=has_model)
    if options.record is not None and not has_model:
        raise ConfigError(f"--record needs a language model. {note}", path="record")
    return _ReplySource(dataset, model, has_model, (note,))


def _select_questions(dataset: Dataset, options: BenchOptions) -> tuple[Dataset, list[str]]:
    """Return the data set with only the questions to measure, and notes on the selection."""
    notes: list[str] = []
    count = options.questions
    if count is not None and count < len(dataset.questions):
        notes.append(
            f"{count} of {len(dataset.questions)} questions, drawn with seed {options.seed}."
        )
        dataset = dataset.sampled(count, seed=options.seed)
    if dataset.is_synthetic:
        notes.append(
            "The questions are synthetic: a language model wrote them from the passages that answer"
            " them."
        )
    return dataset, notes


def _open_search_backend(
    dataset: Dataset, model: LanguageModel | None, options: BenchOptions, stack: ExitStack
) -> Bench | OwnFunction:
    """Open your own function, or a bench with an index of the passages of *dataset*.

    *stack* closes the function or the index at the end.
    """
    settings, cache = options.settings, options.cache
    if options.record is not None and model is not None:
        # The recording wraps the cache, so that cached replies are recorded too.
        model = RecordingModel(model, _require_writable(options.record))
    if options.function is not None:
        function = open_function(options.function, dataset, settings=settings, model=model)
        return stack.enter_context(function)
    embedder = stack.enter_context(_open_embedder(settings, cache))
    index = open_index(dataset, cache, embedder, progress=options.progress)
    return Bench(
        stack.enter_context(index), embedder, cast(LanguageModel, model), settings.store.read_price
    )


@contextmanager
def _open_embedder(settings: Settings, cache_folder: Path) -> Iterator[CachedEmbedder]:
    """Yield the embedding model of *settings*, with a cache for vectors in *cache_folder*."""
    inner = find_embedder(settings.embedding_model, dimensions=settings.embedding_dimensions)
    with ExitStack() as stack:
        # The cached embedder leaves its inner embedder open.
        if isinstance(inner, OpenAIEmbedder):
            stack.callback(inner.close)
        embedder = CachedEmbedder(inner, cache_folder / _CACHE_FILE)
        stack.callback(embedder.close)
        yield embedder


@contextmanager
def open_model(
    settings: Settings, *, client: Any = None, cache: Path = CACHE
) -> Iterator[CachedModel]:
    """Yield *client* or the language model of *settings*, with a cache for replies in *cache*.

    Raises `ConfigError` if *client* is not a model, and `StoreError` if the cache cannot be used.
    """
    model = make_language_model(client, settings)
    llm = settings.llm
    # With any other address or option, the model may reply differently, so these are in the key.
    address = llm.base_url or [
        os.environ.get(name) for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE)
    ]
    temperature_options = [llm.temperatures] if llm.temperatures else []
    options = json.dumps(
        [
            address,
            llm.temperature,
            llm.max_tokens,
            llm.structured_output,
            llm.reasoning_effort,
            *temperature_options,
        ]
    )
    cached = CachedModel(model, cache / _CACHE_FILE, options=options)
    try:
        yield cached
    finally:
        cached.close()
        # A client that was passed in belongs to the caller.
        if client is None and isinstance(model, OpenAIModel):
            model.close()


def ask_ahead(
    model: LanguageModel,
    dataset: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    concurrency: int = CONCURRENCY,
    progress: Progress | None = None,
) -> None:
    """Send *model* the prompts of all *systems* for *dataset*, so that its replies are cached.

    A question is skipped if a gate needs search results before it can decide about the model call.
    After an interruption, the replies so far stay in the cache.

    Args:
        model: The model, with a cache for replies.
        dataset: The data set.
        systems: The settings of each system.
        concurrency: The maximum number of questions that the model works on at the same time.
        progress: Receives the stage's name, the questions done and their total.

    Raises:
        ModelError: The model replied to none of the first questions.
        WrapError: An event loop is running.
    """
    with suppress(ImportError):
        # Loading the client must not count as the time of the first replies.
        import_module("openai")
    refuse_running_loop("ask_ahead")
    asyncio.run(_ask_all_questions(model, dataset, systems, concurrency, progress))


async def _ask_all_questions(
    model: LanguageModel,
    dataset: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    concurrency: int,
    progress: Progress | None,
) -> None:
    """Send *model* the prompts of all *systems*, for at most *concurrency* questions at a time."""
    free = asyncio.Semaphore(concurrency)

    async def ask_model(middleware: QueryMiddleware, question: Question) -> str:
        """Ask the model about *question*. Return why the model failed, or ``""`` if it replied."""
        async with free:
            transformed = await middleware.atransform(question.text, history=question.history)
        reasons = [reason for stage, reason in transformed.notes if stage.startswith("transform.")]
        return reasons[0] if transformed.is_empty and reasons else ""

    for name, settings in systems.items():
        config = build_config(settings)
        if config.settings.transformation_type == "none":
            continue
        is_gated = config.settings.escalation.mode == "auto"
        questions = [question for question in dataset.questions if question.history or not is_gated]
        middleware = QueryMiddleware(config, client=model)
        failures: list[str] = []
        # A few questions come first: if the model is down, the other questions are not asked.
        for batch in (questions[:concurrency], questions[concurrency:]):
            for reply in asyncio.as_completed(
                [ask_model(middleware, question) for question in batch]
            ):
                failures.append(await reply)
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
    """Return *recording* if the file can be written. Otherwise raise `ConfigError`.

    Call this before asking the model, because its replies cost money.
    """
    try:
        make_private_folders(recording.parent)
        os.close(open_for_writing(recording, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    except OSError as error:
        raise ConfigError(
            f"the replies cannot be recorded in {recording}: {error.strerror}", path="record"
        ) from error
    # New lines are appended, so the lines that the file already has must be readable.
    for _ in read_records(recording):
        pass
    return recording


def _describe_recording(
    path: Path, model_ms: float, recorded_count: int, total_count: int
) -> Iterator[str]:
    """Yield notes for the report about the recording at *path*.

    The recording has *recorded_count* of the *total_count* questions. *model_ms* is the assumed
    duration of each reply in milliseconds, or 0 if replies count as taking no time.
    """
    time = (
        f"{model_ms:g} ms are counted for each"
        if model_ms
        else "the added milliseconds do not include the model's time"
    )
    yield f"Recorded replies of a language model ({path.name}): no model was called, and {time}."
    if recorded_count < total_count:
        yield f"{recorded_count} of {total_count} questions were recorded; the others are skipped."


def _describe_function(source: FunctionSource, own_function: OwnFunction) -> Iterator[str]:
    """Yield notes for the report about your own function."""
    if own_function.base.top_k_argument is None:
        yield (
            f"{source.name} has no parameter for the number of passages, so its own number is used."
        )


def _describe_model(model: LanguageModel, *, has_model: bool) -> str:
    """Return a note for the report about the model."""
    if not has_model:
        return _NO_MODEL_ASKED
    return (
        f"Replies of {model.name}. They are kept: one that is used again costs nothing more, and"
        " counts with the tokens, money and time it took at first."
    )
