"""What is read of a file, and why it is not read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.documents import Converter


@pytest.fixture(scope="session")
def converter() -> Iterator[Converter]:
    with Converter() as opened:
        yield opened


@pytest.fixture
def read(tmp_path: Path, converter: Converter) -> Any:
    """Writes a file and returns the text and the place of each piece, without line ends."""

    def write_and_read(name: str, content: bytes | str) -> list[tuple[str, dict[str, Any]]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        pieces = converter.read(path)
        return [(piece.text.rstrip("\n"), dict(piece.location)) for piece in pieces]

    return write_and_read


@pytest.fixture
def reason(read: Any) -> Any:
    """Writes a file that cannot be read, and returns why."""

    def write_and_refuse(name: str, content: bytes | str) -> str:
        with pytest.raises(UnreadableDocument) as caught:
            read(name, content)
        assert name in str(caught.value)
        return caught.value.reason

    return write_and_refuse
