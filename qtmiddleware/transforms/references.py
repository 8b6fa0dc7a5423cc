"""Sub-queries that cannot be searched on their own, because they point to the answer of another."""

from __future__ import annotations

import re
from typing import Final

from qtmiddleware.transforms.wording import folded, words

_STEP: Final = re.compile(
    r"(?<!\w)#\d\b"
    r"|\b(?:answers?|results?|response|output) (?:to|of|from|in) (?:the )?"
    r"(?:#|sub|step|q(?:uestion|uery)?\b|previous|first|second|above|\d)"
    r"|\b(?:step|sub-?quer(?:y|ies)|sub-?questions?|etape|schritt|paso|passo|stap|шаг)[ -]?#?\d"
    r"|\b(?:question|query) (?:#|one\b|\d)"
    r"|\b(?:previous|preceding|above|earlier) (?:step|answer|question|query|result|sub-?query|sub-?question)"
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


def points_elsewhere(sub_query: str, query: str) -> bool:
    """Whether *sub_query* speaks of "#1", "[answer of 1]", "that person" or "it" without saying what that is.

    What *query* says in the same words is the user's own, and stays.
    """
    text, asked = folded(sub_query), folded(query)
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
    if not match or len(words(text)) > 7 or _NAME.search(sub_query):
        return False
    return not re.search(rf"\b{match.group(1)}\b", asked)
