"""Passages in and out of the store's table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.protocols import Record
from qtmiddleware.providers.stores.checks import SLICE, Row
from qtmiddleware.providers.stores.sqlite.files import Damage

if TYPE_CHECKING:
    from qtmiddleware.providers.stores.checks import Floats

_UPSERT: Final = """
INSERT INTO passages (id, text, metadata, vector, changed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    text = excluded.text, metadata = excluded.metadata, vector = excluded.vector, changed = excluded.changed
"""


def put(run: sqlite3.Connection, rows: Sequence[Row], vectors: Floats, change: int) -> None:
    """Write *rows* with their *vectors* as part of the change of this number."""
    blobs = (vector.tobytes() for vector in vectors.astype("<f4"))
    run.executemany(_UPSERT, ((*row, blob, change) for row, blob in zip(rows, blobs, strict=True)))


def meta(run: sqlite3.Connection, key: str) -> Any:
    """What the store says of itself under *key*."""
    found = run.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise Damage("its own account of itself is missing")
    return found[0]


def remove(run: sqlite3.Connection, ids: Sequence[str]) -> int:
    """Remove the rows of these *ids*; answers how many there were."""
    return sum(run.execute(f"DELETE FROM passages WHERE id IN ({_marks(part)})", part).rowcount for part in _parts(ids))


def records(run: sqlite3.Connection, found: Sequence[tuple[int, float]]) -> list[Record]:
    """The rows that were *found* (row, score), read."""
    held: dict[int, tuple[str, str, str]] = {}
    for part in _parts([row for row, _ in found]):
        rows = run.execute(f"SELECT row, id, text, metadata FROM passages WHERE row IN ({_marks(part)})", part)
        held.update({row: (id_, text, metadata) for row, id_, text, metadata in rows})
    if any(row not in held for row, _ in found):
        raise Damage("an index of it names passages that are not there")
    return [_record(*held[row], score) for row, score in found]


def _record(id_: str, text: str, metadata: str, score: float) -> Record:
    try:
        facts = dict(json.loads(metadata))
    except (TypeError, ValueError):
        raise Damage("the metadata of a passage is no JSON object") from None
    return {"id": id_, "score": score, "text": text, "metadata": facts}


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    # Some builds of SQLite allow no more than 999 values in one statement.
    for start in range(0, len(values), SLICE):
        yield values[start : start + SLICE]


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))
