"""Lines of JSON and rows of Parquet: each a document of its own."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from qtmiddleware.kit.documents import DocumentChunk, cut_document

ROWS = [
    {
        "_id": "a",
        "title": "Pumps",
        "text": "It runs at 3 bar. " * 20,
        "year": 2021,
        "price": 1.5,
        "new": True,
        "no": None,
    },
    {
        "id": 7,
        "text": "No title here.",
        "metadata": {"lang": "en", "deep": {"x": 1}},
        "tags": ["x"],
        "chunk": 1,
    },
    {"name": "Ada", "age": 36},
]


@pytest.fixture
def cut(tmp_path: Path) -> Any:
    """Writes a file and gives back its chunks."""

    def write_and_cut(
        name: str, content: bytes | str, *, size: int = 1_000, overlap: int = 0
    ) -> list[DocumentChunk]:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return list(cut_document(path, size=size, overlap=overlap))

    return write_and_cut


def test_a_record_with_a_text_has_its_chunks_for_itself(cut: Any) -> None:
    made = cut("a.jsonl", "\n".join(map(json.dumps, ROWS)), size=100, overlap=20)
    assert made[0].chunk.text.startswith("Pumps\nIt runs at 3 bar.")
    of_first = [it for it in made if it.location.get("record_id") == "a"]
    assert {tuple(it.location.items()) for it in of_first} == {
        (
            ("record", 1),
            ("title", "Pumps"),
            ("record_id", "a"),
            ("year", 2021),
            ("price", 1.5),
            ("new", True),
        )
    }
    second, third = made[len(of_first) :]
    assert (second.chunk.text, second.location) == (
        "No title here.",
        {"record": 2, "record_id": "7", "lang": "en"},
    )
    assert third.chunk.text == "name: Ada\nage: 36\n\n"
    assert [it.chunk.index for it in made] == list(range(len(made)))
    assert [it.chunk.start for it in made] == sorted({it.chunk.start for it in made})
    assert second.chunk.start == of_first[-1].chunk.end == second.chunk.end - len("No title here.")


def test_the_rows_of_parquet_are_read_as_lines_of_json_are(cut: Any, tmp_path: Path) -> None:
    rows = [
        {"_id": str(at), "title": f"T{at}", "text": f"Row {at}. " * 30, "n": at}
        for at in range(600)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    path = tmp_path / "made.parquet"
    pq.write_table(pa.table({**columns, "vector": [[0.5] * 8] * 600}), path, row_group_size=250)
    made = cut("a.parquet", path.read_bytes(), size=100, overlap=20)
    assert made == cut("a.jsonl", "\n".join(map(json.dumps, rows)), size=100, overlap=20)
    assert made[-1].location == {"record": 600, "title": "T599", "record_id": "599", "n": 599}


def test_values_of_parquet_that_metadata_cannot_have_are_left_out(cut: Any, tmp_path: Path) -> None:
    row = {
        "text": "A.",
        "day": date(2026, 3, 1),
        "raw": b"x",
        "cost": Decimal("1.50"),
        "bad": float("nan"),
    }
    pq.write_table(
        pa.table({name: [value] for name, value in row.items()}), tmp_path / "made.parquet"
    )
    [made] = cut("a.parquet", (tmp_path / "made.parquet").read_bytes())
    assert made.location == {"record": 1, "day": "2026-03-01", "cost": 1.5}
