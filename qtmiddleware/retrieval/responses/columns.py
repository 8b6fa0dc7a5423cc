"""Responses that keep a passage in parallel columns: its text in one list, its score in a second one.

An item is what the columns hold at one place: a pair or a dict, which are read as any other item is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from qtmiddleware.retrieval.responses.base import (
    ABSENT,
    Path,
    follow,
    is_array,
    is_list,
    is_number,
    like,
    rebuilt,
    replaced,
    step,
    unknown,
)
from qtmiddleware.retrieval.responses.items import NAMES, SCORES, ItemShape

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


def in_columns(response: Any) -> _Columns | _DataFrame | None:
    """The shape of a data frame or of a mapping of columns, ``None`` for anything else."""
    if has_columns(response):
        return _Columns(response)
    return _DataFrame("data frame") if _is_data_frame(response) else None


def has_columns(response: Any) -> bool:
    """Whether *response* is a mapping that keeps ids or metadata in columns, as Chroma's results do."""
    return isinstance(response, Mapping) and any(is_list(response.get(name)) for name in _LEADING)


def in_parallel(response: Any, name: str | int) -> _Parallel | None:
    """The shape of a *response* whose field *name* holds passages and another one their scores, ``None`` without."""
    for scores in (1,) if name == 0 else _NUMBERS:
        if (numbers := step(response, scores)) is not ABSENT and _are_parallel(step(response, name), numbers):
            return _Parallel((name,), (scores,))
    return None


class _Parallel(ItemShape):
    """A list of passages and a list of their scores; an item is the pair of both."""

    def __init__(self, passages: Path, scores: Path) -> None:
        super().__init__("documents and scores")
        self._passages = passages
        self._scores = scores

    def items(self, response: Any) -> Sequence[Any]:
        return list(zip(follow(response, self._passages), _plain(follow(response, self._scores)), strict=True))

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        pairs = _all(items, tuple, response)
        for path, place in ((self._passages, 0), (self._scores, 1)):
            response = rebuilt(response, path, [pair[place] for pair in pairs])
        return response


class _Columns(ItemShape):
    """A mapping of columns, each a list or, as for a query of several texts, a list with one list in it.

    An item is a dict with the columns' values under singular names. Columns that are ``None`` stay so.
    """

    def __init__(self, response: Any) -> None:
        super().__init__("columns")
        self._columns(response)

    def items(self, response: Any) -> Sequence[Any]:
        columns, _ = self._columns(response)
        names = [_FIELDS.get(name, name) for name in columns]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def rebuild(self, response: Any, items: Sequence[Any]) -> Any:
        columns, is_nested = self._columns(response)
        rows = _all(items, dict, response)
        for name, column in columns.items():
            values = like(column, [row.get(_FIELDS.get(name, name)) for row in rows])
            response = replaced(response, (name,), like(response[name], [values]) if is_nested else values)
        return response

    def _columns(self, response: Any) -> tuple[dict[str, Any], bool]:
        """The columns by name, and whether each lies inside a list of its own."""
        first = next(column for name in _LEADING if is_list(column := response.get(name)))
        is_nested = len(first) > 0 and is_list(first[0])
        if is_nested and len(first) > 1:
            raise unknown(response, "the results of several queries were found in a")
        count = len(first[0] if is_nested else first)
        columns = {}
        for name, outer in response.items():
            column = _only(outer) if is_nested else outer
            if (is_list(column) or is_array(column)) and len(column) == count and name != _NO_COLUMN:
                columns[name] = column
            elif name in _FIELDS and outer is not None:
                raise unknown(response, f"{name!r} is not as long as the other columns of a")
        return columns, is_nested


class _Row(dict[Any, Any]):
    """One row of a data frame: the columns' values by name, ``None`` for what is missing, and where the row lies."""

    __slots__ = ("frame", "place")

    frame: Any
    place: int


class _DataFrame(ItemShape):
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
        rows = _all(items, _Row, response)
        if all(row.frame is response for row in rows):
            made = response.iloc[[row.place for row in rows]]
        else:
            made = _joined(response, rows)
        for name in SCORES:
            if name in made.columns:
                before, after = made[name].tolist(), [row.get(name) for row in rows]
                if any(is_number(new) and new != old for new, old in zip(after, before, strict=True)):
                    made = made.assign(**{name: _array(after, made[name].dtype)})
        made.attrs = dict(response.attrs)
        return made


def _is_data_frame(response: Any) -> bool:
    """Whether *response* has rows and named columns, one of which tells passages apart."""
    kind = type(response)
    if not (hasattr(kind, "iloc") and hasattr(kind, "columns") and response.columns.is_unique):
        return False
    if not len(response) or any(name in NAMES for name in (*response.columns, *response.index.names)):
        return True
    return any(isinstance(value, str) for value in response.iloc[0])


def _joined(response: Any, rows: Sequence[_Row]) -> Any:
    """The *rows* of several frames as one like *response*, in the types of its columns as far as they can hold them."""
    like_this = response if len(response) else rows[0].frame
    names = response.columns if len(response.columns) else like_this.columns
    frames = {id(row.frame): row.frame for row in rows}
    columns = {}
    for name in names:
        known = {key: frame[name].tolist() for key, frame in frames.items() if name in frame.columns}
        values = [known[id(row.frame)][row.place] if id(row.frame) in known else None for row in rows]
        columns[name] = _array(values, like_this[name].dtype if name in like_this.columns else object)
    labels = [row.frame.index[[row.place]] for row in rows]
    made = type(response)(columns, index=labels[0].append(labels[1:]))
    made.columns = names
    return made


def _array(values: Sequence[Any], dtype: Any) -> Any:
    """*values* in a column of *dtype*, or of the type they need where that would change them."""
    import pandas as pd  # where a data frame came from, it is loaded

    try:
        made = pd.Series(values, dtype=dtype)
        if made.notna().sum() == pd.Series(values, dtype=object).notna().sum():
            return made.array
    except (TypeError, ValueError, OverflowError):
        pass
    return pd.Series(values).array


def _all(items: Sequence[Any], kind: type[_Item], response: Any) -> Sequence[_Item]:
    """*items*, which must be of that *kind* to go into *response*."""
    if all(isinstance(item, kind) for item in items):
        return items
    raise unknown(response, "items of another kind cannot be put into a")


def _are_parallel(passages: Any, numbers: Any) -> bool:
    if not is_list(passages) or not (is_list(numbers) or is_array(numbers)):
        return False
    if len(passages) != len(numbers) or (is_array(numbers) and numbers.ndim != 1):
        return False
    return all(map(is_number, numbers)) and not any(map(is_number, passages))


def _only(outer: Any) -> Any:
    return outer[0] if is_list(outer) and len(outer) == 1 else None


def _plain(numbers: Any) -> Any:
    return numbers.tolist() if is_array(numbers) else numbers
