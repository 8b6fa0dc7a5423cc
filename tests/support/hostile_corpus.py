"""Texts that try to be more than text: a corpus of injections, written for this project.

Each has an id that names its category, and is made when it is asked for, as some are large. `SHORT`
are those of a few hundred characters, `LONG` those of 100,000 and more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LARGE: Final = 100_000


@dataclass(frozen=True)
class Hostile:
    """One text of the corpus."""

    id: str
    category: str
    make: Callable[[], str]

    @property
    def text(self) -> str:
        return self.make()

    def __repr__(self) -> str:
        return self.id


# One text a line; a lone half of a character is its JSON escape.
TEXTS: Final[Mapping[str, Sequence[str]]] = json.loads(
    Path(__file__).with_name("corpus.json").read_text(encoding="utf-8")
)

MADE: Final[Mapping[str, Callable[[], str]]] = {
    "long/letters": lambda: "a" * LARGE,
    "long/words": lambda: "word " * (LARGE // 5),
    "long/capitals": lambda: "Abc " * (LARGE // 4),
    "long/numbers": lambda: "1,234.5 " * (LARGE // 8),
    "long/one number": lambda: "9" * LARGE,
    "long/spaces": lambda: "a" + " " * LARGE + "b:",
    "long/lines": lambda: '{"rewrite": "a"' + "\n" * LARGE + "b",
    "long/mixed spaces": lambda: "a" + " \t\u00a0\u3000" * (LARGE // 4) + "b",
    "long/quotes": lambda: '"' * LARGE,
    "long/unequal quotes": lambda: "“a' \"b" * (LARGE // 7),
    "long/brackets": lambda: "[" * LARGE,
    "long/braces": lambda: '{"a":' * (LARGE // 5),
    "long/nested and closed": lambda: "[" * (LARGE // 2) + "]" * (LARGE // 2),
    "long/parentheses": lambda: "(" * LARGE,
    "long/dots": lambda: "a." * (LARGE // 2),
    "long/hyphens": lambda: "a-" * (LARGE // 2),
    "long/apostrophes": lambda: "l'" * (LARGE // 2),
    "long/marks": lambda: "?!" * (LARGE // 2),
    "long/commas": lambda: '",' * (LARGE // 2),
    "long/slashes": lambda: "a/" * (LARGE // 2),
    "long/backslashes": lambda: "\\" * LARGE,
    "long/underscores": lambda: "_a" * (LARGE // 2),
    "long/citations": lambda: "[1]" * (LARGE // 3),
    "long/citations begun": lambda: "[1," * (LARGE // 3),
    "long/fences": lambda: "```\n" * (LARGE // 4),
    "long/ticks": lambda: "`a" * (LARGE // 2),
    "long/thoughts": lambda: "<think></think>" * (LARGE // 15),
    "long/thoughts begun": lambda: "<think>" * (LARGE // 7),
    "long/tags": lambda: "<rewrite>" * (LARGE // 9),
    "long/labels": lambda: "rewrite: " * (LARGE // 9),
    "long/items": lambda: "1. a " * (LARGE // 5),
    "long/lines of items": lambda: "- a\n" * (LARGE // 4),
    "long/combining": lambda: "a" + "\u0301" * LARGE,
    "long/joiners": lambda: "\u0627\u200d" * (LARGE // 2),
    "long/invisible": lambda: "a" + "\u200b" * LARGE + "b",
    "long/bidi": lambda: "\u202ea\u202c" * (LARGE // 3),
    "long/han": lambda: "中" * LARGE,
    "long/kana": lambda: "あ。" * (LARGE // 2),
    "long/arabic": lambda: "ا " * (LARGE // 2),
    "long/pictures": lambda: "\U0001f600" * (LARGE // 2),
    "long/surrogates": lambda: "\ud800" * LARGE,
    "long/ligature": lambda: "\ufdfa" * (LARGE // 18),
    "long/addresses": lambda: "https://a.b/ " * (LARGE // 13),
    "long/one address": lambda: "https://" + "a.b/" * (LARGE // 4),
    "long/mails": lambda: "a@" * (LARGE // 2),
    "long/escapes": lambda: "\x1b[31m" * (LARGE // 5),
    "long/unicode escapes": lambda: '{"rewrite": "' + "\\ud800" * (LARGE // 6) + '"}',
    "long/markup": lambda: "<b>" * (LARGE // 3),
    "long/lead-ins": lambda: "can you tell me " * (LARGE // 16),
    "long/markers": lambda: "NO_ANSWER" + "*" * LARGE,
}


def _kept(text: str) -> Callable[[], str]:
    return lambda: text


def _all() -> Iterator[Hostile]:
    for category, texts in TEXTS.items():
        for number, text in enumerate(texts, 1):
            yield Hostile(f"{category}/{number}", category, _kept(text))
    for name, make in MADE.items():
        yield Hostile(name, "long", make)


CORPUS: Final = tuple(_all())
SHORT: Final = tuple(it for it in CORPUS if it.category != "long")
LONG: Final = tuple(it for it in CORPUS if it.category == "long")
