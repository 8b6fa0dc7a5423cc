"""One item of a response: its id, score, metadata and text, whatever kind of thing it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from types import MemberDescriptorType
from typing import Any, Final

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses.fields import (
    ABSENT,
    Path,
    get_field,
    get_path,
    has_field,
    is_array,
    is_number,
    list_fields,
    pick_fields,
    replace_path,
    shape_error,
)
from qtmiddleware.types import DEFAULT_NAMESPACE

_IDS: Final = ("id", "_id", "id_", "chunk_id", "node_id", "uuid", "pk")
_DOCUMENT_IDS: Final = ("document_id", "doc_id")  # often shared by all chunks of one document
SCORES: Final = ("score", "_score", "score_", "similarity", "relevance_score", "certainty", "distance", "_distance")
_METADATA: Final = ("metadata", "fields", "payload", "meta", "_source", "properties")
_TEXTS: Final = (
    *("text", "content", "page_content", "chunk_text", "chunk", "passage", "body", "document", "snippet"),
    *("raw_text", "page_text", "passage_text", "document_text", "node_text", "text_content", "chunk_content"),
    *("contents", "context", "abstract", "description", "answer"),
)
_NOT_METADATA: Final = frozenset(
    (*_IDS[:3], *SCORES[:3], "namespace", "values", "sparse_values", "vector", "embedding")
)
NAMES: Final = (*_IDS, *_DOCUMENT_IDS, *_TEXTS)
_NUMBER_CHARS: Final = 12  # of a 32-bit float in JSON, with its comma
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w-]{0,59}")
_READS_LIKE_A_TEXT: Final = re.compile(r"[\s。、，！？]")  # some scripts put no space between words


def check_item(item: Any) -> None:
    """Raises `ResponseShapeError` naming the type of *item* where neither an id nor a text can be read of it."""
    if isinstance(item, Mapping | str):
        return
    if not _is_pair(item):
        if not pick_fields(_find_holder(item), NAMES):
            raise shape_error(item, "neither an id nor a text was found in an item, a")
        return
    has_score = len(item) in (2, 3) and (item[1] is None or is_number(item[1]))
    if not has_score or not isinstance((*item, None)[2], Mapping | None):
        raise shape_error(item, "neither (id, score) nor (document, score) was found in an item, a")
    if not isinstance(item[0], (str, int)):
        check_item(item[0])


def read_id(item: Any) -> str | None:
    """Returns the item's id, ``None`` where it has none."""
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return str(holder) or None if _is_id(item) else None
    id_ = _find_first(holder, (*_IDS, *_DOCUMENT_IDS))
    return None if id_ is None else str(id_) or None


def names_document(item: Any) -> bool:
    """Whether the item's id may be shared by all chunks of a document."""
    holder = _find_holder(item)
    return not isinstance(holder, (str, int)) and _find_first(holder, _IDS) is None


def read_namespace(item: Any, default: str) -> str:
    """Returns the namespace the item itself names, *default* where it names none."""
    own = get_field(_find_holder(item), "namespace")
    return default if own is ABSENT or own is None else to_namespace(own)


def read_score(item: Any) -> float | None:
    """Returns the backend's number, ``None`` where it is absent, not finite or no number."""
    values = (get_path(item, path) for path in _find_score_paths(item))
    return to_number(next((it for it in values if it is not None and it is not ABSENT), None))


def read_metadata(item: Any) -> Mapping[str, Any]:
    """Returns the item's metadata, not to be written to; its own other fields where it keeps none apart."""
    if _is_pair(item) and len(item) == 3:
        return item[2] or {}
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return {}
    if kept := [value for value in _list_values(holder, _METADATA) if value is None or isinstance(value, Mapping)]:
        return next(filter(None, kept), {})
    fields = holder if isinstance(holder, Mapping) else list_fields(holder)
    return {name: value for name, value in fields.items() if name not in _NOT_METADATA}


def read_text(item: Any, text_field: str | None) -> str | None:
    """Returns the item's passage, ``None`` where there is none.

    *text_field* names the one field to look at, in the metadata first and then in the item itself; dots reach into
    nested fields. Without it the usual names are tried, in the item first, and LlamaIndex's ``_node_content`` last.
    """
    holder = _find_holder(item)
    if text_field is None:
        if isinstance(holder, (str, int)):
            return _find_text(read_metadata(item)) if _is_id(item) else _to_text(holder)
        return _find_text(holder) or _find_text(read_metadata(item))
    roots = (read_metadata(item), holder)
    texts = (_to_text(get_path(root, path)) for root in roots for path in ((text_field,), text_field.split(".")))
    return next((text for text in texts if text is not None), None)


def holds_text(item: Any, text_field: str | None) -> bool:
    """Whether a passage can be read of *item*; a bare word is taken for an id."""
    text = read_text(item, text_field)
    return text is not None and (text is not _find_holder(item) or bool(_READS_LIKE_A_TEXT.search(text)))


def estimate_chars(item: Any) -> int:
    """Returns about how many characters the item's texts and numbers take in a response."""
    # What stands in front of a pair may be a bare text, and the fields behind it.
    rest: list[Any] = [_list_all(item) or (_find_holder(item), read_metadata(item))]
    count, seen = 0, set[int]()
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            count += len(value)
        elif is_array(value):
            count += int(value.size) * _NUMBER_CHARS
        elif is_number(value):
            count += _NUMBER_CHARS
        elif isinstance(value, (list, tuple)) and value and is_number(value[0]):
            count += len(value) * _NUMBER_CHARS  # an embedding has a thousand of them
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            rest.extend(value.values() if isinstance(value, Mapping) else value)
    return count


def find_text_field(item: Any, text_field: str | None) -> str | None:
    """Returns the field that `read_text` reads the passage from, ``""`` for the item itself, ``None`` without one."""
    text = read_text(item, text_field)
    if text is None or text_field is not None:
        return None if text is None else text_field
    holder = _find_holder(item)
    if text is holder:
        return ""
    for before, root in (("", holder), ("metadata.", read_metadata(item))):
        for name in _TEXTS:
            value = get_field(root, name)
            if isinstance(value, str) and value == text:
                return before + name
    return "_node_content"


def describe_missing_text(items: Sequence[Any], text_field: str | None) -> tuple[str, str]:
    """Returns what stands in place of the text in *items*, which hold none, and how to mend that.

    Fields are named whose value reads like a text, and no content.
    """
    if all(isinstance(_find_holder(item), str | int) and not read_metadata(item) for item in items):
        return "the passages are ids without a text", "return the texts with them, as {'id', 'score', 'text'}"
    where = "a usual name" if text_field is None else f"keywordEvidence.textField {text_field!r}"
    lengths: Counter[str] = Counter()
    for item in items:
        lengths.update(_measure_texts(_list_all(item)) | _measure_texts(read_metadata(item)))
    if lengths:
        name = max(lengths, key=lambda it: (lengths[it], it))
        setting = f'config={{"keywordEvidence": {{"textField": "{name}"}}}}'
        return f"the passages have no text under {where}, but one under {name!r}", f"set {setting}"
    if not any(read_metadata(item) for item in items):
        return "the passages have neither a text nor metadata", "ask for them, with Pinecone include_metadata=True"
    advice = "store it in the metadata, or name its field in keywordEvidence.textField"
    return f"the passages have no text under {where}", advice


def rescore(item: Any, score: float) -> Any:
    """Returns a copy of *item*, of its own type, whose score is *score*; *item* stays as it is.

    The very same item where it has no number to replace or cannot be copied.
    """
    if read_score(item) == score:
        return item
    for path in _find_score_paths(item):
        if _runs_code(type(item), str(path[-1])) or not is_number(get_path(item, path)):
            continue
        try:
            copied = replace_path(item, path, score)
        except ResponseShapeError:
            continue
        # A class may compute what looks like a field of it.
        if type(copied) is type(item) and read_score(copied) == score:
            return copied
    return item


def to_namespace(value: Any) -> str:
    """Returns the name of the namespace *value* stands for."""
    return DEFAULT_NAMESPACE if value is None or value is ABSENT or value == "" else str(value)


def to_number(value: Any) -> float | None:
    """Returns *value* as a finite float, ``None`` where it is no such number."""
    if isinstance(value, (bool, str, bytes)):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _is_pair(item: Any) -> bool:
    """Whether *item* is (id, score), (document, score) or (id, score, metadata)."""
    return isinstance(item, (tuple, list)) and not hasattr(item, "_fields")


def _is_id(item: Any) -> bool:
    """Whether *item* is a pair with an id in front: what reads like a text is one."""
    return _is_pair(item) and not (isinstance(item[0], str) and _READS_LIKE_A_TEXT.search(item[0]))


def _find_holder(item: Any) -> Any:
    """What has the item's own fields: the item, what stands in front of a pair, the node in LlamaIndex's wrapper."""
    if _is_pair(item):
        return _find_holder(item[0])
    return item.node if has_field(item, "node") else item


def _find_score_paths(item: Any) -> Sequence[Path]:
    """The fields the score may stand in, in the order they are read."""
    if _is_pair(item):
        return [(1,)]
    if isinstance(item, Mapping):
        return [(name,) for name in SCORES if item.get(name) is not None]
    names = pick_fields(item, SCORES)
    if not names and has_field(item, "metadata") and not isinstance(item.metadata, Mapping):
        # Weaviate keeps the numbers in the metadata, which is an object there, and the user's fields beside it.
        return [("metadata", name) for name in SCORES]
    return [(name,) for name in names]


def _find_text(holder: Any) -> str | None:
    """The first text under one of the usual names, or inside LlamaIndex's JSON in ``_node_content``."""
    texts = (_to_text(value) for value in _list_values(holder, _TEXTS))
    if (text := next((it for it in texts if it is not None), None)) is not None:
        return text
    packed = get_field(holder, "_node_content")
    if not isinstance(packed, str):
        return None
    try:
        node = json.loads(packed)
    except (ValueError, RecursionError):
        return None
    return _find_text({**node, "_node_content": None}) if isinstance(node, dict) else None


def _list_values(holder: Any, names: tuple[str, ...]) -> list[Any]:
    """What stands under those of *names* that are there."""
    if isinstance(holder, Mapping):
        return [holder[name] for name in names if name in holder]
    return [getattr(holder, name, None) for name in pick_fields(holder, names)]


def _list_all(item: Any) -> Mapping[str, Any]:
    """All fields of the item itself, by name."""
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return {}
    return holder if isinstance(holder, Mapping) else list_fields(holder)


def _measure_texts(fields: Any, depth: int = 2) -> dict[str, int]:
    """How long those *fields* are that read like a text, by name, with dots for what lies inside others."""
    lengths: dict[str, int] = {}
    for name, value in fields.items() if isinstance(fields, Mapping) else ():
        if not (isinstance(name, str) and _FIELD_NAME.fullmatch(name)) or name in _NOT_METADATA:
            continue
        if isinstance(value, str) and len(value.split()) > 1:
            lengths[name] = len(value)
        elif depth > 1 and name not in _METADATA:
            lengths.update({f"{name}.{inner}": it for inner, it in _measure_texts(value, depth - 1).items()})
    return lengths


def _find_first(holder: Any, names: tuple[str, ...]) -> Any:
    """The first of *names* that holds something."""
    return next((value for value in _list_values(holder, names) if value is not None), None)


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.isspace() else None


def _runs_code(kind: type, name: str) -> bool:
    """Whether setting the attribute runs code of the class, which may write to what a copy shares with the original."""
    own = getattr(kind, name, None)
    settable = hasattr(type(own), "__set__") and getattr(own, "fset", own) is not None
    return settable and not isinstance(own, MemberDescriptorType) and not issubclass(kind, tuple)
