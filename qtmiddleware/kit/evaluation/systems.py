"""The systems that a comparison measures by default, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.reading import read_preset
from qtmiddleware.errors import ConfigError

BASELINE: Final = "off"
"""The name of the system that all others are compared with: the plain search."""
OWN: Final = "yours"
"""The name of the system that is a wrapped function, or an index, with its own settings."""
SEEDS: Final = "seed-parity"
"""The name of a system and of its preset, which searches the model's texts, not the question."""
_NO_RULES: Final[Mapping[str, Any]] = {
    "preprocess": {"enabled": False},
    "keywordEvidence": {"enabled": False},
}
_ALWAYS: Final[Mapping[str, Any]] = {"escalation": {"mode": "always"}}

Settings = Mapping[str, Any]
"""The settings of a system, as in a config."""


def read_preset_settings(preset: str) -> Settings:
    """Return the settings of a preset, without the name of its model."""
    _, settings = read_preset(preset)
    return {
        key: value
        for key, value in settings.items()
        if key[0] != "$" and key != "transformationModel"
    }


_TRANSFORMS: Final = {
    "balanced" if name == "combined" else name: {"transformationType": name, **_ALWAYS}
    for name in TRANSFORMS
    if name != "none"
}
SYSTEMS: Final[Mapping[str, Settings]] = {
    BASELINE: {"transformationType": "none", **_NO_RULES, "rerank": {"enabled": False}},
    "preprocessed as text": {
        "transformationType": "none",
        "preprocess": {"applyTo": "text"},
        "keywordEvidence": {"enabled": False},
    },
    "rules": {"transformationType": "none"},
    **_TRANSFORMS,
    "auto": {"transformationType": "combined", "escalation": {"mode": "auto"}},
    SEEDS: {**read_preset_settings(SEEDS), **_ALWAYS},
    "balanced, no hyde": {
        "transformationType": "combined",
        **_ALWAYS,
        "fusion": {"weights": {"hyde": 0}},
    },
    # Merges the lists, with the question's list as anchor, and applies no rules.
    "balanced, no rules": {"transformationType": "combined", **_ALWAYS, **_NO_RULES},
    "hybrid": {"transformationType": "none", "hybrid": {"enabled": True}},
    "hybrid, balanced": {
        "transformationType": "combined",
        **_ALWAYS,
        "hybrid": {"enabled": True},
    },
}
"""The settings of each system. All other settings have their defaults."""
FREE: Final = (BASELINE, "preprocessed as text", "rules")
"""The systems that need neither a model nor a store of the kit."""
USUAL: Final = (*FREE, *_TRANSFORMS, "auto", SEEDS)
"""The default systems if there is a model. They work with any retrieval function."""
MEASURED: Final[Settings] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}
"""The settings for measuring. A system's own settings override them."""


def asks_a_model(system_name: str) -> bool:
    """Return whether the system asks a language model. Raises `ConfigError` if it is unknown."""
    return bool(chosen([system_name])[system_name]["transformationType"] != "none")


def chosen(systems: str | Sequence[str] | Mapping[str, Settings]) -> dict[str, Settings]:
    """Return the settings of `BASELINE` and of *systems*, each system once.

    Args:
        systems: Settings by the system's name, or one or several names from `SYSTEMS`. The name
            ``yours`` means no other settings.

    Raises:
        ConfigError: A system is unknown, or settings have a name with another meaning.
    """
    if isinstance(systems, Mapping):
        if systems.get(BASELINE, SYSTEMS[BASELINE]) != SYSTEMS[BASELINE]:
            raise ConfigError(
                f"the name {BASELINE!r} is reserved; rename the system", path="systems"
            )
        return {BASELINE: SYSTEMS[BASELINE], **systems}
    names = [systems] if isinstance(systems, str) else systems
    known = {**SYSTEMS, OWN: {}}
    for name in names:
        if name not in known:
            allowed = "; ".join(SYSTEMS)
            raise ConfigError(
                f"there is no system {name!r}; the systems are: {allowed}",
                path="systems",
                value=name,
                allowed=allowed,
            )
    return {name: known[name] for name in dict.fromkeys((BASELINE, *names))}
