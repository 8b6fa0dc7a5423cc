"""Check the texts of a model's reply with rules and limits, and drop or cut bad texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.preprocessing.text import (
    clean_text,
    cut_at_word,
    fold_accents,
    normalise_text,
    split_words,
)
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.transforms.chatter import is_noise, is_off_topic_talk, is_refusal, strip_lead_in
from qtmiddleware.transforms.json_reading import JSON_OPENING, Cut
from qtmiddleware.transforms.plain_text import strip_markup, strip_quotes
from qtmiddleware.types import Transformation

MAX_CHARS: Final = {"line": 1_000, "list": 1_000, "passage": 4_000}
"""The maximum number of characters of a text, by the field's shape. Longer texts are cut."""
MAX_KEYWORD_CHARS: Final = 100
"""The maximum number of characters of a key term. Longer terms are dropped."""
MOST_NOTES: Final = 100
MAX_NOTE_CHARS: Final = 200
SAME_AS_QUERY: Final = "same as the query"
"""The name of the rule that drops a text that only repeats the question."""
SAME: Final = f"dropped: {SAME_AS_QUERY}"
"""The note on a text that only repeats the question."""
NONE_NEEDED: Final = "none needed"
"""The note on a field that the model left empty on purpose."""

SENTENCE_END: Final = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？؟।]")
_ASIDE: Final = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_BRACKETS: Final = (")", "]")
_COLONS: Final = (":", "：")

# A sub-query with such words refers to the answer to another one. It cannot be searched on its own.
_OTHER_STEP: Final = re.compile(
    r"(?<!\w)#\d\b"
    r"|\b(?:answers?|results?|response|output) (?:to|of|from|in) (?:the )?"
    r"(?:#|sub|step|q(?:uestion|uery)?\b|previous|first|second|above|\d)"
    r"|\b(?:step|sub-?quer(?:y|ies)|sub-?questions?|etape|schritt|paso|passo|stap|шаг)[ -]?#?\d"
    r"|\b(?:question|query) (?:#|one\b|\d)"
    r"|\b(?:previous|preceding|above|earlier)"
    r" (?:step|answer|question|query|result|sub-?query|sub-?question)"
    r"|\b(?:mentioned|identified|named|found|listed|given) "
    r"(?:above|earlier|previously|in (?:the )?(?:previous|first|step))"
    r"|(?:步骤|第)[一二三四五\d]+步?(?:的答案|中的)|上一(?:步|个问题)|前の質問|上述"
)
_PLACEHOLDER: Final = re.compile(
    r"[\[<{][^\[\]<>{}]{0,40}\b(?:answer|step|result|name|person|entity|film|company|x|previous|above|author|query)\b"
    r"[^\[\]<>{}]{0,40}[\]>}]"
)
_VAGUE_REFERENCE: Final = re.compile(
    r"\b(?:that|this|those|these|said|the said|the aforementioned|the resulting) "
    r"(person|people|man|woman|actor|actress|director|author|writer|singer|musician|artist|band|group|film|movie|book|"
    r"song|album|show|series|company|organi[sz]ation|country|city|state|town|team|club|player|place|location|event|year|"
    r"date|battle|war|one|entity|answer|university|school|character|individual|product|figure|number|politician)s?\b"
)
_PRONOUN: Final = re.compile(
    r"\b(?:is|was|are|were|do|does|did|has|have|had|can|could|will|would|should) (he|she|they|it)\b"
    r"(?! \w+(?: \w+)? (?:to|that|for|if|when|in|on|at|on|outside)\b)"
)
_NAME: Final = re.compile(r"(?<=[\w,] )[A-Z0-9]\w*")


class Candidate(NamedTuple):
    """A text of a reply, prepared for the rules.

    Attributes:
        text: The text as the model wrote it, on one line.
        value: The text to search for: *text* without bullet, quotation marks and preamble.
        key: The normal form of *value*. It ignores case, spaces and final punctuation.
        field: The reply field that the text belongs to.
        prompt: The prompt that the model answered.
        query: The question in the prompt.
    """

    text: str
    value: str
    key: str
    field: ReplyField
    prompt: Prompt
    query: str


class Verdict(NamedTuple):
    """The result of checking one text of a reply.

    Attributes:
        text: The text to search for; ``None`` if the text was dropped.
        note: Why the text was dropped or how it was changed; ``""`` for an unchanged text.
        rule: The name of the rule that dropped the text; ``""`` if the text was kept.
        key: The normal form of a kept text, to find duplicates.
    """

    text: str | None
    note: str = ""
    rule: str = ""
    key: str = ""


def check_text(text: str, field: ReplyField, prompt: Prompt) -> Verdict:
    """Return the result of checking a text of a reply with all `RULES`.

    A text that breaks a rule is dropped. A text that is too long for *field* is cut.

    Args:
        text: The text.
        field: The reply field that the text belongs to.
        prompt: The prompt that the model answered.
    """
    single_line = clean_text(text)
    value = _extract_search_text(text, single_line, field, prompt.query)
    candidate = Candidate(single_line, value, normalise_text(value), field, prompt, prompt.query)
    for rule, is_broken in RULES.items():
        if is_broken(candidate):
            return Verdict(None, f"dropped: {rule}", rule)
    limit = MAX_CHARS[field.shape]
    if len(value) <= limit:
        return Verdict(value.rstrip(), key=candidate.key)
    value = cut_at_word(value, limit).rstrip()
    return Verdict(value, "cut: too long", key=normalise_text(value))


def _extract_search_text(text: str, single_line: str, field: ReplyField, query: str) -> str:
    """Return *text* without bullet, quotation marks, preamble and a remark in brackets at the end.

    In a passage, only quotation marks, preamble and an incomplete last sentence are removed.
    *single_line* is *text* on one line.
    """
    if field.shape == "passage":
        whole = clean_text(keep_whole_sentences(text)) if isinstance(text, Cut) else single_line
        return strip_quotes(strip_lead_in(whole, query, is_passage=True), query)
    value = clean_text(strip_markup(single_line, query))
    aside = _ASIDE.search(value[-200:]) if value.endswith(_BRACKETS) else None
    if aside and len(aside.group()) < len(value) and is_noise(aside.group(1), query):
        value = value[: -len(aside.group())]
    return value


def keep_whole_sentences(text: str) -> str:
    """Return *text* up to the end of its last complete sentence; ``""`` if there is none."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def is_sub_query_field(field: ReplyField) -> bool:
    """Return whether the texts of *field* are sub-queries.

    Each sub-query must be clear without the others. The field may be empty.
    """
    return TEXT_FIELDS[field.name].guard == "together"


def is_key_term_field(field: ReplyField) -> bool:
    """Return whether the texts of *field* are key terms, not sentences."""
    return TEXT_FIELDS[field.name].guard == "terms"


def is_talk_about_task(text: str, field: ReplyField, prompt: Prompt) -> bool:
    """Return whether *text* talks about the task instead of doing it."""
    query = prompt.query
    return is_noise(text, query) or is_off_topic_talk(
        text, field.shape, query, f"{query} {prompt.user}"
    )


def _is_refusal(candidate: Candidate) -> bool:
    """Return whether the text is a refusal, before or after its preamble is removed."""
    return is_refusal(candidate.value, candidate.query) or (
        candidate.text != candidate.value and is_refusal(candidate.text, candidate.query)
    )


def _copies_prompt(candidate: Candidate) -> bool:
    """Return whether the text has at least four words and is copied from the instructions."""
    # A model may repeat the instructions, or the example in them.
    return candidate.key.count(" ") >= 3 and candidate.key in _normalise_cached(
        candidate.prompt.system
    )


# Many questions have the same instructions, and many texts have the same question.
_normalise_cached = lru_cache(32)(normalise_text)


def _has_no_query(candidate: Candidate) -> bool:
    """Return whether the text is empty, talk about the task, or a heading that ends in a colon."""
    is_heading = candidate.text.endswith(_COLONS) and not candidate.query.endswith(_COLONS)
    return (
        not candidate.key
        or is_talk_about_task(candidate.value, candidate.field, candidate.prompt)
        or is_heading
    )


def _repeats_query(candidate: Candidate) -> bool:
    """Return whether the text repeats the query.

    Always returns ``False`` for sub-queries and key terms, which may repeat the query.
    """
    # One of several sub-queries may be the query itself, if the others add to it.
    return candidate.key == _normalise_cached(candidate.query) and not (
        is_sub_query_field(candidate.field) or is_key_term_field(candidate.field)
    )


def _is_overlong_key_term(candidate: Candidate) -> bool:
    """Return whether the text is a key term that is too long."""
    return len(candidate.value) > MAX_KEYWORD_CHARS and is_key_term_field(candidate.field)


def _has_no_letters(candidate: Candidate) -> bool:
    """Return whether the text has no letters, although the query has letters.

    Always returns ``False`` for a key term, which may be a number.
    """
    return (
        not any(map(str.isalpha, candidate.value))
        and any(map(str.isalpha, candidate.query))
        and not is_key_term_field(candidate.field)
    )


def _is_unclear_sub_query(candidate: Candidate) -> bool:
    """Return whether the text is a sub-query with an unresolved reference, such as "that film"."""
    return is_sub_query_field(candidate.field) and has_unresolved_reference(
        candidate.value, candidate.query
    )


def _is_json(candidate: Candidate) -> bool:
    """Return whether the text begins like JSON, although the query does not.

    Always returns ``False`` for a key term.
    """
    # If the query itself begins with the same bracket, the text may be a rewrite of it.
    return (
        bool(JSON_OPENING.match(candidate.value))
        and candidate.value[:1] != candidate.query[:1]
        and not is_key_term_field(candidate.field)
    )


RULES: Final[Mapping[str, Callable[[Candidate], bool]]] = {
    "refusal": _is_refusal,
    "copies the prompt": _copies_prompt,
    "no query": _has_no_query,
    SAME_AS_QUERY: _repeats_query,
    "too long for a keyword": _is_overlong_key_term,
    "no letters": _has_no_letters,
    "unresolved reference": _is_unclear_sub_query,
    "JSON": _is_json,
}
"""The rules by name, in the order of the checks. A rule returns true to drop the text."""


def has_unresolved_reference(sub_query: str, query: str) -> bool:
    """Return whether *sub_query* refers to something that it does not name, such as "that person".

    A reference is allowed if *query* contains it too.
    """
    folded_text, folded_query = fold_accents(sub_query), fold_accents(query)
    for pattern in (_OTHER_STEP, _PLACEHOLDER):
        match = pattern.search(folded_text)
        if match and match.group().strip() not in folded_query:
            return True
    return _has_unnamed_noun(folded_text, folded_query) or _has_unnamed_pronoun(
        sub_query, folded_text, folded_query
    )


def _has_unnamed_noun(folded_text: str, folded_query: str) -> bool:
    """Return whether a sub-query says "that film" or similar without naming the film before.

    Both texts must be in lower case, without accents.
    """
    match = _VAGUE_REFERENCE.search(folded_text)
    if not match or match.group() in folded_query:
        return False
    before = folded_text[: match.start()]
    return match.group(1) not in before and not re.search(r"\bwho\b|\bwhich\b|\bwhose\b", before)


def _has_unnamed_pronoun(sub_query: str, folded_text: str, folded_query: str) -> bool:
    """Return whether *sub_query* is a short question with "it" or "they" and without a name.

    A pronoun is allowed if the query has it too.
    """
    match = _PRONOUN.search(folded_text)
    if not match or len(split_words(folded_text)) > 7 or _NAME.search(sub_query):
        return False
    return not re.search(rf"\b{match.group(1)}\b", folded_query)


def is_within_limits(transformation: Transformation, fields: Iterable[ReplyField]) -> bool:
    """Return whether a prompt with *fields* can have *transformation* as its result.

    Checks the fields, and the number and lengths of the texts and notes. Transformations from a
    shared cache need this check, because other processes can write anything to the cache.
    """
    fields_by_name = {field.name: field for field in fields}
    texts_by_name = {name: texts for name in TEXT_FIELDS if (texts := transformation.texts(name))}
    return (
        texts_by_name.keys() <= fields_by_name.keys()
        and all(
            _are_texts_within_limits(fields_by_name[name], texts)
            for name, texts in texts_by_name.items()
        )
        and len(transformation.notes) <= MOST_NOTES
        and all(len(text) <= MAX_NOTE_CHARS for note in transformation.notes for text in note)
    )


def _are_texts_within_limits(field: ReplyField, texts: tuple[str, ...]) -> bool:
    """Return whether *field* allows the number and lengths of *texts*, and no text is blank."""
    char_limit = MAX_KEYWORD_CHARS if is_key_term_field(field) else MAX_CHARS[field.shape]
    limit = field.max_items if field.shape == "list" else 1
    return len(texts) <= limit and all(text.strip() and len(text) <= char_limit for text in texts)
