"""A function of the user's own in the place of a bench's index, and how many searches measuring it takes."""

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
    describe_system,
    open_runner,
)
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.searching import count_most_searches
from qtmiddleware.types import Message
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

READING: Final = ("textField", "idField", "scoreField")
"""Keys of ``keywordEvidence`` that say how results are read: one and the same for every system."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function to measure.

    Attributes:
        fn: The function, plain or wrapped.
        name: What people call it, such as ``app:search``.
        arguments: What it is called with beside the question.
        top_k: How many passages it is asked for.
        options: How a plain function is read, as for `QueryMiddleware.wrap`.
    """

    fn: Any = field(repr=False)
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    top_k: int | None = TOP_K
    options: WrapOptions = field(default_factory=WrapOptions)

    @property
    def is_wrapped(self) -> bool:
        """Whether it is wrapped already, by settings and with a model of its own."""
        return isinstance(self.fn, Wrapped | Bound)


@contextmanager
def open_function(
    source: FunctionSource,
    data: Dataset,
    *,
    settings: Settings,
    model: LanguageModel | None,
    cache: Path,
) -> Iterator[OwnFunction]:
    """Yield the function of *source*, to be measured on *data*, with the replies of *model*.

    *settings* say how its results are read and what a search costs. Finished runs are kept in the
    folder *cache* until the end of the block; if that is not reached, the next such measurement
    takes them up. Raises `WrapError` for a function that cannot be wrapped, or an asynchronous one
    inside a running event loop, and `StoreError` if *cache* cannot be used.
    """
    with ExitStack() as stack:
        base: Any = source.fn
        if not source.is_wrapped:
            middleware = QueryMiddleware(_build_base(settings), client=model)
            base = stack.enter_context(middleware).wrap(source.fn, **source.options)
        # The first question loads modules, which must not count as its time.
        base.middleware.warm_up()
        runner = stack.enter_context(open_runner(base, "open_bench"))
        memory = KeptRuns(cache, _identify(source, data, base.middleware.config))
        own = OwnFunction(
            base, source.arguments, source.top_k, runner, IdCheck.of(data.qrels), memory, model
        )
        try:
            yield own
        except ConfigError:
            # The settings or the judgements must change first, so no later run can use what was
            # kept.
            memory.finish()
            raise
        memory.finish()


def _build_base(settings: Settings) -> Config:
    """Return the config under every system's settings; as in `build_config`, no breaker spares a failing model."""
    given = {name: value for name, value, _ in Config.load(settings).rows()}
    reading = {name: given[f"keywordEvidence.{name}"] for name in READING}
    price = {"readPrice": settings.store.read_price}
    return Config.load(
        {"keywordEvidence": reading, "store": price, "breaker": {"enabled": False}}, environ={}
    )


def _identify(source: FunctionSource, data: Dataset, config: Config) -> list[Any]:
    """Return what makes two measurements the same, the code of the function's module included."""
    embed = source.options.get("embed")
    return [
        version("qtmiddleware"),
        source.name,
        sorted(source.arguments.items()),
        _hash_source(source.fn),
        None if embed is None else _hash_source(embed),
        data.data_hash,
        [row[:2] for row in config.rows()],
    ]


def _hash_source(fn: Any) -> str:
    """Return the sha256 of the file that *fn* is written in, empty if there is none."""
    fn = inspect.unwrap(getattr(fn, "func", fn))
    for code in (fn, type(fn)):
        try:
            file = inspect.getsourcefile(code)
            if file is not None:
                return hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (TypeError, OSError):
            continue
    return ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """How many *searches* a measurement makes at most, and what they cost in US dollars (``None``: not known)."""

    searches: int
    usd: float | None = None

    @classmethod
    def of(cls, searches: int, own: OwnFunction) -> Forecast:
        """Return that of so many *searches* by a function, one read unit each."""
        price = own.base.middleware.settings.store.read_price
        return cls(searches, None if price is None else searches * price / 1e6)


def forecast_searches(
    own: OwnFunction,
    data: Dataset,
    systems: Mapping[str, Mapping[str, Any]],
    *,
    has_model: bool,
    deep: bool = False,
) -> Forecast:
    """Return how many searches it takes at most to measure *systems* on *data*, those that are remembered left out."""
    searches = 0
    for settings in systems.values():
        alone, follow_up = (
            _count_most(own, settings, follows=it, has_model=has_model) for it in (False, True)
        )
        for top_k in (own.top_k, DEPTH) if deep else (own.top_k,):
            name = describe_system(settings, top_k)
            searches += sum(
                follow_up if question.history else alone
                for question in data.questions
                if own.memory is None or own.memory.recall(name, question.id) is None
            )
    return Forecast.of(searches, own)


def _count_most(
    own: OwnFunction, settings: Mapping[str, Any], *, follows: bool, has_model: bool
) -> int:
    """Return how many searches a question takes at most, one that *follows* others in a conversation if so."""
    if not has_model:
        return 1
    context = own.wrap(settings)._context
    history = (Message("user", "?"),) if follows else ()
    return count_most_searches(
        Request(
            "?",
            history,
            context.settings,
            context.learned,
            context.cache,
            glossary=context.glossary,
        )
    )
