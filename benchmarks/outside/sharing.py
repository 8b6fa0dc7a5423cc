"""How far recorded replies repeat the very words of the passages they are to find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.kit.evaluation import Dataset

LONG: Final = 10
"""So many words in a row are more than a phrase of the field or a name."""
_Words = tuple[str, ...]


@dataclass(frozen=True)
class Shared:
    """The questions that have a reply with `LONG` words in a row out of a passage, and the *longest* such run.

    *longest* is 0 where there is none so long.
    """

    questions: frozenset[str]
    longest: int


def shared_runs(data: Dataset, replies: Mapping[str, Mapping[str, Any]]) -> Shared:
    """Runs of words that stand in a reply and in any passage of *data*, but not in the question or its history."""
    passages = [_words(passage.text) for passage in data.passages]
    asked = {
        one.id: _words(" ".join([one.text, *(turn.content for turn in one.history)]))
        for one in data.questions
    }
    said = {id_: [_words(text) for text in _texts(reply)] for id_, reply in replies.items()}
    questions: frozenset[str] = frozenset()
    longest = 0
    for length in range(LONG, max(len(text) for texts in said.values() for text in texts) + 1):
        there = set(_runs(passages, length))
        found = {
            id_
            for id_, texts in said.items()
            if not there.isdisjoint(_own(texts, asked[id_], length))
        }
        if not found:
            break
        questions |= found
        longest = length
    return Shared(questions, longest)


def _own(texts: Iterable[_Words], asked: _Words, length: int) -> set[_Words]:
    """The runs of *texts* that were not asked already."""
    return set(_runs(texts, length)).difference(_runs([asked], length))


def _words(text: str) -> _Words:
    return tuple(re.findall(r"\w+", text.lower()))


def _runs(texts: Iterable[_Words], length: int) -> Iterator[_Words]:
    return (text[at : at + length] for text in texts for at in range(len(text) - length + 1))


def _texts(reply: Mapping[str, Any]) -> Sequence[str]:
    values = [value for name, value in reply.items() if name != "_id" and value]
    return [text for value in values for text in (value if isinstance(value, list) else [value])]
