"""Score texts with BM25 by the words of a question, without an index.

Document frequencies are counted in the scored texts only. Sources: Robertson and Zaragoza (2009)
for BM25; Metzler and Croft (2005) for pairs of neighbouring words as additional terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from math import log
from typing import Final, NamedTuple, TypeVar

from qtmiddleware.preprocessing.text import split_terms

K1: Final = 1.2
B: Final = 0.75
# Measured from the worst score, the best match of a query usually scores about MEANS times the
# mean. It scores more if the words occur in few passages, and less if they occur in most. No
# passage gets more evidence than MOST.
MEANS: Final = 5.0
MOST: Final = 1.4
# The weight of a pair of neighbours, compared with a single term.
PAIR: Final = 0.5

# At most this many bytes of all texts together are read. If they are longer, each text above its
# equal share is read in excerpts, spread evenly from beginning to end.
MOST_READ: Final = 800_000
WINDOWS: Final = 8

Pair = tuple[str, str]
"""Two neighbouring words."""
_Term = TypeVar("_Term", str, Pair)

Gains = list[tuple[int, float]]
"""(index of the text, amount to add to its score) for each text that contains a term or pair."""


class TextTerms(NamedTuple):
    """The terms of one text.

    Attributes:
        counts: How often each term occurs in the text.
        length: The length of the text, in words or in characters. All texts use the same unit.
        pairs: The pairs of terms that are neighbours in the text.
    """

    counts: Mapping[str, int]
    length: int
    pairs: Set[Pair] = frozenset()


def find_terms(text: str) -> frozenset[str]:
    """Return the distinct words of *text*, folded and without a plural s."""
    return frozenset(map(strip_plural, split_terms(text)))


def compute_term_gains(text_terms: Sequence[TextTerms]) -> dict[str, Gains]:
    """Return how much each term adds to the BM25 score of each text that contains it.

    gain = idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length))

    - tf is how often the text contains the term.
    - idf comes from `compute_idf`, and the mean length from all texts.
    - `K1` limits the gain of a term that occurs often. `B` lowers the gain in long texts.
    """
    text_count = len(text_terms)
    idf = compute_idf(Counter([term for text in text_terms for term in text.counts]), text_count)
    mean_length = sum(text.length for text in text_terms) / text_count if text_count else 0.0
    gains: dict[str, Gains] = {term: [] for term in idf}
    for place, (counts, length, _) in enumerate(text_terms):
        damping = K1 * (1.0 - B + B * length / mean_length) if counts else 0.0
        for term, tf in counts.items():
            gains[term].append((place, idf[term] * tf * (K1 + 1.0) / (tf + damping)))
    return gains


def compute_pair_gains(text_terms: Sequence[TextTerms]) -> dict[Pair, Gains]:
    """Return how much each pair adds to the score of each text that contains it.

    The gain is the pair's idf (see `compute_idf`) times `PAIR`, the weight of a pair compared with
    a single term.
    """
    idf = compute_idf(
        Counter([pair for text in text_terms for pair in text.pairs]), len(text_terms)
    )
    gains: dict[Pair, Gains] = {pair: [] for pair in idf}
    for place, text in enumerate(text_terms):
        for pair in text.pairs:
            gains[pair].append((place, PAIR * idf[pair]))
    return gains


def sum_gains(terms: Iterable[_Term], gains: Mapping[_Term, Gains], text_count: int) -> list[float]:
    """Return the sum of the *gains* of *terms*, words or pairs of words, for each text."""
    sums = [0.0] * text_count
    for term in terms:
        for place, gain in gains.get(term, ()):
            sums[place] += gain
    return sums


def compute_idf(document_frequencies: Mapping[_Term, int], text_count: int) -> dict[_Term, float]:
    """Return the idf (inverse document frequency) of each term; rare terms have a high idf.

    idf = log(1 + (text_count - df + 0.5) / (df + 0.5)), where df is the number of texts that
    contain the term. *document_frequencies* maps each term to its df.
    """
    return {
        term: log(1.0 + (text_count - df + 0.5) / (df + 0.5))
        for term, df in document_frequencies.items()
    }


def shorten_texts(texts: Sequence[str]) -> Sequence[str]:
    """Return *texts*; of long ones spread excerpts, so that all have about `MOST_READ` bytes."""
    # A character has at most four bytes, so short texts need not be encoded to be measured.
    if 4 * sum(map(len, texts)) <= MOST_READ:
        return texts
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    if sum(sizes) <= MOST_READ:
        return texts
    share = MOST_READ // len(texts)
    return [
        text
        if size <= share
        else " ".join(_cut_excerpts(text, share * len(text) // (size * WINDOWS)))
        for text, size in zip(texts, sizes, strict=True)
    ]


def _cut_excerpts(text: str, excerpt_chars: int) -> list[str]:
    """Return `WINDOWS` evenly spread excerpts of *text*, each with *excerpt_chars* characters."""
    starts = [(len(text) - excerpt_chars) * window // (WINDOWS - 1) for window in range(WINDOWS)]
    return [text[start : start + excerpt_chars] for start in starts]


def strip_plural(word: str) -> str:
    """Return *word* without a plural s, where that is safe in every supported language."""
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def normalise_scores(scores: Sequence[float]) -> list[float]:
    """Scale *scores* so that lists with different ranges can be compared.

    result = min(`MOST`, (score - lowest) / (`MEANS` x (mean - lowest)))

    - lowest and mean are taken over all *scores*. If all scores are equal, every result is 0.
    - `MEANS` is chosen so that the best score usually becomes about 1.
    - `MOST` is the largest result.
    """
    low, high = min(scores), max(scores)
    # Scores that differ only by rounding are equal.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    width = MEANS * (sum(scores) / len(scores) - low)
    return [min(MOST, (score - low) / width) for score in scores]
