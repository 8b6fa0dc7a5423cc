"""Find faults in a question that a model wrote, by comparing its words with the passage."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from qtmiddleware.preprocessing import LANGUAGES, detect_language
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.preprocessing.text import fold_accents, is_blank, split_tokens
from qtmiddleware.transforms.chatter import is_refusal
from qtmiddleware.transforms.guard import is_in_other_script

MOST_QUESTION_CHARS: Final = 300
MOST_ANSWER_CHARS: Final = 2_000
MOST_RUN: Final = 5
"""The maximum number of content words in a row that a question may share with its passage.

A long name can have five content words. A copied sentence has more.
"""
MOST_SHARED: Final = 0.6
"""The maximum share of a question's word 4-grams that may occur in its passage.

A long name alone can make up half of the 4-grams.
"""
GRAM: Final = 4
"""The number of words in an n-gram."""
LEAST_QUOTED: Final = 3
"""The minimum number of words in a quote. A shorter quote could occur in any passage."""

# Ways to refer to the passage, such as "the author" and "this text". "The author of Emma" and
# "article 5" do not count, because they name something outside the passage.
_OF: Final = r"(?! (?:\d|of\b|for\b|des?\b|du\b|d'|del|di\b|da\b|do\b|von\b|der\b|zu|van\b))"
_THINGS: Final = (
    r"(?:passages?|excerpts?|extracts?|texts?|documents?|paragraphs?|snippets?|articles?"
    r"|authors?|chapters?|sections?|context|tables?|figures?|chunks?)\b"
)
_REFERS: Final = re.compile(
    r"\b(?:(?:the|this|that|these|those) (?:(?:given|provided|above|following|present|whole)"
    rf" )?{_THINGS}{_OF}"
    rf"|(?:given|provided|above|following) {_THINGS}"
    r"|(?:mentioned|described|discussed|listed|stated|shown|given|provided|quoted)"
    r" (?:above|below|here|earlier)\b"
    r"|(?:de[rmns]|die|das|dies\w{1,2}|laut|im|vom|obig\w{1,2}|vorliegend\w{1,2}) "
    rf"(?:text|textabschnitt|passage|abschnitt|auszug|dokument|autor)\w{{0,4}}\b{_OF}"
    r"|(?:l'|(?:le|la|du|ce|cet|cette|au) )"
    rf"(?:texte|passage|extrait|document|paragraphe|auteur|article)\b{_OF}"
    r"|(?:el|la|del|al|est[ea]|ese|en)"
    rf" (?:texto|pasaje|fragmento|documento|parrafo|autor|articulo)\b{_OF}"
    r"|(?:(?:d?el|n?el|da|a)?l'|dell'|nell'|dall'|(?:il|lo|la|nel|del|dal|al|quest[oa]) )"
    rf"(?:testo|brano|passo|passaggio|documento|paragrafo|autore|articolo)\b{_OF}"
    r"|(?:o|d?o|no|ao|n?est[ea]|n?ess[ea])"
    rf" (?:texto|trecho|documento|paragrafo|autor|artigo)\b{_OF}"
    rf"|(?:de|het|deze|dit) (?:tekst|passage|fragment|document|alinea|auteur|artikel)\b{_OF})"
)
_ASKS: Final = re.compile(r"[?？؟;՞፧]\s*[)\"'»”’」]*$")
_YES: Final = re.compile(r"\W*(?:yes|true|ja|oui|s[iíì]|sim)\b", re.IGNORECASE)
_UNSPACED: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_WORDS: Final = re.compile(r"[\w'’]+")
# The dots of an omission, in a text whose words have single spaces between them.
_GAP: Final = re.compile(r" ?(?:\[ ?)?(?:\.{3,}|…)(?: ?\])? ?")


def find_fault(question: str, answer: str, passage_text: str) -> str:
    """Return the fault of a question that a model wrote about a passage, such as ``copied``.

    Returns an empty string if neither *question* nor *answer* has a fault.
    """
    if is_refusal(question, passage_text) or is_refusal(answer, passage_text):
        return "refused"
    if is_blank(question) or is_blank(answer):
        return "nothing_to_ask"
    if len(question) > MOST_QUESTION_CHARS or len(answer) > MOST_ANSWER_CHARS:
        return "too_long"
    words = split_tokens(question)
    if len(words) < 2 or not (_ASKS.search(question) or has_unspaced_script(words)):
        return "no_question"
    if has_reference_to_passage(question):
        return "refers_to_text"
    if is_in_other_language(question, passage_text):
        return "other_language"
    return "copied" if has_too_many_copied_words(question, passage_text) else ""


def find_check_fault(reply: dict[str, Any], passage_text: str) -> str:
    """Return the fault in the model's *reply* to the check, or an empty string.

    The fault is ``unanswerable`` if *reply* does not say that the passage answers the question. The
    fault is ``unquoted`` if *reply* does not quote *passage_text* correctly.
    """
    verdict, quote = reply.get("answers"), reply.get("quote")
    if verdict is not True and not (isinstance(verdict, str) and _YES.match(verdict)):
        return "unanswerable"
    return (
        ""
        if isinstance(quote, str) and is_valid_quote(quote, normalize_words(passage_text))
        else "unquoted"
    )


def has_reference_to_passage(question: str) -> bool:
    """Return whether *question* refers to its passage as a text, as in "according to the text".

    The references are found in English, German, French, Spanish, Italian, Portuguese and Dutch.
    """
    first_word, *rest = _WORDS.findall(question) or [""]
    # A capital letter marks a name, as in "the Text API". In German every noun has one.
    if detect_language(question) != "de":
        rest = ["_" if word[0].isupper() else word for word in rest]
    return bool(_REFERS.search(fold_accents(" ".join([first_word, *rest]))))


def is_in_other_language(question: str, passage_text: str) -> bool:
    """Return whether *question* is in another language or script than *passage_text*.

    If a language cannot be detected, only the scripts are compared.
    """
    text_language = detect_language(passage_text)
    # The first word can mislead: "Was Amy Winehouse a fan of it?" begins like a German question.
    question_languages = {
        detect_language(question),
        detect_language(question.strip().partition(" ")[2]),
    }
    return (
        text_language != "" and question_languages.isdisjoint({"", text_language})
    ) or is_in_other_script(question, passage_text)


def has_too_many_copied_words(question: str, passage_text: str) -> bool:
    """Return whether *question* repeats too many words of *passage_text*.

    Too many are more than `MOST_RUN` content words in a row, or more than `MOST_SHARED` of the
    question's 4-grams. Scripts without spaces have higher limits. A copied question is too easy,
    because users do not know the passage's words.
    """
    words, normalized = split_tokens(question), normalize_words(passage_text)
    # In scripts without spaces, tokens are pairs of characters: two tokens are about one word,
    # three are a word with its particle.
    gram, run = (2 * GRAM, 3 * MOST_RUN) if has_unspaced_script(words) else (GRAM, MOST_RUN)
    grams = [
        f" {' '.join(words[start : start + gram])} " in normalized
        for start in range(len(words) - gram + 1)
    ]
    if len(grams) > 1 and sum(grams) > MOST_SHARED * len(grams):
        return True
    return _count_copied_words(words, flag_content_words(words, question), normalized) > run


def _count_copied_words(
    question_words: Sequence[str], content_flags: Sequence[bool], normalized_text: str
) -> int:
    """Return the maximum number of content words in a row that a question shares with a text.

    Args:
        question_words: The words of the question.
        content_flags: A flag for each word: ``True`` for a content word.
        normalized_text: The text, as `normalize_words` returns it.
    """
    longest = end = 0
    for begin in range(len(question_words)):
        # A run that begins later cannot end earlier, so the end never moves back.
        end = max(end, begin)
        while (
            end < len(question_words)
            and f" {' '.join(question_words[begin : end + 1])} " in normalized_text
        ):
            end += 1
        longest = max(longest, sum(content_flags[begin:end]))
    return longest


def is_valid_quote(quote: str, normalized_text: str) -> bool:
    """Return whether *quote* has at least `LEAST_QUOTED` words and occurs in a text.

    Three or more dots in *quote* stand for omitted words. *normalized_text* is the text, as
    `normalize_words` returns it.
    """
    quote_parts = split_quote(quote)
    return sum(len(part.split()) for part in quote_parts) >= LEAST_QUOTED and all(
        part in normalized_text for part in quote_parts
    )


def split_quote(quote: str) -> list[str]:
    """Split *quote* at the dots for omitted words, and normalize the words of each part."""
    return [
        normalize_words(part) for part in _GAP.split(" ".join(quote.split())) if not is_blank(part)
    ]


def extract_content_words(question: str) -> frozenset[str]:
    """Return the set of content words in *question*, or all its words if it has no content word.

    Two questions with the same set count as duplicates.
    """
    words = split_tokens(question)
    flags = flag_content_words(words, question)
    return frozenset(
        word for word, is_content in zip(words, flags, strict=True) if is_content
    ) or frozenset(words)


def normalize_words(text: str) -> str:
    """Return the words of *text* in lower case, without accents and punctuation.

    One space is before, between and after the words. To find a phrase in a text, search for the
    normalized phrase in the normalized text.
    """
    return f" {' '.join(split_tokens(text))} "


def has_unspaced_script(words: list[str]) -> bool:
    """Return whether most of *words* belong to a script without spaces, such as Chinese.

    In such a script, each item of *words* is a pair of characters.
    """
    return 2 * sum(bool(_UNSPACED.match(word)) for word in words) > len(words)


def flag_content_words(words: list[str], text: str) -> list[bool]:
    """Return a flag for each of the *words* of *text*: ``True`` for a content word.

    Stop words, other words in the language's word list, and words of one or two ASCII letters are
    not content words.
    """
    weak_words = _load_non_content_words(detect_language(text))
    return [
        not (word in weak_words or (len(word) < 3 and word.isascii() and word.isalpha()))
        for word in words
    ]


@lru_cache(len(LANGUAGES) + 1)
def _load_non_content_words(language: str) -> frozenset[str]:
    """Return the words of *language* that are not content words, such as stop words.

    Returns an empty set if *language* is ``""``, which means that the language is unclear.
    """
    if not language:
        return frozenset()
    lexicon = load_lexicon(language)
    words = lexicon.stop | lexicon.weak | lexicon.strong
    return frozenset(token for word in words for token in split_tokens(word))
