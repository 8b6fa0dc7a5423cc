"""The tiers a question is put to, and what each of them finds: the plain list first, the others as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.config.keys import merge
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation.compare import OWN
from qtmiddleware.kit.evaluation.own_function import configure
from qtmiddleware.kit.evaluation.systems import BASELINE, SYSTEMS
from qtmiddleware.kit.evaluation.tuning.trials import nested
from qtmiddleware.kit.playground.asked import TOP_K, Asked
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

SECONDS: Final = 30.0
"""How long one tier is waited for: a function that hangs is bound by nothing else."""
AT_ONCE: Final = 2
"""Tiers that ask a model at a time: with more, times would be those of a busy machine."""
_SHOWN: Final = (BASELINE, "rules", "rewrite", "stepback", "decompose", "combined", OWN)
_LABELS: Final[Mapping[str, str]] = {
    BASELINE: "The plain function, untouched",
    "rules": "The question's keywords rerank the candidates; no model",
    OWN: "As your config says",
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
        return self.retrieval is not None and all(it.stage != "response" for it in self.retrieval.degradations)


class Tiers:
    """Every tier over one wrapped function *base*.

    *has_own* says whether the tier of the user's own config is worth a place of its own, *remembers* whether
    transformations are kept so that a change of weights asks no model again. *given* are arguments of the function
    beside the question, *seconds* is how long a tier is waited for.

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
    ) -> None:
        self.has_model: bool = base._context.components.has_model
        self.seconds = seconds
        self._given = dict(given or {})
        self._base = base
        laid = _TRIED if remembers else {**_TRIED, "cache": {"enabled": False}}
        own = configure(base, laid)
        self.all = tuple(
            self._open(name, own)
            for name in (BASELINE, "rules", *(it for it in TRANSFORMS if it != "none"), *([OWN] if has_own else []))
        )

    def _open(self, name: str, base: Any) -> Tier:
        settings: Mapping[str, Any] = {} if name == OWN else SYSTEMS[name]
        row = TRANSFORMS.get(name)
        kind = settings.get("transformationType", base._context.settings.transformation_type)
        asks = kind != "none"
        label = _LABELS[name] if row is None else row.label
        return Tier(name, label, asks, self.has_model or not asks, settings, configure(base, settings))

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

    def warm_up(self, *, searches: bool) -> None:
        """Load what the first question needs; with *searches* by a question, where a search costs nothing."""
        self.middleware.warm_up()
        if searches:
            self.all[0].function.retrieve("warm up", **self._given)

    def build_config(self, tier: Tier, asked: Asked) -> dict[str, Any]:
        """The config file that makes the function retrieve as *tier* does for what is *asked*."""
        rows = self.middleware.config.rows()
        own = nested({name: value for name, value, origin in rows if origin != "default"})
        return merge(merge(own, tier.settings), nested(asked.settings))

    async def ask(self, asked: Asked) -> AsyncGenerator[TierAnswer, None]:
        """Put what is *asked* to its tiers: the plain one first and alone, then the free ones, then the others.

        Where the plain function fails, or nobody can read what it returns, no other is asked: each begins with that
        very search. Raises `ConfigError` for impossible settings.
        """
        flat = {key: value for key, value in asked.settings.items() if key != TOP_K}
        laid = nested(flat)
        # All of it is refused here, and not by each tier.
        self.middleware.config.overridden(laid)
        arguments: dict[str, Any] = {**self._given, "history": list(asked.history), "qtm_config": laid or None}
        if TOP_K in asked.settings and self.takes_top_k:
            arguments[self._base.top_k_argument] = asked.settings[TOP_K]
        chosen = [tier for tier in self.all if tier.name in asked.tiers]
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
                retrieval = await tier.function.aretrieve(question, **arguments)
        except Exception as error:
            problem = self._describe(error, is_late=limit.expired())
        return TierAnswer(tier, retrieval, problem, perf_counter() - began)

    def _describe(self, error: Exception, *, is_late: bool) -> str:
        if is_late:
            return f"did not answer within {self.seconds:g} seconds and was stopped"
        said = " ".join(hide_secrets(str(error)).split())
        return f"raised {type(error).__name__}" + (f": {said[:_MOST_SAID]}" if said else "")
