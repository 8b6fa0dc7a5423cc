"""Remove question words and other stop words from a query."""

from __future__ import annotations

from collections.abc import Container, Sequence

from qtmiddleware.preprocessing.lexicon import Lexicon, count_phrase_words
from qtmiddleware.preprocessing.text import lower_case, normalise_characters
from qtmiddleware.preprocessing.tokeniser import Token

LONGEST_ACRONYM = 5
"""The maximum number of letters in an acronym."""


def fold_tokens(tokens: Sequence[Token], is_all_caps: bool) -> list[str]:
    """Return the text of each word in lower case, and ``""`` for each token that is no word.

    If *is_all_caps* is true, the query is typed in capitals, and acronyms count as words.
    """
    other = "acronym" if is_all_caps else "word"
    return [
        token.folded_text if token.kind == "word" or token.kind == other else "" for token in tokens
    ]


def is_typed_in_capitals(tokens: Sequence[Token], stop_words: Container[str]) -> bool:
    """Return whether a query is typed in capitals.

    A few words of such a query may be in lower case. Returns ``False`` if all words in capitals are
    short and none is a stop word, because they are acronyms then ("NASA ESA").

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
    return len(in_capitals) > 1 and any(token.folded_text in stop_words for token in in_capitals)


def strip_stop_words(
    text: str,
    tokens: Sequence[Token],
    folded_words: Sequence[str],
    lexicon: Lexicon,
    *,
    is_all_caps: bool,
) -> tuple[str, bool]:
    """Remove question words and other stop words from *text*.

    Args:
        text: The query.
        tokens: The tokens of the query.
        folded_words: The words of the query in lower case, from `fold_tokens`.
        lexicon: The word list of the query's language.
        is_all_caps: Whether the query is typed in capitals.

    Returns:
        The keywords, or ``""`` if all words were removed.
        Whether the first keyword is a name that looks like a question word, as in "Can Yaman". A
        second pass would remove the name.
    """
    topics = set() if is_all_caps else _find_topic_verb_positions(tokens, folded_words, lexicon)
    # A word in capitals has no folded form yet. It gets one if it is only an emphasised stop word.
    if "" in folded_words:
        folded_words = [
            folded_word or ("" if index in topics else _fold_emphasised_word(token, lexicon))
            for index, (token, folded_word) in enumerate(zip(tokens, folded_words, strict=True))
        ]
    end = len(folded_words)
    while end and folded_words[end - 1] in lexicon.closings:
        end -= 1
    kept_positions = _find_kept_positions(text, tokens, folded_words, lexicon, is_all_caps)
    removed = _find_removed_positions(tokens, folded_words, lexicon, kept_positions)
    keywords: dict[int, str] = {}
    for index in range(end):
        word, folded_word = tokens[index].text, folded_words[index]
        if index in removed:
            continue
        if index in kept_positions or not folded_word:
            keywords[index] = word
        elif folded_word not in lexicon.removable:
            keywords[index] = _strip_elision(word, folded_word, lexicon, is_all_caps)
    indices = [index for index, keyword in keywords.items() if keyword]
    if not indices:
        return "", False
    # After another verb, the word is certainly a name: "Is Can Yaman ...". In "What Is ..." it may
    # be a verb.
    first = indices[0]
    opens_with_name = (
        first > 0
        and folded_words[first - 1] in lexicon.verbs
        and (
            first in topics
            or (first in kept_positions and folded_words[first] in lexicon.removable)
        )
    )
    return " ".join(keywords[index] for index in indices), opens_with_name


def _find_topic_verb_positions(
    tokens: Sequence[Token],
    folded_words: Sequence[str],
    lexicon: Lexicon,
) -> set[int]:
    """Return the indices of the verbs in capitals that are the topic of a question.

    Examples are "what does DOES stand for" and "what do MUST, SHOULD and MAY mean". A verb in
    capitals is a topic if it follows another verb, another topic, or a topic and a conjunction.
    """
    topics: set[int] = set()
    for index, token in enumerate(tokens):
        if index and token.kind == "acronym" and token.folded_text in lexicon.verbs:
            word_before = folded_words[index - 1]
            follows_topic = index - 1 in topics or (
                index - 2 in topics and word_before in lexicon.conjunctions
            )
            if follows_topic or word_before in lexicon.verbs:
                topics.add(index)
    return topics


def _fold_emphasised_word(token: Token, lexicon: Lexicon) -> str:
    """Return *token* in lower case if the rules may remove the token, or else ``""``.

    For an acronym, a code or another special token, the rules may remove two kinds of words: stop
    words in capitals ("what IS the") that are not acronyms, and words that the user wants removed.
    """
    folded_word = token.folded_text
    is_stop_word = (
        token.kind == "acronym"
        and folded_word in lexicon.removable
        and folded_word not in lexicon.acronyms
    )
    return folded_word if is_stop_word or folded_word in lexicon.extra else ""


def _find_removed_positions(
    tokens: Sequence[Token],
    folded_words: Sequence[str],
    lexicon: Lexicon,
    kept_positions: Container[int],
) -> set[int]:
    """Return the indices of the tokens to remove because they form a phrase.

    Polite openings and greetings are removed at the start of a sentence. Question phrases such as
    "how much" are removed anywhere, unless they begin at one of *kept_positions*.
    """
    removed: set[int] = set()
    index, is_opening = 0, True
    while index < len(folded_words):
        length = 0
        if is_opening or tokens[index].opens_sentence:
            length = count_phrase_words(lexicon.lead_ins, folded_words, index)
            if length > 1 and (
                phrase_length := count_phrase_words(
                    lexicon.removed_phrases, folded_words, index + length - 1
                )
            ):
                # A phrase may begin with the last word of a lead-in: "find out how" and "how much"
                # in "find out how much it costs".
                length += phrase_length - 1
            length = length or _count_greeting_tokens(tokens, folded_words, index, lexicon)
            # Several openings may follow each other: "Hello, can you tell me ...".
            is_opening = length > 0
        if (
            not length
            and folded_words[index] in lexicon.removed_phrases
            and index not in kept_positions
        ):
            length = count_phrase_words(lexicon.removed_phrases, folded_words, index)
        if length:
            removed.update(range(index, index + length))
            index += length
        else:
            index += 1
    return removed


def _count_greeting_tokens(
    tokens: Sequence[Token], folded_words: Sequence[str], index: int, lexicon: Lexicon
) -> int:
    """Return the number of tokens in the greeting at *index*, or 0 if there is no greeting.

    Punctuation or a question must follow a greeting. "Hello Kitty" is therefore not a greeting.
    """
    length = count_phrase_words(lexicon.greetings, folded_words, index)
    next_index = index + length
    if not length or next_index >= len(folded_words):
        return 0
    is_question = folded_words[next_index] in lexicon.removable or count_phrase_words(
        lexicon.lead_ins, folded_words, next_index
    )
    return length if tokens[next_index - 1].is_before_punctuation or is_question else 0


def _strip_elision(word: str, folded_word: str, lexicon: Lexicon, is_all_caps: bool) -> str:
    """Return *word* in lower case and without an elided article: "homme" for "L'homme".

    An acronym after the article keeps its capitals, unless *is_all_caps* is true. If a stop word
    follows the article, the result is ``""``.

    Args:
        word: The word as the user wrote it.
        folded_word: The same word in lower case.
        lexicon: The word list of the query's language.
        is_all_caps: Whether the query is typed in capitals.
    """
    if word.isascii() and "'" not in folded_word:
        # Without accents, the folded word is just the word in lower case.
        return folded_word
    shown = normalise_characters(word)
    if not lexicon.elisions or "'" not in folded_word:
        return lower_case(shown)
    elided, _, rest = folded_word.partition("'")
    while rest and elided in lexicon.elisions and folded_word not in lexicon.negations:
        folded_word = rest
        shown = shown.partition("'")[2]
        if folded_word in lexicon.removable:
            return ""
        if shown.isupper() and len(shown) > 1 and not is_all_caps:
            return shown
        elided, _, rest = folded_word.partition("'")
    return lower_case(shown)


def _find_kept_positions(
    text: str,
    tokens: Sequence[Token],
    folded_words: Sequence[str],
    lexicon: Lexicon,
    is_all_caps: bool,
) -> set[int]:
    """Return the indices of the tokens to keep unchanged, even if they are stop words.

    Words of kept phrases, articles that are used as letters ("plan a"), the month May and names are
    kept.
    """
    kept: set[int] = set()
    for index, folded_word in enumerate(folded_words):
        length = count_phrase_words(lexicon.kept_phrases, folded_words, index) if folded_word else 0
        kept.update(range(index, index + length))
        neighbours = tokens[max(0, index - 1) : index + 2]
        # An article has a word after it, so the "a" in "plan a" is not an article. Nor is the one
        # in "a != b".
        if len(folded_word) == 1 and folded_word in lexicon.articles:
            is_letter = index + 1 == len(tokens) or any(map(_is_operator, neighbours))
            kept.update((index,) if is_letter else ())
        elif folded_word == "may" and "may" in lexicon.homographs:
            is_month = any(token.kind == "number" for token in neighbours)
            kept.update((index,) if is_month else ())
    words = [
        (token.text, folded_word)
        for token, folded_word in zip(tokens, folded_words, strict=True)
        if folded_word
    ]
    if not (is_all_caps or text.islower() or is_title_case(words, lexicon)):
        kept.update(_find_name_positions(text, tokens, folded_words, lexicon))
        if _opens_with_name(text, tokens, folded_words, lexicon, kept):
            kept.add(0)
    return kept


def _is_operator(token: Token) -> bool:
    """Return whether *token* is an operator, such as ``!=``."""
    return token.kind == "identifier" and not any(map(str.isalnum, token.text))


def is_title_case(words: Sequence[tuple[str, str]], lexicon: Lexicon) -> bool:
    """Return whether a text is capitalised like a title: The Words Are Capitalised Like This.

    *words* are the words of the text, each as (word, folded word).
    """
    verbs = lexicon.verbs
    # A title has capitals except in small words such as "of".
    for word, folded_word in words:
        if word[0].islower() and (
            len(word) > 3
            or folded_word in verbs
            or (len(word) > 2 and not _is_small_word(folded_word, lexicon))
        ):
            return False
    if len(words) < 3:
        return False
    # A few names also have capitals throughout. A capitalised verb shows that the text is a title.
    return any(
        word[0].isupper() and folded_word in verbs and folded_word not in lexicon.homographs
        for word, folded_word in words[1:]
    )


def _is_small_word(folded_word: str, lexicon: Lexicon) -> bool:
    """Return whether *folded_word* is a stop word or helps to detect the language."""
    return (
        folded_word in lexicon.stop or folded_word in lexicon.strong or folded_word in lexicon.weak
    )


def is_before_name(text: str, tokens: Sequence[Token], index: int, lexicon: Lexicon) -> bool:
    """Return whether the token at *index* is a title or an initial before a name.

    Examples are "Dr." in "Dr. May Wong" and "J." in "J. Smith". A full stop and a capitalised word
    must follow the token. If the capitalised word is a stop word, it may begin a new sentence. It
    counts as a name only if one of these is true:

    - The token is a title, and the stop word is also a name (May).
    - The next word after the stop word is capitalised and not a stop word.
    """
    token = tokens[index]
    if not text.startswith(".", token.end):
        return False
    next_tokens = tokens[index + 1 : index + 3]
    is_initial = len(token.text) == 1 and token.text.isupper() and token.text != "I"
    if (
        not (is_initial or token.folded_text in lexicon.titles)
        or not next_tokens
        or not is_capitalised(next_tokens[0])
    ):
        return False
    folded_word = next_tokens[0].folded_text
    if folded_word not in lexicon.stop or (folded_word in lexicon.homographs and not is_initial):
        return True
    return (
        len(next_tokens) > 1
        and is_capitalised(next_tokens[1])
        and not next_tokens[0].is_before_punctuation
        and next_tokens[1].folded_text not in lexicon.stop
    )


def is_capitalised(token: Token) -> bool:
    """Return whether *token* is a word or an acronym that begins with a capital."""
    return token.kind in ("word", "acronym") and token.text[0].isupper()


def _find_name_positions(
    text: str, tokens: Sequence[Token], folded_words: Sequence[str], lexicon: Lexicon
) -> set[int]:
    """Return the indices of the stop words that are names or parts of names.

    A stop word is a name if it is capitalised inside a sentence or after a title ("Dr. Will"). A
    capitalised article before the name is part of the name ("The Who").
    """
    names: set[int] = set()
    for index, (token, folded_word) in enumerate(zip(tokens, folded_words, strict=True)):
        if folded_word not in lexicon.removable or folded_word in lexicon.extra:
            continue
        if token.kind == "acronym" or not token.text[0].isupper():
            continue
        if token.opens_sentence and not (
            index and is_before_name(text, tokens, index - 1, lexicon)
        ):
            continue
        if folded_word in lexicon.articles:
            # Many titles begin with a capitalised article, so it is no sign of a name. A single
            # letter is: "vitamin A", "plan A".
            names.update((index,) if len(folded_word) == 1 else ())
            continue
        names.add(index)
        if (
            index
            and folded_words[index - 1] in lexicon.articles
            and tokens[index - 1].text[0].isupper()
        ):
            names.add(index - 1)
    return names


def _opens_with_name(
    text: str,
    tokens: Sequence[Token],
    folded_words: Sequence[str],
    lexicon: Lexicon,
    kept_positions: set[int],
) -> bool:
    """Return whether the first token is a name, as in "Will said".

    "Will" may also be a verb ("Will it rain?"). Such a word is a name if the text has no question
    mark, no pronoun follows the word, and the rules remove no other word.
    """
    if "?" in text or len(folded_words) < 2 or not tokens[0].text[0].isupper():
        return False
    first_word, next_word = folded_words[:2]
    if first_word not in lexicon.homographs - lexicon.extra or next_word in lexicon.pronouns:
        return False
    return not any(
        folded_word in lexicon.removable and index not in kept_positions
        for index, folded_word in enumerate(folded_words)
        if index
    )
