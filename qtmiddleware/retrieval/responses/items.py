"""Read the id, score, metadata and text of one item of a response, whatever its type is."""

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
    build_shape_error,
    convert_to_float,
    find_kind,
    get_field,
    get_nested_value,
    has_field,
    is_array,
    is_number,
    list_fields,
    pick_field_names,
    replace_nested_value,
)
from qtmiddleware.retrieval.responses.rows import (
    PlainRow,
    can_be_scores,
    is_id,
    is_probably_text,
    is_scored_pair,
)
from qtmiddleware.types import DEFAULT_NAMESPACE

IDS: Final = Names(("id", "_id", "id_", "chunk_id", "node_id", "uuid", "pk"))
# All chunks of one document often have the same value.
_DOCUMENT_IDS: Final = Names(("document_id", "doc_id"))
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
# LlamaIndex wraps an item and its score in an object. The item is in this field.
_NODE: Final = "node"
_TELLING: Final = Names((_NODE, *NAMES))
# The number of characters of a 32-bit float in JSON, with its comma.
_NUMBER_CHARS: Final = 12
_ID_NAME: Final = re.compile(r"(?:id|key|ref|ur[il])$", re.IGNORECASE)
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w-]{0,59}")


def check_item(item: Any, text_field: str | None = None, id_field: str | None = None) -> None:
    """Raise `ResponseShapeError` if *item* cannot be a passage.

    A passage has an id, a text, or another field with several words. Mappings and strings are
    always accepted. The error names the type of *item*.

    Args:
        item: An item of a response.
        text_field: The name of the field of the text; ``None`` to try the usual names.
        id_field: The name of the field of the id; ``None`` to try the usual names.
    """
    kind = find_kind(type(item))
    if kind is MAPPING or isinstance(item, str):
        return
    if kind is PLAIN:
        if not is_scored_pair(item):
            raise build_shape_error(item, "an item must be (id, score) or (document, score), not")
        if not isinstance(item[0], (str, int)):
            check_item(item[0], text_field, id_field)
        return
    holder = _unwrap_item(item)
    if find_kind(type(holder)) is MAPPING or pick_field_names(holder, NAMES):
        return
    if (
        read_text(item, text_field) is None
        and read_id(item, id_field) is None
        and not _measure_text_lengths(item)
    ):
        raise build_shape_error(item, "neither an id nor a text was found in an item of type")


def can_be_passage(item: Any, text_field: str | None, id_field: str | None) -> bool:
    """Return whether *item* has an id, a text, or another field with several words.

    *text_field* and *id_field* name the fields of the text and the id. If they are ``None``, the
    usual names are tried.
    """
    try:
        check_item(item, text_field, id_field)
    except ResponseShapeError:
        return False
    if read_id(item, id_field) is not None or read_text(item, text_field) is not None:
        return True
    return bool(_measure_text_lengths(item))


def build_item_fingerprint(item: Any) -> str:
    """Return a string that identifies *item* by its fields, for items without an id and a text.

    Scores and other fractional numbers are left out, because they may differ between searches.
    """
    fields = _list_item_fields(item)
    if not fields:
        return repr(item)
    return repr(
        {
            name: value
            for name, value in fields.items()
            if name not in SCORES and (not is_number(value) or hasattr(value, "__index__"))
        }
    )


def read_id(item: Any, id_field: str | None = None) -> str | None:
    """Return the id of *item*; ``None`` if there is no id.

    *id_field* names the field of the id. If it is ``None``, the usual names are tried.
    """
    return _read_id(item, id_field, _ALL_IDS)


def read_passage_id(item: Any, id_field: str | None = None) -> str | None:
    """Return the passage's id in *item*.

    Returns ``None`` if there is no id, or if the only id is that of the passage's document.
    """
    return _read_id(item, id_field, IDS)


def _read_id(item: Any, id_field: str | None, names: Names) -> str | None:
    """Return the id of *item* in the field *id_field*; ``None`` if there is no id.

    If *id_field* is ``None``, the id is read from the first of *names* that has a value.
    """
    if id_field is not None:
        id_ = next(
            (value for value in _read_named_field(item, id_field) if value is not None), None
        )
        return None if id_ is None else str(id_) or None
    holder = _unwrap_item(item)
    if isinstance(holder, (str, int)):
        return str(holder) or None if _is_pair_with_id(item) else None
    id_ = _find_first_value(holder, names)
    return None if id_ is None else str(id_) or None


def read_namespace(item: Any, default: str) -> str:
    """Return the namespace of *item*; *default* if the item has none."""
    namespace = get_field(_unwrap_item(item), "namespace")
    return default if namespace is ABSENT or namespace is None else convert_to_namespace(namespace)


def read_score(item: Any, score_field: str | None = None) -> float | None:
    """Return the backend's score of *item*; ``None`` if there is no finite score.

    *score_field* names the field of the score. If it is ``None``, the usual names are tried.
    """
    for value in (
        _read_scores(item) if score_field is None else _read_named_field(item, score_field)
    ):
        if is_number(value):
            return convert_to_float(value)
    return None


def read_metadata(item: Any) -> Mapping[str, Any]:
    """Return the metadata of *item*. The caller must not change the returned mapping.

    If *item* has no separate metadata, its other fields are returned.
    """
    if find_kind(type(item)) is PLAIN and len(item) == 3:
        return item[2] or {}
    holder = _unwrap_item(item)
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
    """Return the passage's text in *item*; ``None`` if there is no text.

    *text_field* names the field of the text, which may be in the metadata or in the item itself.
    The metadata are searched first. A dot separates the names of nested fields.

    If *text_field* is ``None``, the usual names are tried, first in the item, then in the metadata.
    """
    if text_field is not None:
        return next(
            (
                text
                for text in map(_get_nonblank_text, _read_named_field(item, text_field))
                if text is not None
            ),
            None,
        )
    holder = _unwrap_item(item)
    if isinstance(holder, (str, int)):
        return (
            find_text(read_metadata(item)) if _is_pair_with_id(item) else _get_nonblank_text(holder)
        )
    return find_text(holder) or find_text(read_metadata(item))


def has_text(item: Any, text_field: str | None) -> bool:
    """Return whether *item* contains a passage's text.

    A bare string without spaces does not count as a text, because it is probably an id.
    """
    text = read_text(item, text_field)
    return text is not None and (text is not _unwrap_item(item) or is_probably_text(text))


def estimate_chars(item: Any) -> int:
    """Estimate how many characters the texts and numbers of *item* have in JSON."""
    # A pair may have a bare text in front and its metadata behind it.
    remaining: list[Any] = [_list_item_fields(item) or (_unwrap_item(item), read_metadata(item))]
    # A container may contain itself, or the same container twice. Each one counts once.
    count, seen_ids = 0, set[int]()
    while remaining:
        value = remaining.pop()
        class_ = type(value)
        if isinstance(value, str):
            count += len(value)
        elif class_ is float or class_ is int:
            count += _NUMBER_CHARS
        elif class_ is dict:
            if id(value) not in seen_ids:
                seen_ids.add(id(value))
                remaining.extend(value.values())
        elif is_array(value):
            count += int(value.size) * _NUMBER_CHARS
        elif is_number(value):
            count += _NUMBER_CHARS
        elif isinstance(value, (list, tuple)) and value and is_number(value[0]):
            # An embedding has about a thousand numbers, so they are counted without a look at each.
            count += len(value) * _NUMBER_CHARS
        elif isinstance(value, (Mapping, list, tuple)) and id(value) not in seen_ids:
            seen_ids.add(id(value))
            remaining.extend(value.values() if isinstance(value, Mapping) else value)
    return count


def find_text_field(item: Any, text_field: str | None) -> str | None:
    """Return the name of the field from which `read_text` reads the text of *item*.

    Returns ``""`` if *item* itself is the text, and ``None`` if there is no text.
    """
    text = read_text(item, text_field)
    if text is None or text_field is not None:
        return None if text is None else text_field
    holder = _unwrap_item(item)
    if text is holder:
        return ""
    # An item without separate metadata, such as a document of Pinecone, has these fields itself.
    metadata_prefix = "metadata." if any(True for _ in _list_values(holder, METADATA)) else ""
    for prefix, root in (("", holder), (metadata_prefix, read_metadata(item))):
        for name in TEXTS:
            value = get_field(root, name)
            if isinstance(value, str) and value == text:
                return prefix + name
    return "_node_content"


def describe_missing_text_and_fix(items: Sequence[Any], text_field: str | None) -> tuple[str, str]:
    """Return (problem, fix): why no text was found in *items*, and how to fix the problem.

    Both are clauses for a message. They may name a field whose values look like text, but
    they never quote a value.
    """
    if all(isinstance(_unwrap_item(item), str | int) and not read_metadata(item) for item in items):
        return (
            "the passages are ids without texts",
            "return the texts too, for example as {'id', 'score', 'text'}",
        )
    place = "a common field name"
    if text_field is not None:
        place = f"keywordEvidence.fields.text {text_field!r}"
    lengths: Counter[str] = Counter()
    for item in items:
        lengths.update(_measure_text_lengths(item))
    if lengths:
        name = max(lengths, key=lambda field: (lengths[field], field))
        setting = f'config={{"keywordEvidence": {{"fields": {{"text": "{name}"}}}}}}'
        return f"the passages have no text under {place}, but {name!r} holds text", f"set {setting}"
    if not any(read_metadata(item) for item in items):
        return (
            "the passages have neither a text nor metadata",
            (
                "request them: in Pinecone with include_metadata=True, or with include_fields=[...]"
                " in a document search"
            ),
        )
    advice = "store the text in the metadata, or name its field in keywordEvidence.fields.text"
    return f"the passages have no text under {place}", advice


def suggest_id_field(items: Sequence[Any]) -> str | None:
    """Return the name of a field that may contain the ids of *items*.

    The field's name must end in a usual suffix, such as ``id`` or ``key``, and no two items may
    have the same value. Returns ``""`` if
    there is no such field, and ``None`` if the items have no fields.
    """
    if (columns := _collect_columns(items)) is None:
        return None
    id_names = (name for name in columns if _ID_NAME.search(name))
    return next((name for name in id_names if _are_distinct_ids(columns[name])), "")


def suggest_score_field(items: Sequence[Any]) -> str | None:
    """Return the name of a field that may contain the scores of *items*.

    Its values must be numbers that only rise or only fall, and some must be fractional. Returns
    ``""`` if there is no such field, and ``None`` if the items have no fields.
    """
    if (columns := _collect_columns(items)) is None:
        return None
    return next((name for name, column in columns.items() if can_be_scores(column)), "")


def replace_score(item: Any, score: float, score_field: str | None = None) -> Any:
    """Return a copy of *item*, of the same type, with *score* as its score.

    If *item* has no score, or cannot be copied (such as a database row), *item* itself is returned.
    *score_field* names the field of the score. If it is ``None``, the usual names are tried.
    """
    if read_score(item, score_field) == score or find_kind(type(item)) is ROW:
        return item
    if type(item) is PlainRow:
        return item.replace_score(score, score_field or "score")
    for path in (
        _find_score_paths(item) if score_field is None else _find_field_paths(item, score_field)
    ):
        if _has_setter_code(type(item), str(path[-1])) or not is_number(
            get_nested_value(item, path)
        ):
            continue
        try:
            copied = replace_nested_value(item, path, score)
        except ResponseShapeError:
            continue
        # If the class computes its score, the copy does not show the new score and is useless.
        if type(copied) is type(item) and read_score(copied, score_field) == score:
            return copied
    return item


def convert_to_namespace(value: Any) -> str:
    """Return *value* as a string; the default namespace if *value* is empty."""
    return DEFAULT_NAMESPACE if value is None or value is ABSENT or value == "" else str(value)


def _is_pair_with_id(item: Any) -> bool:
    """Return whether *item* is a pair that begins with an id or a document, not with a text."""
    return find_kind(type(item)) is PLAIN and not (
        isinstance(item[0], str) and is_probably_text(item[0])
    )


def _unwrap_item(item: Any) -> Any:
    """Return the object inside *item* that has the passage's fields.

    - In a pair, this is the first value.
    - In LlamaIndex's wrapper, this is the node.
    - In a database row, this is the document.
    - Otherwise, this is *item* itself.
    """
    if type(item) is dict:
        return item
    kind = find_kind(type(item))
    if kind is OBJECT:
        return item.node if has_field(item, _NODE) else item
    if kind is MAPPING:
        return item
    return _unwrap_item(item[0]) if kind is PLAIN else _unwrap_row(item)


def _unwrap_row(row: Any) -> Any:
    """Return the document in *row*, a database row such as ``(document, distance)``.

    *row* itself is returned if one of its columns is an id or a text, or if it has no document.
    """
    get = get_field if find_kind(type(row)) is ROW else getattr
    for name in pick_field_names(row, _TELLING):
        value = get(row, name)
        if name == _NODE:
            return value
        if isinstance(value, (str, int)):
            return row
    return next((value for value in list_fields(row).values() if _is_document(value)), row)


def _is_document(value: Any) -> bool:
    """Return whether *value* is an object with an id or a text."""
    if value is None or isinstance(value, str | int | float | bytes | list | tuple):
        return False
    return _find_first_value(value, NAMES) is not None


def _find_score_paths(item: Any) -> Iterator[Path]:
    """Return the paths to fields of *item* that may contain its score, likeliest field first."""
    kind = find_kind(type(item))
    if kind is PLAIN:
        return iter(((1,),))
    if kind is MAPPING:
        return ((name,) for name in SCORES if name in item)
    names: Sequence[str] = pick_field_names(item, SCORES)
    if not names and kind in (NAMED, ROW) and _unwrap_item(item) is not item:
        # Next to a document, a computed distance has whatever name the database gave it.
        names = [name for name, value in list_fields(item).items() if is_number(value)]
    if not names and has_field(item, "metadata") and not isinstance(item.metadata, Mapping):
        # In Weaviate, the metadata is an object with the scores. The user's fields are elsewhere.
        return (("metadata", name) for name in SCORES)
    return ((name,) for name in names)


def _read_scores(item: Any) -> Iterable[Any]:
    """Return the values in *item* that may be its score, likeliest value first."""
    if type(item) is dict:
        return _list_values(item, SCORES)
    return (get_nested_value(item, path) for path in _find_score_paths(item))


def _read_named_field(item: Any, field_name: str) -> Iterator[Any]:
    """Yield the values of the field *field_name* in *item*.

    A dot in *field_name* separates the names of nested fields. The field is searched in the
    metadata, in the document or node inside *item*, and in *item* itself, in this order.
    """
    for root in (read_metadata(item), _unwrap_item(item), item):
        for path in ((field_name,), field_name.split(".")):
            if (value := get_nested_value(root, path)) is not ABSENT:
                yield value


def _find_field_paths(item: Any, field_name: str) -> Iterator[Path]:
    """Yield the paths to all fields called *field_name* in *item*, in its metadata and in its node.

    A dot in *field_name* separates the names of nested fields.
    """
    starts: Sequence[Path] = (
        [(0,), (2,)][: len(item) - 1] if find_kind(type(item)) is PLAIN else [(_NODE,), ()]
    )
    for start in starts:
        for middle in (*METADATA, None):
            for inner in ((field_name,), field_name.split(".")):
                path = (*start, *inner) if middle is None else (*start, middle, *inner)
                if get_nested_value(item, path) is not ABSENT:
                    yield path


def find_text(holder: Any) -> str | None:
    """Return the text in *holder*, from the first usual field that has one.

    The JSON in LlamaIndex's ``_node_content`` is read last. Returns ``None`` if there is no text.
    """
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
    # Without this field, a node that contains another node cannot recurse without end.
    return find_text({**node, "_node_content": None}) if isinstance(node, dict) else None


def _list_values(holder: Any, names: Names) -> Iterable[Any]:
    """Return the values of those fields of *holder* that are listed in *names*."""
    if type(holder) is dict:
        picked = names.pick_keys(tuple(holder))
        return [holder[name] for name in picked] if picked else ()
    kind = find_kind(type(holder))
    if kind is MAPPING:
        return (holder[name] for name in names if name in holder)
    get = get_field if kind is ROW else get_attribute
    return (get(holder, name) for name in pick_field_names(holder, names))


def get_attribute(holder: Any, attribute_name: str) -> Any:
    """Return the attribute *attribute_name* of *holder*, or ``None`` if it does not exist."""
    return getattr(holder, attribute_name, None)


def _list_item_fields(item: Any) -> Mapping[str, Any]:
    """Return the fields of *item* by name, without the fields inside its metadata."""
    holder = _unwrap_item(item)
    if isinstance(holder, (str, int)):
        return {}
    return holder if isinstance(holder, (dict, Mapping)) else list_fields(holder)


def _measure_text_lengths(item: Any) -> dict[str, int]:
    """Return the length in characters of each field with several words, by the field's name."""
    leaves = _flatten_item(item).items()
    return {
        name: len(value)
        for name, value in leaves
        if isinstance(value, str) and len(value.split()) > 1
    }


def _flatten_item(item: Any) -> dict[str, Any]:
    """Return the fields of *item* and of its metadata by name. A dot joins nested names."""
    return _flatten_fields(_list_item_fields(item)) | _flatten_fields(read_metadata(item))


def _flatten_fields(fields: Mapping[Any, Any], depth: int = 2) -> dict[str, Any]:
    """Return the values in nested *fields* by their names, with a dot between nested names.

    *depth* is the number of levels to read. Fields with unusual names are left out.
    """
    leaves: dict[str, Any] = {}
    for name, value in fields.items():
        if not (isinstance(name, str) and _FIELD_NAME.fullmatch(name)) or name in _NOT_METADATA:
            continue
        if not isinstance(value, Mapping):
            leaves[name] = value
        elif depth > 1 and name not in METADATA:
            leaves.update(
                {
                    f"{name}.{inner}": leaf
                    for inner, leaf in _flatten_fields(value, depth - 1).items()
                }
            )
    return leaves


def _collect_columns(items: Sequence[Any]) -> dict[str, list[Any]] | None:
    """Return the values of each field that all *items* have, by field name.

    Returns ``None`` if no item has any field.
    """
    leaves = list(map(_flatten_item, items))
    if not any(leaves):
        return None
    return {
        name: [row[name] for row in leaves]
        for name in leaves[0]
        if all(name in row for row in leaves)
    }


def _are_distinct_ids(column: Sequence[Any]) -> bool:
    """Return whether all values of *column* are ids, and no id occurs twice."""
    words = {str(value) for value in column if is_id(value)}
    return len(words) == len(column) and "" not in words


def _find_first_value(holder: Any, names: Names) -> Any:
    """Return the first value other than ``None`` in the fields *names* of *holder*.

    Returns ``None`` if there is no such value.
    """
    for value in _list_values(holder, names):
        if value is not None:
            return value
    return None


def _get_nonblank_text(value: Any) -> str | None:
    """Return *value* if it is a string with visible characters; otherwise ``None``."""
    return value if isinstance(value, str) and value and not value.isspace() else None


def _has_setter_code(class_: type, attribute_name: str) -> bool:
    """Return whether setting the attribute runs code of *class_*, such as a property setter.

    Such code may change data that a copy of the object shares with the original.
    """
    descriptor = getattr(class_, attribute_name, None)
    settable = (
        hasattr(type(descriptor), "__set__") and getattr(descriptor, "fset", descriptor) is not None
    )
    return (
        settable
        and not isinstance(descriptor, MemberDescriptorType)
        and not issubclass(class_, tuple)
    )
