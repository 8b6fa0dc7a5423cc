"""Name the values of plain tuples from databases, such as ``(id, text, score)``.

The names are guessed from the values in all rows. `PlainRow` combines a tuple with these names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.retrieval.responses.fields import (
    PLAIN,
    convert_to_float,
    find_kind,
    is_number,
    replace_nested_value,
)

# Some scripts put no spaces between words, so CJK punctuation counts too.
_READS_LIKE_A_TEXT: Final = re.compile(r"[\s。、，！？]")


class PlainRow(dict[str, Any]):
    """A plain tuple or list from a response, with its values by name.

    The names are ``id``, ``text``, ``score`` and ``metadata``. The name of any other value is its
    position in the row.

    Attributes:
        row: The tuple or list that the function returned.
        names: The name of each value.
        key: Identifies the row in all responses of a function, even if the names differ.
    """

    __slots__ = ("key", "names", "row")

    def __init__(self, row: Sequence[Any], names: Sequence[str]) -> None:
        super().__init__(zip(names, row, strict=True))
        self.row, self.names, self.key = row, names, _build_key(row)

    def replace_score(self, score: float, score_field: str) -> PlainRow:
        """Return a copy of the row with *score* in the field *score_field*.

        If the row has no such field, return the row itself.
        """
        if score_field not in self.names:
            return self
        return PlainRow(
            replace_nested_value(self.row, (self.names.index(score_field),), score), self.names
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainRow, (self.row, self.names)


def get_raw_item(item: Any) -> Any:
    """Return the object that the function returned for *item*.

    This is *item* itself, or the tuple or list inside a `PlainRow`.
    """
    return item.row if type(item) is PlainRow else item


def is_probably_text(value: str) -> bool:
    """Return whether *value* has spaces or CJK punctuation, and is therefore probably a text."""
    return _READS_LIKE_A_TEXT.search(value) is not None


def is_scored_pair(row: Sequence[Any]) -> bool:
    """Return whether *row* is ``(id or document, score)``, optionally followed by metadata."""
    if len(row) not in (2, 3) or not (row[1] is None or is_number(row[1])):
        return False
    return len(row) == 2 or row[2] is None or isinstance(row[2], Mapping)


def convert_to_plain_rows(
    items: Sequence[Any], configured_fields: Sequence[str | None] = ()
) -> Sequence[Any]:
    """Convert *items* to `PlainRow` objects if their values can be named.

    If one of the following conditions is not met, *items* are returned unchanged:

    - All items are plain tuples or lists of one type and length.
    - The items have a text, or an id and metadata.
    - At least one item is not an (id, score) pair.

    *configured_fields* are the fields that the user's settings name. A position among them, such as
    ``"2"``, keeps its name.
    """
    classes = set(map(type, items))
    if len(classes) != 1 or find_kind(*classes) is not PLAIN or all(map(is_scored_pair, items)):
        return items
    if len(set(map(len, items))) != 1 or not items[0]:
        return items
    columns = list(zip(*items, strict=True))
    names = _choose_column_names(columns, needs_number=isinstance(items[0], list))
    if "text" not in names and not {"id", "metadata"} <= {*names}:
        return items
    names = [
        str(place) if str(place) in configured_fields else name for place, name in enumerate(names)
    ]
    return [PlainRow(row, names) for row in items]


def _build_key(row: Sequence[Any]) -> str:
    """Return a key for *row*: its id, if there is one, and its texts, joined by NUL characters.

    All texts are used, because any of them may be the passage.
    """
    id_ = str(row[0]) if is_id(row[0]) else ""
    texts = [
        value for place, value in enumerate(row) if isinstance(value, str) and (place or not id_)
    ]
    return "\0".join([id_, *texts]) if texts else id_ or "\0"


def is_id(value: Any) -> bool:
    """Return whether *value* may be an id: a whole number, a word, or an object such as a UUID."""
    if isinstance(value, str):
        return not is_probably_text(value)
    if value is None or isinstance(value, bool) or hasattr(value, "__iter__"):
        return False
    return not is_number(value) or hasattr(value, "__index__")


def can_be_scores(column: Sequence[Any]) -> bool:
    """Return whether *column* may contain scores: numbers that only rise or only fall.

    A column of whole numbers is rejected, because these may be ids.
    """
    numbers = [value for value in column if value is not None]
    if all(hasattr(value, "__index__") for value in numbers) or not all(map(is_number, numbers)):
        return False
    floats = [convert_to_float(value) for value in numbers]
    return None not in floats and floats == sorted(floats, reverse=floats[0] > floats[-1])  # type: ignore[operator,type-var]


def _choose_column_names(columns: Sequence[Sequence[Any]], *, needs_number: bool) -> list[str]:
    """Return a name for each of *columns*: ``id``, ``text``, ``score``, ``metadata`` or its index.

    If *needs_number* is true and no value is a number, all names are indexes. The reason is that a
    list of lists without a number may contain columns instead of rows, such as ``[texts,
    sources]``.
    """
    names = list(map(str, range(len(columns))))
    if needs_number and not any(is_number(value) for column in columns for value in column):
        return names
    places_by_name = {
        "metadata": [
            place for place, column in enumerate(columns) if _are_instances(column, Mapping)
        ][:1],
        "score": [place for place, column in enumerate(columns) if can_be_scores(column)][-1:],
        "text": _choose_text_column(columns),
    }
    for name, places in places_by_name.items():
        for place in places:
            names[place] = name
    if names[0] == "0" and all(is_id(value) for value in columns[0] if value is not None):
        names[0] = "id"
    return names


def _choose_text_column(columns: Sequence[Sequence[Any]]) -> list[int]:
    """Return the index of the column with the longest texts, as a list of one index.

    If no column looks like text, use the first column of strings after the id. If there is no such
    column, return an empty list.
    """
    places = [place for place, column in enumerate(columns) if _are_instances(column, str)]
    text_places = [
        place for place in places if any(map(is_probably_text, filter(None, columns[place])))
    ]
    if text_places:
        return [max(text_places, key=lambda place: sum(map(len, filter(None, columns[place]))))]
    return [place for place in places if place or len(columns) == 1][:1]


def _are_instances(column: Sequence[Any], class_: type) -> bool:
    """Return whether all values of *column* except ``None`` are instances of *class_*.

    Returns false if there are no such values.
    """
    return any(value is not None for value in column) and all(
        isinstance(value, class_) for value in column if value is not None
    )
