"""BM25 over the candidates alone: how often words stand in their texts, and what each of them is worth.

Source: Robertson and Zaragoza (2009), with pairs of neighbouring words as further terms (Metzler
and Croft, 2005). Frequencies are taken from the candidates, so no index is needed and no call is
made.
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
# The best match of a query usually scores about five times as much over the worst one as the mean
# does, more where the words single out a few passages, and less where most hold them alike; no
# passage has more evidence than so much.
MEANS: Final = 5.0
MOST: Final = 1.4
# What a pair of neighbours counts beside a single term, and in how many characters of a text it is
# looked for.
PAIR: Final = 0.5
_READ: Final = 8_000

# So many bytes are read of all texts of a question. Where they have more, those longer than their
# equal share are read in windows, evenly spread from beginning to end.
MOST_READ: Final = 800_000
WINDOWS: Final = 8
# Bytes of ASCII to lower case, and to a space what belongs to no word; those of other characters
# stay.
_SPACED: Final = bytes(
    c if c > 127 else ord(chr(c).lower()) if chr(c).isalnum() or c == 95 else 32 for c in range(256)
)


class _Patterns(NamedTuple):
    """How the words of a text are found that is not ASCII alone.

    *unspaced* finds what is written without spaces: there a "word" is every pair of neighbouring
    characters, and *runs* splits it off. *punctuation* finds what belongs to no word, in UTF-8:
    most English texts have no other sign that is not ASCII.
    """

    word: re.Pattern[str]
    unspaced: re.Pattern[str]
    runs: re.Pattern[str]
    punctuation: re.Pattern[bytes]


@cache
def compile_patterns() -> _Patterns:
    """Return the patterns, compiled once."""
    # Vowel signs and other marks, which \w leaves out, belong to their word.
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
"""What something adds to the score of each text that it is in, by the place of the text."""


class TextTerms(NamedTuple):
    """What one text holds: how often each term, how many words in all, and which pairs of terms side by side."""

    counts: Mapping[str, int]
    length: int
    pairs: Set[Pair] = frozenset()


def find_terms(keywords: str) -> frozenset[str]:
    """Returns the words of the *keywords* as they are compared."""
    return frozenset(map(strip_plural, set(_split_words(keywords))))


def read_keywords(keywords: str) -> tuple[Sequence[str], Sequence[Pair]]:
    """The words of the *keywords* as they are compared, and each two that stand side by side; each once, in order."""
    terms = list(map(strip_plural, _split_words(keywords)))
    return list(dict.fromkeys(terms)), list(dict.fromkeys(pairwise(terms)))


def count_terms(
    texts: Sequence[str | None], wanted: Set[str], wanted_pairs: frozenset[Pair] = frozenset()
) -> list[TextTerms]:
    """Returns for each text how often it holds each of the *wanted* terms, and which of the *wanted_pairs* it holds.

    Each text is read once. Of long ones, as by `MOST_READ`, counts and length are those of parts,
    so that time does not grow with length, and pairs are looked for at the beginning.
    """
    forms = {
        form: term for term in wanted for form in (term, term + "s") if strip_plural(form) == term
    }
    ascii_forms = {form.encode(): term for form, term in forms.items() if form.isascii()}
    # A pair of such characters, or one that is asked for alone and stands in no list of pairs.
    unspaced = {
        form
        for form in forms
        if len(form) <= 2 and not form.isascii() and compile_patterns().unspaced.fullmatch(form)
    }
    whole = [text or "" for text in texts]
    counted = []
    for text, part in zip(whole, read_windows(whole), strict=True):
        runs: Sequence[str] = ()
        plain = part.encode("utf-8", "surrogatepass")
        if not part.isascii():
            plain = compile_patterns().punctuation.sub(b" ", plain)
        if plain.isascii():
            # Bytes are split several times as fast as a pattern finds words.
            words = plain.translate(_SPACED).split()
            places = [
                (place, ascii_forms[word])
                for place, word in enumerate(words)
                if word in ascii_forms
            ]
            length = len(words)
        else:
            spaced, runs = _split_others(part)
            places = [(place, forms[word]) for place, word in enumerate(spaced) if word in forms]
            length = len(spaced) + sum(max(1, len(run) - 1) for run in runs)
        counts: dict[str, int] = {}
        neighbours: list[Pair] = []
        before, previous = -2, ""
        for place, term in places:
            counts[term] = counts.get(term, 0) + 1
            if place == before + 1:
                neighbours.append((previous, term))
            before, previous = place, term
        if runs and unspaced:
            joined = " ".join(runs)
            counts.update(
                {form: count for form in unspaced if (count := _count_in_runs(joined, form))}
            )
        if runs or part is not text or len(text) > _READ:
            pairs = _find_pairs_at_beginning(text, forms, counts, wanted_pairs)
        else:
            pairs = wanted_pairs.intersection(neighbours) if neighbours else frozenset()
        counted.append(TextTerms(counts, length, pairs))
    return counted


def _find_pairs_at_beginning(
    text: str, forms: Mapping[str, str], counts: Mapping[str, int], wanted: Set[Pair]
) -> Set[Pair]:
    """Which of the *wanted* pairs the beginning of *text* holds, which is read only if both words were counted."""
    if not any(one in counts and other in counts for one, other in wanted):
        return frozenset()
    return wanted & set(pairwise(map(forms.get, _split_words(text[:_READ]))))


def weigh_terms(counted: Sequence[TextTerms]) -> dict[str, Gains]:
    """Returns what each term adds to the BM25 scores of the texts that hold it.

    gain = idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length)), with
    idf = log(1 + (n - df + 0.5) / (df + 0.5)).
    """
    size = len(counted)
    idf = weigh_by_rarity(Counter([term for text in counted for term in text.counts]), size)
    mean_length = sum(text.length for text in counted) / size if size else 0.0
    gains: dict[str, Gains] = {term: [] for term in idf}
    for place, (counts, length, _) in enumerate(counted):
        damping = K1 * (1.0 - B + B * length / mean_length) if counts else 0.0
        for term, tf in counts.items():
            gains[term].append((place, idf[term] * tf * (K1 + 1.0) / (tf + damping)))
    return gains


def weigh_pairs(counted: Sequence[TextTerms]) -> dict[Pair, Gains]:
    """Returns what each pair adds to the scores of the texts that hold it: `PAIR` x idf."""
    idf = weigh_by_rarity(Counter([pair for text in counted for pair in text.pairs]), len(counted))
    gains: dict[Pair, Gains] = {pair: [] for pair in idf}
    for place, text in enumerate(counted):
        for pair in text.pairs:
            gains[pair].append((place, PAIR * idf[pair]))
    return gains


def sum_gains(terms: Iterable[_Term], gains: Mapping[_Term, Gains], size: int) -> list[float]:
    """Returns for each of *size* texts the sum of its *gains* from these *terms* or pairs, above 0 if it holds any."""
    sums = [0.0] * size
    for term in terms:
        for place, gain in gains.get(term, ()):
            sums[place] += gain
    return sums


def weigh_by_rarity(frequencies: Mapping[_Term, int], size: int) -> dict[_Term, float]:
    """The idf of each term that stands in so many of *size* texts: log(1 + (size - df + 0.5) / (df + 0.5))."""
    return {term: log(1.0 + (size - df + 0.5) / (df + 0.5)) for term, df in frequencies.items()}


def read_windows(texts: Sequence[str]) -> Sequence[str]:
    """What is read of *texts*: all of them where they are not too long together, else parts of the long ones."""
    if 4 * sum(map(len, texts)) <= MOST_READ:
        return texts
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    if sum(sizes) <= MOST_READ:
        return texts
    share = MOST_READ // len(texts)
    return [
        text
        if size <= share
        else " ".join(_cut_windows(text, share * len(text) // (size * WINDOWS)))
        for text, size in zip(texts, sizes, strict=True)
    ]


def _cut_windows(text: str, width: int) -> list[str]:
    """`WINDOWS` parts of *text*, each of *width* characters."""
    starts = [(len(text) - width) * window // (WINDOWS - 1) for window in range(WINDOWS)]
    return [text[start : start + width] for start in starts]


def _split_words(text: str) -> list[str]:
    """The words of *text*, casefolded; of scripts without spaces, all pairs of neighbours."""
    words, runs = _split_others(text)
    return words + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def _split_others(text: str) -> tuple[list[str], list[str]]:
    """The words of *text*, casefolded, and apart from them its runs of scripts without spaces."""
    if text.isascii():
        return text.encode().translate(_SPACED).decode().split(), []
    word, unspaced, *_ = compile_patterns()
    words: list[str] = word.findall(unicodedata.normalize("NFKC", text).casefold())
    if not unspaced.search(text := " ".join(words)):
        return words, []
    return unspaced.sub(" ", text).split(), unspaced.findall(text)


def _count_in_runs(runs: str, form: str) -> int:
    """How often *form*, one or two characters, stands in *runs*; the same one twice may overlap."""
    if len(form) == 2 and form[0] == form[1]:
        runs = runs.replace(form[0], f"{form[0]} {form[0]}")
    return runs.count(form)


def strip_plural(word: str) -> str:
    """Returns *word* without a plural's last letter, as far as that is safe in every language of the word lists.

    "dogs" meets "dog"; "bus" and "class" stay.
    """
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def normalise(scores: Sequence[float]) -> list[float]:
    """Return *scores* over their lowest, in `MEANS` times the mean of that, at most `MOST`; zeros if all are equal."""
    low, high = min(scores), max(scores)
    # What differs by rounding alone is the same.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    width = MEANS * (sum(scores) / len(scores) - low)
    return [min(MOST, (score - low) / width) for score in scores]
