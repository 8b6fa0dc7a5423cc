"""Build prompts from questions, and turn a model's replies into transformations.

This package does no I/O and calls no model. Each built-in transform has a file in `prompts`, with
its instruction, its version and its reply fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.distinct import ORIGINAL, find_repeats
from qtmiddleware.transforms.guard import guard_transformation
from qtmiddleware.transforms.own import build_user_transform
from qtmiddleware.transforms.prompt import GlossaryTerms
from qtmiddleware.transforms.prompts import PROMPTS
from qtmiddleware.transforms.replies import (
    NONE_NEEDED,
    SAME,
    build_transformation,
    drop_duplicates,
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
    "find_repeats",
    "guard_transformation",
    "is_within_limits",
    "merge_transformations",
    "parse_transformation",
]


def build_prompts(
    settings: Settings, query: str, history: Sequence[Message] = (), glossary: GlossaryTerms = ()
) -> tuple[Prompt, ...]:
    """Return the prompts for the transformation in *settings*.

    Most transformations have one prompt. ``all`` has three, and ``none`` has none.
    """
    row = settings.transform
    names = row.parts or ((row.name,) if row.fields else ())
    transforms = [build_user_transform(row)] if row.prompt else [PROMPTS[name] for name in names]
    return tuple(
        transform.build_prompt(settings, query, history, glossary) for transform in transforms
    )


def merge_transformations(transformations: Iterable[Transformation]) -> Transformation:
    """Combine *transformations* into one, without duplicate texts.

    A field with a single text gets the first text. A list field gets the texts of all lists.
    """
    parts = [transformation for transformation in transformations if transformation is not NOTHING]
    if len(parts) == 1:
        return parts[0]
    texts = {
        name: drop_duplicates(text for part in parts for text in part.texts(name))
        for name in TEXT_FIELDS
    }
    return build_transformation(texts, dict.fromkeys(note for part in parts for note in part.notes))
