"""Strips the tokens of a query of the words that only make it a question."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from qtmiddleware.preprocessing.lexicon import Lexicon, match_phrase
from qtmiddleware.preprocessing.text import compose
from qtmiddleware.preprocessing.tokeniser import Token

LONGEST_ACRONYM = 5


def fold_tokens(tokens: Sequence[Token], all_caps: bool) -> list[str]:
    """Every token as word lists hold it; ``""`` for those that are kept as they are written.

    Where the query is typed in capitals throughout (*all_caps*), acronyms are words.
    """
    other = "acronym" if all_caps else "word"
    return [token.key if token.kind == "word" or token.kind == other else "" for token in tokens]


def is_all_caps(tokens: Sequence[Token], small: Container[str]) -> bool:
    """Whether capitals tell nothing, for the query is typed in them; *small* are all stop words.

    A few short words in capitals are acronyms as long as no stop word is among them.
    """
    capitals = [token for token in tokens if token.kind == "acronym"]
    if not capitals:
        return False
    calm = sum(token.kind == "word" and not token.text.isupper() for token in tokens)
    if calm * 3 > len(capitals):
        return False
    if any(len(token.text) > LONGEST_ACRONYM for token in capitals):
        return True
    return len(capitals) > 1 and any(token.key in small for token in capitals)


class Stripped(NamedTuple):
    """The *keywords* of a text, ``""`` where nothing is left.

    *opens_with_name* says that they begin with a name that would read as a question word to whoever
    strips them again.
    """

    keywords: str
    opens_with_name: bool


def strip(text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon) -> Stripped:
    """Returns the keywords of *text*; *keys* are those of `fold_tokens`."""
    acronyms = [index for index, token in enumerate(tokens) if token.kind == "acronym"]
    all_caps = any(keys[index] for index in acronyms)
    topics = set() if all_caps else _find_topics(tokens, keys, acronyms, lexicon)
    if "" in keys:
        keys = [
            key or ("" if index in topics else _fold_emphasised(token, lexicon))
            for index, (token, key) in enumerate(zip(tokens, keys, strict=True))
        ]
    end = len(keys)
    while end and keys[end - 1] in lexicon.closings:
        end -= 1
    names = _find_kept(text, tokens, keys, lexicon, all_caps)
    removed = _find_removed_phrases(tokens, keys, lexicon, names)
    parts, first = [], -1
    for index, key in enumerate(keys[:end]):
        if index in removed:
            continue
        if index in names or not key:
            part = tokens[index].text
        elif key in lexicon.removable:
            continue
        else:
            part = _strip_elision(tokens[index].text, key, lexicon, all_caps)
        if part:
            first = index if first < 0 else first
            parts.append(part)
    # Only behind another verb is it certain: "Is Can Yaman ...", but not "What Is ...".
    is_certain = first > 0 and keys[first - 1] in lexicon.verbs
    is_name = first in topics or (first in names and keys[first] in lexicon.removable)
    return Stripped(" ".join(parts), is_certain and is_name)


def _find_topics(
    tokens: Sequence[Token], keys: Sequence[str], acronyms: Sequence[int], lexicon: Lexicon
) -> set[int]:
    """Verbs in capitals that a question is about: what does DOES stand for, what do MUST, SHOULD and MAY mean.

    *acronyms* are the places of all words in capitals. One is that where another verb stands right
    before it, which otherwise none can follow, or another such word does.
    """
    found: set[int] = set()
    for index in acronyms:
        if index and tokens[index].key in lexicon.verbs:
            before = index - 1
            joined = before in found or (
                index - 2 in found and keys[before] in lexicon.conjunctions
            )
            if joined or keys[before] in lexicon.verbs:
                found.add(index)
    return found


def _fold_emphasised(token: Token, lexicon: Lexicon) -> str:
    """A stop word in capitals that is no acronym ("what IS the ..."), as word lists hold it, else ``""``."""
    key = token.key
    if key in lexicon.extra:
        return key
    if token.kind != "acronym":
        return ""
    return key if key in lexicon.removable and key not in lexicon.acronyms else ""


def _find_removed_phrases(
    tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, names: Container[int]
) -> set[int]:
    """Which tokens go as parts of phrases: how a sentence is opened politely, and what only asks, anywhere."""
    removed: set[int] = set()
    index, is_opening = 0, True
    while index < len(keys):
        length = 0
        if is_opening or tokens[index].opens:
            length = match_phrase(lexicon.lead_ins, keys, index)
            if length > 1 and (more := match_phrase(lexicon.removed, keys, index + length - 1)):
                # A lead-in ends in "how", a phrase goes on from there: find out how much it costs.
                length += more - 1
            length = length or _count_greeting(tokens, keys, index, lexicon)
            is_opening = length > 0
        if not length and keys[index] in lexicon.removed and index not in names:
            length = match_phrase(lexicon.removed, keys, index)
        if length:
            removed.update(range(index, index + length))
            index += length
        else:
            index += 1
    return removed


def _count_greeting(
    tokens: Sequence[Token], keys: Sequence[str], index: int, lexicon: Lexicon
) -> int:
    """How many tokens from *index* on are a greeting: one before a comma or a question, so that Hello Kitty stays."""
    length = match_phrase(lexicon.greetings, keys, index)
    after = index + length
    if not length or after >= len(keys):
        return 0
    is_question = keys[after] in lexicon.removable or match_phrase(lexicon.lead_ins, keys, after)
    return length if tokens[after - 1].closed or is_question else 0


def _strip_elision(word: str, key: str, lexicon: Lexicon, all_caps: bool) -> str:
    """*word* in the form it is searched in, without an elided article (l'homme: homme); ``""`` if nothing is left."""
    if word.isascii() and "'" not in key:
        # Letters without accents are folded by lowering them.
        return key
    shown = compose(word)
    if not lexicon.elisions or "'" not in key:
        return shown.lower()
    elided, _, rest = key.partition("'")
    while rest and elided in lexicon.elisions and key not in lexicon.negations:
        key, shown = rest, shown.partition("'")[2]
        if key in lexicon.removable:
            return ""
        if shown.isupper() and len(shown) > 1 and not all_caps:
            return shown
        elided, _, rest = key.partition("'")
    return shown.lower()


def _find_kept(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, all_caps: bool
) -> set[int]:
    """Which tokens are kept as they are written although word lists would take or change them."""
    kept: set[int] = set()
    for index, key in enumerate(keys):
        if key in lexicon.kept and (length := match_phrase(lexicon.kept, keys, index)):
            kept.update(range(index, index + length))
        elif (
            len(key) == 1
            and key in lexicon.articles
            and (index + 1 == len(keys) or _is_operand(tokens, index))
        ):
            # No article, for nothing follows it: plan a.
            kept.add(index)
        elif key == "may" and _is_month(tokens, index) and "may" in lexicon.homographs:
            kept.add(index)
    words = [(token.text, key) for token, key in zip(tokens, keys, strict=True) if key]
    if not (all_caps or text.islower() or is_title(words, lexicon)):
        kept.update(_find_names(text, tokens, keys, lexicon))
        kept.update(_find_first_name(text, tokens, keys, lexicon, kept))
    return kept


def _find_beside(tokens: Sequence[Token], index: int) -> Sequence[Token]:
    """The token at *index* with those right beside it."""
    return tokens[max(0, index - 1) : index + 2]


def _is_operand(tokens: Sequence[Token], index: int) -> bool:
    """Whether an operator stands right beside the token at *index*: a != b."""
    beside = _find_beside(tokens, index)
    return any(
        token.kind == "identifier" and not any(map(str.isalnum, token.text)) for token in beside
    )


def _is_month(tokens: Sequence[Token], index: int) -> bool:
    """Whether a number stands right beside the token at *index*."""
    return any(token.kind == "number" for token in _find_beside(tokens, index))


def is_title(words: Sequence[tuple[str, str]], lexicon: Lexicon) -> bool:
    """Whether The Words Are Capitalised Like This, so that a capital tells nothing; *words* with their folded forms."""
    verbs = lexicon.verbs
    for word, key in words:
        if word[0].islower() and (
            len(word) > 3 or key in verbs or (len(word) > 2 and not _is_small(key, lexicon))
        ):
            return False
    if len(words) < 3:
        return False
    return any(
        word[0].isupper() and key in verbs and key not in lexicon.homographs
        for word, key in words[1:]
    )


def _is_small(key: str, lexicon: Lexicon) -> bool:
    return key in lexicon.stop or key in lexicon.strong or key in lexicon.weak


def leads_to_name(text: str, tokens: Sequence[Token], at: int, lexicon: Lexicon) -> bool:
    """Whether the token at *at* is a title or an initial with a full stop that a name follows: Dr. May Wong, J. Smith.

    A word that is common too is a name there if it is called one of those that are, or another name
    follows: the next word may also begin a sentence.
    """
    token = tokens[at]
    if not text.startswith(".", token.end):
        return False
    rest = tokens[at + 1 : at + 3]
    is_initial = len(token.text) == 1 and token.text.isupper() and token.text != "I"
    if not (is_initial or token.key in lexicon.titles) or not rest or not is_capitalised(rest[0]):
        return False
    key = rest[0].key
    if key not in lexicon.stop or (key in lexicon.homographs and not is_initial):
        return True
    return (
        len(rest) > 1
        and is_capitalised(rest[1])
        and not rest[0].closed
        and rest[1].key not in lexicon.stop
    )


def is_capitalised(token: Token) -> bool:
    """Whether *token* is a word that begins with a capital."""
    return token.kind in ("word", "acronym") and token.text[0].isupper()


def _find_names(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon
) -> set[int]:
    """Stop words with a capital inside a sentence or behind a title, each with the capitalised article before it."""
    found: set[int] = set()
    for index, (token, key) in enumerate(zip(tokens, keys, strict=True)):
        if key not in lexicon.removable or key in lexicon.extra:
            continue
        if token.kind == "acronym" or not token.text[0].isupper():
            continue
        if token.opens and not (index and leads_to_name(text, tokens, index - 1, lexicon)):
            continue
        if key in lexicon.articles:
            # An article opens many a title and says nothing there, but vitamin A and plan A are
            # called by that letter.
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

    It is one where no question mark follows, no pronoun comes next and nothing else could be
    removed: keywords that were found before look like that, so they are left alone.
    """
    if "?" in text or len(keys) < 2 or not tokens[0].text[0].isupper():
        return ()
    if keys[0] not in lexicon.homographs or keys[0] in lexicon.extra or keys[1] in lexicon.pronouns:
        return ()
    others = (
        index
        for index, key in enumerate(keys)
        if index and index not in kept and key in lexicon.removable
    )
    return () if any(True for _ in others) else (0,)
