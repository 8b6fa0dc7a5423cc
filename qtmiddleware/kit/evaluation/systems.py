"""The systems that a comparison measures by default, and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.reading import read_preset
from qtmiddleware.errors import ConfigError

# The settings of a system, as in a config.
Settings = Mapping[str, Any]

# All other systems are compared with this one: the plain search.
BASELINE: Final = "off"
# A wrapped function, or an index, with its own settings.
OWN: Final = "yours"
# This system, a preset too, searches the model's texts, not the question.
SEEDS: Final = "seed-parity"
_NO_RULES: Final[Settings] = {
    "preprocess": {"enabled": False},
    "keywordEvidence": {"enabled": False},
}
_ALWAYS: Final[Settings] = {"escalation": {"mode": "always"}}


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
_BALANCED: Final = _TRANSFORMS["balanced"]
_HYBRID: Final[Settings] = {"hybrid": {"enabled": True}}
# All other settings have their defaults.
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
    "balanced, no hyde": {**_BALANCED, "fusion": {"weights": {"hyde": 0}}},
    # Merges the lists, with the question's list as anchor, and applies no rules.
    "balanced, no rules": {**_BALANCED, **_NO_RULES},
    "hybrid": {"transformationType": "none", **_HYBRID},
    "hybrid, balanced": {**_BALANCED, **_HYBRID},
}
# These need neither a model nor a store of the kit.
FREE: Final = (BASELINE, "preprocessed as text", "rules")
# The default systems if there is a model. They work with any retrieval function.
USUAL: Final = (*FREE, *_TRANSFORMS, "auto", SEEDS)
# The settings for measuring. A system's own settings override them.
MEASURED: Final[Settings] = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 30_000, "deadlineMs": 60_000},
    "log": {"path": None},
}


def asks_a_model(system_name: str) -> bool:
    """Return whether the system asks a language model. Raises `ConfigError` if it is unknown."""
    return bool(chosen([system_name])[system_name]["transformationType"] != "none")


def chosen(
    systems: str | Sequence[str] | Mapping[str, Settings],
) -> dict[str, Settings]:
    """Return the settings of ``off`` and of *systems*, each system once.

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
