"""One item of a response: its id, score, metadata and text, whatever kind of thing it is.

A reader knows one kind of item. The reader of a type is found by looking at the first item of it and then remembered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import attrgetter
from types import MemberDescriptorType
from typing import Any, Final

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses.base import (
    ABSENT,
    Path,
    follow,
    has,
    is_number,
    own_fields,
    replaced,
    step,
    unknown,
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
_TEXT_NAMES: Final = frozenset(_TEXTS)
_NOT_METADATA: Final = frozenset(
    (*_IDS[:3], *SCORES[:3], "namespace", "values", "sparse_values", "vector", "embedding")
)
_DECLARING: Final = ("__struct_fields__", "__dataclass_fields__", "__pydantic_fields__", "attribute_map", "_fields")
NAMES: Final = frozenset((*_IDS, *_DOCUMENT_IDS, *_TEXTS))
_MOST_TYPES: Final = 512
_READS_LIKE_A_TEXT: Final = re.compile(r"[\s。、，！？]")  # some scripts put no space between words


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How to read one kind of item, one function for each thing there is to know.

    *namespace* gives what the item itself tells, as it stands there. *names_document* says whether the id may be shared
    by all chunks of a document. *metadata* gives the item's own fields where it keeps no metadata apart, *text* the
    passage outside the metadata, and *holder* the object whose fields are the item's own. *places* are the fields that
    the score may stand in, in the order they are read.
    """

    name: str
    id: Callable[[Any], str | None]
    score: Callable[[Any], float | None]
    metadata: Callable[[Any], Mapping[str, Any]]
    text: Callable[[Any], str | None]
    namespace: Callable[[Any], Any]
    names_document: Callable[[Any], bool]
    holder: Callable[[Any], Any]
    places: Callable[[Any], Sequence[Path]]


class ItemShape:
    """What every shape knows of its items, since these are of the usual kinds."""

    def __init__(self, name: str) -> None:
        self.name = name

    def namespace(self, response: Any) -> str:
        """The namespace the response tells."""
        return namespace_name(step(response, "namespace"))

    def id(self, item: Any) -> str | None:
        """The item's id."""
        return reader_of(item).id(item)

    def score(self, item: Any) -> float | None:
        """The item's score."""
        return reader_of(item).score(item)

    def metadata(self, item: Any) -> Mapping[str, Any]:
        """The item's metadata."""
        return reader_of(item).metadata(item)

    def rescore(self, item: Any, score: float) -> Any:
        """A copy of *item* with that score; *item* itself where it has none or cannot be copied."""
        reader = reader_of(item)
        if reader.score(item) == score:
            return item
        for place in reader.places(item):
            if not is_number(follow(item, place)):
                continue
            try:
                twin = replaced(item, place, score)
            except ResponseShapeError:
                continue
            # A class may compute what looks like a field of it.
            if type(twin) is type(item) and reader.score(twin) == score:
                return twin
        return item


def namespace_name(found: Any) -> str:
    """The namespace *found* stands for."""
    return DEFAULT_NAMESPACE if found is None or found is ABSENT or found == "" else str(found)


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


def _no_places(_item: Any) -> Sequence[Path]:
    return ()


def _text_in_pair(value: Any) -> str | None:
    return value if isinstance(value, str) and _READS_LIKE_A_TEXT.search(value) and not value.isspace() else None


def _id_in_pair(value: Any) -> str | None:
    return None if _text_in_pair(value) else _identifier(value)


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
    return item[1] is None or is_number(item[1])


def _front(item: Sequence[Any]) -> Reader:
    """The reader of what stands before the score."""
    return _IDS_OR_TEXTS if isinstance(item[0], (str, int)) else reader_of(item[0])


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
    places=_no_places,
)
_IDS_OR_TEXTS: Final = replace(_STRINGS, name="ids or texts", id=_id_in_pair, text=_text_in_pair)
_DICTS: Final = Reader(
    name="dicts",
    id=_dict_id,
    score=lambda item: _number(_first(item, SCORES)),
    metadata=_dict_metadata,
    text=usual_text,
    namespace=lambda item: item.get("namespace"),
    names_document=lambda item: "id" not in item and _first(item, _IDS) is None,
    holder=_itself,
    places=lambda item: [(name,) for name in SCORES if item.get(name) is not None][:1],
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
    places=lambda _: ((1,),),
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
    id_, weak = _getter(inside + (own_id or document_id or "id")), own_id is None and document_id is not None
    metadata = [_getter(inside + name) for name in _METADATA if has(root, name)]
    names = [name for name in SCORES if has(item, name)]
    places: list[Path] = [(name,) for name in names if not _runs_code(type(item), name)]
    score = _number_among(names, _itself)
    if not names and has(item, "metadata"):
        # Weaviate keeps the numbers in the metadata, which is an object there, and the user's fields beside it.
        score, places = _number_among(SCORES, _getter("metadata")), [("metadata", name) for name in SCORES]
    return Reader(
        name="documents" if has(root, "page_content") else "objects",
        id=lambda item: _identifier(id_(item)),
        score=score,
        metadata=_first_mapping(metadata) if metadata else _own_metadata,
        text=_first_passage(texts) if texts else _nothing,
        namespace=_getter("namespace") if has(item, "namespace") else _nothing,
        names_document=(lambda _: weak),
        holder=_getter("node") if inside else _itself,
        places=lambda _: places,
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


def _first_mapping(getters: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Mapping[str, Any]]:
    def read(item: Any) -> Mapping[str, Any]:
        return next((found for get in getters if isinstance(found := get(item), Mapping)), {})

    return read


def _number_among(names: Sequence[str], holder: Callable[[Any], Any]) -> Callable[[Any], float | None]:
    """Reads the first of the attributes *names* that is not ``None``; in a mapping the names are the user's own."""
    if len(names) == 1 and holder is _itself:
        only = _getter(names[0])
        return lambda item: _number(only(item))

    def read(item: Any) -> float | None:
        root = holder(item)
        if isinstance(root, Mapping):
            return None
        found = (step(root, name) for name in names)
        return _number(next((value for value in found if value is not None and value is not ABSENT), None))

    return read


def _runs_code(kind: type, name: str) -> bool:
    """Whether setting the attribute runs code of the class, which may write to what a copy shares with the original."""
    own = getattr(kind, name, None)
    settable = hasattr(type(own), "__set__") and getattr(own, "fset", own) is not None
    return settable and not isinstance(own, MemberDescriptorType) and not issubclass(kind, tuple)


def _first_passage(getters: Sequence[Callable[[Any], Any]]) -> Callable[[Any], str | None]:
    def read(item: Any) -> str | None:
        return next((found for get in getters if (found := _passage(get(item))) is not None), None)

    return read


def _declared(holder: Any, names: Sequence[str]) -> str | None:
    return next((name for name in names if has(holder, name)), None)
