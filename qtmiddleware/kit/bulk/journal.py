"""The output file of a bulk run, which a later run can continue."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeGuard

from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.kit.bulk.fingerprint import describe_changes, parse_fingerprint
from qtmiddleware.kit.bulk.queries import MOST_BYTES, InputQuery, read_lines
from qtmiddleware.kit.stores.sqlite.files import (
    FAILURES,
    FileKind,
    describe_error,
    limit_value_size,
    open_file,
)
from qtmiddleware.runtime.files import (
    open_for_writing,
    open_regular_file,
    refuse_link,
    replace_file,
)

SYNC_SECONDS: Final = 5.0
"""How many seconds of work a power cut may lose; a killed process loses no written line."""
_MOST_RECORD_BYTES: Final = 4 * MOST_BYTES
"""The most bytes of a line that a run can write: a line of the input and a reply."""
_MOST_FINGERPRINT_BYTES: Final = 4_000_000
_NEAR_LINES: Final = 1 << 20
_LINE_BYTES: Final = 8
_RUN_FILE: Final = FileKind(
    application_id=0x71746D72,  # "qtmr" in ASCII
    version=1,
    statements=("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",),
    subject="{path}, the record of the output beside it,",
    busy="another run is writing to this output; wait until it ends, or name another --out",
    remedy="move the file and the output away, or name another --out",
)


class Journal:
    """The output file at *path*: one record per question, appended when the question is done.

    When an existing file is opened, its failed questions are removed, so that they are asked again.
    These are records with an ``error``, lines that cannot be read (for example after a power
    failure), and an incomplete last line. With *overwrite*, the file is emptied. A digest of eight
    bytes per finished question stays in memory, to detect changes of the input. Not thread-safe.
    Use `hold_journal` to open a journal.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        # A random key, so that nobody can construct two questions with the same digest.
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._near = array("Q")
        self._far: dict[int, int] = {}
        with _explain_write_error(self._path):
            if not overwrite and self._load_done():
                replace_file(
                    path, (raw for raw, digest in self._read_lines() if digest is not None)
                )
            self._descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            if overwrite:
                # By its descriptor, because the path may have become a link in the meantime.
                os.ftruncate(self._descriptor, 0)
            self._size = os.fstat(self._descriptor).st_size
            self._synced_at = monotonic()

    def holds(self, query: InputQuery) -> bool:
        """Return whether the output already has a result for *query*.

        Raises `ConfigError` if the output has another question for the same input line.
        """
        line = query.line
        digest = self._near[line] if line < len(self._near) else self._far.get(line, 0)
        if digest and digest != self._compute_digest(query.to_record()):
            raise _build_refusal(
                f"line {line} of the input is not the question that {self._path} holds for it: the"
                " output is of another input, or of one that has changed"
            )
        return digest > 0

    def append(self, record: Mapping[str, Any]) -> None:
        """Append *record* to the output file as one line.

        If this fails, raises `StoreError` and leaves the file unchanged.
        """
        data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with _explain_write_error(self._path):
            try:
                written = os.write(self._descriptor, data)
                # A disk that is almost full may take only a part; the second write then raises.
                if written < len(data):
                    os.write(self._descriptor, data[written:])
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(data)
            if monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync()

    def close(self) -> None:
        """Flush everything to the disk and close the file."""
        with _explain_write_error(self._path):
            try:
                self._sync()
            finally:
                os.close(self._descriptor)

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at = monotonic()

    def _load_done(self) -> bool:
        """Load the digests of all finished questions from the output file.

        Returns whether the file has lines to remove, such as records with an ``error``.
        """
        is_whole = True
        size = self._path.stat().st_size if self._path.exists() else 0
        # A huge line number must not allocate memory: the array has at most as many bytes as the
        # file, and larger numbers go into a dictionary.
        near = max(_NEAR_LINES, size // _LINE_BYTES)
        for _, numbered_digest in self._read_lines():
            if numbered_digest is None:
                is_whole = False
                continue
            line, digest = numbered_digest
            if line >= near:
                self._far[line] = digest
                continue
            if line >= len(self._near):
                self._near.frombytes(bytes(_LINE_BYTES * (line + 1 - len(self._near))))
            self._near[line] = digest
        return not is_whole

    def _read_lines(self) -> Iterator[tuple[bytes, tuple[int, int] | None]]:
        """Yield each line of the output file, and which question it has a result for.

        The question is given as its line number in the input and its digest. It is ``None`` if the
        line has no result.
        """
        try:
            file = open_regular_file(self._path, follow_link=False)
        except FileNotFoundError:
            return
        with file:
            for raw in read_lines(file, _MOST_RECORD_BYTES):
                yield raw or b"", self._read_done(raw or b"")

    def _read_done(self, raw: bytes) -> tuple[int, int] | None:
        try:
            record = json.loads(raw) if raw.endswith(b"\n") else None
            if not _is_done(record):
                return None
            return record["line"], self._compute_digest(record)
        except (ValueError, RecursionError):
            return None

    def _compute_digest(self, record: Mapping[str, Any]) -> int:
        """Return a number above 0 that identifies the question in *record*."""
        identity = json.dumps([record.get("id"), record["query"], record.get("history")])
        digest = hashlib.blake2b(identity.encode(), digest_size=_LINE_BYTES, key=self._key).digest()
        return int.from_bytes(digest) or 1


def count_lines(path: Path) -> int:
    """Return the number of lines in the file at *path*; 0 if it cannot be read."""
    try:
        with open_regular_file(path, follow_link=False) as file:
            return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, 1 << 20), b""))
    except OSError:
        return 0


@contextmanager
def hold_journal(
    path: Path, fingerprint: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Journal]:
    """Open the output file of a bulk run, and lock it until the end of the ``with`` block.

    The lock is on the file ``<path>.run``, which also stores the fingerprint. The operating system
    releases the lock when the process ends for any reason.

    Args:
        path: The output file.
        fingerprint: The settings that affect the transformations.
        overwrite: Whether to replace an existing output.

    Raises:
        ConfigError: Without *overwrite*, if the output was made with other settings, or if
            ``<path>.run`` is missing. The message names the changed settings.
        StoreError: If the output is in use or cannot be written.
    """
    with _explain_write_error(path):
        refuse_link(path)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; name another --out", path="--out")
    run_path = Path(f"{path}.run")
    if not overwrite and _has_content(path) and not run_path.exists():
        raise _build_refusal(
            f"{path} exists, but {run_path.name}, which records how it was made, is missing"
        )
    with closing(open_file(str(run_path), _RUN_FILE, timeout=0, exclusive=True)) as connection:
        # Checked again under the lock: until now another run may have written to the output.
        continues = not overwrite and _has_content(path)
        if continues:
            _check_fingerprint(path, _read_fingerprint(connection, run_path), fingerprint)
        with closing(Journal(path, overwrite=not continues)) as journal:
            if not continues:
                _store_fingerprint(connection, run_path, fingerprint)
            yield journal


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read_fingerprint(connection: sqlite3.Connection, run_path: Path) -> Mapping[str, Any]:
    with _explain_unusable(run_path):
        with limit_value_size(connection, _MOST_FINGERPRINT_BYTES):
            row = connection.execute("SELECT value FROM meta WHERE key = 'fingerprint'").fetchone()
        return parse_fingerprint(row[0] if row else None)


def _store_fingerprint(
    connection: sqlite3.Connection, run_path: Path, fingerprint: Mapping[str, Any]
) -> None:
    with _explain_unusable(run_path):
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('fingerprint', ?)", (json.dumps(fingerprint),)
        )


@contextmanager
def _explain_unusable(run_path: Path) -> Iterator[None]:
    try:
        yield
    except (*FAILURES, ValueError) as error:
        why = describe_error(error)
        raise StoreError(f"{run_path} cannot be used ({why}); {_RUN_FILE.remedy}") from None


def _check_fingerprint(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changes = list(describe_changes(before, now))
    if changes:
        raise _build_refusal(f"{path} was started with another config: {', '.join(changes)}")


def _build_refusal(reason: str) -> ConfigError:
    return ConfigError(
        f"{reason}; name another --out, or replace it with --overwrite", path="--out"
    )


@contextmanager
def _explain_write_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        if error.errno == errno.ELOOP:
            raise StoreError(f"{path} cannot be written: {why}") from error
        raise StoreError(
            f"{path} cannot be written: {why}; its lines are complete: free some disk space, and"
            " run the same command to continue"
        ) from error


def _is_done(record: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether *record*, a line of the output, has the result of a question.

    False for records with an ``error``, which are asked again, and for invalid records.
    """
    if not isinstance(record, dict) or "error" in record:
        return False
    line, id_ = record.get("line"), record.get("id")
    is_line = isinstance(line, int) and not isinstance(line, bool) and line > 0
    return (
        is_line
        and isinstance(record.get("query"), str)
        and (id_ is None or isinstance(id_, str | int))
    )
