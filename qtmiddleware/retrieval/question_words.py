"""The evidence of a question's own words: what the passages of one list hold of them.

Three kinds of evidence, each from 0 to about 1, count alike:

========  ==============================================================================================
``bm25``  BM25 over all keywords; forms of a word are one term.
``near``  Share of the question's neighbouring content words that stand within `WINDOW` words of each other.
``head``  Share of the content words, by rarity, that the first line or the first `HEAD_CHARS` characters hold.
========  ==============================================================================================

Words speak up only if a passage holds clearly more of the question's content words than the
function's own first passage does (`keyword_evidence.measure_strength`). `python -m
benchmarks.evidence` redoes the choice of the constants.
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
    normalise,
    read_windows,
    strip_plural,
    sum_gains,
    weigh_by_rarity,
    weigh_pairs,
    weigh_terms,
)

WEIGHT: Final = 0.7
"""What each kind of evidence adds to a score at full strength, in spreads of the function's scores."""
LEAST_LEAD: Final = 0.1
"""From this share of the question's words on a passage holds clearly more of them than another one."""
FULL_LEAD: Final = 0.3
"""From this share on words have their full strength."""
WHOLE: Final = 0.2
"""The strength beside the scores of a whole collection: its tail is far away and makes every lead look small."""
HALF: Final = 0.5
"""Even there words have full strength if one passage holds all of them and the first one at most this share."""
LEADING: Final = 3
"""How many of the first passages are asked what they hold between them."""
HEAD_CHARS: Final = 120
WINDOW: Final = 3
# Longer gaps are not looked into.
_MOST_BETWEEN: Final = 60
# So many letters stay of a word whose ending is taken off.
_LEAST_STEM: Final = 3
_VOWELS: Final = frozenset("aeiouy")


def _build_table() -> bytes:
    """The bytes of Windows-1252, with the letters of Western Europe, in lower case without accents, others a space."""
    table = bytearray(b" " * 256)
    for code in range(256):
        folded = fold_accents(
            unicodedata.normalize("NFKC", bytes([code]).decode("cp1252", "ignore"))
        )
        if len(folded) == 1 and ord(folded) < 256 and (folded.isalnum() or folded == "_"):
            table[code] = ord(folded)
    return bytes(table)


_folding_table: Final = cache(_build_table)
# The one letter of Windows-1252, in both cases, whose folded form Latin 1 lacks; and what ß
# becomes.
_LIGATURES: Final = (b"\x8c", b"\x9c")
_SHARP_S: Final = b"\xdf"


class WordRules(NamedTuple):
    """What a language says of words: its *function_words* and the *endings* of its forms, the longest first."""

    function_words: Set[str] = frozenset()
    endings: tuple[str, ...] = ()


class QuestionWords(NamedTuple):
    """The words of a question: its *terms* and their *pairs*, its *content* words and the *neighbours* among them."""

    terms: Sequence[str]
    pairs: Sequence[Pair]
    content: Sequence[str]
    neighbours: Sequence[Pair]


_Place = tuple[int, int]
"""Where a word begins and ends."""


class FoundWords(NamedTuple):
    """Where the words of a question stand in several texts.

    The folded texts stand one behind the other in *joined*, each from one of *begins* on, with
    their *lengths*; a head is what stands before one of *head_ends*. *places* are those of each
    term, by text.
    """

    joined: str
    begins: Sequence[int]
    lengths: Sequence[int]
    head_ends: Sequence[int]
    places: Sequence[Mapping[str, Sequence[_Place]]]


@cache
def load_word_rules(language: str) -> WordRules:
    """Return the rules for the words of *language*; none for a language without a word list."""
    if language not in LANGUAGES:
        return WordRules()
    lexicon = load(language)
    words = lexicon.stop.union(
        lexicon.negations, lexicon.pronouns, lexicon.conjunctions, lexicon.function_words
    )
    folded = {
        part
        for word in map(fold_accents, words)
        for part in (word, *word.split("'"), word.replace("'", ""))
    }
    return WordRules(frozenset(folded), tuple(sorted(lexicon.endings, key=len, reverse=True)))


@lru_cache(maxsize=20_000)
def find_stem(word: str, endings: tuple[str, ...]) -> str:
    """Return the folded *word* without the ending of a form: "renewal" meets "renew", and "illness" meets "ill".

    At least three letters stay, one of them a vowel, and four before an ending of one letter. A
    doubled last letter that is left becomes one. A stem is always the beginning of its word.
    """
    if len(word) <= _LEAST_STEM or not word.isalpha():
        return strip_plural(word)
    for ending in endings:
        rest = word[: -len(ending)]
        if (
            not word.endswith(ending)
            or len(rest) < _LEAST_STEM + (len(ending) == 1)
            or _VOWELS.isdisjoint(rest)
        ):
            continue
        if (ending[0] == "e" and rest[-1] == "e") or (ending == "s" and rest[-1] in "su"):
            continue
        is_doubled = len(rest) > _LEAST_STEM and rest[-1] == rest[-2] and rest[-1] not in "sz"
        return rest[:-1] if is_doubled else rest
    return strip_plural(word)


def read_question(keywords: str, rules: WordRules) -> QuestionWords:
    """Return the words of a question's *keywords*; all of them are content if there are only function words."""
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
    """Return where the words of *question* stand in the *texts*.

    The texts are folded, put one behind the other and searched for the beginnings of the terms,
    which takes less time than splitting them. Of long texts, as by `MOST_READ`, parts are read. A
    text's length is that of its folded form.
    """
    folded = [_fold_text(text) for text in read_windows([text or "" for text in texts])]
    lengths = list(map(len, folded))
    begins = list(accumulate([length + 2 for length in lengths], initial=1))
    joined = f" {'  '.join(folded)} "
    lines = [(text or "").find("\n", 1, HEAD_CHARS) for text in texts]
    head_ends = [
        begin + (HEAD_CHARS if line < 0 else line)
        for begin, line in zip(begins, lines, strict=False)
    ]
    places = _find_places(question.terms, joined, begins[1:], rules.endings)
    return FoundWords(joined, begins, lengths, head_ends, places)


def _find_places(
    terms: Sequence[str], joined: str, ends: Sequence[int], endings: tuple[str, ...]
) -> list[dict[str, list[_Place]]]:
    """Where the forms of each of the *terms* stand in *joined*, by text; the texts end before *ends*."""
    known, find = frozenset(terms), joined.find
    found: list[dict[str, list[_Place]]] = [{} for _ in ends]
    forms: dict[str, str | None] = {}
    for term in terms:
        is_spaced = _is_spaced(term)
        # A form begins as its term does. A very short term has no forms but itself.
        beginning = (
            term if not is_spaced else f" {term}" if len(term) >= _LEAST_STEM else f" {term} "
        )
        at, text, places = find(beginning), -1, list[_Place]()
        while at >= 0:
            start = at + is_spaced
            # Neighbouring characters of a script without spaces overlap: what follows one begins at
            # its second.
            end = find(" ", start + 1) if is_spaced else start + 1
            if is_spaced:
                word = joined[start:end]
                if word not in forms:
                    stem = find_stem(word, endings)
                    forms[word] = stem if stem in known else None
            # Of two terms that begin alike each finds its own forms.
            if not is_spaced or forms[word] == term:
                if text < 0 or start >= ends[text]:
                    text = bisect_right(ends, start)
                    places = found[text][term] = []
                places.append((start, end))
            at = find(beginning, end)
    return found


def _is_near(
    joined: str, own: Mapping[str, Sequence[_Place]], pair: Pair, window: int = WINDOW
) -> bool:
    """Whether the second word of *pair* stands behind the first one, with fewer than *window* words between them."""
    firsts, seconds = own.get(pair[0]), own.get(pair[1])
    if firsts is None or seconds is None:
        return False
    at = 0
    for start, _ in seconds:
        while at + 1 < len(firsts) and firsts[at + 1][1] <= start:
            at += 1
        gap = start - firsts[at][1]
        # One character is the space before the word.
        if 0 <= gap <= 1 or (
            1 < gap <= _MOST_BETWEEN and len(joined[start - gap : start].split()) < window
        ):
            return True
    return False


def _is_spaced(term: str) -> bool:
    """Whether *term* is of a script that puts spaces between words."""
    return term.isascii() or len(term) > 2 or not compile_patterns().unspaced.fullmatch(term)


def _fold_text(text: str) -> str:
    """*text* without case and accents, with spaces for everything that belongs to no word."""
    if text.isascii():
        return text.encode().translate(_folding_table()).decode()
    try:
        raw = text.encode("cp1252")
    except UnicodeEncodeError:
        # Most texts with a sign such as a narrow space hold no other letters.
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
    """The folded words of *text* in order; of scripts without spaces, all pairs of neighbouring characters."""
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
    """Return those words of the *keywords*, in their order and each once, of which *text* holds a form."""
    rules = load_word_rules(language)
    held = find_words(read_question(keywords, rules), [text], rules).places[0]
    words = _split_words(keywords)
    terms = [find_stem(word, rules.endings) for word in words]
    return tuple(words[terms.index(term)] for term in dict.fromkeys(terms) if term in held)


def locate_words(keywords: str, text: str, language: str = "") -> list[tuple[int, int]]:
    """Return from where to where forms of words of the *keywords* stand in *text*, in their order; none overlap."""
    endings = load_word_rules(language).endings
    terms = {find_stem(word, endings) for word in _split_words(keywords)}
    spans: list[tuple[int, int]] = []
    patterns = compile_patterns()
    for word in patterns.word.finditer(text):
        start = word.start()
        for piece in patterns.runs.split(word.group()):
            # Of scripts without spaces, as when they are searched, each pair of neighbours is a
            # word.
            size = 2 if patterns.unspaced.match(piece) else len(piece)
            for at in range(start, start + max(1, len(piece) - size + 1) if piece else start):
                if not terms.isdisjoint(
                    find_stem(part, endings) for part in _split_words(text[at : at + size])
                ):
                    begins = spans.pop()[0] if spans and spans[-1][1] > at else at
                    spans.append((begins, min(at + size, start + len(piece))))
            start += len(piece)
    return spans


def measure_coverage(question: QuestionWords, found: FoundWords) -> list[float]:
    """Return the share of the question's content words that each text holds, from 0 to 1."""
    content = frozenset(question.content)
    return [len(content & places.keys()) / len(content) for places in found.places]


def measure_union(question: QuestionWords, found: FoundWords) -> float:
    """Return the share of the question's content words that the first `LEADING` texts hold between them."""
    content = frozenset(question.content)
    return len(content & frozenset().union(*found.places[:LEADING])) / len(content)


class Kinds(NamedTuple):
    """Each kind of evidence of every text, from 0 to about 1."""

    bm25: Sequence[float]
    near: Sequence[float]
    head: Sequence[float]


def measure_kinds(question: QuestionWords, found: FoundWords) -> Kinds:
    """Return each kind of evidence of every text."""
    counted = [
        TextTerms(
            {term: len(places) for term, places in own.items()},
            length,
            _find_neighbours(question, found, own),
        )
        for length, own in zip(found.lengths, found.places, strict=True)
    ]
    size = len(counted)
    terms = sum_gains(question.terms, weigh_terms(counted), size)
    bm25 = normalise(list(map(add, terms, sum_gains(question.pairs, weigh_pairs(counted), size))))
    content = frozenset(question.content)
    holders = Counter([term for own in found.places for term in content & own.keys()])
    # Words that no text holds count as the rarest, so that a head without them holds the less.
    rarity = weigh_by_rarity({term: holders[term] for term in content}, size)
    whole = sum(rarity.values())
    near, head = [], []
    for own, end in zip(found.places, found.head_ends, strict=False):
        near.append(_measure_nearness(question, found, own))
        head.append(
            sum(rarity[term] for term in content & own.keys() if own[term][0][0] < end) / whole
        )
    return Kinds(bm25, near, head)


def weigh_words(question: QuestionWords, found: FoundWords) -> list[float]:
    """Return what words add to the score of each text at full strength, in spreads: `WEIGHT` x (bm25 + near + head)."""
    return [WEIGHT * sum(kinds) for kinds in zip(*measure_kinds(question, found), strict=True)]


def _find_neighbours(
    question: QuestionWords, found: FoundWords, own: Mapping[str, Sequence[_Place]]
) -> Set[Pair]:
    """Which pairs of the question's words stand side by side in one text, in that order."""
    if len(own) < 2:
        return frozenset()
    return frozenset(
        [pair for pair in question.pairs if _is_near(found.joined, own, pair, window=1)]
    )


def _measure_nearness(
    question: QuestionWords, found: FoundWords, own: Mapping[str, Sequence[_Place]]
) -> float:
    """The share of the question's neighbouring content words that stand near each other in one text, in any order."""
    if len(own) < 2 or not question.neighbours:
        return 0.0
    near = [
        it
        for it in question.neighbours
        if any(_is_near(found.joined, own, pair) for pair in (it, it[::-1]))
    ]
    return len(near) / len(question.neighbours)
