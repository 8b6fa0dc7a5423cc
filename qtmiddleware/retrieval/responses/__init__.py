"""Matches out of whatever a wrapped function returns, and back into the very same shape.

Nothing here knows a vendor by name. A response is an envelope, a path of fields that ends in a list, around items, or
keeps them in columns. Envelopes are told apart by the fields they have, items by what kind of thing they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from qtmiddleware.retrieval.responses.fields import (
    ABSENT,
    Path,
    build_like,
    get_field,
    get_path,
    is_array,
    is_list,
    is_number,
    replace_items,
    replace_path,
    shape_error,
)
from qtmiddleware.retrieval.responses.items import NAMES, SCORES, find_reader, read_text, rescore, to_namespace
from qtmiddleware.types import DEFAULT_NAMESPACE, Key, Ranking, Variant

__all__ = [
    "CustomShape",
    "SearchResult",
    "Shape",
    "build_keys",
    "find_reader",
    "find_shape",
    "read_response",
    "read_text",
    "rescore",
    "wait_for_response",
]

_Item = TypeVar("_Item")
_FIELDS: Final = {  # of the columns whose items are named in the plural
    "ids": "id",
    "documents": "document",
    "texts": "text",
    "metadatas": "metadata",
    "distances": "distance",
    "scores": "score",
    "embeddings": "embedding",
    "uris": "uri",
}
_LEADING: Final = ("ids", "metadatas")  # beside these, "documents" is one column of several and no list of items
_NO_COLUMN: Final = "included"  # Chroma's list of the columns that were asked for
_NUMBERS: Final = ("scores", "distances", "similarities")
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


class Shape(ABC):
    """How to read one kind of response and write it back."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def items(self, response: Any) -> Sequence[Any]:
        """The items in the backend's order; the very objects."""

    @abstractmethod
    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        """Returns a response of the same type with *items* in it and all else kept; *response* stays as it is.

        Any number of items in any order, those of other responses of the same function and rescored ones among them.
        """

    def namespace(self, response: Any) -> str:
        """The namespace that was searched, `DEFAULT_NAMESPACE` where none is named."""
        return to_namespace(get_field(response, "namespace"))


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One variant's response, read."""

    ranking: Ranking
    shape: Shape
    response: Any = field(repr=False)


def read_response(variant: Variant, response: Any, custom: Shape | None = None) -> SearchResult:
    """Read *response*, by the *custom* shape if there is one; raises `ResponseShapeError` for an unknown shape."""
    shape = custom or find_shape(response)
    items = shape.items(response)
    scores = [find_reader(item).score(item) for item in items]
    return SearchResult(Ranking(variant, build_keys(shape, response, items), scores, items), shape, response)


def build_keys(shape: Shape, response: Any, items: Sequence[Any]) -> list[Key]:
    """Returns what makes each item a passage of its own: ``(namespace, id)``.

    An item's own namespace goes before the response's. Where there is no id, NUL and the text stand in. An id that only
    names the document is followed by NUL and the text, so that two chunks of one document stay two.
    """
    outer = shape.namespace(response)
    keys: list[Key] = []
    for item in items:
        reader = find_reader(item)
        id_, own = reader.id(item), reader.namespace(item)
        if id_ is None or reader.names_document(item):
            id_ = f"{id_ or ''}\0{read_text(item, None) or _print_item(item)}"
        keys.append((outer if own is None else to_namespace(own), id_))
    return keys


def _print_item(item: Any) -> str:
    """An item without id and text as it prints, apart from its score: that says how well it fits, not which it is."""
    return repr(rescore(item, 0.0) if isinstance(item, Mapping) else item)


def find_shape(response: Any) -> Shape:
    """Returns the shape of *response*; ``None`` is an empty response, and stays ``None`` as long as it has no items.

    Raises `ResponseShapeError` naming the type where no list of matches can be read out of it.
    """
    if type(response) is list or type(response) is tuple:
        return _find_list_shape(response)
    for name, path in _ENVELOPES:
        items = get_path(response, path)
        if items is ABSENT or not (items is None or is_list(items)):
            continue
        if path == ("documents",) and _has_columns(response):
            continue
        if items is not None and len(items):
            find_reader(items[0])
        return _find_parallel_shape(response, path[0]) or _EnvelopeShape(name, path)
    if response is None:
        return CustomShape(lambda _: (), lambda _, items: list(items) or None, name="nothing")
    if (shape := _find_column_shape(response)) is not None:
        return shape
    if not is_list(response):
        raise shape_error(response, "no list of matches was found in a response, a")
    return _find_list_shape(response)


def _find_list_shape(response: Sequence[Any]) -> Shape:
    if len(response) == 2 and isinstance(response, (list, tuple)) and (shape := _find_parallel_shape(response, 0)):
        for item in shape.items(response)[:1]:
            find_reader(item)
        return shape
    return _EnvelopeShape(f"list of {find_reader(response[0]).name}" if len(response) else "empty list", ())


class _EnvelopeShape(Shape):
    """An envelope: the items lie at the end of *path*, or are the response itself where it is empty."""

    def __init__(self, name: str, path: tuple[str, ...]) -> None:
        super().__init__(name)
        self._path = path

    def items(self, response: Any) -> Sequence[Any]:
        items = get_path(response, self._path)
        if items is None or items is ABSENT:
            return ()
        return items if isinstance(items, Sequence) else list(items)

    def namespace(self, response: Any) -> str:
        return super().namespace(response) if self._path else DEFAULT_NAMESPACE

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        return replace_items(response, self._path, items)


class CustomShape(Shape):
    """The shape of responses only the caller knows.

    *read* returns the items of a response, each of a kind that is known in lists: a mapping, an ``(id, score)`` pair, a
    document, an object with an id, a string. *write* returns a new response like the given one with these items.
    """

    def __init__(
        self,
        read: Callable[[Any], Sequence[Any]],
        write: Callable[[Any, Sequence[Any]], Any],
        *,
        name: str = "custom response",
    ) -> None:
        super().__init__(name)
        self._read = read
        self._write = write

    def items(self, response: Any) -> Sequence[Any]:
        """What *read* returns; raises `ResponseShapeError` where that is no list."""
        items = self._read(response)
        if not is_list(items):
            raise shape_error(items, "read= must return a list of items and gave a")
        return items

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        """What *write* returns."""
        return self._write(response, items)


def _find_column_shape(response: Any) -> _Columns | _DataFrame | None:
    """Returns the shape of a data frame or of a mapping of columns, ``None`` for anything else."""
    if _has_columns(response):
        return _Columns(response)
    return _DataFrame("data frame") if _is_data_frame(response) else None


def _has_columns(response: Any) -> bool:
    """Whether *response* is a mapping that keeps ids or metadata in columns, as Chroma's results do."""
    return isinstance(response, Mapping) and any(is_list(response.get(name)) for name in _LEADING)


def _find_parallel_shape(response: Any, name: str | int) -> _Parallel | None:
    """Returns the shape of a *response* whose field *name* holds passages and another one their scores, or ``None``."""
    for scores in (1,) if name == 0 else _NUMBERS:
        if (numbers := get_field(response, scores)) is not ABSENT and _are_parallel(get_field(response, name), numbers):
            return _Parallel((name,), (scores,))
    return None


class _Parallel(Shape):
    """A list of passages and a list of their scores; an item is the pair of both."""

    def __init__(self, passages: Path, scores: Path) -> None:
        super().__init__("documents and scores")
        self._passages = passages
        self._scores = scores

    def items(self, response: Any) -> Sequence[Any]:
        return list(zip(get_path(response, self._passages), _to_list(get_path(response, self._scores)), strict=True))

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        pairs = _check_kind(items, tuple, response)
        for path, place in ((self._passages, 0), (self._scores, 1)):
            response = replace_items(response, path, [pair[place] for pair in pairs])
        return response


class _Columns(Shape):
    """A mapping of columns, each a list or, as for a query of several texts, a list with one list in it.

    An item is a dict with the columns' values under singular names. Columns that are ``None`` stay so.
    """

    def __init__(self, response: Any) -> None:
        super().__init__("columns")
        self._split_columns(response)

    def items(self, response: Any) -> Sequence[Any]:
        columns, _ = self._split_columns(response)
        names = [_FIELDS.get(name, name) for name in columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        columns, is_nested = self._split_columns(response)
        rows = _check_kind(items, dict, response)
        for name, column in columns.items():
            values = build_like(column, [row.get(_FIELDS.get(name, name)) for row in rows])
            response = replace_path(response, (name,), build_like(response[name], [values]) if is_nested else values)
        return response

    def _split_columns(self, response: Any) -> tuple[dict[str, Any], bool]:
        """The columns by name, and whether each lies inside a list of its own."""
        first = next(column for name in _LEADING if is_list(column := response.get(name)))
        is_nested = len(first) > 0 and is_list(first[0])
        if is_nested and len(first) > 1:
            raise shape_error(response, "the results of several queries were found in a")
        count = len(first[0] if is_nested else first)
        columns = {}
        for name, outer in response.items():
            column = _unnest(outer) if is_nested else outer
            if (is_list(column) or is_array(column)) and len(column) == count and name != _NO_COLUMN:
                columns[name] = column
            elif name in _FIELDS and outer is not None:
                raise shape_error(response, f"{name!r} is not as long as the other columns of a")
        return columns, is_nested


class _Row(dict[Any, Any]):
    """One row of a data frame: the columns' values by name, ``None`` for what is missing, and where the row lies."""

    __slots__ = ("frame", "place")

    frame: Any
    place: int


class _DataFrame(Shape):
    """A pandas data frame; a level of its index is a column for the reading where it is named like an id."""

    def items(self, response: Any) -> Sequence[Any]:
        known = response.astype(object).where(response.notna(), None)
        rows = [_Row(fields) for fields in known.to_dict("records")]
        levels = [name for name in response.index.names if name in NAMES and name not in response.columns]
        for level in levels:
            for row, label in zip(rows, response.index.get_level_values(level).tolist(), strict=True):
                row[level] = label
        for place, row in enumerate(rows):
            row.frame, row.place = response, place
        return rows

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        rows = _check_kind(items, _Row, response)
        if all(row.frame is response for row in rows):
            frame = response.iloc[[row.place for row in rows]]
        else:
            frame = _join_rows(response, rows)
        for name in SCORES:
            if name in frame.columns:
                before, after = frame[name].tolist(), [row.get(name) for row in rows]
                if any(is_number(new) and new != old for new, old in zip(after, before, strict=True)):
                    frame = frame.assign(**{name: _build_column(after, frame[name].dtype)})
        frame.attrs = dict(response.attrs)
        return frame


def _is_data_frame(response: Any) -> bool:
    """Whether *response* has rows and named columns, one of which tells passages apart."""
    kind = type(response)
    if not (hasattr(kind, "iloc") and hasattr(kind, "columns") and response.columns.is_unique):
        return False
    if not len(response) or any(name in NAMES for name in (*response.columns, *response.index.names)):
        return True
    return any(isinstance(value, str) for value in response.iloc[0])


def _join_rows(response: Any, rows: Sequence[_Row]) -> Any:
    """The *rows* of several frames as one like *response*, in the types of its columns as far as they can hold them."""
    like_this = response if len(response) else rows[0].frame
    names = response.columns if len(response.columns) else like_this.columns
    frames = {id(row.frame): row.frame for row in rows}
    columns = {}
    for name in names:
        known = {key: frame[name].tolist() for key, frame in frames.items() if name in frame.columns}
        values = [known[id(row.frame)][row.place] if id(row.frame) in known else None for row in rows]
        columns[name] = _build_column(values, like_this[name].dtype if name in like_this.columns else object)
    labels = [row.frame.index[[row.place]] for row in rows]
    frame = type(response)(columns, index=labels[0].append(labels[1:]))
    frame.columns = names
    return frame


def _build_column(values: Sequence[Any], dtype: Any) -> Any:
    """*values* in a column of *dtype*, or of the type they need where that would change them."""
    import pandas as pd  # where a data frame came from, it is loaded

    try:
        column = pd.Series(values, dtype=dtype)
        if column.notna().sum() == pd.Series(values, dtype=object).notna().sum():
            return column.array
    except (TypeError, ValueError, OverflowError):
        pass
    return pd.Series(values).array


def _check_kind(items: Sequence[Any], kind: type[_Item], response: Any) -> Sequence[_Item]:
    """*items*, which must be of that *kind* to go into *response*."""
    if all(isinstance(item, kind) for item in items):
        return items
    raise shape_error(response, "items of another kind cannot be put into a")


def _are_parallel(passages: Any, numbers: Any) -> bool:
    if not is_list(passages) or not (is_list(numbers) or is_array(numbers)):
        return False
    if len(passages) != len(numbers) or (is_array(numbers) and numbers.ndim != 1):
        return False
    return all(map(is_number, numbers)) and not any(map(is_number, passages))


def _unnest(outer: Any) -> Any:
    return outer[0] if is_list(outer) and len(outer) == 1 else None


def _to_list(numbers: Any) -> Any:
    return numbers.tolist() if is_array(numbers) else numbers


def wait_for_response(response: Any) -> Any:
    """Returns what *response* stands for: waits for a thread pool's result or future; anything else is unchanged.

    Raises what the call raised. An awaitable is left to those who can await it.
    """
    kind = type(response)
    if hasattr(kind, "__await__"):
        return response
    if _has_methods(kind, ("result", "done", "add_done_callback")):
        return response.result()
    return response.get() if _has_methods(kind, ("get", "ready", "wait", "successful")) else response


def _has_methods(kind: type, names: tuple[str, ...]) -> bool:
    return all(callable(getattr(kind, name, None)) for name in names)
