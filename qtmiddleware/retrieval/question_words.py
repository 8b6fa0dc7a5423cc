"""Measure the evidence of a question's own words in the passages of one list.

There are three kinds of evidence. Each is a number from 0 to about 1, and all have the same weight:

========  =======================================================================================
``bm25``  BM25 over all keywords; forms of a word are one term.
``near``  The share of the question's neighbouring content words that stand within `WINDOW` words
          of each other.
``head``  The share of the content words, weighted by rarity, that the first line or the first
          `HEAD_CHARS` characters hold.
========  =======================================================================================

Words count only if a passage holds clearly more of the question's content words than the function's
own first passage does (`keyword_evidence.measure_strength`). `python -m benchmarks.evidence`
repeats the choice of the constants.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from operator import add
from typing import Final, NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.preprocessing.lexicon import load
from qtmiddleware.preprocessing.text import fold_accents
from qtmiddleware.retrieval.bm25 import (
    Pair,
    TextTerms,
    compile_patterns,
    normalise_scores,
    shorten_texts,
    strip_plural,
    sum_gains,
    weigh_by_rarity,
    weigh_pairs,
    weigh_terms,
)

WEIGHT: Final = 0.7
"""The factor on each kind of evidence at full strength, in spreads of the function's scores."""
LEAST_LEAD: Final = 0.1
"""A passage holds clearly more of the question's words if its share is this much larger."""
FULL_LEAD: Final = 0.3
"""With a lead of this share of the question's words, words have their full strength."""
WHOLE: Final = 0.2
"""The factor on the strength if the list is a whole collection.

The tail of a whole collection is far away, which makes every lead look small.
"""
HALF: Final = 0.5
"""The largest share held by the first passage with which a whole collection gets full strength.

Another passage must hold all the words.
"""
LEADING: Final = 3
"""How many of the first passages are taken together to see which words they hold."""
HEAD_CHARS: Final = 120
"""How many characters of a text are its head, if its first line is longer."""
WINDOW: Final = 3
"""Two words are near each other with fewer than this many words between them."""
# Two words with more characters between them are not near each other, whatever is between.
_MOST_BETWEEN: Final = 60
# At least this many letters of a word stay when its ending is taken off.
_LEAST_STEM: Final = 3
_VOWELS: Final = frozenset("aeiouy")


def _build_folding_table() -> bytes:
    """Return a table that folds the bytes of Windows-1252 (Western Europe).

    Letters become lower case without accents. Bytes that belong to no word become a space.
    """
    table = bytearray(b" " * 256)
    for code in range(256):
        folded = fold_accents(
            unicodedata.normalize("NFKC", bytes([code]).decode("cp1252", "ignore"))
        )
        if len(folded) == 1 and ord(folded) < 256 and (folded.isalnum() or folded == "_"):
            table[code] = ord(folded)
    return bytes(table)


_folding_table: Final = cache(_build_folding_table)
# The table maps byte to byte, so it cannot fold œ (here in both cases), which Latin 1 lacks, nor ß,
# which becomes two letters.
_LIGATURES: Final = (b"\x8c", b"\x9c")
_SHARP_S: Final = b"\xdf"


class WordRules(NamedTuple):
    """The rules for the words of one language.

    Attributes:
        function_words: The words that say nothing about the topic, folded.
        endings: The endings of word forms, the longest first.
    """

    function_words: Set[str] = frozenset()
    endings: tuple[str, ...] = ()


class QuestionWords(NamedTuple):
    """The words of a question, in order and without repeats.

    Attributes:
        terms: The stems of all words.
        pairs: The pairs of neighbouring terms.
        content: The terms of content words, which are all words except function words.
        neighbours: The pairs of neighbouring content words.
    """

    terms: Sequence[str]
    pairs: Sequence[Pair]
    content: Sequence[str]
    neighbours: Sequence[Pair]


_Place = tuple[int, int]
"""Where a word begins and ends."""


class FoundWords(NamedTuple):
    """The places of a question's words in several texts.

    Attributes:
        joined: The folded texts, one after the other.
        begins: Where each text begins in *joined*, with one more entry for the end.
        lengths: How many characters each folded text has.
        head_ends: Where the head of each text ends in *joined*.
        places: For each text, the places of each term in *joined*.
    """

    joined: str
    begins: Sequence[int]
    lengths: Sequence[int]
    head_ends: Sequence[int]
    places: Sequence[Mapping[str, Sequence[_Place]]]


@cache
def load_word_rules(language: str) -> WordRules:
    """Return the word rules of *language*; empty rules if the language has no word list."""
    if language not in LANGUAGES:
        return WordRules()
    lexicon = load(language)
    words = lexicon.stop.union(
        lexicon.negations, lexicon.pronouns, lexicon.conjunctions, lexicon.function_words
    )
    folded = {
        form
        for word in map(fold_accents, words)
        for form in (word, *word.split("'"), word.replace("'", ""))
    }
    return WordRules(frozenset(folded), tuple(sorted(lexicon.endings, key=len, reverse=True)))


@lru_cache(maxsize=20_000)
def find_stem(word: str, endings: tuple[str, ...]) -> str:
    """Return the stem of the folded *word*, which is the word without its ending.

    - ``renewal`` becomes ``renew``. A stem is always the beginning of its word.
    - A stem has at least three letters, one of them a vowel: ``illness`` becomes ``ill``. Before an
      ending of one letter, it has at least four.
    - A doubled last letter becomes single: ``running`` becomes ``run``.
    """
    if len(word) <= _LEAST_STEM or not word.isalpha():
        return strip_plural(word)
    for ending in endings:
        stem = word[: -len(ending)]
        if (
            not word.endswith(ending)
            or len(stem) < _LEAST_STEM + (len(ending) == 1)
            or _VOWELS.isdisjoint(stem)
        ):
            continue
        if (ending[0] == "e" and stem[-1] == "e") or (ending == "s" and stem[-1] in "su"):
            continue
        is_doubled = len(stem) > _LEAST_STEM and stem[-1] == stem[-2] and stem[-1] not in "sz"
        return stem[:-1] if is_doubled else stem
    return strip_plural(word)


def read_question(keywords: str, rules: WordRules) -> QuestionWords:
    """Return the words of a question's *keywords*.

    If all keywords are function words, all count as content words.
    """
    words = _split_words(keywords)
    terms = [find_stem(word, rules.endings) for word in words]
    content = [
        term
        for word, term in zip(words, terms, strict=True)
        if word not in rules.function_words
        and (len(word) > 1 or not word.isascii() or word.isdigit())
    ] or terms
    return QuestionWords(
        terms=list(dict.fromkeys(terms)),
        pairs=list(dict.fromkeys(pairwise(terms))),
        content=list(dict.fromkeys(content)),
        neighbours=[pair for pair in dict.fromkeys(pairwise(content)) if pair[0] != pair[1]],
    )


def find_words(
    question: QuestionWords, texts: Sequence[str | None], rules: WordRules
) -> FoundWords:
    """Return the places of the words of *question* in the *texts*.

    The texts are folded, joined and searched for the beginnings of the terms, which is faster than
    splitting them into words. Only parts of long texts are read (see `MOST_READ`). Lengths are
    those of the folded texts.
    """
    folded = [_fold_text(text) for text in shorten_texts([text or "" for text in texts])]
    lengths = list(map(len, folded))
    begins = list(accumulate([length + 2 for length in lengths], initial=1))
    joined = f" {'  '.join(folded)} "
    first_line_ends = [(text or "").find("\n", 1, HEAD_CHARS) for text in texts]
    head_ends = [
        begin + (HEAD_CHARS if line_end < 0 else line_end)
        for begin, line_end in zip(begins, first_line_ends, strict=False)
    ]
    places = _find_places(question.terms, joined, begins[1:], rules.endings)
    return FoundWords(joined, begins, lengths, head_ends, places)


def _find_places(
    terms: Sequence[str], joined: str, ends: Sequence[int], endings: tuple[str, ...]
) -> list[dict[str, list[_Place]]]:
    """Return for each text the places in *joined* of every form of the *terms*.

    *ends* holds for each text the offset in *joined* at which the text has ended.
    """
    all_terms, find = frozenset(terms), joined.find
    places_by_text: list[dict[str, list[_Place]]] = [{} for _ in ends]
    forms: dict[str, str | None] = {}
    for term in terms:
        is_spaced = _is_spaced(term)
        # Every form of a term begins with the term. A very short term has no other forms.
        beginning = (
            term if not is_spaced else f" {term}" if len(term) >= _LEAST_STEM else f" {term} "
        )
        at, text, places = find(beginning), -1, list[_Place]()
        while at >= 0:
            start = at + is_spaced
            # In a script without spaces pairs of characters overlap: the next pair may begin at the
            # second character of this one.
            end = find(" ", start + 1) if is_spaced else start + 1
            if is_spaced:
                word = joined[start:end]
                if word not in forms:
                    stem = find_stem(word, endings)
                    forms[word] = stem if stem in all_terms else None
            # Two terms may begin alike: each takes only its own forms.
            if not is_spaced or forms[word] == term:
                if text < 0 or start >= ends[text]:
                    text = bisect_right(ends, start)
                    places = places_by_text[text][term] = []
                places.append((start, end))
            at = find(beginning, end)
    return places_by_text


def _is_near(
    joined: str, places: Mapping[str, Sequence[_Place]], pair: Pair, window: int = WINDOW
) -> bool:
    """Return whether the second word of *pair* follows the first one closely in a text.

    Fewer than *window* words may be between them. *places* holds the text's terms with their places
    in *joined*.
    """
    firsts, seconds = places.get(pair[0]), places.get(pair[1])
    if firsts is None or seconds is None:
        return False
    at = 0
    for start, _ in seconds:
        while at + 1 < len(firsts) and firsts[at + 1][1] <= start:
            at += 1
        gap = start - firsts[at][1]
        # A gap of one character is the space before the word.
        if 0 <= gap <= 1 or (
            1 < gap <= _MOST_BETWEEN and len(joined[start - gap : start].split()) < window
        ):
            return True
    return False


def _is_spaced(term: str) -> bool:
    """Return whether *term* belongs to a script that puts spaces between words."""
    return term.isascii() or len(term) > 2 or not compile_patterns().unspaced.fullmatch(term)


def _fold_text(text: str) -> str:
    """Return *text* in lower case without accents.

    Characters that belong to no word become spaces.
    """
    if text.isascii():
        return text.encode().translate(_folding_table()).decode()
    try:
        raw = text.encode("cp1252")
    except UnicodeEncodeError:
        # Most texts with a sign such as a narrow space have only letters of Windows-1252.
        plain = compile_patterns().punctuation.sub(b" ", text.encode("utf-8", "surrogatepass"))
        try:
            raw = plain.decode("utf-8", "surrogatepass").encode("cp1252")
        except UnicodeEncodeError:
            raw = b""
    if raw and not any(ligature in raw for ligature in _LIGATURES):
        return raw.replace(_SHARP_S, b"ss").translate(_folding_table()).decode("latin-1")
    return " ".join(
        compile_patterns().word.findall(fold_accents(unicodedata.normalize("NFKC", text)))
    )


def _split_words(text: str) -> list[str]:
    """Return the folded words of *text* in order.

    In scripts without spaces, every pair of neighbouring characters is a word.
    """
    patterns, words = compile_patterns(), list[str]()
    for word in _fold_text(text).split():
        if word.isascii() or not patterns.unspaced.search(word):
            words.append(word)
            continue
        for piece in filter(None, patterns.runs.split(word)):
            if patterns.unspaced.match(piece):
                words += [piece[at : at + 2] for at in range(max(1, len(piece) - 1))]
            else:
                words.append(piece)
    return words


def find_held_words(keywords: str, text: str, language: str = "") -> tuple[str, ...]:
    """Return the words of *keywords* that *text* holds in any form, in order, without repeats."""
    rules = load_word_rules(language)
    held_terms = find_words(read_question(keywords, rules), [text], rules).places[0]
    words = _split_words(keywords)
    terms = [find_stem(word, rules.endings) for word in words]
    return tuple(words[terms.index(term)] for term in dict.fromkeys(terms) if term in held_terms)


def locate_words(keywords: str, text: str, language: str = "") -> list[tuple[int, int]]:
    """Return the (begin, end) offsets in *text* of all words that are a form of any of *keywords*.

    The offsets are in order and do not overlap.
    """
    endings = load_word_rules(language).endings
    terms = {find_stem(word, endings) for word in _split_words(keywords)}
    spans: list[tuple[int, int]] = []
    patterns = compile_patterns()
    for word in patterns.word.finditer(text):
        start = word.start()
        for piece in patterns.runs.split(word.group()):
            # In scripts without spaces each pair of neighbouring characters is a word, as in
            # `_split_words`.
            size = 2 if patterns.unspaced.match(piece) else len(piece)
            for place in range(start, start + max(1, len(piece) - size + 1) if piece else start):
                if not terms.isdisjoint(
                    find_stem(part, endings) for part in _split_words(text[place : place + size])
                ):
                    begins = spans.pop()[0] if spans and spans[-1][1] > place else place
                    spans.append((begins, min(place + size, start + len(piece))))
            start += len(piece)
    return spans


def measure_coverage(question: QuestionWords, found_words: FoundWords) -> list[float]:
    """Return the share of the question's content words that each text holds, from 0 to 1."""
    content = frozenset(question.content)
    return [len(content & places.keys()) / len(content) for places in found_words.places]


def measure_joint_coverage(question: QuestionWords, found_words: FoundWords) -> float:
    """Return the share of the content words that the first `LEADING` texts together hold."""
    content = frozenset(question.content)
    return len(content & frozenset().union(*found_words.places[:LEADING])) / len(content)


class Kinds(NamedTuple):
    """The three kinds of evidence, each with a number from 0 to about 1 for every text.

    The docstring of this module describes the kinds.
    """

    bm25: Sequence[float]
    near: Sequence[float]
    head: Sequence[float]


def measure_kinds(question: QuestionWords, found_words: FoundWords) -> Kinds:
    """Return the three kinds of evidence for every text."""
    text_terms = [
        TextTerms(
            {term: len(places) for term, places in text_places.items()},
            length,
            _find_neighbours(question, found_words, text_places),
        )
        for length, text_places in zip(found_words.lengths, found_words.places, strict=True)
    ]
    size = len(text_terms)
    terms = sum_gains(question.terms, weigh_terms(text_terms), size)
    bm25 = normalise_scores(
        list(map(add, terms, sum_gains(question.pairs, weigh_pairs(text_terms), size)))
    )
    content = frozenset(question.content)
    holders = Counter(
        [term for text_places in found_words.places for term in content & text_places.keys()]
    )
    # Words that no text holds count as the rarest, so every head lacks their large share.
    rarity = weigh_by_rarity({term: holders[term] for term in content}, size)
    total_rarity = sum(rarity.values())
    near, head = [], []
    for text_places, end in zip(found_words.places, found_words.head_ends, strict=False):
        near.append(_measure_nearness(question, found_words, text_places))
        head.append(
            sum(
                rarity[term]
                for term in content & text_places.keys()
                if text_places[term][0][0] < end
            )
            / total_rarity
        )
    return Kinds(bm25, near, head)


def weigh_words(question: QuestionWords, found_words: FoundWords) -> list[float]:
    """Return the amount that the question's words add to each text's score at full strength.

    amount = `WEIGHT` x (bm25 + near + head), in spreads of the function's scores.
    """
    return [
        WEIGHT * sum(kinds) for kinds in zip(*measure_kinds(question, found_words), strict=True)
    ]


def _find_neighbours(
    question: QuestionWords, found_words: FoundWords, text_places: Mapping[str, Sequence[_Place]]
) -> Set[Pair]:
    """Return the question's pairs of words that are neighbours in one text, in the same order."""
    if len(text_places) < 2:
        return frozenset()
    return frozenset(
        [
            pair
            for pair in question.pairs
            if _is_near(found_words.joined, text_places, pair, window=1)
        ]
    )


def _measure_nearness(
    question: QuestionWords, found_words: FoundWords, text_places: Mapping[str, Sequence[_Place]]
) -> float:
    """Return the share of the question's pairs of neighbouring content words that a text holds.

    The two words of a pair must be near each other in the text, in either order.
    """
    if len(text_places) < 2 or not question.neighbours:
        return 0.0
    near_pairs = [
        neighbours
        for neighbours in question.neighbours
        if any(
            _is_near(found_words.joined, text_places, pair)
            for pair in (neighbours, neighbours[::-1])
        )
    ]
    return len(near_pairs) / len(question.neighbours)
