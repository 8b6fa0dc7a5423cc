"""The built-in prompts: one file per transform, with the transform's name in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final

from qtmiddleware.catalogue import list_prompt_names
from qtmiddleware.transforms.prompt import Transform

PROMPTS: Final[Mapping[str, Transform]] = MappingProxyType(
    {name: import_module(f"{__name__}.{name}").TRANSFORM for name in list_prompt_names()}
)
"""The built-in transforms, by their names in the catalogue."""
