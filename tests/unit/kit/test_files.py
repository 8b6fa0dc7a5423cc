"""Files and folders of ours: private, written whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qtmiddleware.kit.files import make_private_folders, open_privately, replace_file
from qtmiddleware.runtime.files import append_line


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of somebody else's, which stays as it is."""
    path = tmp_path / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    yield path
    assert (path.read_text(), mode(path)) == ("precious", 0o600)


def test_what_is_made_is_its_owners_alone_and_what_was_there_stays(
    tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    for _ in range(2):
        make_private_folders(tmp_path / "there" / "a" / "b")
    assert [mode(tmp_path / "there" / part) for part in ("", "a", "a/b")] == [0o755, 0o700, 0o700]
    with open(tmp_path / "new", "xb", opener=open_privately):
        pass
    # The current folder and the root are there.
    monkeypatch.chdir(tmp_path)
    make_private_folders(Path("/"))
    for line in (b"one", b"two"):
        append_line(Path("log"), line)
    assert (mode(tmp_path / "new"), mode(tmp_path / "log")) == (0o600, 0o600)
    assert Path("log").read_bytes() == b"one\ntwo\n"


def test_what_is_to_be_shared_is_as_readable_as_other_files_or_as_before(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "report"
    replace_file(path, b"new")
    assert (mode(path), path.read_bytes()) == (0o666 & ~umask, b"new")
    for before in (0o640, 0o666):
        path.chmod(before)
        replace_file(path, b"newer")
        assert (mode(path), path.read_bytes()) == (before, b"newer")


@pytest.mark.parametrize("write", [replace_file, append_line])
@pytest.mark.parametrize("leads_to", ["victim", "nothing", "link"])
def test_no_link_is_written_through_and_what_it_names_is_told(
    tmp_path: Path, victim: Path, write: Callable[[Path, bytes], None], leads_to: str
) -> None:
    link, real = tmp_path / "link", tmp_path / leads_to
    link.symlink_to(real)
    with pytest.raises(OSError, match=f"is a link, .* name {real} itself"):
        write(link, b"new")
    assert link.is_symlink()
    assert {it.name for it in tmp_path.iterdir()} == {"link", "victim"}


@pytest.mark.parametrize("write", [replace_file, append_line])
def test_a_link_that_is_put_there_at_the_last_moment_is_not_written_through(
    tmp_path: Path,
    victim: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path, bytes], None],
) -> None:
    (tmp_path / "link").symlink_to(victim)
    for module in ("kit.files", "runtime.files"):
        monkeypatch.setattr(f"qtmiddleware.{module}.refuse_link", lambda path: None)
    with pytest.raises(OSError, match="link"):
        write(tmp_path / "link", b"new")


def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in ("folder", "pipe"):
        with pytest.raises(OSError, match="not a file"):
            replace_file(tmp_path / place, b"new")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["folder", "pipe"]


KILLED = """
import os, sys
from qtmiddleware.kit import files

# Killed when everything but the last step is done.
files.Path.replace = lambda self, target: os._exit(9)
files.replace_file(files.Path(sys.argv[1]), b"new")
"""


def test_a_crash_leaves_the_old_file(victim: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(victim)]
    assert subprocess.run(command, check=False, timeout=200).returncode == 9
