"""Define the systems to compare, with their settings, and a system's result for one question."""

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
"""The name of the system that all others are compared with."""

_NO_RULES: Final[Mapping[str, Any]] = {
    "preprocess": {"enabled": False},
    "keywordEvidence": {"enabled": False},
}

# Overrides a function's own settings, which may ask the model for some questions only.
_ALWAYS: Final[Mapping[str, Any]] = {"escalation": {"mode": "always"}}

SEEDS: Final = "seed-parity"
"""The name of a system and of its preset.

The system searches the model's texts instead of the question.
"""


@cache
def read_preset_settings(preset: str) -> Mapping[str, Any]:
    """Return the settings of *preset*, but not its model: all systems must ask the same model."""
    _, settings = read_preset(preset)
    return {
        key: value
        for key, value in settings.items()
        if key[0] != "$" and key != "transformationModel"
    }


class _Systems(Mapping[str, Mapping[str, Any]]):
    """Maps each system's name to its settings. The file of a preset is read on first use."""

    def __init__(self, settings: Mapping[str, Mapping[str, Any] | None]) -> None:
        self._settings = settings

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        settings = self._settings[name]
        return {**read_preset_settings(SEEDS), **_ALWAYS} if settings is None else settings

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
        SEEDS: None,  # Its settings are read from the preset on first use.
        "combined, no hyde": {
            "transformationType": "combined",
            **_ALWAYS,
            "fusion": {"weights": {"hyde": 0}},
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
"""The settings of each system. All other settings have their defaults.

``combined, no rules`` merges the lists, with the question's list as anchor, and applies no rules.
"""

FREE: Final = (BASELINE, "preprocessed as text", "rules")
"""The systems that need neither a model nor a store of the kit."""
USUAL: Final = (
    *FREE,
    *_TRANSFORMS,
    "combined, auto",
    SEEDS,
)
"""The default systems if there is a model. They work with any retrieval function."""

# The comparison is about quality: a cache would hide calls, a short deadline would lose replies.
MEASURED: Final[Mapping[str, Any]] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}
"""The settings for measuring. A system's own settings override them."""
REPLAYED: Final = "model, replayed"
"""The stage that holds the original time of replayed model replies."""


def asks_a_model(system_name: str) -> bool:
    """Return whether the system called *system_name* calls a language model.

    Raises `ConfigError` if *system_name* is not in `SYSTEMS`.
    """
    return bool(chosen([system_name])[system_name]["transformationType"] != "none")


def chosen(system_names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of the baseline and of the systems called *system_names*, by name.

    Raises `ConfigError` if a name is not in `SYSTEMS`.
    """
    for name in system_names:
        if name not in SYSTEMS:
            known = "; ".join(SYSTEMS)
            raise ConfigError(
                f"there is no system {name!r}; the systems are: {known}",
                path="systems",
                value=name,
                allowed=known,
            )
    return {name: SYSTEMS[name] for name in dict.fromkeys((BASELINE, *system_names))}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one system for one question, with its time and cost.

    Attributes:
        ids: The ids of the passages, best first.
        seconds_added: The seconds that the system adds to a plain search; ``None`` if the system
            does not report them. Replayed model replies count with their original time.
        llm_calls: The number of model calls.
        degraded: Whether the result is degraded, for example because the model did not reply.
        input_tokens: The number of tokens that the model read.
        output_tokens: The number of tokens that the model wrote.
        cost_usd: The model's cost in US dollars; ``None`` if a price is not known.
        stages: The milliseconds of each stage. The stage ``model, replayed`` is the original time
            of replayed model replies.
        variants: The variants of the question that were searched.
        searches: The number of searches; ``None`` if the number is not known.
        read_cost_usd: The searches' cost in US dollars; ``None`` if the cost is not known.
        error: The exception that your own function raised, if any. The question is then left out of
            all figures.
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
"""A function that searches for a question. It returns a `Run`, or (id, score) pairs, best first."""


def run_of(retrieval: Retrieval) -> Run:
    """Return the passage ids, times and costs of *retrieval* as a `Run`.

    Raises `ConfigError` if the function's results cannot be read as passages, or have no ids.
    """
    if failure := next(
        (
            note
            for note in retrieval.degradations
            if (note.stage, note.reason) == ("response", "unreadable")
        ),
        None,
    ):
        raise ConfigError(
            f"the function's results cannot be read as passages ({failure.detail}); return a list"
            ' of passages, each with an "id" that the judgements use',
            path="fn",
        )
    ids = tuple(match.id for match in retrieval.matches if match.id)
    if len(ids) < len(retrieval.matches):
        raise ConfigError(
            "the function's results have no ids, so they cannot be compared with the judgements;"
            ' return passages with an "id" that the judgements use, or set'
            " keywordEvidence.fields.id to their field",
            path="fn",
        )
    trace = retrieval.trace
    # A stage that ran several times counts as one stage.
    stages: dict[str, float] = {}
    for stage in trace.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.ms
    if trace.replayed_ms:
        stages[REPLAYED] = trace.replayed_ms
    return Run(
        ids=ids,
        seconds_added=(trace.added_ms + trace.replayed_ms) / 1e3,
        llm_calls=trace.llm_calls,
        degraded=retrieval.status == "degraded",
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cost_usd=trace.cost_usd,
        stages=stages,
        variants=retrieval.variants,
        searches=trace.searches,
        read_cost_usd=trace.read_cost_usd,
    )
