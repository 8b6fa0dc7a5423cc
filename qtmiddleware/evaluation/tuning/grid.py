"""What is tried: the tiers, and for each tier the settings that matter there with the values they may take.

Settings are flat here: values by dotted camelCase key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.config.keys import camel
from qtmiddleware.config.settings import Settings

Flat = Mapping[str, Any]

FREE_TIERS: Final = ("rules",)
"""Those that ask no model."""
TIERS: Final = ("combined", "combined, no hyde", "decompose", "hyde", "rewrite", *FREE_TIERS)
"""What is tried by default, names of `evaluation.SYSTEMS`."""

RATES: Final = (0.2, 0.35, 0.5)
"""Target call rates that are tried, as far as the budget allows; the budget's own limit is tried too."""

# Beside the library's default, whatever that is.
_VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "keywordEvidence.weight": (0.0, 0.2, 0.35, 0.5, 0.65),
    "keywordEvidence.variants": (0.0, 0.3, 0.6, 1.0),
    "fusion.weights.hyde": (0.75, 1.5, 2.5),
    "fusion.weights.rewrite": (0.35, 0.7, 1.4),
    "fusion.weights.subQueries": (0.5, 1.0, 2.0),
    "fusion.weights.stepBack": (0.0, 0.3, 0.6),
    "preprocess.applyTo": ("keywords", "both", "text"),
    "hybrid.enabled": (False, True),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that may be set, with what would be laid over the settings for each of its values."""

    name: str
    options: tuple[Flat, ...]


def axes(settings: Flat, *, max_call_rate: float | None, has_words: bool) -> Iterator[Axis]:
    """The axes that make a difference under *settings*; *has_words* says that the store can be searched by words."""
    kind = settings.get("transformationType", "none")
    asks = kind != "none"
    keys = ["keywordEvidence.weight"]
    if asks:
        keys.append("keywordEvidence.variants")
        row = TRANSFORMS[kind]
        asked = {name for part in row.parts or (kind,) for name in TRANSFORMS[part].fields}
        if kind == "combined" and not settings.get("llm.hydeInCombined", True):
            asked.discard("hyde")
        weights = [f"fusion.weights.{camel(name)}" for name in TEXT_FIELDS if name in asked]
        keys += [key for key in weights if key in _VALUES]
    keys.append("preprocess.applyTo")
    if has_words:
        keys.append("hybrid.enabled")
    for key in keys:
        yield Axis(key, tuple({key: value} for value in dict.fromkeys((*_VALUES[key], _defaults()[key]))))
    if asks:
        yield Axis("escalation", tuple(_escalations(max_call_rate)))


def _escalations(max_call_rate: float | None) -> Iterator[Flat]:
    limit = 1.0 if max_call_rate is None else max_call_rate
    if limit >= 1.0:
        yield {"escalation.mode": "always"}
    for rate in sorted({*RATES, limit} - {0.0, 1.0}):
        if rate <= limit:
            yield gated(rate)


def gated(rate: float) -> Flat:
    """The settings under which the model is asked about the share *rate* of the questions."""
    return {"escalation.mode": "auto", "escalation.targetCallRate": rate}


def most_trials(tiers: Sequence[Flat], passes: int) -> int:
    """How many candidates a search tries at most, roughly: for those who wait."""
    longest = max(sum(len(axis.options) - 1 for axis in axes(it, max_call_rate=None, has_words=True)) for it in tiers)
    return 1 + 2 * len(tiers) + passes * longest


def flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested *settings* by dotted key."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found.update(flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value})
    return found


def nested(settings: Flat) -> dict[str, Any]:
    """Flat *settings* as a config file has them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *groups, last = key.split(".")
        holder = found
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[last] = value
    return found


def minimal(settings: Flat) -> dict[str, Any]:
    """Those of *settings* that differ from the library's defaults, in the order of the reference."""
    chosen = dict(settings)
    if chosen.get("escalation.mode", "always") != "auto":
        chosen.pop("escalation.targetCallRate", None)
    return {key: chosen[key] for key, default in _defaults().items() if chosen.get(key, default) != default}


@cache
def _defaults() -> Mapping[str, Any]:
    return {key: value for key, value, _ in Config.load(Settings()).rows()}
