"""Turn questions into keywords by rules: no model, no network, microseconds per query.

`extract_keywords` and `preprocess` remove question words and other stop words from a question.
`find_protected_spans` returns the spans of a question that a rewrite must keep. The first question
loads the word lists.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.preprocessing.lexicon import (
    DEFAULT,
    Lexicon,
    Markers,
    apply_user_words,
    collect_language_markers,
    guess_language,
    load_lexicon,
    read_user_words,
)
from qtmiddleware.preprocessing.spans import Span, find_spans
from qtmiddleware.preprocessing.stripping import (
    fold_tokens,
    is_typed_in_capitals,
    strip_stop_words,
)
from qtmiddleware.preprocessing.text import find_dominant_script, fold_case
from qtmiddleware.preprocessing.tokeniser import Token, tokenise

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
        keywords: The keywords, separated by spaces.
        language: The language code of the word list that was used, or ``""`` if none was used.
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
    word_lists = _load_word_lists(
        read_user_words(keep_words, "keepWords"), read_user_words(extra_words, "extraWords")
    )
    language_code = _read_language_code(language)
    keywords, opens_with_name, used_language = _strip_once(text, language_code, word_lists)
    # The keywords may themselves begin like a question, so the rules run until nothing changes.
    # Preparing the keywords again in the same language then changes nothing, unless they open with
    # a name that looks like a question word: another pass would remove the "Can" of "Can Yaman".
    for _ in range(PASSES):
        # Most keywords are final after the first pass. This check saves the second pass.
        removable_words = word_lists.removable_words[used_language]
        if opens_with_name or (used_language and _are_keywords_final(keywords, removable_words)):
            return ExtractedKeywords(keywords, used_language)
        previous = keywords
        keywords, opens_with_name, _ = _strip_once(
            keywords, language_code or used_language, word_lists
        )
        if keywords == previous:
            return ExtractedKeywords(keywords, used_language)
    return ExtractedKeywords(text, used_language)


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
    """Return the language code of *text*.

    Returns ``""`` if the language is unclear or has no word list.

    Raises:
        InvalidQuery: *text* is not a string.
    """
    _check_text(text)
    return _load_word_lists().read(text).language


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
    word_lists = _load_word_lists()
    words = word_lists.read(text, _read_language_code(language))
    # If the language is unclear, the English list still finds negations such as "not".
    return find_spans(
        text,
        words.tokens,
        word_lists.lexicons[words.language or DEFAULT],
        words.is_all_caps,
        is_unknown_language=not words.language,
    )


class _Words(NamedTuple):
    """The words of a text.

    Attributes:
        tokens: The tokens of the text.
        folded_words: The words in lower case, from `fold_tokens`.
        is_all_caps: Whether the text is typed in capitals.
        language: The language code, or ``""`` if it is unclear or its script has no word list.
    """

    tokens: Sequence[Token]
    folded_words: Sequence[str]
    is_all_caps: bool
    language: str


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class _WordLists:
    """The word lists of all languages, adjusted to the user's settings.

    Attributes:
        lexicons: The word lists, by language code. The list for an unclear language, ``""``, has
            only the user's words.
        removable_words: The words that the rules may remove, by language code.
        markers: The words that tell the languages apart.
        stop_words: The stop words of all languages. Words that are acronyms in capitals, such as
            "who" (WHO), are left out.
        has_extra_words: Whether the user's settings have additional words to remove.
    """

    lexicons: dict[str, Lexicon]
    removable_words: dict[str, frozenset[str]]
    markers: Markers
    stop_words: frozenset[str]
    has_extra_words: bool

    def read(self, text: str, language_code: str = "") -> _Words:
        """Return the words of *text*. ``""`` as *language_code* means to detect the language."""
        tokens = tokenise(text)
        is_all_caps = is_typed_in_capitals(tokens, self.stop_words)
        folded_words = fold_tokens(tokens, is_all_caps)
        # All word lists are Latin.
        if not _is_latin(text):
            language_code = ""
        elif not language_code:
            # The marks "¿" and "¡" count as Spanish words.
            marks = (mark for mark in "¿¡" if mark in text)
            language_code = guess_language(
                [*filter(None, folded_words), *marks], self.markers, text
            )
        return _Words(tokens, folded_words, is_all_caps, language_code)


@lru_cache(16)
def _load_word_lists(
    keep_words: frozenset[str] = frozenset(), extra_words: frozenset[str] = frozenset()
) -> _WordLists:
    """Return the word lists of all languages, adjusted to the user's words.

    The last 16 results are cached.

    Args:
        keep_words: Words and phrases that are never removed, in lower case.
        extra_words: More words to remove, in lower case.
    """
    lexicons = [load_lexicon(language_code) for language_code in LANGUAGES]
    adjusted = [Lexicon(""), *lexicons]
    if keep_words or extra_words:
        adjusted = [apply_user_words(lexicon, keep_words, extra_words) for lexicon in adjusted]
    return _WordLists(
        lexicons={lexicon.language: lexicon for lexicon in adjusted},
        removable_words={
            lexicon.language: lexicon.collect_removable_words() for lexicon in adjusted
        },
        markers=collect_language_markers(lexicons),
        stop_words=frozenset(
            word for lexicon in lexicons for word in lexicon.stop - lexicon.acronyms
        ),
        has_extra_words=bool(extra_words),
    )


def _strip_once(
    text: str,
    language_code: str,
    word_lists: _WordLists,
) -> tuple[str, bool, str]:
    """Remove question words and other stop words from *text*, in a single pass.

    *language_code* is ``""`` to detect the language.

    Returns:
        The keywords, or the whole *text* if no word remains.
        Whether the keywords open with a name that looks like a question word.
        The code of the language that was used, or ``""`` if no word list was used.
    """
    # The user may want to remove words of any script.
    if not (_is_latin(text) or word_lists.has_extra_words):
        return text, False, ""
    words = word_lists.read(text, language_code)
    keywords, opens_with_name = strip_stop_words(
        text,
        words.tokens,
        words.folded_words,
        word_lists.lexicons[words.language],
        is_all_caps=words.is_all_caps,
    )
    return keywords or text, opens_with_name and bool(keywords), words.language


def _are_keywords_final(keywords: str, removable_words: Set[str]) -> bool:
    """Return whether the rules certainly leave *keywords* unchanged.

    This is certain if *keywords* contains only words and numbers in lower case, and none of
    *removable_words*. ``False`` means that the rules must be applied to find out.
    """
    words = keywords.split(" ")
    return (
        all(map(str.isalnum, words))
        and removable_words.isdisjoint(words)
        and fold_case(keywords) == keywords
    )


def _is_latin(text: str) -> bool:
    """Return whether the word lists apply to *text*: its script is Latin, or it has no letters."""
    return find_dominant_script(text) in ("latin", "")


def _read_language_code(language: str) -> str:
    """Return the language code *language* without its region, or ``""`` for ``auto``.

    Raises:
        ConfigError: No word list exists for the language.
    """
    language_code = str(language).replace("_", "-").partition("-")[0].casefold()
    if language_code == AUTO:
        return ""
    if language_code not in LANGUAGES:
        allowed = ", ".join((AUTO, *LANGUAGES))
        raise ConfigError(
            f"preprocess.language is {language!r}; there are word lists for {allowed}",
            path="preprocess.language",
            value=language,
            allowed=allowed,
        )
    return language_code


def _check_text(text: object) -> None:
    """Raise `InvalidQuery` if *text* is not a string."""
    if not isinstance(text, str):
        raise InvalidQuery(f"the query must be text, not {type(text).__name__}", argument="text")
