"""Score passages by the question's own words.

The score is the sum of three measures, each from 0 to about 1:

========  =======================================================================================
``bm25``  BM25 over all keywords. All forms of a word count as the same term.
``near``  The fraction of the question's pairs of neighbouring content words that are also near
          each other in the passage (`WINDOW`).
``head``  The fraction of the content words, weighted by rarity, that occur in the first line. If
          this line is long, only its first `HEAD_CHARS` characters count.
========  =======================================================================================

`judge_lead` decides how much this score counts. `python -m benchmarks.quality --embedding-models`
measures what it gains and harms.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from functools import cache, lru_cache
from itertools import pairwise
from math import log
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
# So many first letters tell most words apart, and compounds and other forms share them.
_BEGINNING: Final = 5
_VOWELS: Final = frozenset("aeiouy")

K1: Final = 1.2
B: Final = 0.75
# Measured from the worst score, the best match of a query usually scores about MEANS times the
# mean. It scores more if the words occur in few passages, and less if they occur in most. No
# passage gets more evidence than MOST.
MEANS: Final = 5.0
MOST: Final = 1.4
# The weight of a pair of neighbours, compared with a single term.
PAIR: Final = 0.5

# At most this many characters of all texts together are read. If they are longer, the beginning of
# each text is read: its equal share.
MOST_READ: Final = 800_000


@cache
def _build_folding_table(kept: str) -> bytes:
    """Return a table for `bytes.translate` that folds Western European text (Windows-1252)."""
    table = bytearray(b" " * 256)
    for code in range(256):
        folded = fold_text(bytes([code]).decode("cp1252", "ignore"))
        if len(folded) == 1 and ord(folded) < 256 and (folded.isalnum() or folded in kept):
            table[code] = ord(folded)
    return bytes(table)


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


Pair = tuple[str, str]
"""Two neighbouring words."""
Gains = Mapping[Hashable, Sequence[tuple[int, float]]]
"""For each term and pair, (index of a text, amount to add to its score)."""


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


class WordRules(NamedTuple):
    """The function words of one language, and the endings of its word forms, the longest first.

    Function words, such as "the", say nothing about the topic. They are folded.
    """

    function_words: Set[str] = frozenset()
    endings: tuple[str, ...] = ()


class QuestionWords(NamedTuple):
    """The words of a question, in order and without repeats.

    *terms* are the stems of all words, and *pairs* their neighbours. *content* and *neighbours* are
    the same without function words.
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
        question: The words of the question.
        texts: The texts in lower case and without accents, with a space before and after each.
        held: For each text, the terms of the question that occur in it.
        head_ends: The offset at which the first line of each text ends.
        endings: The endings of word forms in the question's language.
    """

    question: QuestionWords
    texts: Sequence[str]
    held: Sequence[set[str]]
    head_ends: Sequence[int]
    endings: tuple[str, ...]

    def measure_coverage(self) -> list[float]:
        """Return, for each text, the fraction of the question's content words in it."""
        content = frozenset(self.question.content)
        return [len(content & held) / len(content) for held in self.held]

    def measure_joint_coverage(self) -> float:
        """Return the fraction of the question's content words in any of the first texts."""
        content = frozenset(self.question.content)
        return len(content & frozenset().union(*self.held[:LEADING])) / len(content)

    def measure_beginnings(self) -> float:
        """Return the fraction of the content words whose first letters occur in the first text.

        "Rabatt" occurs in "Studentenrabatt", and "Zahlu" of "Zahlungsart" in "Zahlungsmethode".
        """
        content, text, held = self.question.content, self.texts[0], self.held[0]
        kept = [term for term in content if term in held or term[:_BEGINNING] in text]
        return len(kept) / len(content)

    def score_texts(self) -> list[float]:
        """Return how much the question's words add to each text's score at full strength.

        amount = `WEIGHT` x (bm25 + near + head), the three measures of this module. The unit is the
        typical gap between the function's high and low scores.
        """
        question, size = self.question, len(self.texts)
        content = frozenset(question.content)
        holders = Counter([term for held in self.held for term in content & held])
        # A word that occurs in no text counts as the rarest word, so it lowers the result of every
        # text.
        rarity = compute_idf({term: holders[term] for term in content}, size)
        total_rarity = sum(rarity.values())
        text_terms: list[TextTerms] = []
        # The sum of the measures ``near`` and ``head``.
        others: list[float] = []
        for text, held, head_end in zip(self.texts, self.held, self.head_ends, strict=True):
            offsets = {term: _list_offsets(term, text, self.endings) for term in held}
            counts = {term: len(offsets[term]) for term in question.terms if term in held}
            adjacent = frozenset(
                pair for pair in question.pairs if _is_pair_near(text, offsets, pair, window=1)
            )
            text_terms.append(TextTerms(counts, len(text) - 2, adjacent))
            near_count = sum(
                _is_pair_near(text, offsets, pair) or _is_pair_near(text, offsets, pair[::-1])
                for pair in question.neighbours
            )
            head = sum(rarity[term] for term in content & held if offsets[term][0][0] < head_end)
            others.append(near_count / max(1, len(question.neighbours)) + head / total_rarity)
        gains = compute_gains(text_terms)
        bm25 = normalise_scores(sum_gains((*question.terms, *question.pairs), gains, size))
        return [
            # Function words count only beside a content word.
            WEIGHT * (other + (0.0 if content.isdisjoint(held) else score))
            for other, score, held in zip(others, bm25, self.held, strict=True)
        ]


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
    """Return the words of *keywords* as they are compared: e_mail for email and e-mail."""
    return split_terms(_EMAIL.sub("e_mail", keywords))


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
        if number.isdecimal() and len(number) > 3 and number[0] != "0":
            backwards = re.sub(r"(\d{3})(?=\d)", r"\1,", number[::-1])
            patterns.append(backwards[::-1].replace(",", "[., ]?"))
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


def find_words(keywords: str, texts: Sequence[str | None], language: str = "") -> FoundWords:
    """Find the words of a question's *keywords* in each of *texts*, in any form.

    Only the beginning of a long text is read (`MOST_READ`). The folded texts are searched for the
    stems, which is faster than splitting them into words. *language* is the code of the question's
    language; ``""`` if unknown.
    """
    rules = load_word_rules(language)
    question = parse_question(keywords, rules)
    joints = _choose_joints(question.terms)
    folded = [f" {_fold_words(text, joints)} " for text in shorten_texts(texts)]
    line_ends = [(text or "").find("\n", 1, HEAD_CHARS) for text in texts]
    return FoundWords(
        question,
        folded,
        held=[
            {term for term in question.terms if _find_form(term, text, 0, rules.endings)}
            for text in folded
        ],
        head_ends=[1 + (HEAD_CHARS if line_end < 0 else line_end) for line_end in line_ends],
        endings=rules.endings,
    )


@lru_cache(maxsize=1_024)
def _choose_needle(term: str) -> str | re.Pattern[str]:
    """Return what to search in folded texts for the forms of *term*."""
    if is_code(term):
        return _compile_code(term)
    if is_unspaced(term):
        return term
    # Every form of a term begins with the term. A very short term has no other forms.
    return f" {term}" if len(term) >= _LEAST_STEM else f" {term} "


def _find_form(
    term: str,
    text: str,
    begin: int,
    endings: tuple[str, ...],
) -> _Offsets | None:
    """Return the offsets of the next form of *term* in a folded text."""
    needle = _choose_needle(term)
    if isinstance(needle, re.Pattern):
        match = needle.search(text, begin)
        return (match.start() + 1, match.end()) if match else None
    at = text.find(needle, begin)
    while at >= 0:
        if needle == term:
            # Pairs of characters overlap: the next one may begin at this one's second character.
            return at, at + 1
        end = text.find(" ", at + 1)
        # Two terms may begin alike: each takes only its own forms.
        if find_stem(text[at + 1 : end], endings) == term:
            return at + 1, end
        at = text.find(needle, end)
    return None


def _list_offsets(
    term: str,
    text: str,
    endings: tuple[str, ...],
) -> list[_Offsets]:
    """Return the offsets of all forms of *term* in a folded text."""
    offsets: list[_Offsets] = []
    found = _find_form(term, text, 0, endings)
    while found:
        offsets.append(found)
        found = _find_form(term, text, found[1], endings)
    return offsets


def _is_pair_near(
    text: str, offsets: Mapping[str, Sequence[_Offsets]], pair: Pair, window: int = WINDOW
) -> bool:
    """Return whether a folded text contains the words of *pair* in this order, near each other."""
    if pair[0] not in offsets or pair[1] not in offsets:
        return False
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


def judge_lead(coverage: Sequence[float], *, is_whole_collection: bool) -> tuple[float, str]:
    """Return how much the question's own words count, from 0 to 1, and the reason.

    strength = (lead - `LEAST_LEAD`) / (`FULL_LEAD` - `LEAST_LEAD`)

    - The lead is the largest *coverage* minus the coverage of the first passage.
    - Up to `LEAST_LEAD`, words do not count. From `FULL_LEAD` on, they count fully.
    """
    most, first = max(coverage), coverage[0]
    strength = min(1.0, max(0.0, (most - first - LEAST_LEAD) / (FULL_LEAD - LEAST_LEAD)))
    if not strength:
        kept = "order kept: no passage holds clearly more of the question's keywords than the"
        return 0.0, f"{kept} first one ({first:.0%})"
    reason = f"one passage holds {most:.0%} of the question's keywords, the first one {first:.0%}"
    if is_whole_collection and (most < 1.0 or first > HALF):
        strength *= WHOLE
        reason = f"{reason}; the list is the whole collection, so keywords count a fifth"
    return strength, f"strength {strength:.2f}: {reason}"


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
    folded = raw.translate(_build_folding_table(joints), _SOFT_HYPHEN).decode("latin-1")
    return _OTHER_JOINT.sub(" ", folded) if joints else folded


def find_matching_words(keywords: str, text: str, language: str = "") -> tuple[str, ...]:
    """Return the words of *keywords* that occur in *text*, in any form and without repeats."""
    endings = load_word_rules(language).endings
    (held_terms,) = find_words(keywords, [text], language).held
    words: dict[str, str] = {}
    for word in _split_keywords(keywords):
        # A passage with another number is named by the name in the code alone.
        parts = [(find_stem(part, endings), part) for part in _list_code_parts(word)]
        held = [(term, part) for term, part in parts if term in held_terms]
        for term, part in held[-1:]:
            words.setdefault(term, part.replace("e_mail", "e-mail"))
    return tuple(words.values())


def locate_words(keywords: str, text: str, language: str = "") -> list[tuple[int, int]]:
    """Return the ascending (begin, end) offsets of the forms of *keywords* in *text*."""
    rules = load_word_rules(language)
    folded, places = fold_each_character(text)
    words = [" "] * (len(folded) + 1)
    for match in compile_term_pattern().finditer(folded):
        words[match.start() + 1 : match.end() + 1] = match.group()
    spaced = f"{''.join(words)} "
    offsets: list[_Offsets] = []
    for term in parse_question(keywords, rules).terms:
        offsets += _list_offsets(term, spaced, rules.endings)
    spans: list[tuple[int, int]] = []
    for begin, end in sorted(offsets):
        # In scripts without spaces, pairs of characters overlap, and a pair has the offsets of its
        # first character.
        is_pair = is_unspaced(spaced[begin]) and spaced[end] != " "
        span = places[begin - 1], places[end - 1 if is_pair else end - 2] + 1
        if spans and spans[-1][1] > span[0]:
            previous = spans.pop()
            span = previous[0], max(previous[1], span[1])
        spans.append(span)
    return spans


def count_terms(
    texts: Sequence[str | None], query_terms: Sequence[str], query_pairs: frozenset[Pair]
) -> list[TextTerms]:
    """Count the *query_terms* in each text, and find the *query_pairs* that occur in each text.

    Only the beginning of a long text is read (`MOST_READ`). For the many words of a model, this is
    faster than `find_words`, which finds all forms and positions of a question's few words.
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
    for text in shorten_texts(texts):
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


# --- BM25 -----------------------------------------------------------------------------------------


def find_terms(text: str) -> frozenset[str]:
    """Return the distinct words of *text*, folded and without a plural s."""
    return frozenset(map(strip_plural, split_terms(text)))


def compute_gains(text_terms: Sequence[TextTerms]) -> Gains:
    """Return how much each term and pair adds to the BM25 score of each text that contains it.

    gain of a term = idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length))
    gain of a pair = idf x `PAIR`

    - tf is how often the text contains the term.
    - idf comes from `compute_idf`, and the mean length from all texts.
    - `K1` limits the gain of a term that occurs often. `B` lowers the gain in long texts.
    """
    text_count = len(text_terms)
    holders: Counter[Hashable] = Counter()
    for text in text_terms:
        holders.update(text.counts.keys())
        holders.update(text.pairs)
    idf = compute_idf(holders, text_count)
    gains: dict[Hashable, list[tuple[int, float]]] = {term: [] for term in idf}
    mean_length = sum(text.length for text in text_terms) / max(1, text_count)
    for place, (counts, length, pairs) in enumerate(text_terms):
        damping = K1 * (1.0 - B + B * length / mean_length) if counts else 0.0
        for term, tf in counts.items():
            gains[term].append((place, idf[term] * tf * (K1 + 1.0) / (tf + damping)))
        for pair in pairs:
            gains[pair].append((place, PAIR * idf[pair]))
    return gains


def sum_gains(terms: Iterable[Hashable], gains: Gains, text_count: int) -> list[float]:
    """Return the sum of the *gains* of *terms*, words or pairs of words, for each text."""
    sums = [0.0] * text_count
    for term in terms:
        for place, gain in gains.get(term, ()):
            sums[place] += gain
    return sums


def compute_idf(
    document_frequencies: Mapping[Hashable, int], text_count: int
) -> dict[Hashable, float]:
    """Return the idf (inverse document frequency) of each term; rare terms have a high idf.

    idf = log(1 + (text_count - df + 0.5) / (df + 0.5)), where df is the number of texts that
    contain the term. *document_frequencies* maps each term to its df.
    """
    return {
        term: log(1.0 + (text_count - df + 0.5) / (df + 0.5))
        for term, df in document_frequencies.items()
    }


def shorten_texts(texts: Sequence[str | None]) -> list[str]:
    """Return *texts*, cut to `MOST_READ` characters in all."""
    share = MOST_READ // max(1, len(texts))
    most = None if sum(len(text or "") for text in texts) <= MOST_READ else share
    return [(text or "")[:most] for text in texts]


def strip_plural(word: str) -> str:
    """Return *word* without a plural s, where that is safe in every supported language."""
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def normalise_scores(scores: Sequence[float]) -> list[float]:
    """Scale *scores* so that lists with different ranges can be compared.

    result = min(`MOST`, (score - lowest) / (`MEANS` x (mean - lowest)))

    The lowest and the mean are those of *scores*. If all are equal, every result is 0.
    """
    low, high = min(scores), max(scores)
    # Scores that differ only by rounding are equal.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    width = MEANS * (sum(scores) / len(scores) - low)
    return [min(MOST, (score - low) / width) for score in scores]
