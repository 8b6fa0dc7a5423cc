"""Texts that try to be more than text: a corpus of injections, written for this project.

Each has an id that names its category. `SHORT` are those of a few hundred characters, `LONG` those
of 100,000 and more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LARGE: Final = 100_000


@dataclass(frozen=True)
class Hostile:
    """One text of the corpus."""

    id: str
    category: str
    text: str

    def __repr__(self) -> str:
        return self.id


# One text a line; a lone half of a character is its JSON escape.
TEXTS: Final[Mapping[str, Sequence[str]]] = json.loads(
    Path(__file__).with_name("corpus.json").read_text(encoding="utf-8")
)

MADE: Final[Mapping[str, tuple[str, str, str]]] = {
    "letters": ("", "a", ""),
    "words": ("", "Abc ", ""),
    "numbers": ("", "1,234.5 ", ""),
    "spaces": ("a", " \t\u00a0\u3000", "b:"),
    "lines": ('{"rewrite": "a"', "\n", "b"),
    "quotes": ("", "“a' \"b", ""),
    "brackets": ("", "[", ""),
    "braces": ("", '{"a":', ""),
    "hyphens": ("", "a-", ""),
    "marks": ("", '?!",', ""),
    "addresses": ("", "https://a.b/ a@", ""),
    "citations": ("", "[1][1,", ""),
    "fences": ("", "```\n`a", ""),
    "thoughts": ("", "<think></think><think>", ""),
    "tags": ("", "<rewrite><b>", ""),
    "items": ("", "1. a\n- rewrite: ", ""),
    "combining": ("a", "\u0301\u200d", ""),
    "hidden": ("a", "\u200b\u202e\x1b[31m", "b"),
    "scripts": ("", "中あ。ا \ufdfa", ""),
    "surrogates": ("", "\ud800\U0001f600", ""),
    "unicode escapes": ('{"rewrite": "', "\\ud800", '"}'),
    "lead-ins": ("", "can you tell me ", ""),
    "markers": ("NO_ANSWER", "*", ""),
}
"""Of each long text the beginning, the part that is repeated and the end."""


CORPUS: Final = (
    *(
        Hostile(f"{category}/{number}", category, text)
        for category, texts in TEXTS.items()
        for number, text in enumerate(texts, 1)
    ),
    *(
        Hostile(f"long/{name}", "long", start + part * (LARGE // len(part)) + end)
        for name, (start, part, end) in MADE.items()
    ),
)
SHORT: Final = tuple(it for it in CORPUS if it.category != "long")
LONG: Final = tuple(it for it in CORPUS if it.category == "long")
