"""The texts and passages that everybody in the matrix agrees on: the model, the index, and the one who judges."""

from __future__ import annotations

from random import Random
from typing import Any, Final

QUERY: Final = "Does  Jaco have any health concerns\u00a0? Cafe\u0301 "
"""With all that somebody might tidy up: two blanks, a hard one, one at the end, an accent by itself."""

REWRITE: Final = "Does the dog Jaco have medical conditions or an illness, Café?"
STEP_BACK: Final = "What conditions are common for older dogs?"
SUBS: Final = (
    "What did the vet say about Jaco?",
    "Which medicine does Jaco take every day?",
    "How well does Jaco see and hear at his age?",
)
HYDE: Final = "Jaco was seen by the vet in May. His heart, hips and teeth are healthy."
TEXTS: Final = (QUERY, REWRITE, STEP_BACK, *SUBS, HYDE)
"""A text's place here is its number."""

REPLIES: Final = {
    "rewrite": REWRITE,
    "step_back": STEP_BACK,
    "sub_queries": list(SUBS),
    "hyde": HYDE,
}

TOP_K: Final = 4
NAMESPACE: Final = "dogs"
PASSAGES: Final = tuple(
    f"Passage {number}: Jaco {deed}"
    for number, deed in enumerate(
        (
            *(
                "has no health concerns",
                "eats twice a day",
                "sleeps at noon",
                "was seen by the vet",
                "is seven",
            ),
            *(
                "takes no medicine",
                "hears well",
                "walks at eight",
                "likes carrots",
                "has healthy hips",
            ),
            *("came from the shelter", "has no illness"),
        )
    )
)

Row = tuple[str, Any, str]
"""A passage that was found: id, score, text."""

LATE_SECONDS: Final = (0.16, 0.32)
"""How long a slow search takes, by form: within the deadline, and beyond it."""
LATE_VARIANT_SECONDS: Final = 0.45
"""How long a variant's takes then: beyond the deadline, however soon it begins."""


def number_of(text: str) -> int:
    """The number of *text*; -1 for a text nobody wrote."""
    return TEXTS.index(text) if text in TEXTS else -1


def rows(search: str, form: int, number: int, top_k: int) -> list[Row]:
    """What the search for text *number* finds."""
    shift = 2 * number
    order = [(place + shift) % len(PASSAGES) for place in range(len(PASSAGES))]
    found: list[Row] = [
        (f"p{passage}", round(0.9 - 0.05 * place - 0.001 * number, 3), PASSAGES[passage])
        for place, passage in enumerate(order)
    ]
    if search == "duplicates" and (form or not number):
        found = [row for row in found for _ in range(2)]
    elif search == "empty" and not (form and number):
        found = []
    elif search == "scores":
        wrong = float("nan") if form else None
        found = [
            (name, score if form and place % 2 else wrong, text)
            for place, (name, score, text) in enumerate(found)
        ]
    elif search == "unsorted" and (number or not form):
        scores = Random(number).sample([row[1] for row in found], len(found))
        found = [(name, score, text) for (name, _, text), score in zip(found, scores, strict=True)]
    return found[:top_k]


def seconds(search: str, form: int, number: int) -> float:
    """How long the search for text *number* takes."""
    if search != "slow":
        return 0.0
    return LATE_VARIANT_SECONDS if number else LATE_SECONDS[form]
