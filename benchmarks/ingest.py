"""Ingest under load of two kinds: processes killed at random, and what it costs beside embedding alone.

    python -m benchmarks.ingest [--kills N] [--overhead] [--pairs N] [--seed N]

Without either of the two both are done, fifty kills and nine pairs. The result is kept in results/ingest.md, each of
the two in its own part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Read when numpy is first imported; several threads on a busy machine only wait for one another.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from qtmiddleware.embedders import CallableEmbedder, embedder_named
from qtmiddleware.ingestion import ingest
from qtmiddleware.ingestion.embedding import BATCH
from qtmiddleware.stores import SQLiteStore

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
RESULT = ROOT / "benchmarks" / "results" / "ingest.md"
DIMENSION = 32
MODEL = "hash"
POLL_SECONDS = 0.002
BAR = 1.10
PLACES = ("reading", "embedding", "publishing", "written", "time")


def hashed(texts: list[str]) -> list[list[float]]:
    """A vector a text, out of its hash."""
    return [[byte / 256 + 0.001 for byte in hashlib.sha256(text.encode()).digest()] for text in texts]


def hashing_ingest(docs: Path, index: Path, **options: Any) -> Any:
    """An ingest with vectors that cost nothing."""
    embedder = CallableEmbedder(hashed, name=MODEL, dimension=DIMENSION)
    config = {"indexPath": str(index), "chunkSize": 150, "chunkOverlap": 30}
    return ingest(docs, config=config, embedder=embedder, **options)


# Kills


class DyingStore(SQLiteStore):
    """The store of every day, in a process that ends right after its write and before anybody noted it."""

    def write(self, passages: Iterable[Any], *, delete: Sequence[str] = ()) -> None:
        super().write(passages, delete=delete)
        die()


def die() -> None:
    """End this process as ``kill -9`` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def worker(docs: Path, index: Path, place: str, number: float) -> None:
    """One ingest that dies at the *number*-th note of the stage *place*, after the write, or after so many seconds."""
    seen = 0

    def listen(step: Any) -> None:
        nonlocal seen
        seen += step.stage == place
        if step.stage == place and seen == number:
            die()

    if place == "time":
        threading.Timer(number, die).start()
    store = DyingStore(index, embedding_model=MODEL, dimension=DIMENSION) if place == "written" else None
    hashing_ingest(docs, index, progress=listen, store=store)
    os._exit(0)


def state(index: Path) -> tuple[str, dict[str, str]]:
    """What a reader sees in the index at one moment: one hash of it all, and one of each passage."""
    if not index.exists():
        return hashlib.sha256().hexdigest(), {}
    run = sqlite3.connect(index, timeout=30)
    try:
        rows = run.execute("SELECT id, text, metadata, vector FROM passages ORDER BY id").fetchall()
    except sqlite3.OperationalError:  # The file is there and its tables are not yet.
        rows = []
    finally:
        run.close()
    whole, each = hashlib.sha256(), {}
    for id_, text, metadata, vector in rows:
        each[id_] = hashlib.sha256(f"{text}\0{metadata}".encode() + vector).hexdigest()
        whole.update(f"{id_}\0{each[id_]}".encode())
    return whole.hexdigest(), each


class Reader(threading.Thread):
    """Looks into the index again and again and remembers every state it saw."""

    def __init__(self, index: Path) -> None:
        super().__init__(daemon=True)
        self._index = index
        self._over = threading.Event()
        self.looks = 0
        self.seen: set[str] = set()

    def run(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self.seen.add(state(self._index)[0])
            self.looks += 1

    def stop(self) -> set[str]:
        """Everything that was seen."""
        self._over.set()
        self.join()
        return self.seen


@dataclass
class Kills:
    """What came of all rounds."""

    rounds: int = 0
    killed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    looks: int = 0
    half_visible: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0
    passages: list[int] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not (self.half_visible or self.lost or self.doubled or self.different)


def source_text() -> str:
    """The text the documents of the rounds are cut from."""
    files = sorted((SHARED / "docs").glob("*.txt"))
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files)


def changed(docs: Path, text: str, chance: random.Random) -> None:
    """Some documents written anew, appended to, renamed or deleted."""
    for _ in range(chance.randint(1, 6)):
        there = sorted(docs.iterdir())
        act = chance.choice(["write", "write", "append", "rename", "delete"]) if len(there) > 3 else "write"
        start = chance.randrange(len(text) - 20_000)
        piece = text[start : start + chance.randint(200, 20_000)]
        file = chance.choice(there) if there else docs / "0.txt"
        if act == "write":
            (docs / f"{chance.randrange(16)}.txt").write_text(piece, encoding="utf-8")
        elif act == "append":
            file.write_text(file.read_text(encoding="utf-8") + piece, encoding="utf-8")
        elif act == "rename":
            file.replace(docs / f"moved{chance.randrange(16)}.txt")
        else:
            file.unlink()


def kill_rounds(kills: int, seed: int) -> Kills:
    """One index through changes of its documents, until *kills* ingests were killed, each with another behind it."""
    chance, text, found = random.Random(seed), source_text(), Kills()
    with TemporaryDirectory() as folder:
        docs, index = Path(folder, "docs"), Path(folder, "index", "it.sqlite")
        docs.mkdir()
        for number in range(10):
            (docs / f"{number}.txt").write_text(text[number * 9_000 :][:12_000], encoding="utf-8")
        while sum(found.killed.values()) < kills:
            one_round(docs, index, text, chance, found)
            print(f"\r{sum(found.killed.values())} of {kills}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def one_round(docs: Path, index: Path, text: str, chance: random.Random, found: Kills) -> None:
    old, _ = state(index)
    if found.rounds:
        changed(docs, text, chance)
    with TemporaryDirectory() as folder:
        clean = Path(folder, "clean.sqlite")
        hashing_ingest(docs, clean)
        new, wanted = state(clean)
    reader = Reader(index)
    reader.start()
    place = PLACES[found.rounds % len(PLACES)]
    number = {
        "reading": chance.randint(1, len(list(docs.iterdir()))),
        "embedding": chance.randint(1, 2),
        "publishing": 1,
        "written": 0,
        "time": chance.uniform(0.0, 0.4),
    }[place]
    if run(docs, index, place, number) == -signal.SIGKILL:
        found.killed[place] += 1
    if run(docs, index, "never", 0) != 0:
        raise SystemExit("an ingest that nobody killed failed")
    seen = reader.stop()
    _, held = state(index)
    found.rounds += 1
    found.looks += reader.looks
    found.half_visible += len(seen - {old, new})
    found.lost += len(wanted.keys() - held.keys())
    found.doubled += len(held.keys() - wanted.keys())
    found.different += sum(held[id_] != wanted[id_] for id_ in held.keys() & wanted.keys())
    found.passages.append(len(held))


def run(docs: Path, index: Path, place: str, number: float) -> int:
    """How a process ended that ingested and was to die at *place*."""
    command = [sys.executable, "-m", "benchmarks.ingest", "--worker", str(docs), str(index), place, str(number)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=300).returncode


def kill_report(found: Kills) -> str:
    places = ", ".join(f"{count} in {place!r}" for place, count in found.killed.items())
    return "\n".join(
        [
            "| what | count |",
            "|---|---|",
            f"| rounds (documents changed, ingest killed, ingest let through) | {found.rounds} |",
            f"| processes that died of SIGKILL | {sum(found.killed.values())} ({places}) |",
            f"| passages in the index (fewest, most) | {min(found.passages)}, {max(found.passages)} |",
            f"| looks of a reader meanwhile | {found.looks} |",
            f"| looks that saw neither the old state nor the new one | {found.half_visible} |",
            f"| passages lost, beside a first ingest into an empty index | {found.lost} |",
            f"| passages doubled or left over | {found.doubled} |",
            f"| passages with another text, metadata or vector | {found.different} |",
        ]
    )


# Overhead


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
    embedder = embedder_named("all-MiniLM-L6-v2")
    embedder.embed(["Loaded before anything is measured."])
    with TemporaryDirectory() as folder:
        return [measured(name, path, embedder, pairs) for name, path in corpora(Path(folder)).items()]


def measured(name: str, path: Path, embedder: Any, pairs: int) -> Overhead:
    """One corpus, *pairs* times each way."""
    report, timed = None, Timed(embedder)

    def ingested() -> None:
        nonlocal report, timed
        timed = Timed(embedder)
        with TemporaryDirectory() as folder:
            report = ingest(path, config={"indexPath": str(Path(folder, "index.sqlite"))}, embedder=timed)

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
        *("corpus", "documents", "chunks", "texts embedded", "ingest", "of it embedding", "ratio within one run"),
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


# Both

KILLS_TITLE = "## Killed at random"
OVERHEAD_TITLE = "## Beside embedding alone"
KILLS_TEXT = (
    "One index through changes of its documents (written, appended, renamed, deleted). In each round one process "
    "ingests and is killed with SIGKILL: while reading, while embedding, in the middle of the write to the store, "
    "after that write and before it was noted, or after a random time; a second one is let through. A reader takes "
    "whole views of the store all the while."
)
OVERHEAD_TEXT = (
    "`ingest` into a fresh index beside `embed` of the very same texts in batches of the same size (all-MiniLM-L6-v2 "
    "by numpy, one thread), by turns in one process. Seconds of the processor, medians; a ratio is the median of all "
    "runs' (least to most). The bar is for the ratio within one run, which other work on the machine disturbs least. "
    "Beside embedding, ingest reads, hashes and cuts the documents, keeps everything in the ledger and writes "
    "passages, vectors and the word index. PDFs have no bar: to read them takes pypdf longer than all of that."
)


def keep(title: str, text: str, table: str, command: str) -> None:
    """Put one part into the result file and leave the other as it is."""
    parts = RESULT.read_text(encoding="utf-8").split("\n## ")[1:] if RESULT.exists() else []
    kept = {f"## {part.splitlines()[0]}": f"## {part.strip()}" for part in parts}
    machine = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} processors"
    kept[title] = f"{title}\n\n`{command}` ({machine})\n\n{text}\n\n{table}"
    order = [one for one in (KILLS_TITLE, OVERHEAD_TITLE) if one in kept]
    RESULT.write_text("\n\n".join(["# Ingest", *(kept[one] for one in order)]) + "\n", encoding="utf-8")


def main() -> int:
    """Measure, print and keep; 0 where everything holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0, help="how many processes are killed")
    parser.add_argument("--overhead", action="store_true", help="measure against embedding alone")
    parser.add_argument("--pairs", type=int, default=9, help="readings a figure is the median of (default 9)")
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default 7)")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        docs, index, place, number = options.worker
        worker(Path(docs), Path(index), place, float(number))
    both = not (options.kills or options.overhead)
    command = " ".join(["python -m benchmarks.ingest", *sys.argv[1:]])
    holds = True
    if options.kills or both:
        found = kill_rounds(options.kills or 50, options.seed)
        print(kill_report(found))
        keep(KILLS_TITLE, KILLS_TEXT, kill_report(found), command)
        holds &= found.holds
    if options.overhead or both:
        rows = overheads(options.pairs)
        print(overhead_report(rows))
        keep(OVERHEAD_TITLE, OVERHEAD_TEXT, overhead_report(rows), command)
        holds &= all(row.holds for row in rows)
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
