"""One item of a response: its id, score, metadata and text, whatever kind of thing it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MemberDescriptorType
from typing import Any, Final

from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses.fields import (
    ABSENT,
    MAPPING,
    NAMED,
    OBJECT,
    PLAIN,
    ROW,
    Names,
    Path,
    find_kind,
    get_field,
    get_path,
    has_field,
    is_array,
    is_number,
    list_fields,
    pick_fields,
    replace_path,
    shape_error,
    to_number,
)
from qtmiddleware.retrieval.responses.rows import (
    PlainRow,
    is_id,
    is_pair,
    may_be_scores,
    reads_like_text,
)
from qtmiddleware.types import DEFAULT_NAMESPACE

IDS: Final = Names(("id", "_id", "id_", "chunk_id", "node_id", "uuid", "pk"))
_DOCUMENT_IDS: Final = Names(
    ("document_id", "doc_id")
)  # often shared by all chunks of one document
_ALL_IDS: Final = Names((*IDS, *_DOCUMENT_IDS))
SCORES: Final = Names(
    (
        *(
            "score",
            "_score",
            "score_",
            "similarity",
            "relevance_score",
            "certainty",
            "distance",
            "_distance",
        ),
        *(
            "relevance",
            "rrf_score",
            "search_score",
            "@search.score",
            "cosine_similarity",
            "cosine_distance",
        ),
        *("vector_score", "sim", "dist"),
    )
)
METADATA: Final = Names(("metadata", "fields", "payload", "meta", "_source", "properties"))
TEXTS: Final = Names(
    (
        *(
            "text",
            "content",
            "page_content",
            "chunk_text",
            "chunk",
            "passage",
            "body",
            "document",
            "snippet",
        ),
        *(
            "raw_text",
            "page_text",
            "passage_text",
            "document_text",
            "node_text",
            "text_content",
            "chunk_content",
        ),
        *("contents", "context", "abstract", "description", "answer"),
    )
)
_NOT_METADATA: Final = frozenset(
    (*IDS[:3], *SCORES[:3], "namespace", "values", "sparse_values", "vector", "embedding")
)
NAMES: Final = Names((*_ALL_IDS, *TEXTS))
_NODE: Final = "node"  # what LlamaIndex's wrapper has, with the item's own fields
_TELLING: Final = Names((_NODE, *NAMES))
_NUMBER_CHARS: Final = 12  # of a 32-bit float in JSON, with its comma
_ID_NAME: Final = re.compile(r"(?:id|key|ref|ur[il])$", re.IGNORECASE)
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w-]{0,59}")


def check_item(item: Any, text_field: str | None = None, id_field: str | None = None) -> None:
    """Raises `ResponseShapeError` naming the type of *item* if it holds no id, no text and nothing that may be one."""
    kind = find_kind(type(item))
    if kind is MAPPING or isinstance(item, str):
        return
    if kind is PLAIN:
        if not is_pair(item):
            raise shape_error(item, "an item must be (id, score) or (document, score), not")
        if not isinstance(item[0], (str, int)):
            check_item(item[0], text_field, id_field)
        return
    holder = _find_holder(item)
    if find_kind(type(holder)) is MAPPING or pick_fields(holder, NAMES):
        return
    if (
        read_text(item, text_field) is None
        and read_id(item, id_field) is None
        and not _measure_item(item)
    ):
        raise shape_error(item, "neither an id nor a text was found in an item of type")


def may_be_passage(item: Any, text_field: str | None, id_field: str | None) -> bool:
    """Whether *item* has an id, a text or a field that reads like one, which other lists' items may not have."""
    try:
        check_item(item, text_field, id_field)
    except ResponseShapeError:
        return False
    if read_id(item, id_field) is not None or read_text(item, text_field) is not None:
        return True
    return bool(_measure_item(item))


def print_item(item: Any) -> str:
    """Returns an item without id and text as it prints, without its numbers: they may say how well it fits."""
    fields = _list_all(item)
    if not fields:
        return repr(item)
    return repr(
        {
            name: it
            for name, it in fields.items()
            if name not in SCORES and (not is_number(it) or hasattr(it, "__index__"))
        }
    )


def read_id(item: Any, id_field: str | None = None) -> str | None:
    """Returns the item's id, ``None`` if it has none; *id_field* names its field as `read_text`'s *text_field* does."""
    return _read_id(item, id_field, _ALL_IDS)


def read_own_id(item: Any, id_field: str | None = None) -> str | None:
    """Returns the item's id as `read_id` does, but none that all chunks of a document may share."""
    return _read_id(item, id_field, IDS)


def _read_id(item: Any, id_field: str | None, names: Names) -> str | None:
    if id_field is not None:
        id_ = next((value for value in _read_named(item, id_field) if value is not None), None)
        return None if id_ is None else str(id_) or None
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return str(holder) or None if _is_id(item) else None
    id_ = _find_first(holder, names)
    return None if id_ is None else str(id_) or None


def read_namespace(item: Any, default: str) -> str:
    """Returns the namespace the item itself names, *default* where it names none."""
    own = get_field(_find_holder(item), "namespace")
    return default if own is ABSENT or own is None else to_namespace(own)


def read_score(item: Any, score_field: str | None = None) -> float | None:
    """Returns the backend's number, ``None`` if it is absent, not finite or no number.

    *score_field* names its field as `read_text`'s *text_field* does.
    """
    for value in _read_scores(item) if score_field is None else _read_named(item, score_field):
        if is_number(value):
            return to_number(value)
    return None


def read_metadata(item: Any) -> Mapping[str, Any]:
    """Returns the item's metadata, not to be written to; its own other fields where it keeps none apart."""
    if find_kind(type(item)) is PLAIN and len(item) == 3:
        return item[2] or {}
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return {}
    has_metadata = False
    for value in _list_values(holder, METADATA):
        if value is None or find_kind(type(value)) is MAPPING:
            has_metadata = True
            if value:
                return value  # type: ignore[no-any-return]
    if has_metadata:
        return {}
    fields = holder if isinstance(holder, Mapping) else list_fields(holder)
    return {name: value for name, value in fields.items() if name not in _NOT_METADATA}


def read_text(item: Any, text_field: str | None) -> str | None:
    """Returns the item's passage, ``None`` where there is none.

    *text_field* names the one field to look at, in the metadata first and then in the item itself;
    dots reach into nested fields. Without it the usual names are tried, in the item first, and
    LlamaIndex's ``_node_content`` last.
    """
    if text_field is not None:
        return next(
            (text for text in map(_to_text, _read_named(item, text_field)) if text is not None),
            None,
        )
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return find_text(read_metadata(item)) if _is_id(item) else _to_text(holder)
    return find_text(holder) or find_text(read_metadata(item))


def holds_text(item: Any, text_field: str | None) -> bool:
    """Whether a passage can be read of *item*; a bare word is taken for an id."""
    text = read_text(item, text_field)
    return text is not None and (text is not _find_holder(item) or reads_like_text(text))


def estimate_chars(item: Any) -> int:
    """Returns about how many characters the item's texts and numbers take in a response."""
    # What stands in front of a pair may be a bare text, and the fields behind it.
    rest: list[Any] = [_list_all(item) or (_find_holder(item), read_metadata(item))]
    count, seen = 0, set[int]()
    while rest:
        value = rest.pop()
        kind = type(value)
        if isinstance(value, str):
            count += len(value)
        elif kind is float or kind is int:
            count += _NUMBER_CHARS
        elif kind is dict:
            if id(value) not in seen:
                seen.add(id(value))
                rest.extend(value.values())
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
    # What keeps no metadata apart, as a document of Pinecone does, has these fields itself.
    outer = "metadata." if any(True for _ in _list_values(holder, METADATA)) else ""
    for before, root in (("", holder), (outer, read_metadata(item))):
        for name in TEXTS:
            value = get_field(root, name)
            if isinstance(value, str) and value == text:
                return before + name
    return "_node_content"


def describe_missing_text(items: Sequence[Any], text_field: str | None) -> tuple[str, str]:
    """Returns what stands in place of the text in *items*, which hold none, and how to mend that.

    Fields are named whose value reads like a text, and no content.
    """
    if all(isinstance(_find_holder(item), str | int) and not read_metadata(item) for item in items):
        return (
            "the passages are ids without texts",
            "return the texts too, for example as {'id', 'score', 'text'}",
        )
    where = (
        "a common field name" if text_field is None else f"keywordEvidence.textField {text_field!r}"
    )
    lengths: Counter[str] = Counter()
    for item in items:
        lengths.update(_measure_item(item))
    if lengths:
        name = max(lengths, key=lambda it: (lengths[it], it))
        setting = f'config={{"keywordEvidence": {{"textField": "{name}"}}}}'
        return f"the passages have no text under {where}, but {name!r} holds text", f"set {setting}"
    if not any(read_metadata(item) for item in items):
        return (
            "the passages have neither a text nor metadata",
            (
                "request them: in Pinecone with include_metadata=True, or with include_fields=[...]"
                " in a document search"
            ),
        )
    advice = "store the text in the metadata, or name its field in keywordEvidence.textField"
    return f"the passages have no text under {where}", advice


def suggest_id_field(items: Sequence[Any]) -> str | None:
    """Returns the name of a field that may hold ids, by its name and as no two of *items* hold the same in it.

    ``""`` if no field does, ``None`` if the items have no fields.
    """
    if (columns := _collect_columns(items)) is None:
        return None
    named = (name for name in columns if _ID_NAME.search(name))
    return next((name for name in named if _are_different_words(columns[name])), "")


def suggest_score_field(items: Sequence[Any]) -> str | None:
    """Returns the name of a field that may hold scores: its numbers, not all whole, only rise or only fall.

    ``""`` if no field does, ``None`` if the items have no fields.
    """
    if (columns := _collect_columns(items)) is None:
        return None
    return next((name for name, column in columns.items() if may_be_scores(column)), "")


def rescore(item: Any, score: float, score_field: str | None = None) -> Any:
    """Returns a copy of *item*, of its own type, whose score is *score*; *item* stays as it is.

    The very same item where it has no number to replace or cannot be copied, as a row of a database
    cannot.
    """
    if read_score(item, score_field) == score or find_kind(type(item)) is ROW:
        return item
    if type(item) is PlainRow:
        return item.rescore(score, score_field or "score")
    for path in (
        _find_score_paths(item) if score_field is None else _find_named_paths(item, score_field)
    ):
        if _runs_code(type(item), str(path[-1])) or not is_number(get_path(item, path)):
            continue
        try:
            copied = replace_path(item, path, score)
        except ResponseShapeError:
            continue
        # A class may compute what looks like a field of it.
        if type(copied) is type(item) and read_score(copied, score_field) == score:
            return copied
    return item


def to_namespace(value: Any) -> str:
    """Returns the name of the namespace *value* stands for."""
    return DEFAULT_NAMESPACE if value is None or value is ABSENT or value == "" else str(value)


def _is_id(item: Any) -> bool:
    """Whether *item* is a pair with an id in front: what reads like a text is one."""
    return find_kind(type(item)) is PLAIN and not (
        isinstance(item[0], str) and reads_like_text(item[0])
    )


def _find_holder(item: Any) -> Any:
    """What has the item's own fields: the item, what stands in front of a pair, the node in LlamaIndex's wrapper."""
    if type(item) is dict:
        return item
    kind = find_kind(type(item))
    if kind is OBJECT:
        return item.node if has_field(item, _NODE) else item
    if kind is MAPPING:
        return item
    return _find_holder(item[0]) if kind is PLAIN else _find_holder_in_row(item)


def _find_holder_in_row(row: Any) -> Any:
    """The *row*, or a document in it if no column of the row's own says what it is, as in ``(document, distance)``."""
    get = get_field if find_kind(type(row)) is ROW else getattr
    for name in pick_fields(row, _TELLING):
        value = get(row, name)
        if name == _NODE:
            return value
        if isinstance(value, (str, int)):
            return row
    return next((value for value in list_fields(row).values() if _is_document(value)), row)


def _is_document(value: Any) -> bool:
    if value is None or isinstance(value, str | int | float | bytes | list | tuple):
        return False
    return _find_first(value, NAMES) is not None


def _find_score_paths(item: Any) -> Iterator[Path]:
    """The fields the score may stand in, in the order they are read."""
    kind = find_kind(type(item))
    if kind is PLAIN:
        return iter(((1,),))
    if kind is MAPPING:
        return ((name,) for name in SCORES if name in item)
    names: Sequence[str] = pick_fields(item, SCORES)
    if not names and kind in (NAMED, ROW) and _find_holder(item) is not item:
        # A distance beside a document is often computed and has a name of the database's making.
        names = [name for name, value in list_fields(item).items() if is_number(value)]
    if not names and has_field(item, "metadata") and not isinstance(item.metadata, Mapping):
        # Weaviate keeps the numbers in the metadata, which is an object there, and the user's
        # fields beside it.
        return (("metadata", name) for name in SCORES)
    return ((name,) for name in names)


def _read_scores(item: Any) -> Iterable[Any]:
    if type(item) is dict:
        return _list_values(item, SCORES)
    return (get_path(item, path) for path in _find_score_paths(item))


def _read_named(item: Any, name: str) -> Iterator[Any]:
    """What stands under the field that the user names: in the metadata, in what has the item's fields, in the item."""
    for root in (read_metadata(item), _find_holder(item), item):
        for path in ((name,), name.split(".")):
            if (value := get_path(root, path)) is not ABSENT:
                yield value


def _find_named_paths(item: Any, name: str) -> Iterator[Path]:
    """The paths of what `_read_named` reads."""
    starts: Sequence[Path] = (
        [(0,), (2,)][: len(item) - 1] if find_kind(type(item)) is PLAIN else [(_NODE,), ()]
    )
    for start in starts:
        for between in (*METADATA, None):
            for inner in ((name,), name.split(".")):
                path = (*start, *inner) if between is None else (*start, between, *inner)
                if get_path(item, path) is not ABSENT:
                    yield path


def find_text(holder: Any) -> str | None:
    """Returns the first text under one of the usual names, or in LlamaIndex's ``_node_content``; ``None`` without."""
    for value in _list_values(holder, TEXTS):
        if isinstance(value, str) and value and not value.isspace():
            return value
    packed = (
        holder.get("_node_content") if type(holder) is dict else get_field(holder, "_node_content")
    )
    if not isinstance(packed, str):
        return None
    try:
        node = json.loads(packed)
    except (ValueError, RecursionError):
        return None
    return find_text({**node, "_node_content": None}) if isinstance(node, dict) else None


def _list_values(holder: Any, names: Names) -> Iterable[Any]:
    """What stands under those of *names* that are there."""
    if type(holder) is dict:
        picked = names.pick_keys(tuple(holder))
        return [holder[name] for name in picked] if picked else ()
    kind = find_kind(type(holder))
    if kind is MAPPING:
        return (holder[name] for name in names if name in holder)
    get = get_field if kind is ROW else get_attribute
    return (get(holder, name) for name in pick_fields(holder, names))


def get_attribute(holder: Any, name: str) -> Any:
    """Returns what *holder* has under *name*, ``None`` if nothing."""
    return getattr(holder, name, None)


def _list_all(item: Any) -> Mapping[str, Any]:
    """All fields of the item itself, by name."""
    holder = _find_holder(item)
    if isinstance(holder, (str, int)):
        return {}
    return holder if isinstance(holder, (dict, Mapping)) else list_fields(holder)


def _measure_item(item: Any) -> dict[str, int]:
    """How long those fields of the item are that read like a text, by name."""
    leaves = _flatten_item(item).items()
    return {
        name: len(value)
        for name, value in leaves
        if isinstance(value, str) and len(value.split()) > 1
    }


def _flatten_item(item: Any) -> dict[str, Any]:
    """The item's fields and those of its metadata, by name, with dots for what lies inside others."""
    return _flatten(_list_all(item)) | _flatten(read_metadata(item))


def _flatten(fields: Mapping[Any, Any], depth: int = 2) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in fields.items():
        if not (isinstance(name, str) and _FIELD_NAME.fullmatch(name)) or name in _NOT_METADATA:
            continue
        if not isinstance(value, Mapping):
            leaves[name] = value
        elif depth > 1 and name not in METADATA:
            leaves.update(
                {f"{name}.{inner}": leaf for inner, leaf in _flatten(value, depth - 1).items()}
            )
    return leaves


def _collect_columns(items: Sequence[Any]) -> dict[str, list[Any]] | None:
    """The values of each field that all *items* have, by name; ``None`` if they have no fields at all."""
    leaves = list(map(_flatten_item, items))
    if not any(leaves):
        return None
    return {
        name: [row[name] for row in leaves]
        for name in leaves[0]
        if all(name in row for row in leaves)
    }


def _are_different_words(column: Sequence[Any]) -> bool:
    words = {str(value) for value in column if is_id(value)}
    return len(words) == len(column) and "" not in words


def _find_first(holder: Any, names: Names) -> Any:
    """The first of *names* that holds something."""
    for value in _list_values(holder, names):
        if value is not None:
            return value
    return None


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and not value.isspace() else None


def _runs_code(kind: type, name: str) -> bool:
    """Whether setting the attribute runs code of the class, which may write to what a copy shares with the original."""
    own = getattr(kind, name, None)
    settable = hasattr(type(own), "__set__") and getattr(own, "fset", own) is not None
    return settable and not isinstance(own, MemberDescriptorType) and not issubclass(kind, tuple)
