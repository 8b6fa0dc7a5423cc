"""Open what ``qtm bench`` measures: a data set, an index or a function, and a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings as Options
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.embedding import OpenAIEmbedder, find_embedder
from qtmiddleware.kit.evaluation.compare import (
    Comparison,
    Progress,
    measure,
    require_measurable,
)
from qtmiddleware.kit.evaluation.dataset import Dataset, Question, load_judged
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.recorded import (
    RecordedModel,
    RecordingModel,
    load_recording,
)
from qtmiddleware.kit.evaluation.systems import (
    Settings,
    System,
    index_config,
    index_system,
    open_system,
    refuse_running_loop,
)
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Embedder, LanguageModel
from qtmiddleware.providers.llms import has_language_model, make_language_model
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.llms.replies import Prices
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

# The default folder of indexes.
CACHE: Final = Path(".qtm/bench")
# The model is asked so many questions at a time.
CONCURRENCY: Final = 8
_BATCH: Final = 64
_NO_MODEL: Final = (
    "No language model was called: there are no recorded replies, and neither OPENAI_API_KEY nor"
    " QTM_LLM_BASE_URL is set."
)


def open_index(
    dataset: Dataset,
    folder: Path,
    embedder: Embedder,
    *,
    progress: Progress | None = None,
) -> SQLiteStore:
    """Open the index of *dataset* in *folder*. If it is missing or unfinished, build it.

    The name of the file is a hash of the passages and the embedding model. Other questions about
    the same passages use the same index.
    """
    passages = dataset.fingerprints["passages"]
    head = f"{passages}\n{embedder.name}\n{embedder.dimension}"
    path = folder / f"index-{hashlib.sha256(head.encode()).hexdigest()[:16]}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    try:
        if store.count() != len(dataset.passages):
            for start in range(0, len(dataset.passages), _BATCH):
                batch = dataset.passages[start : start + _BATCH]
                vectors = embedder.embed([passage.text for passage in batch])
                store.write(zip(batch, vectors, strict=True))
                if progress is not None:
                    progress("embedding passages", start + len(batch), len(dataset.passages))
    except BaseException:
        store.close()
        raise
    return store


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Your own function, which is measured instead of an index.

    *name* is for messages, such as ``app:search``. *arguments* are those of every call, apart from
    the question. *options* wrap a plain function. A wrapped function asks its own model.
    """

    fn: Any = field(repr=False)
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: WrapOptions = field(default_factory=WrapOptions)

    @property
    def is_wrapped(self) -> bool:
        """Whether the function is already wrapped."""
        return isinstance(self.fn, Wrapped)


@dataclass(frozen=True, slots=True)
class Bench:
    """A search and a data set, ready to be measured.

    *model* is asked in advance; it is ``None`` if your function asks its own model.
    """

    system: System
    dataset: Dataset
    notes: tuple[str, ...]
    has_model: bool
    model: LanguageModel | None

    @property
    def model_name(self) -> str | None:
        """The model's name, or ``None`` without a model or if your function asks its own model."""
        return self.model.name if self.has_model and self.model is not None else None

    def measure(
        self,
        systems: Mapping[str, Settings],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Comparison:
        """Measure each of *systems* on all questions, and compare them with the plain search.

        Without a recording, the model is asked first, for several questions at a time. The figures
        include the time of each reply. Raises `ModelError` if the model does not answer.
        """
        if self.has_model and isinstance(self.model, RecordingModel):
            ask_ahead(self.model, self.dataset, systems, progress=progress)
        opened = self.system.with_each(systems)
        return measure(opened, self.dataset, notes=self.notes, seed=seed, progress=progress)


@contextmanager
def open_bench(
    data: str | Path | Dataset,
    settings: Options,
    *,
    function: FunctionSource | None = None,
    client: Any = None,
    recordings: Path | None = None,
    record: Path | None = None,
    cache: Path = CACHE,
    questions: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    check: Callable[[Dataset], None] | None = None,
) -> Iterator[Bench]:
    """Yield the bench that measures *data*, and close what was opened.

    Args:
        data: A data set or its folder; for a *function*, also a file of `load_judged`.
        settings: The settings that all systems share: the models and the fields of results.
        function: Your own function, to call instead of searching an index.
        client: A model to ask instead of the language model of *settings*.
        recordings: Recorded replies to use instead of a model. Other questions are not measured.
        record: A file to write the model's replies to.
        cache: The folder for the index. A second run on the same passages reuses it.
        questions: The number of questions to measure, drawn with *seed*. Default: all questions.
        check: Receives the data set with the questions to measure, before any passage is embedded.
    """
    is_wrapped = function is not None and function.is_wrapped
    _refuse_two_models(recordings, record, client, is_wrapped=is_wrapped)
    with ExitStack() as stack:
        if not isinstance(data, Dataset):
            data = Dataset.load(data) if function is None else load_judged(data)
        require_measurable(data)
        model: LanguageModel | None = None
        if function is not None and is_wrapped:
            has_model = function.fn.middleware.engine.has_model
            notes = [f"{function.name} uses its own model." if has_model else _NO_MODEL]
        elif recordings is not None:
            has_model = True
            model, data, notes = _open_recording(data, recordings, settings)
        else:
            has_model = client is not None or has_language_model(settings)
            if record is not None and not has_model:
                raise ConfigError(f"--record needs a language model. {_NO_MODEL}", path="record")
            asked = make_language_model(client, settings)
            if client is None and isinstance(asked, OpenAIModel):
                stack.callback(asked.close)
            model = RecordingModel(asked, record)
            notes = [f"Replies of {model.name}." if has_model else _NO_MODEL]
        if questions is not None and questions < len(data.questions):
            notes.append(f"{questions} of {len(data.questions)} questions, drawn with seed {seed}.")
            data = data.sampled(questions, seed=seed)
        if any(question.metadata.get("synthetic") is True for question in data.questions):
            notes.append(
                "The questions are synthetic: a language model wrote them from the passages."
            )
        if check is not None:
            check(data)
        opened = (
            _open_index(data, settings, model, cache, progress)
            if function is None
            else _open_function(function, settings, model)
        )
        system = stack.enter_context(opened)
        if function is not None and system.function.top_k_argument is None:
            notes.append(
                f"{function.name} has no parameter for the number of passages, so its own number is"
                " used."
            )
        yield Bench(system, data, tuple(notes), has_model, model)


def _refuse_two_models(
    recordings: Path | None,
    record: Path | None,
    client: Any,
    *,
    is_wrapped: bool,
) -> None:
    if recordings is not None and record is not None:
        raise ConfigError("pass --recordings or --record, not both", path="record")
    if is_wrapped and (recordings, record, client) != (None, None, None):
        raise ConfigError(
            "the function is already wrapped and uses its own model; name the plain function",
            path="function",
        )


def _open_recording(
    data: Dataset,
    path: Path,
    settings: Options,
) -> tuple[RecordedModel, Dataset, list[str]]:
    replayed, recorded = load_recording(data, path)
    name, llm = settings.transformation_model, settings.llm
    origin = (
        f"Recorded replies of a language model ({path.name}): no model was called, and the added"
        " milliseconds do not include the model's time. Tokens are estimated, four characters"
        f" each; costs use the prices of {name}."
    )
    notes = [origin]
    count, total = len(recorded.questions), len(data.questions)
    if count < total:
        notes.append(f"{count} of {total} questions were recorded; the others are skipped.")
    prices = Prices(name, llm.input_price, llm.output_price)
    return replayed.priced_as(prices), recorded, notes


@contextmanager
def _open_function(
    source: FunctionSource,
    settings: Options,
    model: LanguageModel | None,
) -> Iterator[System]:
    plain: dict[str, Any] = {}
    if not source.is_wrapped:
        # The reading of results is that of all systems.
        config = {
            "keywordEvidence": {"fields": settings.keyword_evidence.fields},
            "breaker": {"failures": 0},
        }
        plain = {"client": model, "config": Config.load(config, environ={})}
    with open_system(
        source.fn, arguments=source.arguments, top_k=TOP_K, **plain, **source.options
    ) as system:
        system.function.middleware.warm_up()
        yield system


@contextmanager
def _open_index(
    data: Dataset,
    settings: Options,
    model: LanguageModel | None,
    cache: Path,
    progress: Progress | None,
) -> Iterator[System]:
    embedder = find_embedder(settings.embedding_model, dimensions=settings.embedding_dimensions)
    with ExitStack() as stack:
        if isinstance(embedder, OpenAIEmbedder):
            stack.callback(embedder.close)
        store = stack.enter_context(open_index(data, cache, embedder, progress=progress))
        yield index_system(store, embedder, model, top_k=TOP_K)


def ask_ahead(
    model: LanguageModel,
    dataset: Dataset,
    systems: Mapping[str, Settings],
    *,
    progress: Progress | None = None,
) -> None:
    """Ask *model* what *systems* will ask, for `CONCURRENCY` questions at a time.

    *model* keeps its replies, so that measuring, which is sequential, does not wait for them.
    Raises `ModelError` if the model replies to none of the first questions of a system.
    """
    with suppress(ImportError):
        import_module("openai")  # Imported here, so that no deadline includes it.
    refuse_running_loop()

    async def ask_all() -> None:
        for name, settings in systems.items():
            config = index_config(settings)
            if config.settings.transformation_type == "none":
                continue
            # A gate decides by the results of a search. Only follow-ups are surely asked.
            is_gated = config.settings.escalation.mode == "auto"
            questions = dataset.questions
            asked = [question for question in questions if question.history or not is_gated]
            middleware = QueryMiddleware(config, client=model)
            failures: list[str] = []
            for start in range(0, len(asked), CONCURRENCY):
                batch = asked[start : start + CONCURRENCY]
                asks = [_ask(middleware, question) for question in batch]
                failures += await asyncio.gather(*asks)
                if progress is not None:
                    progress(f"asking: {name}", len(failures), len(asked))
                if all(failures):
                    raise ModelError(
                        failures[0],
                        f"{model.name} replied to none of the first {len(failures)} questions"
                        f" ({failures[0]}); check the key, llm.baseUrl and the model's name, and"
                        " see that the service is up",
                    )

    asyncio.run(ask_all())


async def _ask(middleware: QueryMiddleware, question: Question) -> str:
    """Return why there is no reply; ``""`` if there is one."""
    transformed = await middleware.atransform(question.text, history=question.history)
    reasons = [reason for stage, reason in transformed.notes if stage.startswith("transform.")]
    return reasons[0] if transformed.is_empty and reasons else ""
