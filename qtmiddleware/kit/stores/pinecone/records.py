"""Passages as Pinecone keeps them, within its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates

# https://docs.pinecone.io/reference/api/database-limits and the requests' own description.
MOST_IDS: Final = 1_000
MOST_VECTORS: Final = 1_000
MOST_TEXTS: Final = 96
MOST_BYTES: Final = 2_000_000
MOST_METADATA_BYTES: Final = 40_960
MOST_SPARSE_VALUES: Final = 2_048
MOST_MATCHES: Final = 10_000
LONGEST_ID: Final = 512
EXACT: Final = 2**53
"""Pinecone keeps numbers as floats of 64 bits; whole numbers beyond this lose digits there."""
NUMBER_BYTES: Final = 26
"""The longest a number of 64 bits gets in JSON, with the comma and a blank."""
FRAME_BYTES: Final = 120
"""The names and brackets around one record."""
DEFAULT_NAMESPACES: Final = ("", "__default__")


@dataclass(frozen=True, slots=True)
class Row:
    """A *passage* with the *record* that is sent for it, about *size* bytes; no record, and it is to be removed."""

    passage: Passage
    record: dict[str, Any] | None
    size: int = 0


def is_id(id_: object) -> bool:
    """Whether Pinecone can hold a passage of this id."""
    return isinstance(id_, str) and 0 < len(id_) <= LONGEST_ID and id_.isascii() and "\0" not in id_


def check_id(id_: Any) -> str:
    """*id_*, if Pinecone can hold it; raises `StoreError`."""
    if not is_id(id_):
        shown = repr(id_) if len(repr(id_)) <= 80 else f"{repr(id_)[:80]}..."
        raise StoreError(
            f"the id {shown} cannot be stored in Pinecone: ids must be 1 to {LONGEST_ID} ASCII"
            " characters, without NUL"
        )
    return str(id_)


def check_fields(
    passage: Passage, text_field: str, reserved: Sequence[str] = ()
) -> tuple[dict[str, Any], int]:
    """The metadata and the text of *passage* as one mapping of what Pinecone can hold, and its size in bytes.

    A value of ``None`` is left out, as Pinecone keeps none; raises `StoreError` for one it cannot
    hold.
    """
    fields: dict[str, Any] = {}
    given: Mapping[Any, Any] = passage.metadata
    for key, value in given.items():
        if not isinstance(key, str) or key.startswith("$") or key == text_field or key in reserved:
            why = (
                "holds the text itself"
                if key == text_field
                else "cannot be one of Pinecone's metadata"
            )
            raise StoreError(
                f"the passage {passage.id!r} has a metadata key {key!r}, which {why}; rename it"
            )
        if value is not None:
            fields[replace_surrogates(key)] = _plain(value, passage.id, key)
    fields[text_field] = replace_surrogates(passage.text)
    size = len(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MOST_METADATA_BYTES:
        raise StoreError(
            f"the text and metadata of the passage {passage.id!r} are {size:,} bytes; Pinecone"
            f" keeps at most {MOST_METADATA_BYTES:,} a record: make the chunks smaller"
        )
    return fields, size


def _plain(value: Any, id_: str, key: str) -> Any:
    """One metadata value as it is sent."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, int) and abs(value) <= EXACT:
        return int(value)
    if isinstance(value, float) and isfinite(value):
        return float(value)
    if isinstance(value, list | tuple) and all(isinstance(member, str) for member in value):
        return [replace_surrogates(member) for member in value]
    raise StoreError(
        f"the metadata {key!r} of the passage {id_!r} cannot be kept in Pinecone: a value is a"
        " text, a finite number (whole ones up to 2**53), true, false or a list of texts, not"
        f" {type(value).__name__}"
    )


def check_vector(vector: Any, dimension: int, whose: str) -> list[float]:
    """*vector* as a list of *dimension* finite numbers; raises `StoreError`."""
    try:
        numbers = [
            float(number) for number in (vector.tolist() if hasattr(vector, "tolist") else vector)
        ]
    except (TypeError, ValueError) as error:
        raise StoreError(f"the vector of {whose} is not a list of numbers") from error
    if len(numbers) != dimension:
        raise StoreError(f"the vector of {whose} has {len(numbers)} numbers, not {dimension}")
    if not all(map(isfinite, numbers)):
        raise StoreError(f"the vector of {whose} must hold finite numbers only")
    return numbers


def split_batches(rows: Iterable[Row], most: int) -> Iterator[list[Row]]:
    """*rows* in the parts that one request may hold each; of one id twice in a part, the last stays."""
    part: dict[str, Row] = {}
    size = 0
    for row in rows:
        if part and (len(part) == most or size + row.size > MOST_BYTES):
            yield list(part.values())
            part, size = {}, 0
        # Taken out first, so that the last of one id also stands where the last came.
        replaced = part.pop(row.passage.id, None)
        size += row.size - (0 if replaced is None else replaced.size)
        part[row.passage.id] = row
    if part:
        yield list(part.values())


def plain_filter(filter: Filter | None) -> dict[str, Any]:  # noqa: A002
    """*filter* in plain JSON, empty where there is none; raises `InvalidQuery` for an impossible one."""
    if not filter:
        return {}
    build_matcher(filter)
    return {key: _json(value) for key, value in filter.items()}


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _json(one) for key, one in value.items()}
    if (isinstance(value, float) and not isfinite(value)) or (
        isinstance(value, int) and abs(value) >= 2**63
    ):
        raise InvalidQuery(
            "the filter cannot be applied: it holds a number that Pinecone does not accept",
            argument="filter",
        )
    return (
        [_json(one) for one in value]
        if isinstance(value, list | tuple | set | frozenset)
        else value
    )


def read_record(
    id_: str, score: float, fields: Mapping[str, Any] | None, text_field: str
) -> Record:
    """What was found as every store answers it."""
    held = dict(fields or {})
    text = held.pop(text_field, "")
    metadata = {key: restore_integer(value) for key, value in held.items()}
    return {
        "id": id_,
        "score": score,
        "text": text if isinstance(text, str) else str(text),
        "metadata": metadata,
    }


def restore_integer(value: Any) -> Any:
    """*value*, a whole number as the integer it was: Pinecone gives every number back as a float."""
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT
        else value
    )


def sort_records(records: list[Record]) -> list[Record]:
    """*records* by score, best first, and of equal score by id."""
    return sorted(records, key=lambda record: (-record["score"], record["id"]))
