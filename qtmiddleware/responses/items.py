"""One item of a response: its id, score, metadata and text, whatever kind of thing it is.

A reader knows one kind of item. The reader of a type is found by looking at the first item of it and then remembered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import attrgetter
from typing import Any, Final

from qtmiddleware.responses.base import has, own_fields, unknown

_IDS: Final = ("id", "_id", "id_", "chunk_id", "node_id", "uuid", "pk")
_DOCUMENT_IDS: Final = ("document_id", "doc_id")  # often shared by all chunks of one document
_SCORES: Final = ("score", "_score", "score_", "similarity", "relevance_score", "distance", "_distance")
_METADATA: Final = ("metadata", "fields", "payload", "meta", "_source", "properties")
_TEXTS: Final = (
    *("text", "content", "page_content", "chunk_text", "chunk", "passage", "body", "document", "snippet"),
    *("context", "abstract", "description"),
)
_TEXT_NAMES: Final = frozenset(_TEXTS)
_NOT_METADATA: Final = frozenset(
    (*_IDS[:3], *_SCORES[:3], "namespace", "values", "sparse_values", "vector", "embedding")
)
_DECLARING: Final = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__", "attribute_map", "_fields")
_MOST_TYPES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How to read one kind of item, one function for each thing there is to know.

    *namespace* gives what the item itself tells, as it stands there. *names_document* says whether the id may be shared
    by all chunks of a document. *metadata* gives the item's own fields where it keeps no metadata apart, *text* the
    passage outside the metadata, and *holder* the object whose fields are the item's own.
    """

    name: str
    id: Callable[[Any], str | None]
    score: Callable[[Any], float | None]
    metadata: Callable[[Any], Mapping[str, Any]]
    text: Callable[[Any], str | None]
    namespace: Callable[[Any], Any]
    names_document: Callable[[Any], bool]
    holder: Callable[[Any], Any]


def reader_of(item: Any) -> Reader:
    """The reader of *item*; raises `ResponseShapeError` naming its type where there is none."""
    reader = _readers.get(type(item))
    return _inspected(item) if reader is None else reader


def usual_text(fields: Mapping[str, Any]) -> str | None:
    """The first text under one of the usual names, or inside LlamaIndex's JSON in ``_node_content``."""
    if not _TEXT_NAMES.isdisjoint(fields):
        for name in _TEXTS:
            if (found := _passage(fields.get(name))) is not None:
                return found
    packed = fields.get("_node_content")
    if not isinstance(packed, str):
        return None
    try:
        node = json.loads(packed)
    except (ValueError, RecursionError):
        return None
    return usual_text({**node, "_node_content": None}) if isinstance(node, dict) else None


def _inspected(item: Any) -> Reader:
    if isinstance(item, (tuple, list)) and not hasattr(item, "_fields"):
        if not _is_pair(item):
            raise unknown(item, "neither (id, score) nor (document, score) was found in an item, a")
        _front(item)
        return _PAIRS  # a matter of what the item holds, so never remembered for its type
    # Where the class does not say which attributes its objects have, the attributes of the object are part of the key.
    attributes = getattr(item, "__dict__", None)
    declared = attributes is None or any(hasattr(type(item), name) for name in _DECLARING)
    key = type(item) if declared else (type(item), *(attributes or ()))
    if (reader := _readers.get(key)) is None:
        if len(_readers) >= _MOST_TYPES:
            _readers.clear()
        reader = _STRINGS if isinstance(item, str) else _DICTS if isinstance(item, Mapping) else _object_reader(item)
        _readers[key] = reader
    return reader


def _nothing(_item: Any) -> None:
    return None


def _itself(item: Any) -> Any:
    return item


def _identifier(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None if value is None else str(value)


def _passage(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.isspace() else None


def _number(value: Any) -> float | None:
    if type(value) is not float:
        if value is None or isinstance(value, (bool, str, bytes)):
            return None
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return value if isfinite(value) else None


def _first(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if (found := item.get(name)) is not None:
            return found
    return None


def _dict_id(item: Mapping[str, Any]) -> str | None:
    found = _first(item, _IDS)
    return _identifier(_first(item, _DOCUMENT_IDS) if found is None else found)


def _dict_metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _METADATA:
        if name in item and ((found := item[name]) is None or isinstance(found, Mapping)):
            return found or {}
    return {name: value for name, value in item.items() if name not in _NOT_METADATA}


def _is_pair(item: Sequence[Any]) -> bool:
    if len(item) != 2 and not (len(item) == 3 and isinstance(item[2], Mapping | None)):
        return False
    score = item[1]
    return type(score) is float or score is None or (hasattr(score, "__float__") and not isinstance(score, bool))


def _front(item: Sequence[Any]) -> Reader:
    """The reader of what stands before the score."""
    return _IDENTIFIERS if isinstance(item[0], (str, int)) else reader_of(item[0])


def _pair_metadata(item: Sequence[Any]) -> Mapping[str, Any]:
    return (item[2] or {}) if len(item) == 3 else _front(item).metadata(item[0])


_STRINGS: Final = Reader(
    name="strings",
    id=_nothing,
    score=_nothing,
    metadata=lambda _: {},
    text=_passage,
    namespace=_nothing,
    names_document=lambda _: False,
    holder=_itself,
)
_IDENTIFIERS: Final = replace(_STRINGS, name="ids", id=_identifier, text=_nothing)
_DICTS: Final = Reader(
    name="dicts",
    id=_dict_id,
    score=lambda item: _number(_first(item, _SCORES)),
    metadata=_dict_metadata,
    text=usual_text,
    namespace=lambda item: item.get("namespace"),
    names_document=lambda item: "id" not in item and _first(item, _IDS) is None,
    holder=_itself,
)
_PAIRS: Final = Reader(
    name="pairs",
    id=lambda item: _front(item).id(item[0]),
    score=lambda item: _number(item[1]),
    metadata=_pair_metadata,
    text=lambda item: _front(item).text(item[0]),
    namespace=lambda item: _front(item).namespace(item[0]),
    names_document=lambda item: _front(item).names_document(item[0]),
    holder=lambda item: item[0],
)
_readers: Final[dict[Any, Reader]] = {}


def _object_reader(item: Any) -> Reader:
    """Reads objects of *item*'s type by attributes chosen once; a LlamaIndex node is read inside its wrapper."""
    inside = "node." if has(item, "node") else ""
    root = item.node if inside else item
    own_id, document_id = _declared(root, _IDS), _declared(root, _DOCUMENT_IDS)
    texts = [_getter(inside + name) for name in _TEXTS if has(root, name)]
    if own_id is None and document_id is None and not texts:
        raise unknown(item, "neither an id nor a text was found in an item, a")
    id_, score = _getter(inside + (own_id or document_id or "id")), _getter(_declared(item, _SCORES) or "score")
    weak, metadata = own_id is None and document_id is not None, _declared(root, _METADATA)
    return Reader(
        name="documents" if has(root, "page_content") else "objects",
        id=lambda item: _identifier(id_(item)),
        score=lambda item: _number(score(item)),
        metadata=_mapping_in(_getter(inside + metadata)) if metadata else _own_metadata,
        text=_first_passage(texts) if texts else _nothing,
        namespace=_getter("namespace") if has(item, "namespace") else _nothing,
        names_document=(lambda _: weak),
        holder=_getter("node") if inside else _itself,
    )


def _getter(path: str) -> Callable[[Any], Any]:
    """Reads a dotted attribute, ``None`` where it is missing."""
    get = attrgetter(path)

    def read(item: Any) -> Any:
        try:
            return get(item)
        except AttributeError:
            return None

    return read


def _own_metadata(item: Any) -> Mapping[str, Any]:
    return {name: value for name, value in own_fields(item).items() if name not in _NOT_METADATA}


def _mapping_in(get: Callable[[Any], Any]) -> Callable[[Any], Mapping[str, Any]]:
    def read(item: Any) -> Mapping[str, Any]:
        found = get(item)
        return found if isinstance(found, Mapping) else {}

    return read


def _first_passage(getters: Sequence[Callable[[Any], Any]]) -> Callable[[Any], str | None]:
    def read(item: Any) -> str | None:
        return next((found for get in getters if (found := _passage(get(item))) is not None), None)

    return read


def _declared(holder: Any, names: Sequence[str]) -> str | None:
    return next((name for name in names if has(holder, name)), None)
