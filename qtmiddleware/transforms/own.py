"""Build the prompt of a transformation that a user defines."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from typing import Final

from qtmiddleware.catalogue import FILLED_BY, TransformRow
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform, append_digest
from qtmiddleware.transforms.prompts import combined

_PROMPTS: Final = {
    name: import_module(f"qtmiddleware.transforms.prompts.{name}").TRANSFORM
    for name in FILLED_BY.values()
}


# Equal rows share one transform, so that its prompt is built only once.
@lru_cache(64)
def build_user_transform(transform_row: TransformRow) -> Transform:
    """Return the transform that a user defined as *transform_row*.

    The transform has the user's instruction and reply fields. Its rules for the model come from a
    built-in prompt: the prompt for its only field, or ``combined`` if it has several fields.
    """
    built_in = [_PROMPTS[FILLED_BY[name]] for name in transform_row.fields]

    def collect_fields(settings: Settings) -> tuple[ReplyField, ...]:
        """Return the reply fields of the built-in prompts, with the options in *settings*."""
        field_groups = [
            transform.fields(settings) if callable(transform.fields) else transform.fields
            for transform in built_in
        ]
        return tuple(field for fields in field_groups for field in fields)

    def join_version_suffixes(settings: Settings) -> str:
        """Return the version suffixes of the built-in prompts, joined by "+"."""
        return "+".join(
            filter(
                None,
                [
                    transform.format_version_suffix(settings)
                    for transform in built_in
                    if transform.format_version_suffix
                ],
            )
        )

    return Transform(
        mode=transform_row.name,
        # If the instruction or the fields change, the cache must not return a reply to the earlier
        # prompt.
        version=append_digest(
            f"{transform_row.name}/own", json.dumps([transform_row.prompt, transform_row.fields])
        ),
        instruction=transform_row.prompt,
        fields=collect_fields,
        rules=built_in[0].rules if len(built_in) == 1 else combined.RULES,
        format_version_suffix=join_version_suffixes,
    )
