"""Load the word lists, adjust them to a user's words, and detect languages.

Each language has one JSON file in `lexicons`. The README.md in that folder describes the keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pkgutil import get_data
from typing import Any, cast

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.text import fold_case

Phrase = tuple[tuple[frozenset[str], bool], ...]
"""A phrase pattern: for each position, the allowed words and whether the position is optional."""

Phrases = Mapping[str, tuple[Phrase, ...]]
"""Maps each word to the phrase patterns that can begin with it."""

STRONG, WEAK = 2, 1
"""The scores that a strong word and a weak word add to their language in language detection."""

DEFAULT = "en"
"""The default language. A single weak word in an ASCII query is enough to detect it.

Words that belong only to other languages rule it out.
"""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Lexicon:
    """The word list of one language. All words are in lower case.

    Most attributes are named after a JSON key, which the README.md in `lexicons` describes. The
    other attributes are:

    Attributes:
        language: The language code, or ``""`` for an empty list.
        stop: All stop words, such as articles, verbs and question words.
        verbs: The stop words that are auxiliary or modal verbs.
        kept_phrases: The phrases that the rules never change.
        removed_phrases: The phrases to remove because they name no topic, such as "how much".
        extra: The words that the user wants to remove, even if they are capitalised.
        removable: The stop words, except negations.
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
    kept_phrases: Phrases = field(default_factory=dict)
    removed_phrases: Phrases = field(default_factory=dict)
    greetings: Phrases = field(default_factory=dict)
    conjunctions: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    nouns_are_capitalised: bool = False
    titles: frozenset[str] = frozenset()
    chatter: tuple[str, ...] = ()
    talk: frozenset[str] = frozenset()
    function_words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    denials: frozenset[str] = frozenset()
    denial_patterns: tuple[str, ...] = ()
    negation_patterns: tuple[str, ...] = ()
    no_negations: tuple[str, ...] = ()
    exclusions: frozenset[str] = frozenset()
    refusals: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    abbreviations: tuple[str, ...] = ()
    no_answer: str = ""
    dates: Mapping[str, Any] = field(default_factory=dict)
    removable: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "removable", self.stop - self.negations - {""})

    def collect_removable_words(self) -> frozenset[str]:
        """Return all words that the rules may remove, alone or as the start of a phrase."""
        return self.stop.union(self.closings, self.lead_ins, self.removed_phrases, self.greetings)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Markers:
    """The words that tell the languages of questions apart.

    Attributes:
        weights: Maps each word to its weight in each language that has the word.
        starters: Maps words to languages. A question that begins with the word is in that language.
        openers: Maps words to languages. A question that begins with the word is probably in that
            language.
    """

    weights: Mapping[str, Mapping[str, int]]
    starters: Mapping[str, str]
    openers: Mapping[str, str]


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

    A match without a group only looks like a negation: "or not", "could you not tell me".
    """
    others = load_all_lexicons()[len(LANGUAGES) :]
    words = "|".join(sorted(set().union(*(lexicon.denials for lexicon in others))))
    negations, exceptions = (
        "|".join(pattern for lexicon in others for pattern in getattr(lexicon, key))
        for key in ("negation_patterns", "no_negations")
    )
    return re.compile(rf"{exceptions}|({negations}|(?<!\w)(?:{words})(?!\w))")


def _read_json_file(name: str) -> dict[str, Any]:
    """Return the content of the JSON file *name* in `lexicons`."""
    # Importing importlib.resources would load half of the standard library.
    content = get_data("qtmiddleware.preprocessing", f"lexicons/{name}.json")
    data: dict[str, Any] = json.loads(content or b"{}")
    return data


def _build_lexicon(language: str, lexicon_data: Mapping[str, Any]) -> Lexicon:
    """Build the word list of *language* from *lexicon_data*, the content of a JSON file.

    Every key in *lexicon_data* is optional.
    """
    classes: dict[str, list[str]] = lexicon_data.get("stop_words", {})
    content = {
        **lexicon_data,
        **lexicon_data.get("hints", {}),
        "stop": [word for words in classes.values() for word in words],
        "articles": classes.get("articles", ()),
        "verbs": [
            *classes.get("auxiliaries", ()),
            *classes.get("modals", ()),
        ],
    }
    readers: dict[str, Callable[[Any], Any]] = {
        "frozenset[str]": _fold_words,
        "tuple[str, ...]": tuple,
        "Phrases": compile_phrases,
    }
    values: dict[str, Any] = {}
    for attribute in fields(Lexicon):
        if attribute.init and attribute.name in content:
            read = readers.get(str(attribute.type))
            value = content[attribute.name]
            values[attribute.name] = read(value) if read else value
    return Lexicon(language, **values)


def apply_user_words(
    lexicon: Lexicon,
    kept_words: frozenset[str],
    extra_words: frozenset[str],
) -> Lexicon:
    """Return a copy of *lexicon* whose rules keep *kept_words* and remove *extra_words*.

    A word in both sets is kept.

    Args:
        lexicon: The word list.
        kept_words: Words and phrases to keep, in lower case.
        extra_words: Words to remove, in lower case.

    Raises:
        ConfigError: *extra_words* contains a phrase.
    """
    if any(" " in word for word in extra_words):
        raise ConfigError(
            "preprocess.extraWords must hold single words; write a phrase as several words",
            path="preprocess.extraWords",
        )
    # A single word leaves the lists of removable words. A phrase cannot leave them, because its
    # words stay removable elsewhere. It becomes a phrase that the rules never change.
    singles = {word for word in kept_words if " " not in word}
    kept = dict(lexicon.kept_phrases)
    for first_word, phrases in compile_phrases(word for word in kept_words if " " in word).items():
        kept[first_word] = kept.get(first_word, ()) + phrases
    return replace(
        lexicon,
        stop=(lexicon.stop | extra_words) - singles,
        # A word that the user wants removed is removed even if it is a negation.
        negations=(lexicon.negations | singles) - (extra_words - singles),
        # Such a word is removed even if its capitals make it look like a name or an acronym.
        extra=extra_words - singles,
        closings=lexicon.closings - singles,
        kept_phrases=kept,
        lead_ins=_disallow_words(lexicon.lead_ins, singles),
        removed_phrases=_disallow_words(lexicon.removed_phrases, singles),
        greetings=_disallow_words(lexicon.greetings, singles),
    )


def _fold_words(words: Iterable[str]) -> frozenset[str]:
    """Return the set of *words* in lower case."""
    # A single call for all words is faster than a call per word.
    return frozenset(filter(None, fold_case("\n".join(words)).split("\n")))


def read_user_words(words: Collection[str], setting_name: str) -> frozenset[str]:
    """Return the user's *words* in lower case, with single spaces inside phrases.

    *setting_name* names the setting in error messages, such as ``keepWords``.

    Raises:
        ConfigError: *words* is a single string, or one of its items is not a string.
    """
    if isinstance(words, str | bytes) or not all(isinstance(word, str) for word in words):
        raise ConfigError(
            f"{setting_name} must be a list of words",
            path=f"preprocess.{setting_name}",
            allowed="a list of words",
        )
    return frozenset(text for word in words if (text := " ".join(fold_case(word).split())))


def compile_phrases(patterns: Iterable[str]) -> Phrases:
    """Compile phrase *patterns*, and group them by the words that they can begin with.

    A pattern is a text such as ``can|could you [please] tell me``. ``a|b`` matches either word.
    ``[a|b]`` matches either word or nothing.
    """
    table: dict[str, tuple[Phrase, ...]] = {}
    for phrase in map(_compile_phrase, patterns):
        # If the first position is optional, the phrase can also begin with the next position.
        for words, is_optional in phrase:
            for word in words:
                table[word] = (*table.get(word, ()), phrase)
            if not is_optional:
                break
    return table


def _compile_phrase(pattern: str) -> Phrase:
    """Compile one phrase *pattern*. `compile_phrases` describes the syntax."""
    positions = []
    for words in fold_case(pattern).split():
        is_optional = words.startswith("[") and words.endswith("]")
        positions.append(
            (
                frozenset(words.strip("[]").split("|") if is_optional else words.split("|")),
                is_optional,
            )
        )
    return cast("Phrase", tuple(positions))


def _disallow_words(phrases: Phrases, words: set[str]) -> Phrases:
    """Return a copy of *phrases* in which no phrase pattern matches any of *words*."""
    return {
        first_word: tuple(
            tuple((allowed - words, is_optional) for allowed, is_optional in phrase)
            for phrase in group
        )
        for first_word, group in phrases.items()
    }


def count_phrase_words(phrases: Phrases, folded_words: Sequence[str], start_index: int) -> int:
    """Return the length in words of the longest of *phrases* at *start_index* in *folded_words*.

    Returns 0 if none of *phrases* begins there.
    """
    longest, size = 0, len(folded_words)
    for phrase in phrases.get(folded_words[start_index], ()):
        position = start_index
        for words, is_optional in phrase:
            # An optional position takes its word whenever the word is there.
            if position < size and folded_words[position] in words:
                position += 1
            elif not is_optional:
                break
        else:
            longest = max(longest, position - start_index)
    return longest


def collect_language_markers(lexicons: Sequence[Lexicon]) -> Markers:
    """Return the words of *lexicons* that tell their languages apart."""
    weights: dict[str, dict[str, int]] = {}
    for lexicon in lexicons:
        for word in lexicon.stop | lexicon.weak | lexicon.strong:
            # A single letter is a word in many languages, so it says nothing about the language.
            if len(word) > 1 or not word.isascii():
                weight = STRONG if word in lexicon.strong else WEAK
                weights.setdefault(word, {})[lexicon.language] = weight
        for elided in lexicon.elisions:
            weights.setdefault(f"{elided}'", {})[lexicon.language] = WEAK
    return Markers(
        weights=weights,
        starters={word: lexicon.language for lexicon in lexicons for word in lexicon.starters},
        openers={word: lexicon.language for lexicon in lexicons for word in lexicon.openers},
    )


def guess_language(folded_words: Sequence[str], markers: Markers, text: str = "") -> str:
    """Return the language code of a text, or ``""`` if the language is unclear.

    Args:
        folded_words: The words of the text in lower case.
        markers: The words that tell the languages apart.
        text: The text as the user wrote it.
    """
    if not folded_words:
        return ""
    first_word = folded_words[0]
    if first_word in markers.starters:
        return markers.starters[first_word]
    scores, foreign_languages = _score_languages(folded_words, markers)
    opener_language = markers.openers.get(first_word, "")
    if opener_language in scores:
        scores[opener_language] += WEAK
    best = max(scores.values(), default=0)
    leaders = [language for language, score in scores.items() if score == best]
    # One-letter words have no weight, so the article "a" is looked up here.
    if not leaders and load_lexicon(DEFAULT).articles.isdisjoint(folded_words):
        return ""
    is_ascii = all(map(str.isascii, folded_words))
    if len(leaders) == 1 and (best >= STRONG or (leaders == [DEFAULT] and is_ascii)):
        winner = leaders[0]
        # The words of "Was macht Amy in Berlin?" are English too. The verb after "was" is not.
        if winner in (DEFAULT, *foreign_languages) or _begins_with_german_verb(text.split()[1:2]):
            return winner
        return DEFAULT if is_ascii else ""
    # The other leader has a point for its opener. Without it, the default language would lead.
    if DEFAULT in leaders and opener_language in leaders:
        return DEFAULT
    # Plain ASCII counts as the default language, unless a word belongs only to other languages.
    return DEFAULT if text.isascii() and not foreign_languages else ""


def _score_languages(
    folded_words: Sequence[str],
    markers: Markers,
) -> tuple[dict[str, int], set[str]]:
    """Return the score of each language that has some of *folded_words*.

    Also returns the languages that have one of the words while the default language does not.
    """
    weights = markers.weights
    # A set, so that a repeated word does not decide the language.
    telling_words = set(filter(weights.__contains__, folded_words))
    # The part before the apostrophe tells the language of an elided word: l'homme.
    if "'" in "".join(folded_words):
        heads = (word[: word.index("'") + 1] for word in folded_words if "'" in word)
        telling_words.update(filter(weights.__contains__, heads))
    scores: dict[str, int] = {}
    foreign_languages: set[str] = set()
    for word in telling_words:
        for language, weight in weights[word].items():
            scores[language] = scores.get(language, 0) + weight
        if DEFAULT not in weights[word]:
            foreign_languages.update(weights[word])
    return scores, foreign_languages


def _begins_with_german_verb(words: Sequence[str]) -> bool:
    """Return whether the first of *words* looks like a German verb, such as "macht"."""
    return any(
        word[0].islower() and word.rstrip("?!.,").endswith(("t", "te", "en", "un"))
        for word in words[:1]
    )
