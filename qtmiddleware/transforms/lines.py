"""The texts in a reply that is no JSON: numbered, bulleted, labelled, quoted, or just lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.labels import ASIDE, field_of, is_label, split_label
from qtmiddleware.transforms.noise import is_noise, without_lead_in
from qtmiddleware.transforms.refusals import is_refusal

_MARK: Final = re.compile(
    r"^(?:[-*+•‣▪◦·–—]\s+|\(?\d{1,2}[.)]\)?\s+|\(?\d{1,2}[.)](?=[\"“A-ZÀ-Þ])|\d{1,2}\s*[、．）]\s*|\d{1,2}:\s+|"
    r"\(?[a-h]\)\s+|[①-⑳]\s*|Q\d{1,2}[.:)]\s+)"
)
_BOLD: Final = re.compile(r"^\*\*(?=\S)(.{1,400}?)(?<=\S)\*\*")
_TAG: Final = re.compile(r"<(/?)([A-Za-z][\w -]{1,30})>")
_DEBRIS: Final = re.compile(r"^(?:```.*|~~~.*|[{}\[\]\s,]+|\"[\w -]{1,40}\"\s*:.*|[{\[]\s*[\"'{\[].*|</?[\w-]+>)$")
_NUMBERED: Final = re.compile(r"(?:(?<=\s)|^)\(?(\d{1,2})[.)]\s+")
_QUOTES: Final = {'"': '"', "“": "”", "'": "'", "«": "»", "„": "“", "`": "`", "*": "*", "「": "」", "‘": "’"}


def texts_by_field(text: str, fields: Sequence[ReplyField], query: str) -> dict[str, list[str]]:
    """What the lines of *text* give for each field, the likeliest first.

    Lines under a label that names a field are that field's. The others are for the one field that was asked for (the
    standalone form aside), if nothing has its label.
    """
    labelled, loose = _sections(text, fields, query)
    main = [field for field in fields if field.name != "standalone"] or list(fields)
    found = {field.name: _arranged(labelled[field.name], field) for field in fields if field.name in labelled}
    if main[0].name in found or not loose or is_refusal(loose[0], query):
        return found
    if len(main) == 1:
        found[main[0].name] = _arranged(loose, main[0])
    elif not found:
        found |= _shared(loose, main)
    return found


def items(text: str) -> list[str]:
    """*text* as the list it is: its marked lines, its numbered parts, or its lines."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if _MARK.match(line)]
    if len(lines) == 1:
        return _numbered_parts(lines[0])
    return marked or lines


def bare(text: str, query: str) -> str:
    """*text* without its list mark, bold, label, lead-in and outer quotes, as far as these are not the query's own."""
    text = text.strip().lstrip("#> ") if text.lstrip().startswith(("#", ">")) else text.strip()
    mark = _MARK.match(text)
    if mark and text[: mark.end() + 2].casefold() not in query.casefold():
        text = text[mark.end() :]
    text = _BOLD.sub(r"\1", text.strip())
    label, rest = split_label(text, query)
    if label:
        text = rest.lstrip("* ")
    return unquoted(without_lead_in(_BOLD.sub(r"\1", text), query).strip(), query)


def unquoted(text: str, query: str) -> str:
    """*text* without quotes around the whole of it, unless *query* is quoted too."""
    closer = _QUOTES.get(text[:1])
    inner = text[1:-1]
    if len(text) < 3 or text[-1] != closer or closer in inner or text[0] in inner or query[:1] in _QUOTES:
        return text
    return inner.strip()


def _sections(text: str, fields: Sequence[ReplyField], query: str) -> tuple[dict[str, list[str]], list[str]]:
    labelled: dict[str, list[str]] = {}
    loose: list[str] = []
    here = loose
    for line in map(str.strip, _untagged(text, fields).splitlines()):
        label, rest = _label(line, query)
        name = field_of(label, fields) if label else ""
        if name == ASIDE:
            # A remark with its label alone on a line goes on below; what is said behind the label ends there.
            here = here if rest else []
        elif name in {field.name for field in fields}:
            here = labelled.setdefault(name, [])
            here.extend(filter(None, [rest]))
        elif line and not _DEBRIS.match(line):
            here.append(line)
        elif not line and not any(here is kept for kept in (loose, *labelled.values())):
            here = loose
    return labelled, loose


def _label(line: str, query: str) -> tuple[str, str]:
    """The label of *line* and what follows it: behind a colon, or nothing where the line is a heading."""
    heading = line.startswith(("#", "**"))
    plain = line.replace("**", "") if heading or "**" in line[:60] else line
    plain = plain.lstrip("#> *")
    mark = _MARK.match(plain)
    plain = plain[mark.end() :] if mark else plain
    label, rest = split_label(plain, query)
    if label:
        return label, rest.strip()
    if heading and is_label(plain):
        return plain, ""
    return "", line


def _untagged(text: str, fields: Sequence[ReplyField]) -> str:
    """*text* with ``<rewrite>…</rewrite>`` as a labelled line, and other tags as they are."""
    names = {field.name for field in fields}

    def labelled(match: re.Match[str]) -> str:
        name = field_of(match.group(2), fields)
        if name not in names:
            return match.group()
        return "\n" if match.group(1) else f"\n{name.replace('_', ' ')}: "

    return _TAG.sub(labelled, text)


def _arranged(lines: list[str], field: ReplyField) -> list[str]:
    if field.shape == "list":
        return [part for part in items("\n".join(lines)) if part]
    if field.shape == "passage":
        return [" ".join(_BOLD.sub(r"\1", line.lstrip("#> ")) for line in lines)]
    # Where a model says more than the one line asked for, the line itself is the quoted one or the question.
    return sorted(lines, key=lambda line: (not _is_set_off(line), not line.rstrip('*"”').endswith(("?", "？", "؟"))))


def _is_set_off(line: str) -> bool:
    bold = _BOLD.match(line)
    return bool(bold and bold.end() == len(line)) or (len(line) > 2 and _QUOTES.get(line[0]) == line[-1])


def _shared(lines: list[str], fields: Sequence[ReplyField]) -> dict[str, list[str]]:
    """Lines without any label where several fields were asked for: a list is the list, one question is the line."""
    listed = next((field for field in fields if field.shape == "list"), None)
    first = next((field for field in fields if field.shape == "line"), None)
    marked = [line for line in lines if _MARK.match(line)]
    if listed and len(marked) > 1:
        return {listed.name: marked}
    if first and len(lines) == 1 and not is_noise(lines[0], ""):
        return {first.name: lines}
    return {}


def _numbered_parts(line: str) -> list[str]:
    """*line* cut at "1. … 2. … 3. …", if it counts so from its beginning."""
    starts = [match for count, match in enumerate(_NUMBERED.finditer(line), 1) if int(match.group(1)) == count]
    if len(starts) < 2 or starts[0].start() != 0:
        return [line]
    ends = [match.start() for match in starts[1:]] + [len(line)]
    return [line[match.end() : end].strip() for match, end in zip(starts, ends, strict=True)]
