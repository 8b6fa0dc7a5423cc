"""Lexical evidence: how well passages that were already found match the keywords of the query.

BM25 (Robertson and Zaragoza, 2009) over the candidates alone: document frequencies are taken from them, so no index
is needed and no call is made.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from math import log
from typing import Final

K1: Final = 1.2
B: Final = 0.75

# Vowel signs and other marks, which \w leaves out, belong to their word.
_MARKS: Final = "".join(sign for sign in map(chr, range(0x300, 0x1A00)) if unicodedata.category(sign)[0] == "M")
_WORD: Final = re.compile(rf"[\w{_MARKS}]+")
# Scripts that are written without spaces: there a "word" is every pair of neighbouring characters.
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


def _terms(text: str) -> list[str]:
    """The words of *text* as they are compared: casefolded, without a plural's or genitive's last letter."""
    if text.isascii():
        return [_trimmed(word) for word in _WORD.findall(text.lower())]
    terms: list[str] = []
    for word in _WORD.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word.isascii():
            terms.append(_trimmed(word))
        elif _UNSPACED.search(word):
            for run in _UNSPACED.findall(word):
                terms.extend(run[i : i + 2] for i in range(max(1, len(run) - 1)))
            terms.extend(_UNSPACED.sub(" ", word).split())
        else:
            terms.append(_trimmed(word))
    return terms


def _trimmed(word: str) -> str:
    # Only what is safe in every language of the word lists: "dogs" meets "dog", "bus" and "ss" stay.
    if len(word) > 3 and word[-1] == "s" and word[-2] not in "su":
        return word[:-1]
    return word


def keyword_scores(keywords: str, texts: Sequence[str | None]) -> list[float] | None:
    """The BM25 score of each text, 0 where there is no text; ``None`` where no text holds any of the *keywords*.

    score = sum over terms of idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length)), with
    idf = log(1 + (n - df + 0.5) / (df + 0.5)).
    """
    wanted = set(_terms(keywords))
    if not wanted:
        return None
    counts: list[dict[str, int]] = []
    lengths: list[int] = []
    document_frequency: dict[str, int] = dict.fromkeys(wanted, 0)
    single = {term for term in wanted if len(term) == 1 and _UNSPACED.match(term)}
    for text in texts:
        terms = _terms(text) if text else []
        # A character of such a script that is asked for alone stands in no list of pairs.
        found = {sign: count for sign in single if text and (count := text.count(sign))}
        for term in terms:
            if term in wanted and term not in single:
                found[term] = found.get(term, 0) + 1
        for term in found:
            document_frequency[term] += 1
        counts.append(found)
        lengths.append(len(terms))
    if not any(counts):
        return None
    size = len(texts)
    mean_length = sum(lengths) / size
    idf = {term: log(1.0 + (size - df + 0.5) / (df + 0.5)) for term, df in document_frequency.items()}
    return [
        sum(
            idf[term] * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * length / mean_length)) for term, tf in found.items()
        )
        for found, length in zip(counts, lengths, strict=True)
    ]


def _normalised(scores: Sequence[float]) -> list[float]:
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    width = high - low
    return [(score - low) / width if width else 0.0 for score in scores]


def weighed(scores: Sequence[float], evidence: Sequence[float], weight: float) -> list[float]:
    """The backend's *scores* (higher is better) and the keyword *evidence*, each min-max normalised, as one sum.

    sum = (1 - weight) x score + weight x evidence.
    """
    return [
        (1.0 - weight) * score + weight * keyword
        for score, keyword in zip(_normalised(scores), _normalised(evidence), strict=True)
    ]
