"""Lexical evidence: how well passages that were already found match the keywords of the query.

BM25 (Robertson and Zaragoza, 2009) over the candidates alone: document frequencies are taken from them, so no index
is needed and no call is made.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from math import log, sqrt
from operator import add, attrgetter
from typing import Final

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.fusion import Fused
from qtmiddleware.retrieval.responses import read_text
from qtmiddleware.types import Trace

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

WeightedKeywords = Sequence[tuple[str, float]]
"""The keywords of several queries, each with its weight."""
TermCounts = Sequence[tuple[Counter[str], int]]
"""Of each text how often each term stands in it, and how many words it has."""


def weigh_by_keywords(
    fused: Fused,
    collect_keywords: Callable[[], WeightedKeywords],
    options: KeywordEvidenceSettings,
    trace: Trace,
) -> Fused:
    """Returns *fused* with its leading candidates ordered by score and by keywords; unchanged where none has a text.

    *collect_keywords* is called only where there are texts to look for keywords in.
    """
    candidates, rest = fused.items[: options.candidates], fused.items[options.candidates :]
    if len(candidates) < 2:
        return fused
    texts = [read_text(it.item, options.text_field) for it in candidates]
    if not any(texts):
        trace.note("keyword_evidence", "no text in the metadata; order kept")
        return fused
    evidence = score_by_keywords(collect_keywords(), texts)
    if evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused
    numbers = [it.score for it in candidates]
    spread = max(numbers) - min(numbers) if fused.spread is None else fused.spread
    # What follows the candidates has no evidence, and no score above theirs: it stays behind them, in its order.
    scores = add_evidence(fused.scores, [*evidence, *(0.0 for _ in rest)], options.weight, spread)
    weighed = [replace(it, score=score) for it, score in zip(fused.items, scores, strict=True)]
    leading = sorted(weighed[: len(candidates)], key=attrgetter("score"), reverse=True)
    return Fused([*leading, *weighed[len(candidates) :]], fused.method)


def add_evidence(scores: Sequence[float], evidence: Sequence[float], weight: float, spread: float) -> list[float]:
    """Returns the backend's *scores* (higher is better) and the keyword *evidence* as one sum each.

    sum = (1 - weight) x (score - lowest) / spread + weight x evidence. *spread* is how far apart such scores usually
    lie; at 0 they tell nothing apart and have no say.
    """
    low = min(scores, default=0.0)
    return [
        (1.0 - weight) * ((score - low) / spread if spread else 0.0) + weight * keyword
        for score, keyword in zip(scores, evidence, strict=True)
    ]


def score_by_keywords(keywords: WeightedKeywords, texts: Sequence[str | None]) -> list[float] | None:
    """Returns how well each text holds several queries' keywords; ``None`` where no text holds any.

    evidence = sum over queries of weight x (BM25 - lowest) / (DEVIATIONS x standard deviation), divided by
    (sum of weight ** OVERLAP) ** (1 / OVERLAP) over the queries that any text matches. The worst text has 0, the best
    usually about 1, and more where the words single out a few.
    """
    queries = [(find_terms(words), weight) for words, weight in keywords if weight > 0]
    counted = count_terms(texts, frozenset[str]().union(*(terms for terms, _ in queries)))
    matching = [(scores, weight) for terms, weight in queries if (scores := score_bm25(terms, counted)) is not None]
    if not matching:
        return None
    largest = max(weight for _, weight in matching)
    shares = [weight / largest for _, weight in matching]
    whole = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    evidence = [0.0] * len(texts)
    for (scores, _), share in zip(matching, shares, strict=True):
        evidence = list(map(add, evidence, [share / whole * score for score in _normalize(scores)]))
    return evidence


def find_terms(keywords: str) -> frozenset[str]:
    """Returns the words of the *keywords* as they are compared."""
    return frozenset(map(strip_plural, _split_words(keywords)))


def count_terms(texts: Sequence[str | None], wanted: Set[str]) -> TermCounts:
    """Returns for each text how often each of the *wanted* terms stands in it, and how many words it has."""
    # A character of an unspaced script that is asked for alone stands in no list of pairs.
    single = {term for term in wanted if len(term) == 1 and _UNSPACED.match(term)}
    forms = {form: term for term in wanted - single for form in (term, term + "s") if strip_plural(form) == term}
    counted = []
    for text in texts:
        words = _split_words(text or "")
        counts = Counter([forms[word] for word in words if word in forms])
        counts.update({sign: count for sign in single if (count := (text or "").count(sign))})
        counted.append((counts, len(words)))
    return counted


def score_bm25(terms: Set[str], counted: TermCounts) -> list[float] | None:
    """Returns the BM25 score of each text for *terms*; ``None`` where no text holds any of them.

    score = sum over terms of idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length)), with
    idf = log(1 + (n - df + 0.5) / (df + 0.5)).
    """
    size = len(counted)
    frequencies = Counter(term for counts, _ in counted for term in counts if term in terms)
    if not frequencies:
        return None
    idf = {term: log(1.0 + (size - df + 0.5) / (df + 0.5)) for term, df in frequencies.items()}
    mean_length = sum(length for _, length in counted) / size
    return [
        sum(
            idf[term] * tf * (K1 + 1.0) / (tf + K1 * (1.0 - B + B * length / mean_length))
            for term, tf in counts.items()
            if term in idf
        )
        for counts, length in counted
    ]


def _split_words(text: str) -> list[str]:
    """The words of *text*, casefolded; of scripts without spaces, all pairs of neighbours."""
    text = unicodedata.normalize("NFKC", text).casefold()
    words: list[str] = _WORD.findall(text)
    if text.isascii() or not _UNSPACED.search(text):
        return words
    parts: list[str] = []
    for word in words:
        for run in _UNSPACED.findall(word):
            parts.extend(run[i : i + 2] for i in range(max(1, len(run) - 1)))
        parts.extend(_UNSPACED.sub(" ", word).split())
    return parts


def strip_plural(word: str) -> str:
    """Returns *word* without a plural's last letter, as far as that is safe in every language of the word lists.

    "dogs" meets "dog"; "bus" and "class" stay.
    """
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def _normalize(scores: Sequence[float]) -> list[float]:
    """*scores* over their lowest, in widths of `DEVIATIONS` standard deviations; zeros where all are the same."""
    low, high = min(scores), max(scores)
    # What differs by rounding alone is the same.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    mean = sum(scores) / len(scores)
    width = DEVIATIONS * sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
    return [(score - low) / width for score in scores]
