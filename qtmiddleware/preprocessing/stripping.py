"""Remove question words and other stop words from a query."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from qtmiddleware.preprocessing.lexicon import Lexicon, Phrases
from qtmiddleware.preprocessing.text import lower_case, normalise_characters
from qtmiddleware.preprocessing.tokeniser import Token

LONGEST_ACRONYM = 5
"""The maximum number of letters in an acronym."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Words:
    """The words of a query.

    Attributes:
        text: the query.
        tokens: its tokens.
        folded: each word in lower case; ``""`` for a token that is no word.
        lexicon: the word list of the query's language.
        is_all_caps: whether the query is typed in capitals. Acronyms are words then.
    """

    text: str
    tokens: Sequence[Token]
    folded: Sequence[str]
    lexicon: Lexicon
    is_all_caps: bool

    def count_phrase(self, phrases: Phrases, index: int) -> int:
        """Return the length of the longest of *phrases* at *index*, in words."""
        longest, folded = 0, self.folded
        for phrase in phrases.get(folded[index], ()):
            end = index
            for words, is_optional in phrase:
                # An optional position takes its word whenever the word is there.
                if end < len(folded) and folded[end] in words:
                    end += 1
                elif not is_optional:
                    break
            else:
                longest = max(longest, end - index)
        return longest

    def is_title_case(self) -> bool:
        """Return whether the query is capitalised like a title: "The Capital Of France"."""
        lexicon = self.lexicon
        small_words = (lexicon.stop, lexicon.strong, lexicon.weak)
        words = [
            (token.text, folded)
            for token, folded in zip(self.tokens, self.folded, strict=True)
            if folded
        ]
        # A title has capitals except in small words such as "of".
        for word, folded in words:
            is_small = len(word) < 3 or (
                len(word) == 3 and any(folded in group for group in small_words)
            )
            if word[0].islower() and (folded in lexicon.verbs or not is_small):
                return False
        # A few names also have capitals throughout. A capitalised verb shows that it is a title.
        return len(words) > 2 and any(
            word[0].isupper() and folded in lexicon.verbs and folded not in lexicon.homographs
            for word, folded in words[1:]
        )

    def is_before_name(self, index: int) -> bool:
        """Return whether the token at *index* is a title or an initial before a name: "Dr. May".

        Its full stop then ends no sentence. A capitalised stop word after the full stop usually
        begins a sentence ("Ask the Dr. What ..."). It is a name if it follows a title and is known
        as a name, too (May), or if another capitalised word follows ("J. Will Smith").
        """
        token, lexicon = self.tokens[index], self.lexicon
        is_initial = len(token.text) == 1 and token.text.isupper() and token.text != "I"
        is_title = token.folded_text in lexicon.titles
        following = self.tokens[index + 1 : index + 3]
        if (
            not (is_initial or is_title)
            or not self.text.startswith(".", token.end)
            or not following
            or not is_capitalised(following[0])
        ):
            return False
        name = following[0]
        if name.folded_text not in lexicon.stop:
            return True
        # "May" also follows an initial that ends a sentence: "... vitamin C. May I ...".
        if name.folded_text in lexicon.homographs and not is_initial:
            return True
        return (
            len(following) > 1
            and not name.is_before_punctuation
            and is_capitalised(following[1])
            and following[1].folded_text not in lexicon.stop
        )


def is_capitalised(token: Token) -> bool:
    """Return whether *token* is a word or an acronym that begins with a capital."""
    return token.kind in ("word", "acronym") and token.text[0].isupper()


def is_typed_in_capitals(
    tokens: Sequence[Token],
    stop_words: Container[str],
) -> bool:
    """Return whether a query is typed in capitals, unlike one of acronyms alone: NASA ESA."""
    words = [token for token in tokens if token.kind in ("word", "acronym")]
    return all(token.text.isupper() for token in words) and any(
        token.kind == "acronym"
        and (len(token.text) > LONGEST_ACRONYM or token.folded_text in stop_words)
        for token in words
    )


def strip_stop_words(words: Words) -> tuple[str, bool]:
    """Return the keywords of *words*, and whether they open with a name like a question word.

    The keywords are ``""`` if all words were removed. A second pass would remove such a name, as in
    "Can Yaman".
    """
    lexicon = words.lexicon
    folded = words.folded
    if "" in folded:
        folded = [
            word or _fold_emphasised(token, lexicon)
            for token, word in zip(words.tokens, folded, strict=True)
        ]
        words = replace(words, folded=folded)
    kept = _find_kept_words(words)
    removed = _find_removed_phrases(words, kept)
    end = len(folded)
    while end and folded[end - 1] in lexicon.closings:
        end -= 1
    keywords: dict[int, str] = {}
    for index, word in enumerate(folded[:end]):
        keyword = ""
        if index in kept or not word:
            keyword = words.tokens[index].text
        elif word not in lexicon.removable:
            keyword = _strip_elision(words.tokens[index].text, word, words)
        if keyword and index not in removed:
            keywords[index] = keyword
    first = next(iter(keywords), 0)
    # After another verb, the word is certainly a name: "Is Can Yaman ...".
    opens_with_name = (
        first > 0
        and first in kept
        and folded[first] in lexicon.removable
        and folded[first - 1] in lexicon.verbs
    )
    return " ".join(keywords.values()), opens_with_name


def _fold_emphasised(token: Token, lexicon: Lexicon) -> str:
    """Return a special token in lower case if the rules may remove it: "what IS the"."""
    word = token.folded_text
    is_emphasised = token.kind == "acronym" and word in lexicon.removable - lexicon.acronyms
    return word if is_emphasised or word in lexicon.extra else ""


def _find_removed_phrases(words: Words, kept: Container[int]) -> set[int]:
    """Return the indices of polite openings, greetings and question phrases such as "how much"."""
    lexicon = words.lexicon
    removed: set[int] = set()
    index, is_opening = 0, True
    while index < len(words.folded):
        length = 0
        if is_opening or words.tokens[index].opens_sentence:
            length = words.count_phrase(lexicon.lead_ins, index)
            if length > 1:
                # The last word may begin a phrase: "how much" in "find out how much it costs".
                phrase = words.count_phrase(lexicon.removed_phrases, index + length - 1)
                length += max(phrase - 1, 0)
            length = length or _count_greeting(words, index)
            # Several openings may follow each other: "Hello, can you tell me ...".
            is_opening = length > 0
        if not length and index not in kept and words.folded[index] in lexicon.removed_phrases:
            length = words.count_phrase(lexicon.removed_phrases, index)
        removed.update(range(index, index + length))
        index += length or 1
    return removed


def _count_greeting(words: Words, index: int) -> int:
    """Return the length of the greeting at *index*, in words. "Hello Kitty" is no greeting."""
    length = words.count_phrase(words.lexicon.greetings, index)
    after = index + length
    if not length or after >= len(words.folded):
        return 0
    is_greeting = words.tokens[after - 1].is_before_punctuation
    return length if is_greeting or words.folded[after] in words.lexicon.removable else 0


def _strip_elision(shown: str, folded: str, words: Words) -> str:
    """Return a word in lower case, without elided articles: "homme" for "L'homme"."""
    lexicon = words.lexicon
    elided, _, rest = folded.partition("'")
    while rest and elided in lexicon.elisions and folded not in lexicon.negations:
        folded = rest
        shown = normalise_characters(shown).partition("'")[2]
        if folded in lexicon.removable:
            return ""
        if shown.isupper() and len(shown) > 1 and not words.is_all_caps:
            return shown
        elided, _, rest = folded.partition("'")
    return lower_case(shown)


def _find_kept_words(words: Words) -> set[int]:
    """Return the indices of words to keep as they are, although they may be stop words."""
    folded, lexicon, tokens = words.folded, words.lexicon, words.tokens
    kept: set[int] = set()
    for index, word in enumerate(folded):
        if word in lexicon.kept_phrases:
            length = words.count_phrase(lexicon.kept_phrases, index)
            kept.update(range(index, index + length))
        if word == "may" and word in lexicon.homographs:
            neighbours = tokens[max(0, index - 1) : index + 2]
            is_month = any(token.kind == "number" for token in neighbours)
            kept.update([index] if is_month else [])
    # An article has a word after it, so the "a" in "plan a" is a letter.
    if folded and len(folded[-1]) == 1 and folded[-1] in lexicon.articles:
        kept.add(len(folded) - 1)
    if not (words.is_all_caps or words.is_title_case()):
        kept |= _find_names(words)
    return kept


def _find_names(words: Words) -> set[int]:
    """Return the indices of stop words that are names, as in "Ask Dr. Will or May"."""
    lexicon = words.lexicon
    names: set[int] = set()
    for index, token in enumerate(words.tokens):
        word = words.folded[index]
        if word not in lexicon.removable or word in lexicon.extra:
            continue
        # Many titles begin with a capitalised article. A single letter is a name: "vitamin A".
        if token.kind == "acronym" or (word in lexicon.articles and len(word) > 1):
            continue
        if token.opens_sentence and not (index and words.is_before_name(index - 1)):
            continue
        if token.text[0].isupper():
            names.add(index)
    return names
