"""The systems that are compared, each as the settings that make it, and what one finds for a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.reading import read_preset
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.types import Retrieval, Variant

BASELINE: Final = "raw"

_NO_RULES: Final[Mapping[str, Any]] = {
    "preprocess": {"enabled": False},
    "keywordEvidence": {"enabled": False},
}

# Also around a function whose own settings ask the model now and then.
_ALWAYS: Final[Mapping[str, Any]] = {"escalation": {"mode": "always"}}

SEEDS: Final = "seed-parity"
"""The system that searches what the model wrote instead of the question, as the preset of that name does."""


@cache
def read_tier(preset: str) -> Mapping[str, Any]:
    """Return the settings of a *preset* without the model: all systems of a comparison ask the same one."""
    _, settings = read_preset(preset)
    return {
        key: value
        for key, value in settings.items()
        if key[0] != "$" and key != "transformationModel"
    }


class _Systems(Mapping[str, Mapping[str, Any]]):
    """Settings by the name of their system; those of the preset are read when they are first asked for."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._settings = settings

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        settings = self._settings[name]
        return {**read_tier(SEEDS), **_ALWAYS} if settings is None else settings

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)


_TRANSFORMS: Final = {
    name: {"transformationType": name, **_ALWAYS} for name in TRANSFORMS if name != "none"
}

SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = _Systems(
    {
        BASELINE: {"transformationType": "none", **_NO_RULES, "rerank": {"enabled": False}},
        "preprocessed as text": {
            "transformationType": "none",
            "preprocess": {"applyTo": "text"},
            "keywordEvidence": {"enabled": False},
        },
        "rules": {"transformationType": "none"},
        **_TRANSFORMS,
        "combined, auto": {"transformationType": "combined", "escalation": {"mode": "auto"}},
        SEEDS: None,
        "combined, no hyde": {
            "transformationType": "combined",
            **_ALWAYS,
            "llm": {"hydeInCombined": False},
        },
        "combined, no rules": {"transformationType": "combined", **_ALWAYS, **_NO_RULES},
        "hybrid": {"transformationType": "none", "hybrid": {"enabled": True}},
        "hybrid, combined": {
            "transformationType": "combined",
            **_ALWAYS,
            "hybrid": {"enabled": True},
        },
    }
)
"""By name, all with the defaults they do not speak of; ``combined, no rules`` is the anchored fusion alone."""

FREE: Final = (BASELINE, "preprocessed as text", "rules")
"""Those that ask no model and need no store of ours."""
USUAL: Final = (
    *FREE,
    *_TRANSFORMS,
    "combined, auto",
    SEEDS,
)
"""Those that run around any function where there is a model: what is compared by default."""

# Every call is to be counted, and every reply to be waited for: what is compared is quality.
MEASURED: Final[Mapping[str, Any]] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}
"""Laid under the settings of every system that is measured."""
REPLAYED: Final = "model, replayed"


def asks_a_model(name: str) -> bool:
    """Whether the system called *name* needs a language model; raises `ConfigError` for an unknown one."""
    return bool(chosen([name])[name]["transformationType"] != "none")


def chosen(names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the systems of these *names*, the baseline first; raises `ConfigError` for an unknown one."""
    for name in names:
        if name not in SYSTEMS:
            known = "; ".join(SYSTEMS)
            raise ConfigError(
                f"there is no system {name!r}; the systems are: {known}",
                path="systems",
                value=name,
                allowed=known,
            )
    return {name: SYSTEMS[name] for name in dict.fromkeys((BASELINE, *names))}


@dataclass(frozen=True, slots=True)
class Run:
    """What a system found for one question: *ids*, best first, and what that took.

    *seconds_added* is the time beyond that of a plain search, where the system knows it; the time
    of model replies that were replayed is part of it as far as it is known. *cost_usd* is what the
    model cost, ``None`` where a price is not known. *stages* holds milliseconds by the name of a
    stage; ``model, replayed`` is what replayed replies took when they were first had. *variants* is
    what was searched. *searches* is how many searches were made, and *read_cost_usd* what they
    cost; ``None`` where that is not known. *error* is what a function of the user's own raised
    instead: the question is then left out of every system's figures.
    """

    ids: tuple[str, ...]
    seconds_added: float | None = None
    llm_calls: int = 0
    degraded: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    variants: tuple[Variant, ...] = field(default=(), repr=False)
    searches: int | None = None
    read_cost_usd: float | None = None
    error: Exception | None = None


System = Callable[[Question], Run | Sequence[tuple[str, float]]]
"""Something that searches: answers a `Run`, or pairs of id and score, best first."""


def run_of(found: Retrieval) -> Run:
    """Return *found* as a run; raises `ConfigError` for results that cannot be read, or have no ids to judge by."""
    if unread := next(
        (it for it in found.degradations if (it.stage, it.reason) == ("response", "unreadable")),
        None,
    ):
        raise ConfigError(
            f"the function's results cannot be read as passages ({unread.detail}); return a list"
            ' of passages, each with an "id" that the judgements use',
            path="fn",
        )
    ids = tuple(match.id for match in found.matches if match.id)
    if len(ids) < len(found.matches):
        raise ConfigError(
            "the function's results have no ids, so they cannot be compared with the judgements;"
            ' return passages with an "id" that the judgements use, or set keywordEvidence.idField'
            " to their field",
            path="fn",
        )
    trace = found.trace
    stages: dict[str, float] = {}
    for stage in trace.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.ms
    if trace.replayed_ms:
        stages[REPLAYED] = trace.replayed_ms
    return Run(
        ids=ids,
        seconds_added=(trace.added_ms + trace.replayed_ms) / 1e3,
        llm_calls=trace.llm_calls,
        degraded=found.status == "degraded",
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cost_usd=trace.cost_usd,
        stages=stages,
        variants=found.variants,
        searches=trace.searches,
        read_cost_usd=trace.read_cost_usd,
    )
