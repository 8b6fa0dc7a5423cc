"""Processes that are killed while they ingest: the next run completes what they began."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from qtmiddleware.errors import StoreError
from tests.support.ingest_world import DIMENSION, SENTENCES, Counting, World

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here"),
]
ROOT = Path(__file__).parents[4]


def start(world: World, place: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.ingest_worker", str(world.folder), place]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


def run(world: World, place: str) -> int:
    process = start(world, place)
    _, err = process.communicate(timeout=200)
    assert process.returncode in (0, -signal.SIGKILL), err.decode()
    return process.returncode


def larger(world: World) -> None:
    for number in range(6):
        world.write(
            f"{number}.txt",
            " ".join(f"Line {line} of text {number} is this." for line in range(500)),
        )


@pytest.mark.parametrize(
    "place", ["reading:4", "embed:2", "embed:5", "publishing:1", "publishing:2"]
)
def test_a_killed_run_is_completed_by_the_next(world: World, place: str) -> None:
    larger(world)
    assert run(world, place) == -signal.SIGKILL
    with closing(sqlite3.connect(f"{world.index}.ingest")) as ledger:
        paid = ledger.execute("SELECT hash FROM chunks WHERE vector IS NOT NULL")
        kept = {key for (key,) in paid}
    embed = Counting()
    world.ingest(embed=embed)
    assert world.passages() == world.clean()
    # No vector that was paid for is computed again.
    hashes = {sha256(f"hashed/{DIMENSION}\n{text}".encode()).digest() for text in embed.texts}
    assert kept.isdisjoint(hashes)


def test_ten_runs_killed_at_random_lose_nothing(world: World) -> None:
    chance = random.Random(5)
    larger(world)
    world.ingest()
    old = world.passages()
    for number in range(4):
        world.write(
            f"{number}.txt",
            f"Text {number} is another one now. " + SENTENCES["alpha"] * (number + 1),
        )
    (world.docs / "5.txt").unlink()
    (world.docs / "4.txt").rename(world.docs / "moved.txt")
    new = world.clean()
    for _ in range(10):
        run(world, f"time:{chance.uniform(0, 0.3):.3f}")
        # Every passage is that of the old state or of the new one.
        assert all(held in (old.get(id_), new.get(id_)) for id_, held in world.passages().items())
    world.ingest()
    assert world.passages() == new


def test_a_killed_run_holds_no_lock_and_a_living_one_does(world: World) -> None:
    larger(world)
    process = start(world, "never:0")
    refused = False
    # From its first moment on to its last the other process keeps this one out; then it lets it in.
    while process.poll() is None and not refused:
        if Path(f"{world.index}.ingest").exists():
            try:
                world.ingest()
            except StoreError as error:
                refused = "another process" in str(error)
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=200)
    world.ingest()
    assert world.passages() == world.clean()
