"""Tells the language of a question by its small words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qtmiddleware.preprocess.base import Lexicon, Markers

STRONG, WEAK = 2, 1

DEFAULT = "en"
"""One weak word is enough for this one, in a query of plain ASCII where no other language has shown itself."""


def markers(lexicons: Iterable[Lexicon]) -> Markers:
    """What each small word says about the language."""
    table: dict[str, dict[str, int]] = {}
    for lexicon in lexicons:
        for word in lexicon.stop | lexicon.weak | lexicon.strong:
            # One letter is a word in every language, so it speaks for none.
            if len(word) > 1 or not word.isascii():
                table.setdefault(word, {})[lexicon.language] = STRONG if word in lexicon.strong else WEAK
        for elided in lexicon.elisions:
            table.setdefault(f"{elided}'", {})[lexicon.language] = WEAK
    return {word: tuple(weights.items()) for word, weights in table.items()}


def starters(lexicons: Iterable[Lexicon]) -> dict[str, str]:
    """The first words that are enough alone, each with its language."""
    return {word: lexicon.language for lexicon in lexicons for word in lexicon.starters}


def guess(keys: Sequence[str], table: Markers, first: dict[str, str]) -> str:
    """The language of the folded words *keys*, or ``""`` where they do not tell."""
    if keys and (language := first.get(keys[0])) is not None:
        return language
    scores: dict[str, int] = {}
    telling = set(filter(table.__contains__, keys))
    if "'" in "".join(keys):
        telling.update(elided for word in keys if "'" in word and (elided := word[: word.index("'") + 1]) in table)
    for word in telling:
        for language, weight in table[word]:
            scores[language] = scores.get(language, 0) + weight
    return _winner(scores, keys) if scores else ""


def _winner(scores: dict[str, int], keys: Sequence[str]) -> str:
    """The language with the best score, if it is good enough and ahead of all others."""
    best = max(scores.values())
    leaders = [language for language, score in scores.items() if score == best]
    if len(leaders) > 1:
        return ""
    enough = best >= STRONG or (leaders[0] == DEFAULT and all(map(str.isascii, keys)))
    return leaders[0] if enough else ""
