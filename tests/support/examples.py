"""The examples of a page, with what they print."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """The *code* of a block, and the *output* in the block of text right behind it, ``None`` without one."""

    code: str
    output: str | None


def find_examples(page: str) -> list[Example]:
    """The blocks of *page* that are marked ``python`` and nothing else, in order."""
    return [Example(found[1], found[2]) for found in _BLOCK.finditer(page)]
