"""Measure your own function instead of an index, and forecast the number of searches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.own_function import IdCheck, OwnFunction, open_runner
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped

READING: Final = "keywordEvidence.fields"
"""The key that says how to read results. All systems use the same value."""


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
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_wrapped(self) -> bool:
        """``True`` if the function is already wrapped, with its own settings and model."""
        return isinstance(self.fn, Wrapped)


@contextmanager
def open_function(
    source: FunctionSource, dataset: Dataset, *, settings: Settings, model: LanguageModel | None
) -> Iterator[OwnFunction]:
    """Yield the function of *source*, ready to be measured on *dataset*.

    Args:
        source: The function.
        dataset: The judged questions.
        settings: The settings for reading results, and the price of a search.
        model: The model to ask, or ``None`` if the function asks its own model.

    Raises:
        WrapError: The function cannot be wrapped, or is asynchronous while an event loop is
            running.
    """
    with ExitStack() as stack:
        base: Any = source.fn
        if not source.is_wrapped:
            middleware = QueryMiddleware(_build_base_config(settings), client=model)
            base = stack.enter_context(middleware).wrap(source.fn, **source.options)
        # The first question loads modules, which must not count as its time.
        base.middleware.warm_up()
        runner = stack.enter_context(open_runner(base, "open_bench"))
        yield OwnFunction(
            base,
            source.arguments,
            source.top_k,
            runner,
            IdCheck.from_qrels(dataset.qrels),
            model,
        )


def _build_base_config(settings: Settings) -> Config:
    """Return the config that each system's settings override.

    The circuit breaker is off, so that a model is still asked after failures.
    """
    reading = {"fields": settings.keyword_evidence.fields}
    price = {"readPrice": settings.store.read_price}
    return Config.load(
        {"keywordEvidence": reading, "store": price, "breaker": {"failures": 0}}, environ={}
    )


@dataclass(frozen=True, slots=True)
class Forecast:
    """The maximum number of searches that a measurement can make, and their cost.

    Attributes:
        searches: The maximum number of searches.
        usd: The cost of these searches in US dollars, or ``None`` if the price is not known.
    """

    searches: int
    usd: float | None = None


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
        function: Your own function.
        dataset: The judged questions.
        systems: The settings of each system, by the system's name.
        has_model: Whether a model is asked.
        deep: Whether each system is also asked for a hundred passages.
    """
    # A follow-up question may make one search more than a first question.
    follow_up_count = sum(bool(question.history) for question in dataset.questions)
    first_count = len(dataset.questions) - follow_up_count
    searches = 0
    for settings in systems.values():
        for_first_question, for_follow_up = (
            _count_max_searches_per_question(
                function, settings, is_follow_up=is_follow_up, has_model=has_model
            )
            for is_follow_up in (False, True)
        )
        searches += first_count * for_first_question + follow_up_count * for_follow_up
    if deep:
        searches *= 2
    # Each search costs one read unit.
    price = function.base.middleware.settings.store.read_price
    return Forecast(searches, None if price is None else searches * price / 1e6)


def _count_max_searches_per_question(
    function: OwnFunction, settings: Mapping[str, Any], *, is_follow_up: bool, has_model: bool
) -> int:
    """Return the maximum number of searches for one question with *settings*.

    *is_follow_up* is ``True`` if the question follows other messages of a conversation.
    """
    if not has_model:
        return 1
    engine = function.build_wrapped_function(settings).middleware.engine
    resolved = engine.settings
    history = (Message("user", "?"),) if is_follow_up else ()
    call = Call("?", history, resolved, Learned(), engine)
    extra_searches = int(call.keyword_search_skip_reason is None)
    if resolved.escalation.mode == "never":
        return 1 + extra_searches
    prompts = build_prompts(resolved, "?", history)
    fields = {field.name: field for prompt in prompts for field in prompt.fields}
    count = 1 + sum(max(1, it.max_items) for it in fields.values() if TEXT_FIELDS[it.name].variant)
    if call.max_searches is not None:
        # A follow-up question may take one search more than `limits.maxSearches`.
        count = min(count, max(call.max_searches, 2 if is_follow_up else 1))
    return count + extra_searches
