"""Tells the language of a question by its small words, and the script of a text by its letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qtmiddleware.preprocessing.lexicon import Lexicon

STRONG, WEAK = 2, 1

DEFAULT = "en"
"""One weak word is enough for this one, in a query of plain ASCII where no other language has shown itself."""

SCRIPTS = (
    "Latin", "Cyrillic", "Greek", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Bengali",
    "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao", "Khmer",
    "Myanmar", "Tibetan", "Georgian", "Armenian", "Ethiopic", "Mongolian", "Bopomofo", "Cherokee", "Thaana", "Syriac",
)  # fmt: skip

KANA = frozenset({"hiragana", "katakana"})


@dataclass(frozen=True, slots=True)
class Markers:
    """What small words say about the language.

    *weights* are the languages each word speaks for. *starters* are first words that are enough alone, *openers* those
    that weigh more in that place.
    """

    weights: Mapping[str, tuple[tuple[str, int], ...]]
    starters: Mapping[str, str]
    openers: Mapping[str, str]


def collect_markers(lexicons: Sequence[Lexicon]) -> Markers:
    """What the small words of *lexicons* say about the language."""
    table: dict[str, dict[str, int]] = {}
    for lexicon in lexicons:
        for word in lexicon.stop | lexicon.weak | lexicon.strong:
            # One letter is a word in every language, so it speaks for none.
            if len(word) > 1 or not word.isascii():
                table.setdefault(word, {})[lexicon.language] = STRONG if word in lexicon.strong else WEAK
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
    if found in ("", DEFAULT) or any(_is_own(weights[word], found) for word in telling):
        return found
    # Every word that spoke for it is one of the default language too. What tells "Was macht Amy in Berlin?" from "Was
    # Amy in Berlin?" is the verb behind the opener.
    if _is_verb(text.split()[1:2]):
        return found
    return DEFAULT if all(map(str.isascii, keys)) else ""


def _is_verb(words: Sequence[str]) -> bool:
    """Whether the first of *words*, if any, looks like a verb of German, whose "was" is the one such opener."""
    return any(word[0].islower() and word.rstrip("?!.,").endswith(("t", "te", "en", "un")) for word in words[:1])


def _is_own(weights: Sequence[tuple[str, int]], language: str) -> bool:
    """Whether a word with these *weights* is one of *language* and not of the default language."""
    languages = {name for name, _ in weights}
    return language in languages and DEFAULT not in languages


def _find_winner(scores: dict[str, int], keys: Sequence[str], opener: str | None) -> str:
    """The language with the best score, if it is good enough and ahead of all others."""
    best = max(scores.values())
    leaders = [language for language, score in scores.items() if score == best]
    if len(leaders) > 1:
        # A draw with a language that leads by its opener alone: another word speaks for the default.
        return DEFAULT if DEFAULT in leaders and opener in leaders else ""
    enough = best >= STRONG or (leaders[0] == DEFAULT and all(map(str.isascii, keys)))
    return leaders[0] if enough else ""


def dominant_script(text: str) -> str:
    """The script most of *text*'s letters belong to, in lower case: ``latin``, ``cyrillic``, ``han``, ``arabic``, ...

    Kana and the Han characters beside them count together as ``japanese``. ``other`` stands for a script without a
    name here, ``""`` for a text without letters; of two scripts with the same number of letters the first one counts.
    """
    if text.isascii():
        return "latin" if any(map(str.isalpha, text)) else ""
    counts: dict[str, int] = {}
    for run in _run_pattern().finditer(text):
        script = run.lastgroup or "other"
        counts[script] = counts.get(script, 0) + run.end() - run.start()
    kana = sum(counts.pop(script, 0) for script in KANA)
    if kana:
        counts["japanese"] = kana + counts.pop("han", 0)
    return max(counts, key=counts.__getitem__) if counts else ""


@cache
def _run_pattern() -> Any:
    """A pattern for one run of letters of one script."""
    import regex

    named = "|".join(rf"(?P<{script.lower()}>[\p{{Script={script}}}&&\p{{L}}]+)" for script in SCRIPTS)
    return regex.compile(rf"{named}|(?P<other>\p{{L}})", regex.VERSION1)
