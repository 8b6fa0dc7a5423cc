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


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


# --- private --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("umask")
def test_folders_that_are_made_are_their_owners_alone_and_those_that_were_there_stay(
    tmp_path: Path,
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    for _ in range(2):
        make_private_folders(tmp_path / "there" / "a" / "b" / "c")
    assert [mode(tmp_path / "there" / part) for part in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path / "there") == 0o755


@pytest.mark.parametrize("place", ["file", "file/inside"])
def test_a_file_in_the_way_of_a_folder_is_an_os_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        make_private_folders(tmp_path / place)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_current_folder_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    append_line(Path("log"), b"one")
    make_private_folders(Path("/"))
    assert Path("log").read_bytes() == b"one\n"


@pytest.mark.usefixtures("umask")
def test_a_line_is_appended_to_a_file_of_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append_line(path, b"one")
    append_line(path, b"two")
    assert (mode(path), path.read_bytes()) == (0o600, b"one\ntwo\n")


@pytest.mark.usefixtures("umask")
def test_a_file_that_is_opened_to_be_made_is_its_owners_alone(tmp_path: Path) -> None:
    with open(tmp_path / "new", "xb", opener=open_privately):
        pass
    assert mode(tmp_path / "new") == 0o600


# --- written whole --------------------------------------------------------------------------------


def test_what_is_to_be_shared_is_as_readable_as_other_files(tmp_path: Path, umask: int) -> None:
    replace_file(tmp_path / "report", b"new")
    assert (mode(tmp_path / "report"), (tmp_path / "report").read_bytes()) == (
        0o666 & ~umask,
        b"new",
    )


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("before", [0o600, 0o640, 0o666])
def test_a_file_that_is_replaced_hands_on_its_permissions(tmp_path: Path, before: int) -> None:
    path = tmp_path / "report"
    path.write_text("old")
    path.chmod(before)
    replace_file(path, b"new")
    assert (mode(path), path.read_bytes()) == (before, b"new")


@pytest.mark.parametrize("write", [replace_file, append_line])
@pytest.mark.parametrize("leads_to", ["file", "nothing", "itself"])
def test_no_link_is_written_through_and_what_it_names_is_told(
    tmp_path: Path, write: Callable[[Path, bytes], None], leads_to: str
) -> None:
    link, real = tmp_path / "link", tmp_path / ("link" if leads_to == "itself" else "real")
    link.symlink_to(real)
    if leads_to == "file":
        real.write_text("precious")
    with pytest.raises(OSError, match=f"is a link, .* name {real} itself"):
        write(link, b"new")
    assert link.is_symlink()
    assert {it.name for it in tmp_path.iterdir()} == (
        {"link", "real"} if leads_to == "file" else {"link"}
    )
    assert leads_to != "file" or real.read_text() == "precious"


@pytest.mark.parametrize("write", [replace_file, append_line])
def test_a_link_that_is_put_there_at_the_last_moment_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for module in ("runtime", "kit"):
        monkeypatch.setattr(f"qtmiddleware.{module}.files.refuse_link", lambda path: None)
    with pytest.raises(OSError, match="link"):
        write(tmp_path / "link", b"new")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="permissions are set by name there")
def test_permissions_are_handed_on_to_the_file_that_was_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o666)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "victim").chmod(0o600)
    sync = os.fsync

    def swap(descriptor: int) -> None:
        sync(descriptor)
        (draft,) = tmp_path.glob(".*.tmp")
        draft.unlink()
        draft.symlink_to(tmp_path / "victim")

    monkeypatch.setattr(os, "fsync", swap)
    replace_file(tmp_path / "file", b"new")
    assert mode(tmp_path / "victim") == 0o600


@pytest.mark.parametrize("planted", ["link", "file"])
def test_what_was_planted_at_the_name_of_the_draft_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    # Nobody can guess the name; were it known, nothing would come of it.
    monkeypatch.setattr("qtmiddleware.kit.files.secrets.token_hex", lambda _: "known")
    victim, draft = tmp_path / "victim", tmp_path / ".known.tmp"
    victim.write_text("precious")
    if planted == "link":
        draft.symlink_to(victim)
    else:
        draft.hardlink_to(victim)
    (tmp_path / "report").write_text("old")
    with pytest.raises(FileExistsError):
        replace_file(tmp_path / "report", b"new")
    assert (victim.read_text(), (tmp_path / "report").read_text()) == ("precious", "old")


@pytest.mark.parametrize("place", ["folder", "pipe"])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a file"):
        replace_file(tmp_path / place, b"new")
    assert sorted(it.name for it in tmp_path.iterdir()) == ["folder", "pipe"]


KILLED = """
import os, sys
from pathlib import Path
from qtmiddleware.kit import files

# Killed when everything but the last step is done.
files.Path.replace = lambda self, target: os._exit(9)
files.replace_file(Path(sys.argv[1]), b"new")
"""


def test_a_crash_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "report")], check=False, timeout=200
    )
    assert (done.returncode, (tmp_path / "report").read_text()) == (9, "old")
