"""Read the passages of any response, and rebuild the response with other passages.

Responses and items are recognised by the names of their fields, not by their library:

- A response is a list of items, has such a list under a usual name, or has a list for each field of
  its items (columns).
- An item is a text, a plain row such as ``(id, score)``, or something with fields: a mapping, a
  database row or a named tuple, which are read as a dict (`_view`), or any other object.

The usual names that a kind of object has are found once (`Layout`), and each item is read once.
What cannot be read counts as missing, and what cannot be copied is refused: nothing of the caller's
is written to.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter, UserDict, UserList, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from inspect import getattr_static, getmembers_static, ismemberdescriptor
from itertools import chain, islice
from math import isfinite
from operator import is_
from time import monotonic
from typing import Any, Final, NamedTuple

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.types import (
    DEFAULT_NAMESPACE,
    NEVER,
    Deadline,
    Passage,
    Path,
    Ranking,
    Variant,
)

ADVICE: Final = "pass read= (response -> list of items) and write= (response, items -> response)"
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
# If these are None, the response is empty. Other names are used for other data, too.
_KNOWN_ENVELOPES: Final = ENVELOPES[:8]
_VECTORS: Final = ("values", "sparse_values", "vector", "embedding")
_NOT_METADATA: Final = frozenset((*IDS[:3], *SCORES[:3], "namespace", *_VECTORS))
# Chroma's columns. A field of an item lacks the last letter.
_COLUMNS: Final = (
    "ids",
    "documents",
    "texts",
    "metadatas",
    "distances",
    "scores",
    "embeddings",
    "uris",
)
# Lists of scores beside a list of passages.
_NUMBERS: Final = ("scores", "distances", "similarities")
# Classes with one of these attributes are no database rows, although they may have keys().
_NO_ROWS: Final = ("__dataclass_fields__", "__struct_fields__", "model_fields", "dtype", "iloc")
# Some scripts put no spaces between words, so CJK punctuation counts too.
_SPACE: Final = re.compile(r"[\s。、，！？]")
_FIELD_NAME: Final = re.compile(r"[^\W\d][\w-]{0,59}")
_MOST_FIELDS: Final = 1_000
_MOST_PARTS: Final = 100
# The number of characters of a 32-bit float in JSON, with its comma.
_NUMBER_CHARS: Final = 12
# How long slow mappings may take in all, even if the deadline has passed.
_READING_SECONDS: Final = 0.1

_USUAL: Final = KeywordEvidenceSettings()


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Shape:
    """Functions to read the items of a response, and to rebuild the response with other items.

    Attributes:
        items: Returns the items of a response in the backend's order, without copying them.
        rebuild: Returns a copy of a response with other items. It accepts any number of items in
            any order. They may have new scores, and they may come from other responses of the same
            function.
    """

    items: Callable[[Any], Sequence[Any]]
    rebuild: Callable[[Any, Sequence[Any]], Any]


@dataclass(eq=False, repr=False, slots=True)
class SearchResult:
    """The response to the search for one variant, and the ranking read from it.

    Attributes:
        ranking: The keys, scores and passages, best first.
        shape: The object that reads passages from the response and rebuilds the response.
        response: The response as the function returned it.
        is_cut: Whether reading took too long, so that some passages lack metadata.
    """

    ranking: Ranking
    shape: Shape
    response: Any
    is_cut: bool = False


def read_response(
    variant: Variant,
    response: Any,
    custom_shape: Shape | None = None,
    *,
    options: KeywordEvidenceSettings = _USUAL,
    initial_rankings: Mapping[str, Ranking] | None = None,
    deadline: Deadline | None = None,
) -> SearchResult:
    """Return the ranking in *response*, together with the response and its shape.

    Args:
        variant: The variant that was searched.
        response: The function's response.
        custom_shape: The user's functions to read and rebuild responses; ``None`` to detect the
            structure.
        options: The settings that name the fields of ids, texts and scores.
        initial_rankings: The rankings that the search itself merged, by name.
        deadline: When to stop reading metadata that is slow to read.

    Raises:
        ResponseShapeError: The response cannot be read.
    """
    try:
        shape = custom_shape or find_shape(response, options)
        items = shape.items(response)
        if not _is_list(items):
            raise _build_shape_error(items, "read= must return a list of items, not")
        reader = _Reader(options, _follow(response, "namespace")[1], deadline)
        passages = reader.read_all(items)
    except ResponseShapeError:
        raise
    except Exception as error:
        # The response comes from the user's code, so reading it may raise anything.
        problem = f"reading raised {type(error).__name__} for a response of type"
        raise _build_shape_error(response, problem) from error
    if reader.is_late and not any(passage.text for passage in passages):
        raise _build_shape_error(items[0], "reading took too long for items of type")
    keys = [passage.key for passage in passages]
    scores = [passage.score for passage in passages]
    ranking = Ranking(variant, keys, scores, passages, initial_rankings or {})
    return SearchResult(ranking, shape, response, reader.is_late)


def read_passage(item: Any) -> Passage:
    """Return the passage in *item*, a single object.

    Raises:
        ResponseShapeError: *item* is not a passage.
    """
    return _Reader(_USUAL).read_all([item])[0]


# --- values ---------------------------------------------------------------------------------------


@lru_cache(1_024)
def _classify(class_: Any) -> str:
    """Return what objects of *class_* are.

    - ``text``, ``list``, ``array`` (numpy's), ``named tuple``
    - ``mapping``: a row of a database that knows its columns, too
    - ``view``: an object with its fields in a dict alone, such as Pinecone's ``Document``
    - ``object``: anything else
    """
    if class_.__name__ == "ndarray" and hasattr(class_, "__array_interface__"):
        # The subclasses of numpy's arrays hold more than the values.
        return "array"
    if issubclass(class_, Sequence) and hasattr(class_, "_fields"):
        return "named tuple"
    is_object = any(hasattr(class_, name) for name in _NO_ROWS)
    has_keys = callable(getattr(class_, "keys", None)) and hasattr(class_, "__getitem__")
    if issubclass(class_, Mapping) or (has_keys and not is_object):
        return "mapping"
    if issubclass(class_, str | bytes | bytearray | memoryview):
        return "text"
    if issubclass(class_, Sequence):
        return "list"
    slots = [name for name, it in getmembers_static(class_) if ismemberdescriptor(it)]
    is_object = is_object or class_.__dictoffset__ or any(it[0] != "_" for it in slots)
    return "object" if is_object or not hasattr(class_, "to_dict") else "view"


def _get_kind(value: Any) -> str:
    class_: Any = type(value)
    return _classify(class_)


def _is_list(value: Any) -> bool:
    """Return whether *value* is a sequence of items, which texts, rows and named tuples are not."""
    if (kind := _get_kind(value)) == "array":
        return bool(value.ndim == 1 and value.dtype.kind in "OUT")
    return kind == "list"


def _is_column(value: Any) -> bool:
    """Return whether *value* is a list, or an array of numbers or vectors."""
    return _is_list(value) or (_get_kind(value) == "array" and value.ndim > 0)


def _is_plain(value: Any) -> bool:
    """Return whether *value* is a list or a tuple without names."""
    return _get_kind(value) == "list" and isinstance(value, (tuple, list))


def _is_number(value: Any) -> bool:
    return type(value) is float or (hasattr(value, "__float__") and not isinstance(value, bool))


def convert_to_float(value: Any) -> float | None:
    """Return *value* as a finite float; ``None`` if it is not a finite number."""
    try:
        number = float(value) if _is_number(value) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


def _has_words(text: str) -> bool:
    """Return whether *text* has spaces or CJK punctuation, and is therefore probably no id."""
    return _SPACE.search(text) is not None


def is_id(value: Any) -> bool:
    """Return whether *value* may be an id: a whole number, a word, or an object such as a UUID."""
    if isinstance(value, str):
        return not _has_words(value)
    if value is None or isinstance(value, bool) or hasattr(value, "__iter__"):
        return False
    return not _is_number(value) or hasattr(value, "__index__")


def can_be_scores(column: Sequence[Any]) -> bool:
    """Return whether *column* may contain scores: numbers that only rise or only fall.

    A column of whole numbers is rejected, because these may be ids.
    """
    numbers = [number for number in map(convert_to_float, column) if number is not None]
    if len(numbers) < len(column) or all(hasattr(value, "__index__") for value in column):
        return False
    return numbers == sorted(numbers, reverse=numbers[0] > numbers[-1])


# --- the fields of any object ---------------------------------------------------------------------


class Layout(NamedTuple):
    """The fields that an object has, by what they hold, the most usual names first."""

    ids: Sequence[Path]
    document_ids: Sequence[Path]
    scores: Sequence[Path]
    texts: Sequence[Path]
    metadata: Sequence[str]
    names: Mapping[str, str]  # the own name of every field, by `_spell`
    id: str  # the most usual names; "" if there is none
    score: str
    text: str
    place: str


def _find_layout(view: Any, named: tuple[tuple[str, str], ...] = ()) -> Layout:
    """Return the layout of *view*. The fields in *named* are those that the settings name."""
    class_: Any = type(view)
    names = view if class_ is dict else getattr(view, "__dict__", ())
    return _make_layout(class_, tuple(names), named)


@lru_cache(1_024)
def _make_layout(
    class_: type[Any], names: tuple[Any, ...], named: tuple[tuple[str, str], ...]
) -> Layout:
    if class_ is not dict:
        # OpenAPI models return ``None`` for any name, so only names that they declare count.
        names = (*names, *(getattr(class_, "attribute_map", None) or dir(class_)))
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for name in names if isinstance(name, str)):
        spelled.setdefault(_spell(name), []).append(name)

    def pick(usual: Sequence[str]) -> list[str]:
        similar = (sorted(spelled.get(_spell(name), ()), key=name.__ne__) for name in usual)
        return list(chain(*similar))

    settings = dict(named)
    metadata = pick(METADATA)

    def find(kind: str, usual: Sequence[str]) -> list[Path]:
        if kind not in settings:
            return [(name,) for name in pick(usual)]
        # A dot may be a part of the name, or lead to a field in another one.
        paths = dict.fromkeys([(settings[kind],), tuple(settings[kind].split("."))])
        return [*paths, *((holder, *path) for holder in metadata for path in paths)]

    document_ids = [] if "id" in settings else find("", DOCUMENT_IDS)
    paths = find("id", IDS), document_ids, find("score", SCORES), find("text", TEXTS)
    own_names = {spelling: similar[0] for spelling, similar in spelled.items()}
    id_, _, score, text = (str(it[0][0]) if it and not named else "" for it in paths)
    return Layout(*paths, metadata, own_names, id_, score, text, (metadata or [""])[0])


@lru_cache(4_096)
def _spell(name: str) -> str:
    """Return *name* without the differences between ``page_content`` and ``PageContent``."""
    return re.sub("(?<=[^_])_(?=[^_])", "", name).lower()


def _view(value: Any, stops_at: float = NEVER) -> Any:
    """Return the fields of a mapping, row, named tuple or view as a dict, any other *value* itself.

    A mapping of another library may be slow, endless or broken: the fields that were not read by
    the moment *stops_at* are missing.
    """
    class_: Any = type(value)
    if class_ is dict or (kind := _classify(class_)) in ("object", "text", "list", "array"):
        return value
    fields: dict[Any, Any] = {}
    try:
        if kind == "view":
            return dict(value.to_dict())
        if kind == "named tuple":
            return dict(zip(value._fields, value, strict=True))
        for name in islice(value.keys(), _MOST_FIELDS):
            if monotonic() > stops_at:
                break
            fields[name] = value[name]
    except Exception:
        # The object comes from the user's code, so reading it may raise anything.
        return fields
    return fields


def _get(holder: Any, *path: str | int) -> Any:
    """Return the value at *path* in *holder*; ``None`` if it is missing or cannot be read."""
    for name in path:
        class_: Any = type(holder)
        try:
            if class_ is dict:
                holder = holder.get(name)
            elif isinstance(name, int):
                holder = holder[name]
            elif _classify(class_) != "mapping":
                holder = getattr(holder, name, None)
            else:
                holder = holder.get(name) if isinstance(holder, Mapping) else holder[name]
        except Exception:
            # The object comes from the user's code, so reading it may raise anything.
            return None
    return holder


def _get_attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _find(holder: Any, paths: Sequence[Path]) -> Any:
    """Return the first value at *paths* in *holder* that is not ``None``."""
    for path in paths:
        if (value := _get(holder, *path)) is not None:
            return value
    return None


def _find_string(holder: Any, paths: Sequence[Path]) -> str | None:
    value = _find(holder, paths)
    return None if value is None else str(value) or None


def _follow(holder: Any, usual: str) -> tuple[Path, Any]:
    """Return the path *usual* in the names of *holder*, and the value; () if there is none."""
    path: Path = ()
    for spelling in map(_spell, usual.split(".")):
        name = _find_layout(_view(holder)).names.get(spelling)
        if name is None:
            return (), None
        path = (*path, name)
        holder = _get(holder, name)
    return path, holder


def list_fields(holder: Any) -> Mapping[str, Any]:
    """Return the fields of *holder* by name; none of a text or a list."""
    view = _view(holder)
    if type(view) is dict:
        return view
    class_: Any = type(view)
    names = getattr(class_, "__struct_fields__", ()) or getattr(class_, "__dataclass_fields__", ())
    return {name: _get(view, name) for name in names or _get(view, "__dict__") or ()}


# --- one item -------------------------------------------------------------------------------------


class _Reader:
    """Reads the passages of one response.

    Attributes:
        is_late: Whether reading took too long, so that some fields are missing.
    """

    def __init__(
        self,
        options: KeywordEvidenceSettings,
        namespace: Any = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._named = tuple(options.fields.items())
        self._fields = options.fields
        self._namespace = str(namespace or DEFAULT_NAMESPACE)
        self.is_late = False
        self._shared: dict[str, tuple[Collection[Any], Layout]] = {}
        self._stops_at = NEVER
        if deadline is not None:
            self._stops_at = max(deadline.at, monotonic() + _READING_SECONDS)

    def read_all(self, items: Sequence[Any]) -> list[Passage]:
        """Return the passages in *items*.

        Raises:
            ResponseShapeError: An item is not a passage.
        """
        names = _name_positions(items, self._fields.values())
        passages = [self._read(item, names) for item in items]
        for passage in passages:
            if passage.text is None:
                _check_without_text(passage)
        return passages

    def _read(self, item: Any, names: Sequence[str] = ()) -> Passage:
        """Return the passage in *item*. *names* are the names of its values, if it is a row."""
        view, row_key = item, ""
        if type(item) is not dict:
            if isinstance(item, str):
                key = (self._namespace, f"\0{item}")
                return Passage(key, item, text=_join_text(item), text_field="")
            if names and "id" not in self._fields:
                row_key = _build_row_key(item)
            if not names and _is_plain(item):
                names = _name_pair(item)
            view = dict(zip(names, item, strict=True)) if names else self._view(item)
        layout = self._find_layout(view, "item")
        passage = self._read_fields(item, view, layout)
        if passage.id is None or "node" in layout.names:
            is_pair = names[:1] == ("document",)
            inner_name = "document" if is_pair else _find_inner(view)
            if inner_name is not None:
                passage = self._read_inner(view, inner_name, passage)
        if names:
            paths = [(names.index(it), *rest) for it, *rest in passage.score_paths if it in names]
            key = (passage.key[0], row_key) if row_key else passage.key
            passage = passage._replace(key=key, score_paths=paths)
        return passage

    def _find_layout(self, view: Any, place: str) -> Layout:
        """Return the layout of *view*, which neighbours with the same keys share."""
        if type(view) is not dict:
            return _find_layout(view, self._named)
        shared = self._shared.get(place)
        if shared is None or view.keys() != shared[0]:
            shared = self._shared[place] = view.keys(), _find_layout(view, self._named)
        return shared[1]

    def _view(self, value: Any) -> Any:
        # Only mappings of other libraries can be slow.
        if type(value) is dict or not isinstance(value, Mapping):
            return _view(value)
        view = _view(value, self._stops_at)
        self.is_late = self.is_late or monotonic() > self._stops_at
        return view

    def _read_fields(self, item: Any, view: Any, layout: Layout) -> Passage:
        """Return the passage whose fields are those of *view*."""
        # Most values are what is usual under the most usual name. The others are searched for.
        get = view.get if type(view) is dict else partial(_get_attribute, view)
        place: str | None = layout.place
        metadata: Any = get(place) if place else _list_other_fields(view)
        if place and (type(metadata) is not dict or not metadata):
            place, metadata = self._find_metadata(view, layout)
        source, inner, prefix = get, layout, ""
        if place and not layout.text:
            source, prefix = metadata.get, "metadata."
            inner = self._find_layout(metadata, "metadata")
        text = source(inner.text) if inner.text else None
        field = inner.text
        if type(text) is not str or not text or text.isspace():
            text, field = _find_text(view, layout)
            prefix = ""
            if text is None and place:
                text, field = _find_text(metadata, _find_layout(metadata, self._named))
                prefix = "metadata."
        id_ = get(layout.id) if layout.id else None
        if type(id_) is not str or not id_:
            id_ = _find_string(view, layout.ids)
        key = id_
        if key is None:
            id_ = _find_string(view, layout.document_ids)
            key = f"{id_ or ''}\0{text or _print_fields(item, metadata)}"
        score = get(layout.score) if layout.score else None
        scores = layout.scores
        if type(score) is not float or not isfinite(score):
            if not scores and place != "metadata" and "metadata" in layout.metadata:
                # In Weaviate, the metadata is an object with the scores.
                paths = _find_layout(get("metadata")).scores
                scores = [("metadata", *path) for path in paths]
            score = _read_score(view, scores)
        namespace = get("namespace") if "namespace" in layout.names else None
        title = metadata.get("title")
        if type(title) is not str and "title" in layout.names:
            title = get(layout.names["title"])
        return Passage(
            (str(namespace) if namespace else self._namespace, key),
            item,
            id_,
            score,
            text,
            title if isinstance(title, str) else "",
            metadata,
            None if text is None else prefix + field,
            scores,
        )

    def _find_metadata(self, view: Any, layout: Layout) -> tuple[str | None, dict[Any, Any]]:
        """Return the name of the field with the metadata, and the metadata.

        Without separate metadata, return ``None`` and the other fields.
        """
        found: str | None = None
        for name in layout.metadata:
            value = _get(view, name)
            if value is None or isinstance(value, Mapping):
                if value:
                    return name, self._view(value)
                found = found or name
        if found is not None:
            return found, {}
        return None, _list_other_fields(view)

    def _read_inner(self, view: Any, name: str, outer: Passage) -> Passage:
        """Return the passage in the field *name* of *view*, with what *outer* has beside it."""
        inner = self._read(_get(view, name))
        if inner.text is None:
            key = outer.key if inner.id is None else inner.key
            inner = inner._replace(key=key, text=outer.text, text_field=outer.text_field)
        paths = outer.score_paths
        if not paths and type(view) is dict:
            # Next to a document, a computed distance has whatever name the database gave it.
            paths = [(it,) for it, value in view.items() if _is_number(value)]
        paths = [*paths, *((name, *path) for path in inner.score_paths)]
        return inner._replace(
            item=outer.item,
            score=_read_score(view, paths),
            score_paths=paths,
            title=inner.title or outer.title,
            metadata=inner.metadata if name in outer.metadata else outer.metadata,
        )


def _list_other_fields(view: Any) -> dict[Any, Any]:
    """Return the fields of *view* that serve as its metadata."""
    fields = view if type(view) is dict else list_fields(view)
    return {name: value for name, value in fields.items() if name not in _NOT_METADATA}


def _print_fields(item: Any, metadata: Mapping[Any, Any]) -> str:
    """Return a string that identifies *item* by its fields, without scores and similar numbers."""
    fields = {name: value for name, value in metadata.items() if type(value) is not float}
    return repr(fields or item)


def _find_inner(view: Any) -> str | None:
    """Return the name of the field of *view* that holds the whole passage, if any."""
    layout = _find_layout(view)
    if "node" in layout.names and _is_document(_get(view, "node")):
        return "node"
    if layout.ids or layout.document_ids:
        return None
    if any(isinstance(_get(view, *path), str) for path in layout.texts):
        return None
    fields = list_fields(view)
    candidates = (name for name in fields if name not in layout.metadata)
    return next((name for name in candidates if _is_document(fields[name])), None)


def _is_document(value: Any) -> bool:
    """Return whether *value* is an object with an id or a text."""
    if value is None or isinstance(value, str | int | float | bytes | list | tuple):
        return False
    view = _view(value)
    layout = _find_layout(view)
    return _find(view, (*layout.ids, *layout.document_ids, *layout.texts)) is not None


def _find_text(view: Any, layout: Layout) -> tuple[str | None, str]:
    """Return the text of *view* and the name of its field."""
    for path in layout.texts:
        if (text := _join_text(_get(view, *path))) is not None:
            return text, ".".join(map(str, path))
    if "_nodecontent" in layout.names:
        # LlamaIndex stores a whole node as JSON.
        try:
            node = json.loads(_get(view, "_node_content"))
        except (TypeError, ValueError, RecursionError):
            return None, ""
        return _join_text(node) if isinstance(node, dict) else None, "_node_content"
    return None, ""


def _join_text(value: Any, depth: int = 2) -> str | None:
    """Return the text in *value*: a string, an object with a text, or a list of such parts."""
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    if value is None or not depth or _is_number(value):
        return None
    if isinstance(value, list | tuple):
        values: Any = () if value and _is_number(value[0]) else value[:_MOST_PARTS]
        return "\n".join(filter(None, (_join_text(it, depth - 1) for it in values))) or None
    view = _view(value)
    texts = (_join_text(_get(view, *it), depth - 1) for it in _find_layout(view).texts)
    return next(filter(None, texts), None)


def _read_score(view: Any, paths: Sequence[Path]) -> float | None:
    """Return the first number at *paths* in *view*; ``None`` if it is not finite."""
    for path in paths:
        value = _get(view, *path)
        if type(value) is float and isfinite(value):
            return value
        if _is_number(value):
            return convert_to_float(value)
    return None


def _check_without_text(passage: Passage) -> None:
    """Raise `ResponseShapeError` if *passage*, which has no text, is none, or a group of some."""
    item = passage.item
    usual_paths = () if _is_plain(item) or isinstance(item, str) else ENVELOPES
    for path in usual_paths:
        _, value = _follow(item, path)
        if _is_list(value) and len(value) and _is_document(value[0]):
            raise _build_shape_error(item, "groups of passages were found, each of type")
    is_passage = passage.id is not None or isinstance(item, Mapping | str)
    if not is_passage and not measure_texts(item, passage.metadata):
        raise _build_shape_error(item, "neither an id nor a text was found in an item of type")


def replace_score(passage: Passage, score: float) -> Any:
    """Return a copy of the passage's item, of the same type, with *score* as its score.

    If the item has no score, or cannot be copied (such as a database row), the item itself is
    returned.
    """
    item = passage.item
    if passage.score == score:
        return item
    for path in passage.score_paths:
        if not _is_number(_get(item, *path)):
            continue
        try:
            copied = _replace(item, path, lambda _: score)
        except ResponseShapeError:
            continue
        # If the class computes its score, the copy does not show the new score and is useless.
        if _read_score(copied, passage.score_paths) == score:
            return copied
    return item


def estimate_chars(passage: Passage) -> int:
    """Estimate how many characters the texts and numbers of *passage* have in JSON."""
    own = () if _is_plain(passage.item) else list_fields(passage.item).values()
    # The text, and without separate metadata the whole metadata, are fields of the item.
    values = {id(value): value for value in (*own, *passage.metadata.values(), passage.text)}
    chars = 0
    for value in values.values():
        if isinstance(value, str):
            chars += len(value)
        elif _is_column(value):
            # An embedding has about a thousand numbers, so they are not looked at one by one.
            chars += len(value) * _NUMBER_CHARS
        elif _is_number(value):
            chars += _NUMBER_CHARS
    return chars


# --- plain rows of databases ----------------------------------------------------------------------


def _name_pair(pair: Sequence[Any]) -> Sequence[str]:
    """Return the names of the values in *pair*: an id, a text or a document, a score, metadata."""
    if not _is_scored_pair(pair):
        problem = "an item must be (id, score) or (document, score), not"
        raise _build_shape_error(pair, problem)
    first = pair[0]
    name = "document"
    if isinstance(first, str | int):
        is_text = isinstance(first, str) and _has_words(first)
        name = "text" if is_text else "id"
    return (name, "score", "metadata")[: len(pair)]


def _is_scored_pair(row: Sequence[Any]) -> bool:
    """Return whether *row* is ``(id or document, score)``, optionally followed by metadata."""
    if len(row) not in (2, 3):
        return False
    if row[1] is not None and not _is_number(row[1]):
        return False
    return len(row) == 2 or row[2] is None or isinstance(row[2], Mapping)


def _name_positions(items: Any, named: Collection[str]) -> Sequence[str]:
    """Return the names of the values in *items*, which are plain rows such as (id, text, score).

    The names are ``id``, ``text``, ``score`` and ``metadata``. Any other value is named by its
    position, and so is a value whose position is among the *named* fields of the settings. There
    are no names if the items are something else: rows are lists or tuples of one type and length
    with a text, or with an id and metadata, and are not all pairs of document and score.
    """
    first: Any = items[0] if len(items) else None
    if not _is_plain(first) or not first:
        return ()
    kinds = {(type(row), len(row)) if _is_plain(row) else None for row in items}
    if len(kinds) > 1 or all(map(_is_scored_pair, items)):
        return ()
    columns = [[it for it in column if it is not None] for column in zip(*items, strict=True)]
    # A list of lists without a number may contain columns instead of rows.
    if isinstance(first, list) and not any(map(_is_number, chain(*columns))):
        return ()
    names = list(map(str, range(len(columns))))
    places: dict[str, list[int]] = {"metadata": [], "score": [], "text": []}
    for place, column in enumerate(columns):
        places.setdefault(_classify_column(column), []).append(place)
    # The longest texts with spaces are the passages, or else the first words after the ids.
    worded = [place for place in places["text"] if any(map(_has_words, columns[place]))]
    worded.sort(key=lambda place: -sum(map(len, columns[place])))
    texts = worded or [place for place in places["text"] if place or len(columns) == 1]
    chosen = (
        ("metadata", places["metadata"][:1]),
        ("text", texts[:1]),
        ("score", places["score"][-1:]),
    )
    for name, found in chosen:
        for place in found:
            names[place] = name
    if names[0] == "0" and all(map(is_id, columns[0])):
        names[0] = "id"
    if "text" not in names and not {"id", "metadata"} <= {*names}:
        return ()
    return [str(place) if str(place) in named else name for place, name in enumerate(names)]


def _classify_column(column: Sequence[Any]) -> str:
    """Return what the values of a *column* can be: ``text``, ``metadata`` or ``score``."""
    if not column:
        return ""
    if all(isinstance(value, str) for value in column):
        return "text"
    if all(isinstance(value, Mapping) for value in column):
        return "metadata"
    return "score" if can_be_scores(column) else ""


def _build_row_key(row: Sequence[Any]) -> str:
    """Return a key for the plain *row*: its id, if there is one, and its texts.

    All texts are used, because the other rows of a response decide which of them is the passage.
    """
    id_ = str(row[0]) if is_id(row[0]) else ""
    texts = [it for place, it in enumerate(row) if isinstance(it, str) and (place or not id_)]
    if not texts:
        return id_ or "\0"
    return "\0".join([id_, *texts])


# --- a response -----------------------------------------------------------------------------------


def find_shape(response: Any, options: KeywordEvidenceSettings = _USUAL) -> Shape:
    """Detect the structure of *response*, and return the functions that read and rebuild it.

    ``None`` is read as an empty response.

    Raises:
        ResponseShapeError: *response* contains no readable list of passages. The error names its
            type.
    """
    columns = _find_columns(response)
    if not columns:
        path = _find_list_path(response, options)
        columns = _find_scores_beside(response, path) or {path: ""}
    return Shape(partial(_read_items, columns), partial(_rebuild, columns))


def _read_items(columns: Mapping[Path, str], response: Any) -> Sequence[Any]:
    """Return the items in the list of *response*, or dicts made of the values in its *columns*."""
    lists = [_get(response, *path) for path in columns]
    if "" not in columns.values():
        rows = zip(*lists, strict=True)
        return [dict(zip(columns.values(), row, strict=True)) for row in rows]
    items: Any = lists[0]
    if items is None:
        return ()
    return list(items) if _get_kind(items) == "array" else items


def _rebuild(columns: Mapping[Path, str], response: Any, items: Sequence[Any]) -> Any:
    """Return a copy of *response* with *items* in its list or *columns*."""
    for path, field in columns.items():
        values = [item.get(field) for item in items] if field else items
        response = _replace(response, path, partial(_refill, items=values))
    return response


def _build_unreadable_error(response: Any) -> ResponseShapeError:
    """Return the error for *response*, which holds no list of passages."""
    hints = {
        "isidentifier": "return the list of passages and join it later",
        "cr_await": "wrap the function with kind='async'",
        "add_done_callback": "return its result()",
        "successful": "return what its get() returns",
        "__next__": "return a list of its items",
    }
    advice = ADVICE
    for name, hint in hints.items():
        if hasattr(type(response), name):
            advice = f"{hint}, or {ADVICE}"
            break
    problem = "no list of passages was found in a response of type"
    return _build_shape_error(response, problem, advice)


def _find_list_path(response: Any, options: KeywordEvidenceSettings) -> Path:
    """Return the path to the list of passages in *response*; () if it is a list itself.

    The usual paths are tried in order. The first one with a list that is empty or contains passages
    is used. If there is none, the first known one with ``None`` or with another list is used.

    Raises:
        ResponseShapeError: *response* has no list under a usual name.
    """
    if response is None:
        return ()
    if _is_list(response):
        # Milvus returns one list for each vector that it searches for.
        inner: Any = response[0] if len(response) == 1 else None
        if not _is_list(inner) or _is_scored_pair(inner):
            return ()
        is_nested = not len(inner) or _is_document(inner[0])
        return (0,) if is_nested else ()
    fallbacks = []
    for usual in ENVELOPES:
        path, value = _follow(response, usual)
        if _is_list(value) and _can_hold_passages(value, options):
            return path
        if path and usual in _KNOWN_ENVELOPES and (value is None or _is_list(value)):
            fallbacks.append(path)
    if not fallbacks:
        raise _build_unreadable_error(response)
    return fallbacks[0]


def _can_hold_passages(items: Sequence[Any], options: KeywordEvidenceSettings) -> bool:
    """Return whether *items* is empty, or its first item has an id or a text."""
    if not len(items):
        return True
    if isinstance(items[0], str):
        return any(isinstance(it, str) and _has_words(it) for it in items)
    try:
        (passage,) = _Reader(options).read_all([items[0]])
    except ResponseShapeError:
        return False
    return bool(passage.id or passage.text or measure_texts(passage.item, passage.metadata))


# --- columns: a list for each field, or a list with one list for each text of the query -----------


def _find_columns(response: Any) -> Mapping[Path, str]:
    """Return the paths to the columns in *response*, with the name of a field for each.

    Only a mapping has columns, as in Chroma, if its ids or metadata are a list.

    Raises:
        ResponseShapeError: *response* has the results of several queries, or columns of different
            lengths.
    """
    if not isinstance(response, Mapping):
        return {}
    telling = (response.get(name) for name in ("ids", "metadatas"))
    first: Any = next(filter(_is_list, telling), None)
    others = (_follow(response, it)[1] for it in _KNOWN_ENVELOPES if it != "documents")
    if first is None or any(map(_is_list, others)):
        return {}
    is_nested = len(first) > 0 and _is_list(first[0])
    if is_nested and len(first) > 1:
        problem = "the results of several queries were found in a response of type"
        raise _build_shape_error(response, problem)
    length = len(first[0] if is_nested else first)
    columns: dict[Path, str] = {}
    for name, value in response.items():
        path = (name, 0) if is_nested else (name,)
        column = _get(response, *path)
        is_column = _is_column(column) and len(column) == length
        # Chroma lists the columns that were asked for.
        if is_column and name != "included":
            columns[path] = name[:-1] if name in _COLUMNS else name
        elif name in _COLUMNS and value is not None:
            problem = f"{name!r} must be as long as the other columns in a response of type"
            raise _build_shape_error(response, problem)
    return columns


def _find_scores_beside(response: Any, path: Path) -> Mapping[Path, str]:
    """Return the columns as `_find_columns` does if there are scores beside the list at *path*.

    Raises:
        ResponseShapeError: There are no scores, but another list that may describe the passages.
            After reranking, this list would no longer match. A list counts as such a list if it is
            as long, and if the passages are texts or the list contains only numbers.
    """
    own = path[0] if path else 0
    is_pair = len(getattr(type(response), "_fields", ())) == 2
    lists: Mapping[Any, Any] = list_fields(response) if len(path) == 1 else {}
    if not path and _is_plain(response) and len(response) == 2:
        lists = dict(enumerate(response))
        is_pair = True
    passages = _get(response, own)
    columns = dict[Path, str]({(own,): "document"})
    if not _is_list(passages):
        return {}
    for name, values in lists.items():
        is_parallel = _is_column(values) and len(values) == len(passages)
        if name == own or not is_parallel:
            continue
        are_numbers = getattr(values, "ndim", 1) == 1 and all(map(_is_number, values))
        are_scores = is_pair or name in _NUMBERS
        if are_numbers and are_scores and not any(map(_is_number, passages)):
            columns[name,] = "score"
        elif path and len(values) and (are_numbers or isinstance(passages[0], str)):
            columns[name,] = name
    if len(columns) == 1:
        return {}
    if "score" not in columns.values():
        problem = f"another list may run parallel to {own!r} in a response of type"
        raise _build_shape_error(response, problem)
    return columns


# --- copies with another value --------------------------------------------------------------------


def _replace(holder: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """Return a copy of *holder* with ``change(value)`` in place of the *value* at *path*.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    try:
        if not path:
            return change(holder)
        name, *inner = path
        copied = _copy_with(holder, name, _replace(_get(holder, name), inner, change))
    except ResponseShapeError:
        raise
    except Exception as error:
        # The class of the holder may refuse a copy in any way.
        raise _build_shape_error(holder) from error
    if copied is holder or type(copied) is not type(holder):
        raise _build_shape_error(holder)
    return copied


def _refill(container: Any, items: Sequence[Any]) -> Any:
    """Return *items* in a container of the type and with the attributes of *container*."""
    class_ = type(container)
    if container is None or class_ in (list, tuple):
        return tuple(items) if class_ is tuple else list(items)
    if _get_kind(container) == "array":
        return _refill_array(container, items)
    is_tuple = issubclass(class_, tuple)
    filled: Any = tuple.__new__(class_, items) if is_tuple else copy.copy(container)
    if filled is container:
        raise _build_shape_error(container)
    if isinstance(filled, list):
        list.__setitem__(filled, slice(None), items)
    elif isinstance(filled, UserList):
        filled.data = list(items)
    elif isinstance(filled, deque):
        filled.clear()
        filled.extend(items)
    for name, value in getattr(container, "__dict__", {}).items():
        if not isinstance(filled, UserList) or name != "data":
            vars(filled)[name] = _realign(container, value, items)
    if len(filled) != len(items) or not all(map(is_, filled, items)):
        raise _build_shape_error(container)
    return filled


def _refill_array(array: Any, items: Sequence[Any]) -> Any:
    # There is an array, so numpy is already loaded.
    import numpy as np

    # New texts may be longer than the old ones, and new numbers may not be whole.
    dtype = array.dtype if array.dtype.kind in "fO" or not items else None
    return np.array(items, dtype=dtype).reshape(len(items), *array.shape[1:])


def _realign(container: Sequence[Any], value: Any, items: Sequence[Any]) -> Any:
    """Return an attribute of *container*, whose *value* may be a list parallel to its items.

    Milvus keeps the ids and distances of its hits in attributes of the list too.
    """
    if not _is_list(value) or not len(value) or len(value) != len(container):
        return value
    for key in container[0] if isinstance(container[0], Mapping) else ():
        if all(item.get(key) == own for item, own in zip(container, value, strict=True)):
            return [item.get(key) for item in items]
    raise _build_shape_error(container, "another list may run parallel to the items of type")


def _copy_with(holder: Any, name: str | int, value: Any) -> Any:
    """Return a copy of *holder* with *value* as its field *name*, or at the position *name*."""
    class_: Any = type(holder)
    if class_ is dict:
        return {**holder, name: value}
    if isinstance(name, int):
        return _refill(holder, [*holder[:name], value, *holder[name + 1 :]])
    if isinstance(holder, tuple):
        return holder._replace(**{name: value})  # type: ignore[attr-defined]
    if isinstance(holder, dict | UserDict):
        copied: Any = copy.copy(holder)
        copied[name] = value
        return copied
    if hasattr(class_, "__struct_fields__"):
        return class_(**{**list_fields(holder), name: value})
    if _classify(class_) in ("mapping", "view"):
        # A copy may share the dict, so a new object is built.
        return class_({**list_fields(holder), name: value})
    attributes = getattr(holder, "__dict__", {})
    if isinstance(store := attributes.get("_data_store"), dict):
        # The copy module cannot copy the OpenAPI models of older SDKs.
        copied = object.__new__(class_)
        vars(copied).update(attributes, _data_store={**store, name: value})
        return copied
    descriptor = getattr_static(class_, name, None)
    if hasattr(type(descriptor), "__set__") and not ismemberdescriptor(descriptor):
        # Code of the class may write to data that a copy shares with the original.
        raise TypeError(name)
    copied = copy.copy(holder)
    if attributes and vars(copied) is attributes:
        # pydantic's first version shares the values of a model with its copies.
        object.__setattr__(copied, "__dict__", dict(attributes))
    # Frozen classes raise an error in their own __setattr__, so the one of `object` is called.
    object.__setattr__(copied, name, value)
    return copied


def remove_field(item: Any, field_name: str) -> Any:
    """Return a copy of *item* without the field *field_name*.

    *item* is a mapping or a view of a dict. It is returned unchanged if it lacks the field.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    fields = list_fields(item)
    if field_name not in fields:
        return item
    kept = {name: value for name, value in fields.items() if name != field_name}
    return kept if type(item) is dict else _replace(item, (), lambda _: type(item)(kept))


def _build_shape_error(
    value: Any, problem: str = "no other passages fit in a copy of type", advice: str = ADVICE
) -> ResponseShapeError:
    """Return the error for *value*, which it names by its type and never quotes."""
    class_ = type(value)
    shape = f"{class_.__module__}.{class_.__qualname__}".removeprefix("builtins.")
    return ResponseShapeError(f"{problem} {shape}; {advice}", shape=shape)


# --- what a response says of itself ---------------------------------------------------------------


def get_read_units(response: Any) -> float | None:
    """Return the read units that a response of Pinecone reports; ``None`` if it reports none."""
    try:
        units = None if _is_plain(response) else _follow(response, "usage.read_units")[1]
    except Exception:
        # Reading a response may raise anything. Missing read units are no reason to lose it.
        return None
    number = convert_to_float(units)
    if number is None or number < 0:
        return None
    return int(number) if number.is_integer() else number


def has_text(passage: Passage) -> bool:
    """Return whether *passage* has a text. A bare word does not count: it is probably an id."""
    text = passage.text
    return text is not None and (passage.text_field != "" or _has_words(text))


def describe_missing_text(passages: Sequence[Passage], text_field: str | None) -> tuple[str, str]:
    """Return (problem, fix): why no text was found in *passages*, and how to fix the problem.

    Both are clauses for a message. They may name a field whose values look like text, but they
    never quote a value.
    """
    lengths: Counter[str] = Counter()
    for passage in passages:
        lengths.update(measure_texts(passage.item, passage.metadata))
    name = "a common field name"
    if text_field is not None:
        name = f"keywordEvidence.fields.text {text_field!r}"
    problem = f"the passages have no text under {name}"
    if lengths:
        longest = max(lengths, key=lambda field: (lengths[field], field))
        setting = f'config={{"keywordEvidence": {{"fields": {{"text": "{longest}"}}}}}}'
        return f"{problem}, but {longest!r} holds text", f"set {setting}"
    if all(isinstance(passage.item, str | tuple) for passage in passages):
        fix = "return the texts too, for example as {'id', 'score', 'text'}"
        return "the passages are ids without texts", fix
    if any(passage.metadata for passage in passages):
        fix = "store the text in the metadata, or name its field in keywordEvidence.fields.text"
        return problem, fix
    fix = "with include_metadata=True, or with include_fields=[...] in a document search"
    return "the passages have neither a text nor metadata", f"request them: in Pinecone {fix}"


def measure_texts(item: Any, metadata: Mapping[Any, Any]) -> dict[str, int]:
    """Return the length in characters of each field with several words, by the field's name."""
    texts = ((name, it) for name, it in flatten_fields(item, metadata).items() if type(it) is str)
    return {name: len(text) for name, text in texts if _has_words(text.strip())}


def flatten_fields(item: Any, metadata: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of *item* and of its metadata by name. A dot joins nested names."""
    own = {} if _is_plain(item) else list_fields(item)
    fields = {**own, **metadata}
    for name, value in [*fields.items()]:
        if isinstance(value, dict) and name not in METADATA:
            fields |= {f"{name}.{inner}": leaf for inner, leaf in value.items()}
    return {
        name: leaf
        for name, leaf in fields.items()
        if all(map(_FIELD_NAME.fullmatch, str(name).split("."))) and name not in _NOT_METADATA
    }
