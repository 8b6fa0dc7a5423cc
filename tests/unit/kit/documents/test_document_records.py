"""Lines of JSON: each a document of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
