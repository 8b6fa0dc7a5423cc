"""A small judged collection, an embedder of hashed words and a model that knows what the passages say."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from zlib import crc32

from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.bench import Bench
from qtmiddleware.kit.stores import MemoryStore
from qtmiddleware.protocols import Passage, Prompt
from qtmiddleware.providers.embedders import CallableEmbedder
from qtmiddleware.testing import ScriptedModel

_SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiou"]


def word(number: int) -> str:
    """A word of three syllables, another for every number."""
    count = len(_SYLLABLES)
    return (
        _SYLLABLES[number % count]
        + _SYLLABLES[number // count % count]
        + _SYLLABLES[(number * 7 + 3) % count]
    )


def _vector(text: str, dimension: int) -> list[float]:
    vector = [0.01] * dimension
    for each in text.casefold().replace("?", "").split():
        vector[crc32(each.encode()) % dimension] += 1.0
    return vector


def embedder(dimension: int = 64) -> CallableEmbedder:
    """Counts words by their hash: the fewer the dimensions, the more words it takes for others."""
    return CallableEmbedder(
        lambda texts: [_vector(text, dimension) for text in texts],
        name=f"hashed-{dimension}",
        dimension=dimension,
    )


def passage_text(number: int) -> str:
    """The passage that answers the question of this number."""
    return " ".join(word(10 * number + place) for place in range(6))


def collection(count: int = 50, *, seed: int | None = None) -> Dataset:
    """*count* questions, each answered by a passage; by *seed* the answers are shuffled.

    Every other question shares a word with its passage, so that the rules help with those; a model
    can with all.
    """
    numbers = list(range(count))
    answers = numbers if seed is None else random.Random(seed).sample(numbers, count)
    passages = tuple(Passage(f"p{number}", passage_text(number)) for number in numbers)
    questions = tuple(
        Question(
            f"q{number}", f"What is {word(first)} {word(5000 + 3 * number)} {word(7000 + number)}?"
        )
        for number, first in ((it, 10 * it if it % 2 else 9000 + it) for it in numbers)
    )
    return Dataset(
        "small",
        passages,
        questions,
        {f"q{number}": {f"p{answers[number]}": 1} for number in numbers},
    )


def model(data: Dataset, *, misled: Collection[str] = ()) -> ScriptedModel:
    """A model whose hypothetical passages are nearly the right ones, but for the *misled* questions of other ones."""
    number_of = {question.text: number for number, question in enumerate(data.questions)}

    def reply(prompt: Prompt) -> Mapping[str, Any]:
        number = number_of[prompt.query]
        shown = (number + 1) % len(number_of) if prompt.query in misled else number
        known = {
            "rewrite": prompt.query,
            "step_back": prompt.query,
            "sub_queries": [prompt.query],
            "hyde": " ".join(passage_text(shown).split()[:4]),
        }
        return {field.name: known[field.name] for field in prompt.fields if field.name in known}

    return ScriptedModel(reply)


def bench(data: Dataset, answering: ScriptedModel | None = None, *, dimension: int = 64) -> Bench:
    """The passages of *data* in a store in memory, and a model beside it."""
    chosen = embedder(dimension)
    store = MemoryStore(embedding_model=chosen.name, dimension=dimension)
    store.upsert(data.passages, chosen.embed([passage.text for passage in data.passages]))
    return Bench(store, chosen, answering or model(data))


def texts(questions: Sequence[Question]) -> set[str]:
    """What is asked."""
    return {question.text for question in questions}
