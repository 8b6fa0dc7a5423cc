"""Strips the tokens of a query of the words that only make it a question."""

from __future__ import annotations

from collections.abc import Container, Sequence

from qtmiddleware.preprocessing.lexicon import Lexicon, match_phrase
from qtmiddleware.preprocessing.text import compose, fold
from qtmiddleware.preprocessing.tokeniser import Token

LONGEST_ACRONYM = 5


def fold_tokens(tokens: Sequence[Token], all_caps: bool) -> list[str]:
    """Every token as word lists hold it; ``""`` for those that are kept as they are written.

    Where the query is typed in capitals throughout (*all_caps*), acronyms are words.
    """
    other = "acronym" if all_caps else "word"
    return [fold(text) if kind == "word" or kind == other else "" for kind, text, *_ in tokens]


def is_all_caps(tokens: Sequence[Token], small: Container[str]) -> bool:
    """Whether capitals tell nothing, for the query is typed in them; *small* are all stop words.

    A few short words in capitals are acronyms as long as no stop word is among them.
    """
    capitals = [token.text for token in tokens if token.kind == "acronym"]
    calm = sum(token.kind == "word" and not token.text.isupper() for token in tokens)
    if not capitals or calm * 3 > len(capitals):
        return False
    if any(len(word) > LONGEST_ACRONYM for word in capitals):
        return True
    return len(capitals) > 1 and any(fold(word) in small for word in capitals)


def strip(text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon) -> str:
    """The keywords of *text*, or ``""`` where nothing is left; *keys* are those of `fold_tokens`."""
    all_caps = any(key and token.kind == "acronym" for token, key in zip(tokens, keys, strict=True))
    keys = [key or _fold_emphasised(token, lexicon) for token, key in zip(tokens, keys, strict=True)]
    start = _count_lead_in(keys, lexicon)
    end = len(keys)
    while end > start and keys[end - 1] in lexicon.closings:
        end -= 1
    kept = _find_kept(text, tokens, keys, lexicon, all_caps)
    parts = []
    for index in range(start, end):
        token, key = tokens[index], keys[index]
        if index in kept or not key:
            parts.append(token.text)
        elif not _is_removed(key, lexicon):
            parts.append(_strip_elision(token.text, key, lexicon, all_caps))
    return " ".join(filter(None, parts))


def _fold_emphasised(token: Token, lexicon: Lexicon) -> str:
    """A stop word in capitals that is no acronym ("what IS the ..."), as word lists hold it, else ``""``."""
    if token.kind != "acronym":
        return ""
    key = fold(token.text)
    return key if _is_removed(key, lexicon) and key not in lexicon.acronyms else ""


def _count_lead_in(keys: Sequence[str], lexicon: Lexicon) -> int:
    """How many tokens at the start are lead-ins, one after the other."""
    start = 0
    while start < len(keys) and (length := match_phrase(lexicon.lead_ins, keys, start)):
        start += length
    return start


def _is_removed(key: str, lexicon: Lexicon) -> bool:
    """Whether the word *key* is removed."""
    return bool(key) and key in lexicon.stop and key not in lexicon.negations


def _strip_elision(word: str, key: str, lexicon: Lexicon, all_caps: bool) -> str:
    """*word* in the form it is searched in, without an elided article (l'homme: homme); ``""`` if nothing is left."""
    shown = compose(word)
    if not lexicon.elisions or "'" not in key:
        return shown.lower()
    elided, _, rest = key.partition("'")
    while rest and elided in lexicon.elisions and key not in lexicon.negations:
        key, shown = rest, shown.partition("'")[2]
        if _is_removed(key, lexicon):
            return ""
        if shown.isupper() and len(shown) > 1 and not all_caps:
            return shown
        elided, _, rest = key.partition("'")
    return shown.lower()


def _find_kept(text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, all_caps: bool) -> set[int]:
    """Which tokens are kept as they are written although word lists would take or change them."""
    kept: set[int] = set()
    for index, key in enumerate(keys):
        if key in lexicon.kept and (length := match_phrase(lexicon.kept, keys, index)):
            kept.update(range(index, index + length))
        elif key == "may" and _is_month(tokens, index) and "may" in lexicon.homographs:
            kept.add(index)
    words = [(token.text, key) for token, key in zip(tokens, keys, strict=True) if key]
    if not (all_caps or text.islower() or is_title(words, lexicon)):
        kept.update(_find_names(tokens, keys, lexicon))
        kept.update(_find_first_name(text, tokens, keys, lexicon, kept))
    return kept


def _is_month(tokens: Sequence[Token], index: int) -> bool:
    """Whether a number stands right beside the token at *index*."""
    beside = tokens[max(0, index - 1) : index + 2]
    return any(token.kind == "number" for token in beside)


def is_title(words: Sequence[tuple[str, str]], lexicon: Lexicon) -> bool:
    """Whether The Words Are Capitalised Like This, so that a capital tells nothing; *words* with their folded forms."""
    if len(words) < 3 or any(word[0].islower() and (len(word) > 3 or key in lexicon.verbs) for word, key in words):
        return False
    return any(word[0].isupper() and key in lexicon.verbs - lexicon.homographs for word, key in words[1:])


def _find_names(tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon) -> set[int]:
    """Stop words with a capital inside a sentence, each with the capitalised article right before it: The Who."""
    found: set[int] = set()
    for index, (token, key) in enumerate(zip(tokens, keys, strict=True)):
        if token.opens or not token.text[0].isupper() or not _is_removed(key, lexicon):
            continue
        if key in lexicon.articles:
            # An article opens many a title and says nothing there, but vitamin A and plan A are called by that letter.
            found.update((index,) if len(key) == 1 else ())
            continue
        found.add(index)
        if index and keys[index - 1] in lexicon.articles and tokens[index - 1].text[0].isupper():
            found.add(index - 1)
    return found


def _find_first_name(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, kept: set[int]
) -> tuple[int, ...]:
    """The first token where it is a name (Will said ...) and not a modal (Will it rain?), else nothing.

    It is one where no question mark follows, no pronoun comes next and nothing else could be removed: keywords that
    were found before look like that, so they are left alone.
    """
    if "?" in text or len(keys) < 2 or keys[0] not in lexicon.homographs or keys[1] in lexicon.pronouns:
        return ()
    if not tokens[0].text[0].isupper():
        return ()
    others = (index for index, key in enumerate(keys) if index and index not in kept and _is_removed(key, lexicon))
    return () if any(True for _ in others) else (0,)
