"""The time of an ingest beside that of embedding alone."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.ingest.places import SHARED
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.index.ingestion import ingest
from qtmiddleware.kit.index.ingestion.embedding import BATCH

BAR = 1.10
TITLE = "## Beside embedding alone"
TEXT = (
    "`ingest` into a fresh index beside `embed` of the very same texts in batches of the same size (all-MiniLM-L6-v2 "
    "by numpy, one thread), by turns in one process. Seconds of the processor, medians; a ratio is the median of all "
    "runs' (least to most). The bar is for the ratio within one run, which other work on the machine disturbs least. "
    "Beside embedding, ingest reads, hashes and cuts the documents, keeps everything in the ledger and writes "
    "passages, vectors and the word index. PDFs have no bar: to read them takes pypdf longer than all of that."
)


@dataclass(frozen=True)
class Overhead:
    """One corpus: seconds of the processor for an ingest, for what of it is embedding, and for embedding alone."""

    what: str
    documents: int
    chunks: int
    texts: int
    ingest: float
    within: float
    alone: float
    shares: tuple[float, ...]
    ratios: tuple[float, ...]
    has_bar: bool

    @property
    def share(self) -> float:
        """The whole run by the embedding within it."""
        return statistics.median(self.shares)

    @property
    def holds(self) -> bool:
        return not self.has_bar or self.share <= BAR


class Timed:
    """An embedder that keeps the time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.name = inner.name
        self.dimension = inner.dimension
        self.seconds = 0.0
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts += texts
        began = time.process_time()
        try:
            found: list[list[float]] = self._inner.embed(texts)
        finally:
            self.seconds += time.process_time() - began
        return found


def corpora(folder: Path) -> dict[str, Path]:
    """What is ingested, by name."""
    many = folder / "covidqa"
    many.mkdir()
    lines = (SHARED / "data" / "covidqa" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines[::20]):
        (many / f"{number}.txt").write_text(json.loads(line)["text"], encoding="utf-8")
    return {
        "../shared/docs/*.txt": SHARED / "docs" / "*.txt",
        "every twentieth of ../shared/data/covidqa, a file each": many,
        "../shared/docs/*.pdf": SHARED / "docs" / "*.pdf",
    }


def overheads(pairs: int) -> list[Overhead]:
    """Every corpus ingested and embedded by turns, in this process."""
    embedder = find_embedder("all-MiniLM-L6-v2")
    embedder.embed(["Loaded before anything is measured."])
    with TemporaryDirectory() as folder:
        return [
            measured(name, path, embedder, pairs) for name, path in corpora(Path(folder)).items()
        ]


def measured(name: str, path: Path, embedder: Any, pairs: int) -> Overhead:
    """One corpus, *pairs* times each way."""
    report, timed = None, Timed(embedder)

    def ingested() -> None:
        nonlocal report, timed
        timed = Timed(embedder)
        with TemporaryDirectory() as folder:
            report = ingest(
                path, config={"indexPath": str(Path(folder, "index.sqlite"))}, embedder=timed
            )

    ingested()
    texts = timed.texts

    def alone() -> None:
        for start in range(0, len(texts), BATCH):
            embedder.embed(texts[start : start + BATCH])

    ours: list[float] = []
    within: list[float] = []
    theirs: list[float] = []
    for turn in range(pairs):
        for kind in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            if kind == "theirs":
                theirs.append(seconds(alone))
            else:
                ours.append(seconds(ingested))
                within.append(timed.seconds)
        print(f"\r{name}: {turn + 1} of {pairs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return Overhead(
        name,
        report.documents,
        report.chunks,
        len(texts),
        *(statistics.median(it) for it in (ours, within, theirs)),
        shares=tuple(one / other for one, other in zip(ours, within, strict=True)),
        ratios=tuple(one / other for one, other in zip(ours, theirs, strict=True)),
        has_bar=path.suffix != ".pdf",
    )


def seconds(call: Callable[[], object]) -> float:
    """Seconds of the processor that *call* takes, in all threads of this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def overhead_report(rows: list[Overhead]) -> str:
    heads = (
        *(
            "corpus",
            "documents",
            "chunks",
            "texts embedded",
            "ingest",
            "of it embedding",
            "ratio within one run",
        ),
        *("embedding alone", "ratio to that", "at most"),
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        verdict = f"{BAR:.2f}: {'yes' if row.holds else 'NO'}" if row.has_bar else ""
        lines.append(
            f"| {row.what} | {row.documents} | {row.chunks} | {row.texts} | {row.ingest:.2f} s | {row.within:.2f} s "
            f"| {_spread(row.shares)} | {row.alone:.2f} s | {_spread(row.ratios)} | {verdict} |"
        )
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
