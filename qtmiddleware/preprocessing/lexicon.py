"""Reads the word lists, one JSON file a language, and changes them by what a user wants kept or removed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

from qtmiddleware.catalogue import LANGUAGES
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.base import Lexicon, Phrase, Phrases, fold


@cache
def load(language: str) -> Lexicon:
    """The word list of *language*, read from its file once."""
    data = _read(language)
    classes: dict[str, list[str]] = data["stop_words"]
    hints: dict[str, list[str]] = data["hints"]
    return Lexicon(
        language=data["language"],
        stop=_words(word for words in classes.values() for word in words),
        articles=_words(classes["articles"]),
        verbs=_words(classes["auxiliaries"] + classes["modals"]),
        elisions=_words(data["elisions"]),
        negations=_words(data["negations"]),
        homographs=_words(data["homographs"]),
        acronyms=_words(data["acronyms"]),
        pronouns=_words(data["pronouns"]),
        closings=_words(data["closings"]),
        strong=_words(hints["strong"]),
        weak=_words(hints["weak"]),
        starters=_words(hints["starters"]),
        openers=_words(hints.get("openers", [])),
        lead_ins=phrases(data["lead_ins"]),
        kept=phrases(data["kept_phrases"]),
        nouns_are_capitalised=bool(data.get("nouns_are_capitalised", False)),
        titles=_words(data["titles"]),
        chatter=tuple(data["chatter"]),
        fillers=tuple(data["fillers"]),
        talk=_words(data["talk"]),
        **_of_replies(data),
    )


@cache
def load_all() -> tuple[Lexicon, ...]:
    """Every word list, and what is known of the languages that have none: how they deny, refuse and announce."""
    others = (Lexicon(code, **_of_replies(data)) for code, data in _read("others").items())
    return (*map(load, LANGUAGES), *others)


def _read(name: str) -> dict[str, Any]:
    from importlib.resources import files

    source = files("qtmiddleware.preprocessing").joinpath("lexicons", f"{name}.json")
    data: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return data


def _of_replies(data: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a word list that texts of models and documents are read with; each may be missing."""
    return {
        "denials": _words(data.get("denials", ())),
        "denial_patterns": tuple(data.get("denial_patterns", ())),
        "exclusions": _words(data.get("exclusions", ())),
        "refusals": tuple(data.get("refusals", ())),
        "preambles": tuple(data.get("preambles", ())),
        "abbreviations": tuple(data.get("abbreviations", ())),
        "no_answer": data.get("no_answer", ""),
    }


def adjusted(lexicon: Lexicon, keep: frozenset[str], extra: frozenset[str]) -> Lexicon:
    """*lexicon* with the words *extra* removed too and those of *keep* never removed; a word in both is kept.

    Both are folded. A kept entry may be a phrase; a phrase in *extra* raises `ConfigError`.
    """
    if any(" " in word for word in extra):
        raise ConfigError("extraWords holds single words; write a phrase as its words", path="preprocess.extraWords")
    singles = {word for word in keep if " " not in word}
    kept = dict(lexicon.kept)
    for first, found in phrases(word for word in keep if " " in word).items():
        kept[first] = kept.get(first, ()) + found
    return replace(
        lexicon,
        stop=(lexicon.stop | extra) - singles,
        # A word the user wants out goes even where it would otherwise be guarded as a negation.
        negations=(lexicon.negations | singles) - (extra - singles),
        # In capitals, such a word is an acronym: IT and US stay where "it" and "us" go.
        acronyms=lexicon.acronyms | extra,
        closings=lexicon.closings - singles,
        lead_ins={first: _without(found, singles) for first, found in lexicon.lead_ins.items()},
        kept=kept,
    )


def _words(words: Iterable[str]) -> frozenset[str]:
    """*words*, folded."""
    return frozenset(map(fold, words))


def checked(words: Collection[str], key: str) -> frozenset[str]:
    """The user's *words*, folded, each with single spaces.

    Raises `ConfigError`, naming *key*, for a plain string in place of a list and for an entry that is no text.
    """
    if isinstance(words, str | bytes) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{key} must be a list of words", path=f"preprocess.{key}", allowed="a list of words")
    import unicodedata

    folded = (fold(unicodedata.normalize("NFC", word)) for word in words)
    return frozenset(text for word in folded if (text := " ".join(word.split())))


def phrases(patterns: Iterable[str]) -> Phrases:
    """Patterns such as ``can|could you [please] tell me`` by the words they may begin with.

    A place ``a|b`` takes one of these words, ``[a|b]`` one or none.
    """
    table: dict[str, tuple[Phrase, ...]] = {}
    for phrase in map(_phrase, patterns):
        for words, optional in phrase:
            for word in words:
                table[word] = (*table.get(word, ()), phrase)
            if not optional:
                break
    return table


def _phrase(pattern: str) -> Phrase:
    """One pattern, place by place: ``a|b`` is either word, ``[a|b]`` either or none."""
    places = []
    for place in fold(pattern).split():
        optional = place.startswith("[") and place.endswith("]")
        places.append((frozenset(place.strip("[]").split("|") if optional else place.split("|")), optional))
    return cast("Phrase", tuple(places))


def _without(phrases: tuple[Phrase, ...], words: set[str]) -> tuple[Phrase, ...]:
    """*phrases* as they are matched where *words* must stay."""
    if not words:
        return phrases
    return tuple(tuple((allowed - words, optional) for allowed, optional in phrase) for phrase in phrases)
