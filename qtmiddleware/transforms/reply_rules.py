"""Whether one text of a reply may be searched for: a list of named rules, and the limits of what is kept."""

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
"""The longest text of each shape."""
MAX_KEYWORD_CHARS: Final = 100
"""The longest key term."""
MOST_NOTES: Final = 100
MAX_NOTE_CHARS: Final = 200
SAME_AS_QUERY: Final = "same as the query"
"""The rule for a text that only repeats the question."""
SAME: Final = f"dropped: {SAME_AS_QUERY}"
"""Its note."""
NONE_NEEDED: Final = "none needed"
"""The note on a field of which a reply says that there is nothing for it."""

SENTENCE_END: Final = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？؟।]")
_ASIDE: Final = re.compile(r"\s*[(\[]([^()\[\]]*)[)\]]$")
_BRACKETS: Final = (")", "]")
_COLONS: Final = (":", "：")

# What a sub-query says that points to the answer of another, so that it cannot be searched on its
# own.
_STEP: Final = re.compile(
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
_SLOT: Final = re.compile(
    r"[\[<{][^\[\]<>{}]{0,40}\b(?:answer|step|result|name|person|entity|film|company|x|previous|above|author|query)\b"
    r"[^\[\]<>{}]{0,40}[\]>}]"
)
_POINTED: Final = re.compile(
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
    """One text of a reply to *prompt*, which asks about *query*.

    *given* is the text as it was, *value* what it would be searched as, *key* what two spellings of
    the value share.
    """

    given: str
    value: str
    key: str
    field: ReplyField
    prompt: Prompt
    query: str


class Verdict(NamedTuple):
    """What becomes of a text: the *text* to search for, or ``None`` with the *rule* that objects, by its name.

    *note* says that it was dropped by which rule, or how it was changed. *key* is what two
    spellings of the text share.
    """

    text: str | None
    note: str = ""
    rule: str = ""
    key: str = ""


def judge(text: str, field: ReplyField, prompt: Prompt) -> Verdict:
    """Whether *text*, given for *field* of *prompt*, may be searched for: the first rule that objects rejects it."""
    given = clean(text)
    value = _extract_value(text, given, field, prompt.query)
    candidate = Candidate(given, value, normalise(value), field, prompt, prompt.query)
    for rule, objects in RULES.items():
        if objects(candidate):
            return Verdict(None, f"dropped: {rule}", rule)
    limit = MAX_CHARS[field.shape]
    if len(value) <= limit:
        return Verdict(value.rstrip(), key=candidate.key)
    value = cut_at_word(value, limit).rstrip()
    return Verdict(value, "cut: too long", key=normalise(value))


def _extract_value(text: str, given: str, field: ReplyField, query: str) -> str:
    """*text*, in its clean form *given*, without what stands around it.

    That is marks, quotes, a lead-in, a remark in brackets, a sentence cut in two.
    """
    if field.shape == "passage":
        whole = clean(keep_whole_sentences(text)) if isinstance(text, Cut) else given
        return strip_quotes(strip_lead_in(whole, query, is_passage=True), query)
    value = clean(strip_marks(given, query))
    aside = _ASIDE.search(value[-200:]) if value.endswith(_BRACKETS) else None
    if aside and len(aside.group()) < len(value) and is_noise(aside.group(1), query):
        value = value[: -len(aside.group())]
    return value


def keep_whole_sentences(text: str) -> str:
    """Returns *text* up to the end of its last complete sentence."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def holds_parts(field: ReplyField) -> bool:
    """Whether *field* holds the parts of the question: there may be none, and each must make sense alone."""
    return TEXT_FIELDS[field.name].guard == "together"


def holds_terms(field: ReplyField) -> bool:
    """Whether *field* holds key terms rather than sentences."""
    return TEXT_FIELDS[field.name].guard == "terms"


def is_talk(text: str, field: ReplyField, prompt: Prompt) -> bool:
    """Whether *text* is about the task instead of doing it."""
    query = prompt.query
    return is_noise(text, query) or is_beside_the_point(
        text, field.shape, query, f"{query} {prompt.user}"
    )


def _refuses(it: Candidate) -> bool:
    return is_refusal(it.value, it.query) or (
        it.given != it.value and is_refusal(it.given, it.query)
    )


def _copies_prompt(it: Candidate) -> bool:
    # The instructions, or the example in them.
    return it.key.count(" ") >= 3 and it.key in _normalise_known(it.prompt.system)


# Instructions are the same for question after question, and the question is for text after text.
_normalise_known = lru_cache(32)(normalise)


def _says_nothing(it: Candidate) -> bool:
    is_heading = it.given.endswith(_COLONS) and not it.query.endswith(_COLONS)
    return not it.key or is_talk(it.value, it.field, it.prompt) or is_heading


def _repeats_query(it: Candidate) -> bool:
    # One of several sub-queries may well be the query: it is one side of it then.
    return it.key == _normalise_known(it.query) and not (
        holds_parts(it.field) or holds_terms(it.field)
    )


def _is_long_term(it: Candidate) -> bool:
    return len(it.value) > MAX_KEYWORD_CHARS and holds_terms(it.field)


def _has_no_letters(it: Candidate) -> bool:
    return (
        not any(map(str.isalpha, it.value))
        and any(map(str.isalpha, it.query))
        and not holds_terms(it.field)
    )


def _points_elsewhere(it: Candidate) -> bool:
    return holds_parts(it.field) and points_elsewhere(it.value, it.query)


def _is_json(it: Candidate) -> bool:
    return (
        bool(JSON_OPENING.match(it.value))
        and it.value[:1] != it.query[:1]
        and not holds_terms(it.field)
    )


RULES: Final[Mapping[str, Callable[[Candidate], bool]]] = {
    "refusal": _refuses,
    "copies the prompt": _copies_prompt,
    "no query": _says_nothing,
    SAME_AS_QUERY: _repeats_query,
    "too long for a keyword": _is_long_term,
    "no letters": _has_no_letters,
    "unresolved reference": _points_elsewhere,
    "JSON": _is_json,
}
"""What may be wrong with a text, in the order it is looked for: the name a note gives it, and when it objects."""


def points_elsewhere(sub_query: str, query: str) -> bool:
    """Whether *sub_query* speaks of "#1", "[answer of 1]", "that person" or "it" without saying what that is.

    What *query* says in the same words is the user's own, and stays.
    """
    text, asked = fold_accents(sub_query), fold_accents(query)
    for pattern in (_STEP, _SLOT):
        match = pattern.search(text)
        if match and match.group().strip() not in asked:
            return True
    return _names_nobody(text, asked) or _is_dangling(sub_query, text, asked)


def _names_nobody(text: str, asked: str) -> bool:
    match = _POINTED.search(text)
    if not match or match.group() in asked:
        return False
    before = text[: match.start()]
    return match.group(1) not in before and not re.search(r"\bwho\b|\bwhich\b|\bwhose\b", before)


def _is_dangling(sub_query: str, text: str, asked: str) -> bool:
    """A short question about "it" or "they" that names nothing else."""
    match = _PRONOUN.search(text)
    if not match or len(split_words(text)) > 7 or _NAME.search(sub_query):
        return False
    return not re.search(rf"\b{match.group(1)}\b", asked)


def is_within_limits(made: Transformation, fields: Iterable[ReplyField]) -> bool:
    """Whether replies with these *fields* could give *made*: no other fields, no more or longer texts, none blank.

    What others remember for us is held against this: a reply is bounded while it is read.
    """
    asked = {field.name: field for field in fields}
    held = {name: texts for name in TEXT_FIELDS if (texts := made.texts(name))}
    return (
        held.keys() <= asked.keys()
        and all(_are_within(asked[name], texts) for name, texts in held.items())
        and len(made.notes) <= MOST_NOTES
        and all(len(text) <= MAX_NOTE_CHARS for note in made.notes for text in note)
    )


def _are_within(field: ReplyField, texts: tuple[str, ...]) -> bool:
    longest = MAX_KEYWORD_CHARS if holds_terms(field) else MAX_CHARS[field.shape]
    most = field.max_items if field.shape == "list" else 1
    return len(texts) <= most and all(text.strip() and len(text) <= longest for text in texts)
