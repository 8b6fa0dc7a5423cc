"""A reader of the user's own, and what an ingest that is killed leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import UnreadableDocument
from qtmiddleware.kit.index.ingestion import ingest
from tests.support.ingest_world import World
from tests.support.office_files import make_office_files
from tests.support.waiting import PATIENCE, wait_until


def run(world: World, reader: Any, path: Path | None = None) -> Any:
    from qtmiddleware.providers.embedding import CallableEmbedder
    from tests.support.ingest_world import DIMENSION, hashed

    embedder = CallableEmbedder(hashed, name="hashed", dimension=DIMENSION)
    return ingest(
        path or world.docs, config={"indexPath": str(world.index)}, embedder=embedder, reader=reader
    )


def sources(world: World) -> set[str]:
    return {metadata["source"] for _, metadata, _ in world.passages().values()}


def test_a_reader_reads_what_it_knows_and_leaves_the_rest(world: World) -> None:
    def read_mail(path: Path) -> str | None:
        return path.read_text().partition("\n\n")[2] if path.suffix == ".eml" else None

    world.write("a.eml", "From: Ada\n\nThe pump is broken.")
    world.write("b.png", b"\x89PNG")
    report = run(world, read_mail)
    assert (report.added, report.skipped, report.left_out) == (4, (), {".png": 1})
    assert sources(world) == {"a.eml", "alpha.txt", "gamma.txt", "sub/beta.md"}
    assert [text for text, it, _ in world.passages().values() if it["source"] == "a.eml"] == [
        "The pump is broken."
    ]
    assert run(world, read_mail).unchanged == 4
    (world.docs / "a.eml").unlink()
    assert run(world, read_mail).removed == 1


def test_a_reader_may_give_texts_one_by_one_and_their_places(world: World) -> None:
    def read(path: Path) -> Iterator[Any] | None:
        if path.name != "alpha.txt":
            return None
        return iter(
            [
                ("One. ", {"page": 1, "title": "Alpha"}),
                ("Two. ", {"page": 2, "title": "Alpha", "part": "b"}),
                "End.",
            ]
        )

    assert not run(world, read).skipped
    (found,) = [it for _, it, _ in world.passages().values() if it["source"] == "alpha.txt"]
    assert {name: found[name] for name in ("title", "page")} == {"title": "Alpha", "page": 1}
    assert found["source"] == "alpha.txt"


def raise_(error: Exception) -> Any:
    raise error


class Lazy:
    def __iter__(self) -> Iterator[str]:
        yield "The beginning. "
        raise KeyError("secret")


async def read_later(path: Path) -> str:
    return "text"


NO_TEXT = "the reader must return text, or pairs of a text and its place"


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda path: raise_(KeyError("secret")), "its reader failed (KeyError)"),
        (lambda path: raise_(TypeError("secret")), "its reader failed (TypeError)"),
        (lambda path: Lazy(), "its reader failed (KeyError)"),
        (
            lambda path: raise_(UnreadableDocument(path, "damaged", "own words")),
            "damaged (own words)",
        ),
        *(
            (lambda path, result=result: result, f"its reader failed ({NO_TEXT})")
            for result in (
                b"bytes",
                {"text": "t"},
                [7],
                [("text", {"source": "elsewhere"})],
                [("text", {"page": [1]})],
            )
        ),
        (lambda path: 7, "its reader failed (TypeError)"),
        (lambda path: [("text", "page 1")], "its reader failed (ValueError)"),
        (lambda path: " ", "empty"),
        (lambda path: [], "empty"),
        (read_later, "its reader failed (the reader must be a plain function, not async)"),
    ],
)
def test_whatever_a_reader_does_takes_one_file_with_it(world: World, read: Any, why: str) -> None:
    report = run(world, lambda path: read(path) if path.name == "gamma.txt" else None)
    assert [(Path(it.path).name, it.reason) for it in report.skipped] == [("gamma.txt", why)]
    assert sources(world) == {"alpha.txt", "sub/beta.md"}


def test_an_interrupt_in_a_reader_ends_the_run(world: World) -> None:
    def read(path: Path) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(world, read)


def write_bomb(path: Path) -> None:
    """A Word file of some 600 kB whose text takes 600 MB."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("word/document.xml", "w") as part,
    ):
        for _ in range(600):
            part.write(b" " * (1 << 20))


def test_a_zip_bomb_and_a_reader_that_dies_each_take_one_file_of_a_folder(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = world.folder / "modules"
    modules.mkdir()
    (modules / "openpyxl.py").write_text(
        "import os\ndef load_workbook(*_, **__):\n    os._exit(3)\n"
    )
    monkeypatch.setattr(sys, "path", [str(modules), *sys.path])
    write_bomb(world.docs / "bomb.docx")
    make_office_files(world.docs)[".xlsx"].rename(world.docs / "deadly.xlsx")
    world.write("z.csv", "Item,Price\nPump,7\n")
    report = run(world, None)
    assert {Path(it.path).name: it.reason.partition(" (")[0] for it in report.skipped} == {
        "bomb.docx": "too large",
        "deadly.xlsx": "its reader failed",
    }
    assert {"alpha.txt", "gamma.txt", "sub/beta.md", "z.csv"} < sources(world)


HANGING = """
import sys
sys.path.insert(0, sys.argv[1])
from qtmiddleware.kit.index.ingestion import ingest
from qtmiddleware.providers.embedding import CallableEmbedder
from tests.support.ingest_world import hashed, DIMENSION
ingest(sys.argv[2], config={"indexPath": sys.argv[3]}, embedder=CallableEmbedder(hashed, name="h", dimension=DIMENSION))
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_reading_process_ends_with_an_ingest_however_that_ends(
    world: World, how: signal.Signals
) -> None:
    modules = world.folder / "modules"
    modules.mkdir()
    started = world.folder / "started"
    (modules / "openpyxl.py").write_text(
        f"import os, time\nopen({str(started)!r} + '_', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(started)!r} + '_', {str(started)!r})\ntime.sleep(600)\n"
    )
    make_office_files(world.docs)
    # From standard input, where there is no file that a process could begin with.
    command = [sys.executable, "-", str(modules), str(world.docs), str(world.index)]
    ingesting = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert ingesting.stdin is not None
    # A shell that runs this in the background has interrupts ignored.
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    ingesting.stdin.write((reset + HANGING).encode())
    ingesting.stdin.close()
    wait_until(started.exists)
    reader = int(started.read_text())
    ingesting.send_signal(how)
    ingesting.wait(PATIENCE)
    wait_until(lambda: not is_running(reader))


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # One that nobody has waited for yet is no more than a row in a table.
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")
