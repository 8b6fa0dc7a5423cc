"""Tables in pages, which the program that computes them writes between two comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def put_blocks(page: Path, blocks: Mapping[str, str]) -> None:
    """Replace what stands in *page* between ``<!-- NAME -->`` and ``<!-- end -->`` by the block of that name."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        text = re.sub(
            _pattern(name), lambda found, block=block: f"{found[1]}\n{block}\n{found[3]}", text
        )
    page.write_text(text, encoding="utf-8")


def read_block(page: Path, name: str) -> str:
    """What stands there."""
    found = re.search(_pattern(name), page.read_text(encoding="utf-8"))
    assert found is not None, name
    return found[2].strip()


def _pattern(name: str) -> str:
    return rf"(?s)(<!-- {re.escape(name)} -->\n)(.*?)(\n<!-- end -->)"
