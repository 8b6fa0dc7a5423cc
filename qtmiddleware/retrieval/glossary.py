"""A team's own words: which terms of a question a glossary knows, and which passages hold them in another form.

A glossary only adds. A passage that holds "change request" counts as one that holds the "CR" of the
question; the question keeps its words and their number. What is uncertain is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_accents
from qtmiddleware.retrieval.bm25 import strip_plural
from qtmiddleware.retrieval.question_words import find_held_words, load_word_rules

MOST_OTHERS: Final = 16
"""How many other forms of one term are looked for."""

_WORD: Final = re.compile(r"\w+")
# Beside one of these a term is part of a code, an address or a file name.
_BEFORE: Final = r"(?<![\w@#/\\.-])"
_AFTER: Final = r"(?![\w@#/\\+]|[-.]\w)"
_GAP: Final = re.compile(r"[\s'’‐-―-]+")
_ANY_GAP: Final = r"[\s'’‐-―-]{1,3}"
# A form in capitals is an abbreviation, unless it has several words and a longer one.
_LONGEST_PART: Final = 5
_SMALL: Final = 3

Row = tuple[Sequence[str], Sequence[str]]
"""Forms, and the forms that a passage may hold in their place."""


class Term(NamedTuple):
    """A term of a question that the glossary knows.

    - *written*: as it stands in the question. *form*: as it stands in the glossary.
    - *meanings*: the other forms of each meaning. A term that *is_certain* has one meaning.
    """

    written: str
    form: str
    meanings: tuple[tuple[str, ...], ...]
    is_certain: bool

    def __str__(self) -> str:
        return f"{self.form} = {' or '.join(', '.join(forms) for forms in self.meanings)}"


class Glossary:
    """The terms of a team, by their words. Nothing changes in it once it is made, so threads may share it."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # Of one spelling there may be several forms: CR and cr, C and C++.
        self._forms: dict[str, list[tuple[str, Sequence[str]]]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}
        for forms, others in rows:
            shorts = (
                [form for form in forms if len(_split_meanings(form, others)) > 1]
                if len(others) > 2
                else []
            )
            for form in forms:
                # What an abbreviation means else is no form of what it means here.
                mine = [short for short in shorts if _abbreviates(short, form)]
                self._add(form, mine or others)

    def _add(self, form: str, others: Sequence[str]) -> None:
        words = [_fold_word(word) for word in _WORD.findall(form)]
        if not words or (len(others) == 1 and others[0] == form):
            return
        self._forms.setdefault(" ".join(words), []).append((form, others))
        lengths = self._lengths.get(words[0])
        if lengths is None:
            self._lengths[words[0]] = (len(words),)
        elif len(words) not in lengths:
            self._lengths[words[0]] = tuple(sorted((*lengths, len(words)), reverse=True))

    def __len__(self) -> int:
        return len(set(self))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(form for known in self._forms.values() for form, _ in known))

    def find_terms(self, question: str, language: str = "") -> tuple[Term, ...]:
        """Return the terms that stand in *question*, each once; of overlapping ones the longest that begins first."""
        words = list(_WORD.finditer(question))
        folded = [_fold_word(word.group()) for word in words]
        found: dict[str, Term] = {}
        at, covered = 0, 0
        while at < len(words):
            size = 1
            for count in self._lengths.get(folded[at], ()):
                known = self._forms.get(" ".join(folded[at : at + count]), ())
                start, end = words[at].start(), words[min(at + count, len(words)) - 1].end()
                fitting = [row for row in known if _is_written(row[0], question, start, end)]
                # "HOW do I" begins a question and is no term.
                if (
                    not at
                    and count == 1
                    and folded[0] in load_word_rules(language or "en").function_words
                ):
                    fitting = []
                if fitting:
                    form = fitting[0][0]
                    others = dict.fromkeys(
                        other for _, others in fitting for other in others if other != form
                    )
                    before, *_, after = re.split(r"(\w+)", form)
                    written = f"{before}{question[start:end]}{after}"
                    found.setdefault(form, _build_term(written, form, list(others), language))
                    size, covered = count, covered + count
                    break
            at += size
        # Where everything is in capitals they do not tell an abbreviation from a word.
        if covered < len(words) and question.isupper():
            found = {
                form: term
                for form, term in found.items()
                if not any(map(_is_exact, _WORD.findall(form)))
            }
        return tuple(_settle_by_words(term, folded) for term in found.values())

    def is_ambiguous(self, form: str) -> bool:
        """Whether *form* has several meanings in this glossary."""
        known = self._forms.get(" ".join(map(_fold_word, _WORD.findall(form))), ())
        others = [
            other
            for spelling, others in known
            if spelling == form
            for other in others
            if other != form
        ]
        return len(_split_meanings(form, others)) > 1


def _build_term(written: str, form: str, others: Sequence[str], language: str) -> Term:
    meanings = _split_meanings(form, others)
    # "HOW" may be a term, and is a word first.
    is_word = fold_accents(form) in load_word_rules(language or "en").function_words
    return Term(written, form, meanings, len(meanings) == 1 and not is_word)


def _split_meanings(form: str, others: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The *others* as one meaning; as several, if *form* abbreviates more than one of them."""
    distinct = list(
        {
            " ".join(map(_fold_word, _WORD.findall(other))): other for other in reversed(others)
        }.values()
    )
    long = [other for other in reversed(distinct) if _abbreviates(form, other)]
    return tuple((other,) for other in long) if len(long) > 1 else (tuple(others[:MOST_OTHERS]),)


def _abbreviates(short: str, long: str) -> bool:
    """Whether *short* is made of the initials of *long*; those of small words may be left out."""
    wanted = fold_accents("".join(_WORD.findall(short)))
    words = _WORD.findall(fold_accents(long))
    if len(words) < 2 or not any(map(_is_exact, _WORD.findall(short))):
        return False
    main = [word for word in words if len(word) > _SMALL]
    return wanted in ("".join(word[0] for word in words), "".join(word[0] for word in main))


def _settle_by_words(term: Term, question: Sequence[str]) -> Term:
    """*term* with the one meaning whose last word stands in the question, if there is one."""
    if term.is_certain or len(term.meanings) < 2:
        return term
    # The last word says what a thing is: "Which person is the CIP?" "PM projects" says nothing of
    # project managers.
    fitting = [
        forms for forms in term.meanings if _fold_word(_WORD.findall(forms[0])[-1]) in question
    ]
    return term._replace(meanings=tuple(fitting), is_certain=True) if len(fitting) == 1 else term


def settle_terms(
    terms: Sequence[Term], texts: Sequence[str | None], keywords: str, language: str
) -> tuple[list[Term], list[str]]:
    """Return the *terms* whose meaning is certain or decided by the *texts*, and what is said of the others.

    A meaning is decided if a text that holds it holds more of the question's other *keywords* than
    any text that holds another meaning, and at least one.
    """
    settled, notes = list[Term](), list[str]()
    for term in terms:
        word = _find_word(term.form)
        # "Use the TAB key" may be about a key.
        is_common = term.is_certain and any(
            word and text and find_form(word, text, has_case=True) for text in texts
        )
        if term.is_certain and not is_common:
            settled.append(term)
            continue
        rest = _remove_words(keywords, term.written, language)
        counts = [_count_beside(forms, texts, rest, language) for forms in term.meanings]
        best = max(counts)
        if is_common and word:
            best = max(best, _count_beside((word,), texts, rest, language, has_case=True) + 1)
        if best and counts.count(best) == 1:
            settled.append(
                term._replace(meanings=(term.meanings[counts.index(best)],), is_certain=True)
            )
        else:
            notes.append(f"{term.form} not used: nothing beside it decides what it means")
    return settled, notes


def _find_word(form: str) -> str:
    """The word that *form* is in small letters; empty if it is no abbreviation of letters alone."""
    return form.lower() if form.isalpha() and _is_exact(form) else ""


def _count_beside(
    forms: Iterable[str],
    texts: Sequence[str | None],
    rest: str,
    language: str,
    *,
    has_case: bool = False,
) -> int:
    holding = [
        text
        for text in texts
        if text and any(find_form(form, text, has_case=has_case) for form in forms)
    ]
    return max((len(find_held_words(rest, text, language)) for text in holding), default=0)


def _remove_words(keywords: str, written: str, language: str) -> str:
    idle = (
        set(map(_fold_word, _WORD.findall(written)))
        | load_word_rules(language or "en").function_words
    )
    return " ".join(
        word for word in keywords.split() if idle.isdisjoint(map(_fold_word, _WORD.findall(word)))
    )


def write_terms(
    terms: Sequence[Term],
    texts: Sequence[str | None],
    glossary: Glossary,
    keywords: str,
    language: str,
) -> list[str | None]:
    """Return *texts* with the question's form of each of the *terms* behind every other form of it.

    Behind an ambiguous form only in texts that hold another of the question's *keywords* too.
    """
    written = list(texts)
    for term in terms:
        for form in term.meanings[0]:
            rest = (
                _remove_words(keywords, term.written, language)
                if glossary.is_ambiguous(form)
                else None
            )
            for place, text in enumerate(written):
                if (
                    text
                    and (ends := find_form(form, text))
                    and (rest is None or find_held_words(rest, text, language))
                ):
                    written[place] = insert_behind(text, ends, f" {term.written}")
    return written


def expand_question(question: str, terms: Sequence[Term]) -> str:
    """Return *question* with the other forms of each of its *terms* in brackets behind it, if they are certain."""
    for term in terms:
        at = question.find(term.written)
        if term.is_certain and at >= 0:
            end = at + len(term.written)
            question = insert_behind(question, [end], f" ({', '.join(term.meanings[0])})")
    return question


def insert_behind(text: str, ends: Sequence[int], addition: str) -> str:
    """Return *text* with *addition* at each of the places *ends*."""
    parts = [text[start:end] for start, end in zip((0, *ends), (*ends, len(text)), strict=True)]
    return addition.join(parts)


def find_form(form: str, text: str, *, has_case: bool = False) -> list[int]:
    """Return where *form* ends in *text*, each time it stands there; in its own case alone if it *has_case*."""
    if not _WORD.search(form):
        return []
    first, is_exact, pattern = _compile_form(form, has_case)
    if first not in (text if is_exact else text.lower()):
        return []
    return [match.end() for match in pattern.finditer(text)]


@lru_cache(maxsize=1_024)
def _compile_form(form: str, has_case: bool) -> tuple[str, bool, re.Pattern[str]]:
    """A piece without which *form* stands in no text, whether its case counts, and what finds it."""
    exact = frozenset(_WORD.findall(form)) if has_case else _find_exact(form)
    parts = re.split(r"(\w+)", form)
    written = [_write_gap(gap) for gap in parts[::2]]
    words = [
        f"(?-i:{re.escape(word)})" if word in exact else re.escape(word) for word in parts[1::2]
    ]
    last = parts[-2]
    # A plural meets a singular and the reverse.
    if not parts[-1] and last[-1:].isalpha():
        bare = last if last in exact else _strip_ending(last)
        words[-1] = f"(?-i:{re.escape(bare)}s?)" if last in exact else _write_endings(bare)
    body = "".join(gap + word for gap, word in zip(written, [*words, ""], strict=True))
    pattern = re.compile(_BEFORE + body + _AFTER, re.IGNORECASE)
    word = parts[1]
    return (
        (word, True, pattern)
        if word in exact
        else (_strip_ending(word.lower()).rstrip("y"), False, pattern)
    )


def _write_endings(word: str) -> str:
    """A pattern for *word* and its plural."""
    return (
        f"{re.escape(word[:-1])}(?:ys?|ies)"
        if word[-1:].lower() == "y"
        else f"{re.escape(word)}(?:e?s)?"
    )


def _strip_ending(word: str) -> str:
    """*word* without a plural's ending: replies, reply."""
    return (
        f"{word[:-3]}y"
        if len(word) > _LONGEST_PART and word.endswith("ies")
        else strip_plural(word)
    )


def _write_gap(gap: str) -> str:
    if not gap:
        return ""
    pieces = _GAP.split(gap)
    return _ANY_GAP.join(map(re.escape, pieces)) if len(pieces) > 1 else re.escape(gap)


def _is_written(form: str, question: str, start: int, end: int) -> bool:
    """Whether what stands from *start* to *end* in *question*, of the same folded words, is *form*."""
    exact, said = _find_exact(form), question[start:end]
    wanted, given = re.split(r"(\w+)", form), re.split(r"(\w+)", said)
    for word, other in zip(wanted[1::2], given[1::2], strict=True):
        if word in exact and other not in (word, f"{word}s"):
            return False
    inner = zip(wanted[2:-1:2], given[2:-1:2], strict=True)
    if any(_GAP.sub(" ", one) != _GAP.sub(" ", other) for one, other in inner):
        return False
    before, after = question[:start], question[end:]
    if not before.endswith(wanted[0]) or not after.startswith(wanted[-1]):
        return False
    before, after = before.removesuffix(wanted[0]), after.removeprefix(wanted[-1])
    return not (re.search(r"[\w@#/\\.-]\Z", before) or re.match(r"[\w@#/\\+]|[-.]\w", after))


def _find_exact(form: str) -> Set[str]:
    """The words of *form* whose case counts."""
    words = _WORD.findall(form)
    if len(words) > 1 and form.isupper() and max(map(len, words)) > _LONGEST_PART:
        return frozenset()
    return frozenset(filter(_is_exact, words))


def _is_exact(word: str) -> bool:
    """Whether *word* is written as abbreviations are: CR, PhD, S3, K."""
    capitals = sum(map(str.isupper, word))
    return capitals > 1 or (capitals == 1 and (len(word) == 1 or not word.isalpha()))


def _fold_word(word: str) -> str:
    """*word* without case, accents and plural."""
    if len(word) > 2 and word[-1] == "s" and word[:-1].isupper():
        word = word[:-1]
    return _strip_ending(fold_accents(word))
