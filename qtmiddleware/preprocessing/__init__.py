"""Questions to keywords by rules alone: no model, no network, microseconds a query.

`prepare` and `preprocess` strip a question of the words that only make it a question;
`protected_spans` names what a rewrite of it must not lose. Word lists are read from their files
once, when the first query comes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.preprocessing.lexicon import (
    DEFAULT,
    Lexicon,
    Markers,
    adjust,
    check_words,
    collect_markers,
    guess_language,
    load,
)
from qtmiddleware.preprocessing.spans import Span, find_spans
from qtmiddleware.preprocessing.stripping import Stripped, fold_tokens, is_all_caps, strip
from qtmiddleware.preprocessing.text import dominant_script, fold
from qtmiddleware.preprocessing.tokeniser import tokenise

__all__ = [
    "LANGUAGES",
    "Prepared",
    "Span",
    "detect_language",
    "dominant_script",
    "prepare",
    "preprocess",
    "protected_spans",
]

AUTO = "auto"

PASSES = 4
"""How often the rules may be run over their own result before the query is left as it was."""


@dataclass(eq=False, repr=False, slots=True)
class Prepared:
    """A query's *keywords*, and the code of the word list they were found with (``""`` where none was used)."""

    keywords: str
    language: str


def prepare(
    text: str,
    *,
    language: str = AUTO,
    keep_words: Collection[str] = (),
    extra_words: Collection[str] = (),
) -> Prepared:
    """`preprocess`, with the language whose words were removed (``""`` where no list was used)."""
    _check_text(text)
    lists = _word_lists(
        check_words(keep_words, "keepWords"), check_words(extra_words, "extraWords")
    )
    code = _check_language(language)
    result, used = _run_pass(text, code, lists)
    # What the rules leave may itself begin like a question. They run until nothing changes, or not
    # at all: either way preparing the result again in that language gives the result, unless a name
    # opens it that would be taken for a question word.
    for _ in range(PASSES):
        before = result.keywords
        if used and _is_settled(before, lists.known[used]):
            return Prepared(before, used)
        result, _used = (
            (result, used) if result.opens_with_name else _run_pass(before, code or used, lists)
        )
        if result.keywords == before:
            return Prepared(before, used)
    return Prepared(text, used)


def preprocess(
    text: str,
    *,
    language: str = AUTO,
    keep_words: Collection[str] = (),
    extra_words: Collection[str] = (),
) -> str:
    """The keywords of *text*.

    *language* is a code such as ``en``, with a region if need be (``pt_BR``), or ``auto``.
    *keep_words*, words or phrases, are never removed; *extra_words* are removed too. A text in a
    script without a word list, a blank one and one that has nothing but removable words come back
    unchanged. Preparing keywords again in their language changes nothing, except where they begin
    with a name that is also a question word (Can Yaman).

    Raises `InvalidQuery` if *text* is no string, `ConfigError` for an unknown language or word
    lists that are none.

    >>> preprocess("Does Jaco have any health concerns?")
    'jaco health concerns'
    """
    return prepare(text, language=language, keep_words=keep_words, extra_words=extra_words).keywords


def detect_language(text: str) -> str:
    """The code of the language *text* is written in, ``""`` where it is not clear or has no word list.

    Raises `InvalidQuery` if *text* is no string.
    """
    _check_text(text)
    if not _is_latin(text):
        return ""
    lists = _word_lists()
    tokens = tokenise(text)
    return lists.guess(text, fold_tokens(tokens, is_all_caps(tokens, lists.small)))


def protected_spans(text: str, *, language: str = AUTO) -> tuple[Span, ...]:
    """What a rewrite of *text* must not lose, from left to right, no two overlapping.

    Codes, numbers with their units, quoted phrases (without the marks), negations, addresses and
    names. Names are told by their capitals, so a query in lower case or in capitals throughout has
    none; in German, where every noun has a capital, only acronyms and names of several words are.
    Errors are those of `prepare`.
    """
    _check_text(text)
    lists = _word_lists()
    code = _check_language(language)
    tokens = tokenise(text)
    all_caps = is_all_caps(tokens, lists.small)
    used = (code or lists.guess(text, fold_tokens(tokens, all_caps))) if _is_latin(text) else ""
    return find_spans(text, tokens, lists.lexicons[used or DEFAULT], all_caps)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class _WordLists:
    """All word lists, ready for use; ``""`` names the empty one.

    *known* are, by language, the words that a rule of it may remove. *small* are all stop words but
    acronyms.
    """

    lexicons: dict[str, Lexicon]
    known: dict[str, frozenset[str]]
    markers: Markers
    small: frozenset[str]
    is_extended: bool

    def guess(self, text: str, keys: Sequence[str]) -> str:
        """The language of *text* with the folded words *keys*, and of the marks only one language has, or ``""``."""
        return guess_language(
            [*filter(None, keys), *(mark for mark in "¿¡" if mark in text)], self.markers, text
        )


@lru_cache(16)
def _word_lists(
    keep_words: frozenset[str] = frozenset(), extra_words: frozenset[str] = frozenset()
) -> _WordLists:
    """The word lists, changed by what a user wants kept and removed; those of the last few users are remembered."""
    own = [load(code) for code in LANGUAGES]
    ready = [Lexicon(""), *own]
    if keep_words or extra_words:
        ready = [adjust(lexicon, keep_words, extra_words) for lexicon in ready]
    return _WordLists(
        lexicons={lexicon.language: lexicon for lexicon in ready},
        known={lexicon.language: lexicon.collect_words() for lexicon in ready},
        markers=collect_markers(own),
        small=frozenset(word for lexicon in own for word in lexicon.stop - lexicon.acronyms),
        is_extended=bool(extra_words),
    )


def _run_pass(text: str, code: str, lists: _WordLists) -> tuple[Stripped, str]:
    """One pass of the rules: its result, never empty, and the language whose words were removed."""
    if not (_is_latin(text) or lists.is_extended):
        return Stripped(text, opens_with_name=False), ""
    tokens = tokenise(text)
    keys = fold_tokens(tokens, is_all_caps(tokens, lists.small))
    used = code or lists.guess(text, keys)
    result = strip(text, tokens, keys, lists.lexicons[used])
    return result if result.keywords else Stripped(text, opens_with_name=False), used


def _is_settled(keywords: str, known: Set[str]) -> bool:
    """Whether no rule can change *keywords*: words and numbers in lower case, none of which is *known* to a rule."""
    words = keywords.split(" ")
    return all(map(str.isalnum, words)) and known.isdisjoint(words) and fold(keywords) == keywords


def _is_latin(text: str) -> bool:
    """Whether the word lists can speak to *text* at all; a text without letters has no script to object."""
    return dominant_script(text) in ("latin", "")


def _check_language(language: str) -> str:
    """The code of a known *language*, ``""`` for ``auto``; a region is of no matter.

    Raises `ConfigError` for a language without a word list.
    """
    code = str(language).replace("_", "-").partition("-")[0].casefold()
    if code == AUTO:
        return ""
    if code not in LANGUAGES:
        allowed = ", ".join((AUTO, *LANGUAGES))
        raise ConfigError(
            f"preprocess.language is {language!r}; there are word lists for {allowed}",
            path="preprocess.language",
            value=language,
            allowed=allowed,
        )
    return code


def _check_text(text: object) -> None:
    """Raises `InvalidQuery` if *text* is no string."""
    if not isinstance(text, str):
        raise InvalidQuery(f"the query must be text, not {type(text).__name__}", argument="text")
