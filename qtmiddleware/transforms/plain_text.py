"""Read the texts for each field from a reply in plain text.

The lines of the reply may have numbers, bullets, labels or quotation marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.chatter import is_noise, is_refusal, strip_lead_in

# The patterns are searched in this order, in a key in lower case that has only letters.
_FIELD_PATTERNS: Final = {
    name: re.compile("|".join(filter(None, [f"^{name.replace('_', '')}$", row.aliases])))
    for name, row in TEXT_FIELDS.items()
}
_FIELD_WORDS: Final = {
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
# The quantifiers are possessive: there is only one way to divide the spaces, and trying others
# takes minutes.
_LABEL: Final = re.compile(
    r"^([^\W\d_][^:：?？!.\n]{0,50}?)\s*+(?:#\s*+)?(\d{0,2})\s*+[:：]\s*+(.*)$", re.DOTALL
)
_LABEL_IN_OTHER_LANGUAGE: Final = re.compile(
    "改写|重写|改寫|重寫|查询|查詢|问题|問題|子问题|子查询|クエリ|質問|書き換え|重述|释义|段落|关键词|キーワード|질문|쿼리|запрос|вопрос|السؤال|الاستعلام"
)
ASIDE: Final = "aside"
GENERIC: Final = "generic"
_BULLET: Final = re.compile(r"[-*+•‣▪◦·–—]\s+")
# The number of a list's item. It may be emphasised, with or without its full stop.
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
    """Return the texts in *text* by field, the most likely text first.

    A line with a label belongs to the field that the label names, and so do the lines below this
    line. Lines without a label belong to the only field besides the standalone question. If there
    are several such fields and no line has a label, the field is chosen by the bullets, the item
    numbers and the number of lines.
    """
    labelled_lines, unlabelled_lines = _split_labelled_lines(text, fields, query)
    main_fields = [field for field in fields if field.name != "standalone"] or list(fields)
    texts = {
        field.name: _extract_texts(labelled_lines[field.name], field)
        for field in fields
        if field.name in labelled_lines
    }
    # Lines beside a labelled answer are remarks, and a refusal contains no texts.
    if (
        main_fields[0].name in texts
        or not unlabelled_lines
        or is_refusal(unlabelled_lines[0], query)
    ):
        return texts
    if len(main_fields) == 1:
        texts[main_fields[0].name] = _extract_texts(unlabelled_lines, main_fields[0])
    elif not texts:
        texts |= _assign_lines(unlabelled_lines, main_fields)
    return texts


def split_items(text: str) -> list[str]:
    """Return the items of a list that is written as text.

    - A single line is split at the numbers "1.", "2." and so on.
    - If there are several lines, each line with a bullet or a number is an item.
    - If no line has a bullet or a number, every line is an item.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if _has_list_mark(line)]
    if len(lines) == 1:
        return _split_at_numbers(lines[0])
    return marked or lines


def strip_item_numbers(texts: Sequence[str], query: str) -> list[str]:
    """Return *texts* without their item numbers.

    The numbers are removed only if both 1 and 2 occur. Otherwise they may belong to the texts.
    """
    texts_with_digits = [text for text in texts if _DIGIT.search(text)]
    if len(texts_with_digits) < 2 or not {1, 2} <= set(map(_find_item_number, texts_with_digits)):
        return list(texts)
    return [
        _strip_list_mark(_strip_heading_and_bold(text), query, has_numbered_siblings=True)
        for text in texts
    ]


def strip_markup(text: str, query: str) -> str:
    """Return *text* without bullet, item number, bold, label, preamble and outer quotation marks.

    A bullet, number or label that is also in *query* stays. A number above 1 stays unless it is in
    bold or italics, because it may be an ordinal, as in "2. Weltkrieg".
    """
    text = text.strip()
    # Most texts begin with two letters, so they have no bullet or number.
    if not text[:2].isalpha():
        # A number may be in bold, alone or together with its text.
        text = _strip_list_mark(
            _strip_bold(_strip_list_mark(_strip_heading_and_bold(text), query).strip()), query
        )
        text = _strip_bold(text.strip())
    label, rest = split_label(text, query)
    if label:
        text = rest.lstrip("* ")
    return strip_quotes(strip_lead_in(_strip_bold(text), query).strip(), query)


def _strip_heading_and_bold(text: str) -> str:
    """Return *text* without Markdown's heading and quote markers and without surrounding bold."""
    text = text.strip()
    text = text.lstrip("#> ") if text.startswith(("#", ">")) else text
    bold = _BOLD.match(text)
    return bold.group(1) if bold and bold.end() == len(text) else text


def _strip_bold(text: str) -> str:
    """Return *text* without the ``**`` around its first words."""
    return _BOLD.sub(r"\1", text) if text.startswith("**") else text


def _has_list_mark(line: str) -> bool:
    """Return whether *line* begins with a bullet or a number."""
    return bool(_BULLET.match(line) or _NUMBER.match(line))


def _find_item_number(text: str) -> int | None:
    """Return the item number at the start of *text* or in its label; ``None`` without a number."""
    text = _strip_heading_and_bold(text)
    bullet = _BULLET.match(text)
    mark = _NUMBER.match(text, bullet.end() if bullet else 0)
    if mark is None:
        label = _LABEL.match(text) if ":" in text else None
        return (
            int(label.group(2)) if label and label.group(2) and is_label(label.group(1)) else None
        )
    digits = re.search(r"\d+", mark.group())
    return int(digits.group()) if digits else None


def _strip_list_mark(text: str, query: str, *, has_numbered_siblings: bool = False) -> str:
    """Return *text* without its bullet and item number.

    A bullet or number that is also in *query* stays. A number above 1 without bold or italics may
    be an ordinal, so it is removed only if *has_numbered_siblings* is true: the other texts of the
    list have numbers too.
    """
    text = text.strip()
    for pattern in (_BULLET, _NUMBER):
        mark = pattern.match(text)
        if mark is None:
            continue
        opening, folded_query = text[: mark.end() + 2].casefold(), query.casefold()
        if opening in folded_query or (
            pattern is _NUMBER and opening.translate(_EMPHASIS) in folded_query
        ):
            continue
        if (
            pattern is _BULLET
            or has_numbered_siblings
            or mark["emphasis"]
            or (_find_item_number(text) or 0) <= 1
        ):
            text = text[mark.end() :]
    return text


def strip_quotes(text: str, query: str) -> str:
    """Return *text* without the quotation marks around it.

    If *query* begins with a quotation mark too, *text* is returned unchanged.
    """
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


def _split_labelled_lines(
    text: str, fields: Sequence[ReplyField], query: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Split *text* into lines with a label and lines without a label, and drop remarks.

    Returns:
        The lines that belong to a label, by the field that the label names.
        The lines without a label.
    """
    labelled_lines: dict[str, list[str]] = {}
    unlabelled_lines: list[str] = []
    section = unlabelled_lines
    for line in map(str.strip, _replace_tags(text, fields).splitlines()):
        label, rest = _split_label_or_heading(line, query)
        name = find_field_name(label, fields) if label else ""
        if name == ASIDE:
            # If the label of a remark is alone on its line, the remark follows below. Otherwise it
            # ends with the line.
            section = section if rest else []
        elif name in {field.name for field in fields}:
            section = labelled_lines.setdefault(name, [])
            section.extend(filter(None, [rest]))
        elif line and not _DEBRIS.match(line):
            section.append(line)
        # A blank line ends a remark.
        elif not line and not any(
            section is known_section
            for known_section in (unlabelled_lines, *labelled_lines.values())
        ):
            section = unlabelled_lines
    return labelled_lines, unlabelled_lines


def _split_label_or_heading(line: str, query: str) -> tuple[str, str]:
    """Return the label or heading of *line*, and the text after its colon.

    The text is ``""`` for a heading without a colon. Returns ``""`` and *line* if *line* has no
    label.
    """
    heading = line.startswith(("#", "**"))
    # Stars around a number or a label are Markdown. After a label they may belong to the text, as
    # in 2**3.
    end = min((place for colon in ":：" if (place := line.find(colon)) >= 0), default=len(line))
    after = line[end + 3 :] if line.startswith("**", end + 1) else line[end + 1 :]
    unmarked_line = (line[:end].replace("**", "") + line[end : end + 1] + after).lstrip("#> *")
    for pattern in (_BULLET, _NUMBER):
        mark = pattern.match(unmarked_line)
        unmarked_line = unmarked_line[mark.end() :] if mark else unmarked_line
    label, rest = split_label(unmarked_line, query)
    if label:
        return label, rest.strip()
    if heading and is_label(unmarked_line):
        return unmarked_line, ""
    return "", line


def _replace_tags(text: str, fields: Sequence[ReplyField]) -> str:
    """Return *text* with each tag that names a field replaced by a line with a label.

    ``<rewrite>text</rewrite>`` becomes ``rewrite: text``. Other tags stay.
    """
    names = {field.name for field in fields}

    def replace_tag(match: re.Match[str]) -> str:
        name = find_field_name(match.group(2), fields)
        if name not in names:
            return match.group()
        return "\n" if match.group(1) else f"\n{name.replace('_', ' ')}: "

    return _TAG.sub(replace_tag, text)


def _extract_texts(lines: list[str], field: ReplyField) -> list[str]:
    """Return the texts for *field* from its lines.

    The texts depend on the field's shape:

    - ``list``: the items of the list.
    - ``passage``: all lines, joined to one text.
    - ``line``: each line. Lines in bold or quotation marks come first, then questions.
    """
    if field.shape == "list":
        return [part for part in split_items("\n".join(lines)) if part]
    if field.shape == "passage":
        return [" ".join(_strip_bold(line.lstrip("#> ")) for line in lines)]
    # A model may write more than one line. Then the wanted line is usually the quoted one or the
    # question.
    return sorted(
        lines,
        key=lambda line: (
            not _is_bold_or_quoted(line),
            not line.rstrip('*"”').endswith(("?", "？", "؟")),
        ),
    )


def _is_bold_or_quoted(line: str) -> bool:
    """Return whether the whole line is in bold or in quotation marks."""
    bold = _BOLD.match(line)
    return bool(bold and bold.end() == len(line)) or (
        len(line) > 2 and _QUOTES.get(line[0]) == line[-1]
    )


def _assign_lines(lines: list[str], fields: Sequence[ReplyField]) -> dict[str, list[str]]:
    """Assign lines without labels to one of several fields. Returns the lines by field.

    - Several lines with a bullet or a number belong to the first field with the shape ``list``.
    - A single line belongs to the first field with the shape ``line``.
    - In all other cases the result is empty.
    """
    list_field = next((field for field in fields if field.shape == "list"), None)
    line_field = next((field for field in fields if field.shape == "line"), None)
    marked_lines = [line for line in lines if _has_list_mark(line)]
    if list_field and len(marked_lines) > 1:
        return {list_field.name: marked_lines}
    if line_field and len(lines) == 1 and not is_noise(lines[0], ""):
        return {line_field.name: lines}
    return {}


def _split_at_numbers(line: str) -> list[str]:
    """Split a line such as "1. … 2. … 3. …" at its numbers, and return the texts between them.

    If *line* does not begin with 1 or has no 2, it is not split.
    """
    starts = [
        match
        for count, match in enumerate(_NUMBERED.finditer(line), 1)
        if int(match.group(1)) == count
    ]
    if len(starts) < 2 or starts[0].start() != 0:
        return [line]
    ends = [match.start() for match in starts[1:]] + [len(line)]
    return [line[match.end() : end].strip() for match, end in zip(starts, ends, strict=True)]


def find_field_name(key: str, fields: Sequence[ReplyField]) -> str:
    """Return the name of the field that *key* means, in any usual spelling.

    Returns `ASIDE` for the key of a remark ("reason"), `GENERIC` for a general key ("query"), and
    ``""`` for any other key.
    """
    names = {field.name for field in fields}
    if key in names:
        return key
    letters = re.sub(r"[\W\d_]+", "", key[:80].casefold())
    if not letters:
        return ""
    if _ASIDE.search(letters):
        return ASIDE
    for name, pattern in _FIELD_PATTERNS.items():
        if name in names and pattern.search(letters):
            return name
    if _GENERIC.match(letters):
        return GENERIC
    return ""


def split_label(line: str, query: str) -> tuple[str, str]:
    """Return the label at the start of *line*, and the text after the label's colon.

    Returns ``""`` and *line* if there is no label or *query* contains the label.
    """
    if ":" not in line and "：" not in line:
        return "", line
    match = _LABEL.match(line)
    if match and is_label(match.group(1)) and match.group(1).casefold() not in query.casefold():
        return match.group(1), match.group(3)
    return "", line


def is_label(text: str) -> bool:
    """Return whether *text* is a label, such as "Rewritten query" or "改写".

    All words of a label are common in the names of reply fields.
    """
    plain = text.casefold().replace("é", "e").replace("ê", "e").replace("_", " ")
    if _LABEL_IN_OTHER_LANGUAGE.search(plain) and len(plain) <= 30:
        return True
    parts = [part for word in plain.split() for part in word.strip("*#()-,'\"").split("/") if part]
    return bool(parts) and all(
        part in _FIELD_WORDS or _ONLY_LABEL_WORDS.fullmatch(part) for part in parts
    )
