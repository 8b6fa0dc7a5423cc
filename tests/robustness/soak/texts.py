"""Texts that say whose they are: each carries the token of the question it belongs to."""

from __future__ import annotations

import re
from typing import Any, Final
from zlib import crc32

_TOKEN: Final = re.compile(r"QX-\d{9}")
_SENTENCES: Final = (
    "Which office keeps report {} about the harbour?",
    "Who signed {} when the bridge was repaired?",
    "Where can people read what {} says on drinking water?",
    "When did the council discuss the costs named in {}?",
    "How many winters does {} compare with each other?",
    "Why was the railway left out of {} by its authors?",
    "What followed after {} had been printed in spring?",
    "Whose measurements of the river are quoted within {}?",
    "Is there a newer edition of {} with better maps?",
    "Are the tables at the end of {} still correct today?",
)
PASSAGES: Final = 6
LUCKY: Final = 900_000_000
"""Questions with greater numbers meet no faults."""


def token_of(number: int) -> str:
    """The token of the question with this *number*."""
    return f"QX-{number:09d}"


def is_lucky(token: str) -> bool:
    """Whether nothing may befall *token*."""
    return int(token.removeprefix("QX-")) >= LUCKY


def question(token: str) -> str:
    """What is asked about *token*."""
    return f"What does report {token} say about old houses near the town?"


def sentence(number: int, token: str) -> str:
    """One of some sentences that are no repetition of one another."""
    return _SENTENCES[number % len(_SENTENCES)].format(token)


def tokens_in(text: str) -> set[str]:
    """Every token in *text*."""
    return set(_TOKEN.findall(text))


def token_in(text: str) -> str:
    """The one token in *text*; raises `ValueError` where there is none or more than one."""
    (token,) = tokens_in(text)
    return token


def passages(query: str, top_k: int = PASSAGES) -> list[dict[str, Any]]:
    """What is found for *query*: two passages that all texts of its token share, and others of its own."""
    token, own = token_in(query), f"{crc32(query.encode()):08x}"
    names = ["shared-0", "shared-1", *(f"{own}-{number}" for number in range(PASSAGES - 2))]
    return [
        {
            "id": f"{token}/{name}",
            "score": 1.0 - place / 10,
            "metadata": {"text": f"{name} of report {token}"},
        }
        for place, name in enumerate(names)
    ][:top_k]
