"""An ingest holds no more of a large corpus than of a small one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform == "win32", reason="a process cannot ask for its memory"),
]

WIDE = 1024
SCRIPT = f"""
import hashlib, resource, sys
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.kit.index.ingestion import ingest

def wide(texts):
    return [[byte / 256 for byte in hashlib.sha256(text.encode()).digest()] * {WIDE // 32} for text in texts]

config = {{"indexPath": sys.argv[2], "chunkSize": 1500, "chunkOverlap": 150}}
report = ingest(sys.argv[1], config=config, embedder=CallableEmbedder(wide, name="wide", dimension={WIDE}))
print(report.chunks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def megabytes_and_chunks(folder: Path, documents: int) -> tuple[float, int]:
    folder.mkdir()
    for number in range(documents):
        lines = (
            f"Line {at} of text {number} says {at * number} and nothing else.\n"
            for at in range(20_000)
        )
        (folder / f"{number}.txt").write_text("".join(lines))
    command = [sys.executable, "-c", SCRIPT, str(folder), f"{folder}.sqlite"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    chunks, peak = map(int, done.stdout.split())
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), chunks


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    small, few = megabytes_and_chunks(tmp_path / "small", 2)
    large, many = megabytes_and_chunks(tmp_path / "large", 5)
    texts_and_vectors = (many - few) * (1500 + 4 * WIDE) / (1 << 20)
    assert texts_and_vectors > 10
    assert large - small < texts_and_vectors / 4
