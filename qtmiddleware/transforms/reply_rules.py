"""Decide whether a text of a reply may be searched for, by named rules and limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.preprocessing.text import clean, cut_at_word, fold_accents, normalise, split_words
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.transforms.chatter import is_beside_the_point, is_noise, is_refusal, strip_lead_in
from qtmiddleware.transforms.json_reading import JSON_OPENING, Cut
from qtmiddleware.transforms.plain_text import strip_marks, strip_quotes
from qtmiddleware.types import Transformation

MAX_CHARS: Final = {"line": 1_000, "list": 1_000, "passage": 4_000}
"""The most characters of a text, by the shape of its field; longer texts are cut."""
MAX_KEYWORD_CHARS: Final = 100
"""The most characters of a key term; longer terms are dropped."""
MOST_NOTES: Final = 100
MAX_NOTE_CHARS: Final = 200
SAME_AS_QUERY: Final = "same as the query"
"""The name of the rule for a text that only repeats the question."""
SAME: Final = f"dropped: {SAME_AS_QUERY}"
"""The note on a text that only repeats the question."""
NONE_NEEDED: Final = "none needed"
"""The note on a field for which a reply says that there is nothing."""

SENTENCE_END: Final = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？؟।]")
_ASIDE: Final = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_BRACKETS: Final = (")", "]")
_COLONS: Final = (":", "：")

# A sub-query with such words refers to the answer of another, so it cannot be searched on its own.
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
    """One text of a reply, as the rules see it.

    Attributes:
        text: The text as it came, on one line.
        value: The text as it would be searched for, without marks, quotes and preamble.
        key: The normal form of the value, which is the same for different spellings.
        field: The field that the text is for.
        prompt: The prompt that was answered.
        query: The question in the prompt.
    """

    text: str
    value: str
    key: str
    field: ReplyField
    prompt: Prompt
    query: str


class Verdict(NamedTuple):
    """The decision on one text of a reply.

    Attributes:
        text: The text to search for, ``None`` if it was dropped.
        note: Says which rule dropped the text, or how the text was changed.
        rule: The name of the rule that dropped the text.
        key: The normal form of the text, which is the same for different spellings.
    """

    text: str | None
    note: str = ""
    rule: str = ""
    key: str = ""


def judge(text: str, field: ReplyField, prompt: Prompt) -> Verdict:
    """Return whether *text*, given for *field* of *prompt*, may be searched for.

    The first rule of `RULES` that objects drops the text. A text that is too long is cut.
    """
    cleaned = clean(text)
    value = _extract_value(text, cleaned, field, prompt.query)
    candidate = Candidate(cleaned, value, normalise(value), field, prompt, prompt.query)
    for rule, objects in RULES.items():
        if objects(candidate):
            return Verdict(None, f"dropped: {rule}", rule)
    limit = MAX_CHARS[field.shape]
    if len(value) <= limit:
        return Verdict(value.rstrip(), key=candidate.key)
    value = cut_at_word(value, limit).rstrip()
    return Verdict(value, "cut: too long", key=normalise(value))


def _extract_value(text: str, cleaned: str, field: ReplyField, query: str) -> str:
    """Return *text* without what surrounds it: marks, quotes, a preamble or a remark in brackets.

    A passage also loses a sentence that was cut in two. *cleaned* is the text on one line.
    """
    if field.shape == "passage":
        whole = clean(keep_whole_sentences(text)) if isinstance(text, Cut) else cleaned
        return strip_quotes(strip_lead_in(whole, query, is_passage=True), query)
    value = clean(strip_marks(cleaned, query))
    aside = _ASIDE.search(value[-200:]) if value.endswith(_BRACKETS) else None
    if aside and len(aside.group()) < len(value) and is_noise(aside.group(1), query):
        value = value[: -len(aside.group())]
    return value


def keep_whole_sentences(text: str) -> str:
    """Return *text* up to the end of its last complete sentence."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def holds_parts(field: ReplyField) -> bool:
    """Return whether *field* holds parts of the question.

    There may be none of them, and each must make sense on its own.
    """
    return TEXT_FIELDS[field.name].guard == "together"


def holds_terms(field: ReplyField) -> bool:
    """Return whether *field* holds key terms rather than sentences."""
    return TEXT_FIELDS[field.name].guard == "terms"


def is_talk(text: str, field: ReplyField, prompt: Prompt) -> bool:
    """Return whether *text* is about the task instead of doing it."""
    query = prompt.query
    return is_noise(text, query) or is_beside_the_point(
        text, field.shape, query, f"{query} {prompt.user}"
    )


def _is_refusal(candidate: Candidate) -> bool:
    """Return whether the model refuses, in the text as it came or as it would be searched for."""
    return is_refusal(candidate.value, candidate.query) or (
        candidate.text != candidate.value and is_refusal(candidate.text, candidate.query)
    )


def _copies_prompt(candidate: Candidate) -> bool:
    """Return whether the text is a part of the prompt, of at least four words."""
    # A model may repeat the instructions, or the example in them.
    return candidate.key.count(" ") >= 3 and candidate.key in _normalise_known(
        candidate.prompt.system
    )


# The same instructions come with many questions, and the same question with many texts.
_normalise_known = lru_cache(32)(normalise)


def _says_nothing(candidate: Candidate) -> bool:
    """Return whether the text is empty, is talk about the task, or only announces a list."""
    is_heading = candidate.text.endswith(_COLONS) and not candidate.query.endswith(_COLONS)
    return (
        not candidate.key
        or is_talk(candidate.value, candidate.field, candidate.prompt)
        or is_heading
    )


def _repeats_query(candidate: Candidate) -> bool:
    """Return whether the text is the query itself, which only a part or key term may be."""
    # One of several sub-queries may be the query itself; the others then add to it.
    return candidate.key == _normalise_known(candidate.query) and not (
        holds_parts(candidate.field) or holds_terms(candidate.field)
    )


def _is_long_term(candidate: Candidate) -> bool:
    """Return whether a key term is too long to be one."""
    return len(candidate.value) > MAX_KEYWORD_CHARS and holds_terms(candidate.field)


def _has_no_letters(candidate: Candidate) -> bool:
    """Return whether a text other than a key term has no letters, although the query has some."""
    return (
        not any(map(str.isalpha, candidate.value))
        and any(map(str.isalpha, candidate.query))
        and not holds_terms(candidate.field)
    )


def _points_elsewhere(candidate: Candidate) -> bool:
    """Return whether a sub-query refers to something that it does not name."""
    return holds_parts(candidate.field) and points_elsewhere(candidate.value, candidate.query)


def _is_json(candidate: Candidate) -> bool:
    """Return whether a text other than a key term opens as JSON, which the query does not."""
    return (
        bool(JSON_OPENING.match(candidate.value))
        and candidate.value[:1] != candidate.query[:1]
        and not holds_terms(candidate.field)
    )


RULES: Final[Mapping[str, Callable[[Candidate], bool]]] = {
    "refusal": _is_refusal,
    "copies the prompt": _copies_prompt,
    "no query": _says_nothing,
    SAME_AS_QUERY: _repeats_query,
    "too long for a keyword": _is_long_term,
    "no letters": _has_no_letters,
    "unresolved reference": _points_elsewhere,
    "JSON": _is_json,
}
"""The rules in the order they are applied: the name in a note, and when the rule objects."""


def points_elsewhere(sub_query: str, query: str) -> bool:
    """Return whether *sub_query* refers to something that it does not name: "#1" or "that person".

    References that *query* makes in the same words are the user's own, and stay.
    """
    folded_text, folded_query = fold_accents(sub_query), fold_accents(query)
    for pattern in (_OTHER_STEP, _PLACEHOLDER):
        match = pattern.search(folded_text)
        if match and match.group().strip() not in folded_query:
            return True
    return _refers_to_nobody(folded_text, folded_query) or _is_dangling(
        sub_query, folded_text, folded_query
    )


def _refers_to_nobody(folded_text: str, folded_query: str) -> bool:
    """Return whether "that person" or the like stands in a text that names no person before it."""
    match = _VAGUE_REFERENCE.search(folded_text)
    if not match or match.group() in folded_query:
        return False
    before = folded_text[: match.start()]
    return match.group(1) not in before and not re.search(r"\bwho\b|\bwhich\b|\bwhose\b", before)


def _is_dangling(sub_query: str, folded_text: str, folded_query: str) -> bool:
    """Return whether *sub_query* is a short question about "it" that names nothing else."""
    match = _PRONOUN.search(folded_text)
    if not match or len(split_words(folded_text)) > 7 or _NAME.search(sub_query):
        return False
    return not re.search(rf"\b{match.group(1)}\b", folded_query)


def is_within_limits(transformation: Transformation, fields: Iterable[ReplyField]) -> bool:
    """Return whether a reply with these *fields* could give *transformation*.

    It then has no other fields, no blank text, and no more or longer texts and notes than allowed.
    Transformations from a shared cache are checked with this: they were not bounded by reading a
    reply.
    """
    fields_by_name = {field.name: field for field in fields}
    texts_by_name = {name: texts for name in TEXT_FIELDS if (texts := transformation.texts(name))}
    return (
        texts_by_name.keys() <= fields_by_name.keys()
        and all(
            _are_within_limits(fields_by_name[name], texts) for name, texts in texts_by_name.items()
        )
        and len(transformation.notes) <= MOST_NOTES
        and all(len(text) <= MAX_NOTE_CHARS for note in transformation.notes for text in note)
    )


def _are_within_limits(field: ReplyField, texts: tuple[str, ...]) -> bool:
    """Return whether *texts* are not blank, and not more or longer than *field* allows."""
    char_limit = MAX_KEYWORD_CHARS if holds_terms(field) else MAX_CHARS[field.shape]
    limit = field.max_items if field.shape == "list" else 1
    return len(texts) <= limit and all(text.strip() and len(text) <= char_limit for text in texts)
