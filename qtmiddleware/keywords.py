"""Lexical evidence: how well passages that were already found match the keywords of the query.

BM25 (Robertson and Zaragoza, 2009) over the candidates alone: document frequencies are taken from them, so no index
is needed and no call is made.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from typing import Final

K1: Final = 1.2
B: Final = 0.75

# Vowel signs and other marks, which \w leaves out, belong to their word.
_MARKS: Final = "".join(sign for sign in map(chr, range(0x300, 0x1A00)) if unicodedata.category(sign)[0] == "M")
_WORD: Final = re.compile(rf"[\w{_MARKS}]+")
# Scripts that are written without spaces: there a "word" is every pair of neighbouring characters.
_UNSPACED: Final = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


# What is no letter, digit or underscore of a plain text is a gap between its words.
_PLAIN_WORDS: Final = bytes(code if chr(code).isalnum() or code == 95 else 32 for code in range(128)) + bytes(128)


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


class _Wanted:
    """The terms of the keywords, ready to be counted in many texts."""

    def __init__(self, keywords: str) -> None:
        self.terms = frozenset(_terms(keywords))
        # A character of an unspaced script that is asked for alone stands in no list of pairs.
        self._single = frozenset(term for term in self.terms if len(term) == 1 and _UNSPACED.match(term))
        # How each term may be spelt in a plain text, so that not every word of it has to be trimmed.
        self._spellings = {
            spelling: term
            for term in self.terms
            for spelling in (term, term + "s")
            if term.isascii() and _trimmed(spelling) == term
        }

    def counted(self, text: str) -> tuple[Mapping[str, int], int]:
        """How often each term stands in *text*, and how many terms the text has."""
        if text.isascii():
            words = text.lower().encode().translate(_PLAIN_WORDS).decode().split()
            spellings = self._spellings
            found = Counter(map(spellings.__getitem__, filter(spellings.__contains__, words)))
            return found, len(words)
        terms = _terms(text)
        found = Counter(term for term in terms if term in self.terms and term not in self._single)
        found.update({sign: count for sign in self._single if (count := text.count(sign))})
        return found, len(terms)


def keyword_scores(keywords: str, texts: Sequence[str | None]) -> list[float] | None:
    """The BM25 score of each text, 0 where there is no text; ``None`` where no text holds any of the *keywords*.

    score = sum over terms of idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length)), with
    idf = log(1 + (n - df + 0.5) / (df + 0.5)).
    """
    wanted = _Wanted(keywords)
    counted = [wanted.counted(text or "") for text in texts]
    document_frequency = Counter(term for found, _ in counted for term in found)
    if not document_frequency:
        return None
    size = len(texts)
    mean_length = sum(length for _, length in counted) / size
    idf = {term: log(1.0 + (size - df + 0.5) / (df + 0.5)) for term, df in document_frequency.items()}
    return [
        sum(
            idf[term] * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * length / mean_length)) for term, tf in found.items()
        )
        for found, length in counted
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
