"""Turn questions into keywords by rules: no model, no network, microseconds per query.

`extract_keywords` and `preprocess` remove question words and other stop words from a question.
`find_protected_spans` returns the spans of a question that a rewrite must keep. The first question
loads the word lists.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, lru_cache

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.preprocessing.lexicon import (
    DEFAULT,
    Lexicon,
    adjust_lexicon,
    guess_language,
    load_lexicon,
    read_user_words,
)
from qtmiddleware.preprocessing.spans import Span, find_spans
from qtmiddleware.preprocessing.stripping import Words, is_typed_in_capitals, strip_stop_words
from qtmiddleware.preprocessing.text import find_dominant_script, fold_case
from qtmiddleware.preprocessing.tokeniser import tokenise

__all__ = [
    "LANGUAGES",
    "ExtractedKeywords",
    "Span",
    "detect_language",
    "extract_keywords",
    "find_dominant_script",
    "find_protected_spans",
    "preprocess",
]

AUTO = "auto"
"""The ``language`` that makes the rules detect the language of each text."""

PASSES = 4
"""The maximum number of times that the rules are applied to their own result.

If the result still changes after that, the query is returned unchanged.
"""


@dataclass(eq=False, repr=False, slots=True)
class ExtractedKeywords:
    """The keywords that `extract_keywords` found in a text.

    Attributes:
        keywords: the keywords, separated by spaces.
        language: the code of the word list that was used, or ``""`` if none was used.
    """

    keywords: str
    language: str


def extract_keywords(
    text: str,
    *,
    language: str = AUTO,
    keep_words: Collection[str] = (),
    extra_words: Collection[str] = (),
) -> ExtractedKeywords:
    """Return the keywords of *text* and the language of the word list that was used.

    The parameters and errors are the same as in `preprocess`.
    """
    _check_text(text)
    lexicons = _load_lexicons(
        read_user_words(keep_words, "keepWords"), read_user_words(extra_words, "extraWords")
    )
    code = _read_language_code(language)
    keywords, opens_with_name, used = _strip_once(text, code, lexicons)
    # The keywords may themselves begin like a question, so the rules run until nothing changes.
    # Preparing the keywords again in the same language then changes nothing, unless they open with
    # a name that looks like a question word: another pass would remove the "Can" of "Can Yaman".
    for _ in range(PASSES):
        # Most keywords are final after the first pass. This check saves the second pass.
        if opens_with_name or (used and _are_final(keywords, lexicons[used])):
            return ExtractedKeywords(keywords, used)
        previous = keywords
        keywords, opens_with_name, _ = _strip_once(keywords, code or used, lexicons)
        if keywords == previous:
            return ExtractedKeywords(keywords, used)
    return ExtractedKeywords(text, used)


def preprocess(
    text: str,
    *,
    language: str = AUTO,
    keep_words: Collection[str] = (),
    extra_words: Collection[str] = (),
) -> str:
    """Return the keywords of *text*: the question without question words and other stop words.

    *text* is returned unchanged if it is blank, if its script has no word list, or if no word would
    remain. A second call on the result, in the same language, changes nothing. The only exception
    is a result that begins with a name that is also a question word (Can Yaman).

    >>> preprocess("Does Jaco have any health concerns?")
    'jaco health concerns'

    Args:
        text: The question.
        language: A code such as ``en``, optionally with a region (``pt_BR``), or ``auto``.
        keep_words: Words or phrases that are never removed.
        extra_words: Single words to remove in addition to the word list.

    Raises:
        InvalidQuery: *text* is not a string.
        ConfigError: *language* is unknown, *keep_words* or *extra_words* is not a list of strings,
            or *extra_words* contains a phrase.
    """
    return extract_keywords(
        text, language=language, keep_words=keep_words, extra_words=extra_words
    ).keywords


def detect_language(text: str) -> str:
    """Return the language code of *text*; ``""`` if it is unclear or has no word list.

    Raises:
        InvalidQuery: *text* is not a string.
    """
    _check_text(text)
    return _read_words(text, "", _load_lexicons()).lexicon.language


def find_protected_spans(text: str, *, language: str = AUTO) -> tuple[Span, ...]:
    """Return the spans of *text* that a rewrite must keep, from left to right, without overlaps.

    The spans are codes, numbers with their units, quoted phrases (without the quotation marks),
    negations, addresses and names. Names are recognised by their capital letters, so no names are
    found in a text that is all in lower case or all in capitals. In German, every noun is
    capitalised, so only acronyms and names of several words are found.

    Raises:
        InvalidQuery: *text* is not a string.
        ConfigError: The language is unknown.
    """
    _check_text(text)
    lexicons = _load_lexicons()
    words = _read_words(text, _read_language_code(language), lexicons)
    if words.lexicon.language:
        return find_spans(words, is_unknown_language=False)
    # If the language is unclear, the English list still finds negations such as "not".
    words = Words(words.text, words.tokens, words.folded, lexicons[DEFAULT], words.is_all_caps)
    return find_spans(words, is_unknown_language=True)


@lru_cache(16)
def _load_lexicons(
    kept_words: frozenset[str] = frozenset(), extra_words: frozenset[str] = frozenset()
) -> dict[str, Lexicon]:
    """Return all word lists by language, adjusted to the user's words.

    The list for an unclear language, ``""``, has only the user's words.
    """
    lexicons = [Lexicon(""), *map(load_lexicon, LANGUAGES)]
    if kept_words or extra_words:
        lexicons = [adjust_lexicon(lexicon, kept_words, extra_words) for lexicon in lexicons]
    return {lexicon.language: lexicon for lexicon in lexicons}


@cache
def _collect_stop_words() -> frozenset[str]:
    """Return the stop words of all languages that are no acronyms in capitals, as "who" is."""
    lexicons = map(load_lexicon, LANGUAGES)
    return frozenset().union(*(lexicon.stop - lexicon.acronyms for lexicon in lexicons))


def _read_words(text: str, code: str, lexicons: dict[str, Lexicon]) -> Words:
    """Return the words of *text*. The language is detected if *code* is ``""``."""
    tokens = tokenise(text)
    is_all_caps = is_typed_in_capitals(tokens, _collect_stop_words())
    kinds = ("word", "acronym" if is_all_caps else "word")
    folded = [token.folded_text if token.kind in kinds else "" for token in tokens]
    if not _is_latin(text):
        code = ""
    elif not code:
        # The marks "¿" and "¡" count as Spanish words.
        marks = (mark for mark in "¿¡" if mark in text)
        code = guess_language([*filter(None, folded), *marks], text)
    return Words(text, tokens, folded, lexicons[code], is_all_caps)


def _strip_once(text: str, code: str, lexicons: dict[str, Lexicon]) -> tuple[str, bool, str]:
    """Return the keywords of one pass over *text*, in the language *code* or a detected one.

    Returns also whether the keywords open with a name that looks like a question word, and the
    language; ``""`` if no word list was used.
    """
    # The user may want to remove words of any script.
    if not (_is_latin(text) or lexicons[""].extra):
        return text, False, ""
    words = _read_words(text, code, lexicons)
    keywords, opens_with_name = strip_stop_words(words)
    return keywords or text, opens_with_name, words.lexicon.language


def _are_final(keywords: str, lexicon: Lexicon) -> bool:
    """Return whether the rules certainly leave *keywords* unchanged: plain words, none removable.

    ``False`` means that the rules must be applied to find out.
    """
    words = keywords.split(" ")
    return (
        all(map(str.isalnum, words))
        and lexicon.all_removable.isdisjoint(words)
        and fold_case(keywords) == keywords
    )


def _is_latin(text: str) -> bool:
    # All word lists are Latin. A text without letters may have any language.
    return find_dominant_script(text) in ("latin", "")


def _read_language_code(language: str) -> str:
    code = str(language).replace("_", "-").partition("-")[0].casefold()
    if code in LANGUAGES:
        return code
    if code == AUTO:
        return ""
    allowed = ", ".join((AUTO, *LANGUAGES))
    raise ConfigError(
        f"preprocess.language is {language!r}; there are word lists for {allowed}",
        path="preprocess.language",
        value=language,
        allowed=allowed,
    )


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise InvalidQuery(f"the query must be text, not {type(text).__name__}", argument="text")
