"""Ask several configurations (tiers) of one function the same question."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SystemAnswer
from qtmiddleware.kit.evaluation.systems import BASELINE, OWN, SYSTEMS, read_preset_settings
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.wrapping.wrapped import copy_with_learned, read_learned

SECONDS: Final = 30.0
"""The default time limit per tier, in seconds. The page does not wait longer for a function."""
_SHOWN: Final = (BASELINE, "rules", "balanced", OWN)
_PRESETS: Final = {
    "words": "One model call, no extra search: the model’s words only rerank.",
    "auto": "balanced, but only if the first result looks uncertain.",
    "thorough": "One model call, and one search for each text that the model writes.",
}
_FIRST: Final = {
    BASELINE: "Your function alone.",
    "rules": "The question’s words rerank the passages. No model.",
    "balanced": "One model call and one more search.",
    OWN: "What your config says.",
    **_PRESETS,
}
_LABELS: Final = {
    **_FIRST,
    **{
        name: f"{row.label}."
        for name, row in TRANSFORMS.items()
        if name not in ("none", "combined", *_FIRST)
    },
}
# Questions on the page are experiments: they are not logged. Shadow mode is off, because it would
# return the plain list.
_EXPERIMENT: Final[Mapping[str, Any]] = {"log": {"path": None}, "shadow": None}


@dataclass(frozen=True, slots=True)
class Tier:
    """The user's function, with *settings* that override the user's settings."""

    name: str
    label: str
    asks_model: bool
    settings: Mapping[str, Any]
    function: Any = field(repr=False)


class Tiers:
    """The configurations that the playground compares, all of one wrapped function.

    Only `warm_up` learns the function's usual scores, so the result of a question does not depend
    on earlier questions.

    Attributes:
        all: All tiers by name, in the page's order. Without a model, only those that need none.
        shown: The names of the tiers that are asked by default.
    """

    def __init__(
        self,
        wrapped_function: Any,
        *,
        has_own_tier: bool = False,
        arguments: Mapping[str, Any] | None = None,
        timeout_seconds: float = SECONDS,
    ) -> None:
        self.middleware = wrapped_function.middleware
        self.has_model: bool = self.middleware.engine.has_model
        self._wrapped = wrapped_function
        self._arguments = dict(arguments or {})
        self._timeout_seconds = timeout_seconds
        self._learned = Learned()
        self.all: dict[str, Tier] = {}
        for name in _LABELS:
            if name == OWN and not has_own_tier:
                continue
            tier = self._build_tier(name)
            if self.has_model or not tier.asks_model:
                self.all[name] = tier
        self.shown = tuple(name for name in self.all if name in _SHOWN)

    def _build_tier(self, name: str) -> Tier:
        settings: Mapping[str, Any] = {}
        if name != OWN:
            settings = read_preset_settings(name) if name in _PRESETS else SYSTEMS[name]
        function = configure_function(self._wrapped, _EXPERIMENT, settings)
        asks_model = function.middleware.settings.transformation_type != "none"
        return Tier(name, _LABELS[name], asks_model, settings, function)

    def warm_up(self, examples: Sequence[Question]) -> None:
        """Load what the first question needs, and learn usual scores by searching *examples*."""
        self.middleware.warm_up()
        # What this tier learns about the function is true for every tier.
        function = self.all["rules"].function
        for example in examples:
            function.retrieve(example.text, **self._arguments, history=list(example.history))
        self._learned = read_learned(function).copy()

    def build_config(self, name: str) -> dict[str, Any]:
        """Return a config that gives the same result as the tier *name* in other programs."""
        config = self.middleware.config.overridden(self.all[name].settings)
        values: dict[str, Any] = config.to_dict(with_defaults=False)
        return values

    async def ask(self, state: PageState) -> AskedQuestion:
        """Ask the tiers in *state*, and return their results side by side.

        If the plain search fails, or if its result cannot be read, no other tier is asked.
        """
        arguments = {**self._arguments, "history": list(state.history)}

        async def ask_tier(tier: Tier) -> SystemAnswer:
            start = perf_counter()
            retrieval, problem = None, None
            try:
                async with asyncio.timeout(self._timeout_seconds) as limit:
                    function = copy_with_learned(tier.function, self._learned)
                    retrieval = await function.aretrieve(state.question, **arguments)
            # A tier that fails shows its error, and the other tiers still show their results.
            except Exception as error:
                problem = error
                if limit.expired():
                    problem = TimeoutError(f"no answer within {self._timeout_seconds:g} seconds")
            seconds = perf_counter() - start
            return SystemAnswer(tier.name, retrieval, error=problem, seconds=seconds)

        tiers = [self.all[name] for name in state.tiers]
        # Without a model, one after the other, so that each time is that of a single call.
        plain = await ask_tier(tiers[0])
        answers = [plain]
        degradations = plain.retrieval.degradations if plain.retrieval else ()
        is_unreadable = any(entry.stage == "response" for entry in degradations)
        if plain.retrieval and not is_unreadable:
            free = [tier for tier in tiers[1:] if not tier.asks_model]
            asking = [tier for tier in tiers if tier.asks_model]
            answers += [await ask_tier(tier) for tier in free]
            answers += await asyncio.gather(*map(ask_tier, asking))
            answers.sort(key=lambda answer: state.tiers.index(answer.system))
        return AskedQuestion(Question("", state.question), tuple(answers))
