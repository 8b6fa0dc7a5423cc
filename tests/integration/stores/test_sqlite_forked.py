"""A store that was opened before a fork serves parent and child, each by connections of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qtmiddleware.kit.stores.sqlite import SQLiteStore
from qtmiddleware.protocols import Passage

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def opened(path: Path) -> SQLiteStore:
    return SQLiteStore(path / "index.sqlite", embedding_model="test", dimension=2)


def in_child(work: Callable[[], bool]) -> bool:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def ids(store: SQLiteStore) -> set[str]:
    return {record["id"] for record in store.search([1.0, 0.0], 10)}


def test_child_and_parent_write_and_see_what_the_other_wrote(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(zip([Passage("parent", "one")], [[1.0, 0.0]], strict=True))
        assert ids(store) == {"parent"}

        def work() -> bool:
            store.write(zip([Passage("child", "two")], [[0.0, 1.0]], strict=True))
            found = ids(store) == {"parent", "child"}
            store.close()
            return found

        assert in_child(work)
        assert ids(store) == {"parent", "child"}
        store.write(zip([Passage("again", "three")], [[1.0, 1.0]], strict=True))
    with opened(tmp_path) as store:
        assert ids(store) == {"parent", "child", "again"}


def test_a_child_is_not_kept_waiting_by_what_the_parent_was_doing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.write(zip([Passage("parent", "one")], [[1.0, 0.0]], strict=True))
        # As another thread of the parent may hold it at that moment.
        with store._cache_lock:
            assert in_child(lambda: ids(store) == {"parent"} and store.count() == 1)
        assert ids(store) == {"parent"}


def test_a_closed_store_stays_closed_in_a_child(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.close()

    def work() -> bool:
        with pytest.raises(Exception, match="it is closed"):
            store.write(zip([Passage("child", "two")], [[0.0, 1.0]], strict=True))
        return True

    assert in_child(work)
