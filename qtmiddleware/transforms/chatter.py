"""Sentences that are about the task instead of doing it: preambles, remarks, error messages and empty forms.

Only openings that nobody would search for are named, in the word list of each language; what
programs write in any language is named here. Where the user's own question uses the same words,
they are no noise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES, detect_language
from qtmiddleware.preprocessing.lexicon import DEFAULT, compile_phrases, load, load_all
from qtmiddleware.preprocessing.text import (
    clean,
    find_first_word,
    fold_accents,
    fold_words,
    is_blank,
    split_words,
)

_QUERY: Final = r"(?:sub-?|search )?(?:query|queries|question|questions|prompt|request|input)"
_EMPTY_FORMS: Final = (
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
"""How a folded text opens that is an empty form or an error message."""
_POLITE: Final = (
    r"(?:sure|certainly|of course|absolutely|okay|ok|great|alright|got it)(?: thing)?[!.,:]+"
)
_ANNOUNCED: Final = (
    r"(?:here(?:'s|’s| is| are)|this is|the following (?:is|are))\b[^:：\n]{0,100}[:：]"
)
_LEAD_IN: Final = re.compile(rf"(?:{_POLITE}\s*)?(?:{_ANNOUNCED}\s*)?", re.IGNORECASE)
# One set of characters comes first, so that the search steps over all others at once.
_STOP: Final = re.compile(r"[.!?…:。！？：](?:(?<=[。！？：])|[.!?…:]*[\"'”»)]*\s)")
_SENTENCE_CHARS: Final = 300
_MOST_SENTENCES: Final = 5
_MANY_WORDS: Final = 20
_FEW_WORDS: Final = 4
STATEMENT_WORDS: Final = {"line": 60, "list": 60, "passage": 12}
"""The longest statement about the task, by shape; a passage is made of statements that may well have other words."""
_INNER_WORD: Final = re.compile(r"(?<=[\w,;] )[^\W\d_]+")
_STATED: Final = (".", "!")
_QUOTES: Final = "\"'”»* "
_OPENING_CHARS: Final = 300

_Pattern = tuple[tuple[frozenset[str], bool, int], ...]
"""A phrase, place by place: the words that may stand there, whether it may be left out, and up to how many words of any
kind stand there instead."""
_Patterns = Mapping[str, tuple[_Pattern, ...]]
"""Phrases by the word they begin with."""


def is_noise(text: str, query: str) -> bool:
    """Whether *text* holds nothing, or opens as talk about the task does."""
    return (
        is_blank(text)
        or _opens_with(_opening_pattern(), text, query)
        or find_chatter_end(text, query) > 0
    )


def strip_lead_in(text: str, query: str = "", *, is_passage: bool = False) -> str:
    """Returns *text* without a "Sure! Here is the rewritten query:" before it, in any language that has a word list.

    Sentences of chatter go too where what follows is surely the text: it stands behind a colon, it
    asks for something of *query*, or it is long enough for a passage.
    """
    match = _LEAD_IN.match(text)
    lead_in = match.group() if match else ""
    if lead_in and fold_words(lead_in)[:2] != fold_words(query[:_SENTENCE_CHARS])[:2]:
        text = text[len(lead_in) :]
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


def is_beside_the_point(text: str, shape: str, query: str, context: str) -> bool:
    """Whether *text* is a statement in words of talk that has no other word in common with *query* and its *context*.

    None is judged that is longer than `STATEMENT_WORDS` for its *shape*, or where the user too
    writes in statements. A passage answers in other words than the question, and a company says
    "we" and "you" in it, so of a passage only words count that nobody uses but a model that speaks
    of itself or of its task.
    """
    if not text.rstrip(_QUOTES).endswith(_STATED) or query.rstrip(_QUOTES).endswith(_STATED):
        return False
    said = fold_words(text) if text.count(" ") < STATEMENT_WORDS[shape] else []
    if len(said) < _FEW_WORDS:
        return False
    languages = _guess_languages(text, shape, query)
    talk = _talk_words(languages, is_passage=shape == "passage")
    if talk.isdisjoint(set(said) - set(fold_words(query)) - _find_titles(text, languages)):
        return False
    return _find_topic_stems(text).isdisjoint(_find_topic_stems(context))


def _guess_languages(text: str, shape: str, query: str) -> frozenset[str]:
    """The languages whose words of talk count in *text*.

    A passage is in the language of *query*, and a model that does not write one may fall into
    English. A line without any word of the question is suspect, so if nothing tells its language
    the words of all count.
    """
    asked, given = detect_language(query), detect_language(text)
    if shape == "passage":
        return frozenset({asked or given, DEFAULT if given == DEFAULT else ""} - {""})
    return frozenset({asked, given} - {""}) or frozenset(LANGUAGES)


# A text is asked for its lead-in, and what is left of it for whether it is talk.
@lru_cache(4)
def find_chatter_end(text: str, query: str) -> int:
    """Returns how many characters at the start of *text* are chatter; 0 where none is or *query* opens so too."""
    end = place = 0
    if text.isascii() and not _opens_like_chatter(text):
        return 0
    for _ in range(_MOST_SENTENCES):
        stop = _STOP.search(text, place, place + _SENTENCE_CHARS)
        after = stop.end() if stop else min(len(text), place + _SENTENCE_CHARS)
        keys = fold_words(text[place:after])
        start = _match_fillers(keys)
        # A word may be a filler and the beginning of chatter: "sì, cerco ..." and "si potrebbe
        # cercare ...".
        if _is_chatter(keys[start:], query) or (start and _is_chatter(keys, query)):
            end = after
        elif not 0 < start == len(keys):
            break
        place = after
    return end


def _opens_like_chatter(text: str) -> bool:
    """Whether the first word of *text*, in ASCII, is one that chatter or a filler begins with; few are."""
    return find_first_word(text) in _opening_words()


def _is_chatter(keys: Sequence[str], query: str) -> bool:
    length = _match_chatter(keys)
    if not length:
        return False
    asked = fold_words(query[:_SENTENCE_CHARS])
    return not (set(keys[:length]) <= set(asked) or _match_chatter(asked))


def _match_chatter(keys: Sequence[str]) -> int:
    chatter, _ = _chatter_phrases()
    found = chatter.get(keys[0]) if keys else None
    return (
        min([length for phrase in found if (length := _match_length(phrase, keys))], default=0)
        if found
        else 0
    )


def _match_fillers(keys: Sequence[str]) -> int:
    _, fillers = _chatter_phrases()
    start = 0
    while start < len(keys) and (found := fillers.get(keys[start])):
        length = max(_match_length(phrase, keys[start:]) for phrase in found)
        if not length:
            break
        start += length
    return start


def _match_length(phrase: _Pattern, keys: Sequence[str]) -> int:
    """How many of *keys* from the first on *phrase* covers at least, 0 where it does not stand there."""
    size = len(keys)
    for start, (allowed, optional, gap) in enumerate(phrase):
        if optional or gap:
            break
        if start == size or keys[start] not in allowed:
            return 0
    else:
        return len(phrase)
    places = {start}
    for allowed, optional, gap in phrase[start:]:
        reached = set(places) if optional else set()
        for at in places:
            if gap:
                reached.update(range(at, at + gap + 1))
            elif at < size and keys[at] in allowed:
                reached.add(at + 1)
        if not reached:
            return 0
        places = reached
    return min((at for at in places if at <= size), default=0)


@cache
def _opening_pattern() -> re.Pattern[str]:
    return _compile_openings(
        [*_EMPTY_FORMS, *(pattern for one in load_all() for pattern in one.preambles)]
    )


@cache
def _chatter_phrases() -> tuple[_Patterns, _Patterns]:
    """How chatter opens, and what may stand before it, in all languages: a model may fall into any of them."""
    lists = [load(code) for code in LANGUAGES]
    chatter = _compile_patterns(pattern for one in lists for pattern in one.chatter)
    return chatter, _compile_patterns(pattern for one in lists for pattern in one.fillers)


@cache
def _opening_words() -> frozenset[str]:
    """The words that chatter or a filler begins with."""
    chatter, fillers = _chatter_phrases()
    return frozenset((*chatter, *fillers))


def _compile_patterns(patterns: Iterable[str]) -> _Patterns:
    return {
        word: tuple(
            tuple((words, optional, _read_gap(words)) for words, optional in phrase)
            for phrase in phrases
        )
        for word, phrases in compile_phrases(map(fold_accents, patterns)).items()
    }


def _read_gap(allowed: frozenset[str]) -> int:
    """How many words a place ``*3`` stands for at most, 0 for any other place."""
    return next((int(word[1:]) for word in allowed if word[0] == "*"), 0)


@cache
def _talk_words(languages: frozenset[str], *, is_passage: bool) -> frozenset[str]:
    """The words of talk in *languages*: "i" is one in English, and an article in Italian."""
    lists = [load(code) for code in languages]
    words = [one.talk if is_passage else one.talk | one.shared_talk for one in lists]
    return frozenset(map(fold_accents, frozenset[str]().union(*words)))


def _find_titles(text: str, languages: frozenset[str]) -> set[str]:
    """The small words of *text* with a capital inside a sentence, which belong to a title: "open My Account"."""
    capitals = {
        fold_accents(word)
        for word in _INNER_WORD.findall(text)
        if word[0].isupper() and word != "I"
    }
    small = (fold_accents(word) for code in languages for word in load(code).stop | load(code).weak)
    return capitals.intersection(small)


@cache
def _common_stems() -> frozenset[str]:
    """The beginnings of the words that say nothing about a topic."""
    return frozenset(
        fold_accents(word)[:5]
        for code in LANGUAGES
        for word in load(code).stop | load(code).talk | load(code).shared_talk
    )


def _find_topic_stems(text: str) -> set[str]:
    """The beginnings of the words of *text* that may say what it is about."""
    return {word[:5] for word in fold_words(text) if len(word) > 2} - _common_stems()


def is_error_page(text: str) -> bool:
    """Whether *text* is what gateways and clients send in place of a reply when something failed."""
    opening = text.lstrip()[:200].lower()
    return (
        opening.startswith(("<!doctype", "<html", "<?xml", "**error**", "error::"))
        or "</body>" in text[-200:].lower()
    )


def is_refusal(text: str, query: str) -> bool:
    """Whether *text* opens as a model does that will not do its task, in words that *query* does not hold itself."""
    return _opens_with(_refusal_pattern(), text, query)


@cache
def _refusal_pattern() -> re.Pattern[str]:
    return _compile_openings(pattern for one in load_all() for pattern in one.refusals)


def _compile_openings(patterns: Iterable[str]) -> re.Pattern[str]:
    """One pattern for a folded text that opens as any of *patterns* says."""
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _opens_with(pattern: re.Pattern[str], text: str, query: str) -> bool:
    """Whether *text* opens as *pattern* says, in words that are not all the query's own."""
    match = pattern.match(_fold_opening(text))
    return match is not None and not (
        match.group() and set(split_words(match.group())) <= set(fold_words(query))
    )


# A text is asked whether it refuses, and then whether it is an empty form.
@lru_cache(4)
def _fold_opening(text: str) -> str:
    return fold_accents(clean(text[:_OPENING_CHARS])).lstrip("\"'*_([ ")
