"""Score texts with BM25 by the words of a question, without an index.

Document frequencies are counted in the scored texts only. Sources: Robertson and Zaragoza (2009)
for BM25; Metzler and Croft (2005) for pairs of neighbouring words as additional terms.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from itertools import pairwise
from math import log
from typing import Final, NamedTuple, TypeVar

K1: Final = 1.2
B: Final = 0.75
# Measured from the worst score, the best match of a query usually scores about MEANS times the
# mean. It scores more if the words occur in few passages, and less if they occur in most. No
# passage gets more evidence than MOST.
MEANS: Final = 5.0
MOST: Final = 1.4
# The weight of a pair of neighbours, compared with a single term, and the number of characters of a
# long text in which pairs are searched.
PAIR: Final = 0.5
_READ: Final = 8_000

# At most this many bytes of all texts together are read. If they are longer, each text above its
# equal share is read in excerpts, spread evenly from beginning to end.
MOST_READ: Final = 800_000
WINDOWS: Final = 8
# Maps ASCII bytes to lower case, and to a space if they belong to no word. Other bytes stay.
_SPACED: Final = bytes(
    c if c > 127 else ord(chr(c).lower()) if chr(c).isalnum() or c == 95 else 32 for c in range(256)
)


class _Patterns(NamedTuple):
    """Regular expressions that find words in texts with characters outside ASCII.

    Attributes:
        word: Matches a word.
        unspaced: Matches a run of characters in a script that does not separate words with spaces,
            such as Chinese.
        runs: The pattern of `unspaced` in a capturing group, so that ``re.split`` keeps the runs.
        punctuation: Matches the UTF-8 bytes of a punctuation mark or symbol outside ASCII.
    """

    word: re.Pattern[str]
    unspaced: re.Pattern[str]
    runs: re.Pattern[str]
    punctuation: re.Pattern[bytes]


@cache
def compile_patterns() -> _Patterns:
    """Return the patterns that find words. The first call compiles them."""
    # Vowel signs and other marks belong to their word, though \w does not match them.
    marks = "".join(
        sign for sign in map(chr, range(0x300, 0x1A00)) if unicodedata.category(sign)[0] == "M"
    )
    word = re.compile(rf"[\w{marks}]+")
    unspaced = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
    signs = [
        sign.encode()
        for sign in map(chr, (*range(0xA0, 0xC0), *range(0x2000, 0x2070)))
        if not word.search(unicodedata.normalize("NFKC", sign).casefold())
    ]
    return _Patterns(
        word, re.compile(unspaced), re.compile(f"({unspaced})"), re.compile(b"|".join(signs))
    )


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


def find_terms(keywords: str) -> frozenset[str]:
    """Return the distinct words of *keywords*, in lower case and without a plural s."""
    return frozenset(map(strip_plural, set(_split_words(keywords))))


def list_terms_and_pairs(keywords: str) -> tuple[Sequence[str], Sequence[Pair]]:
    """Return two lists: the terms of *keywords*, and the pairs of neighbouring terms.

    Both lists keep the order of *keywords* and contain no repeats.
    """
    terms = list(map(strip_plural, _split_words(keywords)))
    return list(dict.fromkeys(terms)), list(dict.fromkeys(pairwise(terms)))


def count_terms(
    texts: Sequence[str | None], query_terms: Set[str], query_pairs: frozenset[Pair] = frozenset()
) -> list[TextTerms]:
    """Count the *query_terms* in each text, and find the *query_pairs* that occur in each text.

    To save time, only excerpts of long texts are read (`MOST_READ`), and pairs are searched only in
    the first `_READ` characters of a text.
    """
    forms = {
        form: term
        for term in query_terms
        for form in (term, term + "s")
        if strip_plural(form) == term
    }
    ascii_forms = {form.encode(): term for form, term in forms.items() if form.isascii()}
    # Terms of scripts without spaces are pairs of characters. A keyword of one character is in no
    # pair, so it is a term itself.
    unspaced = {
        form
        for form in forms
        if len(form) <= 2 and not form.isascii() and compile_patterns().unspaced.fullmatch(form)
    }
    full_texts = [text or "" for text in texts]
    text_terms = []
    for text, window in zip(full_texts, shorten_texts(full_texts), strict=True):
        runs: Sequence[str] = ()
        plain = window.encode("utf-8", "surrogatepass")
        if not window.isascii():
            plain = compile_patterns().punctuation.sub(b" ", plain)
        if plain.isascii():
            # Splitting bytes is several times as fast as finding words by a pattern.
            words = plain.translate(_SPACED).split()
            places = [
                (place, ascii_forms[word])
                for place, word in enumerate(words)
                if word in ascii_forms
            ]
            length = len(words)
        else:
            spaced, runs = _split_words_and_unspaced_runs(window)
            places = [(place, forms[word]) for place, word in enumerate(spaced) if word in forms]
            length = len(spaced) + sum(max(1, len(run) - 1) for run in runs)
        counts: dict[str, int] = {}
        neighbours: list[Pair] = []
        previous_place, previous_term = -2, ""
        for place, term in places:
            counts[term] = counts.get(term, 0) + 1
            if place == previous_place + 1:
                neighbours.append((previous_term, term))
            previous_place, previous_term = place, term
        if runs and unspaced:
            joined = " ".join(runs)
            counts.update(
                {
                    form: count
                    for form in unspaced
                    if (count := _count_overlapping_matches(joined, form))
                }
            )
        if runs or window is not text or len(text) > _READ:
            pairs = _find_pairs_at_beginning(text, forms, counts, query_pairs)
        else:
            pairs = query_pairs.intersection(neighbours) if neighbours else frozenset()
        text_terms.append(TextTerms(counts, length, pairs))
    return text_terms


def _find_pairs_at_beginning(
    text: str,
    terms_by_form: Mapping[str, str],
    term_counts: Mapping[str, int],
    query_pairs: Set[Pair],
) -> Set[Pair]:
    """Return the *query_pairs* that occur in the first `_READ` characters of *text*.

    Args:
        text: The text to search.
        terms_by_form: Maps each form of a word to its term.
        term_counts: How often each term occurs in the text. The text is read only if it contains
            both terms of some pair.
        query_pairs: The pairs to search for.
    """
    if not any(term in term_counts and next_term in term_counts for term, next_term in query_pairs):
        return frozenset()
    return query_pairs & set(pairwise(map(terms_by_form.get, _split_words(text[:_READ]))))


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
    """Return the sum of the *gains* of *terms* for each text.

    *terms* may be words or pairs of words. The sum is 0 for a text without any of *terms*, and
    positive for any other text.
    """
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
    """Return *texts*, shortened to about `MOST_READ` bytes together.

    If the texts have fewer bytes, they are returned unchanged. Otherwise, each text may keep an
    equal part of `MOST_READ`. A longer text is replaced by excerpts that are evenly spread over the
    text.
    """
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


def _split_words(text: str) -> list[str]:
    """Return the words of *text* in lower case.

    In a script that does not separate words with spaces, every two adjacent characters are a word.
    """
    words, runs = _split_words_and_unspaced_runs(text)
    return words + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def _split_words_and_unspaced_runs(text: str) -> tuple[list[str], list[str]]:
    """Return two lists: the words of *text* in lower case, and its runs of unspaced characters.

    Unspaced characters are the characters of scripts without spaces between words, such as Chinese.
    """
    if text.isascii():
        return text.encode().translate(_SPACED).decode().split(), []
    word, unspaced, *_ = compile_patterns()
    words: list[str] = word.findall(unicodedata.normalize("NFKC", text).casefold())
    if not unspaced.search(text := " ".join(words)):
        return words, []
    return unspaced.sub(" ", text).split(), unspaced.findall(text)


def _count_overlapping_matches(text: str, characters: str) -> int:
    """Return how often *characters*, a string of one or two characters, occurs in *text*.

    Overlapping occurrences are counted: ``哈哈`` occurs twice in ``哈哈哈``.
    """
    if len(characters) == 2 and characters[0] == characters[1]:
        text = text.replace(characters[0], f"{characters[0]} {characters[0]}")
    return text.count(characters)


def strip_plural(word: str) -> str:
    """Return *word* without a plural s: ``dogs`` becomes ``dog``, ``bus`` and ``class`` stay.

    The s is removed only if that is safe in every supported language.
    """
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
