"""Lexical evidence: how well passages that were already found match the keywords of the query.

BM25 (Robertson and Zaragoza, 2009) over the candidates alone: document frequencies are taken from them, so no index
is needed and no call is made.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import log, sqrt
from operator import add
from typing import Final

K1: Final = 1.2
B: Final = 0.75
# The best match of a query usually scores about four standard deviations more than the worst one.
DEVIATIONS: Final = 4.0
# Variants share words with their question. At 1 their evidence would count as one opinion, at 2 as independent ones.
OVERLAP: Final = 1.5

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
    return _Counted(wanted, texts).scores(wanted.terms)


def keyword_evidence(keywords: Sequence[tuple[str, float]], texts: Sequence[str | None]) -> list[float] | None:
    """How well each text holds several queries' keywords, each with its weight; ``None`` where no text holds any.

    evidence = sum over queries of weight x (BM25 - lowest) / (DEVIATIONS x standard deviation), divided by
    (sum of weight ** OVERLAP) ** (1 / OVERLAP) over the queries that any text matches. The worst text has 0, the best
    usually about 1, and more where the words single out a few.
    """
    counted = _Counted(_Wanted(" ".join(words for words, _ in keywords)), texts)
    alone = [(counted.scores(_Wanted(words).terms), weight) for words, weight in keywords if weight > 0]
    heard = [(_scaled(scores), weight) for scores, weight in alone if scores is not None]
    if not heard:
        return None
    loudest = max(weight for _, weight in heard)
    shares = [weight / loudest for _, weight in heard]
    voice = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    evidence = [0.0] * len(texts)
    for (scores, _), share in zip(heard, shares, strict=True):
        evidence = list(map(add, evidence, [share / voice * score for score in scores]))
    return evidence


class _Counted:
    """The *wanted* terms counted in all texts, once for every query that wants some of them."""

    def __init__(self, wanted: _Wanted, texts: Sequence[str | None]) -> None:
        self._counts = [wanted.counted(text or "") for text in texts]
        self._document_frequency = Counter(term for found, _ in self._counts for term in found)
        self._mean_length = sum(length for _, length in self._counts) / len(texts) if texts else 0.0

    def scores(self, terms: Set[str]) -> list[float] | None:
        """The BM25 score of each text for *terms*; ``None`` where no text holds any of them."""
        size = len(self._counts)
        idf = {
            term: log(1.0 + (size - df + 0.5) / (df + 0.5))
            for term, df in self._document_frequency.items()
            if term in terms
        }
        if not idf:
            return None
        return [
            sum(
                idf[term] * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * length / self._mean_length))
                for term, tf in found.items()
                if term in idf
            )
            for found, length in self._counts
        ]


def _scaled(scores: Sequence[float]) -> list[float]:
    """*scores* over their lowest, in widths of `DEVIATIONS` standard deviations; zeros where all are the same."""
    low, high = min(scores), max(scores)
    # What differs by rounding alone is the same.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    mean = sum(scores) / len(scores)
    width = DEVIATIONS * sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - low) / width for score in scores]


def weighed(
    scores: Sequence[float], evidence: Sequence[float], weight: float, *, spread: float | None = None
) -> list[float]:
    """The backend's *scores* (higher is better) and the keyword *evidence* as one sum.

    sum = (1 - weight) x (score - lowest) / spread + weight x evidence. *spread* is how far apart such scores usually
    lie, by default as far as the best and the worst of these.
    """
    low = min(scores, default=0.0)
    width = max(scores, default=0.0) - low if spread is None else spread
    return [
        (1.0 - weight) * ((score - low) / width if width else 0.0) + weight * keyword
        for score, keyword in zip(scores, evidence, strict=True)
    ]
