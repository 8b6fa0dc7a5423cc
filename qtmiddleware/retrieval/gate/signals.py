"""What a first result says of itself, in numbers of which a low one means doubt.

==============  =======================================================================================================
``lead``        How far the mean score of the first three lies above that of the others among the first ten, in the
                backend's own unit. Of a shorter result the first half lead.
``coverage``    Share of the question's keywords that stand in one of the first three passages.
``backing``     Mean keyword evidence of the first three, among the first thirty: whether the words of the question
                stand where the scores put them, or further down.
``joint_lead``  How far the best two of the first twenty lie above their mean when scores and evidence, both stretched
                from 0 to 1, are added as keyword evidence usually is.
==============  =======================================================================================================

Where scores are missing, ranks stand in for them beside the words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import nlargest
from math import isfinite
from typing import Final

from qtmiddleware.retrieval.keyword_evidence import keyword_evidence

LOOKED_AT: Final = 30
JOINED: Final = 20
NEAR: Final = 10
LEADING: Final = 3
BEST: Final = 2
SHARE_OF_WORDS: Final = 0.35

# So much of a passage is read: a longer one holds every word somewhere, and takes time.
_READ: Final = 1_500
_WORD: Final = re.compile(r"\w+")


def signals_of(scores: Sequence[float | None], texts: Sequence[str | None], keywords: str) -> dict[str, float]:
    """The signals of a first result, best first, as far as there are *scores* or *texts* to tell them."""
    found: dict[str, float] = {}
    numbers = _numbers(scores[:NEAR])
    if len(numbers) > 1:
        leading = min(LEADING, len(numbers) // 2)
        lead = abs(_mean(numbers[:leading]) - _mean(numbers[leading:]))
        if isfinite(lead):
            found["lead"] = lead
    terms = {_singular(word) for word in _WORD.findall(keywords.casefold())}
    if not terms or not any(texts):
        return found
    read = [(text or "")[:_READ] for text in texts[:LOOKED_AT]]
    found["coverage"] = len(set().union(*(_held(terms, text.casefold()) for text in read[:LEADING]))) / len(terms)
    if len(read) >= LEADING:
        evidence = keyword_evidence([(keywords, 1.0)], read) or [0.0] * len(read)
        found["backing"] = _mean(evidence[:LEADING])
        found["joint_lead"] = _joint_lead(scores, evidence[:JOINED])
    return found


def _numbers(scores: Sequence[float | None]) -> list[float]:
    """The *scores*; none of them where one is no number."""
    try:
        numbers = [float(score) for score in scores if score is not None]
    except OverflowError:
        return []
    return numbers if len(numbers) == len(scores) and all(map(isfinite, numbers)) else []


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def _held(terms: set[str], text: str) -> set[str]:
    words = set(_WORD.findall(text))
    # Scripts without spaces have no words to compare; there a term is looked for anywhere.
    return {it for it in terms if it in words or it + "s" in words or (not it.isascii() and it in text)}


def _joint_lead(scores: Sequence[float | None], evidence: Sequence[float]) -> float:
    numbers = _numbers(scores[: len(evidence)])
    if len(numbers) < len(evidence):
        numbers = [-float(rank) for rank in range(len(evidence))]
    elif numbers[0] < numbers[-1]:
        # A list whose numbers rise is one of distances.
        numbers = [-number for number in numbers]
    pairs = zip(_stretched(numbers), _stretched(evidence), strict=True)
    joint = [(1.0 - SHARE_OF_WORDS) * height + SHARE_OF_WORDS * match for height, match in pairs]
    return _mean(nlargest(BEST, joint)) - _mean(joint)


def _stretched(numbers: Sequence[float]) -> list[float]:
    """From 0 to 1; zeros where all are the same or too far apart to be told."""
    low = min(numbers)
    width = max(numbers) - low
    return [(number - low) / width if width and isfinite(width) else 0.0 for number in numbers]
