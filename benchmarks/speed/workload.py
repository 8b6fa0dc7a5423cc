"""The work every contender does: one question, four paraphrases of it, five searches of five passages each.

Nothing but the standard library, since the peers' environments read it too. Searches and the model answer at once, or
after `SEARCH_SECONDS` and `MODEL_SECONDS` where the shape of the waiting is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

SEED = 7
MODEL_SECONDS = 0.3
SEARCH_SECONDS = 0.05
TOP_K = 5
PASSAGE_CHARS = 800  # the default chunkSize

QUESTION = "How does the Paris agreement limit the carbon emissions of shipping?"
PARAPHRASES = (
    "What does the Paris agreement do to limit carbon emissions from shipping?",
    "In which way are the carbon emissions of shipping limited by the Paris agreement?",
    "How are shipping emissions of carbon restricted under the Paris agreement?",
    "Which limits does the Paris agreement set on carbon emissions of the shipping sector?",
)
QUESTIONS = (QUESTION, *PARAPHRASES)
REPLY = json.dumps({"paraphrases": PARAPHRASES})
LINES = "\n".join(PARAPHRASES)
"""The model's reply as the peers ask for it."""

_WORDS = (
    "agreement paris carbon emissions shipping limit climate warming ocean policy energy transport fuel port treaty "
    "the of and to in a is that for it with as on by at from or an be this are which was not have has its were"
).split()


def _passages(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    made = []
    for number in range(count):
        text = ""
        while len(text) < PASSAGE_CHARS:
            text += chance.choice(_WORDS) + " "
        made.append({"id": f"passage-{number}", "score": 0.0, "text": text[:PASSAGE_CHARS].strip()})
    return made


def _results(questions: Sequence[str], top_k: int = TOP_K) -> dict[str, list[dict[str, Any]]]:
    """Five passages a question, best first, half of them shared with other questions."""
    chance = random.Random(SEED)
    passages = _passages(3 * top_k)
    return {
        question: [
            {**passage, "score": round(0.9 - 0.05 * rank - 0.01 * chance.random(), 4)}
            for rank, passage in enumerate(chance.sample(passages, top_k))
        ]
        for question in questions
    }


RESULTS = _results(QUESTIONS)
"""What each question finds. Any other text finds what the question itself does."""


def found(query: str) -> list[dict[str, Any]]:
    """The passages one query finds, in a list of its own."""
    return list(RESULTS.get(query) or RESULTS[QUESTION])


def search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """A search that takes no time."""
    return found(query)[:top_k]


async def asearch(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """`search`, to be awaited."""
    return found(query)[:top_k]


def slow_search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """A search that takes `SEARCH_SECONDS`."""
    time.sleep(SEARCH_SECONDS)
    return found(query)[:top_k]


async def aslow_search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """`slow_search`, to be awaited."""
    await asyncio.sleep(SEARCH_SECONDS)
    return found(query)[:top_k]
