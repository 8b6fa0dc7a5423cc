"""StackFAQ: needs of users in their own words, and the answers of StackExchange threads (Karan and Snajder 2018)."""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.outside.collection import Collection, clean
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "ML-Recipes/BERT-FAQ",
    "3c184030c1819b462e29f665465ab4968657440e",
    "MIT; the texts are StackExchange's, CC BY-SA 3.0",
)


def with_titles(sources: Sources) -> Collection:
    """Each answer a passage with the question of its thread as title; all answers of the thread are relevant."""
    made = Collection()
    pairs = json.loads(sources.read(REPOSITORY, "data/StackFAQ/stackExchange-FAQ.json"))["root"][
        "qapair"
    ]
    for thread, pair in enumerate(pairs):
        answers = _answers(pair["answer"])
        ids = [f"t{thread}a{number}" for number in range(len(answers))]
        for id_, answer in zip(ids, answers, strict=True):
            made.passages[id_] = (clean(pair["question"]), answer)
        for number, need in enumerate(_listed(pair["rephr"])):
            if isinstance(need, str) and len(need.strip()) > 2 and answers:
                made.ask(f"t{thread}q{number}", clean(need), dict.fromkeys(ids, 1))
    return made


def answers_alone(sources: Sources) -> Collection:
    """The same without titles, which is the harder form."""
    made = with_titles(sources)
    made.passages = {id_: ("", text) for id_, (_, text) in made.passages.items()}
    return made


def _answers(found: Any) -> list[str]:
    listed = _listed(found)
    # A thread with one answer sometimes has a list of its letters there.
    if listed and all(len(one) == 1 for one in listed):
        listed = ["".join(listed)]
    return [clean(one) for one in listed if isinstance(one, str) and one.strip()]


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]
