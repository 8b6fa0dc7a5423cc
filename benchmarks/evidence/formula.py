"""The evidence of a question's own words, as a reference that can be moved into `qtmiddleware.retrieval`.

score = n + strength x (BM25 x bm25 + NEAR x near + HEAD x head), all for one passage of a list:

n     its score less the list's first, in spreads (`measure_spread`, as today)
bm25  today's evidence: BM25 over all keywords, in `MEANS` times its mean, at most `MOST`; forms of a word are one term
near  share of the question's neighbouring content words that stand within `WINDOW` words of each other
head  share of the question's content words, by idf, that its first line, or its first `HEAD_CHARS` characters, holds

strength = lack from `LEAST_LACK` (0) to `FULL_LACK` (1), times `WHOLE` if the list has fewer passages than were asked
for, with
lack = the largest share of the content words that any passage holds, less the share that the first one holds.

So words are silent if no passage covers clearly more of the question than the function's own first one.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any, Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_accents
from qtmiddleware.retrieval.keyword_evidence import (
    Pair,
    TextTerms,
    _compile_patterns,
    _normalize,
    _read_windows,
    _weigh_by_rarity,
    strip_plural,
    sum_gains,
    weigh_pairs,
    weigh_terms,
)

# How much each kind of evidence adds to a score at full strength, in spreads.
BM25: Final = 0.7
NEAR: Final = 0.7
HEAD: Final = 0.7
# Words speak up if some passage holds a tenth of the question's words beyond those that the first one holds, and have
# full strength from three tenths on.
LEAST_LACK: Final = 0.1
FULL_LACK: Final = 0.3
# If the list is the whole collection, its tail is far away and stretches the spread: words would be too loud.
WHOLE: Final = 0.2
# A title, or as much of an opening.
HEAD_CHARS: Final = 120
WINDOW: Final = 3
# Longer gaps are not looked into.
MOST_BETWEEN: Final = 60
# Forms of a word share as many letters.
PREFIX: Final = 3


def _build_table() -> bytes:
    """Bytes of Windows-1252, which holds the letters of Western Europe, to lower case without accents, else a space."""
    table = bytearray(b" " * 256)
    for code in range(256):
        folded = fold_accents(unicodedata.normalize("NFKC", bytes([code]).decode("cp1252", "ignore")))
        if len(folded) == 1 and ord(folded) < 256 and (folded.isalnum() or folded == "_"):
            table[code] = ord(folded)
    return bytes(table)


_FOLDED: Final = _build_table()
# The one letter of Windows-1252 whose fold is none of Latin 1, in both cases.
_OE: Final = (b"\x8c", b"\x9c")


@dataclass(frozen=True, slots=True)
class Language:
    """What one language's file says of words: its *function_words* and the *endings* that make forms, longest first."""

    function_words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()


class Asked(NamedTuple):
    """The words of a question: all *terms* with their *pairs*, its *content* words and their *neighbours*."""

    terms: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    content: Sequence[str]
    neighbours: Sequence[tuple[str, str]]


class Held(NamedTuple):
    """What one text holds of a question's words: for BM25, and of its neighbours and in its head."""

    terms: TextTerms
    near: Set[Pair]
    head: Set[str]


class Evidence(NamedTuple):
    """The kinds of evidence of each passage, and the share of the content words that each one holds."""

    bm25: Sequence[float]
    near: Sequence[float]
    head: Sequence[float]
    coverage: Sequence[float]


@cache
def load_language(code: str) -> Language:
    """Returns what is known of the words of the language; nothing for one without a file."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "words.json").read_text(encoding="utf-8"))
    known = data.get(code, {})
    words = known.get("function_words", "").split()
    plain = {part for word in words for part in (fold_accents(word), *fold_accents(word).split("'"))}
    plain |= {word.replace("'", "") for word in plain}
    endings = sorted(known.get("endings", "").split(), key=len, reverse=True)
    return Language(frozenset(plain), tuple(endings))


@lru_cache(maxsize=20_000)
def find_stem(word: str, endings: tuple[str, ...]) -> str:
    """Returns *word* without the ending of a form: "renewal" meets "renew", "illness" meets "ill".

    At least three letters stay, one of them a vowel, and four before an ending of one letter. A doubled last letter
    that is left becomes one.
    """
    if len(word) <= PREFIX or not word.isalpha():
        return strip_plural(word)
    for ending in endings:
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= (4 if len(ending) == 1 else 3) and not _VOWELS.isdisjoint(rest):
            if (ending[0] == "e" and rest[-1] == "e") or (ending == "s" and rest[-1] in "su"):
                continue
            return rest[:-1] if len(rest) > 3 and rest[-1] == rest[-2] and rest[-1] not in "sz" else rest
    return strip_plural(word)


_VOWELS: Final = frozenset("aeiouy")


def read_question(keywords: str, language: Language) -> Asked:
    """Returns the words of the question's *keywords*; all count as content if there is nothing but function words."""
    words = _split(keywords)
    terms = [find_stem(word, language.endings) for word in words]
    known = language.function_words
    content = [term for word, term in zip(words, terms, strict=True) if word not in known and _is_content(word)]
    content = content or terms
    neighbours = [pair for pair in dict.fromkeys(pairwise(content)) if pair[0] != pair[1]]
    return Asked(
        list(dict.fromkeys(terms)), list(dict.fromkeys(pairwise(terms))), list(dict.fromkeys(content)), neighbours
    )


def _is_content(word: str) -> bool:
    return len(word) > 1 or not word.isascii() or word.isdigit()


def find_held(asked: Asked, texts: Sequence[str | None], language: Language) -> list[Held]:
    """Returns what each text holds of the question's words.

    The texts are folded, put one behind the other and searched for the beginnings of the terms, which takes less than
    splitting them. Of long texts, as by `MOST_READ`, parts are read. A text's length is that of its folded form.
    """
    folded = [_fold_text(text) for text in _read_windows([text or "" for text in texts])]
    joined = f" {'  '.join(folded)} "
    hits = _find_hits(asked.terms, joined, language.endings)
    either = {pair: pair for pair in asked.neighbours}
    either |= {(other, one): (one, other) for one, other in asked.neighbours}
    pairs = frozenset(asked.pairs)
    held, at, last, begin = [], 0, len(hits), 1
    for text, whole in zip(folded, texts, strict=True):
        first, end = at, begin + len(text)
        while at < last and hits[at][0] < end:
            at += 1
        own = hits[first:at]
        counts: dict[str, int] = {}
        near, beside, head = set[Pair](), set[Pair](), set[str]()
        if own:
            line = (whole or "").find("\n", 1, HEAD_CHARS)
            head_end = begin + (HEAD_CHARS if line < 0 else line)
            for _, _, term in own:
                counts[term] = counts.get(term, 0) + 1
            head = {term for start, _, term in own if start < head_end}
        if len(counts) > 1:
            for step in range(1, WINDOW + 1):
                for (_, stop, one), (start, _, other) in zip(own, own[step:], strict=False):
                    if start - stop > MOST_BETWEEN:
                        continue
                    if (
                        (pair := either.get((one, other)))
                        and pair not in near
                        and _count_between(joined, stop, start) < WINDOW
                    ):
                        near.add(pair)
                    if step == 1 and (one, other) in pairs and not _count_between(joined, stop, start):
                        beside.add((one, other))
        held.append(Held(TextTerms(counts, len(text), beside), near, head))
        begin = end + 2
    return held


def _count_between(joined: str, stop: int, start: int) -> int:
    """How many words stand between two places; characters of scripts without spaces that overlap are neighbours."""
    return len(joined[stop:start].split()) if start > stop else 0


def _find_hits(terms: Sequence[str], joined: str, endings: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Returns where each form of one of the *terms* begins and ends in *joined*, and the term, in the order there."""
    known, find, hits = frozenset(terms), joined.find, list[tuple[int, int, str]]()
    forms: dict[str, str | None] = {}
    # A form begins as its term does. A shorter term has no forms but itself.
    for beginning in {
        f" {term[:PREFIX]}" if len(term) >= PREFIX else f" {term} " for term in terms if _is_spaced(term)
    }:
        at = find(beginning)
        while at >= 0:
            end = find(" ", at + 2)
            word = joined[at + 1 : end]
            if word in forms:
                term = forms[word]
            else:
                stem = find_stem(word, endings)
                term = forms[word] = stem if stem in known else None
            if term is not None:
                hits.append((at + 1, end, term))
            at = find(beginning, end)
    for term in terms:
        if not _is_spaced(term):
            at = find(term)
            while at >= 0:
                hits.append((at, at + 1, term))
                at = find(term, at + 1)
    hits.sort()
    return hits


def _is_spaced(term: str) -> bool:
    return term.isascii() or len(term) > 2 or not _compile_patterns().unspaced.fullmatch(term)


def _fold_text(text: str) -> str:
    """*text* without case and accents, with spaces for what belongs to no word."""
    if text.isascii():
        return text.encode().translate(_FOLDED).decode()
    try:
        raw = text.encode("cp1252")
    except UnicodeEncodeError:
        # Signs such as a narrow space belong to no word, and most texts have no other letters.
        plain = _compile_patterns().punctuation.sub(b" ", text.encode("utf-8", "surrogatepass"))
        try:
            raw = plain.decode("utf-8", "surrogatepass").encode("cp1252")
        except UnicodeEncodeError:
            raw = b""
    if raw and not any(letter in raw for letter in _OE):
        return raw.replace(b"\xdf", b"ss").translate(_FOLDED).decode("latin-1")
    return " ".join(_compile_patterns().word.findall(fold_accents(unicodedata.normalize("NFKC", text))))


def _split(text: str) -> list[str]:
    """The words of *text* in order; of scripts without spaces, all pairs of neighbours."""
    patterns, words = _compile_patterns(), list[str]()
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


def weigh_words(asked: Asked, held: Sequence[Held]) -> Evidence | None:
    """Returns each kind of evidence of each text; ``None`` if no text holds any of the words."""
    counted, size = [text.terms for text in held], len(held)
    scores = sum_gains(asked.terms, weigh_terms(counted), size)
    if not any(scores):
        return None
    scores = list(map(add, scores, sum_gains(asked.pairs, weigh_pairs(counted), size)))
    content, neighbours = frozenset(asked.content), len(asked.neighbours) or 1
    held_by = Counter([term for text in counted for term in content & text.counts.keys()])
    # Words that no text holds count as the rarest, so that a head without them holds the less.
    rarity = _weigh_by_rarity({term: held_by[term] for term in content}, size)
    whole = sum(rarity.values())
    return Evidence(
        bm25=_normalize(scores),
        near=[len(text.near) / neighbours for text in held],
        head=[sum(rarity[term] for term in content & text.head) / whole for text in held],
        coverage=[len(content & text.terms.counts.keys()) / len(content) for text in held],
    )


def find_strength(coverage: Sequence[float], *, is_whole: bool) -> float:
    """Returns how loud words are: silent if no passage covers clearly more of the question than the first one does.

    *is_whole* says that the list is the whole collection.
    """
    lack = max(coverage) - coverage[0]
    share = (lack - LEAST_LACK) / (FULL_LACK - LEAST_LACK)
    return min(1.0, max(0.0, share)) * (WHOLE if is_whole else 1.0)


def add_words(scores: Sequence[float], spread: float, evidence: Evidence, *, is_whole: bool) -> list[float]:
    """Returns the function's *scores*, best first and higher is better, and the evidence as one sum each."""
    strength, unit = find_strength(evidence.coverage, is_whole=is_whole), spread if spread > 1e-300 else 1.0
    return [
        (score - scores[0]) / unit + strength * (BM25 * bm25 + NEAR * near + HEAD * head)
        for score, bm25, near, head in zip(scores, evidence.bm25, evidence.near, evidence.head, strict=True)
    ]
