"""The transformation types as they are offered and chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import fold
from qtmiddleware.config.settings import TransformationType

KINDS: Final[Mapping[TransformationType, str]] = {name: row.label for name, row in TRANSFORMS.items()}
"""Every type with what it does, in the order they are numbered."""

NAMES: Final = ", ".join(KINDS)


def kind_named(text: str) -> TransformationType | None:
    """The type meant by a number or a name, ``None`` where there is none such."""
    wanted = fold(text.strip())
    for number, kind in enumerate(KINDS, start=1):
        if wanted in (str(number), fold(kind)):
            return kind
    return None


def menu() -> str:
    """The types, a line each, with their numbers."""
    rows = [f"  {number}. {kind} - {what}" for number, (kind, what) in enumerate(KINDS.items(), start=1)]
    return "\n".join(["Available transformation types:", *rows])


def choose(read: Callable[[str], str], say: Callable[[str], None], default: TransformationType) -> TransformationType:
    """The type that is typed at the prompt of *read*; an empty line is the *default*, anything wrong asks again."""
    say(f"\n{menu()}\n")
    while True:
        text = read(f"Select transformation type [{default}]: ")
        if not text.strip():
            return default
        kind = kind_named(text)
        if kind is not None:
            return kind
        say(f"There is no such type: enter a number from 1 to {len(KINDS)} or a name.")
