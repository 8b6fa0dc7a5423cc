"""The work every contender does: one question, three paraphrases of it, four searches of five passages each.

Nothing but the standard library, since the peers' environments read it too. There are many
questions, so that nobody profits from having seen a text before. Searches answer at once, or after
`SEARCH_SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from itertools import cycle, product
from typing import Any

SEED = 7
MODEL_SECONDS = 0.3
SEARCH_SECONDS = 0.05
TOP_K = 5
PASSAGE_CHARS = 800  # the default chunkSize
CANDIDATES = 50
CANDIDATE_CHARS = 1_000
LONG = ", 50 candidates of 1,000 characters"
"""The end of the name of what is measured with long lists."""

_PLACES = (
    "Paris",
    "Kyoto",
    "Montreal",
    "Glasgow",
    "Copenhagen",
    "Doha",
    "Durban",
    "Lima",
    "Marrakesh",
    "Bonn",
)
_GASES = ("carbon", "methane", "sulphur", "nitrogen", "ozone")
_SECTORS = (
    "shipping",
    "aviation",
    "farming",
    "mining",
    "cement",
    "heating",
    "steel",
    "timber",
    "housing",
    "textiles",
)
_FORMS = (
    "How does the {0} agreement limit the {1} emissions of {2}?",
    "What does the {0} agreement do about {1} pollution caused by {2}?",
    "In which way are {1} emissions from the {2} industry restricted under the {0} agreement?",
    "Rules of the {0} accord for cutting the {1} output of {2} companies",
)

VARIANTS = {
    forms[0]: forms[1:]
    for words in product(_PLACES, _GASES, _SECTORS)
    for forms in [tuple(form.format(*words) for form in _FORMS)]
}
"""Every question with its three paraphrases."""
QUESTIONS = list(VARIANTS)
random.Random(SEED).shuffle(QUESTIONS)
REPLIES = {
    question: json.dumps({"paraphrases": variants}) for question, variants in VARIANTS.items()
}
"""The model's reply to each question, as the library asks for it."""
LINES = {question: "\n".join(variants) for question, variants in VARIANTS.items()}
"""The same as LangChain and LlamaIndex ask for it, a paraphrase a line."""
_PLACE_OF = {
    text: place
    for question, texts in VARIANTS.items()
    for place, text in enumerate((question, *texts))
}

_LINES = (
    "agreement paris carbon emissions shipping limit climate warming ocean policy energy transport fuel port treaty",
    "the of and to in a is that for it with as on by at from or an be this are which was not have has its were",
)
_WORDS = [word for line in _LINES for word in line.split()]


def _passage(chance: random.Random, number: int, chars: int = PASSAGE_CHARS) -> dict[str, Any]:
    text = ""
    while len(text) < chars:
        text += chance.choice(_WORDS) + " "
    return {"id": f"passage-{number}", "text": text[:chars].strip()}


def _lists(count: int, chars: int) -> list[list[dict[str, Any]]]:
    """One result a form of question, best first; many of their passages are the same."""
    chance, step = random.Random(SEED), 0.25 / count
    passages = [_passage(chance, number, chars) for number in range(3 * count)]
    return [
        [
            {**passage, "score": round(0.9 - step * (rank + 0.2 * chance.random()), 4)}
            for rank, passage in enumerate(chance.sample(passages, count))
        ]
        for _ in _FORMS
    ]


LISTS = _lists(TOP_K, PASSAGE_CHARS)
"""What the question and each of its paraphrases find."""
LONG_LISTS = _lists(CANDIDATES, CANDIDATE_CHARS)
"""The same for a retriever that is asked for 50 candidates."""


COMBINED = {
    question: json.dumps(
        {
            "rewrite": variants[2],
            "step_back": "International climate policy",
            "sub_queries": variants[:2],
            "hyde": " ".join(
                [
                    question.replace("How does", "In detail, what does").replace("?", "."),
                    *variants[:2],
                ]
            ),
            "keywords": ["emissions", "caps", "agreement"],
        }
    )
    for question, variants in VARIANTS.items()
}
"""The model's reply to each question as `combined` asks for it."""


def _candidates() -> list[dict[str, Any]]:
    chance = random.Random(SEED)
    passages = [_passage(chance, number, CANDIDATE_CHARS) for number in range(CANDIDATES + 10)]
    return [
        {
            "id": passage["id"],
            "score": round(0.9 - 0.01 * rank, 4),
            "metadata": {"text": passage["text"], "page": rank},
        }
        for rank, passage in enumerate(passages)
    ]


_CANDIDATES = _candidates()


def find_candidates(query: str, top_k: int = TOP_K) -> dict[str, Any]:
    """A search of long lists that takes no time; what a variant finds begins ten places further down."""
    first = 0 if query in VARIANTS else 10
    return {"matches": _CANDIDATES[first : first + top_k], "namespace": "climate"}


async def afind_candidates(query: str, top_k: int = TOP_K) -> dict[str, Any]:
    """`find_candidates`, to be awaited."""
    return find_candidates(query, top_k)


def calibrate(_: str = "") -> None:
    """Tokenise and count the texts of all candidates once: what a machine needs for that is a unit for a call."""
    for passage in _CANDIDATES[:CANDIDATES]:
        Counter(re.findall(r"\w+", passage["metadata"]["text"]))


def place_of(text: str) -> int:
    """Which of `LISTS` the search for *text* finds."""
    return _PLACE_OF.get(text, 0)


class Turns:
    """Questions one after the other, and the paraphrases of the one that is asked now."""

    def __init__(self) -> None:
        self._questions = cycle(QUESTIONS)
        self.now = QUESTIONS[0]

    def next(self) -> str:
        """The next question."""
        self.now = next(self._questions)
        return self.now


TURNS = Turns()


def lines_for_now() -> str:
    """The model's reply to the question asked last, a paraphrase a line."""
    return LINES[TURNS.now]


def search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """A search that takes no time."""
    return LISTS[_PLACE_OF.get(query, 0)][:top_k]


async def asearch(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """`search`, to be awaited."""
    return LISTS[_PLACE_OF.get(query, 0)][:top_k]


def search_long(query: str, top_k: int = CANDIDATES) -> list[dict[str, Any]]:
    """A search of long lists that takes no time."""
    return LONG_LISTS[_PLACE_OF.get(query, 0)][:top_k]


async def asearch_long(query: str, top_k: int = CANDIDATES) -> list[dict[str, Any]]:
    """`search_long`, to be awaited."""
    return search_long(query, top_k)


def slow_search(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """A search that takes `SEARCH_SECONDS`."""
    time.sleep(SEARCH_SECONDS)
    return search(query, top_k)


async def slow_asearch(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
    """`slow_search`, to be awaited."""
    await asyncio.sleep(SEARCH_SECONDS)
    return search(query, top_k)
