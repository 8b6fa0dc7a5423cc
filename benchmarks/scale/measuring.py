"""What one passage and one question are, measured: a real ingest, and the prompt and replies of `combined`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

import qtmiddleware as qtm
from benchmarks.ingest.places import SHARED
from qtmiddleware.providers.embedders import CallableEmbedder
from qtmiddleware.rag.ingestion import ingest
from qtmiddleware.testing import ScriptedModel

DIMENSION = 384
CORPUS = SHARED / "data" / "covidqa"
RECORDINGS = SHARED / "recordings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a passage comes to: characters of its text and of its other metadata, bytes in ledger and index beside the
    vector, processor ms of the driver without embedding. And a question: characters of prompt and reply."""

    passages: int
    text_chars: float
    metadata_chars: float
    ledger_bytes: float
    index_bytes: float
    driver_ms: float
    prompt_chars: float
    reply_chars: float


def measure_ingest() -> dict[str, float]:
    """One ingest of all abstracts of covidqa, a file each, with vectors that cost next to nothing."""
    rows = [json.loads(line) for line in (CORPUS / "corpus.jsonl").read_text("utf-8").splitlines()]
    chance = np.random.default_rng(7)
    spent = 0.0

    def embed(texts: Sequence[str]) -> list[list[float]]:
        nonlocal spent
        began = process_time()
        vectors: list[list[float]] = chance.standard_normal((len(texts), DIMENSION), dtype=np.float32).tolist()
        spent += process_time() - began
        return vectors

    with TemporaryDirectory(prefix="qtm") as folder:
        docs, index = Path(folder) / "docs", Path(folder) / "index.db"
        docs.mkdir()
        for row in rows:
            (docs / f"{row['_id']}.txt").write_text(row["text"], encoding="utf-8")
        embedder = CallableEmbedder(embed, name="random", dimension=DIMENSION)
        began = process_time()
        count = ingest(docs, config={"indexPath": str(index)}, embedder=embedder).chunks
        taken = process_time() - began - spent
        ledger = Path(f"{index}.ingest")
        with sqlite3.connect(ledger) as connection:
            found = connection.execute("SELECT avg(length(text)), avg(length(metadata)) FROM chunks").fetchone()
        connection.close()
        vector_bytes = 4 * DIMENSION
        return {
            "passages": count,
            "text_chars": found[0],
            "metadata_chars": found[1],
            "ledger_bytes": ledger.stat().st_size / count - vector_bytes,
            "index_bytes": index.stat().st_size / count - vector_bytes,
            "driver_ms": 1e3 * taken / count,
        }


def measure_call() -> dict[str, float]:
    """What `combined` sends for a question, and what was recorded as its replies."""
    model = ScriptedModel({"rewrite": "the rewritten question"})
    qm = qtm.QueryMiddleware({"transformationType": "combined"}, client=model)
    qm.transform("Does Jaco have any health concerns?")
    files = sorted(RECORDINGS.glob("*.jsonl"))
    replies = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    fields = ("rewrite", "step_back", "sub_queries", "hyde")
    written = [json.dumps({name: row[name] for name in fields if name in row}) for row in replies]
    return {
        "prompt_chars": len(model.prompts[0].system) + len(model.prompts[0].user),
        "reply_chars": mean(map(len, written)),
    }


def measure() -> Measured:
    """Both."""
    return Measured(**measure_ingest(), **measure_call())  # type: ignore[arg-type]


def keep(measured: Measured, path: Path) -> None:
    """Write what was *measured* to *path*."""
    path.write_text(json.dumps({name: round(it, 3) for name, it in asdict(measured).items()}, indent=1) + "\n", "utf-8")
