"""The systems that are compared, each as the settings that make it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.errors import ConfigError

BASELINE: Final = "raw"

_NO_RULES: Final[Mapping[str, Any]] = {"preprocess": {"enabled": False}, "keywordEvidence": {"enabled": False}}

_TRANSFORMS: Final = {name: {"transformationType": name} for name in TRANSFORMS if name != "none"}

SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    BASELINE: {"transformationType": "none", **_NO_RULES, "rerank": {"enabled": False}},
    "preprocessed as text": {
        "transformationType": "none",
        "preprocess": {"applyTo": "text"},
        "keywordEvidence": {"enabled": False},
    },
    "rules": {"transformationType": "none"},
    **_TRANSFORMS,
    "combined, auto": {"transformationType": "combined", "escalation": {"mode": "auto"}},
    "combined, no hyde": {"transformationType": "combined", "llm": {"hydeInCombined": False}},
    "combined, no rules": {"transformationType": "combined", **_NO_RULES},
    "hybrid": {"transformationType": "none", "hybrid": {"enabled": True}},
    "hybrid, combined": {"transformationType": "combined", "hybrid": {"enabled": True}},
}
"""By name, all with the defaults they do not speak of; ``combined, no rules`` is the anchored fusion alone."""

FREE: Final = (BASELINE, "preprocessed as text", "rules")
"""Those that ask no model and need no store of ours."""
USUAL: Final = (
    *FREE,
    *_TRANSFORMS,
    "combined, auto",
)
"""Those that run around any function where there is a model: what is compared by default."""

# Every call is to be counted, and every reply to be waited for: what is compared is quality.
MEASURED: Final[Mapping[str, Any]] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}
"""Laid under the settings of every system that is measured."""


def asks_a_model(name: str) -> bool:
    """Whether the system called *name* needs a language model; raises `ConfigError` for an unknown one."""
    return bool(chosen([name])[name]["transformationType"] != "none")


def chosen(names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """The systems of these *names*, the baseline first; raises `ConfigError` for an unknown one."""
    for name in names:
        if name not in SYSTEMS:
            known = "; ".join(SYSTEMS)
            raise ConfigError(
                f"no system is called {name!r}; there are: {known}", path="systems", value=name, allowed=known
            )
    return {name: SYSTEMS[name] for name in dict.fromkeys((BASELINE, *names))}
