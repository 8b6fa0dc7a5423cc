"""Build prompts from questions, and turn a model's replies into transformations.

This package does no I/O and calls no model. Each built-in transform has a file in `prompts`, with
its instruction, its version and its reply fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from qtmiddleware.catalogue import FILLED_BY, NOTHING, TEXT_FIELDS, TransformRow
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.guard import guard_conversation
from qtmiddleware.transforms.prompt import GlossaryTerms, Transform, append_digest
from qtmiddleware.transforms.prompts import PROMPTS, combined
from qtmiddleware.transforms.repeats import ORIGINAL, find_repeats
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
    "guard_conversation",
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
    transforms = [_build_user_transform(row)] if row.prompt else [PROMPTS[name] for name in names]
    return tuple(
        transform.build_prompt(settings, query, history, glossary) for transform in transforms
    )


# Equal rows share one transform, so that its prompt is built only once.
@lru_cache(64)
def _build_user_transform(row: TransformRow) -> Transform:
    """Return the transform that a user defined as *row*.

    Its reply fields, and its rules for the model, come from built-in prompts: the prompt for its
    only field, or ``combined`` if it has several fields.
    """

    def adapt(settings: Settings) -> Mapping[str, Any]:
        built_in = [PROMPTS[FILLED_BY[name]].adapted(settings) for name in row.fields]
        fields = tuple(field for transform in built_in for field in transform.fields)
        # If the prompt changes, the cache must not return a reply to the earlier prompt.
        content = json.dumps([row.prompt, *(transform.version for transform in built_in)])
        return {
            "version": append_digest(f"{row.name}/own", content),
            "fields": fields,
            "rules": built_in[0].rules if len(built_in) == 1 else combined.RULES,
        }

    return Transform(
        mode=row.name,
        version=f"{row.name}/own",
        instruction=row.prompt,
        adapt=adapt,
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
