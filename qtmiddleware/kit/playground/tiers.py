"""Ask several configurations (tiers) the same question. The plain search comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.systems import BASELINE, OWN, SYSTEMS, read_preset_settings
from qtmiddleware.kit.playground.asked import TOP_K, PageState
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.types import Message, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import copy_with_learned, read_learned

SECONDS: Final = 30.0
"""The default time limit per tier, in seconds. The limit stops a function that hangs."""
AT_ONCE: Final = 2
"""The maximum number of tiers that call a model at the same time.

With more tiers, the load of the machine would change the measured times.
"""
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
# Questions on the page are experiments: they are not logged. Shadow mode is off, because it would
# return the plain list.
_EXPERIMENT: Final[Mapping[str, Any]] = {"log": {"path": None}, "shadow": None}
_MOST_MESSAGE_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class Tier:
    """A configuration to compare: the user's function with certain settings.

    Attributes:
        name: The name of the configuration.
        label: A short description of the configuration, for the page.
        asks_model: Whether the tier calls a language model.
        is_open: Whether the tier can run. ``False`` if the tier needs a model and there is none.
        settings: The tier's settings, which override the user's settings.
        function: The wrapped function with *settings*.
    """

    name: str
    label: str
    asks_model: bool
    is_open: bool
    settings: Mapping[str, Any]
    function: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class TierAnswer:
    """The result of one tier for a question.

    Attributes:
        tier: The tier that was called.
        retrieval: The search results; ``None`` if the call failed.
        problem: A description of the error; empty if the call succeeded.
        seconds: The duration of the call, in seconds.
    """

    tier: Tier
    retrieval: Retrieval | None
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_readable(self) -> bool:
        """``True`` if the call returned passages that qtmiddleware can read."""
        return self.retrieval is not None and all(
            degradation.stage != "response" for degradation in self.retrieval.degradations
        )


class Tiers:
    """The configurations that the playground compares, all built from one wrapped function.

    Only `warm_up` learns the function's usual scores. Therefore, the result of a question does not
    depend on earlier questions.

    Attributes:
        all: All tiers, including tiers that cannot run because there is no model.
        has_model: Whether a language model is configured.
        timeout_seconds: The time limit per tier, in seconds.
    """

    def __init__(
        self,
        wrapped_function: Any,
        *,
        has_own_tier: bool = False,
        should_cache_replies: bool = True,
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float = SECONDS,
        has_recorded_reply: Callable[[str, Sequence[Message]], bool] | None = None,
    ) -> None:
        """Build one tier per standard system, preset and transform from one wrapped function.

        Args:
            wrapped_function: The user's function, wrapped by qtmiddleware.
            has_own_tier: Whether to add a tier with the user's own config.
            should_cache_replies: Whether to cache the model's replies. With the cache, the user can
                change a weight without a new model call.
            arguments: The function's arguments except the question, by name.
            timeout_seconds: The time limit per tier, in seconds.
            has_recorded_reply: Returns whether the model has a recorded reply to a question after
                the given messages. ``None`` if the model can reply to every question.

        Raises:
            ConfigError: The settings of *wrapped_function* cannot be overridden.
        """
        self.has_model: bool = wrapped_function.middleware.has_model
        self.timeout_seconds = timeout_seconds
        self._arguments = dict(arguments or {})
        self._wrapped = wrapped_function
        self._has_recorded_reply = has_recorded_reply
        self._learned = Learned()
        overrides = (
            _EXPERIMENT if should_cache_replies else {**_EXPERIMENT, "cache": {"enabled": False}}
        )
        function = configure_function(wrapped_function, overrides)
        self.all = tuple(
            self._build_tier(name, function)
            for name in self._list_tier_names(has_own_tier=has_own_tier)
        )

    @staticmethod
    def _list_tier_names(*, has_own_tier: bool) -> Sequence[str]:
        """Return the names of all tiers, in the order in which the page shows them."""
        own_tier = (OWN,) if has_own_tier else ()
        transforms = (name for name in TRANSFORMS if name != "none")
        # A name may be that of a preset and of a transform; it keeps its first position.
        return tuple(
            dict.fromkeys((BASELINE, "rules", "combined", *own_tier, *_PRESETS, *transforms))
        )

    def _build_tier(self, name: str, wrapped_function: Any) -> Tier:
        """Return the tier *name*, which runs *wrapped_function* with the tier's settings."""
        settings: Mapping[str, Any] = (
            {} if name == OWN else read_preset_settings(name) if name in _PRESETS else SYSTEMS[name]
        )
        own_kind = wrapped_function.middleware.settings.transformation_type
        kind = settings.get("transformationType", own_kind)
        asks_model = kind != "none"
        label = _LABELS.get(name) or f"{TRANSFORMS[name].label}."
        return Tier(
            name,
            label,
            asks_model,
            self.has_model or not asks_model,
            settings,
            configure_function(wrapped_function, settings),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tiers that can run; the plain tier comes first."""
        return tuple(tier.name for tier in self.all if tier.is_open)

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the tiers that run by default."""
        return tuple(name for name in self.names if name in _SHOWN)

    @property
    def settings(self) -> Settings:
        """The settings of the user's own config."""
        return self.middleware.settings

    @property
    def middleware(self) -> QueryMiddleware:
        """The middleware of the wrapped function."""
        return self._wrapped.middleware  # type: ignore[no-any-return]

    @property
    def has_top_k_argument(self) -> bool:
        """``True`` if the wrapped function has an argument for the number of passages."""
        return self._wrapped.top_k_argument is not None

    def list_skipped_tiers(self, state: PageState) -> tuple[str, ...]:
        """Return the names of the tiers to skip, because the model cannot reply.

        Returns no names if the model can reply to the question in *state*. Otherwise, returns the
        names of all tiers that call the model.
        """
        has_reply = self.has_model and (
            self._has_recorded_reply is None
            or self._has_recorded_reply(state.question, state.history)
        )
        return () if has_reply else tuple(tier.name for tier in self.all if tier.asks_model)

    def warm_up(self, examples: Sequence[Question] = (), *, should_search_examples: bool) -> None:
        """Load the data that the first question needs, and learn the function's usual scores.

        Args:
            examples: The questions whose results show the usual scores.
            should_search_examples: Whether to search *examples*. If false, the method learns
                nothing. Use true only if a search costs nothing.
        """
        self.middleware.warm_up()
        if not should_search_examples:
            return
        # What the tier "rules" learns about the function is true for every tier.
        function = next(tier.function for tier in self.all if tier.name == "rules")
        for example in examples or (Question("", "warm up"),):
            function.retrieve(example.text, **{**self._arguments, "history": list(example.history)})
        self._learned = read_learned(function).copy()

    def build_config_values(self, tier: Tier, state: PageState) -> dict[str, Any]:
        """Return the values of a config that gives the same result as *tier* in other programs.

        The config combines the user's settings, the tier's settings and the settings in *state*.
        """
        config = self.middleware.config.overridden(tier.settings)
        return config.overridden(_nest_values(state.settings)).to_dict(with_defaults=False)

    async def ask_tiers(self, state: PageState) -> AsyncGenerator[TierAnswer, None]:
        """Ask the tiers in *state* the question in *state*, and yield each result when ready.

        1. The plain tier runs first. If the plain tier fails or returns an unreadable result, no
           other tier runs, because every tier includes the plain search.
        2. The other tiers without a model run one after another.
        3. The tiers with a model run at the same time, at most `AT_ONCE` at once.

        Raises:
            ConfigError: The settings in *state* are not valid.
        """
        flat = {key: value for key, value in state.settings.items() if key != TOP_K}
        overrides = _nest_values(flat)
        # Impossible settings are refused once, here, and not by each tier.
        self.middleware.config.overridden(overrides)
        arguments: dict[str, Any] = {
            **self._arguments,
            "history": list(state.history),
            "qtm_config": overrides or None,
        }
        if TOP_K in state.settings and self.has_top_k_argument:
            arguments[self._wrapped.top_k_argument] = state.settings[TOP_K]
        folded = self.list_skipped_tiers(state)
        chosen = [tier for tier in self.all if tier.name in state.tiers and tier.name not in folded]
        free = [tier for tier in chosen if not tier.asks_model]
        for tier in free:
            answer = await self._ask_tier(tier, state.question, arguments)
            yield answer
            if tier.name == BASELINE and not answer.is_readable:
                return
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask_in_turn(tier: Tier) -> TierAnswer:
            async with slots:
                return await self._ask_tier(tier, state.question, arguments)

        tasks = [asyncio.create_task(ask_in_turn(tier)) for tier in chosen if tier not in free]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            # The browser may disconnect before all tiers have answered.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_tier(
        self, tier: Tier, question: str, arguments: Mapping[str, Any]
    ) -> TierAnswer:
        """Return the result of *tier* for *question*, or a description of the error."""
        start = perf_counter()
        retrieval, problem = None, ""
        try:
            async with asyncio.timeout(self.timeout_seconds) as limit:
                retrieval = await copy_with_learned(tier.function, self._learned).aretrieve(
                    question, **arguments
                )
        # A tier that fails shows its error, and the other tiers still show their results.
        except Exception as error:
            problem = self._describe_error(error, has_timed_out=limit.expired())
        return TierAnswer(tier, retrieval, problem, perf_counter() - start)

    def _describe_error(self, error: Exception, *, has_timed_out: bool) -> str:
        """Return a short description of *error*, without secrets."""
        if has_timed_out:
            return f"did not answer within {self.timeout_seconds:g} seconds and was stopped"
        message = " ".join(hide_secrets(str(error)).split())
        return f"raised {type(error).__name__}" + (
            f": {message[:_MOST_MESSAGE_CHARS]}" if message else ""
        )


def _nest_values(values_by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dicts, as in a config file, for values by dotted key."""
    tree: dict[str, Any] = {}
    for name, value in values_by_name.items():
        *groups, option_name = name.split(".")
        holder = tree
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[option_name] = value
    return tree
