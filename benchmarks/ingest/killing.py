"""Ingests killed at random, each with another behind it, under the eyes of a reader."""

from __future__ import annotations

import hashlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.ingest.dying import PLACES, hashing_ingest
from benchmarks.ingest.places import ROOT, SHARED

POLL_SECONDS = 0.002
TITLE = "## Killed at random"
TEXT = (
    "One index through changes of its documents (written, appended, renamed, deleted). In each round one process "
    "ingests and is killed with SIGKILL: while reading, while embedding, in the middle of the write to the store, "
    "after that write and before it was noted, or after a random time; a second one is let through. A reader takes "
    "whole views of the store all the while."
)


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
        act = (
            chance.choice(["write", "write", "append", "rename", "delete"])
            if len(there) > 3
            else "write"
        )
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
    command = [
        sys.executable,
        "-m",
        "benchmarks.ingest",
        "--worker",
        str(docs),
        str(index),
        place,
        str(number),
    ]
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
