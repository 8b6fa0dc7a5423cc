"""The output of a run over many questions, which is at the same time what a later run goes on from."""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, Final

from qtmiddleware.bulk.fingerprint import describe_changes
from qtmiddleware.bulk.queries import InputQuery
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.providers.stores.sqlite.files import FAILURES, FileKind, describe_error, open_file
from qtmiddleware.runtime.files import open_itself, replace_file

SYNC_SECONDS: Final = 5.0
"""How much of the work of a power cut may be lost; a process that is killed loses nothing that was written."""
_MOST_LINES: Final = 1 << 31
_RUN_FILE: Final = FileKind(
    application_id=0x71746D72,  # "qtmr" in ASCII
    version=1,
    statements=("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",),
    subject="{path}, which says how the output beside it is made,",
    busy="another run writes to this output; wait until it has ended, or name another --out",
    remedy="move it away, with the output, or name another --out",
)


class Journal:
    """The records at *path*, one a line of the input, appended whole, each as soon as it is there.

    A record with an ``error`` counts as not done: it is taken out when the file is opened again, and so is what cannot
    be read, as after a power cut; half a line at the end is cut off. Of each question that is done four bytes are kept
    in memory, by which another one in its place is noticed. One thread at a time. `hold_journal` opens it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._done = array("I")
        self.count = 0
        with _explained(self._path):
            if self._read_all():
                replace_file(path, (raw for raw, record in self._read() if not _is_open(record)))
            self._descriptor = open_itself(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._size = os.fstat(self._descriptor).st_size
            self._synced_at = monotonic()

    def holds(self, query: InputQuery) -> bool:
        """Whether *query* is done; raises `ConfigError` where the output holds another one for its line."""
        found = self._done[query.line] if query.line < len(self._done) else 0
        if found and found != _digest(query.to_record()):
            raise _refuse(
                f"line {query.line} of the input is not the question that {self._path} holds for it: the output is of "
                "another input, or of one that has changed"
            )
        return found > 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Write *record* whole, or raise `StoreError` and leave the file as it was."""
        data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with _explained(self._path):
            try:
                written = os.write(self._descriptor, data)
                if written < len(data):
                    os.write(self._descriptor, data[written:])
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(data)
            if monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync()

    def close(self) -> None:
        """Let all that was written reach the disk, and let go of the file."""
        with _explained(self._path):
            try:
                self._sync()
            finally:
                os.close(self._descriptor)

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at = monotonic()

    def _read_all(self) -> bool:
        """Learn what is done; returns whether there is something to be taken out."""
        is_whole = True
        for _, record in self._read():
            if _is_open(record):
                is_whole = False
                continue
            line = record["line"]
            if line >= len(self._done):
                self._done.frombytes(bytes(self._done.itemsize * (line + 1 - len(self._done))))
            self._done[line] = _digest(record)
            self.count += 1
        return not is_whole

    def _read(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Every line with what it says, ``{}`` for what no run has written."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            for raw in file:
                try:
                    record = json.loads(raw) if raw.endswith(b"\n") else {}
                except (ValueError, RecursionError):
                    record = {}
                yield raw, record if isinstance(record, dict) else {}


@contextmanager
def hold_journal(path: Path, fingerprint: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[Journal]:
    """The journal at *path*, held by nobody else until the end of the block.

    The lock is one of the operating system's, which ends with the process however that ends, on the file
    ``<path>.run``, in which the *fingerprint* is kept. Raises `ConfigError` where the output was begun with another
    one, with what changed, or by nobody known, unless it is to be *overwritten*, and `StoreError` where it is in use or
    cannot be written.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; name another --out", path="--out")
    is_there = path.exists() and path.stat().st_size > 0 and not overwrite
    run_path = Path(f"{path}.run")
    if is_there and not run_path.exists():
        raise _refuse(f"{path} is there, and no {run_path.name} beside it says how it was made")
    with closing(open_file(str(run_path), _RUN_FILE, timeout=0, exclusive=True)) as connection:
        if is_there:
            _check_fingerprint(path, _read_fingerprint(connection, run_path), fingerprint)
        else:
            with _explained(path), suppress(FileNotFoundError):
                os.truncate(path, 0)
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('fingerprint', ?)", (json.dumps(fingerprint),))
        with closing(Journal(path)) as journal:
            yield journal


def _read_fingerprint(connection: sqlite3.Connection, run_path: Path) -> Mapping[str, Any]:
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'fingerprint'").fetchone()
        found: Mapping[str, Any] = json.loads(row[0]) if row else {}
    except (*FAILURES, ValueError) as error:
        why = describe_error(error)
        raise StoreError(f"{run_path} cannot be used ({why}); {_RUN_FILE.remedy}") from None
    return found


def _check_fingerprint(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = list(describe_changes(before, now))
    if changes:
        raise _refuse(f"{path} was begun under another config: {', '.join(changes)}")


def _refuse(why: str) -> ConfigError:
    return ConfigError(f"{why}; name another --out, or --overwrite what is there", path="--out")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or type(error).__name__}; what is in it is whole: make room "
            "for more, and run the same command to go on"
        ) from error


def _is_open(record: Mapping[str, Any]) -> bool:
    """Whether *record* says nothing of a question that is done."""
    line = record.get("line")
    return not isinstance(line, int) or not 0 < line < _MOST_LINES or "query" not in record or "error" in record


def _digest(record: Mapping[str, Any]) -> int:
    """What tells one question from another, never 0."""
    parts = [record.get("id"), record["query"], record.get("history")]
    return zlib.crc32(json.dumps(parts).encode()) or 1
