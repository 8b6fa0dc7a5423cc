"""What a machine can see of how README and the guides are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.examples import remove_code

ROOT = Path(__file__).parents[2]
GENERATED = ("command-line.md", "api.md")
PAGES = [
    ROOT / "README.md",
    *(it for it in sorted((ROOT / "docs").glob("*.md")) if it.name not in GENERATED),
]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda it: it.stem)

MOST_WORDS = 23_000 + 4 * 600
"""Of all hand-written guides together, outside code: 23,000, and 600 for each of four later features: confidence and
the gate; the page and its reports; dates, metadata and glossaries; tools of agents."""
MOST_WORDS_OF_PAGE = 1_200
MOST_COLUMNS = 78

# Words that read as a translation, or that readers had to look up.
AVOIDED = re.compile(
    r"\b(?:mends?|mended|kin|hurts?|of ours|lies? over|lying over|gives? up reading"
    r"|(?:is|are|be|been|was|were) (?:weighed|told)|weighs|weighed by|stands? in for"
    r"|once (?:a|an) (?:function|call|question|process|worker)|may not be had|cannot be had)\b",
    re.IGNORECASE,
)


def read_prose(page: Path) -> str:
    """The page without code, generated tables and what stands in backticks."""
    text = page.read_text(encoding="utf-8").partition("## All keys")[0]
    return re.sub(r"`[^`\n]*`", "`x`", remove_code(text))


def count_words(page: Path) -> int:
    return len(read_prose(page).split())


def test_the_guides_are_not_longer_than_they_may_be() -> None:
    assert sum(count_words(page) for page in PAGES[1:]) <= MOST_WORDS


@each_page
def test_a_page_is_short_enough_for_one_question(page: Path) -> None:
    assert count_words(page) <= MOST_WORDS_OF_PAGE


@each_page
def test_a_page_uses_the_usual_words(page: Path) -> None:
    lines = read_prose(page).splitlines()
    found = [f"{line_[:100]} [{it[0]}]" for line_ in lines for it in AVOIDED.finditer(line_)]
    assert found == []


@each_page
def test_code_fits_on_the_page(page: Path) -> None:
    blocks = re.findall(
        r"^```python[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    wide = [line for block in blocks for line in block.splitlines() if len(line) > MOST_COLUMNS]
    assert wide == []
