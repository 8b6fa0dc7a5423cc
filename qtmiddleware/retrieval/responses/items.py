"""One item of a response: its id, score, metadata and text, whatever kind of thing it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from types import MemberDescriptorType
from typing import Any, Final

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses.fields import (
    ABSENT,
    Path,
    get_path,
    has_field,
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
_READS_LIKE_A_TEXT: Final = re.compile(r"[\s。、，！？]")  # some scripts put no space between words


class ItemReader:
    """How to read one kind of item; what a kind does not have is not overridden."""

    def id(self, item: Any) -> str | None:  # noqa: ARG002
        """The item's id, ``None`` where it has none."""
        return None

    def names_document(self, item: Any) -> bool:  # noqa: ARG002
        """Whether the id may be shared by all chunks of a document."""
        return False

    def namespace(self, item: Any) -> Any:  # noqa: ARG002
        """The namespace the item itself names, as it stands there."""
        return None

    def score(self, item: Any) -> float | None:  # noqa: ARG002
        """The backend's number, ``None`` where it is absent, not finite or no number."""
        return None

    def score_paths(self, item: Any) -> Sequence[Path]:  # noqa: ARG002
        """The fields the score may stand in, in the order they are read."""
        return ()

    def text(self, item: Any) -> str | None:  # noqa: ARG002
        """The passage outside the metadata."""
        return None

    def metadata(self, item: Any) -> Mapping[str, Any]:  # noqa: ARG002
        """The metadata, not to be written to; the item's own fields where it keeps none apart."""
        return {}

    def holder(self, item: Any) -> Any:
        """The object whose fields are the item's own."""
        return item


def find_reader(item: Any) -> ItemReader:
    """Returns the reader of *item*; raises `ResponseShapeError` naming its type where there is none."""
    if isinstance(item, Mapping):
        return _MAPPINGS
    if isinstance(item, str):
        return _STRINGS
    if isinstance(item, (tuple, list)) and not hasattr(item, "_fields"):
        if not _is_pair(item):
            raise shape_error(item, "neither (id, score) nor (document, score) was found in an item, a")
        _find_front_reader(item)
        return _PAIRS
    if not pick_fields(_OBJECTS.holder(item), NAMES):
        raise shape_error(item, "neither an id nor a text was found in an item, a")
    return _OBJECTS


def read_text(item: Any, text_field: str | None) -> str | None:
    """Returns the item's passage, ``None`` where there is none.

    *text_field* names the one field to look at, in the metadata first and then in the item itself; dots reach into
    nested fields. Without it the usual names are tried, in the item first, and LlamaIndex's ``_node_content`` last.
    """
    reader = find_reader(item)
    if text_field is None:
        return reader.text(item) or find_text(reader.metadata(item))
    roots = (reader.metadata(item), reader.holder(item))
    texts = (_to_text(get_path(root, path)) for root in roots for path in ((text_field,), text_field.split(".")))
    return next((text for text in texts if text is not None), None)


def rescore(item: Any, score: float) -> Any:
    """Returns a copy of *item*, of its own type, whose score is *score*; *item* stays as it is.

    The very same item where it has no number to replace or cannot be copied.
    """
    reader = find_reader(item)
    if reader.score(item) == score:
        return item
    for path in reader.score_paths(item):
        if not is_number(get_path(item, path)):
            continue
        try:
            copied = replace_path(item, path, score)
        except ResponseShapeError:
            continue
        # A class may compute what looks like a field of it.
        if type(copied) is type(item) and reader.score(copied) == score:
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


def find_text(fields: Mapping[str, Any]) -> str | None:
    """Returns the first text under one of the usual names, or inside LlamaIndex's JSON in ``_node_content``."""
    for name in _TEXTS:
        if (text := _to_text(fields.get(name))) is not None:
            return text
    packed = fields.get("_node_content")
    if not isinstance(packed, str):
        return None
    try:
        node = json.loads(packed)
    except (ValueError, RecursionError):
        return None
    return find_text({**node, "_node_content": None}) if isinstance(node, dict) else None


class _StringReader(ItemReader):
    def text(self, item: str) -> str | None:
        return _to_text(item)


class _IdOrTextReader(ItemReader):
    """What stands before the score in a pair: a text where it reads like one, an id otherwise."""

    def id(self, item: Any) -> str | None:
        return None if self.text(item) else _to_id(item)

    def text(self, item: Any) -> str | None:
        return _to_text(item) if isinstance(item, str) and _READS_LIKE_A_TEXT.search(item) else None


class _MappingReader(ItemReader):
    def id(self, item: Mapping[str, Any]) -> str | None:
        own = _get_first(item, _IDS)
        return _to_id(_get_first(item, _DOCUMENT_IDS) if own is None else own)

    def names_document(self, item: Mapping[str, Any]) -> bool:
        return "id" not in item and _get_first(item, _IDS) is None

    def namespace(self, item: Mapping[str, Any]) -> Any:
        return item.get("namespace")

    def score(self, item: Mapping[str, Any]) -> float | None:
        return to_number(_get_first(item, SCORES))

    def score_paths(self, item: Mapping[str, Any]) -> Sequence[Path]:
        return [(name,) for name in SCORES if item.get(name) is not None][:1]

    def text(self, item: Mapping[str, Any]) -> str | None:
        return find_text(item)

    def metadata(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in _METADATA:
            if name in item and ((value := item[name]) is None or isinstance(value, Mapping)):
                return value or {}
        return {name: value for name, value in item.items() if name not in _NOT_METADATA}


class _PairReader(ItemReader):
    """An (id, score) or (document, score) pair, or (id, score, metadata): what stands in front has the rest."""

    def id(self, item: Sequence[Any]) -> str | None:
        return _find_front_reader(item).id(item[0])

    def names_document(self, item: Sequence[Any]) -> bool:
        return _find_front_reader(item).names_document(item[0])

    def namespace(self, item: Sequence[Any]) -> Any:
        return _find_front_reader(item).namespace(item[0])

    def score(self, item: Sequence[Any]) -> float | None:
        return to_number(item[1])

    def score_paths(self, item: Sequence[Any]) -> Sequence[Path]:  # noqa: ARG002
        return ((1,),)

    def text(self, item: Sequence[Any]) -> str | None:
        return _find_front_reader(item).text(item[0])

    def metadata(self, item: Sequence[Any]) -> Mapping[str, Any]:
        return (item[2] or {}) if len(item) == 3 else _find_front_reader(item).metadata(item[0])

    def holder(self, item: Sequence[Any]) -> Any:
        return item[0]


class _ObjectReader(ItemReader):
    """An object with attributes; a LlamaIndex node is read inside its wrapper."""

    def id(self, item: Any) -> str | None:
        root = self.holder(item)
        names = pick_fields(root, (*_IDS, *_DOCUMENT_IDS))
        return _to_id(getattr(root, names[0], None)) if names else None

    def names_document(self, item: Any) -> bool:
        root = self.holder(item)
        return not pick_fields(root, _IDS) and bool(pick_fields(root, _DOCUMENT_IDS))

    def namespace(self, item: Any) -> Any:
        return _get_attribute(item, "namespace")

    def score(self, item: Any) -> float | None:
        numbers = (get_path(item, path) for path in self._number_paths(item))
        return to_number(next((it for it in numbers if it is not None and it is not ABSENT), None))

    def score_paths(self, item: Any) -> Sequence[Path]:
        return [path for path in self._number_paths(item) if len(path) > 1 or not _runs_code(type(item), path[0])]

    def _number_paths(self, item: Any) -> list[tuple[str, ...]]:
        names = [(name,) for name in pick_fields(item, SCORES)]
        if names or not has_field(item, "metadata") or isinstance(_get_attribute(item, "metadata"), Mapping):
            return list(names)
        # Weaviate keeps the numbers in the metadata, which is an object there, and the user's fields beside it.
        return [("metadata", name) for name in SCORES]

    def text(self, item: Any) -> str | None:
        root = self.holder(item)
        texts = (_to_text(getattr(root, name, None)) for name in pick_fields(root, _TEXTS))
        return next((text for text in texts if text is not None), None)

    def metadata(self, item: Any) -> Mapping[str, Any]:
        root = self.holder(item)
        names = pick_fields(root, _METADATA)
        if not names:
            return {name: value for name, value in list_fields(item).items() if name not in _NOT_METADATA}
        return next((value for name in names if isinstance(value := getattr(root, name, None), Mapping)), {})

    def holder(self, item: Any) -> Any:
        return item.node if has_field(item, "node") else item


_STRINGS: Final = _StringReader()
_IDS_OR_TEXTS: Final = _IdOrTextReader()
_MAPPINGS: Final = _MappingReader()
_PAIRS: Final = _PairReader()
_OBJECTS: Final = _ObjectReader()


def _is_pair(item: Sequence[Any]) -> bool:
    if len(item) != 2 and not (len(item) == 3 and isinstance(item[2], Mapping | None)):
        return False
    return item[1] is None or is_number(item[1])


def _find_front_reader(pair: Sequence[Any]) -> ItemReader:
    return _IDS_OR_TEXTS if isinstance(pair[0], (str, int)) else find_reader(pair[0])


def _get_first(item: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value for name in names if (value := item.get(name)) is not None), None)


def _get_attribute(holder: Any, name: str) -> Any:
    return getattr(holder, name, None) if has_field(holder, name) else None


def _to_id(value: Any) -> str | None:
    return value or None if isinstance(value, str) else None if value is None else str(value)


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.isspace() else None


def _runs_code(kind: type, name: str) -> bool:
    """Whether setting the attribute runs code of the class, which may write to what a copy shares with the original."""
    own = getattr(kind, name, None)
    settable = hasattr(type(own), "__set__") and getattr(own, "fset", own) is not None
    return settable and not isinstance(own, MemberDescriptorType) and not issubclass(kind, tuple)
