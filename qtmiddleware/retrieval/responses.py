"""Read the passages of any response, and rebuild the response with other passages.

Responses and items are recognised by the names of their fields, not by their library. A mapping, a
database row and a named tuple are read as a dict (`_view`), any other object by its attributes. The
usual names that a kind of item has are found once (`Layout`), and each item is read once. What
cannot be read counts as missing, and what cannot be copied is refused: nothing of the caller's is
written to.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter, UserDict, UserList, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import getattr_static
from itertools import chain, islice
from math import isfinite
from operator import is_
from time import monotonic
from types import MemberDescriptorType
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
# If these are None, the response is empty. Other names are also used for other data.
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
_NUMBERS: Final = ("scores", "distances", "similarities")
# A dict with one of these fields is read in full.
_UNUSUAL: Final = frozenset(("namespace", "node", "_nodecontent"))
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
        name: A description of the structure, such as "a list".
    """

    items: Callable[[Any], Sequence[Any]]
    rebuild: Callable[[Any, Sequence[Any]], Any]
    name: str = "a shape of your own, by read= and write="


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
        namespace = None if _is_list(response) else _get_path(response, ("namespace",))
        reader = _Reader(options, namespace, deadline)
        passages = reader.read_all(items)
    except ResponseShapeError:
        raise
    except Exception as error:
        # The response comes from the user's code, so reading it may raise anything.
        problem = f"reading raised {type(error).__name__} for a response of type"
        raise _build_shape_error(response, problem) from error
    is_cut = reader.is_late
    if is_cut and not any(passage.text for passage in passages):
        raise _build_shape_error(items[0], "reading took too long for items of type")
    keys, scores = [passage.key for passage in passages], [passage.score for passage in passages]
    ranking = Ranking(variant, keys, scores, passages, initial_rankings or {})
    return SearchResult(ranking, shape, response, is_cut)


def read_passage(item: Any) -> Passage:
    """Return the passage in *item*, a single object.

    Raises:
        ResponseShapeError: *item* is not a passage.
    """
    return _Reader(_USUAL, None, None).read_all([item])[0]


# --- the fields of any object ---------------------------------------------------------------------


class Layout(NamedTuple):
    """The fields that an object has, by what they hold, the most usual names first."""

    ids: Sequence[str]
    document_ids: Sequence[str]
    scores: Sequence[Path]
    texts: Sequence[str]
    metadata: Sequence[str]
    names: Mapping[str, str]  # the own name of every field, by `_spell`
    is_plain: bool  # whether it has an id, a score and nothing unusual


def _find_layout(view: Any) -> Layout:
    class_: Any = type(view)
    return _make_layout(class_, tuple(view if class_ is dict else getattr(view, "__dict__", ())))


@lru_cache(1_024)
def _make_layout(class_: type[Any], names: tuple[Any, ...]) -> Layout:
    if not issubclass(class_, dict):
        # OpenAPI models return ``None`` for any name, so only names that they declare count.
        names = (*names, *(getattr(class_, "attribute_map", None) or dir(class_)))
    spelled: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for name in names if isinstance(name, str)):
        spelled.setdefault(_spell(name), []).append(name)

    def pick(usual: Sequence[str]) -> list[str]:
        similar = (sorted(spelled.get(_spell(name), ()), key=name.__ne__) for name in usual)
        return list(chain(*similar))

    paths: list[Path] = [(name,) for name in pick(SCORES)]
    own_names = {spelling: similar[0] for spelling, similar in spelled.items()}
    groups = pick(IDS), pick(DOCUMENT_IDS), paths, pick(TEXTS), pick(METADATA)
    is_plain = bool(groups[0] and paths) and _UNUSUAL.isdisjoint(own_names)
    return Layout(*groups, own_names, is_plain)


@lru_cache(4_096)
def _spell(name: str) -> str:
    """Return *name* without the differences between ``page_content`` and ``PageContent``."""
    return re.sub("(?<=[^_])_(?=[^_])", "", name).lower()


def _view(value: Any, stops_at: float = NEVER) -> Any:
    """Return the fields of a mapping, row or named tuple as a dict, and any other *value* itself.

    A mapping of another library may be slow, endless or broken: the fields that were not read by
    the moment *stops_at* are missing.
    """
    class_: Any = type(value)
    if class_ is dict or not _has_keys(class_):
        return value
    fields: dict[Any, Any] = {}
    try:
        if hasattr(class_, "_fields"):
            return dict(zip(value._fields, value, strict=True))
        for name in islice(value.keys(), _MOST_FIELDS):
            if monotonic() > stops_at:
                break
            fields[name] = value[name]
    except Exception:
        # The object comes from the user's code, so reading it may raise anything.
        return fields
    return fields


@lru_cache(1_024)
def _has_keys(class_: type) -> bool:
    """Return whether objects of *class_* have their fields by name, as rows of databases do."""
    if hasattr(class_, "_fields"):
        return issubclass(class_, Sequence)
    if issubclass(class_, Mapping) or any(hasattr(class_, name) for name in _NO_ROWS):
        return issubclass(class_, Mapping)
    return callable(getattr(class_, "keys", None)) and hasattr(class_, "__getitem__")


def _get(view: Any, name: str) -> Any:
    """Return the field *name* of *view*; ``None`` if it is missing or cannot be read."""
    if type(view) is dict:
        value = view.get(name)
    else:
        try:
            value = getattr(view, name, None)
        except Exception:
            return None
    if value is None and "." in name:
        # The settings may name a field in another one.
        outer, _, inner = name.partition(".")
        holder = _view(_get(view, outer))
        return None if holder is None else _get(holder, inner)
    return value


def _get_path(holder: Any, path: Path) -> Any:
    """Return the value at *path* in *holder*; ``None`` if it is missing."""
    for name in path:
        if isinstance(name, int):
            holder = holder[name]
        else:
            view = _view(holder)
            names = view if type(view) is dict else _find_layout(view).names.values()
            holder = _get(view, name) if name in names else None
    return holder


def list_fields(holder: Any) -> Mapping[str, Any]:
    """Return the fields of *holder* by name."""
    view = _view(holder)
    if isinstance(view, dict):
        return view
    kinds = ("__struct_fields__", "__dataclass_fields__")
    names = next(filter(None, (getattr(type(view), kind, None) for kind in kinds)), None)
    names = names or getattr(view, "__dict__", None)
    if names is None and callable(getattr(type(view), "to_dict", None)):
        return dict(view.to_dict())
    return {name: _get(view, name) for name in names or ()}


def _is_list(value: Any) -> bool:
    """Return whether *value* is a sequence of items, which texts, rows and named tuples are not."""
    class_: Any = type(value)
    if class_ is list or class_ is tuple:
        return True
    if _is_array(value):
        return bool(value.ndim == 1 and value.dtype.kind in "OUT")
    is_text = issubclass(class_, str | bytes | bytearray | memoryview)
    return issubclass(class_, Sequence) and not is_text and not _has_keys(class_)


def _is_array(value: Any) -> bool:
    """Return whether *value* is a numpy array. Its subclasses hold more than the values."""
    class_ = type(value)
    return (
        hasattr(class_, "__array_interface__") and class_.__name__ == "ndarray" and value.ndim > 0
    )


def _is_plain(value: Any) -> bool:
    """Return whether *value* is a list or a tuple without names."""
    return isinstance(value, tuple | list) and not _has_keys(type(value))


def _is_number(value: Any) -> bool:
    return type(value) is float or (hasattr(value, "__float__") and not isinstance(value, bool))


def convert_to_float(value: Any) -> float | None:
    """Return *value* as a finite float; ``None`` if it is not a finite number."""
    try:
        number = float(value) if _is_number(value) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and isfinite(number) else None


# --- one item -------------------------------------------------------------------------------------


class _Reader:
    """Reads the passages of one response."""

    def __init__(
        self, options: KeywordEvidenceSettings, namespace: Any, deadline: Deadline | None
    ) -> None:
        self.fields, self.namespace = options.fields, str(namespace or DEFAULT_NAMESPACE)
        self._deadline, self._stops_at = deadline, NEVER

    @property
    def is_late(self) -> bool:
        """Whether reading took too long, so that some fields are missing."""
        return self._stops_at != NEVER and monotonic() > self._stops_at

    def _view(self, value: Any) -> Any:
        if self._stops_at == NEVER and self._deadline is not None and isinstance(value, Mapping):
            self._stops_at = max(self._deadline.at, monotonic() + _READING_SECONDS)
        return _view(value, self._stops_at)

    def read_all(self, items: Sequence[Any]) -> list[Passage]:
        """Return the passages in *items*.

        Raises:
            ResponseShapeError: An item is not a passage.
        """
        names = _name_positions(items, self.fields.values())
        passages = [self.read(item, names) for item in items]
        for passage in passages:
            if passage.text is None:
                _check_without_text(passage)
        if names and "id" not in self.fields:
            keys = [(passage.key[0], _build_row_key(passage.item)) for passage in passages]
            return [it._replace(key=key) for it, key in zip(passages, keys, strict=True)]
        return passages

    def read(self, item: Any, names: Sequence[str] = ()) -> Passage:
        """Return the passage in *item*. *names* are the names of its values, if it is a row."""
        view = item
        if type(item) is not dict:
            if isinstance(item, str):
                key = (self.namespace, f"\0{item}")
                return Passage(key, item, text=_join_text(item), text_field="")
            if not names and _is_plain(item):
                names = _name_pair(item)
            view = dict(zip(names, item, strict=True)) if names else self._view(item)
        layout = _find_layout(view)
        is_plain = type(item) is dict and layout.is_plain and not self.fields
        if is_plain and (plain := self._read_plain(item, layout)) is not None:
            return plain
        passage = self._read_fields(item, view, layout)
        if passage.id is None or "node" in layout.names:
            is_pair = names[:1] == ("document",)
            inner_name = "document" if is_pair else _find_inner(view, layout)
            if inner_name is not None:
                passage = self._read_inner(view, inner_name, passage)
        if names:
            paths = passage.score_paths
            paths = [(names.index(str(it)), *rest) for it, *rest in paths if it in names]
            return passage._replace(score_paths=paths)
        return passage

    def _read_plain(self, item: dict[Any, Any], layout: Layout) -> Passage | None:
        """Return the passage in a dict such as most functions return; ``None`` for other dicts.

        `_read_fields` returns the same, but takes several times as long.
        """
        id_, score, metadata = item[layout.ids[0]], item[layout.scores[0][0]], None
        if layout.metadata:
            metadata = item[layout.metadata[0]]
        elif layout.texts:
            metadata = {name: it for name, it in item.items() if name not in _NOT_METADATA}
        if type(id_) is not str or type(score) is not float or type(metadata) is not dict:
            return None
        view, text_layout = (item, layout) if layout.texts else (metadata, _find_layout(metadata))
        text = view[text_layout.texts[0]] if text_layout.texts else None
        if not id_ or not isfinite(score) or type(text) is not str or not text or text.isspace():
            return None
        field = text_layout.texts[0] if view is item else f"metadata.{text_layout.texts[0]}"
        title = metadata.get("title", item.get("title"))
        title = title if isinstance(title, str) else ""
        key = (self.namespace, id_)
        return Passage(key, item, id_, score, text, title, metadata, field, layout.scores)

    def _read_inner(self, view: Any, name: str, outer: Passage) -> Passage:
        """Return the passage in the field *name* of *view*, with what *outer* has beside it."""
        inner = self.read(_get(view, name))
        if inner.text is None:
            key = outer.key if inner.id is None else inner.key
            inner = inner._replace(key=key, text=outer.text, text_field=outer.text_field)
        paths = outer.score_paths
        if not paths and type(view) is dict:
            # Next to a document, a computed distance has whatever name the database gave it.
            paths = [(it,) for it, value in view.items() if _is_number(value)]
        paths = [*paths, *[(name, *path) for path in inner.score_paths]]
        return inner._replace(
            item=outer.item,
            score=_read_score(view, paths),
            score_paths=paths,
            title=inner.title or outer.title,
            metadata=inner.metadata if name in outer.metadata else outer.metadata,
        )

    def _read_fields(self, item: Any, view: Any, layout: Layout) -> Passage:
        """Return the passage whose fields are those of *view*."""
        place, metadata = self._find_metadata(view, layout)
        layout = self._rename(layout, place) if self.fields else layout
        text, text_field = _find_text(view, layout)
        if text is None and metadata and (place is not None or type(view) is not dict):
            inner = _find_layout(metadata)
            text, text_field = _find_text(metadata, self._rename(inner) if self.fields else inner)
            if place is not None and "text" not in self.fields:
                text_field = f"metadata.{text_field}"
        id_ = _first(view, layout.ids)
        if id_ is None and "id" in self.fields:
            id_ = _first(metadata, layout.ids)
        id_ = None if id_ is None else str(id_) or None
        key = id_ or ""
        if id_ is None:
            document_id = _first(view, layout.document_ids)
            id_ = None if document_id is None else str(document_id)
            key = f"{id_ or ''}\0{text or _print_fields(item, metadata)}"
        scores = layout.scores
        if not scores and "metadata" in layout.metadata and place != "metadata":
            # In Weaviate, the metadata is an object with the scores.
            numbers = _find_layout(_get(view, "metadata")).scores
            scores = [("metadata", *path) for path in numbers]
        namespace = _get(view, "namespace") if "namespace" in layout.names else None
        title = metadata.get("title")
        if "title" in layout.names and not isinstance(title, str):
            title = _get(view, layout.names["title"])
        return Passage(
            (str(namespace) if namespace else self.namespace, key),
            item,
            id_,
            _read_score(view, scores),
            text,
            title if isinstance(title, str) else "",
            metadata,
            None if text is None else text_field,
            scores,
        )

    def _rename(self, layout: Layout, place: str | None = None) -> Layout:
        """Return *layout* with the names in the settings. The metadata are in the field *place*."""
        if "id" in self.fields:
            layout = layout._replace(ids=[self.fields["id"]], document_ids=())
        if "text" in self.fields:
            layout = layout._replace(texts=[self.fields["text"]])
        if "score" in self.fields:
            paths = [(self.fields["score"],), tuple(self.fields["score"].split("."))]
            layout = layout._replace(scores=[*paths, *[(place or "", *path) for path in paths]])
        return layout

    def _find_metadata(self, view: Any, layout: Layout) -> tuple[str | None, dict[Any, Any]]:
        """Return the name of the field with the metadata, and the metadata.

        Without separate metadata, return ``None`` and the other fields.
        """
        found: str | None = None
        for name in layout.metadata:
            value = _get(view, name)
            if type(value) is dict and value:
                return name, value
            if value is None or isinstance(value, Mapping):
                found = found or name
                if value:
                    return name, self._view(value)
        if found is not None:
            return found, {}
        return None, {it: v for it, v in list_fields(view).items() if it not in _NOT_METADATA}


def _print_fields(item: Any, metadata: Mapping[Any, Any]) -> str:
    """Return a string that identifies *item* by its fields, without scores and similar numbers."""
    fields = {name: value for name, value in metadata.items() if type(value) is not float}
    return repr(fields or item)


def _first(view: Any, names: Sequence[str]) -> Any:
    """Return the first value of *view* under *names* that is not ``None``."""
    for name in names:
        if (value := _get(view, name)) is not None:
            return value
    return None


def _find_inner(view: Any, layout: Layout) -> str | None:
    """Return the name of the field of *view* that holds the whole passage, if any."""
    if _get(view, "node") is not None:
        return "node"
    if layout.ids or layout.document_ids:
        return None
    if any(isinstance(_get(view, name), str) for name in layout.texts):
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
    return _first(view, (*layout.ids, *layout.document_ids, *layout.texts)) is not None


def _find_text(view: Any, layout: Layout) -> tuple[str | None, str]:
    """Return the text of *view* and the name of its field.

    The JSON in LlamaIndex's ``_node_content`` is read last.
    """
    for name in layout.texts:
        value = _get(view, name)
        if type(value) is not str or not value or value.isspace():
            value = _join_text(value)
        if value is not None:
            return value, name
    if "_nodecontent" in layout.names:
        try:
            node = json.loads(_get(view, "_node_content"))
        except (TypeError, ValueError, RecursionError):
            return None, ""
        if isinstance(node, dict):
            # Without this field, a node that contains another node cannot recurse without end.
            node.pop("_node_content", None)
            return _find_text(node, _find_layout(node))[0], "_node_content"
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
    texts = (_join_text(_get(view, name), depth - 1) for name in _find_layout(view).texts)
    return next(filter(None, texts), None)


def _has_words(text: str) -> bool:
    """Return whether *text* has spaces or CJK punctuation, and is therefore probably no id."""
    return _SPACE.search(text) is not None


def _read_score(item: Any, paths: Sequence[Path]) -> float | None:
    """Return the first number at *paths* in *item*; ``None`` if it is not finite."""
    for path in paths:
        value = (
            item.get(path[0]) if len(path) == 1 and type(item) is dict else _get_path(item, path)
        )
        if type(value) is float and isfinite(value):
            return value
        if _is_number(value):
            return convert_to_float(value)
    return None


def _check_without_text(passage: Passage) -> None:
    """Raise `ResponseShapeError` if *passage*, which has no text, is none, or a group of some."""
    item = passage.item
    for path in () if _is_plain(item) or isinstance(item, str) else ENVELOPES:
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
    for path in () if passage.score == score else passage.score_paths:
        if not _is_number(_get_path(item, path)):
            continue
        try:
            copied = _replace(item, path, score)
        except ResponseShapeError:
            continue
        # If the class computes its score, the copy does not show the new score and is useless.
        if _read_score(copied, passage.score_paths) == score:
            return copied
    return item


def estimate_chars(passage: Passage) -> int:
    """Estimate how many characters the texts and numbers of *passage* have in JSON."""
    item, metadata, chars = passage.item, passage.metadata, 0
    values = list(item.values()) if type(item) is dict else []
    # Without separate metadata, the metadata repeat the fields of a dict.
    if type(item) is not dict or any(value is metadata for value in values):
        values += metadata.values()
    if type(item) is not dict and not _is_plain(item) and not isinstance(item, str):
        values += [_get(item, name) for name in _VECTORS]
    if not any(value is passage.text for value in values):
        values.append(passage.text)
    for value in values:
        if isinstance(value, str):
            chars += len(value)
        elif isinstance(value, list | tuple) or _is_array(value):
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
    name = "document"
    if isinstance(pair[0], str | int):
        name = "text" if isinstance(pair[0], str) and _has_words(pair[0]) else "id"
    return (name, "score", "metadata")[: len(pair)]


def _is_scored_pair(row: Sequence[Any]) -> bool:
    """Return whether *row* is ``(id or document, score)``, optionally followed by metadata."""
    if len(row) not in (2, 3) or not (row[1] is None or _is_number(row[1])):
        return False
    return len(row) == 2 or row[2] is None or isinstance(row[2], Mapping)


def _name_positions(items: Sequence[Any], named: Collection[str] = ()) -> Sequence[str]:
    """Return the names of the values in *items*, which are plain rows such as (id, text, score).

    The names are ``id``, ``text``, ``score`` and ``metadata``. Any other value is named by its
    position, and so is a value whose position is among the *named* fields of the settings. There
    are no names if the items are something else: rows are lists or tuples of one type and length
    with a text, or with an id and metadata, and are not all pairs of document and score.
    """
    if (
        not len(items)
        or not _is_plain(items[0])
        or len({(type(row), len(row)) for row in items}) > 1
    ):
        return ()
    if not items[0] or all(map(_is_scored_pair, items)):
        return ()
    columns = [[it for it in column if it is not None] for column in zip(*items, strict=True)]
    # A list of lists without a number may contain columns instead of rows.
    if isinstance(items[0], list) and not any(map(_is_number, chain(*columns))):
        return ()
    places: dict[str, list[int]] = {"metadata": [], "score": [], "text": []}
    for place, column in enumerate(columns):
        if column and all(isinstance(value, str) for value in column):
            places["text"].append(place)
        elif column and all(isinstance(value, Mapping) for value in column):
            places["metadata"].append(place)
        elif can_be_scores(column):
            places["score"] = [place]
    # The longest texts with spaces are the passages, or else the first words after the ids.
    worded = [place for place in places["text"] if any(map(_has_words, columns[place]))]
    worded.sort(key=lambda place: -sum(map(len, columns[place])))
    places["text"] = worded or [it for it in places["text"] if it or len(columns) == 1]
    names = list(map(str, range(len(columns))))
    for name, found in places.items():
        for place in found[:1]:
            names[place] = name
    if names[0] == "0" and all(map(is_id, columns[0])):
        names[0] = "id"
    if "text" not in names and not {"id", "metadata"} <= {*names}:
        return ()
    return [str(place) if str(place) in named else name for place, name in enumerate(names)]


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


def _build_row_key(row: Sequence[Any]) -> str:
    """Return a key for the plain *row*: its id, if there is one, and its texts.

    All texts are used, because the other rows of a response decide which of them is the passage.
    """
    id_ = str(row[0]) if is_id(row[0]) else ""
    texts = [it for place, it in enumerate(row) if isinstance(it, str) and (place or not id_)]
    return "\0".join([id_, *texts]) if texts else id_ or "\0"


# --- a response -----------------------------------------------------------------------------------


def find_shape(response: Any, options: KeywordEvidenceSettings = _USUAL) -> Shape:
    """Detect the structure of *response*, and return the functions that read and rebuild it.

    ``None`` is read as an empty response.

    Raises:
        ResponseShapeError: *response* contains no readable list of passages. The error names its
            type.
    """
    if response is None:
        return Shape(lambda _: (), lambda _, items: list(items) or None, "None")
    path: Path | None = None
    if _is_list(response):
        # Milvus returns one list for each vector that it searches for.
        inner: Any = response[0] if len(response) == 1 and not _is_array(response) else None
        is_nested = _is_list(inner) and not _is_scored_pair(inner)
        path = (0,) if is_nested and (not len(inner) or _is_document(inner[0])) else ()
    elif not isinstance(response, str):
        path = _find_list_path(response, options)
    columns, are_nested = _find_columns(response, path)
    if columns:
        return _build_columns_shape(columns, are_nested=are_nested)
    if path is not None:
        _reject_parallel_lists(response, path)
        return _build_list_shape(path)
    raise _build_unreadable_error(response)


def _build_unreadable_error(response: Any) -> ResponseShapeError:
    """Return the error for *response*, which holds no list of passages."""
    hints = {
        "isidentifier": "return the list of passages and join it later",
        "cr_await": "wrap the function with kind='async'",
        "add_done_callback": "return its result()",
        "successful": "return what its get() returns",
        "__next__": "return a list of its items",
    }
    hint = next((hints[name] for name in hints if hasattr(type(response), name)), "")
    advice = f"{hint}, or {ADVICE}" if hint else ADVICE
    problem = "no list of passages was found in a response of type"
    return _build_shape_error(response, problem, advice)


def _find_list_path(response: Any, options: KeywordEvidenceSettings) -> Path | None:
    """Return the path to the list of passages in *response*.

    The usual paths are tried in order. The first one with a list that is empty or contains passages
    is used. If there is none, the first known one with ``None`` or with another list is used.
    """
    fallback: Path | None = None
    # A column of texts, or the data of an array, has the name of other libraries' lists.
    is_array = hasattr(type(response), "__array__")
    has_columns = is_array or _find_leading_column(response) is not None
    for usual in ENVELOPES:
        is_known = usual in _KNOWN_ENVELOPES
        if has_columns and (not is_known or usual == "documents"):
            continue
        path, value = _follow(response, usual)
        if _is_list(value) and _can_hold_passages(value, options):
            return path
        if path and is_known and fallback is None and (value is None or _is_list(value)):
            fallback = path
    return fallback


def _follow(holder: Any, usual: str) -> tuple[Path, Any]:
    """Return the path *usual* in the names of *holder*, and the value; () if there is none."""
    path: Path = ()
    for spelling in map(_spell, usual.split(".")):
        view = _view(holder)
        if (name := _find_layout(view).names.get(spelling)) is None:
            return (), None
        path, holder = (*path, name), _get(view, name)
    return path, holder


def _can_hold_passages(items: Sequence[Any], options: KeywordEvidenceSettings) -> bool:
    """Return whether *items* is empty, or its first item has an id or a text."""
    if not len(items) or isinstance(items[0], str):
        return not len(items) or any(isinstance(it, str) and _has_words(it) for it in items)
    try:
        (passage,) = _Reader(options, None, None).read_all([items[0]])
    except ResponseShapeError:
        return False
    return bool(passage.id or passage.text or measure_texts(passage.item, passage.metadata))


def _reject_parallel_lists(response: Any, path: Path) -> None:
    """Raise `ResponseShapeError` if a second list in *response* may describe the passages.

    After reranking, the second list would no longer match the passages at *path*. A list counts as
    such a list if it is as long as the list of passages, and if the passages are texts or the list
    contains only numbers.
    """
    items = _get_path(response, path)
    for name, value in list_fields(response).items() if len(path) == 1 and items else ():
        is_parallel = name != path[0] and _is_list(value) and len(value) == len(items)
        if is_parallel and (isinstance(items[0], str) or all(map(_is_number, value))):
            problem = f"another list may run parallel to {path[0]!r} in a response of type"
            raise _build_shape_error(response, problem)


@cache
def _build_list_shape(path: Path) -> Shape:
    """Return the shape of responses with their items in the list at *path*."""

    def read_items(response: Any) -> Sequence[Any]:
        items = _get_path(response, path)
        return () if items is None else list(items) if _is_array(items) else items

    name = f"the list in {'.'.join(map(str, path))!r}" if path else "a list"
    return Shape(read_items, lambda response, items: _refill_at(response, path, items), name)


# --- columns: a list for each field, or a list with one list for each text of the query -----------


def _find_leading_column(response: Any) -> Any:
    """Return the ids or the metadata in *response*, if it is a mapping of columns as in Chroma."""
    names = ("ids", "metadatas") if isinstance(response, Mapping) else ()
    return next((column for name in names if _is_list(column := response.get(name))), None)


def _find_columns(response: Any, path: Path | None) -> tuple[Mapping[Any, str], bool]:
    """Return the columns in *response* with the name of a field for each, and if they are nested.

    There are no columns if the passages are in the list at *path* without a list of scores beside.

    Raises:
        ResponseShapeError: *response* has the results of several queries, or columns of different
            lengths.
    """
    if path is not None:
        documents = path
        scores: list[Path] = [(name,) for name in _NUMBERS]
        if path == () and len(response) == 2 and _is_plain(response):
            documents, scores = (0,), [(1,)]
        elif len(getattr(type(response), "_fields", ())) == 2:
            documents, scores = response._fields[:1], [response._fields[1:]]
        passages = _get_path(response, documents)
        for place in scores if len(documents) == 1 and _is_list(passages) else ():
            numbers = _get_path(response, place)
            is_pair = _is_numbers(numbers) and len(numbers) == len(passages)
            if is_pair and not any(map(_is_number, passages)):
                return {documents[0]: "document", place[0]: "score"}, False
        return {}, False
    if (first := _find_leading_column(response)) is None:
        return {}, False
    is_nested = len(first) > 0 and _is_list(first[0])
    if is_nested and len(first) > 1:
        problem = "the results of several queries were found in a response of type"
        raise _build_shape_error(response, problem)
    count, columns = len(first[0] if is_nested else first), {}
    for name, value in response.items():
        column = value
        if is_nested:
            column = value[0] if _is_list(value) and len(value) == 1 else None
        is_column = (_is_list(column) or _is_array(column)) and len(column) == count
        # Chroma lists the columns that were asked for.
        if is_column and name != "included":
            columns[name] = name[:-1] if name in _COLUMNS else name
        elif name in _COLUMNS and value is not None:
            problem = f"{name!r} must be as long as the other columns in a response of type"
            raise _build_shape_error(response, problem)
    return columns, is_nested


def _is_numbers(value: Any) -> bool:
    is_list = _is_list(value) or (_is_array(value) and value.ndim == 1)
    return is_list and all(map(_is_number, value))


def _build_columns_shape(columns: Mapping[Any, str], *, are_nested: bool) -> Shape:
    """Return the shape of responses with these *columns*. An item is a dict with their fields."""
    paths = {(name, 0) if are_nested else (name,): field for name, field in columns.items()}

    def read_items(response: Any) -> Sequence[Any]:
        lists = [_get_path(response, path) for path in paths]
        return [
            dict(zip(paths.values(), values, strict=True)) for values in zip(*lists, strict=True)
        ]

    def rebuild(response: Any, items: Sequence[Any]) -> Any:
        for path, field in paths.items():
            response = _refill_at(response, path, [item.get(field) for item in items])
        return response

    return Shape(read_items, rebuild, "columns, as Chroma's" if "ids" in columns else "columns")


# --- copies with another value --------------------------------------------------------------------


def _refill_at(response: Any, path: Path, items: Sequence[Any]) -> Any:
    """Return a copy of *response* with *items* in the list at *path*.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    try:
        filled = _refill(_get_path(response, path), items)
    except ResponseShapeError:
        raise
    except Exception as error:
        raise _build_shape_error(response, "no other passages fit in a copy of type") from error
    return _replace(response, path, filled)


def _refill(container: Any, items: Sequence[Any]) -> Any:
    """Return *items* in a container of the type and with the attributes of *container*."""
    class_ = type(container)
    if container is None or class_ is list or class_ is tuple:
        return tuple(items) if class_ is tuple else list(items)
    if _is_array(container):
        # There is an array, so numpy is already loaded.
        import numpy as np

        # New texts may be longer than the old ones, and new numbers may not be whole.
        dtype = container.dtype if container.dtype.kind in "fO" else None
        array = np.array(items, dtype=dtype).reshape(len(items), *container.shape[1:])
        return array if items else array.astype(container.dtype)
    filled: Any = (
        tuple.__new__(class_, items) if issubclass(class_, tuple) else copy.copy(container)
    )
    if isinstance(filled, list):
        list.__setitem__(filled, slice(None), items)
    elif isinstance(filled, UserList):
        filled.data = list(items)
    elif isinstance(filled, deque):
        filled.clear()
        filled.extend(items)
    for name, value in getattr(container, "__dict__", {}).items():
        if not (name == "data" and isinstance(filled, UserList)):
            vars(filled)[name] = _repeat_for_items(container, value, items)
    if filled is container or len(filled) != len(items) or not all(map(is_, filled, items)):
        raise _build_shape_error(container, "no other items fit in a copy of type")
    return filled


def _repeat_for_items(container: Sequence[Any], value: Any, items: Sequence[Any]) -> Any:
    """Return an attribute of *container*, whose *value* may be a list parallel to its items.

    Milvus keeps the ids and distances of its hits in attributes of the list too.
    """
    if not _is_list(value) or not len(value) or len(value) != len(container):
        return value
    for key in container[0] if isinstance(container[0], Mapping) else ():
        if all(item.get(key) == own for item, own in zip(container, value, strict=True)):
            return [item.get(key) for item in items]
    raise _build_shape_error(container, "another list may run parallel to the items of type")


def _replace(holder: Any, path: Path, value: Any) -> Any:
    """Return a copy of *holder* with *value* at *path*. An empty path returns *value*.

    Raises:
        ResponseShapeError: No copy can be made.
    """
    if not path:
        return value
    name, *inner = path
    value = _replace(_get_path(holder, (name,)), inner, value)
    try:
        if isinstance(name, int):
            copied = _refill(holder, [*holder[:name], value, *holder[name + 1 :]])
        else:
            copied = _copy_with_field(holder, name, value)
    except ResponseShapeError:
        raise
    except Exception as error:
        raise _build_shape_error(holder, f"{name!r} cannot be changed in a copy of type") from error
    if copied is holder or type(copied) is not type(holder):
        raise _build_shape_error(holder, f"{name!r} cannot be changed in a copy of type")
    return copied


def _copy_with_field(holder: Any, name: str, value: Any) -> Any:
    class_: Any = type(holder)
    if class_ is dict:
        return {**holder, name: value}
    if isinstance(holder, dict | UserDict):
        copied: Any = copy.copy(holder)
        copied[name] = value
        return copied
    if isinstance(holder, tuple):
        return holder._replace(**{name: value})  # type: ignore[attr-defined]
    if hasattr(class_, "__struct_fields__"):
        return class_(**{**list_fields(holder), name: value})
    attributes = getattr(holder, "__dict__", {})
    if isinstance(store := attributes.get("_data_store"), dict):
        # The copy module cannot copy the OpenAPI models of older SDKs.
        copied = object.__new__(class_)
        vars(copied).update(attributes, _data_store={**store, name: value})
        return copied
    descriptor = getattr_static(class_, name, None)
    is_view = isinstance(descriptor, property) and name in list_fields(holder)
    if _has_keys(class_) or is_view:
        # A view of a dict, such as Pinecone's Document. A copy may share the dict, so a new one is
        # built.
        return class_({**list_fields(holder), name: value})
    if hasattr(type(descriptor), "__set__") and not isinstance(descriptor, MemberDescriptorType):
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
    fields, class_ = dict(list_fields(item)), type(item)
    if field_name not in fields:
        return item
    del fields[field_name]
    try:
        return fields if class_ is dict else class_(fields)
    except Exception as error:
        problem = f"{field_name!r} cannot be left out of a copy of type"
        raise _build_shape_error(item, problem) from error


def _build_shape_error(value: Any, problem: str, advice: str = ADVICE) -> ResponseShapeError:
    """Return the error for *value*, which it names by its type and never quotes."""
    class_ = type(value)
    shape = f"{class_.__module__}.{class_.__qualname__}".removeprefix("builtins.")
    return ResponseShapeError(f"{problem} {shape}; {advice}", shape=shape)


# --- what a response says of itself ---------------------------------------------------------------


def get_read_units(response: Any) -> float | None:
    """Return the read units that a response of Pinecone reports; ``None`` if it reports none."""
    if isinstance(response, list | tuple):
        return None
    try:
        units = convert_to_float(_follow(response, "usage.read_units")[1])
    except Exception:
        # Reading a response may raise anything. Missing read units are no reason to lose it.
        return None
    if units is None or units < 0:
        return None
    return int(units) if units.is_integer() else units


def has_text(passage: Passage) -> bool:
    """Return whether *passage* has a text. A bare word does not count: it is probably an id."""
    text = passage.text
    return text is not None and (passage.text_field != "" or _has_words(text))


def describe_missing_text(passages: Sequence[Passage], text_field: str | None) -> tuple[str, str]:
    """Return (problem, fix): why no text was found in *passages*, and how to fix the problem.

    Both are clauses for a message. They may name a field whose values look like text, but they
    never quote a value.
    """
    name = "a common field name"
    if text_field is not None:
        name = f"keywordEvidence.fields.text {text_field!r}"
    problem = f"the passages have no text under {name}"
    lengths: Counter[str] = Counter()
    for passage in passages:
        lengths.update(measure_texts(passage.item, passage.metadata))
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
    fix = (
        "in Pinecone with include_metadata=True, or with include_fields=[...] in a document search"
    )
    return "the passages have neither a text nor metadata", f"request them: {fix}"


def measure_texts(item: Any, metadata: Mapping[Any, Any]) -> dict[str, int]:
    """Return the length in characters of each field with several words, by the field's name."""
    texts = ((name, it) for name, it in flatten_fields(item, metadata).items() if type(it) is str)
    return {name: len(text) for name, text in texts if _has_words(text.strip())}


def flatten_fields(item: Any, metadata: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the fields of *item* and of its metadata by name. A dot joins nested names."""
    own = {} if _is_plain(item) or isinstance(item, str) else list_fields(item)
    leaves: dict[str, Any] = {}
    for name, value in chain(own.items(), metadata.items()):
        nested = {name: value}
        if isinstance(value, dict) and name not in METADATA:
            nested = {f"{name}.{inner}": leaf for inner, leaf in value.items()}
        leaves |= {
            path: leaf
            for path, leaf in nested.items()
            if all(map(_FIELD_NAME.fullmatch, str(path).split("."))) and path not in _NOT_METADATA
        }
    return leaves
