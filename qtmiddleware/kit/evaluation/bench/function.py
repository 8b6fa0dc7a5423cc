"""Measure your own function instead of an index, and forecast the number of searches."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.bench.kept_runs import KeptRuns
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.measures import DEPTH, TOP_K
from qtmiddleware.kit.evaluation.own_function import (
    IdCheck,
    OwnFunction,
    build_system_key,
    open_runner,
)
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.searching import compute_max_searches
from qtmiddleware.types import Message
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

READING: Final = ("textField", "idField", "scoreField")
"""The keys of ``keywordEvidence`` that say how to read results. All systems use the same values."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Your own function to measure, with its arguments.

    Attributes:
        fn: The function, plain or wrapped.
        name: The function's name in reports, such as ``app:search``.
        arguments: The arguments of every call, apart from the question.
        top_k: The number of passages to ask for.
        options: The options for wrapping a plain function, as for `QueryMiddleware.wrap`.
    """

    fn: Any = field(repr=False)
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    top_k: int | None = TOP_K
    options: WrapOptions = field(default_factory=WrapOptions)

    @property
    def is_wrapped(self) -> bool:
        """``True`` if the function is already wrapped, with its own settings and model."""
        return isinstance(self.fn, Wrapped | Bound)


@contextmanager
def open_function(
    source: FunctionSource,
    dataset: Dataset,
    *,
    settings: Settings,
    model: LanguageModel | None,
    cache_folder: Path,
) -> Iterator[OwnFunction]:
    """Yield the function of *source*, ready to be measured on *dataset*.

    Finished runs are stored in *cache_folder* until the ``with`` block ends. If the block is
    interrupted, the next measurement with the same settings reuses these runs.

    Args:
        source: The function.
        dataset: The judged questions.
        settings: The settings for reading results, and the price of a search.
        model: The model to ask, or ``None`` if the function asks its own model.
        cache_folder: The folder for finished runs.

    Raises:
        WrapError: The function cannot be wrapped, or is asynchronous while an event loop is
            running.
        StoreError: *cache_folder* cannot be used.
    """
    with ExitStack() as stack:
        base: Any = source.fn
        if not source.is_wrapped:
            middleware = QueryMiddleware(_build_base_config(settings), client=model)
            base = stack.enter_context(middleware).wrap(source.fn, **source.options)
        # The first question loads modules, which must not count as its time.
        base.middleware.warm_up()
        runner = stack.enter_context(open_runner(base, "open_bench"))
        memory = KeptRuns(
            cache_folder, _list_identity_values(source, dataset, base.middleware.config)
        )
        function = OwnFunction(
            base,
            source.arguments,
            source.top_k,
            runner,
            IdCheck.from_qrels(dataset.qrels),
            memory,
            model,
        )
        try:
            yield function
        except ConfigError:
            # The user must change the settings or judgements, so no later run can reuse the runs.
            memory.delete_runs()
            raise
        # After any other exception, the file stays, so that the measurement can resume.
        memory.delete_runs()


def _build_base_config(settings: Settings) -> Config:
    """Return the config that each system's settings override.

    The circuit breaker is off, so that a model is still asked after failures.
    """
    values = {name: value for name, value, _ in Config.load(settings).rows()}
    reading = {name: values[f"keywordEvidence.{name}"] for name in READING}
    price = {"readPrice": settings.store.read_price}
    return Config.load(
        {"keywordEvidence": reading, "store": price, "breaker": {"enabled": False}}, environ={}
    )


def _list_identity_values(source: FunctionSource, dataset: Dataset, config: Config) -> list[Any]:
    """Return the values that identify a measurement.

    Stored runs are reused only if all values are equal. The values include the sha256 of the
    function's source file.
    """
    embed = source.options.get("embed")
    return [
        version("qtmiddleware"),
        source.name,
        sorted(source.arguments.items()),
        _hash_source(source.fn),
        None if embed is None else _hash_source(embed),
        dataset.data_hash,
        [row[:2] for row in config.rows()],
    ]


def _hash_source(function: Any) -> str:
    """Return the sha256 of the file that defines *function*, or ``""`` if there is no file."""
    # A partial has the function in "func". A callable object is defined by its class.
    function = inspect.unwrap(getattr(function, "func", function))
    for code in (function, type(function)):
        try:
            file = inspect.getsourcefile(code)
            if file is not None:
                return hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (TypeError, OSError):
            continue
    return ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The maximum number of searches that a measurement can make, and their cost.

    Attributes:
        searches: The maximum number of searches.
        usd: The cost of these searches in US dollars, or ``None`` if the price is not known.
    """

    searches: int
    usd: float | None = None

    @classmethod
    def from_search_count(cls, search_count: int, function: OwnFunction) -> Forecast:
        """Return the forecast for *search_count* searches. Each search costs one read unit."""
        price = function.base.middleware.settings.store.read_price
        return cls(search_count, None if price is None else search_count * price / 1e6)


def forecast_searches(
    function: OwnFunction,
    dataset: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    has_model: bool,
    deep: bool = False,
) -> Forecast:
    """Return the maximum number of searches for measuring *systems* on *dataset*, and their cost.

    Args:
        function: Your own function. Stored runs in its `memory` are not counted.
        dataset: The judged questions.
        systems: The settings of each system, by the system's name.
        has_model: Whether a model is asked.
        deep: Whether each system is also asked for a hundred passages.
    """
    # A follow-up question may make one search more than a first question.
    searches = 0
    for settings in systems.values():
        for_first_question, for_follow_up = (
            _count_max_searches_per_question(
                function, settings, is_follow_up=is_follow_up, has_model=has_model
            )
            for is_follow_up in (False, True)
        )
        for top_k in (function.top_k, DEPTH) if deep else (function.top_k,):
            name = build_system_key(settings, top_k)
            searches += sum(
                for_follow_up if question.history else for_first_question
                for question in dataset.questions
                if function.memory is None or function.memory.load_run(name, question.id) is None
            )
    return Forecast.from_search_count(searches, function)


def _count_max_searches_per_question(
    function: OwnFunction, settings: Mapping[str, Any], *, is_follow_up: bool, has_model: bool
) -> int:
    """Return the maximum number of searches for one question with *settings*.

    *is_follow_up* is ``True`` if the question follows other messages of a conversation.
    """
    if not has_model:
        return 1
    context = function.build_wrapped_function(settings)._context
    history = (Message("user", "?"),) if is_follow_up else ()
    return compute_max_searches(
        Request(
            "?",
            history,
            context.settings,
            context.learned,
            context.cache,
            glossary=context.glossary,
        )
    )
