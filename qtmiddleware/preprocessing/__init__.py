"""Questions to keywords by rules alone: no model, no network, microseconds a query.

`prepare` and `preprocess` strip a question of the words that only make it a question; `protected_spans` names what a
rewrite of it must not lose. Word lists are read from their files once, when the first query comes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.preprocessing import language as languages
from qtmiddleware.preprocessing import lexicon as lexicons
from qtmiddleware.preprocessing import quotes, reading, spans, stripping
from qtmiddleware.preprocessing.base import Lexicon, Markers, Prepared, Span, Token
from qtmiddleware.preprocessing.script import dominant_script

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


def prepare(
    text: str, *, language: str = AUTO, keep_words: Collection[str] = (), extra_words: Collection[str] = ()
) -> Prepared:
    """The keywords of *text* and the language whose words were removed (``""`` where no list was used).

    *language* is one of `LANGUAGES`, with a region if need be (``pt_BR``), or ``auto``. *keep_words*, words or
    phrases, are never removed; *extra_words* are removed too. A text in a script without a word list, a blank one and
    one that has nothing but removable words come back unchanged. Preparing keywords again changes nothing.

    Raises `InvalidQuery` if *text* is no string, `ConfigError` for an unknown language or word lists that are none.
    """
    return Prepared(*_prepared(text, language, keep_words, extra_words))


def preprocess(
    text: str, *, language: str = AUTO, keep_words: Collection[str] = (), extra_words: Collection[str] = ()
) -> str:
    """The keywords of *text*; options and errors are those of `prepare`.

    >>> preprocess("Does Jaco have any health concerns?")
    'jaco health concerns'
    """
    return _prepared(text, language, keep_words, extra_words)[0]


def detect_language(text: str) -> str:
    """The code of the language *text* is written in, ``""`` where it is not clear or has no word list.

    Raises `InvalidQuery` if *text* is no string.
    """
    if not isinstance(text, str):
        raise _not_text(text)
    if not _is_latin(text):
        return ""
    shelf = _shelf()
    return shelf.guess(_read(text, shelf)[1], text)


def protected_spans(text: str, *, language: str = AUTO) -> tuple[Span, ...]:
    """What a rewrite of *text* must not lose, from left to right, no two overlapping.

    Codes, numbers with their units, quoted phrases (without the marks), negations, addresses and names. Names are
    told by their capitals, so a query in lower case or in capitals throughout has none; in German, where every noun
    has a capital, only acronyms and names of several words are. Errors are those of `prepare`.
    """
    if not isinstance(text, str):
        raise _not_text(text)
    shelf = _shelf()
    code = _code(language)
    tokens, keys, loud = _read(text, shelf)
    chosen = (code or shelf.guess(keys, text)) if _is_latin(text) else ""
    return spans.spans(text, tokens, shelf.lexicons[chosen or languages.DEFAULT], loud)


@dataclass(frozen=True, slots=True)
class _Shelf:
    """All word lists, ready for use; ``""`` names the empty one."""

    lexicons: dict[str, Lexicon]
    markers: Markers
    small: frozenset[str]
    is_extended: bool

    def guess(self, keys: list[str], text: str = "") -> str:
        """The language of the folded words *keys*, and of the marks only one language has in *text*, or ``""``."""
        return languages.guess([*filter(None, keys), *(mark for mark in "¿¡" if mark in text)], self.markers, text)


@lru_cache(16)
def _shelf(keep_words: frozenset[str] = frozenset(), extra_words: frozenset[str] = frozenset()) -> _Shelf:
    """The word lists, changed by what a user wants kept and removed."""
    own = [lexicons.load(code) for code in LANGUAGES]
    ready = [Lexicon(""), *own]
    if keep_words or extra_words:
        ready = [lexicons.adjusted(lexicon, keep_words, extra_words) for lexicon in ready]
    return _Shelf(
        lexicons={lexicon.language: lexicon for lexicon in ready},
        markers=languages.markers(own),
        small=frozenset(word for lexicon in own for word in lexicon.stop - lexicon.acronyms),
        is_extended=bool(extra_words),
    )


def _prepared(
    text: object, language: str, keep_words: Collection[str], extra_words: Collection[str]
) -> tuple[str, str]:
    """The keywords of *text* and the language they were found with."""
    if not isinstance(text, str):
        raise _not_text(text)
    shelf = _own_shelf(keep_words, extra_words) if keep_words or extra_words else _shelf()
    code = "" if language == AUTO else _code(language)
    result, used = _once(text, code, shelf)
    # What the rules leave may itself begin like a question. They run until nothing changes, or not at all: either way
    # preparing the result again gives the result.
    for _ in range(PASSES):
        before = result
        result, _used = _once(before, code, shelf)
        if result == before:
            return result, used
    return text, used


def _once(text: str, code: str, shelf: _Shelf) -> tuple[str, str]:
    """One pass of the rules: its result and the language."""
    if not (_is_latin(text) or shelf.is_extended):
        return text, ""
    tokens, keys, _ = _read(text, shelf)
    used = code or shelf.guess(keys, text)
    return stripping.strip(text, tokens, keys, shelf.lexicons[used]) or text, used


def _read(text: str, shelf: _Shelf) -> tuple[list[Token], list[str], bool]:
    """The pieces of *text*, each as word lists hold it, and whether it is in capitals throughout."""
    tokens = reading.read(text, quotes.find_quotes(text))
    loud = stripping.is_loud(tokens, shelf.small)
    return tokens, stripping.keys_of(tokens, loud), loud


def _is_latin(text: str) -> bool:
    """Whether the word lists can speak to *text* at all; a text without letters has no script to object."""
    return text.isascii() or dominant_script(text) in ("latin", "")


def _own_shelf(keep_words: Collection[str], extra_words: Collection[str]) -> _Shelf:
    """The word lists with a user's own words; those of the last few users are remembered."""
    return _shelf(lexicons.checked(keep_words, "keepWords"), lexicons.checked(extra_words, "extraWords"))


def _code(language: str) -> str:
    """The code of a known *language*, ``""`` for ``auto``; a region is of no matter."""
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


def _not_text(value: object) -> InvalidQuery:
    """The error for a query that is no string."""
    return InvalidQuery(f"the query must be a string, not {type(value).__name__}", argument="text")
