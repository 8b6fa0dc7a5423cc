"""The examples of a page, with what they print."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass

_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """The *code* of a block, and the *output* in the block of text right behind it, ``None`` without one."""

    code: str
    output: str | None

    def check_output(self, printed: str) -> None:
        """Fail unless *printed* is the output; ``...`` there stands for anything."""
        if self.output is not None and not doctest.OutputChecker().check_output(
            self.output, printed, doctest.ELLIPSIS
        ):
            assert printed == self.output


def remove_code(page: str) -> str:
    """The *page* without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)


def find_examples(page: str) -> list[Example]:
    """The blocks of *page* that are marked ``python`` and nothing else, in order."""
    return [Example(found[1], found[2]) for found in _BLOCK.finditer(page)]
