"""Read the passages of any response, and rebuild the response with other passages.

Responses and items are recognised by the names of their fields, not by their library. `list_fields`
returns the fields of any object as a dict, so only dicts are read. What cannot be read counts as
missing. What cannot be copied is refused, because the caller's own objects are never changed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from inspect import getmembers_static, isawaitable, ismemberdescriptor
from itertools import chain, islice
from math import inf, isfinite
from time import monotonic
from typing import Any, Final

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.fields import copy_with
from qtmiddleware.types import DEFAULT_NAMESPACE, Passage, Path, Ranking, Variant

ADVICE: Final = (
    "return the list of passages, or"
    " pass read= (response -> list of items) and write= (response, items -> response)"
)
# All chunks of one document often have the same id of the document.
IDS: Final = ("id", "_id", "id_", "chunk_id", "node_id", "uuid", "pk")
DOCUMENT_IDS: Final = ("document_id", "doc_id", "file_id")
TEXTS: Final = tuple(
    """
    text content page_content chunk_text chunk passage body document snippet raw_text page_text
    passage_text document_text node_text text_content chunk_content contents context abstract
    description answer
    """.split()  # noqa: SIM905
)
SCORES: Final = tuple(
    """
    score _score score_ similarity relevance_score certainty distance _distance relevance rrf_score
    search_score @search.reranker_score @search.score cosine_similarity cosine_distance vector_score
    sim dist
    """.split()  # noqa: SIM905
)
METADATA: Final = tuple(
    "metadata fields payload meta _source properties attributes entity".split()  # noqa: SIM905
)
ENVELOPES: Final = tuple(
    """
    matches result.hits documents results hits.hits hits points objects docs response.docs chunks
    passages snippets source_documents source_nodes nodes records rows retrieval_results
    result_items contexts.contexts contexts items value data result
    """.split()  # noqa: SIM905
)
# The names of each part of a passage. The settings may name an id, a score and a text.
_NAMES: Final = {
    "id": IDS,
    "document_id": DOCUMENT_IDS,
    "text": TEXTS,
    "score": SCORES,
    "metadata": METADATA,
    "title": ("title",),
}
_VECTORS: Final = ("values", "sparse_values", "vector", "embedding")
_NOT_METADATA: Final = frozenset((*IDS[:3], *SCORES[:3], "namespace", *_VECTORS))
# Lists with a field of each passage, as in Chroma.
_COLUMNS: Final = {
    f"{field}s": field
    for field in ("id", "document", "text", "metadata", "distance", "score", "embedding", "uri")
} | {"similarities": "score"}
# Classes with one of these attributes are no database rows, although they may have keys().
_NO_ROWS: Final = ("__dataclass_fields__", "__struct_fields__", "model_fields")
# Some scripts put no spaces between words, so CJK punctuation counts too.
_SPACE: Final = re.compile(r"[\s。、，！？]")
# Names of numbers that repeat what was asked for. The others may tell how many were found.
_LIMIT: Final = re.compile(r"(?i)(limit|top_?k|k|(page_?)?size|hits_?per_?page|rows)\Z")
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w-]{0,59}")
_MOST_FIELDS: Final = 1_000
_MOST_PARTS: Final = 100
_MOST_SAMPLES: Final = 10
_READING_SECONDS: Final = 0.5

_USUAL: Final = KeywordEvidenceSettings()
_Layout = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Shape:
    """How to read the items of a response, and to rebuild the response with other items.

    Attributes:
        items: Returns the items of a response in the backend's order, without copying them.
        write: Returns a copy of a response with any other items of the same function's responses.
    """

    items: Callable[[Any], Sequence[Any]]
    write: Callable[[Any, Sequence[Any]], Any]

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        """Return a copy of *response* with *items*; raise `ResponseShapeError` on failure."""
        try:
            rebuilt = self.write(response, items)
        except Exception as error:
            # The user's function, or the class of the response, may refuse a copy in any way.
            raise _build_shape_error(response) from error
        if rebuilt is None and response is not None:
            raise _build_shape_error(response, "write= must return a copy of the response of type")
        return rebuilt


@dataclass(eq=False, repr=False, slots=True)
class SearchResult:
    """A response, the ranking read from it, and its shape."""

    ranking: Ranking
    shape: Shape
    response: Any


def read_response(
    variant: Variant,
    response: Any,
    custom_shape: Shape | None = None,
    *,
    options: KeywordEvidenceSettings = _USUAL,
    initial_rankings: Mapping[str, Ranking] | None = None,
) -> SearchResult:
    """Return the ranking in *response*, together with the response and its shape.

    Raises:
        ResponseShapeError: The response cannot be read.
    """
    try:
        shape = custom_shape or find_shape(response)
        items = shape.items(response)
        if not _is_list(items):
            raise _build_shape_error(items, "read= must return a list of items, not")
        namespace = str(_get_field(response, "namespace") or DEFAULT_NAMESPACE)
        passages = _Reader(tuple(options.fields.items()), namespace).read_all(items)
    except ResponseShapeError:
        raise
    except Exception as error:
        # The response comes from the user's code, so reading it may raise anything.
        problem = f"reading raised {type(error).__name__} for a response of type"
        raise _build_shape_error(response, problem) from error
    keys = [passage.key for passage in passages]
    scores = [passage.score for passage in passages]
    ranking = Ranking(variant, keys, scores, passages, initial_rankings or {})
    return SearchResult(ranking, shape, response)


# --- the fields of any object ---------------------------------------------------------------------


@lru_cache(1_024)
def _classify(class_: Any) -> str:
    """Return the kind of *class_*: text, list, named tuple, mapping, view or object."""
    if issubclass(class_, str | bytes | bytearray | memoryview):
        return "text"
    is_sequence = issubclass(class_, Sequence)
    if is_sequence and hasattr(class_, "_fields"):
        return "named tuple"
    is_object = any(hasattr(class_, name) for name in _NO_ROWS)
    has_keys = callable(getattr(class_, "keys", None)) and hasattr(class_, "__getitem__")
    if issubclass(class_, Mapping) or (has_keys and not is_object):
        return "mapping"
    if is_sequence:
        return "list"
    has_slots = any(name[0] != "_" for name in getattr(class_, "__slots__", ()))
    has_attributes = is_object or class_.__dictoffset__ or has_slots
    return "view" if not has_attributes and hasattr(class_, "to_dict") else "object"


def _is_list(value: Any) -> bool:
    """Return whether *value* is a sequence of items, which texts, rows and named tuples are not."""
    class_: Any = type(value)
    return _classify(class_) == "list"


def _is_plain(value: Any) -> bool:
    """Return whether *value* is a list or a tuple without names."""
    return isinstance(value, (tuple, list)) and _is_list(value)


def _is_number(value: Any) -> bool:
    return type(value) is float or (hasattr(value, "__float__") and not isinstance(value, bool))


def convert_to_float(value: Any) -> float | None:
    """Return *value* as a finite float; ``None`` if it is not a finite number."""
    try:
        number = float(value) if _is_number(value) else float("nan")
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _has_words(text: str) -> bool:
    """Return whether *text* has spaces or CJK punctuation, and is therefore probably no id."""
    return _SPACE.search(text) is not None


@lru_cache(4_096)
def _spell(name: str) -> str:
    """Return *name* without the differences between ``page_content`` and ``PageContent``."""
    return re.sub("(?<=[^_])_(?=[^_])", "", name).lower()


_ENVELOPE_NAMES: Final = chain.from_iterable(path.split(".") for path in ENVELOPES)
_USUAL_NAMES: Final = frozenset(
    map(_spell, chain(_ENVELOPE_NAMES, *_NAMES.values(), ("namespace",)))
)


@lru_cache(1_024)
def _list_attributes(
    class_: type[Any],
    names: tuple[str, ...],
) -> Sequence[str]:
    """Return the attributes that hold data: *names*, slots, and properties with a usual name."""
    found = dict.fromkeys(names)
    for name, member in getmembers_static(class_):
        is_property = hasattr(member, "__get__") and not callable(member)
        if ismemberdescriptor(member) or (is_property and _spell(name) in _USUAL_NAMES):
            found[name] = None
    # Pinecone's own names of an id and a score begin with an underscore.
    return [name for name in found if name[:1] != "_" or _spell(name) in _USUAL_NAMES]


def list_fields(value: Any, stops_at: float = inf) -> dict[Any, Any]:
    """Return the fields of *value* by name; none of a text or a list. Never raises.

    What a slow mapping did not give by the moment *stops_at* is missing.
    """
    class_: Any = type(value)
    if class_ is dict:
        return value  # type: ignore[no-any-return]
    kind = _classify(class_)
    try:
        if kind == "view":
            return dict(value.to_dict())
        if kind == "named tuple":
            return dict(zip(value._fields, value, strict=True))
        if kind == "mapping":
            names = islice(value.keys(), _MOST_FIELDS)
            return {name: value[name] for name in names if monotonic() <= stops_at}
    except Exception:
        # The object comes from the user's code, so reading it may raise anything.
        return {}
    if kind != "object":
        return {}
    # The models of Pinecone's SDK before version 9 answer to any name. They declare their fields.
    declared = getattr(class_, "attribute_map", None)
    attributes = declared if isinstance(declared, dict) else getattr(value, "__dict__", ())
    held = _list_attributes(class_, tuple(attributes))
    return {name: _read_attribute(value, name) for name in held}


def _read_attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:
        # A property of the user's class may raise anything.
        return None


def _get_field(holder: Any, name: Any) -> Any:
    """Return the field *name* of *holder*, or the value at a position; ``None`` without one."""
    if isinstance(name, int):
        return holder[name] if _is_list(holder) and len(holder) > name else None
    return list_fields(holder).get(name)


def _get(holder: Any, path: Path) -> Any:
    return reduce(_get_field, path, holder)


@lru_cache(1_024)
def _map_spellings(names: tuple[Any, ...]) -> Mapping[str, str]:
    """Return *names* by their spelling; of several names with one spelling, the first."""
    return {_spell(name): name for name in reversed(names) if isinstance(name, str)}


def _follow(holder: Any, usual: str) -> tuple[Path, Any]:
    """Return the path *usual* in the names of *holder*, and the value; () if there is none."""
    path: Path = ()
    for usual_name in usual.split("."):
        name = _map_spellings(tuple(list_fields(holder))).get(_spell(usual_name))
        if name is None:
            return (), None
        path = (*path, name)
        holder = _get_field(holder, name)
    return path, holder


# --- one item -------------------------------------------------------------------------------------


@lru_cache(1_024)
def _find_layout(
    names: tuple[Any, ...],
    named: tuple[tuple[str, str], ...] = (),
) -> _Layout:
    """Return those of *names* that each of `_NAMES` has, the most usual first.

    ``"first"`` has the most usual id, score and text, each ``None`` if there is none.

    The settings name the fields in *named*, such as ``("id", "uid")``.
    """
    names_by_spelling = _map_spellings(names)
    own_names = dict(named)
    layout: dict[str, list[Any]] = {}
    for part, usual_names in _NAMES.items():
        wanted = (own_names[part], *usual_names) if part in own_names else usual_names
        # The exact name comes before another spelling of it.
        found = [name if name in names else names_by_spelling.get(_spell(name)) for name in wanted]
        layout[part] = [name for name in found if name is not None]
    layout["first"] = [(*layout[part], None)[0] for part in ("id", "score", "text")]
    return layout


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the passages of one response. *named* are the fields that the settings name."""

    named: tuple[tuple[str, str], ...] = ()
    namespace: str = DEFAULT_NAMESPACE
    stops_at: float = field(default_factory=lambda: monotonic() + _READING_SECONDS)

    def read_all(self, items: Sequence[Any]) -> list[Passage]:
        """Return the passages in *items*. Raises `ResponseShapeError` if an item is no passage."""
        names: Sequence[str] = ()
        if len(items) and _is_plain(items[0]):
            # Only all rows of a database together show what each of their values is.
            names = _name_values(list(filter(_is_plain, items)))
        passages = [self._read_usual(item) or self._read(item, names) for item in items]
        for passage in passages:
            if passage.text is None:
                _check_without_text(passage)
        return passages

    def _read_usual(self, item: Any) -> Passage | None:
        """Return what `_read` returns, in half the time, for a dict as most functions return it."""
        if type(item) is not dict:
            return None
        layout = _find_layout(tuple(item), self.named)
        id_name, score_name, text_name = layout["first"]
        id_, score = item.get(id_name), item.get(score_name)
        if type(id_) is not str or not id_ or type(score) is not float or not isfinite(score):
            return None
        metadata_name, metadata = _find_metadata(item, layout, self.stops_at)
        text = item.get(text_name)
        if not layout["text"] and metadata_name:
            *_, name = _find_layout(tuple(metadata), self.named)["first"]
            text, text_name = metadata.get(name), f"metadata.{name}"
        if type(text) is not str or not text or text.isspace() or len(layout["score"]) > 1:
            return None
        title = metadata.get("title") or _find_string(item, layout["title"])
        return Passage(
            (str(item.get("namespace") or self.namespace), id_),
            item,
            id_,
            score,
            text,
            title if isinstance(title, str) else "",
            metadata,
            text_name,
            [(score_name,)],
        )

    def _read(self, item: Any, names: Sequence[str]) -> Passage:
        """Return the passage in *item*. *names* are those of its values if it is a plain row."""
        if isinstance(item, str):
            text_key = (self.namespace, f"\0{item}")
            return Passage(text_key, item, text=_join_text(item), text_field="")
        if is_row := _is_plain(item):
            own_fields = dict(zip(names, item, strict=True))
        else:
            own_fields = list_fields(item, self.stops_at)
        fields, layout = own_fields, _find_layout(tuple(own_fields), self.named)
        id_ = _find_string(fields, layout["id"])
        inner_name = None if id_ else _find_inner(fields, layout)
        if inner_name is not None:
            # A document beside its score, as in LlamaIndex.
            outer = {name: field for name, field in fields.items() if field is not None}
            outer.pop(inner_name, None)
            fields = list_fields(own_fields[inner_name], self.stops_at) | outer
            layout = _find_layout(tuple(fields), self.named)
            id_ = _find_string(fields, layout["id"])
        metadata_name, metadata = _find_metadata(fields, layout, self.stops_at)
        text, text_field = _find_text(fields, layout)
        if text is None and metadata_name:
            text, text_field = _find_text(metadata, _find_layout(tuple(metadata), self.named))
            text_field = f"metadata.{text_field}"
        if is_row and inner_name is None:
            # All texts, because the other rows of a response decide which one is the passage.
            shown = [
                str(value)
                for place, value in enumerate(item)
                if isinstance(value, str) or (place == 0 and _is_id(value))
            ]
            # What follows a NUL is text, which is not for the query log.
            key = "\0".join(shown if id_ else ("", *shown)) or "\0"
        elif id_:
            key = id_
        else:
            # Chunks of one document share its id, so the text is a part of the key.
            id_ = _find_string(fields, layout["document_id"])
            # Scores and similar numbers tell no passages apart.
            other = {name: field for name, field in metadata.items() if type(field) is not float}
            key = f"{id_ or ''}\0{text or repr(other or item)}"
        title = metadata.get("title") or _find_string(fields, layout["title"])
        numbers = [name for name in layout["score"] if _is_number(fields[name])]
        score = convert_to_float(fields[numbers[0]]) if numbers else None
        return Passage(
            (str(fields.get("namespace") or self.namespace), key),
            item,
            id_,
            score,
            text,
            title if isinstance(title, str) else "",
            metadata,
            None if text is None else text_field,
            [(names.index(name) if is_row else name,) for name in numbers if name in own_fields],
        )


def _find_metadata(
    fields: dict[Any, Any],
    layout: _Layout,
    stops_at: float,
) -> tuple[str, dict[Any, Any]]:
    """Return the name of the field with the metadata, and the metadata; ``""`` without one."""
    empty_name = ""
    for name in layout["metadata"]:
        metadata = fields[name]
        if metadata and (type(metadata) is dict or isinstance(metadata, Mapping)):
            return name, list_fields(metadata, stops_at)
        if metadata is None or isinstance(metadata, Mapping):
            empty_name = empty_name or name
    if empty_name:
        return empty_name, {}
    return "", {name: field for name, field in fields.items() if name not in _NOT_METADATA}


def _find_string(
    fields: dict[Any, Any],
    names: Sequence[str],
) -> str | None:
    for name in names:
        if (value := fields.get(name)) is not None:
            return str(value) or None
    return None


def _find_inner(fields: dict[Any, Any], layout: _Layout) -> Any:
    """Return the name of the field that holds the whole passage; ``None`` if there is none."""
    if any(isinstance(fields.get(name), str) for name in layout["text"]):
        return None
    for name, value in fields.items():
        if name not in layout["metadata"] and (name == "document" or _is_document(value)):
            return name
    return None


def _is_document(value: Any) -> bool:
    """Return whether *value* is an object with an id or a text."""
    fields = list_fields(value)
    layout = _find_layout(tuple(fields))
    names = (*layout["id"], *layout["document_id"], *layout["text"])
    return bool(_find_string(fields, names))


def _find_text(
    fields: dict[Any, Any],
    layout: _Layout,
) -> tuple[str | None, str]:
    """Return the text in *fields* and the name of its field; (None, "") without a text."""
    for name in layout["text"]:
        if (text := _join_text(fields.get(name))) is not None:
            return text, name
    return None, ""


def _join_text(
    value: Any,
    depth: int = 2,
) -> str | None:
    """Return the text in *value*: a string, an object with a text, or a list of such parts."""
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    if value is None or not depth:
        return None
    if isinstance(value, list | tuple):
        texts = (_join_text(part, depth - 1) for part in value[:_MOST_PARTS])
        return "\n".join(filter(None, texts)) or None
    fields = list_fields(value)
    names = _find_layout(tuple(fields))["text"]
    texts = (_join_text(fields.get(name), depth - 1) for name in names)
    return next(filter(None, texts), None)


def _check_without_text(passage: Passage) -> None:
    """Raise `ResponseShapeError` if *passage*, which has no text, is none, or a group of some."""
    item = passage.item
    lists = [value for value in list_fields(item).values() if _is_list(value) and len(value)]
    if any(_is_document(value[0]) for value in lists):
        raise _build_shape_error(item, "groups of passages were found, each of type")
    is_passage = passage.id is not None or isinstance(item, Mapping | str)
    if not is_passage and not list_texts(passage):
        raise _build_shape_error(item, "neither an id nor a text was found in an item of type")


def replace_score(passage: Passage, score: float) -> Any:
    """Return a copy of the passage's item, of the same type, with *score* as its score.

    Items without a score or that cannot be copied, such as database rows, are returned themselves.
    """
    for path in passage.score_paths if passage.score != score else ():
        # If the class computes its score, the copy does not show the new score and is useless.
        with suppress(Exception):
            copied = _replace(passage.item, path, lambda _: score)
            if _get(copied, path) == score:
                return copied
    return passage.item


# --- plain rows of databases ----------------------------------------------------------------------


def _name_values(rows: Sequence[Any]) -> Sequence[str]:
    """Return the names of the values in *rows*, which are plain rows of one length.

    A value of unknown meaning is named by its place, as in ``["id", "1", "text", "score"]``.
    """
    columns = [[it for it in column if it is not None] for column in zip(*rows, strict=True)]
    names = [_name_column(place, column) for place, column in enumerate(columns)]
    are_scored = all(map(_is_scored_pair, rows))
    if are_scored:
        names[1:] = ["score", "metadata"][: len(names) - 1]
        if not all(isinstance(value, str | int) for value in columns[0]):
            return ["document", *names[1:]]
    texts = [
        (any(map(_has_words, column)), sum(map(len, column)), place)
        for place, column in enumerate(columns)
        if names[place] == str(place) and all(isinstance(value, str) for value in column)
    ]
    if texts:
        # The longest texts with spaces are the passages, or else the longest words.
        _, _, place = max(texts)
        names[place] = "text"
    # A list of lists without a number may contain columns instead of rows.
    are_rows = isinstance(rows[0], tuple) or any(map(_is_number, chain(*columns)))
    are_passages = are_scored or "text" in names or {"id", "metadata"}.issubset(names)
    if not (are_rows and are_passages):
        problem = "an item must be (id, score), (document, score) or have a text, not"
        raise _build_shape_error(rows[0], problem)
    return names


def _is_scored_pair(row: Any) -> bool:
    """Return whether *row* is ``(id or document, score)``, optionally followed by metadata."""
    # The third value is the metadata.
    if len(row) not in (2, 3) or not isinstance((*row, None)[2], Mapping | None):
        return False
    return row[1] is None or _is_number(row[1])


def _name_column(
    place: int,
    column: Sequence[Any],
) -> str:
    """Return the name of a *column* that holds no texts; its *place* if its meaning is unknown."""
    if column and all(isinstance(value, Mapping) for value in column):
        return "metadata"
    # Scores only rise or only fall. Whole numbers may be ids.
    numbers: list[Any] = list(map(convert_to_float, column))
    are_scores = None not in numbers and not all(hasattr(value, "__index__") for value in column)
    if are_scores and numbers in (sorted(numbers), sorted(numbers, reverse=True)):
        return "score"
    return "id" if place == 0 and all(map(_is_id, column)) else str(place)


def _is_id(value: Any) -> bool:
    """Return whether *value* may be an id: a whole number, a word, or an object such as a UUID."""
    if isinstance(value, str):
        return not _has_words(value)
    return not hasattr(value, "__iter__") and (hasattr(value, "__index__") or not _is_number(value))


# --- a response -----------------------------------------------------------------------------------


def find_shape(response: Any) -> Shape:
    """Detect the structure of *response*, and return the functions that read and rebuild it.

    Raises `ResponseShapeError`, which names its type, if it holds no readable list of passages.
    """
    columns = _find_columns(response, _find_list_path(response))
    return Shape(partial(_read_columns, columns), partial(_rebuild_columns, columns))


def _read_columns(
    columns: Mapping[Path, str],
    response: Any,
) -> Sequence[Any]:
    """Return an item per place in the *columns* of *response*: a dict of the values there.

    The items in a single column are whole passages.
    """
    lists: list[Sequence[Any]] = [_get(response, path) or () for path in columns]
    if len(lists) == 1:
        return lists[0]
    rows = zip(*lists, strict=True)
    return [dict(zip(columns.values(), row, strict=True)) for row in rows]


def _rebuild_columns(
    columns: Mapping[Path, str],
    response: Any,
    items: Sequence[Any],
) -> Any:
    for path, name in columns.items():
        values = items if len(columns) == 1 else [item.get(name) for item in items]
        response = _replace(response, path, partial(_refill, items=values))
    return response


def _find_list_path(response: Any) -> Path:
    """Return the path to the list of passages in *response*; () if it is a list itself."""
    is_empty = type(response) is dict and not response
    if response is None or is_empty or _is_list(response):
        return ()
    fields = list_fields(response)
    empty_path: Path = ()
    for usual in ENVELOPES:
        path, value = _follow(fields, usual)
        if _is_list(value):
            path = _unnest(path, value)
            if _can_hold_passages(_get(fields, path)):
                return path
        elif path and value is None:
            empty_path = empty_path or path
    # Chroma always returns the ids of all passages, and texts only on request.
    if isinstance(response, Mapping) and _is_list(ids := fields.get("ids")):
        path = _unnest(("ids",), ids)
        if not any(map(_is_list, _get(fields, path))):
            return path
    if not empty_path:
        problem = "no list of passages was found in a response of type"
        raise _build_shape_error(response, problem)
    return empty_path


def _unnest(path: Path, value: Any) -> Path:
    """Return the path to the only list in *value* if it is a column of Chroma for one query."""
    inner = value[0] if len(value) == 1 and path[0] in _COLUMNS else None
    return (*path, 0) if _is_list(inner) and not _is_scored_pair(inner) else path


def _can_hold_passages(items: Sequence[Any]) -> bool:
    """Return whether *items* is empty, or one of its first items has an id or a text."""
    with suppress(ResponseShapeError):
        passages = _Reader().read_all(list(islice(items, _MOST_SAMPLES)))
        return not passages or any(
            passage.id or has_text(passage) or list_texts(passage) for passage in passages
        )
    return False


def _find_columns(response: Any, path: Any) -> Mapping[Path, str]:
    """Return the paths to the lists with a field of each passage, and the names of the fields.

    *path* leads to one of the lists. For Chroma, the result is ``{("ids", 0): "id", ("documents",
    0): "document", ...}``. Only *path* is returned if its list holds whole passages.
    """
    # All lists are fields of the response itself. A 0 leads to the list of the only query.
    own, *inner = path or ("",)
    lists = list_fields(response)
    passages = _get(lists, path)
    if not path or inner not in ([], [0]) or not _is_list(passages):
        return {path: own}
    # Whole passages need no list of texts beside them, but texts and ids do.
    is_bare = own == "ids" or any(isinstance(item, str) for item in passages[:1])
    columns: dict[Path, str] = {}
    for name in lists:
        values: Any = _get(lists, (name, *inner))
        # An object may answer to any name, so its class is asked.
        if isinstance(values, str | bytes | Mapping) or not hasattr(type(values), "__len__"):
            continue
        if len(values) != len(passages):
            continue
        if _is_list(values) and (name == own or name in _COLUMNS):
            columns[name, *inner] = _COLUMNS.get(name, "document")
        elif len(values) and name != "included" and (is_bare or all(map(_is_number, values))):
            problem = f"another list may run parallel to {own!r} in a response of type"
            raise _build_shape_error(response, problem)
    return columns


def _measure_fields(result: SearchResult) -> dict[str, str | int]:
    """Return the texts, numbers and lengths of the fields beside the list of passages."""
    with suppress(ResponseShapeError):
        holder, found = result.response, dict[str, str | int]()
        path = _find_list_path(holder)
        columns = set(chain(*_find_columns(holder, path)))
        for name in path:
            for other, value in list_fields(holder).items():
                if isinstance(value, str) or (type(value) is int and not _LIMIT.match(str(other))):
                    found[str(other)] = value
                elif other not in columns and _is_list(value):
                    found[str(other)] = len(value)
            holder = _get_field(holder, name)
        return found
    return {}


def list_described_fields(result: SearchResult) -> dict[str, str | int]:
    """Return the fields beside the passages that seem to count, repeat or quote all of them."""
    passages = result.ranking.passages
    last_text = passages[-1].text or "" if passages else ""
    return {
        name: value
        for name, value in _measure_fields(result).items()
        if value == len(passages)
        or (isinstance(value, str) and _has_words(last_text) and last_text in value)
    }


def find_dependent_field(larger: SearchResult, smaller: SearchResult) -> str:
    """Return the name of a field of *larger* that depends on the number of passages, or ``""``."""
    others, count = _measure_fields(smaller), len(smaller.ranking.passages)
    for name, value in list_described_fields(larger).items():
        other = others.get(name)
        if other != value and (isinstance(value, str) or other == count):
            return name
    return ""


# --- copies with another value --------------------------------------------------------------------


def _replace(
    holder: Any,
    path: Path,
    change: Callable[[Any], Any],
) -> Any:
    """Return a copy of *holder* with ``change(value)`` in place of the *value* at *path*."""
    if not path:
        return change(holder)
    name, *inner = path
    value = _replace(_get_field(holder, name), inner, change)
    if isinstance(name, int):
        return _refill(holder, [*holder[:name], value, *holder[name + 1 :]])
    class_: Any = type(holder)
    if _classify(class_) in ("mapping", "view") and not isinstance(holder, dict):
        # A copy may share the dict, so a new object is built.
        copied = class_({**list_fields(holder), name: value})
    else:
        copied = copy_with(holder, {name: value})
    if copied is holder or type(copied) is not type(holder):
        raise _build_shape_error(holder)
    return copied


def _refill(container: Any, items: Sequence[Any]) -> Any:
    """Return *items* in a container of the type and with the attributes of *container*."""
    class_ = type(container)
    if container is None or class_ is list:
        return list(items)
    if class_ is tuple:
        return tuple(items)
    filled: Any = copy.copy(container)
    attributes = getattr(container, "__dict__", {}).values()
    # Milvus keeps the ids and distances of its hits beside them.
    has_columns = any(_is_list(it) and len(it) == len(container) > 0 for it in attributes)
    if filled is container or has_columns or not isinstance(filled, MutableSequence):
        raise _build_shape_error(container)
    filled.clear()
    filled.extend(items)
    return filled


def _build_shape_error(
    value: Any,
    problem: str = "no other passages fit in a copy of type",
) -> ResponseShapeError:
    """Return the error for *value*, which it names by its type and never quotes."""
    class_ = type(value)
    shape = f"{class_.__module__}.{class_.__qualname__}".removeprefix("builtins.")
    advice = f"wrap the function with kind='async', or {ADVICE}" if isawaitable(value) else ADVICE
    return ResponseShapeError(f"{problem} {shape}; {advice}", shape=shape)


# --- what a response says of itself ---------------------------------------------------------------


def has_text(passage: Passage) -> bool:
    """Return whether *passage* has a text. A bare word does not count: it is probably an id."""
    text = passage.text
    return text is not None and (passage.text_field != "" or _has_words(text))


def describe_missing_text(
    passages: Sequence[Passage],
    text_field: str | None,
) -> tuple[str, str]:
    """Return why no text was found in *passages*, and the fix, as clauses that quote no value."""
    where = "a common field name" if text_field is None else repr(text_field)
    problem = f"the passages have no text under {where}"
    texts = [(len(text), name) for row in passages for name, text in list_texts(row).items()]
    if not texts:
        fix = "return the texts too: in Pinecone include_metadata=True, fields= or include_fields="
        return problem, fix
    name = max(texts)[1]
    setting = f'config={{"keywordEvidence": {{"fields": {{"text": "{name}"}}}}}}'
    return f"{problem}, but {name!r} holds text", f"set {setting}"


def list_texts(passage: Passage) -> dict[str, str]:
    """Return the fields of *passage* and of its metadata that have several words."""
    return {
        name: text
        for name, text in {**list_fields(passage.item), **passage.metadata}.items()
        if isinstance(text, str) and _has_words(text.strip()) and _FIELD_NAME.fullmatch(str(name))
    }
