"""A reader of the user's own, and what becomes of the process that reads documents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import UnreadableDocument
from tests.support.ingest_world import World
from tests.support.office_files import write_word_file
from tests.support.waiting import PATIENCE, wait_until


def sources(world: World) -> set[str]:
    return {metadata["source"] for _, metadata, _ in world.passages().values()}


def test_a_reader_reads_what_it_knows_and_leaves_the_rest(world: World) -> None:
    def read(path: Path) -> Any:
        if path.suffix == ".eml":
            return path.read_text().partition("\n\n")[2]
        # Texts one by one, with their places.
        pages = [("One. ", {"page": 1, "title": "A"}), ("Two. ", {"page": 2, "title": "A"}), "End."]
        return iter(pages) if path.name == "alpha.txt" else None

    world.write("a.eml", "From: Ada\n\nThe pump is broken.")
    world.write("b.png", b"\x89PNG")
    report = world.ingest(reader=read)
    assert (report.added, report.skipped, report.left_out) == (4, (), {".png": 1})
    assert sources(world) == {"a.eml", "alpha.txt", "gamma.txt", "sub/beta.md"}
    held = world.passages()
    assert held["a.eml#0"][0] == "The pump is broken."
    text, metadata, _ = held["alpha.txt#0"]
    assert (text, metadata["title"], metadata["page"]) == ("One. Two. End.", "A", 1)
    assert world.ingest(reader=read).unchanged == 4
    (world.docs / "a.eml").unlink()
    assert world.ingest(reader=read).removed == 1


def raising(error: BaseException) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        raise error

    return read


def read_lazily(path: Path) -> Iterator[str]:
    yield "The beginning. "
    raise KeyError("secret")


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (raising(TypeError("secret")), "its reader failed (TypeError)"),
        (read_lazily, "its reader failed (KeyError)"),
        (raising(UnreadableDocument(Path("a"), "damaged", "own words")), "damaged (own words)"),
        *(
            (lambda path, result=result: result, "its reader failed (TypeError)")
            for result in (
                b"bytes",
                [7],
                [("text", {"source": "elsewhere"})],
                [("t", {"page": [1]})],
            )
        ),
        (lambda path: 7, "its reader failed (TypeError)"),
        (lambda path: [("text", "page 1")], "its reader failed (AttributeError)"),
        (lambda path: [" "], "empty"),
    ],
)
def test_whatever_a_reader_does_takes_one_file_with_it(world: World, read: Any, why: str) -> None:
    report = world.ingest(reader=lambda path: read(path) if path.name == "gamma.txt" else None)
    assert [(Path(it.path).name, it.reason) for it in report.skipped] == [("gamma.txt", why)]
    assert sources(world) == {"alpha.txt", "sub/beta.md"}


def test_an_interrupt_in_a_reader_ends_the_run(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.ingest(reader=raising(KeyboardInterrupt()))


@pytest.fixture
def modules(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules that the process that reads documents finds first."""
    folder = world.folder / "modules"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return folder


def test_a_reader_that_dies_and_a_missing_package_each_take_one_file_of_a_folder(
    world: World,
    modules: Path,
) -> None:
    (modules / "pypdf.py").write_text("import os\ndef PdfReader(_):\n    os._exit(3)\n")
    (modules / "docx.py").write_text("raise ImportError")
    write_word_file(world.docs)
    world.write("report.pdf", "%PDF")
    report = world.ingest()
    died, missing = sorted(report.skipped, key=lambda it: it.extra)
    assert (Path(died.path).name, died.reason.partition(" (")[0], died.extra) == (
        *("report.pdf", "its reader failed", ""),
    )
    assert (Path(missing.path).name, missing.extra) == ("report.docx", "documents")
    assert "python-docx is not installed" in missing.reason
    assert sources(world) == {"alpha.txt", "gamma.txt", "sub/beta.md"}


HANGING = """
import signal, sys
# A shell that runs this in the background has interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.support.ingest_world import World
World(Path(sys.argv[2])).ingest()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_reading_process_ends_with_an_ingest_however_that_ends(
    world: World,
    modules: Path,
    how: signal.Signals,
) -> None:
    started = world.folder / "started"
    (modules / "docx.py").write_text(
        f"import os, time\nopen({str(started)!r} + '_', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(started)!r} + '_', {str(started)!r})\ntime.sleep(600)\n"
    )
    write_word_file(world.docs)
    # From standard input, where there is no file that a process could begin with.
    command = [sys.executable, "-", str(modules), str(world.folder)]
    ingesting = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert ingesting.stdin is not None
    ingesting.stdin.write(HANGING.encode())
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
