"""Runs that break off anywhere or are killed: nothing is lost, nothing is doubled, nothing is half there."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.index import sources
from qtmiddleware.kit.stores import SQLiteStore
from tests.support.ingest_worker import main
from tests.support.ingest_world import DIMENSION, SENTENCES, Counting, World, hashed

pytestmark = pytest.mark.thorough


class Interrupted(BaseException):
    """Stands for whatever ends a process at a place of its choice."""


class TornStore(SQLiteStore):
    """The real store, whose write is broken off: before it, half way, or when all is written and nobody knows yet."""

    def __init__(self, path: Path, tear: str) -> None:
        super().__init__(path, embedding_model="hashed", dimension=DIMENSION)
        self._tear = tear

    def write(self, passages: Iterable[Any], *, delete: Any = ()) -> None:
        given = list(passages)
        if self._tear == "half":
            # As a store does that is written batch by batch.
            super().write(given[: len(given) // 2])
        if self._tear in ("after", ""):
            super().write(given, delete=delete)
        if self._tear:
            raise Interrupted


def tear(world: World, place: str) -> None:
    """An ingest that is broken off at *place*, if it comes there."""
    with suppress(Interrupted, RuntimeError):
        if place == "embed":
            world.ingest(embed=Counting(fail_at=1))
            return
        with TornStore(world.index, place) as store:
            world.ingest(store=store)


def test_a_document_that_changes_while_it_is_read_is_read_again_by_the_next_run(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = sources.cut_document

    def replace_and_cut(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "alpha.txt":
            world.write("alpha.txt", "Somebody else wrote this meanwhile.")
        return cut(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sources, "cut_document", replace_and_cut)
        world.ingest()
    assert world.ingest().changed == 1
    assert world.passages() == world.clean()


def test_a_second_ingest_into_the_same_index_is_refused_at_once(world: World) -> None:
    refused: list[BaseException] = []

    def embed(texts: list[str]) -> list[list[float]]:
        if not refused:
            with pytest.raises(StoreError, match="another process") as raised:
                world.ingest()
            refused.append(raised.value)
        return hashed(texts)

    world.ingest(embed=embed)
    assert refused
    assert world.passages() == world.clean()


FILES = st.sampled_from(["a.txt", "b.md", "c.txt"])
ALPHA = SENTENCES["alpha"]
TEXTS = st.sampled_from(["", "Short.", ALPHA, ALPHA[:900], ALPHA + SENTENCES["beta"], "\0\0"])
ACTIONS = st.one_of(
    st.tuples(st.just("write"), FILES, TEXTS),
    st.tuples(st.just("delete"), FILES, st.none()),
    st.tuples(st.just("move"), FILES, FILES),
    st.tuples(
        st.just("ingest"), st.sampled_from(["", "embed", "before", "half", "after"]), st.none()
    ),
    st.tuples(st.just("lose the index"), st.just(""), st.none()),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=14))
def test_whatever_happened_before_the_index_is_that_of_a_first_ingest(actions: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.write("always.txt", SENTENCES["gamma"])
        for action, what, how in actions:
            path = world.docs / what
            match action:
                case "write":
                    world.write(what, how)
                case "delete":
                    path.unlink(missing_ok=True)
                case "move" if path.exists():
                    path.replace(world.docs / how)
                case "ingest":
                    tear(world, what)
                case "lose the index":
                    for file in world.index.parent.glob("it.sqlite*[!t]"):
                        file.unlink()
        # What cannot be read keeps what was indexed of it, which no first ingest could know.
        for path in world.docs.iterdir():
            if path.read_text() in ("", "\0\0"):
                path.unlink()
        world.ingest()
        assert world.passages() == world.clean()
        assert world.ingest().written == 0


# --- killed processes


# A process that has imported everything forks itself, so that each run starts at once.
PROCESSES = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
PROCESSES.set_forkserver_preload(["tests.support.ingest_worker"])


def run_killed(world: World, place: str) -> int | None:
    """The exit code of an ingest in a process that kills itself at *place*."""
    process = PROCESSES.Process(target=main, args=(str(world.folder), place))
    process.start()
    process.join(200)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode


@pytest.fixture
def larger(world: World) -> World:
    for number in range(6):
        lines = (f"Line {line} of text {number} is this." for line in range(500))
        world.write(f"{number}.txt", " ".join(lines))
    return world


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
@pytest.mark.parametrize("place", ["reading:4", "embed:5", "publishing:1", "publishing:2"])
def test_a_killed_run_is_completed_by_the_next(larger: World, place: str) -> None:
    assert run_killed(larger, place) == -signal.SIGKILL
    with closing(sqlite3.connect(f"{larger.index}.ingest")) as ledger:
        paid = dict(ledger.execute("SELECT key, 1 FROM vectors"))
    embed = Counting()
    larger.ingest(embed=embed)
    assert larger.passages() == larger.clean()
    # No vector that was paid for is computed again.
    hashes = {sha256(f"hashed/{DIMENSION}\n{text}".encode()).digest() for text in embed.texts}
    assert hashes.isdisjoint(paid)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL here")
def test_ten_runs_killed_at_random_lose_nothing(larger: World) -> None:
    chance = random.Random(5)
    larger.ingest()
    old = larger.passages()
    for number in range(4):
        changed = f"Text {number} is another one now. " + SENTENCES["alpha"] * (number + 1)
        larger.write(f"{number}.txt", changed)
    (larger.docs / "5.txt").unlink()
    (larger.docs / "4.txt").rename(larger.docs / "moved.txt")
    new = larger.clean()
    for _ in range(10):
        run_killed(larger, f"time:{chance.uniform(0, 0.3):.3f}")
        # Every passage is that of the old state or of the new one.
        assert all(held in (old.get(id_), new.get(id_)) for id_, held in larger.passages().items())
    larger.ingest()
    assert larger.passages() == new
