"""The nouns of the rules: what is handed out, what a word list holds and what a query is read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

SpanKind = Literal["quote", "identifier", "number", "negation", "name", "url"]
"""What a protected span is."""

TokenKind = Literal["word", "acronym", "identifier", "number", "url", "quote"]
"""What a piece of a query is; everything but a word is kept as it is written."""

Phrase = tuple[tuple[frozenset[str], bool], ...]
"""A phrase, place by place: the words that may stand there, and whether the place may be left out."""

Phrases = Mapping[str, tuple[Phrase, ...]]
"""Phrases by the word they begin with."""

APOSTROPHES: Final = str.maketrans("’ʼ＇‛", "''''")
"""Every mark that is written for an apostrophe, and the straight one all of them become."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query's *keywords*, and the code of the word list they were found with (``""`` where none was used)."""

    keywords: str = field(repr=False)
    language: str


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a query that a rewrite must not lose; ``query[start:end] == text``."""

    kind: SpanKind
    text: str = field(repr=False)
    start: int
    end: int


class Token(NamedTuple):
    """One piece of a query: ``query[start:end] == text``.

    *opens* says that a sentence begins with it, *closed* that punctuation stands between it and the next one.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    opens: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The word list of one language, every word casefolded and with straight apostrophes.

    *homographs* are stop words that are names too, *pronouns* what follows one where it is none. A language is told by
    the words *strong* and *weak*, by *starters*, first words that are enough alone, and by *openers*, which weigh more
    in that place. *lead_ins* and *kept* are phrases: what goes as a whole at the start, and what stays anywhere.
    *titles* stand before names. *chatter* and *fillers* are patterns for the replies of a model: how a sentence opens
    that talks about the task, and what may stand before it; *talk* are words by which it speaks of itself and the task.
    *refusals* and *preambles* are regular expressions for how a reply opens that is none. *denials* are all words that
    deny, without accents, *denial_patterns* what denies inside of a word, and *exclusions* the words for "without".
    *abbreviations* end with a full stop that ends no sentence, and *no_answer* says that the passages hold none.
    """

    language: str
    stop: frozenset[str] = frozenset()
    articles: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    elisions: frozenset[str] = frozenset()
    negations: frozenset[str] = frozenset()
    homographs: frozenset[str] = frozenset()
    acronyms: frozenset[str] = frozenset()
    pronouns: frozenset[str] = frozenset()
    closings: frozenset[str] = frozenset()
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    openers: frozenset[str] = frozenset()
    lead_ins: Phrases = field(default_factory=dict)
    kept: Phrases = field(default_factory=dict)
    nouns_are_capitalised: bool = False
    titles: frozenset[str] = frozenset()
    chatter: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    talk: frozenset[str] = frozenset()
    denials: frozenset[str] = frozenset()
    denial_patterns: tuple[str, ...] = ()
    exclusions: frozenset[str] = frozenset()
    refusals: tuple[str, ...] = ()
    preambles: tuple[str, ...] = ()
    abbreviations: tuple[str, ...] = ()
    no_answer: str = ""


@dataclass(frozen=True, slots=True)
class Markers:
    """What small words say about the language.

    *weights* are the languages each word speaks for. *starters* are first words that are enough alone, *openers* those
    that weigh more in that place.
    """

    weights: Mapping[str, tuple[tuple[str, int], ...]]
    starters: Mapping[str, str]
    openers: Mapping[str, str]


def fold(word: str) -> str:
    """*word* as word lists hold it: straight apostrophes, no case."""
    return word.translate(APOSTROPHES).casefold()


def longest(phrases: Phrases, keys: Sequence[str], start: int) -> int:
    """How many of *keys* from *start* on are a phrase; the longest counts, 0 where none is."""
    found = phrases.get(keys[start])
    return max(_length(phrase, keys, start) for phrase in found) if found else 0


def _length(phrase: Phrase, keys: Sequence[str], start: int) -> int:
    """How many keys *phrase* covers from *start* on; a place that may be left out takes its word wherever it can."""
    at = start
    for words, optional in phrase:
        if at < len(keys) and keys[at] in words:
            at += 1
        elif not optional:
            return 0
    return at - start
