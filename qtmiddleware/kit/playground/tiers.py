"""The tiers a question is put to, and what each of them finds: the plain list first, the others as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.config.keys import merge
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation.compare import OWN
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.own_function import configure
from qtmiddleware.kit.evaluation.systems import BASELINE, SYSTEMS, read_tier
from qtmiddleware.kit.evaluation.tuning.trials import nested
from qtmiddleware.kit.playground.asked import TOP_K, Asked
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.types import Message, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Bound

SECONDS: Final = 30.0
"""How long one tier is waited for: a function that hangs is bound by nothing else."""
AT_ONCE: Final = 2
"""Tiers that ask a model at a time: with more, times would be those of a busy machine."""
_SHOWN: Final = (BASELINE, "rules", "combined", OWN)
_PRESETS: Final[Mapping[str, str]] = {
    "words": "One model call, no extra search: the model’s words only rerank.",
    "auto": "combined, but only if the first result looks uncertain.",
    "thorough": "One model call, and one search for each text that the model writes.",
}
_LABELS: Final[Mapping[str, str]] = {
    BASELINE: "Your function alone (preset off).",
    "rules": "The question’s words rerank the passages. No model.",
    "combined": "One model call and one more search (preset balanced).",
    OWN: "What your config says.",
    **_PRESETS,
}
# What is tried here is nobody's question: it stands in no query log, and is retrieved in any case.
_TRIED: Final[Mapping[str, Any]] = {"log": {"path": None}, "shadow": None}
_MOST_SAID: Final = 300


@dataclass(frozen=True, slots=True)
class Tier:
    """One way to retrieve: its *name*, what it does (*label*), its *settings* over the user's own, and the *function*.

    *is_open* is false where it asks a model and there is none.
    """

    name: str
    label: str
    asks_model: bool
    is_open: bool
    settings: Mapping[str, Any]
    function: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class TierAnswer:
    """What one *tier* found, in *seconds*, or the *problem* that kept it from finding anything."""

    tier: Tier
    retrieval: Retrieval | None
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_readable(self) -> bool:
        """Whether there is a result, and passages could be read in it."""
        return self.retrieval is not None and all(
            it.stage != "response" for it in self.retrieval.degradations
        )


class Tiers:
    """Every tier over one wrapped function *base*.

    Every question starts from what the function has shown by the end of `warm_up`, so it gets the
    same answer whatever was asked before it.

    Args:
        has_own: Whether the tier of the user's own config is worth a place of its own.
        remembers: Whether transformations are kept, so that a change of weights asks no model
        again.
        given: Arguments of the function beside the question.
        seconds: How long a tier is waited for.
        is_covered: Whether a model's reply can be had for a question and the messages before it.
        Default: for all.

    Raises `ConfigError` for a function whose settings cannot be laid over.
    """

    def __init__(
        self,
        base: Any,
        *,
        has_own: bool = False,
        remembers: bool = True,
        given: Mapping[str, Any] | None = None,
        seconds: float = SECONDS,
        is_covered: Callable[[str, Sequence[Message]], bool] | None = None,
    ) -> None:
        self.has_model: bool = base._context.components.has_model
        self.seconds = seconds
        self._given = dict(given or {})
        self._base = base
        self._is_covered = is_covered
        self._learned = Learned()
        laid = _TRIED if remembers else {**_TRIED, "cache": {"enabled": False}}
        own = configure(base, laid)
        self.all = tuple(self._open(name, own) for name in self._list_names(has_own=has_own))

    @staticmethod
    def _list_names(*, has_own: bool) -> Sequence[str]:
        own = (OWN,) if has_own else ()
        transforms = (name for name in TRANSFORMS if name != "none")
        return tuple(dict.fromkeys((BASELINE, "rules", "combined", *own, *_PRESETS, *transforms)))

    def _open(self, name: str, base: Any) -> Tier:
        settings: Mapping[str, Any] = (
            {} if name == OWN else read_tier(name) if name in _PRESETS else SYSTEMS[name]
        )
        kind = settings.get("transformationType", base._context.settings.transformation_type)
        asks = kind != "none"
        label = _LABELS.get(name) or f"{TRANSFORMS[name].label}."
        return Tier(
            name, label, asks, self.has_model or not asks, settings, configure(base, settings)
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tiers that can be asked, the plain one first."""
        return tuple(tier.name for tier in self.all if tier.is_open)

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of those that are asked where nobody chooses."""
        return tuple(name for name in self.names if name in _SHOWN)

    @property
    def settings(self) -> Settings:
        """The settings of the user's own config."""
        return self.middleware.settings

    @property
    def middleware(self) -> QueryMiddleware:
        """The middleware around the function."""
        return self._base.middleware  # type: ignore[no-any-return]

    @property
    def takes_top_k(self) -> bool:
        """Whether the function can be asked for a number of passages."""
        return self._base.top_k_argument is not None

    def list_folded(self, asked: Asked) -> tuple[str, ...]:
        """Return the names of the tiers that no model can answer for what is *asked*."""
        has_reply = self.has_model and (
            self._is_covered is None or self._is_covered(asked.question, asked.history)
        )
        return () if has_reply else tuple(tier.name for tier in self.all if tier.asks_model)

    def warm_up(self, examples: Sequence[Question] = (), *, searches: bool) -> None:
        """Load what the first question needs; with *searches*, where one costs nothing, learn from the *examples*."""
        self.middleware.warm_up()
        if not searches:
            return
        # What the rules learn of the function holds for every tier.
        function = next(tier.function for tier in self.all if tier.name == "rules")
        for example in examples or (Question("", "warm up"),):
            function.retrieve(example.text, **{**self._given, "history": list(example.history)})
        self._learned = deepcopy(function._context.learned)

    def build_config(self, tier: Tier, asked: Asked) -> dict[str, Any]:
        """The config file that makes the function retrieve as *tier* does for what is *asked*."""
        rows = self.middleware.config.rows()
        own = nested({name: value for name, value, origin in rows if origin != "default"})
        return merge(merge(own, tier.settings), nested(asked.settings))

    async def ask(self, asked: Asked) -> AsyncGenerator[TierAnswer, None]:
        """Put what is *asked* to its tiers: the plain one first and alone, then the free ones, then the others.

        Where the plain function fails, or nobody can read what it returns, no other is asked: each
        begins with that very search. Raises `ConfigError` for impossible settings.
        """
        flat = {key: value for key, value in asked.settings.items() if key != TOP_K}
        laid = nested(flat)
        # All of it is refused here, and not by each tier.
        self.middleware.config.overridden(laid)
        arguments: dict[str, Any] = {
            **self._given,
            "history": list(asked.history),
            "qtm_config": laid or None,
        }
        if TOP_K in asked.settings and self.takes_top_k:
            arguments[self._base.top_k_argument] = asked.settings[TOP_K]
        folded = self.list_folded(asked)
        chosen = [tier for tier in self.all if tier.name in asked.tiers and tier.name not in folded]
        free = [tier for tier in chosen if not tier.asks_model]
        for tier in free:
            answer = await self._ask(tier, asked.question, arguments)
            yield answer
            if tier.name == BASELINE and not answer.is_readable:
                return
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(tier: Tier) -> TierAnswer:
            async with room:
                return await self._ask(tier, asked.question, arguments)

        tasks = [asyncio.create_task(ask(tier)) for tier in chosen if tier not in free]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, tier: Tier, question: str, arguments: Mapping[str, Any]) -> TierAnswer:
        began = perf_counter()
        retrieval, problem = None, ""
        try:
            async with asyncio.timeout(self.seconds) as limit:
                retrieval = await _branch(tier.function, self._learned).aretrieve(
                    question, **arguments
                )
        except Exception as error:
            problem = self._describe(error, is_late=limit.expired())
        return TierAnswer(tier, retrieval, problem, perf_counter() - began)

    def _describe(self, error: Exception, *, is_late: bool) -> str:
        if is_late:
            return f"did not answer within {self.seconds:g} seconds and was stopped"
        said = " ".join(hide_secrets(str(error)).split())
        return f"raised {type(error).__name__}" + (f": {said[:_MOST_SAID]}" if said else "")


def _branch(function: Any, learned: Learned) -> Any:
    """Return the wrapped *function* as it is when it has *learned* this much; what it learns more is forgotten."""
    wrapped = function.__func__ if isinstance(function, Bound) else function
    source = copy(wrapped._source)
    source._learned, source._latest = deepcopy(learned), (None, None)
    branch = type(wrapped)(wrapped._fn, wrapped._signature, source)
    return Bound(branch, function.__self__) if isinstance(function, Bound) else branch
