"""Build the prompt of a transformation that a user defines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from qtmiddleware.catalogue import FILLED_BY, TransformRow
from qtmiddleware.config.settings import Settings
from qtmiddleware.transforms.prompt import Transform, append_digest
from qtmiddleware.transforms.prompts import PROMPTS, combined


# Equal rows share one transform, so that its prompt is built only once.
@lru_cache(64)
def build_user_transform(row: TransformRow) -> Transform:
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
