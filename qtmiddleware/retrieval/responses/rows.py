"""Plain tuples as databases return them, such as ``(id, text, score)``: which place holds what.

A tuple says nothing of its places, so the types in the whole list decide. `PlainRow` is such a
tuple with names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.retrieval.responses.fields import (
    PLAIN,
    find_kind,
    is_number,
    replace_path,
    to_number,
)

_READS_LIKE_A_TEXT: Final = re.compile(r"[\s。、，！？]")  # some scripts put no space between words


class PlainRow(dict[str, Any]):
    """One row of a list of plain tuples, its values by name, and beside them the caller's own *row*.

    The names are ``id``, ``text``, ``score`` and ``metadata``; any other value stands under its
    place in the row. *key* tells rows apart. It does not depend on the names, which another list of
    the same function may show differently.
    """

    __slots__ = ("key", "names", "row")

    def __init__(self, row: Sequence[Any], names: Sequence[str]) -> None:
        super().__init__(zip(names, row, strict=True))
        self.row, self.names, self.key = row, names, _build_key(row)

    def rescore(self, score: float, name: str) -> PlainRow:
        """Returns a copy of the row with *score* under *name*, read; itself if the row has nothing there."""
        if name not in self.names:
            return self
        return PlainRow(replace_path(self.row, (self.names.index(name),), score), self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainRow, (self.row, self.names)


def get_raw(item: Any) -> Any:
    """Returns the caller's own object for *item*."""
    return item.row if type(item) is PlainRow else item


def reads_like_text(value: str) -> bool:
    """Whether *value* is a text rather than an id."""
    return _READS_LIKE_A_TEXT.search(value) is not None


def is_pair(row: Sequence[Any]) -> bool:
    """Whether the plain *row* is ``(id or document, score)``, with or without metadata behind it."""
    if len(row) not in (2, 3) or not (row[1] is None or is_number(row[1])):
        return False
    return len(row) == 2 or row[2] is None or isinstance(row[2], Mapping)


def name_places(items: Sequence[Any], fields: Sequence[str | None] = ()) -> Sequence[Any]:
    """Returns *items*, each as a `PlainRow` if all are plain tuples of one kind and length that no pair is read of.

    *fields* are those that the user names; a place among them, such as ``"2"``, keeps that name.
    """
    kinds = set(map(type, items))
    if len(kinds) != 1 or find_kind(*kinds) is not PLAIN or all(map(is_pair, items)):
        return items
    if len(set(map(len, items))) != 1 or not items[0]:
        return items
    columns = list(zip(*items, strict=True))
    names = _choose_names(columns, needs_number=isinstance(items[0], list))
    if "text" not in names and not {"id", "metadata"} <= {*names}:
        return items
    names = [str(place) if str(place) in fields else name for place, name in enumerate(names)]
    return [PlainRow(row, names) for row in items]


def _build_key(row: Sequence[Any]) -> str:
    """The id, if the row begins with one, and NUL and the texts, whichever of them is the passage."""
    id_ = str(row[0]) if is_id(row[0]) else ""
    texts = [
        value for place, value in enumerate(row) if isinstance(value, str) and (place or not id_)
    ]
    return "\0".join([id_, *texts]) if texts else id_ or "\0"


def is_id(value: Any) -> bool:
    """Whether *value* may be an id: a whole number, a word, or an object such as a UUID."""
    if isinstance(value, str):
        return not reads_like_text(value)
    if value is None or isinstance(value, bool) or hasattr(value, "__iter__"):
        return False
    return not is_number(value) or hasattr(value, "__index__")


def may_be_scores(column: Sequence[Any]) -> bool:
    """Whether *column* holds numbers, not all whole, that only rise or only fall, as those of a list do, best first."""
    numbers = [value for value in column if value is not None]
    if all(hasattr(value, "__index__") for value in numbers) or not all(map(is_number, numbers)):
        return False
    known = [to_number(value) for value in numbers]
    return None not in known and known == sorted(known, reverse=known[0] > known[-1])  # type: ignore[operator,type-var]


def _choose_names(columns: Sequence[Sequence[Any]], *, needs_number: bool) -> list[str]:
    """The name of each of the *columns*.

    Lists in a list may as well be columns, ``[texts, sources]``, so of these one value must be a
    number.
    """
    names = list(map(str, range(len(columns))))
    if needs_number and not any(is_number(value) for column in columns for value in column):
        return names
    found = {
        "metadata": [place for place, column in enumerate(columns) if _are_all(column, Mapping)][
            :1
        ],
        "score": [place for place, column in enumerate(columns) if may_be_scores(column)][-1:],
        "text": _choose_text(columns),
    }
    for name, places in found.items():
        for place in places:
            names[place] = name
    if names[0] == "0" and all(is_id(value) for value in columns[0] if value is not None):
        names[0] = "id"
    return names


def _choose_text(columns: Sequence[Sequence[Any]]) -> list[int]:
    """The place of the longest texts; if none reads like a text, the first place of strings behind the id's."""
    places = [place for place, column in enumerate(columns) if _are_all(column, str)]
    telling = [place for place in places if any(map(reads_like_text, filter(None, columns[place])))]
    if telling:
        return [max(telling, key=lambda place: sum(map(len, filter(None, columns[place]))))]
    return [place for place in places if place or len(columns) == 1][:1]


def _are_all(column: Sequence[Any], kind: type) -> bool:
    return any(value is not None for value in column) and all(
        isinstance(it, kind) for it in column if it is not None
    )
