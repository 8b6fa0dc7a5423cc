"""The texts for each field out of the JSON of a reply, under whatever keys and in whatever shape they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.labels import ASIDE, GENERIC, field_of
from qtmiddleware.transforms.salvage import Cut, Found, Members, json_values

_TEXT_KEY: Final = re.compile(
    r"^(sub_?|search_?|rewritten_?)?(query|question|text|value|content|keyword|term|paraphrase|passage|rewrite|sentence)$",
    re.IGNORECASE,
)
_SCHEMA_KEYS: Final = {"type", "description", "properties", "items", "required"}


@dataclass(slots=True)
class Picked:
    """Texts by field; *named* says which fields were there at all, *refusal* that a key said so."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    generic: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    refusal: bool = False


def pick(found: Sequence[Found], text: str, fields: Sequence[ReplyField]) -> Picked:
    """What the JSON *found* in *text* gives for *fields*.

    A field that is given twice has its last value first, lists are joined. Texts under a name that says nothing
    ("query", a bare list) go to the one field that was asked for, if nothing is there by its own name.
    """
    picked = Picked()
    shapes: dict[str, str] = {wanted.name: wanted.shape for wanted in fields}
    for one in found:
        _walk(one.value, picked, fields, shapes, alone=_stands_alone(one, text))
    main = _main_field(fields)
    if main and main.name not in picked.named:
        spare = picked.generic or (picked.unknown if len(picked.unknown) == 1 else [])
        if spare:
            picked.texts[main.name] = spare
            picked.named.add(main.name)
    return picked


def _main_field(fields: Sequence[ReplyField]) -> ReplyField | None:
    """The field that texts without a name belong to."""
    main = [wanted for wanted in fields if wanted.name != "standalone"] or list(fields)
    lists = [wanted for wanted in main if wanted.shape == "list"]
    return main[0] if len(main) == 1 else next(iter(lists), None)


def _walk(value: Any, picked: Picked, fields: Sequence[ReplyField], shapes: dict[str, str], *, alone: bool) -> None:
    if isinstance(value, Members):
        for key, member in value:
            _take(key, member, picked, fields, shapes, alone=alone)
    elif isinstance(value, list):
        if alone:
            picked.generic.extend(_strings([item for item in value if isinstance(item, str)], "list"))
        for item in value:
            if not isinstance(item, str):
                _walk(item, picked, fields, shapes, alone=alone)


def _take(
    key: str, value: Any, picked: Picked, fields: Sequence[ReplyField], shapes: dict[str, str], *, alone: bool
) -> None:
    name = field_of(key, fields)
    if name in shapes:
        texts = _strings(value, shapes[name])
        before = picked.texts.get(name, [])
        picked.texts[name] = [*before, *texts] if shapes[name] == "list" else [*texts, *before]
        # A value that was cut off says nothing about what would have stood there.
        if not isinstance(value, Cut):
            picked.named.add(name)
    elif name == ASIDE:
        picked.refusal |= key.casefold() == "refusal" and bool(value)
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        for inner in json_values(value):
            _walk(inner.value, picked, fields, shapes, alone=alone)
    elif name == GENERIC and alone and not _is_nested(value):
        picked.generic.extend(_strings(value, "list"))
    elif isinstance(value, str):
        picked.unknown.extend([value] if alone else [])
    else:
        _walk(value, picked, fields, shapes, alone=alone)


def _is_nested(value: Any) -> bool:
    """Whether *value* holds fields of its own rather than a text or texts."""
    return isinstance(value, Members) or (isinstance(value, list) and any(isinstance(v, Members) for v in value))


def _strings(value: Any, shape: str) -> list[str]:
    """The texts in *value*, whatever type it has; only a passage may lack its end."""
    if isinstance(value, Cut):
        return [value] if shape == "passage" else []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Members):
        return _strings_of(value, shape)
    if isinstance(value, list):
        return [text for item in value for text in _strings(item, shape)]
    return []


def _strings_of(members: Members, shape: str) -> list[str]:
    """The texts of an object where a text was asked for: ``{"query": …}``, or ``{"1": …, "2": …}``."""
    if {key for key, _ in members} <= _SCHEMA_KEYS:
        return []
    named = [(key, value) for key, value in members if _TEXT_KEY.match(key)]
    others = [(key, value) for key, value in members if field_of(key, ()) != ASIDE]
    chosen: Iterable[tuple[str, Any]] = named[:1] or others
    return [text for _, value in chosen for text in _strings(value, shape)]


def _stands_alone(one: Found, text: str) -> bool:
    """Whether the JSON is the reply, or has its own place in it, rather than being quoted in a sentence."""
    before = text[text.rfind("\n", 0, one.start) + 1 : one.start].strip()
    line_end = text.find("\n", one.end)
    after = text[one.end : line_end if line_end >= 0 else len(text)].strip()
    return (not before or before.endswith((":", "：", "```json", "```"))) and after.strip("`., ;") == ""
