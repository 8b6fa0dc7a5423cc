"""Recognise texts that are no search: refusals, talk about the task and placeholders.

The lexicons have the patterns and words of each language. A pattern does not count if the user's
question begins in such a way too, or contains all the words that match.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Set
from functools import cache, lru_cache
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES, detect_language
from qtmiddleware.preprocessing.lexicon import DEFAULT, load_all_lexicons, load_lexicon
from qtmiddleware.preprocessing.text import (
    clean_text,
    fold_text,
    fold_words,
    is_blank,
    split_terms,
    unify_letters,
)

_OPENING_CHARS: Final = 300
_MARKS_BEFORE: Final = "\"'“”„«»*_([¿¡ "
_SENTENCE_END: Final = re.compile(r"[.!?…:。！？：](?:(?<=[。！？：])|[.!?…:]*[\"'”»)]*\s)")
_MOST_SENTENCES: Final = 5
_MOST_WORDS: Final = 60
_FEWEST_WORDS: Final = 4


def is_refusal(text: str, query: str) -> bool:
    """Return whether *text* begins with a model's refusal in any language: "I cannot help"."""
    return _begins_with("refusals", text, query)


def is_chatter(text: str, query: str) -> bool:
    """Return whether *text* is blank, or begins like a placeholder or talk about the task."""
    return is_blank(text) or _begins_with("chatter", text, query)


def split_chatter(text: str, query: str) -> tuple[str, str]:
    """Split *text* into the talk about the task at its start, such as "Sure!", and the rest."""
    place = 0
    for _ in range(_MOST_SENTENCES):
        end = _SENTENCE_END.search(text, place, place + _OPENING_CHARS)
        after = end.end() if end else len(text)
        if place == after or not is_chatter(text[place:after], query):
            break
        place = after
    return text[:place].rstrip(), text[place:]


def is_off_topic_talk(text: str, query: str, context: str) -> bool:
    """Return whether the statement *text* is in a model's own words, and not about *context*.

    Such words are "I", "you", "search" and "documents". They do not count if *query* has them too,
    or if *query* is a statement itself. *context* is the question with the conversation before it.
    """
    is_statement = [
        sentence.rstrip("\"'”»* ").endswith((".", "!", "。", "！")) for sentence in (text, query)
    ]
    words = fold_words(text)
    if is_statement != [True, False] or not _FEWEST_WORDS <= len(words) <= _MOST_WORDS:
        return False
    languages = {detect_language(text), detect_language(query)} - {""} or LANGUAGES
    talk = {fold_text(word) for code in languages for word in load_lexicon(code).talk}
    own_words = talk.intersection(words).difference(fold_words(query))
    return bool(own_words) and not has_common_word(
        text,
        context,
        ignored=_cut_stems(talk),
    )


def has_common_word(
    text: str,
    query: str,
    *,
    ignored: Set[str] = frozenset(),
) -> bool:
    """Return whether *text* has one of the words that say what *query* is about.

    Words are equal if their beginnings are. Returns ``True`` if *query* has no such word. Words
    that begin like those in *ignored* do not count.
    """
    openings = (text[:_OPENING_CHARS], query[:_OPENING_CHARS])
    languages = tuple(set(map(detect_language, openings)) - {""} or {DEFAULT})
    stems = _find_stems(query, languages)
    return not stems or bool((stems & _find_stems(text, languages)) - ignored)


# The texts of a reply are all compared with the same question.
@lru_cache(16)
def _find_stems(text: str, languages: tuple[str, ...]) -> frozenset[str]:
    """Return the beginnings of the words of *text*, without words that name no topic."""
    words = {word for word in split_terms(text) if len(word) > 2 or not word.isascii()}
    # Arabic writes the article and its noun as one word.
    words = {word.removeprefix("ال") for word in words}
    return _cut_stems(words).difference(*map(_load_common_stems, languages))


@cache
def _load_common_stems(language: str) -> frozenset[str]:
    lexicon = load_lexicon(language)
    return _cut_stems(lexicon.stop | lexicon.function_words)


def _cut_stems(words: Set[str]) -> frozenset[str]:
    folded_words = map(fold_text, words)
    return frozenset(word[: 5 if word.isascii() else 4].rstrip("s") for word in folded_words)


# The same opening is asked for again when a text has lost its marks, which most never had.
@lru_cache(16)
def _begins_with(key: str, text: str, query: str) -> bool:
    """Return whether *text* begins like a pattern under *key*, but not by the user's words.

    "I cannot log in" is no refusal if the question begins so too, or has all the matched words.
    """
    pattern = compile_patterns(key)
    match = pattern.match(_fold_opening(text))
    if not match:
        return False
    folded_query = _fold_opening(query)
    words = set(re.findall(r"\w+", match.group()))
    query_words = set(re.findall(r"\w+", folded_query))
    return not (pattern.match(folded_query) or words <= query_words)


@cache
def compile_patterns(key: str) -> re.Pattern[str]:
    """Return one pattern for the patterns of all languages under *key* in their lexicons.

    A model may reply in any language, whatever the language of the question.
    """
    patterns = (pattern for lexicon in load_all_lexicons() for pattern in getattr(lexicon, key))
    return re.compile("|".join(_strip_marks(unify_letters(pattern)) for pattern in patterns))


@lru_cache(16)
def _fold_opening(text: str) -> str:
    return _strip_marks(fold_text(clean_text(text[:_OPENING_CHARS]))).lstrip(_MARKS_BEFORE)


def _strip_marks(text: str) -> str:
    """Return *text* without accents, and without vowel signs, which some scripts may leave out."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    letters = [char for char in decomposed if unicodedata.category(char) != "Mn"]
    return unicodedata.normalize("NFC", "".join(letters))
