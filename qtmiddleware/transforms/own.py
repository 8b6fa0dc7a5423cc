"""The prompt of a transformation that a user adds."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from typing import Final

from qtmiddleware.catalogue import FILLED_BY, TransformRow
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform, mark_version
from qtmiddleware.transforms.prompts import combined

_PROMPTS: Final = {
    name: import_module(f"qtmiddleware.transforms.prompts.{name}").TRANSFORM
    for name in FILLED_BY.values()
}


# Rows of one definition are one object, so that their prompt is put together once.
@lru_cache(64)
def make_own(row: TransformRow) -> Transform:
    """Return the prompt of *row*: the user's instructions, and the fields of the built-in prompts.

    The rules of a single field are those of the built-in prompt for it. Several fields have the
    rules of ``combined``.
    """
    built_in = [_PROMPTS[FILLED_BY[name]] for name in row.fields]

    def describe_fields(settings: Settings) -> tuple[ReplyField, ...]:
        given = [it.fields(settings) if callable(it.fields) else it.fields for it in built_in]
        return tuple(field for fields in given for field in fields)

    def name_flavour(settings: Settings) -> str:
        return "+".join(filter(None, [it.flavour(settings) for it in built_in if it.flavour]))

    return Transform(
        mode=row.name,
        # With other instructions or fields, no reply to the earlier prompt may be served.
        version=mark_version(f"{row.name}/own", json.dumps([row.prompt, row.fields])),
        instruction=row.prompt,
        fields=describe_fields,
        rules=built_in[0].rules if len(built_in) == 1 else combined.RULES,
        flavour=name_flavour,
    )
