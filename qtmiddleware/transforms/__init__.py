"""Build prompts from questions, and turn a model's replies into transformations.

This package does no I/O and calls no model. Each built-in transform has a file in `prompts`, with
its instruction, its version and its reply fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from qtmiddleware.catalogue import NOTHING, STANDALONE, TEXT_FIELDS, list_prompt_names
from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing.text import normalise_text
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.distinct import ORIGINAL, find_repeats
from qtmiddleware.transforms.guard import guard_transformation
from qtmiddleware.transforms.own import build_user_transform
from qtmiddleware.transforms.prompt import GlossaryTerms, Transform
from qtmiddleware.transforms.replies import (
    NONE_NEEDED,
    SAME,
    build_transformation,
    is_within_limits,
    parse_transformation,
)
from qtmiddleware.types import Message, Transformation

__all__ = [
    "NONE_NEEDED",
    "ORIGINAL",
    "PROMPTS",
    "SAME",
    "GlossaryTerms",
    "build_prompts",
    "build_standalone_prompt",
    "find_repeats",
    "guard_transformation",
    "is_within_limits",
    "merge_transformations",
    "parse_transformation",
]

PROMPTS: Final[Mapping[str, Transform]] = MappingProxyType(
    {
        name: import_module(f"qtmiddleware.transforms.prompts.{name}").TRANSFORM
        for name in list_prompt_names()
    }
)
"""The built-in transforms, by their names in the catalogue."""


def build_prompts(
    settings: Settings, query: str, history: Sequence[Message] = (), glossary: GlossaryTerms = ()
) -> tuple[Prompt, ...]:
    """Return the prompts for the transformation in *settings*.

    Most transformations have one prompt. ``all`` has three, and ``none`` has none.

    Args:
        settings: The settings, with the transformation and its options.
        query: The user's question.
        history: The earlier messages. If there are any, every prompt also asks for the standalone
            form of *query*.
        glossary: The glossary's terms in *query*, each with its other forms.
    """
    row = settings.transform
    names = row.parts or ((row.name,) if row.fields else ())
    transforms = [build_user_transform(row)] if row.prompt else [PROMPTS[name] for name in names]
    return tuple(
        transform.build_prompt(settings, query, history, glossary) for transform in transforms
    )


def build_standalone_prompt(
    settings: Settings, query: str, history: Sequence[Message], glossary: GlossaryTerms = ()
) -> Prompt:
    """Return the prompt that asks only for the standalone form of *query*."""
    return PROMPTS[STANDALONE].build_prompt(settings, query, history, glossary)


def merge_transformations(transformations: Iterable[Transformation]) -> Transformation:
    """Combine *transformations* into one, without duplicate texts.

    A field with a single text gets the first text. A list field gets the texts of all lists.
    """
    transformations = [
        transformation for transformation in transformations if transformation is not NOTHING
    ]
    if len(transformations) == 1:
        return transformations[0]
    distinct = {
        name: _join_distinct_texts(
            [texts for transformation in transformations if (texts := transformation.texts(name))]
        )
        for name in TEXT_FIELDS
    }
    return build_transformation(
        distinct,
        dict.fromkeys(
            [note for transformation in transformations for note in transformation.notes]
        ),
    )


def _join_distinct_texts(texts_by_reply: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the texts that several replies have for one field, without duplicates."""
    # The texts of a single reply were checked for duplicates when the reply was parsed.
    if len(texts_by_reply) < 2:
        return texts_by_reply[0] if texts_by_reply else ()
    distinct: dict[str, str] = {}
    for texts in texts_by_reply:
        for text in texts:
            distinct.setdefault(normalise_text(text), text)
    return tuple(distinct.values())
