"""Prompts out of questions and transformations out of replies: everything about the language model but the model.

Nothing here does I/O. Each transform is one file with its instruction, the version of that and its reply fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from qtmiddleware.ports import Prompt
from qtmiddleware.settings import Settings
from qtmiddleware.transforms import combined, decompose, hyde, keywords, multi_query, rewrite, standalone, step_back
from qtmiddleware.transforms.base import Transform
from qtmiddleware.transforms.distinct import distinct
from qtmiddleware.transforms.guard import guard
from qtmiddleware.transforms.limits import is_within_limits
from qtmiddleware.transforms.parsing import SAME, parse
from qtmiddleware.transforms.wording import normal
from qtmiddleware.types import Message, Transformation

__all__ = [
    "SAME",
    "TRANSFORMS",
    "distinct",
    "guard",
    "is_within_limits",
    "merge",
    "parse",
    "prompts_for",
    "standalone_prompt",
]

TRANSFORMS: Final[Mapping[str, Transform]] = MappingProxyType(
    {
        module.TRANSFORM.mode: module.TRANSFORM
        for module in (standalone, rewrite, step_back, decompose, multi_query, hyde, keywords, combined)
    }
)
"""Every transform by its mode, which is its name in the settings."""

_PLANS: Final[Mapping[str, tuple[str, ...]]] = {"none": (), "all": ("rewrite", "stepback", "decompose")}


def prompts_for(settings: Settings, query: str, history: Sequence[Message] = ()) -> tuple[Prompt, ...]:
    """The prompts that the settings ask for: none for ``none``, three for ``all``, else one.

    With a *history* each of them asks for the standalone form of the query too.
    """
    kind = settings.transformation_type
    return tuple(TRANSFORMS[mode].prompt(settings, query, history) for mode in _PLANS.get(kind, (kind,)))


def standalone_prompt(settings: Settings, query: str, history: Sequence[Message]) -> Prompt:
    """The prompt that asks for the standalone form of *query* and nothing else."""
    return TRANSFORMS["standalone"].prompt(settings, query, history)


def merge(parts: Iterable[Transformation]) -> Transformation:
    """What several replies to one query hold together: the first of each single text, all of each list, once each."""
    parts = tuple(parts)
    return Transformation(
        standalone=next((part.standalone for part in parts if part.standalone), None),
        rewrite=next((part.rewrite for part in parts if part.rewrite), None),
        step_back=next((part.step_back for part in parts if part.step_back), None),
        sub_queries=_once(text for part in parts for text in part.sub_queries),
        paraphrases=_once(text for part in parts for text in part.paraphrases),
        hyde=next((part.hyde for part in parts if part.hyde), None),
        keywords=_once(text for part in parts for text in part.keywords),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(normal(text), text)
    return tuple(first.values())
