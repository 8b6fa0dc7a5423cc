from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_contract import StoreContract, X, Y

from qtmiddleware.errors import StoreError
from qtmiddleware.ports import Passage
from qtmiddleware.stores import SQLiteStore
from qtmiddleware.stores.sqlite import schema


def open_store(path: str | Path, *, model: str = "model", dimension: int = 3) -> SQLiteStore:
    return SQLiteStore(path, embedding_model=model, dimension=dimension)


class _Made:
    """Stores to be closed when the test is over."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.stores: list[SQLiteStore] = []

    def __call__(self) -> SQLiteStore:
        path = self.folder / f"{len(self.stores)}.sqlite" if self.folder else ":memory:"
        self.stores.append(open_store(path))
        return self.stores[-1]


class TestInAFile(StoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], Any]]:
        made = _Made(tmp_path)
        yield made
        for store in made.stores:
            store.close()


class TestInMemory(StoreContract):
    @pytest.fixture
    def make_store(self) -> Iterator[Callable[[], Any]]:
        made = _Made(None)
        yield made
        for store in made.stores:
            store.close()


def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "index.sqlite"
    with open_store(path) as store:
        store.upsert([Passage("a", "apple pie", {"n": 1})], [X])
    with open_store(path) as store:
        assert store.search(X, 1) == [{"id": "a", "score": 1.0, "text": "apple pie", "metadata": {"n": 1}}]
        assert store.keyword_search("pie", 1)[0]["id"] == "a"


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    with open_store(tmp_path / "index.sqlite") as store:
        store.upsert([Passage("a", "apple")], [X])
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_the_write_of_another_process_is_seen_by_the_next_search(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    script = (
        "import sys; from qtmiddleware.stores import SQLiteStore; from qtmiddleware.ports import Passage\n"
        "with SQLiteStore(sys.argv[1], embedding_model='model', dimension=3) as store:\n"
        "    store.upsert([Passage('theirs', 'theirs'), Passage('ours', 'changed')], [[0, 1, 0], [0, 0, 1]])\n"
        "    store.delete(['gone'])\n"
    )
    with open_store(path) as store:
        store.upsert([Passage("ours", "ours"), Passage("gone", "gone")], [X, X])
        assert len(store.search(X, 5)) == 2
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=50)
        assert [(one["id"], one["text"]) for one in store.search(Y, 5)] == [("theirs", "theirs"), ("ours", "changed")]
        assert [one["id"] for one in store.search([0.0, 0.0, 1.0], 1)] == ["ours"]


def test_a_process_killed_while_it_writes_leaves_whole_batches_only(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    script = (
        "import sys; from qtmiddleware.stores import SQLiteStore; from qtmiddleware.ports import Passage\n"
        "store = SQLiteStore(sys.argv[1], embedding_model='model', dimension=3)\n"
        "for batch in range(1_000_000):\n"
        "    store.upsert([Passage(f'{batch}-{n}', 'some words', {}) for n in range(50)], [[1, 0, 0]] * 50)\n"
        "    print(batch, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(20):
            acknowledged = int(child.stdout.readline())
        child.kill()
        acknowledged = max([acknowledged, *map(int, child.stdout.read().split(b"\n")[:-1])])
    with open_store(path) as store:
        assert store.count() % 50 == 0
        assert store.count() >= 50 * (acknowledged + 1)
        assert len(store.keyword_search("words", 1_000_000)) == store.count()


@pytest.mark.parametrize(("model", "dimension"), [("other", 3), ("model", 4)])
def test_another_embedding_model_is_refused_naming_both(tmp_path: Path, model: str, dimension: int) -> None:
    path = tmp_path / "index.sqlite"
    open_store(path).close()
    with pytest.raises(StoreError, match=rf"'model' \(3 .*'{model}' \({dimension}\).*ingest again"):
        open_store(path, model=model, dimension=dimension)


def foreign_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (a)")
        connection.commit()


@pytest.mark.parametrize(
    "fill",
    [
        lambda path: path.write_bytes(b"PK\x03\x04 this is no database, but it is long enough to look like one" * 40),
        lambda path: path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000),
        lambda path: path.write_text("short"),
        foreign_database,
    ],
    ids=["another format", "damaged", "short", "another program's"],
)
def test_a_foreign_or_damaged_file_is_named_and_left_as_it_is(tmp_path: Path, fill: Callable[[Path], Any]) -> None:
    path = tmp_path / "index.sqlite"
    fill(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"index\.sqlite .*left as it is"):
        open_store(path)
    assert path.read_bytes() == before


def test_damage_found_later_is_a_store_error(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    with open_store(path) as store:
        store.upsert([Passage(str(n), "words " * 50) for n in range(500)], [X] * 500)
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with pytest.raises(StoreError, match=r"index\.sqlite"), open_store(path) as store:
        store.search(X, 500)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(tmp_path)


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(tmp_path / "file" / "index.sqlite")


def test_an_sqlite_without_full_text_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_FTS_MODULE", "a module that no build has")
    with pytest.raises(StoreError, match="built without FTS5"):
        open_store(":memory:")


def test_a_layout_from_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    open_store(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="layout 99"):
        open_store(path)


def test_a_closed_store_says_so_and_closes_twice() -> None:
    store = open_store(":memory:")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.count()


def test_keywords_find_words_without_case_and_accents_best_first() -> None:
    with open_store(":memory:") as store:
        store.upsert(
            [Passage("long", "The café serves tea. " * 9), Passage("short", "Cafe tea cake"), Passage("no", "Rain")],
            [X, X, X],
        )
        found = store.keyword_search("CAFÉ cake?", 5)
        assert [one["id"] for one in found] == ["short", "long"]
        assert found[0]["score"] > found[1]["score"] > 0
        assert store.keyword_search("cafe", 1)[0].keys() == {"id", "score", "text", "metadata"}


def test_replaced_and_removed_words_are_no_longer_found() -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "apple"), Passage("b", "berry")], [X, Y])
        store.upsert([Passage("a", "apricot")], [X])
        store.delete(["b"])
        assert [len(store.keyword_search(word, 5)) for word in ("apple", "berry", "apricot")] == [0, 0, 1]


@pytest.mark.parametrize(
    "text", ['"', "a OR b NOT", "text:apple", "NEAR(apple", "app*", "^apple", "", "'; DROP TABLE x"]
)
def test_query_syntax_is_read_as_words(text: str) -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "apple pie")], [X])
        assert [one["id"] for one in store.keyword_search(text, 5)] == (["a"] if "apple" in text else [])


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_breaks_the_keyword_search(text: str) -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "apple pie")], [X])
        assert len(store.keyword_search(text, 5)) <= 1


def test_a_query_of_thousands_of_words_is_searched() -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "apple pie")], [X])
        assert len(store.keyword_search(" ".join(f"w{n}" for n in range(3_000)) + " pie", 5)) == 1


def test_text_of_broken_decoding_is_kept_with_a_mark() -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "half \ud83d done")], [X])
        assert store.search(X, 1)[0]["text"] == "half ? done"


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/index.sqlite").close()
    assert (tmp_path / "index.sqlite").is_file()


def test_no_text_is_printed_with_the_store() -> None:
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "secret")], [X])
        assert "secret" not in repr(store)


def test_a_passage_is_not_changed_by_a_caller_who_changes_the_vector_he_asked_with() -> None:
    import numpy as np

    asked = np.array([3.0, 4.0, 0.0], dtype=np.float32)
    with open_store(":memory:") as store:
        store.upsert([Passage("a", "")], [asked])  # type: ignore[list-item]
        store.search(asked, 1)  # type: ignore[arg-type]
    assert asked.tolist() == [3.0, 4.0, 0.0]


def test_two_processes_may_make_the_same_store_at_once(tmp_path: Path) -> None:
    script = (
        "import sys; from qtmiddleware.stores import SQLiteStore; from qtmiddleware.ports import Passage\n"
        "store = SQLiteStore(sys.argv[1], embedding_model='model', dimension=3)\n"
        "store.upsert([Passage(sys.argv[2], '')], [[1, 0, 0]])\n"
    )
    path = tmp_path / "index.sqlite"
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(path), name], env=dict(os.environ)) for name in "ab"
    ]
    assert [child.wait(50) for child in children] == [0, 0]
    with open_store(path) as store:
        assert store.count() == 2
