from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.kit.stores import LanceDBStore
from qtmiddleware.kit.stores import lancedb as lancedb_store
from qtmiddleware.protocols import Passage
from tests.support.store_contract import AtomicStoreContract, FileStoreContract, KeywordContract, X

pytestmark = pytest.mark.thorough


def open_store(path: Path) -> LanceDBStore:
    return LanceDBStore(path, embedding_model="model", dimension=3)


class TestInAFolder(AtomicStoreContract, KeywordContract, FileStoreContract):
    KIND = "LanceDBStore"

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Iterator[Callable[[], Any]]:
        made: list[LanceDBStore] = []

        def make() -> LanceDBStore:
            made.append(open_store(tmp_path / f"store{len(made)}"))
            return made[-1]

        yield make
        for store in made:
            store.close()


def test_a_missing_lancedb_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lancedb", None)
    with pytest.raises(MissingExtra, match=r"qtmiddleware\[lancedb\]"):
        open_store(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(StoreError, match="holds other files"):
        open_store(tmp_path)
    assert [it.name for it in tmp_path.iterdir()] == ["letters.txt"]


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="not a folder"):
        open_store(tmp_path / "file")


def test_the_table_of_another_program_is_refused(tmp_path: Path) -> None:
    import lancedb

    lancedb.connect(tmp_path).create_table("passages", [{"id": "a", "vector": [1.0]}])
    with pytest.raises(StoreError, match="another program"):
        open_store(tmp_path)


def test_damage_is_a_store_error_that_names_the_folder(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.upsert([Passage("a", "apple")], [X])
    for file in (tmp_path / "store").rglob("*.lance"):
        if file.is_file():
            file.write_bytes(b"\xff" * 50)
    with pytest.raises(StoreError, match="store"), open_store(tmp_path / "store") as store:
        store.search(X, 1)


def test_a_write_is_one_version_of_the_table(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.upsert([Passage(f"p{n}", "") for n in range(600)], [X] * 600)
        before = store._open.version
        store.write(
            ((Passage(f"p{n}", ""), X) for n in range(300, 900)),
            delete=[f"p{n}" for n in range(300)],
        )
        assert store._open.version == before + 1
        assert store.count() == 600


def test_files_do_not_pile_up_over_many_small_writes(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        for number in range(65):
            store.upsert([Passage(f"p{number}", "apple")], [X])
        assert store._open.stats()["fragment_stats"]["num_fragments"] <= 21
        assert store.count() == len(store.keyword_search("apple", 100)) == 65


def test_ids_of_any_spelling_can_be_removed(tmp_path: Path) -> None:
    ids = ["it's", "a\\b", "\x00", "new\nline", "\u2028", "%", '"quoted"', "-- x", "😀", "", "\\'"]
    with open_store(tmp_path / "store") as store:
        store.upsert([Passage(id_, "") for id_ in [*ids, "stays"]], [X] * (len(ids) + 1))
        for number, id_ in enumerate(ids):
            store.delete([id_])
            assert store.count() == len(ids) - number
        assert [one["id"] for one in store.search(X, 5)] == ["stays"]


def test_text_of_broken_decoding_is_kept_with_a_mark(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.upsert([Passage("a", "half \ud83d done")], [X])
        assert store.search(X, 1)[0]["text"] == "half \ufffd done"


def test_nothing_is_left_beside_the_table_after_a_write(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        store.write((Passage(f"p{n}", "long " * 2_000), X) for n in range(4_000))
        assert store.count() == 4_000
    assert [it.name for it in (tmp_path / "store").iterdir()] == ["passages.lance"]


@pytest.mark.parametrize("few", [0, 3, 5_000])
def test_a_filter_is_exact_whether_few_or_many_meet_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(lancedb_store, "_FEW", few)
    with open_store(tmp_path / "store") as store:
        held = [
            Passage(f"p{n:03}", "pie " * (1 + n % 5), {"n": n, "far": n >= 390}) for n in range(400)
        ]
        store.upsert(held, [[1.0, n / 100, 0.0] for n in range(400)])
        for _ in range(2):
            for top_k, met in ((3, range(390, 393)), (50, range(390, 400))):
                found = [
                    one["metadata"]["n"] for one in store.search(X, top_k, filter={"far": True})
                ]
                assert found == list(met)
            assert store.search(X, 3, filter={"n": -1}) == []
            assert len(store.keyword_search("pie", 50, filter={"far": True})) == 10
