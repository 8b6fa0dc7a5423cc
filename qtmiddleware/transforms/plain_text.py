"""The texts in a reply that is no JSON: numbered, bulleted, labelled, quoted, or just lines; and what labels mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.chatter import is_noise, is_refusal, strip_lead_in

# Searched in the key without case, spaces and marks, in this order.
_NAMES: Final = {
    name: re.compile("|".join(filter(None, [f"^{name.replace('_', '')}$", row.aliases])))
    for name, row in TEXT_FIELDS.items()
}
_NAME_WORDS: Final = {
    word for name, row in TEXT_FIELDS.items() for word in [*name.split("_"), *row.label.split()]
}
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
_LABEL: Final = re.compile(
    r"^([^\W\d_][^:：?？!.\n]{0,50}?)\s*+(?:#\s*+)?(\d{0,2})\s*+[:：]\s*+(.*)$", re.DOTALL
)
_OTHER_LABEL: Final = re.compile(
    "改写|重写|改寫|重寫|查询|查詢|问题|問題|子问题|子查询|クエリ|質問|書き換え|重述|释义|段落|关键词|キーワード|질문|쿼리|запрос|вопрос|السؤال|الاستعلام"
)
ASIDE: Final = "aside"
GENERIC: Final = "generic"
_BULLET: Final = re.compile(r"[-*+•‣▪◦·–—]\s+")
# The number of a list's item, which may be emphasised with its full stop or without.
_NUMBER: Final = re.compile(
    r"\(?\d{1,2}\\?[.)]\)?\s+|\(?\d{1,2}[.)](?=[\"“A-ZÀ-Þ])|\d{1,2}\s*[、"
    r"．）]\s*|\d{1,2}:\s+|\[\d{1,2}\]\s+|"
    r"\(?[a-h]\\?\)\s+|[①-⑳]\s*|Q\d{1,2}[.:)]\s+|\d\ufe0f?\u20e3\s*|"
    r"(?P<emphasis>(\*\*|__|\*|_)\(?(?:\d{1,2}\\?[.):]|[a-h]\\?[.)])\)?\2\s*|(\*\*|__|\*|_)\d{1,2}\3\\?[.):]\s+)"
)
_DIGIT: Final = re.compile(r"\d")
_EMPHASIS: Final = str.maketrans("", "", "*_\\")
_BOLD: Final = re.compile(r"^\*\*(?=\S)(.{1,400}?)(?<=\S)\*\*")
_TAG: Final = re.compile(r"<(/?)([A-Za-z][\w -]{1,30})>")
_DEBRIS: Final = re.compile(
    r"^(?:```.*|~~~.*|[{}\[\]\s,]+|\"[\w -]{1,40}\"\s*:.*|[{\[]\s*[\"'{\[].*|</?[\w-]+>)$"
)
_NUMBERED: Final = re.compile(r"(?:(?<=\s)|^)(?:\*\*|__)?\(?(\d{1,2})\\?[.)](?:\*\*|__)?\s+")
_QUOTES: Final = {
    '"': '"',
    "“": "”",
    "'": "'",
    "«": "»",
    "„": "“",
    "`": "`",
    "*": "*",
    "「": "」",
    "‘": "’",
}


def read_plain_text(text: str, fields: Sequence[ReplyField], query: str) -> dict[str, list[str]]:
    """Returns what the lines of *text* give for each field, the likeliest first.

    Lines under a label that names a field are that field's. The others are for the one field that
    was asked for (the standalone form aside), if nothing has its label.
    """
    labelled, loose = _split_sections(text, fields, query)
    main = [field for field in fields if field.name != "standalone"] or list(fields)
    found = {
        field.name: _arrange(labelled[field.name], field)
        for field in fields
        if field.name in labelled
    }
    if main[0].name in found or not loose or is_refusal(loose[0], query):
        return found
    if len(main) == 1:
        found[main[0].name] = _arrange(loose, main[0])
    elif not found:
        found |= _share_lines(loose, main)
    return found


def split_items(text: str) -> list[str]:
    """Returns *text* as the list it is: its marked lines, its numbered parts, or its lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if _is_marked(line)]
    if len(lines) == 1:
        return _split_numbers(lines[0])
    return marked or lines


def strip_numbers(texts: Sequence[str], query: str) -> list[str]:
    """Return *texts* without the numbers by which they are counted, if they are: two of them are "1." and "2."."""
    counted = [text for text in texts if _DIGIT.search(text)]
    if len(counted) < 2 or not {1, 2} <= set(map(_read_number, counted)):
        return list(texts)
    return [_strip_mark(_unwrap(text), query, is_counted=True) for text in texts]


def strip_marks(text: str, query: str) -> str:
    """Returns *text* without list mark, bold, label, lead-in and outer quotes that are not the query's own.

    A text alone is no second item of a list, so "2. Weltkrieg" keeps its number.
    """
    text = text.strip()
    # Before two letters stands no mark, and most texts begin with a word.
    if not text[:2].isalpha():
        # A number may stand in bold, alone or with its text.
        text = _strip_mark(_strip_bold(_strip_mark(_unwrap(text), query).strip()), query)
        text = _strip_bold(text.strip())
    label, rest = split_label(text, query)
    if label:
        text = rest.lstrip("* ")
    return strip_quotes(strip_lead_in(_strip_bold(text), query).strip(), query)


def _unwrap(text: str) -> str:
    """*text* without the mark of a heading or quotation, and without bold around the whole of it."""
    text = text.strip()
    text = text.lstrip("#> ") if text.startswith(("#", ">")) else text
    bold = _BOLD.match(text)
    return bold.group(1) if bold and bold.end() == len(text) else text


def _strip_bold(text: str) -> str:
    """*text* with its beginning no longer in bold, if it is."""
    return _BOLD.sub(r"\1", text) if text.startswith("**") else text


def _is_marked(line: str) -> bool:
    return bool(_BULLET.match(line) or _NUMBER.match(line))


def _read_number(text: str) -> int | None:
    """The number by which *text* is counted, before it or in its label; ``None`` if there is none."""
    text = _unwrap(text)
    bullet = _BULLET.match(text)
    mark = _NUMBER.match(text, bullet.end() if bullet else 0)
    if mark is None:
        label = _LABEL.match(text) if ":" in text else None
        return (
            int(label.group(2)) if label and label.group(2) and is_label(label.group(1)) else None
        )
    digits = re.search(r"\d+", mark.group())
    return int(digits.group()) if digits else None


def _strip_mark(text: str, query: str, *, is_counted: bool = False) -> str:
    """*text* without its bullet and number, unless *query* has them too.

    A number above 1 without emphasis goes only if it *is_counted*: it may be an ordinal.
    """
    text = text.strip()
    for pattern in (_BULLET, _NUMBER):
        mark = pattern.match(text)
        if mark is None:
            continue
        opening, asked = text[: mark.end() + 2].casefold(), query.casefold()
        if opening in asked or (pattern is _NUMBER and opening.translate(_EMPHASIS) in asked):
            continue
        if pattern is _BULLET or is_counted or mark["emphasis"] or (_read_number(text) or 0) <= 1:
            text = text[mark.end() :]
    return text


def strip_quotes(text: str, query: str) -> str:
    """Returns *text* without quotes around the whole of it, unless *query* is quoted too."""
    closer = _QUOTES.get(text[:1])
    inner = text[1:-1]
    if (
        len(text) < 3
        or text[-1] != closer
        or closer in inner
        or text[0] in inner
        or query[:1] in _QUOTES
    ):
        return text
    return inner.strip()


def _split_sections(
    text: str, fields: Sequence[ReplyField], query: str
) -> tuple[dict[str, list[str]], list[str]]:
    labelled: dict[str, list[str]] = {}
    loose: list[str] = []
    here = loose
    for line in map(str.strip, _replace_tags(text, fields).splitlines()):
        label, rest = _read_label(line, query)
        name = find_field(label, fields) if label else ""
        if name == ASIDE:
            # A remark with its label alone on a line goes on below; what is said behind the label
            # ends there.
            here = here if rest else []
        elif name in {field.name for field in fields}:
            here = labelled.setdefault(name, [])
            here.extend(filter(None, [rest]))
        elif line and not _DEBRIS.match(line):
            here.append(line)
        elif not line and not any(here is kept for kept in (loose, *labelled.values())):
            here = loose
    return labelled, loose


def _read_label(line: str, query: str) -> tuple[str, str]:
    """The label of *line* and what follows it: behind a colon, or nothing where the line is a heading."""
    heading = line.startswith(("#", "**"))
    # Stars around a number or a label are marks; behind a label they may belong to the text, as in
    # 2**3.
    end = min((place for colon in ":：" if (place := line.find(colon)) >= 0), default=len(line))
    after = line[end + 3 :] if line.startswith("**", end + 1) else line[end + 1 :]
    plain = (line[:end].replace("**", "") + line[end : end + 1] + after).lstrip("#> *")
    for pattern in (_BULLET, _NUMBER):
        mark = pattern.match(plain)
        plain = plain[mark.end() :] if mark else plain
    label, rest = split_label(plain, query)
    if label:
        return label, rest.strip()
    if heading and is_label(plain):
        return plain, ""
    return "", line


def _replace_tags(text: str, fields: Sequence[ReplyField]) -> str:
    """*text* with ``<rewrite>…</rewrite>`` as a labelled line, and other tags as they are."""
    names = {field.name for field in fields}

    def labelled(match: re.Match[str]) -> str:
        name = find_field(match.group(2), fields)
        if name not in names:
            return match.group()
        return "\n" if match.group(1) else f"\n{name.replace('_', ' ')}: "

    return _TAG.sub(labelled, text)


def _arrange(lines: list[str], field: ReplyField) -> list[str]:
    if field.shape == "list":
        return [part for part in split_items("\n".join(lines)) if part]
    if field.shape == "passage":
        return [" ".join(_strip_bold(line.lstrip("#> ")) for line in lines)]
    # Where a model says more than the one line asked for, the line itself is the quoted one or the
    # question.
    return sorted(
        lines,
        key=lambda line: (not _is_set_off(line), not line.rstrip('*"”').endswith(("?", "？", "؟"))),
    )


def _is_set_off(line: str) -> bool:
    bold = _BOLD.match(line)
    return bool(bold and bold.end() == len(line)) or (
        len(line) > 2 and _QUOTES.get(line[0]) == line[-1]
    )


def _share_lines(lines: list[str], fields: Sequence[ReplyField]) -> dict[str, list[str]]:
    """Lines without any label where several fields were asked for: a list is the list, one question is the line."""
    listed = next((field for field in fields if field.shape == "list"), None)
    first = next((field for field in fields if field.shape == "line"), None)
    marked = [line for line in lines if _is_marked(line)]
    if listed and len(marked) > 1:
        return {listed.name: marked}
    if first and len(lines) == 1 and not is_noise(lines[0], ""):
        return {first.name: lines}
    return {}


def _split_numbers(line: str) -> list[str]:
    """*line* cut at "1. … 2. … 3. …", if it counts so from its beginning."""
    starts = [
        match
        for count, match in enumerate(_NUMBERED.finditer(line), 1)
        if int(match.group(1)) == count
    ]
    if len(starts) < 2 or starts[0].start() != 0:
        return [line]
    ends = [match.start() for match in starts[1:]] + [len(line)]
    return [line[match.end() : end].strip() for match, end in zip(starts, ends, strict=True)]


def find_field(key: str, fields: Sequence[ReplyField]) -> str:
    """Returns the name of the field that *key* means, `GENERIC`, `ASIDE`, or ``""`` where it means nothing known."""
    asked = {field.name for field in fields}
    if key in asked:
        return key
    plain = re.sub(r"[\W\d_]+", "", key[:80].casefold())
    if not plain:
        return ""
    if _ASIDE.search(plain):
        return ASIDE
    for name, pattern in _NAMES.items():
        if name in asked and pattern.search(plain):
            return name
    if _GENERIC.match(plain):
        return GENERIC
    return ""


def split_label(line: str, query: str) -> tuple[str, str]:
    """Returns the label that *line* begins with and the rest; no label where those words could be part of a query."""
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
    return bool(parts) and all(
        part in _NAME_WORDS or _ONLY_LABEL_WORDS.fullmatch(part) for part in parts
    )
