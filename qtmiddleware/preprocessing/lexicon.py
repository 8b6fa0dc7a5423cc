"""The word lists: reading them, changing them by what a user wants kept or removed, telling a language by them.

A language is one JSON file in `lexicons`; README.md there says what each of its keys holds.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pkgutil import get_data
from typing import Any, cast

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.text import fold

Phrase = tuple[tuple[frozenset[str], bool], ...]
"""A phrase, place by place: the words that may stand there, and whether the place may be left out."""

Phrases = Mapping[str, tuple[Phrase, ...]]
"""Phrases by the word they begin with."""

STRONG, WEAK = 2, 1

DEFAULT = "en"
"""One weak word is enough for this one, in a query of plain ASCII where no other language has shown itself."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Lexicon:
    """The word list of one language, every word folded; README.md in `lexicons` says what each of its parts means.

    *stop* are the words of all its classes, *verbs* its auxiliaries and modals, *kept* and
    *removed* the phrases that are, *extra* what a user wants out whatever its capitals. *removable*
    are the stop words that deny nothing.
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
    references: frozenset[str] = frozenset()
    closings: frozenset[str] = frozenset()
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    starters: frozenset[str] = frozenset()
    openers: frozenset[str] = frozenset()
    lead_ins: Phrases = field(default_factory=dict)
    kept: Phrases = field(default_factory=dict)
    removed: Phrases = field(default_factory=dict)
    greetings: Phrases = field(default_factory=dict)
    conjunctions: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    nouns_are_capitalised: bool = False
    titles: frozenset[str] = frozenset()
    chatter: tuple[str, ...] = ()
    fillers: tuple[str, ...] = ()
    talk: frozenset[str] = frozenset()
    shared_talk: frozenset[str] = frozenset()
    function_words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    denials: frozenset[str] = frozenset()
    denial_patterns: tuple[str, ...] = ()
    exclusions: frozenset[str] = frozenset()
    refusals: tuple[str, ...] = ()
    preambles: tuple[str, ...] = ()
    abbreviations: tuple[str, ...] = ()
    no_answer: str = ""
    dates: Mapping[str, Any] = field(default_factory=dict)
    removable: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "removable", self.stop - self.negations - {""})

    def collect_words(self) -> frozenset[str]:
        """Return every word that may be removed in lower case, by itself or as the first of a phrase."""
        return self.stop.union(self.closings, self.lead_ins, self.removed, self.greetings)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Markers:
    """What small words say about the language.

    *weights* are the languages each word speaks for. *starters* are first words that are enough
    alone, *openers* those that weigh more in that place.
    """

    weights: Mapping[str, tuple[tuple[str, int], ...]]
    starters: Mapping[str, str]
    openers: Mapping[str, str]


_WORDS = (
    "elisions", "negations", "homographs", "acronyms", "pronouns", "references", "closings", "titles", "talk",
    "shared_talk", "denials", "exclusions", "conjunctions", "function_words",
)  # fmt: skip
"""The keys of a file that hold words."""
_PATTERNS = (
    "chatter",
    "fillers",
    "denial_patterns",
    "refusals",
    "preambles",
    "abbreviations",
    "endings",
)
"""The keys of a file that hold patterns and what else is taken as it is written."""


@cache
def load(language: str) -> Lexicon:
    """The word list of *language*, read from its file once."""
    return _read_lexicon(language, _read_file(language))


@cache
def load_all() -> tuple[Lexicon, ...]:
    """Every word list, and what is known of the languages that have none: how they deny, refuse and announce."""
    others = (_read_lexicon(code, data) for code, data in _read_file("others").items())
    return (*map(load, LANGUAGES), *others)


def _read_file(name: str) -> dict[str, Any]:
    # importlib.resources would load half of the standard library.
    content = get_data("qtmiddleware.preprocessing", f"lexicons/{name}.json")
    data: dict[str, Any] = json.loads(content or b"{}")
    return data


def _read_lexicon(language: str, data: Mapping[str, Any]) -> Lexicon:
    """The word list that *data* holds; every key may be missing."""
    classes: dict[str, list[str]] = data.get("stop_words", {})
    hints: dict[str, list[str]] = data.get("hints", {})
    words: dict[str, Any] = {name: _fold_words(data.get(name, ())) for name in _WORDS}
    words |= {
        name: _fold_words(hints.get(name, ())) for name in ("strong", "weak", "starters", "openers")
    }
    patterns: dict[str, Any] = {name: tuple(data.get(name, ())) for name in _PATTERNS}
    return Lexicon(
        language=language,
        stop=_fold_words(word for words in classes.values() for word in words),
        articles=_fold_words(classes.get("articles", ())),
        verbs=_fold_words([*classes.get("auxiliaries", ()), *classes.get("modals", ())]),
        lead_ins=compile_phrases(data.get("lead_ins", ())),
        kept=compile_phrases(data.get("kept_phrases", ())),
        removed=compile_phrases(data.get("removed_phrases", ())),
        greetings=compile_phrases(data.get("greetings", ())),
        nouns_are_capitalised=data.get("nouns_are_capitalised", False),
        no_answer=data.get("no_answer", ""),
        dates=data.get("dates", {}),
        **words,
        **patterns,
    )


def adjust(lexicon: Lexicon, keep: frozenset[str], extra: frozenset[str]) -> Lexicon:
    """*lexicon* with the words *extra* removed too and those of *keep* never removed; a word in both is kept.

    Both are folded. A kept entry may be a phrase; a phrase in *extra* raises `ConfigError`.
    """
    if any(" " in word for word in extra):
        raise ConfigError(
            "preprocess.extraWords must hold single words; write a phrase as several words",
            path="preprocess.extraWords",
        )
    singles = {word for word in keep if " " not in word}
    kept = dict(lexicon.kept)
    for first, found in compile_phrases(word for word in keep if " " in word).items():
        kept[first] = kept.get(first, ()) + found
    return replace(
        lexicon,
        stop=(lexicon.stop | extra) - singles,
        # A word the user wants out goes even where it would otherwise be guarded as a negation.
        negations=(lexicon.negations | singles) - (extra - singles),
        # Nor does a capital make a name or an acronym of it.
        extra=extra - singles,
        closings=lexicon.closings - singles,
        kept=kept,
        lead_ins=_drop_words(lexicon.lead_ins, singles),
        removed=_drop_words(lexicon.removed, singles),
        greetings=_drop_words(lexicon.greetings, singles),
    )


def _fold_words(words: Iterable[str]) -> frozenset[str]:
    """Returns *words*, folded: all at once, as there are thousands."""
    return frozenset(filter(None, fold("\n".join(words)).split("\n")))


def check_words(words: Collection[str], key: str) -> frozenset[str]:
    """The user's *words*, folded, each with single spaces.

    Raises `ConfigError`, naming *key*, for a plain string in place of a list and for an entry that
    is no text.
    """
    if isinstance(words, str | bytes) or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"{key} must be a list of words", path=f"preprocess.{key}", allowed="a list of words"
        )
    return frozenset(text for word in words if (text := " ".join(fold(word).split())))


def compile_phrases(patterns: Iterable[str]) -> Phrases:
    """Patterns such as ``can|could you [please] tell me`` by the words they may begin with.

    A place ``a|b`` takes one of these words, ``[a|b]`` one or none.
    """
    table: dict[str, tuple[Phrase, ...]] = {}
    for phrase in map(_compile, patterns):
        for words, optional in phrase:
            for word in words:
                table[word] = (*table.get(word, ()), phrase)
            if not optional:
                break
    return table


def _compile(pattern: str) -> Phrase:
    """One pattern, place by place: ``a|b`` is either word, ``[a|b]`` either or none."""
    places = []
    for place in fold(pattern).split():
        optional = place.startswith("[") and place.endswith("]")
        places.append(
            (frozenset(place.strip("[]").split("|") if optional else place.split("|")), optional)
        )
    return cast("Phrase", tuple(places))


def _drop_words(phrases: Phrases, words: set[str]) -> Phrases:
    """*phrases* as they are matched where *words* must stay."""
    return {
        first: tuple(
            tuple((allowed - words, optional) for allowed, optional in phrase) for phrase in found
        )
        for first, found in phrases.items()
    }


def match_phrase(phrases: Phrases, keys: Sequence[str], start: int) -> int:
    """How many of *keys* from *start* on are a phrase; the longest counts, 0 where none is."""
    longest, size = 0, len(keys)
    for phrase in phrases.get(keys[start], ()):
        at = start
        for words, optional in phrase:
            # A place that may be left out takes its word wherever it can.
            if at < size and keys[at] in words:
                at += 1
            elif not optional:
                break
        else:
            longest = max(longest, at - start)
    return longest


def collect_markers(lexicons: Sequence[Lexicon]) -> Markers:
    """What the small words of *lexicons* say about the language."""
    table: dict[str, dict[str, int]] = {}
    for lexicon in lexicons:
        for word in lexicon.stop | lexicon.weak | lexicon.strong:
            # One letter is a word in every language, so it speaks for none.
            if len(word) > 1 or not word.isascii():
                table.setdefault(word, {})[lexicon.language] = (
                    STRONG if word in lexicon.strong else WEAK
                )
        for elided in lexicon.elisions:
            table.setdefault(f"{elided}'", {})[lexicon.language] = WEAK
    return Markers(
        weights={word: tuple(weights.items()) for word, weights in table.items()},
        starters={word: lexicon.language for lexicon in lexicons for word in lexicon.starters},
        openers={word: lexicon.language for lexicon in lexicons for word in lexicon.openers},
    )


def guess_language(keys: Sequence[str], known: Markers, text: str = "") -> str:
    """The language of the folded words *keys* of *text*, or ``""`` where they do not tell."""
    if keys and (language := known.starters.get(keys[0])) is not None:
        return language
    weights = known.weights
    telling = set(filter(weights.__contains__, keys))
    if "'" in "".join(keys):
        heads = (word[: word.index("'") + 1] for word in keys if "'" in word)
        telling.update(filter(weights.__contains__, heads))
    scores: dict[str, int] = {}
    for word in telling:
        for language, weight in weights[word]:
            scores[language] = scores.get(language, 0) + weight
    opener = known.openers.get(keys[0]) if keys else None
    if opener is not None and opener in scores:
        scores[opener] += WEAK
    found = _find_winner(scores, keys, opener) if scores else ""
    if not found:
        # Nothing decides: plain ASCII is taken for the default language, unless a word is another's
        # alone.
        is_foreign = any(
            _is_own(weights[word], language) for word in telling for language, _ in weights[word]
        )
        # One letter speaks for no language by itself, so the article among them is looked for.
        is_told = bool(scores) or not load(DEFAULT).articles.isdisjoint(keys)
        return DEFAULT if is_told and not is_foreign and text.isascii() else ""
    if found == DEFAULT or any(_is_own(weights[word], found) for word in telling):
        return found
    # Every word that spoke for it is one of the default language too. What tells "Was macht Amy in
    # Berlin?" from "Was Amy in Berlin?" is the verb behind the opener.
    if _is_verb(text.split()[1:2]):
        return found
    return DEFAULT if all(map(str.isascii, keys)) else ""


def _is_verb(words: Sequence[str]) -> bool:
    """Whether the first of *words*, if any, looks like a verb of German, whose "was" is the one such opener."""
    return any(
        word[0].islower() and word.rstrip("?!.,").endswith(("t", "te", "en", "un"))
        for word in words[:1]
    )


def _is_own(weights: Sequence[tuple[str, int]], language: str) -> bool:
    """Whether a word with these *weights* is one of *language* and not of the default language."""
    languages = {name for name, _ in weights}
    return language in languages and DEFAULT not in languages


def _find_winner(scores: dict[str, int], keys: Sequence[str], opener: str | None) -> str:
    """The language with the best score, if it is good enough and ahead of all others."""
    best = max(scores.values())
    leaders = [language for language, score in scores.items() if score == best]
    if len(leaders) > 1:
        # A draw with a language that leads by its opener alone: another word speaks for the
        # default.
        return DEFAULT if DEFAULT in leaders and opener in leaders else ""
    enough = best >= STRONG or (leaders[0] == DEFAULT and all(map(str.isascii, keys)))
    return leaders[0] if enough else ""
