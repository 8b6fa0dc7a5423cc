"""Matches out of whatever a wrapped function returns, and back into the very same shape.

Nothing here knows a vendor by name. A response is an envelope, a path of fields that ends in a list, around items, or
keeps them in columns. Envelopes are told apart by the fields they have, which takes about a microsecond; how an item is
read is remembered for its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Protocol

from qtmiddleware.retrieval.responses.base import ABSENT, follow, is_list, rebuilt, unknown
from qtmiddleware.retrieval.responses.columns import has_columns, in_columns, in_parallel
from qtmiddleware.retrieval.responses.items import ItemShape, namespace_name, reader_of, usual_text
from qtmiddleware.types import DEFAULT_NAMESPACE, Key

__all__ = ["Shape", "columns_of", "custom_shape", "keys_of", "settled", "shape_of", "text_of"]

_ENVELOPES: Final = (
    ("query response", ("matches",)),
    ("search response", ("result", "hits")),
    ("documents", ("documents",)),
    ("results", ("results",)),
    ("search hits", ("hits", "hits")),
    ("hits", ("hits",)),
    ("points", ("points",)),
    ("objects", ("objects",)),
)


class Shape(Protocol):
    """How to read one kind of response and write it back."""

    name: str

    def items(self, response: Any) -> Sequence[Any]:
        """The items in the backend's order; the very objects."""

    def namespace(self, response: Any) -> str:
        """The namespace that was searched, `DEFAULT_NAMESPACE` where none is told."""

    def id(self, item: Any) -> str | None:
        """The item's id, ``None`` where it has none."""

    def score(self, item: Any) -> float | None:
        """The backend's number, ``None`` where it is absent, not finite or no number."""

    def metadata(self, item: Any) -> Mapping[str, Any]:
        """The item's metadata, empty where it has none; not to be written to."""

    def rescore(self, item: Any, score: float) -> Any:
        """A copy of *item*, of its own type, whose score is *score*; *item* stays as it is.

        The very same item where it has no number to replace or cannot be copied.
        """

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        """A response of the same type with *items* in it and all else kept; *response* stays as it is.

        Any number of items in any order, those of other responses of the same function and rescored ones among them.
        """


def shape_of(response: Any) -> Shape:
    """The shape of *response*; ``None`` is an empty response, and stays ``None`` as long as it has no items.

    Raises `ResponseShapeError` naming the type where no list of matches can be read out of it.
    """
    if type(response) is list or type(response) is tuple:
        return _list_shape(response)
    for name, path in _ENVELOPES:
        items = follow(response, path)
        if items is ABSENT or not (items is None or is_list(items)):
            continue
        if path == ("documents",) and has_columns(response):
            continue
        if items is not None and len(items):
            reader_of(items[0])
        return in_parallel(response, path[0]) or _Shape(name, path)
    if response is None:
        return _Custom("nothing", _no_items, _items_or_none)
    if (shape := in_columns(response)) is not None:
        return shape
    if not is_list(response):
        raise unknown(response, "no list of matches was found in a response, a")
    return _list_shape(response)


def custom_shape(read: Callable[[Any], Sequence[Any]], write: Callable[[Any, Sequence[Any]], Any]) -> Shape:
    """The shape of responses only the caller knows.

    *read* returns the items of a response, each of a kind that is known in lists: a mapping, an ``(id, score)`` pair, a
    document, an object with an id, a string. *write* returns a new response like the given one with these items.
    """
    return _Custom("custom response", read, write)


def keys_of(shape: Shape, response: Any, items: Sequence[Any]) -> list[Key]:
    """What makes each item a passage of its own: ``(namespace, id)``.

    An item's own namespace goes before the response's. Where there is no id, NUL and the text stand in. An id that only
    names the document is followed by NUL and the text, so that two chunks of one document stay two.
    """
    outer = shape.namespace(response)
    keys: list[Key] = []
    for item in items:
        reader = reader_of(item)
        key, own = shape.id(item), reader.namespace(item)
        if key is None or reader.names_document(item):
            key = f"{key or ''}\0{text_of(shape, item, None) or _shown(shape, item)}"
        keys.append((outer if own is None else namespace_name(own), key))
    return keys


def columns_of(shape: Shape, response: Any, items: Sequence[Any]) -> tuple[list[Key], list[float | None]]:
    """The keys of the items, as `keys_of` gives them, and the backend's own number of each, ``None`` without one."""
    keys: list[Key] = []
    scores: list[float | None] = []
    outer = shape.namespace(response)
    for item in items:
        # What most responses are: plain mappings with an id and a score.
        if type(item) is not dict or type(key := item.get("id")) is not str or not key:
            return keys_of(shape, response, items), [shape.score(each) for each in items]
        score = item.get("score")
        own = item.get("namespace")
        keys.append((outer if own is None else namespace_name(own), key))
        scores.append(score if type(score) is float and isfinite(score) else shape.score(item))
    return keys, scores


def text_of(shape: Shape, item: Any, text_field: str | None) -> str | None:
    """The item's passage, ``None`` where there is none.

    *text_field* names the one field to look at, in the metadata first and then in the item itself; dots reach into
    nested fields. Without it the usual names are tried, in the item first, and LlamaIndex's ``_node_content`` last.
    """
    if text_field is None:
        return reader_of(item).text(item) or usual_text(shape.metadata(item))
    for root in (shape.metadata(item), reader_of(item).holder(item)):
        for path in ((text_field,), text_field.split(".")):
            found = follow(root, path)
            if isinstance(found, str) and found and not found.isspace():
                return found
    return None


def settled(response: Any) -> Any:
    """What *response* stands for: waits for a thread pool's result or future; anything else comes back unchanged.

    What the call raised is raised here, as it is. An awaitable is left to those who can await it.
    """
    kind = type(response)
    if hasattr(kind, "__await__"):
        return response
    if _has_methods(kind, ("result", "done", "add_done_callback")):
        return response.result()
    return response.get() if _has_methods(kind, ("get", "ready", "wait", "successful")) else response


class _Shape(ItemShape):
    """An envelope: the items lie at the end of *path*, or are the response itself where it is empty."""

    def __init__(self, name: str, path: tuple[str, ...]) -> None:
        super().__init__(name)
        self._path = path

    def items(self, response: Any) -> Sequence[Any]:
        found = follow(response, self._path)
        if found is None or found is ABSENT:
            return ()
        return found if isinstance(found, Sequence) else list(found)

    def namespace(self, response: Any) -> str:
        return super().namespace(response) if self._path else DEFAULT_NAMESPACE

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        return rebuilt(response, self._path, items)


class _Custom(_Shape):
    """A response that is read and written by the caller's own two functions."""

    def __init__(
        self, name: str, read: Callable[[Any], Sequence[Any]], write: Callable[[Any, Sequence[Any]], Any]
    ) -> None:
        super().__init__(name, ("custom",))
        self._read = read
        self._write = write

    def items(self, response: Any) -> Sequence[Any]:
        found = self._read(response)
        if not is_list(found):
            raise unknown(found, "read= must return a list of items and gave a")
        return found

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        return self._write(response, items)


def _shown(shape: Shape, item: Any) -> str:
    """An item without id and text as it prints, apart from its score: that says how well it fits, not which it is."""
    return repr(shape.rescore(item, 0.0) if isinstance(item, Mapping) else item)


def _list_shape(response: Sequence[Any]) -> Shape:
    if len(response) == 2 and isinstance(response, (list, tuple)) and (shape := in_parallel(response, 0)):
        for item in shape.items(response)[:1]:
            reader_of(item)
        return shape
    return _Shape(f"list of {reader_of(response[0]).name}" if len(response) else "empty list", ())


def _no_items(_response: None) -> Sequence[Any]:
    return ()


def _items_or_none(_response: None, items: Sequence[Any]) -> list[Any] | None:
    return list(items) or None


def _has_methods(kind: type, names: tuple[str, ...]) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)
