"""Remove question words and other stop words from a query."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

from qtmiddleware.preprocessing.lexicon import Lexicon, count_phrase_words
from qtmiddleware.preprocessing.text import normalise_characters
from qtmiddleware.preprocessing.tokeniser import Token

LONGEST_ACRONYM = 5
"""The maximum number of letters in an acronym."""


def fold_tokens(tokens: Sequence[Token], all_caps: bool) -> list[str]:
    """Return each word among *tokens* as the word lists spell it, and ``""`` for other tokens.

    If *all_caps* is true, the query is typed in capitals, and acronyms count as words.
    """
    other = "acronym" if all_caps else "word"
    return [token.key if token.kind == "word" or token.kind == other else "" for token in tokens]


def is_all_caps(tokens: Sequence[Token], stop_words: Container[str]) -> bool:
    """Return whether a query is typed in capitals.

    A few short words in capitals, such as "NASA ESA", are acronyms, unless one of them is a stop
    word.

    Args:
        tokens: The tokens of the query.
        stop_words: The stop words of all languages.
    """
    in_capitals = [token for token in tokens if token.kind == "acronym"]
    if not in_capitals:
        return False
    # A query in capitals may have a few other words, but at most one for three in capitals.
    other_count = sum(token.kind == "word" and not token.text.isupper() for token in tokens)
    if other_count * 3 > len(in_capitals):
        return False
    if any(len(token.text) > LONGEST_ACRONYM for token in in_capitals):
        return True
    return len(in_capitals) > 1 and any(token.key in stop_words for token in in_capitals)


class StripResult(NamedTuple):
    """The keywords of a text.

    Attributes:
        keywords: The keywords, or ``""`` if all words were removed.
        opens_with_name: Whether the first keyword is a name that looks like a question word, as in
            "Can Yaman". Such keywords must not be stripped again, or the name is lost.
    """

    keywords: str
    opens_with_name: bool


def strip_question(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon
) -> StripResult:
    """Remove question words and other stop words from *text*, and return the keywords.

    Args:
        text: The query.
        tokens: The tokens of the query.
        keys: The words of the query in lower case, from `fold_tokens`.
        lexicon: The word list of the query's language.
    """
    acronyms = [index for index, token in enumerate(tokens) if token.kind == "acronym"]
    all_caps = any(keys[index] for index in acronyms)
    topics = set() if all_caps else _find_topic_verbs(tokens, keys, acronyms, lexicon)
    # A word in capitals has no key so far. It gets one if it is only an emphasised stop word.
    if "" in keys:
        keys = [
            key or ("" if index in topics else _fold_emphasised_word(token, lexicon))
            for index, (token, key) in enumerate(zip(tokens, keys, strict=True))
        ]
    end = len(keys)
    while end and keys[end - 1] in lexicon.closings:
        end -= 1
    kept_positions = _find_kept_tokens(text, tokens, keys, lexicon, all_caps)
    removed = _find_removed_phrases(tokens, keys, lexicon, kept_positions)
    keywords, first_index = [], -1
    for index, key in enumerate(keys[:end]):
        if index in removed:
            continue
        if index in kept_positions or not key:
            keyword = tokens[index].text
        elif key in lexicon.removable:
            continue
        else:
            keyword = _strip_elision(tokens[index].text, key, lexicon, all_caps)
        if keyword:
            first_index = index if first_index < 0 else first_index
            keywords.append(keyword)
    # After another verb, the word is certainly a name: "Is Can Yaman ...". In "What Is ..." it may
    # be a verb.
    is_certain = first_index > 0 and keys[first_index - 1] in lexicon.verbs
    is_name = first_index in topics or (
        first_index in kept_positions and keys[first_index] in lexicon.removable
    )
    return StripResult(" ".join(keywords), is_certain and is_name)


def _find_topic_verbs(
    tokens: Sequence[Token], keys: Sequence[str], acronyms: Sequence[int], lexicon: Lexicon
) -> set[int]:
    """Return the indices of the verbs in capitals that are the topic of a question.

    Examples are "what does DOES stand for" and "what do MUST, SHOULD and MAY mean". A verb in
    capitals is a topic if it follows another verb or topic, or a topic and a conjunction.
    *acronyms* are the indices of all words in capitals.
    """
    topics: set[int] = set()
    for index in acronyms:
        if index and tokens[index].key in lexicon.verbs:
            before = index - 1
            follows_topic = before in topics or (
                index - 2 in topics and keys[before] in lexicon.conjunctions
            )
            if follows_topic or keys[before] in lexicon.verbs:
                topics.add(index)
    return topics


def _fold_emphasised_word(token: Token, lexicon: Lexicon) -> str:
    """Return the folded text of *token* if the rules may remove it despite its capitals.

    They may remove emphasised stop words ("what IS the ...") that are not acronyms, and words that
    the user wants to remove. For other tokens, the result is ``""``.
    """
    key = token.key
    if key in lexicon.extra:
        return key
    if token.kind != "acronym":
        return ""
    return key if key in lexicon.removable and key not in lexicon.acronyms else ""


def _find_removed_phrases(
    tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, kept_positions: Container[int]
) -> set[int]:
    """Return the indices of the tokens to remove because they belong to a phrase.

    Polite openings and greetings are removed at the start of a sentence. Question phrases such as
    "how much" are removed anywhere, unless they begin at one of *kept_positions*.
    """
    removed: set[int] = set()
    index, is_opening = 0, True
    while index < len(keys):
        length = 0
        if is_opening or tokens[index].opens:
            length = count_phrase_words(lexicon.lead_ins, keys, index)
            if length > 1 and (
                phrase_length := count_phrase_words(lexicon.removed, keys, index + length - 1)
            ):
                # A phrase may begin with the last word of a lead-in: "find out how" and "how much"
                # in "find out how much it costs".
                length += phrase_length - 1
            length = length or _count_greeting_tokens(tokens, keys, index, lexicon)
            # Several openings may follow each other: "Hello, can you tell me ...".
            is_opening = length > 0
        if not length and keys[index] in lexicon.removed and index not in kept_positions:
            length = count_phrase_words(lexicon.removed, keys, index)
        if length:
            removed.update(range(index, index + length))
            index += length
        else:
            index += 1
    return removed


def _count_greeting_tokens(
    tokens: Sequence[Token], keys: Sequence[str], index: int, lexicon: Lexicon
) -> int:
    """Return the number of tokens in the greeting at *index*, or 0 if there is no greeting.

    Punctuation or a question must follow a greeting. "Hello Kitty" is therefore not a greeting.
    """
    length = count_phrase_words(lexicon.greetings, keys, index)
    next_index = index + length
    if not length or next_index >= len(keys):
        return 0
    is_question = keys[next_index] in lexicon.removable or count_phrase_words(
        lexicon.lead_ins, keys, next_index
    )
    return length if tokens[next_index - 1].closed or is_question else 0


def _strip_elision(word: str, key: str, lexicon: Lexicon, all_caps: bool) -> str:
    """Return *word* in lower case and without an elided article: "homme" for "L'homme".

    An acronym after the article keeps its capitals. If a stop word follows the article, the result
    is ``""``. *key* is the folded *word*.
    """
    if word.isascii() and "'" not in key:
        # The key of a word without accents is the word in lower case.
        return key
    shown = normalise_characters(word)
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


def _find_kept_tokens(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon, all_caps: bool
) -> set[int]:
    """Return the indices of the tokens to keep unchanged, even if they are stop words.

    These tokens are the words of kept phrases, articles that are used as letters ("plan a"), the
    month May, and names.
    """
    kept: set[int] = set()
    for index, key in enumerate(keys):
        if key in lexicon.kept and (length := count_phrase_words(lexicon.kept, keys, index)):
            kept.update(range(index, index + length))
        elif (
            len(key) == 1
            and key in lexicon.articles
            and (index + 1 == len(keys) or _has_operator_beside(tokens, index))
        ):
            # An article has a word after it, so the "a" in "plan a" is not an article.
            kept.add(index)
        elif key == "may" and _has_number_beside(tokens, index) and "may" in lexicon.homographs:
            kept.add(index)
    words = [(token.text, key) for token, key in zip(tokens, keys, strict=True) if key]
    if not (all_caps or text.islower() or is_title_case(words, lexicon)):
        kept.update(_find_names(text, tokens, keys, lexicon))
        kept.update(_find_first_name(text, tokens, keys, lexicon, kept))
    return kept


def _find_neighbours(tokens: Sequence[Token], index: int) -> Sequence[Token]:
    """Return the token at *index* with the token before it and the token after it, if any."""
    return tokens[max(0, index - 1) : index + 2]


def _has_operator_beside(tokens: Sequence[Token], index: int) -> bool:
    """Return whether an operator is directly before or after the token at *index*, as in a != b."""
    neighbours = _find_neighbours(tokens, index)
    return any(
        token.kind == "identifier" and not any(map(str.isalnum, token.text)) for token in neighbours
    )


def _has_number_beside(tokens: Sequence[Token], index: int) -> bool:
    """Return whether a number is directly before or after the token at *index*, as in May 2024."""
    return any(token.kind == "number" for token in _find_neighbours(tokens, index))


def is_title_case(words: Sequence[tuple[str, str]], lexicon: Lexicon) -> bool:
    """Return whether a text is capitalised like a title: The Words Are Capitalised Like This.

    *words* are the words of the text, each as (word, folded word).
    """
    verbs = lexicon.verbs
    # A title has capitals except in small words such as "of".
    for word, key in words:
        if word[0].islower() and (
            len(word) > 3 or key in verbs or (len(word) > 2 and not _is_small_word(key, lexicon))
        ):
            return False
    if len(words) < 3:
        return False
    # A few names also have capitals throughout. A capitalised verb shows that the text is a title.
    return any(
        word[0].isupper() and key in verbs and key not in lexicon.homographs
        for word, key in words[1:]
    )


def _is_small_word(key: str, lexicon: Lexicon) -> bool:
    """Return whether the folded word *key* is a stop word or is used to detect the language."""
    return key in lexicon.stop or key in lexicon.strong or key in lexicon.weak


def is_before_name(text: str, tokens: Sequence[Token], index: int, lexicon: Lexicon) -> bool:
    """Return whether the token at *index* is a title or an initial before a name.

    Examples are "Dr." in "Dr. May Wong" and "J." in "J. Smith". A full stop and a capitalised word
    must follow the token. The capitalised word may be a stop word that begins a new sentence. A
    stop word therefore needs one of these:

    - The token is a title, and the stop word is also a name (May).
    - Another capitalised word follows the stop word, and it is not a stop word.
    """
    token = tokens[index]
    if not text.startswith(".", token.end):
        return False
    next_tokens = tokens[index + 1 : index + 3]
    is_initial = len(token.text) == 1 and token.text.isupper() and token.text != "I"
    if (
        not (is_initial or token.key in lexicon.titles)
        or not next_tokens
        or not is_capitalised(next_tokens[0])
    ):
        return False
    key = next_tokens[0].key
    if key not in lexicon.stop or (key in lexicon.homographs and not is_initial):
        return True
    return (
        len(next_tokens) > 1
        and is_capitalised(next_tokens[1])
        and not next_tokens[0].closed
        and next_tokens[1].key not in lexicon.stop
    )


def is_capitalised(token: Token) -> bool:
    """Return whether *token* is a word or an acronym that begins with a capital."""
    return token.kind in ("word", "acronym") and token.text[0].isupper()


def _find_names(
    text: str, tokens: Sequence[Token], keys: Sequence[str], lexicon: Lexicon
) -> set[int]:
    """Return the indices of the stop words that are names or parts of names.

    A stop word is a name if it is capitalised inside a sentence or after a title ("Dr. Will"). A
    capitalised article before the name belongs to it ("The Who").
    """
    names: set[int] = set()
    for index, (token, key) in enumerate(zip(tokens, keys, strict=True)):
        if key not in lexicon.removable or key in lexicon.extra:
            continue
        if token.kind == "acronym" or not token.text[0].isupper():
            continue
        if token.opens and not (index and is_before_name(text, tokens, index - 1, lexicon)):
            continue
        if key in lexicon.articles:
            # Many titles begin with a capitalised article, so it is no sign of a name. A single
            # letter is: "vitamin A", "plan A".
            names.update((index,) if len(key) == 1 else ())
            continue
        names.add(index)
        if index and keys[index - 1] in lexicon.articles and tokens[index - 1].text[0].isupper():
            names.add(index - 1)
    return names


def _find_first_name(
    text: str,
    tokens: Sequence[Token],
    keys: Sequence[str],
    lexicon: Lexicon,
    kept_positions: set[int],
) -> tuple[int, ...]:
    """Return ``(0,)`` if the first token is a name ("Will said"), or else ``()``.

    A word such as "Will" may also be a verb ("Will it rain?"). It is a name if the text has no
    question mark, no pronoun follows, and the rules remove no other word.
    """
    if "?" in text or len(keys) < 2 or not tokens[0].text[0].isupper():
        return ()
    if keys[0] not in lexicon.homographs or keys[0] in lexicon.extra or keys[1] in lexicon.pronouns:
        return ()
    removable = (
        index
        for index, key in enumerate(keys)
        if index and index not in kept_positions and key in lexicon.removable
    )
    return () if any(True for _ in removable) else (0,)
