"""What a first result says of itself, in numbers of which a low one means doubt.

==============  =======================================================================================================
``lead``        How far the mean score of the first three lies above that of the others among the first ten, in the
                backend's own unit. Of a shorter result the first half lead.
``coverage``    Share of the question's keywords that stand in one of the first three passages.
``agreement``   Correlation, over the first ten passages, of the score with the share of the keywords each holds, from
                -1 to 1: whether the words see the same order as the vectors.
``joint_lead``  How far the best two of the first twenty lie above their mean when scores and words (BM25), both
                stretched from 0 to 1, are added as keyword evidence usually is.
==============  =======================================================================================================

Where scores are missing, ranks stand in for them beside the words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from heapq import nlargest
from math import isfinite
from statistics import correlation
from typing import Final

from qtmiddleware.keywords import keyword_scores

LOOKED_AT: Final = 20
NEAR: Final = 10
LEADING: Final = 3
BEST: Final = 2
SHARE_OF_WORDS: Final = 0.35

# So much of a passage is read: a longer one holds every word somewhere.
_READ: Final = 4_000
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
    held = [_held(terms, text.casefold()) for text in read[:NEAR]]
    found["coverage"] = len(set().union(*held[:LEADING])) / len(terms)
    if len(read) >= LEADING:
        numbers = _numbers(scores[: len(read)])
        heights = _stretched(_falling(numbers if len(numbers) == len(read) else range(len(read), 0, -1)))
        found["agreement"] = _agreement(heights[:NEAR], [len(it) for it in held])
        found["joint_lead"] = _joint_lead(heights, _stretched(keyword_scores(keywords, read) or [0.0] * len(read)))
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


def _falling(numbers: Sequence[float]) -> Sequence[float]:
    # A list whose numbers rise is one of distances.
    return [-number for number in numbers] if numbers[0] < numbers[-1] else numbers


def _stretched(numbers: Sequence[float]) -> list[float]:
    """From 0 to 1; zeros where all are the same or too far apart to be told."""
    low = min(numbers)
    width = max(numbers) - low
    return [(number - low) / width if width and isfinite(width) else 0.0 for number in numbers]


def _agreement(heights: Sequence[float], held: Sequence[int]) -> float:
    if min(heights) == max(heights) or min(held) == max(held):
        return 0.0
    return correlation(heights, held)


def _joint_lead(heights: Sequence[float], matches: Sequence[float]) -> float:
    joint = [
        (1.0 - SHARE_OF_WORDS) * height + SHARE_OF_WORDS * match for height, match in zip(heights, matches, strict=True)
    ]
    return _mean(nlargest(BEST, joint)) - _mean(joint)
