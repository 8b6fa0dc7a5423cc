"""A damaged file is named with what to do, and left as it is."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Passage
from tests.support.bench_world import bridges_data, write_data
from tests.support.command_line import run_here
from tests.support.emitted import PASSAGE, listening

X: Final = [1.0, 0.0, 0.5]
PAGE: Final = 4096

Damage = Callable[[Path], Any]


def garbage_in_front(path: Path) -> None:
    path.write_bytes(b"\xde\xad\xbe\xef" * 25 + path.read_bytes()[100:])


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 7])


def of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as run:
        run.execute("PRAGMA user_version = 99")
    run.close()


def of_another_program(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as run:
        run.execute("CREATE TABLE theirs (x)")
    run.close()


def a_text(path: Path) -> None:
    path.write_text("Dear diary, this is no database, but long enough to be taken for one. " * 9)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "letter.txt").write_text("dear")


DAMAGES: Final = (
    garbage_in_front,
    cut_off,
    of_another_version,
    of_another_program,
    a_text,
    a_folder,
)
each_damage: Final = pytest.mark.parametrize("damage", DAMAGES, ids=lambda it: it.__name__)


def content_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def vectors(texts: list[str]) -> list[list[float]]:
    return [[len(text) / 100, 1.0, 0.5] for text in texts]


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """The config of an index of a few documents, made with its ledger."""
    (tmp_path / "docs").mkdir()
    for number in range(4):
        (tmp_path / "docs" / f"{number}.txt").write_text(f"{PASSAGE}, document {number}. " * 40)
    made = {"indexPath": str(tmp_path / "at" / "index.sqlite")}
    qtm.ingest(tmp_path / "docs", config=made, embedder=vectors)
    return made


@each_damage
@pytest.mark.parametrize("name", ["index.sqlite", "index.sqlite.ingest"])
def test_a_damaged_index_or_ledger_is_named_and_left_as_it_is(
    tmp_path: Path, config: dict[str, Any], damage: Damage, name: str
) -> None:
    damage(tmp_path / "at" / name)
    before = content_of(tmp_path / "at")
    said = rf"{name}.*(delete it|name a file)"
    with listening() as emitted, qtm.QueryMiddleware(config, embedder=vectors) as middleware:
        uses: list[Callable[[], Any]] = [
            lambda: qtm.ingest(tmp_path / "docs", config=config, embedder=vectors)
        ]
        if name == "index.sqlite":
            uses.append(lambda: middleware.retriever)
        for use in uses:
            with pytest.raises(StoreError, match=said) as caught:
                use()
            emitted.raised(caught.value)
    assert content_of(tmp_path / "at") == before


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE passages SET vector = 'a text'",
        "UPDATE passages SET vector = x'0000c07f0000c07f0000c07f'",
        "UPDATE passages SET text = x'ff'",
        "UPDATE passages SET metadata = '[1]'",
        "UPDATE passages SET metadata = replace(hex(zeroblob(9999)), '00', '[')",
    ],
)
def test_an_index_that_holds_what_it_cannot_hold_is_named(
    config: dict[str, Any], harm: str
) -> None:
    path = Path(config["indexPath"])
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute(harm)
        theirs.commit()
    with (
        SQLiteStore(path, embedding_model="vectors", dimension=3) as store,
        pytest.raises(StoreError, match=r"index\.sqlite.*is damaged.*delete it"),
    ):
        store.search(X, 50)


def test_no_flipped_or_lost_byte_of_an_index_brings_anything_but_a_store_error(
    tmp_path: Path,
) -> None:
    whole, bad = tmp_path / "whole.sqlite", tmp_path / "bad.sqlite"
    texts = [
        Passage(f"id{n}", f"{PASSAGE} {n} " * 12, {"source": f"s{n}", "context": "ctx"})
        for n in range(40)
    ]
    with SQLiteStore(whole, embedding_model="m", dimension=3) as store:
        store.write(zip(texts, [[1.0, float(n), 0.5] for n in range(40)], strict=True))
        store.write((), delete=["id3"])
    content, chance, told = whole.read_bytes(), random.Random(7), 0
    with listening() as emitted:
        for _ in range(100):
            for path in tmp_path.glob("bad.*"):
                path.unlink()
            bad.write_bytes(_damaged(content, chance))
            for use in USES:
                try:
                    with SQLiteStore(bad, embedding_model="m", dimension=3) as store:
                        use(store)
                except StoreError as error:
                    emitted.raised(error)
                    told += str(bad) in str(error) and "delete it" in str(error)
    assert told > 100


USES: Final[tuple[Callable[[SQLiteStore], Any], ...]] = (
    lambda store: store.search(X, 50),
    lambda store: store.search(X, 5, filter={"source": "s4"}),
    lambda store: store.keyword_search("vet document", 50, filter={"source": "s4"}),
    lambda store: store.write(
        [(Passage("id5", "new", {}), X), (Passage("x", "new", {}), X)], delete=["id7"]
    ),
)


def _damaged(content: bytes, chance: random.Random) -> bytes:
    made = bytearray(content)
    at = chance.randrange(len(made))
    match chance.randrange(3):
        case 0:
            return bytes(made[:at])
        case 1:
            made[at : at + PAGE] = bytes(byte ^ 0xFF for byte in made[at : at + PAGE])
        case _:
            for _ in range(20):
                made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


# --- configs --------------------------------------------------------------------------------------

CONFIGS: Final = {
    "broken": (b'{"topK": 4', "cannot be read as JSON.*line 1"),
    "UTF-16": ('{"topK": 4}'.encode("utf-16"), "'utf-8' codec"),
    "not a number": (b'{"fusion": {"rrfK": NaN}}', "fusion.rrfK must be a whole number"),
    "endless number": (b'{"topK": 1' + b"0" * 6_000 + b"}", "Exceeds the limit"),
    "deep": (b"[" * 100_000, "recursion depth"),
    "a list": (b"[]", "must hold one JSON object"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_config_is_named_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    content, said = CONFIGS[name]
    path = tmp_path / "c.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)c\.json.*{said}|{said}.*c\.json"):
        qtm.Config.load(path)
    assert path.read_bytes() == content


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_no_damaged_file_brings_a_traceback_to_the_command_line(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    at = tmp_path / "at"
    (at / "other.sqlite.ingest").write_bytes((at / "index.sqlite.ingest").read_bytes())
    cut_off(at / "index.sqlite")
    a_text(at / "other.sqlite.ingest")
    (tmp_path / "c.json").write_text(json.dumps(config))
    (tmp_path / "ledger.json").write_text(json.dumps({"indexPath": str(at / "other.sqlite")}))
    (tmp_path / "broken.json").write_text('{"topK": ')
    write_data(tmp_path / "set", bridges_data())
    (tmp_path / "recording.jsonl").write_text('{"_id": "q", "rew')
    for command, code, named in (
        ("query Jaco? -c c.json", 1, "index.sqlite"),
        ("ingest docs -c c.json", 1, "index.sqlite"),
        ("ingest docs -c ledger.json", 1, "other.sqlite.ingest"),
        ("config show broken.json", 2, "broken.json"),
        ("bench --data set --recordings recording.jsonl", 2, "recording.jsonl"),
    ):
        ended = run_here(command.split(), b"", tmp_path, {})
        assert (ended.code, named in ended.err) == (code, True), ended.err
        assert "Traceback" not in ended.err
