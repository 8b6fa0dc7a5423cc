"""Which field of a reply a key or a label names, however the model spelled it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.protocols import ReplyField

# Searched in the key without case, spaces and marks, in this order.
_NAMES: Final = {name: re.compile(row.spelled) for name, row in TEXT_FIELDS.items()}
_GENERIC: Final = re.compile(
    "^(the|my|your|final|new|search|output|result|response|answer|text|content|value|query|queries|question|item|list|"
    "data|json|string|sentence|line|prompt|statement|suggestion|option|s|q)+$"
)
_ASIDE: Final = re.compile(
    "^(original|user|input|initial|reason|explan|rational|justif|thought|think|analysis|note|comment|remark|confidence|"
    "lang|type|description|role|id$|title|status|error|refus|warning|history|intent|strategy|score|name$|version$|model|"
    "purpose|aspect|topic|category|difference|why|focus|原|推理|说明|解释|erkl|begr)"
)
_ONLY_LABEL_WORDS: Final = re.compile(
    r"(?:the|my|a|an|your|and|of|for|is|final|new|search|output|result|response|answer|query|queries|question|questions|q|"
    r"sub|sub-?quer(?:y|ies)|sub-?questions?|subq|step|back|step-?back|stand-?alone|rewrit\w*|reformulat\w*|rephras\w*|"
    r"reword\w*|improved|refined|optimi[sz]ed|enhanced|expanded|revised|clarified|broader|more|general|abstract|"
    r"hyde|hypothetical|passage|document|key|keywords?|terms?|keyterms|synonyms?|paraphras\w*|variants?|variations?|"
    r"alternatives?|versions?|options?|original|input|user'?s?|reasoning|explanation|rationale|note|notes|analysis|"
    r"thought|thoughts|contextuali[sz]ed|self-contained|reecrite?|requete|consulta|reescrita|umformulierte|anfrage|frage|"
    r"umformulierung|pregunta|domanda|riscritta|pergunta|reformulee?|\d{1,2})"
)
# Possessive, for there is one way alone to share out the spaces, and trying others takes minutes.
_LABEL: Final = re.compile(r"^([^\W\d_][^:：?？!.\n]{0,50}?)\s*+(?:#\s*+)?(\d{0,2})\s*+[:：]\s*+(.*)$", re.DOTALL)
_OTHER_LABEL: Final = re.compile(
    "改写|重写|改寫|重寫|查询|查詢|问题|問題|子问题|子查询|クエリ|質問|書き換え|重述|释义|段落|关键词|キーワード|질문|쿼리|запрос|вопрос|السؤال|الاستعلام"
)
ASIDE: Final = "aside"
GENERIC: Final = "generic"


def field_of(key: str, fields: Sequence[ReplyField]) -> str:
    """The name of the one of *fields* that *key* means, `GENERIC`, `ASIDE`, or ``""`` where it means nothing known."""
    plain = re.sub(r"[\W\d_]+", "", key[:80].casefold())
    if not plain:
        return ""
    asked = {field.name for field in fields}
    if key in asked:
        return key
    if _ASIDE.search(plain):
        return ASIDE
    for name, pattern in _NAMES.items():
        if name in asked and pattern.search(plain):
            return name
    if _GENERIC.match(plain):
        return GENERIC
    return ""


def split_label(line: str, query: str) -> tuple[str, str]:
    """The label that *line* begins with and the rest of it; no label where those words could be part of a query."""
    if ":" not in line and "：" not in line:
        return "", line
    match = _LABEL.match(line)
    if match and is_label(match.group(1)) and match.group(1).casefold() not in query.casefold():
        return match.group(1), match.group(3)
    return "", line


def is_label(text: str) -> bool:
    """Whether *text* has only words that name fields of a reply."""
    plain = text.casefold().replace("é", "e").replace("ê", "e").replace("_", " ")
    if _OTHER_LABEL.search(plain) and len(plain) <= 30:
        return True
    parts = [part for word in plain.split() for part in word.strip("*#()-,'\"").split("/") if part]
    return bool(parts) and all(_ONLY_LABEL_WORDS.fullmatch(part) for part in parts)
