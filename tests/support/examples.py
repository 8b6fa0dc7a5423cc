"""The examples of a page, with what they print."""

from __future__ import annotations

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

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


def find_examples(page: str) -> list[Example]:
    """The blocks of *page* that are marked ``python`` and nothing else, in order."""
    return [Example(found[1], found[2]) for found in _BLOCK.finditer(page)]


def read_rows(page: Path) -> list[list[str]]:
    """The cells of every row of the tables of *page*."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[it.strip() for it in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
