"""The store in one SQLite file or in memory: what every store promises, words, and what files go through."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore
from qtmiddleware.protocols import Passage
from tests.support.store_contract import TEXT, StoreContract, X, Y, Z, ids
from tests.support.waiting import PATIENCE

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
NESTED = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def open_store(path: str | Path, *, model: str = "model", dimension: int = 3) -> SQLiteStore:
    return SQLiteStore(path, embedding_model=model, dimension=dimension)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite"


@pytest.fixture(params=["file", "memory"])
def make_store(request: pytest.FixtureRequest, path: Path) -> Iterator[Callable[[], SQLiteStore]]:
    made: list[SQLiteStore] = []

    def make() -> SQLiteStore:
        is_file = request.param == "file"
        made.append(open_store(f"{path}{len(made)}") if is_file else MemoryStore(dimension=3))
        return opened.enter_context(made[-1])

    with ExitStack() as opened:
        yield make


@pytest.fixture
def store(make_store: Callable[[], Any]) -> Any:
    return make_store()


class TestContract(StoreContract):
    IDS = TEXT
    METADATA = st.dictionaries(TEXT, NESTED, max_size=4)


# --- a write is seen whole or not at all


def test_passages_that_fail_half_way_leave_all_as_it_was(store: Any) -> None:
    def fail() -> Iterator[tuple[Passage, list[float]]]:
        yield from ((Passage(f"p{number}", "new"), X) for number in range(1_100))
        raise ConnectionError("the embedder is down")

    store.write([(Passage("p0", "old"), X), (Passage("x", "old"), X)])
    with pytest.raises(ConnectionError, match="the embedder is down"):
        store.write(fail(), delete=["x"])
    assert [(one["id"], one["text"]) for one in store.search(X, 9)] == [("p0", "old"), ("x", "old")]


def test_readers_see_the_state_before_a_write_or_after_it_and_nothing_between(store: Any) -> None:
    def write(number: int) -> None:
        metadata = [{"state": number, "even": n % 2 == 0} for n in range(20)]
        passages = [Passage(f"{number}-{n}", "word", it) for n, it in enumerate(metadata)]
        gone = [f"{number - 1}-{n}" for n in range(20)]
        store.write([(passage, X) for passage in passages], delete=gone)

    def read(condition: Any) -> set[tuple[int, int]]:
        seen = set()
        while not done.is_set():
            found = store.search(X, 100, filter=condition)
            seen.add((len(found), len({one["metadata"]["state"] for one in found})))
        return seen

    write(0)
    done = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, None), pool.submit(read, {"even": True})]
        try:
            for number in range(1, 16):
                write(number)
        finally:
            done.set()
        assert [reader.result() for reader in readers] == [{(20, 1)}, {(10, 1)}]


# --- words


def test_keywords_find_words_without_case_and_accents_best_first(store: Any) -> None:
    texts = {"long": "The café serves tea. " * 9, "short": "Cafe tea cake", "no": "Rain"}
    store.write([(Passage(id_, text, {"n": 1}), X) for id_, text in texts.items()])
    best, other = store.keyword_search("CAFÉ cake?", 5)
    assert best["score"] > other["score"] > 0
    shown = {"id": "short", "text": "Cafe tea cake", "metadata": {"n": 1}}
    assert best == {**shown, "score": best["score"]}
    assert len(store.keyword_search("cafe", 1)) == 1
    assert store.keyword_search(" ?! ", 5) == store.keyword_search("cafe", 0) == []


def test_replaced_and_removed_words_are_no_longer_found(store: Any) -> None:
    store.write([(Passage("a", "apple"), X), (Passage("b", "berry"), Y)])
    store.write([(Passage("a", "apricot"), X)], delete=["b"])
    found = [len(store.keyword_search(word, 5)) for word in ("apple", "berry", "apricot")]
    assert found == [0, 0, 1]


def test_equal_scores_of_words_come_by_id_at_any_top_k(store: Any) -> None:
    names = [f"p{number:02}" for number in range(40)]
    store.write([(Passage(name, "apple pie", {"n": name}), X) for name in reversed(names)])
    for top_k in (1, 7, 40):
        assert ids(store.keyword_search("pie", top_k)) == names[:top_k]
        kept = {"n": {"$in": names[30:]}}
        assert ids(store.keyword_search("pie", top_k, filter=kept)) == names[30:][:top_k]


SCRIPTS = {
    "tokyo": "東京都庁は新宿区にあります。",
    "cat": "私の猫は魚が好きです。",
    "seoul": "부산에서 서울까지 기차로 세 시간 걸립니다.",
    "bangkok": "กรุงเทพเป็นเมืองหลวงของประเทศไทย",
    "delhi": "दिल्ली भारत की राजधानी है",
    "london": "London is rainy",
    "street": "Die Straße ist nass",
}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("新宿区", "tokyo"),
        ("猫", "cat"),
        ("서울", "seoul"),
        ("เมืองหลวง", "bangkok"),
        ("राजधानी", "delhi"),
        ("ＬＯＮＤＯＮ", "london"),
        ("strasse", "street"),
    ],
)
def test_words_of_every_script_are_found(query: str, first: str) -> None:
    with MemoryStore(dimension=3) as store:
        store.write([(Passage(id_, text), X) for id_, text in SCRIPTS.items()])
        assert ids(store.keyword_search(query, 3))[0] == first


# --- files


def test_what_was_written_is_there_after_reopening_and_shows_no_text(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "index"
    with open_store(path) as store:
        store.write([(Passage("a", "apple pie", {"n": 1}), X)])
        assert "apple" not in repr(store)
    # Another program's statistics do no harm.
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript("ANALYZE; VACUUM;")
    with open_store(path) as again:
        assert again.identity == store.identity
        (found,) = again.search(X, 1)
        assert found == {"id": "a", "score": 1.0, "text": "apple pie", "metadata": {"n": 1}}
        assert again.search(X, 1, filter={"n": 2}) == []
        assert ids(again.keyword_search("pie", 1)) == ["a"]


def start(path: Path, lines: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process with a store at *path*, called ``store``."""
    script = (
        "import sys\nfrom qtmiddleware.kit.stores import SQLiteStore\n"
        "from qtmiddleware.protocols import Passage\n"
        "store = SQLiteStore(sys.argv[1], embedding_model='model', dimension=3)\n"
    )
    command = [sys.executable, "-c", script + lines, str(path), *arguments]
    return subprocess.Popen(command, **options)


def test_the_write_of_another_process_is_seen_by_the_next_search(path: Path) -> None:
    lines = (
        "store.write([(Passage('theirs', 'theirs'), [0, 1, 0]), (Passage('ours', 'new'), [0, 0, 1])],"
        " delete=['gone'])"
    )
    with open_store(path) as store:
        store.write([(Passage("ours", "ours"), X), (Passage("gone", "gone"), X)])
        # A second store of this process costs no write of another process.
        open_store(path).close()
        assert len(store.search(X, 5)) == 2
        assert start(path, lines).wait(PATIENCE) == 0
        assert ids(store.search(Y, 5)) == ["theirs", "ours"]
        assert store.search(Z, 1)[0]["text"] == "new"
        store.write([(Passage("more", ""), X)])
    with open_store(path) as store:
        assert store.count() == 3


def test_a_process_killed_while_it_writes_leaves_whole_writes_only(path: Path) -> None:
    lines = (
        "for batch in range(1_000_000):\n"
        "    new = [(Passage(f'{batch}-{n}', 'words', {'b': batch}), [1, 0, 0]) for n in range(600)]\n"
        "    store.write(new, delete=[f'{batch - 2}-{n}' for n in range(600)])\n"
        "    print(batch, flush=True)\n"
    )
    with start(path, lines, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(5):
            child.stdout.readline()
        child.kill()
        acknowledged = max([4, *map(int, child.stdout.read().split(b"\n")[:-1])])
    with open_store(path) as store:
        held = sorted(one["metadata"]["b"] for one in store.search(X, 10_000))
        # The last write may have been finished and not yet acknowledged.
        assert held[-1] in (acknowledged, acknowledged + 1)
        assert held == [held[-1] - 1] * 600 + [held[-1]] * 600
        assert len(store.keyword_search("words", 10_000)) == store.count() == 1_200
        store.write([(Passage("after", ""), X)])
        assert store.count() == 1_201


@pytest.mark.parametrize(("model", "dimension"), [("other", 3), ("model", 4)])
def test_another_embedding_model_is_refused_naming_both(
    path: Path, model: str, dimension: int
) -> None:
    open_store(path).close()
    told = rf"'model' \(3 .*'{model}' \({dimension}\).*ingest into another path"
    with pytest.raises(StoreError, match=told):
        open_store(path, model=model, dimension=dimension)


VIEW = """WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
    SELECT i AS row, CAST(i AS TEXT) AS id, zeroblob(12) AS vector, '' AS text, '{}' AS metadata FROM n"""


@pytest.mark.parametrize(
    "edit",
    [
        "DROP TABLE meta; CREATE TABLE theirs (a)",
        "PRAGMA user_version = 99",
        f"DROP TABLE passages; CREATE VIEW passages AS {VIEW}",
        "ALTER TABLE passages ADD COLUMN more AS (zeroblob(1000000000))",
        "CREATE TRIGGER t AFTER INSERT ON passages BEGIN DELETE FROM passages; END",
    ],
)
def test_a_file_that_somebody_else_has_changed_is_named_and_left_as_it_is(
    path: Path, edit: str
) -> None:
    open_store(path).close()
    with closing(sqlite3.connect(path)) as theirs:
        theirs.executescript(edit)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"index\.sqlite cannot be used: .*delete it and ingest"):
        open_store(path)
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="the size of files is limited by a call of POSIX")
def test_a_full_disk_is_told_as_what_it_is(path: Path) -> None:
    room = 60_000
    code = (
        "import resource, signal, sys\n"
        "from qtmiddleware.kit.stores import SQLiteStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "SQLiteStore(sys.argv[1], embedding_model='m', dimension=4)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.stderr.splitlines()[-1].endswith("with room on the disk")


# --- forks


def in_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_parent_and_child_write_and_see_what_the_other_wrote_after_a_fork(path: Path) -> None:
    def work() -> bool:
        store.write([(Passage("child", "two"), Y)])
        found = ids(store.search(X, 9))
        store.close()
        return found == ["parent", "child"]

    with open_store(path) as store:
        store.write([(Passage("parent", "one"), X)])
        assert ids(store.search(X, 9)) == ["parent"]
        # As another thread of the parent may hold it at that moment.
        with store._cache_lock:
            assert in_child(work)
        assert ids(store.search(X, 9)) == ["parent", "child"]
        store.write([(Passage("again", "three"), X)])
    with open_store(path) as store:
        assert ids(store.search(X, 9)) == ["again", "parent", "child"]
