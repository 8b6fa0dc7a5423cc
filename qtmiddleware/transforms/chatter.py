"""Recognise texts that do not answer: preambles, remarks, error messages and placeholders.

The lexicons contain the phrases that begin such texts in several languages. Placeholders and the
error messages of programs are defined here. A phrase does not count if the user's question contains
all of its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES, detect_language
from qtmiddleware.preprocessing.lexicon import (
    DEFAULT,
    compile_phrases,
    load_all_lexicons,
    load_lexicon,
)
from qtmiddleware.preprocessing.text import (
    clean_text,
    find_first_word,
    fold_accents,
    fold_words,
    is_blank,
    split_words,
)

_QUERY: Final = r"(?:sub-?|search )?(?:query|queries|question|questions|prompt|request|input)"
_PLACEHOLDERS: Final = (
    (
        r"(?:null|none|n/?a|nil|nan|undefined|empty|unknown|not applicable|no"
        r" change|unchanged|same|as above|string|"
        r"text|your text here)[.!]?$"
    ),
    r"same as (?:the )?(?:original|query|above|input).{0,40}$",
    r"[<\[{][^<>\[\]{}]{0,80}[>\]}]$",
    rf"(?:first|second|third|fourth|fifth|another|next) {_QUERY}\)?$",
    (
        r"(?:the )?(?:rewritten|rephrased|broader|standalone|hypothetical|new)"
        r" (?:query|question|passage|document)$"
    ),
    rf"(?:{_QUERY}|paraphrase|version|keyword|term) ?#?\d{{1,2}}$",
    r"error\**::|error\**:? ?$|error\*\*|traceback \(most recent",
    (
        r"(?:\d{3} )?(?:internal server error|bad gateway|service unavailable|gateway time-?out|too"
        r" many requests|"
        r"rate limit exceeded)[.!]?$"
    ),
)
"""Patterns for the start of a placeholder or an error message, in lower case without accents."""
_POLITE: Final = (
    r"(?:sure|certainly|of course|absolutely|okay|ok|great|alright|got it)(?: thing)?[!.,:]+"
)
_ANNOUNCED: Final = (
    r"(?:here(?:'s|’s| is| are)|this is|the following (?:is|are))\b[^:：\n]{0,100}[:：]"
)
_PREAMBLE: Final = re.compile(rf"(?:{_POLITE}\s*)?(?:{_ANNOUNCED}\s*)?", re.IGNORECASE)
# The pattern begins with a single set of characters, so that the search skips all other characters
# quickly.
_STOP: Final = re.compile(r"[.!?…:。！？：](?:(?<=[。！？：])|[.!?…:]*[\"'”»)]*\s)")
_SENTENCE_CHARS: Final = 300
_MOST_SENTENCES: Final = 5
_MANY_WORDS: Final = 20
_FEW_WORDS: Final = 4
STATEMENT_WORDS: Final = {"line": 60, "list": 60, "passage": 12}
"""The maximum number of words of a text that `is_off_topic_talk` checks, by the field's shape.

The limit for passages is low, because a good passage may have no word in common with the question.
"""
_INNER_WORD: Final = re.compile(r"(?<=[\w,;] )[^\W\d_]+")
_STATED: Final = (".", "!")
_QUOTES: Final = "\"'”»* "
_OPENING_CHARS: Final = 300

_Pattern = tuple[tuple[frozenset[str], bool, int], ...]
"""The elements of a phrase pattern, each as (allowed words, is optional, wildcard size).

A wildcard matches any words, up to its size. For other elements, the size is 0.
"""
_Patterns = Mapping[str, tuple[_Pattern, ...]]
"""Phrase patterns, by each word that they can begin with."""


def is_noise(text: str, query: str) -> bool:
    """Return whether *text* is blank, is a placeholder, or begins with chatter.

    Chatter is talk about the task, such as "Here is the query". A placeholder or chatter does not
    count if *query* contains all of its words.
    """
    return (
        is_blank(text)
        or _begins_with_pattern(_compile_noise_pattern(), text, query)
        or find_chatter_end(text, query) > 0
    )


def strip_lead_in(text: str, query: str = "", *, is_passage: bool = False) -> str:
    """Return *text* without a preamble such as "Sure! Here is the rewritten query:".

    An English preamble stays if *query* begins with the same two words. Other chatter (talk about
    the task, in any supported language) is removed in these cases:

    - The chatter ends in a colon.
    - A question about the topic of *query* follows the chatter.
    - *is_passage* is true, and at least 20 words follow the chatter.

    Args:
        text: The model's text.
        query: The user's question.
        is_passage: Whether the prompt asked for a passage.
    """
    match = _PREAMBLE.match(text)
    preamble = match.group() if match else ""
    # A question such as "This is the ...: why?" may itself begin like a preamble.
    if preamble and fold_words(preamble)[:2] != fold_words(query[:_SENTENCE_CHARS])[:2]:
        text = text[len(preamble) :]
    end = find_chatter_end(text, query)
    if not end or is_blank(rest := text[end:].strip()):
        return text
    is_announced = text[:end].rstrip().endswith((":", "："))
    is_question = rest.endswith(("?", "？")) and not _find_topic_stems(rest).isdisjoint(
        _find_topic_stems(query)
    )
    return (
        rest
        if is_announced or is_question or (is_passage and len(split_words(rest)) >= _MANY_WORDS)
        else text
    )


def is_off_topic_talk(text: str, field_shape: str, query: str, context: str) -> bool:
    """Return whether *text* is about the model or its task, instead of *context*.

    Such a text contains a word that models use for themselves ("I", "help"), and has no topic word
    in common with *context*. In a passage, "we" and "you" do not count, because companies use them
    in texts for customers. The result is always ``False`` for:

    - A text that is not a statement.
    - Any text, if *query* is a statement.
    - A text with fewer than four words, or with more than `STATEMENT_WORDS` allows for the shape.

    Args:
        text: The model's text for one field.
        field_shape: The shape of the field: ``line``, ``list`` or ``passage``.
        query: The user's question.
        context: The question and the user message of the prompt.
    """
    if not text.rstrip(_QUOTES).endswith(_STATED) or query.rstrip(_QUOTES).endswith(_STATED):
        return False
    words = fold_words(text) if text.count(" ") < STATEMENT_WORDS[field_shape] else []
    if len(words) < _FEW_WORDS:
        return False
    languages = _guess_languages(text, field_shape, query)
    talk = _collect_talk_words(languages, is_passage=field_shape == "passage")
    if talk.isdisjoint(set(words) - set(fold_words(query)) - _find_title_words(text, languages)):
        return False
    return _find_topic_stems(text).isdisjoint(_find_topic_stems(context))


def _guess_languages(text: str, field_shape: str, query: str) -> frozenset[str]:
    """Return the codes of the languages in which *text* may talk about the model or its task.

    - For a passage: the language of *query* or, if it is unknown, of *text*. English is added if
      *text* is English, because models often refuse in English.
    - For other shapes: the languages of *query* and *text*. If both are unknown: all languages.
    """
    query_language, text_language = detect_language(query), detect_language(text)
    if field_shape == "passage":
        return frozenset(
            {query_language or text_language, DEFAULT if text_language == DEFAULT else ""} - {""}
        )
    return frozenset({query_language, text_language} - {""}) or frozenset(LANGUAGES)


# The same text is often checked twice: for its preamble, then for whether the rest is talk.
@lru_cache(4)
def find_chatter_end(text: str, query: str) -> int:
    """Return the number of characters of the chatter at the start of *text*.

    Chatter is talk about the task, such as "Let me rewrite this". Returns 0 if there is no chatter,
    or if *query* begins with chatter too. Only the first five sentences are checked.
    """
    end = place = 0
    # Most texts do not begin with such a word. In ASCII this check is cheap, because there are no
    # accents to remove.
    if text.isascii() and not _may_begin_with_chatter(text):
        return 0
    for _ in range(_MOST_SENTENCES):
        stop = _STOP.search(text, place, place + _SENTENCE_CHARS)
        after = stop.end() if stop else min(len(text), place + _SENTENCE_CHARS)
        words = fold_words(text[place:after])
        start = _count_filler_words(words)
        # A word may be a filler or the beginning of chatter: "sì, cerco ..." and "si potrebbe
        # cercare ...".
        if _is_chatter(words[start:], query) or (start and _is_chatter(words, query)):
            end = after
        # A sentence of fillers only, such as "Sure.", may precede the chatter.
        elif not 0 < start == len(words):
            break
        place = after
    return end


def _may_begin_with_chatter(text: str) -> bool:
    """Return whether the first word of *text* can begin chatter or a filler, such as "sure".

    *text* must be ASCII. This quick check rules out most texts.
    """
    return find_first_word(text) in _collect_opening_words()


def _is_chatter(words: Sequence[str], query: str) -> bool:
    """Return whether a sentence with these *words* begins with chatter about the task.

    The words must be in lower case, without accents.

    Returns ``False`` if *query* begins with chatter too, or contains all words of the chatter.
    """
    length = _count_chatter_words(words)
    if not length:
        return False
    query_words = fold_words(query[:_SENTENCE_CHARS])
    return not (set(words[:length]) <= set(query_words) or _count_chatter_words(query_words))


def _count_chatter_words(words: Sequence[str]) -> int:
    """Return the number of words of the shortest chatter phrase at the start of *words*.

    Returns 0 if *words* do not begin with chatter.
    """
    chatter, _ = _load_chatter_and_fillers()
    phrases = chatter.get(words[0]) if words else None
    return (
        min(
            [length for phrase in phrases if (length := _count_matched_words(phrase, words))],
            default=0,
        )
        if phrases
        else 0
    )


def _count_filler_words(words: Sequence[str]) -> int:
    """Return the number of filler words, such as "well", at the start of *words*."""
    _, fillers = _load_chatter_and_fillers()
    start = 0
    while start < len(words) and (phrases := fillers.get(words[start])):
        length = max(_count_matched_words(phrase, words[start:]) for phrase in phrases)
        if not length:
            break
        start += length
    return start


def _count_matched_words(phrase: _Pattern, words: Sequence[str]) -> int:
    """Return the number of words of the shortest match of *phrase* at the start of *words*.

    Returns 0 if *phrase* does not match.
    """
    size = len(words)
    # Up to the first optional element or wildcard, there is only one way to match.
    for start, (allowed, optional, wildcard_size) in enumerate(phrase):
        if optional or wildcard_size:
            break
        if start == size or words[start] not in allowed:
            return 0
    else:
        return len(phrase)
    # From there on, keep all positions at which a match of the elements so far can end.
    positions = {start}
    for allowed, optional, wildcard_size in phrase[start:]:
        reached = set(positions) if optional else set()
        for position in positions:
            if wildcard_size:
                reached.update(range(position, position + wildcard_size + 1))
            elif position < size and words[position] in allowed:
                reached.add(position + 1)
        if not reached:
            return 0
        positions = reached
    return min((position for position in positions if position <= size), default=0)


@cache
def _compile_noise_pattern() -> re.Pattern[str]:
    """Return a pattern that matches a placeholder, error message or preamble at a text's start."""
    return _join_patterns(
        [
            *_PLACEHOLDERS,
            *(pattern for lexicon in load_all_lexicons() for pattern in lexicon.preambles),
        ]
    )


@cache
def _load_chatter_and_fillers() -> tuple[_Patterns, _Patterns]:
    """Load the chatter phrases of all languages, and the fillers that may precede chatter.

    Returns:
        The chatter phrases, by first word.
        The fillers, by first word.
    """
    # A model may reply in any language, whatever the language of the question.
    lexicons = [load_lexicon(code) for code in LANGUAGES]
    chatter = _compile_patterns(pattern for lexicon in lexicons for pattern in lexicon.chatter)
    return chatter, _compile_patterns(
        pattern for lexicon in lexicons for pattern in lexicon.fillers
    )


@cache
def _collect_opening_words() -> frozenset[str]:
    """Return all words that can begin chatter ("i", "let") or a filler ("sure")."""
    chatter, fillers = _load_chatter_and_fillers()
    return frozenset((*chatter, *fillers))


def _compile_patterns(patterns: Iterable[str]) -> _Patterns:
    """Return compiled phrase patterns from lexicons, by each word that a phrase can begin with."""
    return {
        word: tuple(
            tuple((words, optional, _read_wildcard_size(words)) for words, optional in phrase)
            for phrase in phrases
        )
        for word, phrases in compile_phrases(map(fold_accents, patterns)).items()
    }


def _read_wildcard_size(allowed_words: frozenset[str]) -> int:
    """Return the size of the wildcard in *allowed_words*; 0 if there is no wildcard.

    For example, the wildcard ``*3`` has the size 3: it matches up to three arbitrary words.
    """
    return next((int(word[1:]) for word in allowed_words if word[0] == "*"), 0)


@cache
def _collect_talk_words(languages: frozenset[str], *, is_passage: bool) -> frozenset[str]:
    """Return the words in *languages* that models use for themselves or their task.

    For a passage, words such as "we" are left out, because companies use them too.
    """
    lexicons = [load_lexicon(code) for code in languages]
    words = [
        lexicon.talk if is_passage else lexicon.talk | lexicon.shared_talk for lexicon in lexicons
    ]
    return frozenset(map(fold_accents, frozenset[str]().union(*words)))


def _find_title_words(text: str, languages: frozenset[str]) -> set[str]:
    """Return the stop words that belong to titles in *text*, such as "my" in "open My Account".

    These are the stop words and weak words that are capitalised inside a sentence. The returned
    words are in lower case, without accents.
    """
    capitals = {
        fold_accents(word)
        for word in _INNER_WORD.findall(text)
        if word[0].isupper() and word != "I"
    }
    small = (
        fold_accents(word)
        for code in languages
        for word in load_lexicon(code).stop | load_lexicon(code).weak
    )
    return capitals.intersection(small)


@cache
def _collect_common_stems() -> frozenset[str]:
    """Return the first five letters of all words that are never topic words.

    These are the stop words, and the words that models use for themselves, in all languages.
    """
    return frozenset(
        fold_accents(word)[:5]
        for code in LANGUAGES
        for word in load_lexicon(code).stop
        | load_lexicon(code).talk
        | load_lexicon(code).shared_talk
    )


def _find_topic_stems(text: str) -> set[str]:
    """Return the first five letters of each word of *text* that may name its topic.

    Leaves out stop words, words that models use for themselves, and words of up to two letters.
    """
    return {word[:5] for word in fold_words(text) if len(word) > 2} - _collect_common_stems()


def is_error_page(text: str) -> bool:
    """Return whether *text* is a gateway's or client's error page, and not a model's reply."""
    opening = text.lstrip()[:200].lower()
    return (
        opening.startswith(("<!doctype", "<html", "<?xml", "**error**", "error::"))
        or "</body>" in text[-200:].lower()
    )


def is_refusal(text: str, query: str) -> bool:
    """Return whether *text* begins with a model's refusal, such as "I cannot help".

    Returns ``False`` if all words of the refusal are in *query*.
    """
    return _begins_with_pattern(_compile_refusal_pattern(), text, query)


@cache
def _compile_refusal_pattern() -> re.Pattern[str]:
    """Return a pattern that matches a refusal in any language at a text's start."""
    return _join_patterns(
        pattern for lexicon in load_all_lexicons() for pattern in lexicon.refusals
    )


def _join_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return one pattern that matches if any of the regular expressions *patterns* matches."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _begins_with_pattern(pattern: re.Pattern[str], text: str, query: str) -> bool:
    """Return whether *pattern* matches the start of *text*, ignoring case and accents.

    Returns ``False`` if all matched words are in *query*.
    """
    match = pattern.match(_fold_opening(text))
    return match is not None and not (
        match.group() and set(split_words(match.group())) <= set(fold_words(query))
    )


# Each text is checked twice: for a refusal, then for a placeholder.
@lru_cache(4)
def _fold_opening(text: str) -> str:
    """Return the start of *text* in lower case, without accents and leading punctuation."""
    return fold_accents(clean_text(text[:_OPENING_CHARS])).lstrip("\"'*_([ ")
