"""Convert passages to Pinecone's record format and back, and check Pinecone's limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import InvalidQuery, StoreError
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers import replace_surrogates

# Source: https://docs.pinecone.io/reference/api/database-limits, and the description of each
# request.
MOST_IDS: Final = 1_000
MOST_VECTORS: Final = 1_000
MOST_BYTES: Final = 2_000_000
MOST_METADATA_BYTES: Final = 40_960
MOST_MATCHES: Final = 10_000
LONGEST_ID: Final = 512
EXACT: Final = 2**53
"""The largest whole number that Pinecone stores exactly, because it stores 64-bit floats."""
NUMBER_BYTES: Final = 26
"""The maximum size of a 64-bit number in JSON, in bytes, with a comma and a space."""
FRAME_BYTES: Final = 120
"""The size of the names and brackets around one record, in bytes."""
DEFAULT_NAMESPACES: Final = ("", "__default__")


@dataclass(frozen=True, slots=True)
class Row:
    """The record in which Pinecone stores a passage.

    Attributes:
        id: the passage's id.
        record: the record to send.
        size: the approximate size of the record in bytes.
    """

    id: str
    record: dict[str, Any]
    size: int


def is_valid_passage_id(id_: object) -> bool:
    """Return whether Pinecone accepts *id_* as the id of a passage."""
    return isinstance(id_, str) and 0 < len(id_) <= LONGEST_ID and id_.isascii() and "\0" not in id_


def check_passage_id(id_: Any) -> str:
    """Return *id_*, or raise `StoreError` if Pinecone does not accept it as a passage's id."""
    if not is_valid_passage_id(id_):
        shown_id = repr(id_) if len(repr(id_)) <= 80 else f"{repr(id_)[:80]}..."
        raise StoreError(
            f"the id {shown_id} cannot be stored in Pinecone: ids must be 1 to {LONGEST_ID} ASCII"
            " characters, without NUL"
        )
    return str(id_)


def build_fields_and_size(passage: Passage, text_field: str) -> tuple[dict[str, Any], int]:
    """Return the fields to store for *passage*, and their size in bytes.

    The fields are the passage's metadata, and its text under the name *text_field*. Metadata with
    the value ``None`` is left out. Raises `StoreError` if Pinecone cannot store a value, or if the
    fields are too large.
    """
    fields: dict[str, Any] = {}
    metadata: Mapping[Any, Any] = passage.metadata
    for key, value in metadata.items():
        # Names that begin with $ are operators of filters.
        if not isinstance(key, str) or key.startswith("$") or key == text_field:
            reason = (
                "holds the text itself"
                if key == text_field
                else "cannot be one of Pinecone's metadata"
            )
            raise StoreError(
                f"the passage {passage.id!r} has a metadata key {key!r}, which {reason}; rename it"
            )
        if value is not None:
            fields[replace_surrogates(key)] = _convert_metadata_value(value, passage.id, key)
    fields[text_field] = replace_surrogates(passage.text)
    size = len(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MOST_METADATA_BYTES:
        raise StoreError(
            f"the text and metadata of the passage {passage.id!r} are {size:,} bytes; Pinecone"
            f" keeps at most {MOST_METADATA_BYTES:,} a record: make the chunks smaller"
        )
    return fields, size


def _convert_metadata_value(value: Any, passage_id: str, metadata_key: str) -> Any:
    """Convert a metadata value to a type that Pinecone stores.

    Raises `StoreError` if the value cannot be converted. The message names the passage and the
    metadata *metadata_key*.
    """
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
        f"the metadata {metadata_key!r} of the passage {passage_id!r} cannot be kept in Pinecone: a"
        " value is a text, a finite number (whole ones up to 2**53), true, false or a list of"
        f" texts, not {type(value).__name__}"
    )


def convert_vector(vector: Any, dimension: int, vector_owner: str) -> list[float]:
    """Return *vector* as a list of *dimension* numbers.

    Raises `StoreError` if the length is wrong or a number is not finite. The message names
    *vector_owner*, such as ``the query``.
    """
    try:
        numbers = [
            float(number) for number in (vector.tolist() if hasattr(vector, "tolist") else vector)
        ]
    except (TypeError, ValueError) as error:
        raise StoreError(f"the vector of {vector_owner} is not a list of numbers") from error
    if len(numbers) != dimension:
        raise StoreError(
            f"the vector of {vector_owner} has {len(numbers)} numbers, not {dimension}"
        )
    if not all(map(isfinite, numbers)):
        raise StoreError(f"the vector of {vector_owner} must hold finite numbers only")
    return numbers


def split_into_batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield *rows* in batches of at most 1,000 rows, each small enough for one request.

    If an id occurs twice in a batch, only the last row with this id is kept.
    """
    batch: dict[str, Row] = {}
    size = 0
    for row in rows:
        if batch and (len(batch) == MOST_VECTORS or size + row.size > MOST_BYTES):
            yield list(batch.values())
            batch, size = {}, 0
        # The earlier row is removed first, so that the new row is added at the end.
        replaced_row = batch.pop(row.id, None)
        size += row.size - (0 if replaced_row is None else replaced_row.size)
        batch[row.id] = row
    if batch:
        yield list(batch.values())


def convert_filter(filter: Filter | None) -> dict[str, Any]:  # noqa: A002
    """Return *filter* as JSON values for Pinecone, or an empty dictionary for ``None``.

    Raises `InvalidQuery` for an invalid filter.
    """
    if not filter:
        return {}
    # Called only for its checks: all stores reject the same filters with the same messages.
    build_matcher(filter)
    return {key: _convert_filter_value(value) for key, value in filter.items()}


def _convert_filter_value(value: Any) -> Any:
    """Convert a *value* in a filter to a JSON value. Tuples and sets become lists.

    Raises `InvalidQuery` for a number that Pinecone does not accept.
    """
    if isinstance(value, Mapping):
        return {key: _convert_filter_value(item) for key, item in value.items()}
    if (isinstance(value, float) and not isfinite(value)) or (
        isinstance(value, int) and abs(value) >= 2**63
    ):
        raise InvalidQuery(
            "the filter cannot be applied: it holds a number that Pinecone does not accept",
            argument="filter",
        )
    return (
        [_convert_filter_value(item) for item in value]
        if isinstance(value, list | tuple | set | frozenset)
        else value
    )


def build_record(
    id_: str, score: float, fields: Mapping[str, Any] | None, text_field: str
) -> Record:
    """Return a search result from Pinecone as a record in the format of all stores.

    *fields* are the passage's metadata, and its text under the name *text_field*.
    """
    all_fields = dict(fields or {})
    text = all_fields.pop(text_field, "")
    metadata = {key: restore_integer(value) for key, value in all_fields.items()}
    return {
        "id": id_,
        "score": score,
        "text": text if isinstance(text, str) else str(text),
        "metadata": metadata,
    }


def restore_integer(value: Any) -> Any:
    """Return a whole number as an integer, and any other value unchanged.

    Pinecone returns integers as floats; this function reverses that.
    """
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT
        else value
    )


def sort_records(records: list[Record]) -> list[Record]:
    """Return *records* sorted by score, best first, then by id."""
    return sorted(records, key=lambda record: (-record["score"], record["id"]))
