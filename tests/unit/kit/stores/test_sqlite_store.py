from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore, database, sqlite
from qtmiddleware.protocols import Passage
from tests.support.store_contract import (
    AtomicStoreContract,
    FileStoreContract,
    KeywordContract,
    X,
    Y,
)


def open_store(path: str | Path, *, model: str = "model", dimension: int = 3) -> SQLiteStore:
    return SQLiteStore(path, embedding_model=model, dimension=dimension)


class _Made:
    """Stores to be closed when the test is over."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.stores: list[SQLiteStore] = []

    def __call__(self) -> SQLiteStore:
        number = len(self.stores)
        self.stores.append(
            open_store(self.folder / f"{number}.sqlite")
            if self.folder
            else MemoryStore(dimension=3)
        )
        return self.stores[-1]


class TestInAFile(AtomicStoreContract, KeywordContract, FileStoreContract):
    KIND = "SQLiteStore"

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], Any]]:
        made = _Made(tmp_path)
        yield made
        for store in made.stores:
            store.close()


class TestInMemory(AtomicStoreContract, KeywordContract):
    @pytest.fixture
    def make_store(self) -> Iterator[Callable[[], Any]]:
        made = _Made(None)
        yield made
        for store in made.stores:
            store.close()


VIEW = """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT i AS row, CAST(i AS TEXT) AS id, zeroblob(12) AS vector, '' AS text, '{}' AS metadata FROM n"""


def edited(sql: str) -> Callable[[Path], None]:
    """Write a store that somebody else has changed."""

    def fill(path: Path) -> None:
        open_store(path).close()
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(sql)

    return fill


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "another format": lambda path: path.write_bytes(b"PK\x03\x04 no database at all" * 90),
    "damaged": lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000),
    "another program's": lambda path: edited("DROP TABLE meta; CREATE TABLE theirs (a)")(path),
    "a later version": edited("PRAGMA user_version = 99"),
    "an endless view": edited(f"DROP TABLE passages; CREATE VIEW passages AS {VIEW}"),
    "a computed column": edited("ALTER TABLE passages ADD COLUMN more AS (zeroblob(1000000000))"),
    "a trigger": edited(
        "CREATE TRIGGER t AFTER INSERT ON passages BEGIN DELETE FROM passages; END"
    ),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_or_damaged_file_is_named_and_left_as_it_is(tmp_path: Path, what: str) -> None:
    path = tmp_path / "index.sqlite"
    FOREIGN[what](path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"index\.sqlite cannot be used: .*delete it and ingest"):
        open_store(path)
    assert path.read_bytes() == before


def test_an_index_that_was_analyzed_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with open_store(path) as store:
        store.write(zip([Passage("a", "apple")], [X], strict=True))
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript("ANALYZE; VACUUM;")
    with open_store(path) as store:
        assert store.count() == 1


ANOTHER_PROCESS = """
import sys
from qtmiddleware.protocols import Passage
from qtmiddleware.kit.stores import SQLiteStore

with SQLiteStore(sys.argv[1], embedding_model="model", dimension=3) as store:
    store.write(zip([Passage(sys.argv[2], "")], [[1.0, 0.0, 0.0]], strict=True))
"""


def test_a_second_store_of_this_process_costs_no_write_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"

    def written_elsewhere(id_: str) -> None:
        subprocess.run(
            [sys.executable, "-c", ANOTHER_PROCESS, str(path), id_], check=True, timeout=200
        )

    with open_store(path) as store:
        store.write(zip([Passage("a", "")], [X], strict=True))
        open_store(path).close()
        written_elsewhere("b")
        store.write(zip([Passage("c", "")], [X], strict=True))
        written_elsewhere("d")
        assert [one["id"] for one in store.search(X, 9)] == ["a", "b", "c", "d"]
    with open_store(path) as store:
        assert store.count() == 4


def test_text_of_broken_decoding_is_kept_with_a_mark() -> None:
    with open_store(":memory:") as store:
        store.write(zip([Passage("a", "half \ud83d done")], [X], strict=True))
        assert store.search(X, 1)[0]["text"] == "half \ufffd done"


def test_a_reader_that_began_before_a_write_is_not_hindered_by_many_others(tmp_path: Path) -> None:
    with open_store(tmp_path / "index.sqlite") as store:
        store.write(zip([Passage(str(n), "") for n in range(50)], [X] * 50, strict=True))
        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(lambda _: len(store.search(X, 100)), range(200))) == {50}


def test_a_row_that_was_removed_never_lends_its_place_to_another(tmp_path: Path) -> None:
    with open_store(tmp_path / "index.sqlite") as store:
        for number in range(5):
            store.write(
                [(Passage(f"new{number}", "", {"n": number}), Y)], delete=[f"new{number - 1}"]
            )
            assert [one["id"] for one in store.search(Y, 3)] == [f"new{number}"]
            assert len(store.search(Y, 3, filter={"n": number})) == 1


def test_a_writer_that_waited_in_vain_for_another_says_so(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    open_store(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with (
            pytest.raises(StoreError, match="another process is writing"),
            database.explain_errors("the index"),
            closing(database.connect(str(path), busy_seconds=0)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")


def test_ctrl_c_in_the_middle_of_a_write_is_no_fault_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(text: str) -> str:
        if "second" in text:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(sqlite, "extract_index_words", interrupted)
    with SQLiteStore(tmp_path / "index.sqlite", embedding_model="m", dimension=1) as store:
        with pytest.raises(KeyboardInterrupt):
            store.write(
                zip(
                    [Passage("a", "the first"), Passage("b", "the second")],
                    [[1.0], [1.0]],
                    strict=True,
                )
            )
        assert store.count() == 0
        store.write(zip([Passage("a", "the first")], [[1.0]], strict=True))
        assert store.count() == 1


@pytest.mark.skipif(
    os.name != "posix", reason="the size of files is limited by a call of POSIX here"
)
@pytest.mark.parametrize("room", [1_000, 20_000, 60_000])
def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path, room: int) -> None:
    code = (
        "import resource, signal, sys\n"
        "from qtmiddleware.kit.stores import SQLiteStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "SQLiteStore(sys.argv[1], embedding_model='m', dimension=4)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "index.sqlite")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.stderr.splitlines()[-1].endswith("with room on the disk")
