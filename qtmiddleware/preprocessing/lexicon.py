"""Load the word lists, adjust them to a user's words, and detect languages.

Each language has one JSON file in `lexicons`. The README.md in that folder describes the keys.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pkgutil import get_data
from typing import Any, NamedTuple

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.text import fold_case

WordSet = frozenset[str]

Phrase = tuple[tuple[frozenset[str], bool], ...]
"""A phrase: for each position, the allowed words and whether the position is optional."""

Phrases = Mapping[str, tuple[Phrase, ...]]
"""Maps each word to the phrases that can begin with it."""

DEFAULT = "en"
"""The default language. A single weak word in an ASCII query is enough to detect it.

Words that belong only to other languages rule it out.
"""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Lexicon:
    """The word list of one language. All words are in lower case.

    Most attributes are named after a JSON key, which the README.md in `lexicons` describes.

    Attributes:
        language: the language code, or ``""`` for an empty list.
        stop: all stop words, such as articles, verbs and question words.
        verbs: the stop words that are auxiliary or modal verbs.
        extra: the words that the user wants to remove, even if they are capitalised.
        removable: the stop words, except negations.
        all_removable: all words that the rules may remove, alone or as the start of a phrase.
    """

    language: str
    stop: WordSet = frozenset()
    articles: WordSet = frozenset()
    verbs: WordSet = frozenset()
    elisions: WordSet = frozenset()
    negations: WordSet = frozenset()
    homographs: WordSet = frozenset()
    acronyms: WordSet = frozenset()
    pronouns: WordSet = frozenset()
    references: WordSet = frozenset()
    closings: WordSet = frozenset()
    strong: WordSet = frozenset()
    weak: WordSet = frozenset()
    starters: WordSet = frozenset()
    openers: WordSet = frozenset()
    lead_ins: Phrases = field(default_factory=dict)
    kept_phrases: Phrases = field(default_factory=dict)
    removed_phrases: Phrases = field(default_factory=dict)
    greetings: Phrases = field(default_factory=dict)
    extra: WordSet = frozenset()
    nouns_are_capitalised: bool = False
    titles: WordSet = frozenset()
    chatter: tuple[str, ...] = ()
    talk: WordSet = frozenset()
    function_words: WordSet = frozenset()
    endings: tuple[str, ...] = ()
    denials: WordSet = frozenset()
    denial_patterns: tuple[str, ...] = ()
    negation_patterns: tuple[str, ...] = ()
    no_negations: tuple[str, ...] = ()
    exclusions: WordSet = frozenset()
    refusals: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    abbreviations: tuple[str, ...] = ()
    no_answer: str = ""
    dates: Mapping[str, Any] = field(default_factory=dict)
    removable: WordSet = field(init=False)
    all_removable: WordSet = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "removable", self.stop - self.negations)
        phrases = (self.lead_ins, self.removed_phrases, self.greetings)
        object.__setattr__(self, "all_removable", self.stop.union(self.closings, *phrases))


@cache
def load_lexicon(language: str) -> Lexicon:
    """Return the word list of *language*. Only the first call reads the file."""
    return _build_lexicon(language, _read_json_file(language))


@cache
def load_all_lexicons() -> tuple[Lexicon, ...]:
    """Return all word lists, including the short lists of languages that cannot be detected.

    A short list has only negations, and what replies say in place of an answer.
    """
    others = (_build_lexicon(code, data) for code, data in _read_json_file("others").items())
    return (*map(load_lexicon, LANGUAGES), *others)


@cache
def compile_other_negations() -> re.Pattern[str]:
    """Return a pattern for negations in languages that cannot be detected, such as Japanese.

    Also for "without" in all languages, as short questions such as "Tarife ohne Zahnersatz" tell no
    language. A match without a group only looks like a negation: "or not", "could you not tell me".
    """
    others = load_all_lexicons()[len(LANGUAGES) :]
    exclusions = {word for lexicon in load_all_lexicons() for word in lexicon.exclusions}
    words = "|".join(sorted(exclusions.union(*(lexicon.denials for lexicon in others))))
    negations = "|".join(text for lexicon in others for text in lexicon.negation_patterns)
    exceptions = "|".join(text for lexicon in others for text in lexicon.no_negations)
    return re.compile(rf"{exceptions}|({negations}|(?<!\w)(?:{words})(?!\w))")


def _read_json_file(name: str) -> dict[str, Any]:
    # Importing importlib.resources would load half of the standard library.
    content = get_data("qtmiddleware.preprocessing", f"lexicons/{name}.json")
    data: dict[str, Any] = json.loads(content or b"{}")
    return data


def _build_lexicon(language: str, data: Mapping[str, Any]) -> Lexicon:
    """Build a word list from the content of a JSON file, in which every key is optional."""
    classes: dict[str, list[str]] = data.get("stop_words", {})
    content = {
        **data,
        **data.get("hints", {}),
        "stop": [word for words in classes.values() for word in words],
        "articles": classes.get("articles", ()),
        "verbs": [*classes.get("auxiliaries", ()), *classes.get("modals", ())],
    }
    readers = {
        "WordSet": _fold_words,
        "tuple[str, ...]": tuple,
        "Phrases": compile_phrases,
    }
    values: dict[str, Any] = {}
    for attribute in fields(Lexicon):
        if attribute.init and attribute.name in content:
            read: Any = readers.get(str(attribute.type), lambda value: value)
            values[attribute.name] = read(content[attribute.name])
    return Lexicon(language, **values)


def adjust_lexicon(lexicon: Lexicon, kept_words: WordSet, extra_words: WordSet) -> Lexicon:
    """Return a copy of *lexicon* whose rules keep *kept_words* and remove *extra_words*.

    A word in both sets is kept. All words are in lower case.
    """
    if any(" " in word for word in extra_words):
        raise ConfigError(
            "preprocess.extraWords must hold single words; write a phrase as several words",
            path="preprocess.extraWords",
        )
    # A single word leaves the lists of removable words. A phrase cannot leave them, because its
    # words stay removable elsewhere. It becomes a phrase that the rules never change.
    singles = frozenset(word for word in kept_words if " " not in word)
    extra = extra_words - singles
    kept = dict(lexicon.kept_phrases)
    for word, phrases in compile_phrases(kept_words - singles).items():
        kept[word] = kept.get(word, ()) + phrases

    def disallow(phrases: Phrases) -> Phrases:
        return {
            word: tuple(
                tuple((allowed - singles, is_optional) for allowed, is_optional in phrase)
                for phrase in group
            )
            for word, group in phrases.items()
        }

    return replace(
        lexicon,
        stop=(lexicon.stop | extra) - singles,
        # A word that the user wants removed is removed even if it is a negation.
        negations=(lexicon.negations | singles) - extra,
        # Such a word is removed even if its capitals make it look like a name or an acronym.
        extra=extra,
        closings=lexicon.closings - singles,
        kept_phrases=kept,
        lead_ins=disallow(lexicon.lead_ins),
        removed_phrases=disallow(lexicon.removed_phrases),
        greetings=disallow(lexicon.greetings),
    )


def _fold_words(words: Iterable[str]) -> WordSet:
    # A single call for all words is faster than a call per word.
    return frozenset(filter(None, fold_case("\n".join(words)).split("\n")))


def read_user_words(words: Collection[str], setting_name: str) -> WordSet:
    """Return the user's *words* in lower case, with single spaces inside phrases.

    Raises:
        ConfigError: *words* is a single string, or one of its items is not a string.
    """
    is_text = isinstance(words, str | bytes)
    if is_text or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"{setting_name} must be a list of words",
            path=f"preprocess.{setting_name}",
            allowed="a list of words",
        )
    return frozenset(" ".join(fold_case(word).split()) for word in words) - {""}


def compile_phrases(patterns: Iterable[str]) -> Phrases:
    """Compile phrase *patterns*, and group them by the words that they can begin with.

    A pattern is a text such as ``can|could you [please] tell me``. ``a|b`` matches either word.
    ``[a|b]`` matches either word or nothing.
    """
    table: dict[str, tuple[Phrase, ...]] = {}
    for pattern in patterns:
        positions = fold_case(pattern).split()
        phrase = tuple(
            (frozenset(words.strip("[]").split("|")), words.startswith("[")) for words in positions
        )
        # If the first position is optional, the phrase can also begin with the next position.
        for words, is_optional in phrase:
            table |= {word: (*table.get(word, ()), phrase) for word in words}
            if not is_optional:
                break
    return table


class _Markers(NamedTuple):
    """The words that tell languages apart.

    *weights* holds 2 for a strong word of a language, else 1. A question that begins with one of
    *starters* has this language; with one of *openers*, probably.
    """

    weights: Mapping[str, Mapping[str, int]]
    starters: Mapping[str, str]
    openers: Mapping[str, str]


@cache
def _collect_markers() -> _Markers:
    weights: dict[str, dict[str, int]] = {}
    lexicons = [load_lexicon(language) for language in LANGUAGES]
    for lexicon in lexicons:
        for word in lexicon.stop | lexicon.weak | lexicon.strong:
            # A single letter is a word in many languages, so it says nothing about the language.
            if len(word) > 1 or not word.isascii():
                weights.setdefault(word, {})[lexicon.language] = 1 + (word in lexicon.strong)
        for elided in lexicon.elisions:
            weights.setdefault(f"{elided}'", {})[lexicon.language] = 1
    starters = {word: lexicon.language for lexicon in lexicons for word in lexicon.starters}
    openers = {word: lexicon.language for lexicon in lexicons for word in lexicon.openers}
    return _Markers(weights, starters, openers)


def guess_language(folded_words: Sequence[str], text: str) -> str:
    """Return the language code of *text*, or ``""`` if the language is unclear.

    *folded_words* are its words in lower case.
    """
    weights, starters, openers = _collect_markers()
    first_word = next(iter(folded_words), "")
    if first_word in starters:
        return starters[first_word]
    # The part before the apostrophe tells the language of an elided word: l'homme.
    heads = [word[: word.index("'") + 1] for word in folded_words if "'" in word]
    scores: Counter[str] = Counter()
    foreign_languages: set[str] = set()
    # A set, so that a repeated word does not decide the language.
    for word in weights.keys() & {*folded_words, *heads}:
        scores.update(weights[word])
        if DEFAULT not in weights[word]:
            foreign_languages.update(weights[word])
    opener = openers.get(first_word, "")
    if opener in scores:
        scores[opener] += 1
    best = max(scores.values(), default=0)
    leaders = [language for language, score in scores.items() if score == best]
    # One-letter words have no weight, so the article "a" is looked up here.
    if not leaders and load_lexicon(DEFAULT).articles.isdisjoint(folded_words):
        return ""
    is_ascii = all(map(str.isascii, folded_words))
    if len(leaders) == 1 and (best > 1 or (leaders == [DEFAULT] and is_ascii)):
        # The words of "Was macht Amy in Berlin?" are English too. The German verb is not.
        is_german = any(
            verb[0].islower() and verb.rstrip("?!.,").endswith(("t", "te", "en", "un"))
            for verb in text.split()[1:2]
        )
        if leaders[0] in (DEFAULT, *foreign_languages) or is_german:
            return leaders[0]
        return DEFAULT if is_ascii else ""
    # The other leader has a point for its opener. Without it, the default language would lead.
    if DEFAULT in leaders and opener in leaders:
        return DEFAULT
    # Plain ASCII counts as the default language, unless a word belongs only to other languages.
    return DEFAULT if text.isascii() and not foreign_languages else ""
