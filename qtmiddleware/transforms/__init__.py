"""Prompts out of questions and transformations out of replies: everything about the language model but the model.

Nothing here does I/O. Each transform of the catalogue has one file of its name in `prompts`: its
instruction, the version of that and its reply fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from qtmiddleware.catalogue import NOTHING, STANDALONE, TEXT_FIELDS, prompt_names
from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing.text import normalise
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.distinct import ORIGINAL, find_repeats
from qtmiddleware.transforms.guard import guard
from qtmiddleware.transforms.own import make_own
from qtmiddleware.transforms.parsing import fill, parse
from qtmiddleware.transforms.prompt import Facts, Transform
from qtmiddleware.transforms.reply_rules import NONE_NEEDED, SAME, is_within_limits
from qtmiddleware.types import Message, Transformation

__all__ = [
    "NONE_NEEDED",
    "ORIGINAL",
    "PROMPTS",
    "SAME",
    "Facts",
    "build_prompts",
    "build_standalone_prompt",
    "find_repeats",
    "guard",
    "is_within_limits",
    "merge",
    "parse",
]

PROMPTS: Final[Mapping[str, Transform]] = MappingProxyType(
    {
        name: import_module(f"qtmiddleware.transforms.prompts.{name}").TRANSFORM
        for name in prompt_names()
    }
)
"""The prompt of every transform, by its name in the catalogue."""


def build_prompts(
    settings: Settings, query: str, history: Sequence[Message] = (), facts: Facts = ()
) -> tuple[Prompt, ...]:
    """Returns the prompts that the settings ask for: none for ``none``, three for ``all``, else one.

    With a *history* each of them asks for the standalone form of the query too. *facts* are what a
    glossary says of it.
    """
    row = settings.transform
    names = row.parts or ((row.name,) if row.fields else ())
    asked = [make_own(row)] if row.prompt else [PROMPTS[name] for name in names]
    return tuple(it.build_prompt(settings, query, history, facts) for it in asked)


def build_standalone_prompt(
    settings: Settings, query: str, history: Sequence[Message], facts: Facts = ()
) -> Prompt:
    """Returns the prompt that asks for the standalone form of *query* and nothing else."""
    return PROMPTS[STANDALONE].build_prompt(settings, query, history, facts)


def merge(parts: Iterable[Transformation]) -> Transformation:
    """Returns what several replies to one query hold together: the first of each single text, all of each list."""
    parts = [part for part in parts if part is not NOTHING]
    if len(parts) == 1:
        return parts[0]
    texts = {
        name: _drop_repeats([found for part in parts if (found := part.texts(name))])
        for name in TEXT_FIELDS
    }
    return fill(texts, dict.fromkeys([note for part in parts for note in part.notes]))


def _drop_repeats(given: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts that several replies gave for one field, each once; those of one reply are free of repeats already."""
    if len(given) < 2:
        return given[0] if given else ()
    first: dict[str, str] = {}
    for texts in given:
        for text in texts:
            first.setdefault(normalise(text), text)
    return tuple(first.values())
