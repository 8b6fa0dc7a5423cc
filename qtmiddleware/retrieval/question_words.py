"""Score passages by the question's own words.

The score is the sum of three measures, each from 0 to about 1:

========  =======================================================================================
``bm25``  BM25 over all keywords. All forms of a word count as the same term.
``near``  The fraction of the question's pairs of neighbouring content words that are also near
          each other in the passage (`WINDOW`).
``head``  The fraction of the content words, weighted by rarity, that occur in the first line. If
          this line is long, only its first `HEAD_CHARS` characters count.
========  =======================================================================================

`keyword_evidence.judge_lead` decides how much this score counts. `python -m benchmarks.quality
--embedding-models` measures what it gains and harms.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import pairwise
from operator import add
from typing import Final, NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.preprocessing.text import (
    compile_term_pattern,
    fold_each_character,
    fold_text,
    is_unspaced,
    split_pairs,
    split_terms,
)
from qtmiddleware.retrieval.bm25 import (
    Pair,
    TextTerms,
    compute_idf,
    compute_pair_gains,
    compute_term_gains,
    normalise_scores,
    shorten_texts,
    strip_plural,
    sum_gains,
)

WEIGHT: Final = 0.7
"""The weight of each measure at full strength.

The unit is the typical gap between the function's high and low scores.
"""
LEAST_LEAD: Final = 0.1
"""The smallest lead that counts.

A passage leads another one if it contains more of the question's words. The lead is the difference
between the two fractions of these words.
"""
FULL_LEAD: Final = 0.3
"""The smallest lead at which keyword evidence has its full strength. See `LEAST_LEAD`."""
WHOLE: Final = 0.2
"""The factor for the strength of keyword evidence if the candidates are the whole collection.

A whole collection has a wide range of scores, so every lead looks small.
"""
HALF: Final = 0.5
"""If the first passage contains at most this fraction of the words, `WHOLE` has an exception.

The factor is then not applied if another passage contains all the words.
"""
LEADING: Final = 3
"""How many passages at the top of a list are searched together for the question's words."""
HEAD_CHARS: Final = 120
"""The head of a text is its first line, up to this number of characters."""
WINDOW: Final = 3
"""Two words are near each other if fewer than this many words are between them."""
# Words with more characters between them are not near each other, however few words these are.
_MOST_BETWEEN: Final = 60
# A stem has at least this many letters.
_LEAST_STEM: Final = 3
_VOWELS: Final = frozenset("aeiouy")


def _build_folding_table(kept: str) -> bytes:
    """Return a table for `bytes.translate` that folds Western European text (Windows-1252)."""
    table = bytearray(b" " * 256)
    for code in range(256):
        folded = fold_text(bytes([code]).decode("cp1252", "ignore"))
        if len(folded) == 1 and ord(folded) < 256 and (folded.isalnum() or folded in kept):
            table[code] = ord(folded)
    return bytes(table)


_folding_table: Final = cache(_build_folding_table)
# The table maps one byte to one byte, so letters that become two are replaced before.
_LONGER: Final = {
    b"\xdf": b"ss",
    b"\x8c": b"oe",
    b"\x9c": b"oe",
    b"\xc6": b"ae",
    b"\xe6": b"ae",
}
_SOFT_HYPHEN: Final = b"\xad"
# Between two digits these belong to a number: 3.4.1, 8,90, 10:30.
_NUMBER_JOINTS: Final = ".,:"
_OTHER_JOINT: Final = re.compile(r"[.,:](?:(?!\d)|(?<!\d.))")
_YEARS: Final = re.compile(r"(?:19|20)\d\d")
# 25 000 and 1 299 € are numbers, while "iPhone 15 256 GB" has two.
_GROUPED: Final = re.compile(r"(?<![\w.,])\d{1,3}(?:\s\d{3})+(?!\w)(?:(?<=000)|(?=\s?[€$£]))")
_EMAIL: Final = re.compile(r"\be-?mails?\b", re.IGNORECASE)
_CODE_PIECE: Final = re.compile(r"\d+(?:[.,:]\d+)*(?:\.x\Z)?|[^\W\d_]+")
# In Chinese, Japanese and Korean, two characters of these make no word with a topic.
_FUNCTION_CHARACTERS: Final = frozenset(
    (
        *map(chr, range(0x3041, 0x3097)),
        *"的了吗呢吧啊着过是在有和与或及什么怎样如何哪些里几多少谁为个这那何被把从到对于之其以将由",
        *"은는이가을를에의로와과도만인무엇어떤언제디누요까니다습있나하했되입",
    )
)


class WordRules(NamedTuple):
    """The word rules of one language.

    Attributes:
        function_words: Words that say nothing about the topic, such as "the", in lower case and
            without accents.
        endings: The endings of word forms, such as "ing", the longest first.
    """

    function_words: Set[str] = frozenset()
    endings: tuple[str, ...] = ()


class QuestionWords(NamedTuple):
    """The words of a question, in order and without repeats.

    Attributes:
        terms: The stems of all words.
        pairs: The pairs of neighbouring terms.
        content: The stems of the content words, that is, of all words except function words.
        neighbours: The pairs of neighbouring content words.
    """

    terms: Sequence[str]
    pairs: Sequence[Pair]
    content: Sequence[str]
    neighbours: Sequence[Pair]


_Offsets = tuple[int, int]
"""The offsets at which a word begins and ends."""


class FoundWords(NamedTuple):
    """Which of a question's words occur in several texts.

    Attributes:
        texts: The texts in lower case and without accents, with a space before and after each.
        held: For each text, the terms that occur in it.
        head_ends: The offset at which the first line of each text ends.
        endings: The endings of word forms in the question's language.
    """

    texts: Sequence[str]
    held: Sequence[set[str]]
    head_ends: Sequence[int]
    endings: tuple[str, ...]


@cache
def load_word_rules(language: str) -> WordRules:
    """Return the word rules of *language*, or empty rules if it has no word list."""
    if language not in LANGUAGES:
        return WordRules()
    lexicon = load_lexicon(language)
    words = lexicon.stop.union(lexicon.negations, lexicon.pronouns, lexicon.function_words)
    folded = {
        form
        for word in map(fold_text, words)
        for form in (word, *word.split("'"), word.replace("'", ""))
    }
    return WordRules(frozenset(folded), tuple(sorted(lexicon.endings, key=len, reverse=True)))


@lru_cache(maxsize=20_000)
def find_stem(word: str, endings: tuple[str, ...]) -> str:
    """Return *word* without its ending: ``renewal`` becomes ``renew``.

    - The stem has at least three letters, and at least four if the ending has one letter.
    - The stem has a vowel.
    - A doubled last letter becomes single: ``running`` becomes ``run``.
    - If no ending fits, only a plural s is removed.
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


def parse_question(keywords: str, rules: WordRules) -> QuestionWords:
    """Return the stems of a question's *keywords*, with separate lists of the content words.

    If all keywords are function words, all of them count as content words.
    """
    words = [part for word in _split_keywords(keywords) for part in _list_code_parts(word)]
    terms = [find_stem(word, rules.endings) for word in words]
    content = [
        term
        for word, term in zip(words, terms, strict=True)
        if word not in rules.function_words
        and (len(word) > 1 or not word.isascii() or word.isdigit())
        and not (len(word) == 2 and _FUNCTION_CHARACTERS.issuperset(word))
    ] or terms
    return QuestionWords(
        terms=list(dict.fromkeys(terms)),
        pairs=list(dict.fromkeys(pairwise(terms))),
        content=list(dict.fromkeys(content)),
        neighbours=[pair for pair in dict.fromkeys(pairwise(content)) if pair[0] != pair[1]],
    )


def _split_keywords(keywords: str) -> list[str]:
    """Return the words of *keywords* as they are compared: 25000 for 25 000, e_mail for e-mail."""
    grouped = _GROUPED.sub(lambda number: re.sub(r"\s", "", number[0]), keywords)
    return split_terms(_EMAIL.sub("e_mail", grouped))


def _list_code_parts(word: str) -> list[str]:
    """Return *word* and, if it is a code with a name before a hyphen, the name: ``covid``."""
    head, _, number = word.partition("-")
    return [head, word] if number and len(head) > 1 and head.isalpha() else [word]


def is_code(term: str) -> bool:
    """Return whether *term* is a code or a number, which a text may write in several ways."""
    if term.isdigit():
        return len(term) > 3 and not _YEARS.fullmatch(term)
    return not term.isalpha() and ("_" in term or any(map(str.isdigit, term)))


@lru_cache(maxsize=1_024)
def _compile_code(code: str) -> re.Pattern[str]:
    """Return a pattern for *code* in folded text, after a space."""
    pieces = _CODE_PIECE.findall(code)
    is_version = pieces[0] == "v" and len(pieces) > 1
    pieces = pieces[1:] if is_version and "." in pieces[1] else pieces
    has_longer_forms = is_version or "." in pieces[-1]
    patterns = []
    for piece in pieces:
        number = re.sub(r"[.,](?=\d{3}(?!\d))", "", piece) if piece.count(".") < 2 else piece
        if number.isdigit() and len(number) > 3:
            grouped = f"{int(number):,}" if number[0] != "0" else number
            patterns.append(grouped.replace(",", "[., ]?"))
        elif ":" in piece:
            # 9:30 is 09:30.
            patterns.append(re.sub(r"^0?(?=\d:)", "0?", piece))
        else:
            patterns.append(re.sub("[.,]", "[.,]", piece.removesuffix(".x")))
    body = " ?".join(patterns)
    optional_v = "v?" if "." in pieces[0] else ""
    if code.endswith(".x"):
        return re.compile(rf" {optional_v}{body}(?=[. ])")
    plural = "s?" if pieces[-1].isalpha() else ""
    return re.compile(rf" {optional_v}{body}{plural}(?=[{' .:' if has_longer_forms else ' '}])")


def find_words(
    question: QuestionWords, texts: Sequence[str | None], rules: WordRules
) -> FoundWords:
    """Find out which words of *question* occur in each of *texts*, in any form.

    Only excerpts of long texts are read (`bm25.MOST_READ`). The folded texts are searched for the
    stems, which is faster than splitting them into words.
    """
    joints = _choose_joints(question.terms)
    read_texts = shorten_texts([text or "" for text in texts])
    folded = [f" {_fold_words(text, joints)} " for text in read_texts]
    line_ends = [(text or "").find("\n", 1, HEAD_CHARS) for text in texts]
    finders = [(term, _make_finder(term, rules.endings)) for term in question.terms]
    return FoundWords(
        texts=folded,
        held=[{term for term, find in finders if find(text, 0)} for text in folded],
        head_ends=[1 + (HEAD_CHARS if line_end < 0 else line_end) for line_end in line_ends],
        endings=rules.endings,
    )


@lru_cache(maxsize=1_024)
def _make_finder(term: str, endings: tuple[str, ...]) -> Callable[[str, int], _Offsets | None]:
    """Return a function (folded text, begin) -> the next offsets of a form of *term*."""
    if is_code(term):
        pattern = _compile_code(term)

        def find_code(text: str, begin: int) -> _Offsets | None:
            match = pattern.search(text, begin)
            return (match.start() + 1, match.end()) if match else None

        return find_code
    if is_unspaced(term):

        def find_pair(text: str, begin: int) -> _Offsets | None:
            # Pairs of characters overlap: the next one may begin at this one's second character.
            at = text.find(term, begin)
            return (at, at + 1) if at >= 0 else None

        return find_pair
    # Every form of a term begins with the term. A very short term has no other forms.
    beginning = f" {term}" if len(term) >= _LEAST_STEM else f" {term} "

    def find_form(text: str, begin: int) -> _Offsets | None:
        at = text.find(beginning, begin)
        while at >= 0:
            end = text.find(" ", at + 1)
            # Two terms may begin alike: each takes only its own forms.
            if find_stem(text[at + 1 : end], endings) == term:
                return at + 1, end
            at = text.find(beginning, end)
        return None

    return find_form


def _list_offsets(term: str, text: str, endings: tuple[str, ...]) -> list[_Offsets]:
    find = _make_finder(term, endings)
    offsets: list[_Offsets] = []
    found = find(text, 0)
    while found:
        offsets.append(found)
        found = find(text, found[1])
    return offsets


def _is_pair_near(
    text: str, offsets: Mapping[str, Sequence[_Offsets]], pair: Pair, window: int = WINDOW
) -> bool:
    """Return whether a folded text contains the words of *pair* in this order, near each other."""
    firsts = offsets[pair[0]]
    at = 0
    for start, _ in offsets[pair[1]]:
        while at + 1 < len(firsts) and firsts[at + 1][1] <= start:
            at += 1
        gap = start - firsts[at][1]
        # A gap of one character is the space before the word.
        if 0 <= gap <= 1 or (
            1 < gap <= _MOST_BETWEEN and len(text[start - gap : start].split()) < window
        ):
            return True
    return False


def _choose_joints(terms: Sequence[str]) -> str:
    """Return the characters that keep the numbers of texts together."""
    is_needed = any(
        term.isdigit() or not set(_NUMBER_JOINTS).isdisjoint(term)
        for term in terms
        if not term.isalpha()
    )
    return _NUMBER_JOINTS if is_needed else ""


def _fold_words(text: str, joints: str) -> str:
    """Return the words of *text*, folded and with spaces between them."""
    # Translating bytes is many times as fast as normalising characters.
    try:
        raw = text.encode("ascii" if text.isascii() else "cp1252")
    except UnicodeEncodeError:
        return " ".join(compile_term_pattern().findall(fold_text(text)))
    if not text.isascii():
        for letter, letters in _LONGER.items():
            raw = raw.replace(letter, letters)
    folded = raw.translate(_folding_table(joints), _SOFT_HYPHEN).decode("latin-1")
    return _OTHER_JOINT.sub(" ", folded) if joints else folded


def find_matching_words(keywords: str, text: str, language: str = "") -> tuple[str, ...]:
    """Return the words of *keywords* that occur in *text*, in any form and without repeats."""
    rules = load_word_rules(language)
    held_terms = find_words(parse_question(keywords, rules), [text], rules).held[0]
    words: dict[str, str] = {}
    for word in _split_keywords(keywords):
        # A passage with another number is named by the name in the code alone.
        parts = [(find_stem(part, rules.endings), part) for part in _list_code_parts(word)]
        held = [
            (term, part.replace("e_mail", "e-mail")) for term, part in parts if term in held_terms
        ]
        words |= {term: part for term, part in held[-1:] if term not in words}
    return tuple(words.values())


def locate_words(keywords: str, text: str, language: str = "") -> list[tuple[int, int]]:
    """Return the ascending (begin, end) offsets of the forms of *keywords* in *text*."""
    rules = load_word_rules(language)
    question = parse_question(keywords, rules)
    folded_text, places = fold_each_character(text)
    joined, joined_places = " ", [0]
    for match in compile_term_pattern().finditer(folded_text):
        joined += f"{match.group()} "
        joined_places += [*places[match.start() : match.end()], places[match.end() - 1]]
    offsets = [
        span for term in question.terms for span in _list_offsets(term, joined, rules.endings)
    ]
    spans: list[tuple[int, int]] = []
    for begin, end in sorted(offsets):
        last = end if is_unspaced(joined[begin]) and end + 1 < len(joined) else end - 1
        span = joined_places[begin], joined_places[last] + 1
        # In scripts without spaces, neighbouring pairs of characters overlap.
        if spans and spans[-1][1] > span[0]:
            previous = spans.pop()
            span = previous[0], max(previous[1], span[1])
        spans.append(span)
    return spans


def measure_coverage(question: QuestionWords, found_words: FoundWords) -> list[float]:
    """Return, for each text, the fraction of the question's content words that occur in it."""
    content = frozenset(question.content)
    return [len(content & held) / len(content) for held in found_words.held]


def measure_joint_coverage(question: QuestionWords, found_words: FoundWords) -> float:
    """Return the fraction of the question's content words in at least one of the first texts."""
    content = frozenset(question.content)
    return len(content & frozenset().union(*found_words.held[:LEADING])) / len(content)


def count_terms(
    texts: Sequence[str | None], query_terms: Sequence[str], query_pairs: frozenset[Pair]
) -> list[TextTerms]:
    """Count the *query_terms* in each text, and find the *query_pairs* that occur in each text.

    Only excerpts of long texts are read (`bm25.MOST_READ`). For the many words of a model, this is
    faster than `find_words`, which knows all forms and positions of a question's few words.
    """
    forms = {
        form: term
        for term in query_terms
        for form in (term, f"{term}s")
        if strip_plural(form) == term
    }
    codes = {term: _compile_code(term) for term in query_terms if is_code(term)}
    joints = _choose_joints(query_terms)
    text_terms = []
    for text in shorten_texts([text or "" for text in texts]):
        folded = _fold_words(text, joints)
        words = folded.split()
        if not folded.isascii():
            words = [part for word in words for part in split_pairs(word)]
        counts: dict[str, int] = {}
        neighbours: list[Pair] = []
        previous = None
        for term in map(forms.get, words):
            if term is not None:
                counts[term] = counts.get(term, 0) + 1
                if previous is not None:
                    neighbours.append((previous, term))
            previous = term
        for term, pattern in codes.items():
            if count := len(pattern.findall(f" {folded} ")):
                counts[term] = count
        pairs = query_pairs.intersection(neighbours) if neighbours else frozenset()
        text_terms.append(TextTerms(counts, len(words), pairs))
    return text_terms


def sum_word_scores(question: QuestionWords, found_words: FoundWords) -> list[float]:
    """Return how much the question's words add to each text's score at full strength.

    amount = `WEIGHT` x (bm25 + near + head), the three measures of this module. The unit is the
    typical gap between the function's high and low scores.
    """
    content = frozenset(question.content)
    text_terms: list[TextTerms] = []
    near: list[float] = []
    head_words: list[list[str]] = []
    for text, held, head_end in zip(
        found_words.texts, found_words.held, found_words.head_ends, strict=True
    ):
        offsets = {term: _list_offsets(term, text, found_words.endings) for term in held}
        adjacent = frozenset(
            pair
            for pair in question.pairs
            if held.issuperset(pair) and _is_pair_near(text, offsets, pair, window=1)
        )
        counts = {term: len(offsets[term]) for term in question.terms if term in held}
        text_terms.append(TextTerms(counts, len(text) - 2, adjacent))
        near_count = sum(
            held.issuperset(pair)
            and (_is_pair_near(text, offsets, pair) or _is_pair_near(text, offsets, pair[::-1]))
            for pair in question.neighbours
        )
        near.append(near_count / len(question.neighbours) if near_count else 0.0)
        head_words.append([term for term in content & held if offsets[term][0][0] < head_end])
    size = len(text_terms)
    term_sums = sum_gains(question.terms, compute_term_gains(text_terms), size)
    pair_sums = sum_gains(question.pairs, compute_pair_gains(text_terms), size)
    # Function words count only beside a content word.
    bm25 = [
        0.0 if content.isdisjoint(held) else score
        for held, score in zip(
            found_words.held, normalise_scores(list(map(add, term_sums, pair_sums))), strict=True
        )
    ]
    holders = Counter([term for held in found_words.held for term in content & held])
    # A word that occurs in no text counts as the rarest word, so it lowers the result of every
    # text.
    rarity = compute_idf({term: holders[term] for term in content}, size)
    total_rarity = sum(rarity.values())
    head = [sum(rarity[term] for term in terms) / total_rarity for terms in head_words]
    return [WEIGHT * sum(measures) for measures in zip(bm25, near, head, strict=True)]
