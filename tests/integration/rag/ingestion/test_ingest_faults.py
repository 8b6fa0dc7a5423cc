"""Runs that break off anywhere, in this process: nothing is lost, nothing is doubled, nothing is half there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.index import sources
from qtmiddleware.kit.stores import SQLiteStore
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
        if self._tear == "before":
            raise Interrupted
        given = list(passages)
        if self._tear == "half":
            # As a store does that is written batch by batch.
            super().write(given[: len(given) // 2])
            raise Interrupted
        super().write(given, delete=delete)
        if self._tear == "after":
            raise Interrupted


def torn(world: World, tear: str) -> None:
    store = TornStore(world.index, tear)
    try:
        with pytest.raises(Interrupted):
            world.ingest(store=store)
    finally:
        store.close()


TEARS = pytest.mark.parametrize("tear", ["before", "half", "after"])


@TEARS
def test_a_write_that_was_broken_off_is_completed_without_embedding(
    world: World, tear: str, caplog: pytest.LogCaptureFixture
) -> None:
    torn(world, tear)
    embed = Counting()
    world.ingest(embed=embed)
    assert embed.calls == 0
    assert caplog.text == ""
    assert world.passages() == world.clean()


@pytest.mark.parametrize("tear", ["before", "after"])
def test_a_document_unreadable_after_a_broken_write_is_one_version_of_itself(
    world: World, tear: str
) -> None:
    world.ingest()
    old = {id_: held for id_, held in world.passages().items() if id_.startswith("alpha")}
    world.write("alpha.txt", SENTENCES["alpha"].upper())
    torn(world, tear)
    world.write("alpha.txt", b"\x00" * 10)
    world.ingest()
    held = {id_: one for id_, one in world.passages().items() if id_.startswith("alpha")}
    world.write("alpha.txt", SENTENCES["alpha"].upper())
    new = {id_: one for id_, one in world.clean().items() if id_.startswith("alpha")}
    assert held in (old, new)


def test_a_document_that_changes_while_it_is_read_is_read_again_by_the_next_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sources.cut_document

    def replaced_first(path: Path, **options: Any) -> Any:
        if path.name == "alpha.txt":
            world.write("alpha.txt", "Somebody else wrote this meanwhile.")
        return whole(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(sources, "cut_document", replaced_first)
        world.ingest()
    assert world.ingest().changed == 1
    assert world.passages() == world.clean()
    assert world.ingest().unchanged == 3


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


def test_an_interrupt_leaves_the_ledger_in_order(world: World) -> None:
    def stop(step: Any) -> None:
        if step.stage == "embedding":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.ingest(progress=stop)
    assert world.ids() == set()
    world.ingest()
    assert world.passages() == world.clean()


FILES = ("a.txt", "b.md", "c.txt")
TEXTS = (
    "",
    "Short.",
    SENTENCES["alpha"],
    SENTENCES["alpha"][:900],
    SENTENCES["alpha"] + SENTENCES["beta"],
    "\0\0",
)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(FILES), st.sampled_from(TEXTS)),
    st.tuples(st.just("delete"), st.sampled_from(FILES), st.none()),
    st.tuples(st.just("move"), st.sampled_from(FILES), st.sampled_from(FILES)),
    st.tuples(
        st.just("ingest"), st.sampled_from(["", "embed", "before", "half", "after"]), st.none()
    ),
    st.tuples(st.just("lose the index"), st.just(""), st.none()),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=14))
def test_whatever_happened_before_the_index_is_that_of_a_first_ingest(actions: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        world = World(Path(folder))
        world.write("always.txt", SENTENCES["gamma"])
        for action, what, how in actions:
            perform(world, action, what, how)
        # What cannot be read keeps what was indexed of it, which no first ingest could know.
        for name in FILES:
            path = world.docs / name
            if path.exists() and path.read_text() in ("", "\0\0"):
                path.unlink()
        world.ingest()
        assert world.passages() == world.clean()
        assert world.ingest().written == 0


def perform(world: World, action: str, what: str, how: Any) -> None:
    path = world.docs / what
    if action == "write":
        world.write(what, how)
    elif action == "delete":
        path.unlink(missing_ok=True)
    elif action == "move" and path.exists():
        path.replace(world.docs / how)
    elif action == "lose the index":
        for file in world.index.parent.glob("it.sqlite*"):
            if file.suffix != ".ingest":
                file.unlink()
    elif action == "ingest":
        with suppress(RuntimeError, Interrupted):
            broken_ingest(world, what)


def broken_ingest(world: World, tear: str) -> None:
    if tear == "embed":
        world.ingest(embed=Counting(fail_at=1))
        return
    store = TornStore(world.index, tear)
    try:
        world.ingest(store=store)
    finally:
        store.close()
