"""Find a team's glossary terms in questions, and other forms of these terms in passages.

If the question contains "CR", a passage with "change request" counts like a passage with "CR". The
question is not changed. A glossary term is ignored if its meaning in the question is uncertain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Final, NamedTuple

from qtmiddleware.preprocessing.text import fold_text
from qtmiddleware.retrieval.bm25 import strip_plural
from qtmiddleware.retrieval.question_words import find_matching_words, load_word_rules

MOST_OTHERS: Final = 16
"""The maximum number of other forms of a term that are searched."""

_WORD: Final = re.compile(r"\w+")
# Next to one of these characters, a term is part of a code, an address or a file name.
_BEFORE: Final = r"(?<![\w@#/\\.-])"
_AFTER: Final = r"(?![\w@#/\\+]|[-.]\w)"
_GAP: Final = re.compile(r"[\s'’‐-―-]+")
_ANY_GAP: Final = r"[\s'’‐-―-]{1,3}"
# A form in capitals counts as an abbreviation. Exception: it has several words, and one of them has
# more letters than this.
_LONGEST_PART: Final = 5
_LONGEST_SMALL_WORD: Final = 3

Row = tuple[Sequence[str], Sequence[str]]
"""A glossary entry: the forms to find in questions, and the forms to find in passages."""


class Term(NamedTuple):
    """A glossary term that occurs in a question.

    Attributes:
        written: The term as written in the question.
        form: The term as written in the glossary.
        meanings: The possible meanings of the term. Each meaning is a tuple of other forms.
        is_certain: Whether it is certain which meaning the term has in the question.
    """

    written: str
    form: str
    meanings: tuple[tuple[str, ...], ...]
    is_certain: bool

    def __str__(self) -> str:
        return f"{self.form} = {' or '.join(', '.join(forms) for forms in self.meanings)}"


class Glossary:
    """A team's glossary, indexed by the words of its terms. It is immutable and thread-safe."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # Several forms may have the same words: CR and cr, C and C++.
        self._forms: dict[str, list[tuple[str, Sequence[str]]]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}
        for forms, other_forms in rows:
            # An abbreviation with two meanings needs an entry with at least three forms.
            shorts = (
                [form for form in forms if len(_list_meanings(form, other_forms)) > 1]
                if len(other_forms) > 2
                else []
            )
            for form in forms:
                # The other meanings of an abbreviation are not forms of this meaning.
                abbreviations = [short for short in shorts if _is_abbreviation_of(short, form)]
                self._add_form_to_index(form, abbreviations or other_forms)

    def _add_form_to_index(self, form: str, other_forms: Sequence[str]) -> None:
        """Add *form* to the index, together with the *other_forms* of the same entry."""
        words = [_fold_word(word) for word in _WORD.findall(form)]
        if not words or (len(other_forms) == 1 and other_forms[0] == form):
            return
        self._forms.setdefault(" ".join(words), []).append((form, other_forms))
        # The longest terms come first, so that they are found before terms that are part of them.
        lengths = self._lengths.get(words[0])
        if lengths is None:
            self._lengths[words[0]] = (len(words),)
        elif len(words) not in lengths:
            self._lengths[words[0]] = tuple(sorted((*lengths, len(words)), reverse=True))

    def __len__(self) -> int:
        return len(set(self))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(form for rows in self._forms.values() for form, _ in rows))

    def find_terms(self, question: str, language: str = "") -> tuple[Term, ...]:
        """Return the glossary terms that occur in *question*, without repeats.

        If terms overlap, the first one is returned. If terms begin at the same word, the longest
        one is returned.
        """
        words = list(_WORD.finditer(question))
        folded = [_fold_word(word.group()) for word in words]
        terms: dict[str, Term] = {}
        position, covered = 0, 0
        while position < len(words):
            size = 1
            for count in self._lengths.get(folded[position], ()):
                rows = self._forms.get(" ".join(folded[position : position + count]), ())
                start = words[position].start()
                end = words[min(position + count, len(words)) - 1].end()
                fitting = [row for row in rows if _is_form_at(row[0], question, start, end)]
                # In "HOW do I ...", the first word is a question word and not a term.
                if (
                    not position
                    and count == 1
                    and folded[0] in load_word_rules(language or "en").function_words
                ):
                    fitting = []
                if fitting:
                    form = fitting[0][0]
                    other_forms = dict.fromkeys(
                        other
                        for _, other_forms in fitting
                        for other in other_forms
                        if other != form
                    )
                    before, *_, after = re.split(r"(\w+)", form)
                    written = f"{before}{question[start:end]}{after}"
                    terms.setdefault(form, _build_term(written, form, list(other_forms), language))
                    size, covered = count, covered + count
                    break
            position += size
        # If the whole question is in capitals, abbreviations look like ordinary words.
        if covered < len(words) and question.isupper():
            terms = {
                form: term
                for form, term in terms.items()
                if not any(map(_is_abbreviation, _WORD.findall(form)))
            }
        return tuple(_choose_meaning_by_words(term, folded) for term in terms.values())

    def is_ambiguous(self, form: str) -> bool:
        """Return whether *form* has several meanings in this glossary."""
        rows = self._forms.get(" ".join(map(_fold_word, _WORD.findall(form))), ())
        other_forms = [
            other
            for spelling, other_forms in rows
            if spelling == form
            for other in other_forms
            if other != form
        ]
        return len(_list_meanings(form, other_forms)) > 1


def _build_term(spelling: str, form: str, other_forms: Sequence[str], language: str) -> Term:
    """Return the `Term` for *form*, which the question spells as *spelling*."""
    meanings = _list_meanings(form, other_forms)
    # "HOW" may be a term, but it is more often a common word.
    is_word = fold_text(form) in load_word_rules(language or "en").function_words
    return Term(spelling, form, meanings, len(meanings) == 1 and not is_word)


def _list_meanings(form: str, other_forms: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the meanings of *form*, each as a tuple of other forms.

    If *form* abbreviates several of *other_forms*, each of these long forms is a separate meaning.
    Otherwise, *other_forms* together are one meaning.
    """
    distinct = list(
        {
            " ".join(map(_fold_word, _WORD.findall(other))): other
            for other in reversed(other_forms)
        }.values()
    )
    long_forms = [other for other in reversed(distinct) if _is_abbreviation_of(form, other)]
    return (
        tuple((other,) for other in long_forms)
        if len(long_forms) > 1
        else (tuple(other_forms[:MOST_OTHERS]),)
    )


def _is_abbreviation_of(short_form: str, long_form: str) -> bool:
    """Return whether *short_form* consists of the initials of *long_form*.

    The initials of short words, such as "of", may be missing.
    """
    letters = fold_text("".join(_WORD.findall(short_form)))
    words = _WORD.findall(fold_text(long_form))
    if len(words) < 2 or not any(map(_is_abbreviation, _WORD.findall(short_form))):
        return False
    main_words = [word for word in words if len(word) > _LONGEST_SMALL_WORD]
    return letters in ("".join(word[0] for word in words), "".join(word[0] for word in main_words))


def _choose_meaning_by_words(term: Term, question_words: Sequence[str]) -> Term:
    """Return *term* with only the meaning whose last word is in the question.

    If there is no such meaning, or more than one, *term* is returned unchanged.
    """
    if term.is_certain or len(term.meanings) < 2:
        return term
    # Only the last word tells the meaning. In "Which person is the CIP?", CIP is some kind of
    # person. But "PM projects" need not be about project managers.
    fitting = [
        forms
        for forms in term.meanings
        if _fold_word(_WORD.findall(forms[0])[-1]) in question_words
    ]
    return term._replace(meanings=tuple(fitting), is_certain=True) if len(fitting) == 1 else term


def choose_term_meanings_and_notes(
    terms: Sequence[Term], texts: Sequence[str | None], keywords: str, language: str
) -> tuple[list[Term], list[str]]:
    """Choose the meaning of each term from the texts of the passages.

    - An uncertain term gets the meaning that occurs in the text with the most of the question's
      other *keywords*.
    - If two meanings tie, or if no text contains both a meaning and a keyword, the term is not
      used.
    - A certain term that may also be a common word, such as TAB, must pass the same check.

    Args:
        terms: The terms of the question.
        texts: The texts of the passages; ``None`` for a passage without text.
        keywords: The keywords of the question.
        language: The code of the question's language; ``""`` if unknown.

    Returns:
        The terms with a certain meaning, and a note on each of the other terms.
    """
    settled, notes = list[Term](), list[str]()
    for term in terms:
        word = _lowercase_abbreviation(term.form)
        # A term may be a common word too: "Use the TAB key" may be about a key.
        is_common = term.is_certain and any(
            word and text and find_form_ends(word, text, is_case_sensitive=True) for text in texts
        )
        if term.is_certain and not is_common:
            settled.append(term)
            continue
        other_keywords = _remove_term_words(keywords, term.written, language)
        counts = [
            _count_keywords_beside_forms(forms, texts, other_keywords, language)
            for forms in term.meanings
        ]
        best = max(counts)
        if is_common and word:
            best = max(
                best,
                _count_keywords_beside_forms(
                    (word,), texts, other_keywords, language, is_case_sensitive=True
                )
                + 1,
            )
        if best and counts.count(best) == 1:
            settled.append(
                term._replace(meanings=(term.meanings[counts.index(best)],), is_certain=True)
            )
        else:
            notes.append(f"{term.form} not used: nothing beside it decides what it means")
    return settled, notes


def _lowercase_abbreviation(form: str) -> str:
    """Return *form* in lower case if it is an abbreviation: ``TAB`` becomes ``tab``.

    Returns ``""`` if *form* is not an abbreviation, or if it contains characters other than
    letters.
    """
    return form.lower() if form.isalpha() and _is_abbreviation(form) else ""


def _count_keywords_beside_forms(
    forms: Iterable[str],
    texts: Sequence[str | None],
    other_keywords: str,
    language: str,
    *,
    is_case_sensitive: bool = False,
) -> int:
    """Return the largest number of *other_keywords* in any text that contains one of *forms*.

    Returns 0 if no text contains a form. If *is_case_sensitive* is true, the text must contain the
    form in the same case.
    """
    holding = [
        text
        for text in texts
        if text
        and any(find_form_ends(form, text, is_case_sensitive=is_case_sensitive) for form in forms)
    ]
    return max(
        (len(find_matching_words(other_keywords, text, language)) for text in holding), default=0
    )


def _remove_term_words(keywords: str, term: str, language: str) -> str:
    """Return *keywords* without the words of *term* and without function words."""
    removed_words = (
        set(map(_fold_word, _WORD.findall(term))) | load_word_rules(language or "en").function_words
    )
    return " ".join(
        word
        for word in keywords.split()
        if removed_words.isdisjoint(map(_fold_word, _WORD.findall(word)))
    )


def add_glossary_terms(
    terms: Sequence[Term],
    texts: Sequence[str | None],
    glossary: Glossary,
    keywords: str,
    language: str,
) -> list[str | None]:
    """Insert each term, as the question writes it, after its other forms in *texts*.

    For example, if the question contains "CR", "change request" becomes "change request CR". After
    an ambiguous form, a term is inserted only if the text contains another keyword of the question.

    Args:
        terms: The terms of the question whose meaning is certain.
        texts: The texts of the passages; ``None`` for a passage without text.
        glossary: The glossary, which knows the ambiguous forms.
        keywords: The keywords of the question.
        language: The code of the question's language; ``""`` if unknown.
    """
    new_texts = list(texts)
    for term in terms:
        for form in term.meanings[0]:
            other_keywords = (
                _remove_term_words(keywords, term.written, language)
                if glossary.is_ambiguous(form)
                else None
            )
            for index, text in enumerate(new_texts):
                if (
                    text
                    and (ends := find_form_ends(form, text))
                    and (
                        other_keywords is None
                        or find_matching_words(other_keywords, text, language)
                    )
                ):
                    new_texts[index] = insert_text_at_offsets(text, ends, f" {term.written}")
    return new_texts


def insert_text_at_offsets(text: str, offsets: Sequence[int], added_text: str) -> str:
    """Return *text* with *added_text* inserted at each of *offsets*."""
    parts = [
        text[start:end] for start, end in zip((0, *offsets), (*offsets, len(text)), strict=True)
    ]
    return added_text.join(parts)


def find_form_ends(form: str, text: str, *, is_case_sensitive: bool = False) -> list[int]:
    """Return the offsets at which *form* ends in *text*.

    If *is_case_sensitive* is true, only occurrences in the same case count.
    """
    if not _WORD.search(form):
        return []
    piece, is_exact, pattern = _compile_substring_and_pattern(form, is_case_sensitive)
    if piece not in (text if is_exact else text.lower()):
        return []
    return [match.end() for match in pattern.finditer(text)]


@lru_cache(maxsize=1_024)
def _compile_substring_and_pattern(
    form: str, is_case_sensitive: bool
) -> tuple[str, bool, re.Pattern[str]]:
    """Return (substring, is_exact, pattern) to search texts for *form*.

    - pattern matches the whole form.
    - A text without the substring cannot contain the form. Most texts are rejected by this check,
      which is much faster.
    - is_exact says whether the case of the substring matters.
    """
    exact = (
        frozenset(_WORD.findall(form)) if is_case_sensitive else _find_case_sensitive_words(form)
    )
    parts = re.split(r"(\w+)", form)
    gaps = [_build_separator_pattern(gap) for gap in parts[::2]]
    words = [
        f"(?-i:{re.escape(word)})" if word in exact else re.escape(word) for word in parts[1::2]
    ]
    last = parts[-2]
    # A form in the singular also matches the plural, and the reverse.
    if not parts[-1] and last[-1:].isalpha():
        bare = last if last in exact else _strip_plural_ending(last)
        words[-1] = (
            f"(?-i:{re.escape(bare)}s?)"
            if last in exact
            else _build_singular_or_plural_pattern(bare)
        )
    body = "".join(gap + word for gap, word in zip(gaps, [*words, ""], strict=True))
    pattern = re.compile(_BEFORE + body + _AFTER, re.IGNORECASE)
    word = parts[1]
    return (
        (word, True, pattern)
        if word in exact
        else (_strip_plural_ending(word.lower()).rstrip("y"), False, pattern)
    )


def _build_singular_or_plural_pattern(word: str) -> str:
    """Return a regular expression that matches *word* in the singular and in the plural."""
    return (
        f"{re.escape(word[:-1])}(?:ys?|ies)"
        if word[-1:].lower() == "y"
        else f"{re.escape(word)}(?:e?s)?"
    )


def _strip_plural_ending(word: str) -> str:
    """Return *word* without a plural ending: ``replies`` becomes ``reply``."""
    return (
        f"{word[:-3]}y"
        if len(word) > _LONGEST_PART and word.endswith("ies")
        else strip_plural(word)
    )


def _build_separator_pattern(separator: str) -> str:
    """Return a regular expression for the characters between two words of a glossary term.

    Runs of spaces, hyphens and apostrophes match each other.
    """
    if not separator:
        return ""
    pieces = _GAP.split(separator)
    return _ANY_GAP.join(map(re.escape, pieces)) if len(pieces) > 1 else re.escape(separator)


def _is_form_at(form: str, question: str, start: int, end: int) -> bool:
    """Return whether the text of *question* from *start* to *end* is an occurrence of *form*.

    The caller has already compared the words, except for case, accents and plural. This function
    checks the case, the characters between the words, and the characters around the form.
    """
    exact = _find_case_sensitive_words(form)
    excerpt = question[start:end]
    form_parts = re.split(r"(\w+)", form)
    question_parts = re.split(r"(\w+)", excerpt)
    for word, other in zip(form_parts[1::2], question_parts[1::2], strict=True):
        if word in exact and other not in (word, f"{word}s"):
            return False
    inner = zip(form_parts[2:-1:2], question_parts[2:-1:2], strict=True)
    if any(_GAP.sub(" ", form_gap) != _GAP.sub(" ", gap) for form_gap, gap in inner):
        return False
    before = question[:start]
    after = question[end:]
    if not before.endswith(form_parts[0]) or not after.startswith(form_parts[-1]):
        return False
    before = before.removesuffix(form_parts[0])
    after = after.removeprefix(form_parts[-1])
    return not (re.search(r"[\w@#/\\.-]\Z", before) or re.match(r"[\w@#/\\+]|[-.]\w", after))


def _find_case_sensitive_words(form: str) -> Set[str]:
    """Return the words of *form* that a text must contain in the same case.

    These are the abbreviations. A form of several long words in capitals has none, because capitals
    then do not mark an abbreviation.
    """
    words = _WORD.findall(form)
    if len(words) > 1 and form.isupper() and max(map(len, words)) > _LONGEST_PART:
        return frozenset()
    return frozenset(filter(_is_abbreviation, words))


def _is_abbreviation(word: str) -> bool:
    """Return whether *word* is written like an abbreviation, such as CR, PhD, S3 or K."""
    capitals = sum(map(str.isupper, word))
    return capitals > 1 or (capitals == 1 and (len(word) == 1 or not word.isalpha()))


def _fold_word(word: str) -> str:
    """Return *word* in lower case, without accents and without a plural ending."""
    if len(word) > 2 and word[-1] == "s" and word[:-1].isupper():
        word = word[:-1]
    return _strip_plural_ending(fold_text(word))
