"""Write the output file of a bulk run, and continue it in a later run."""

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
from qtmiddleware.kit.files import open_regular_file, replace_file
from qtmiddleware.kit.stores.sqlite.files import (
    FAILURES,
    FileType,
    describe_sqlite_error,
    limit_value_size,
    open_file,
)
from qtmiddleware.runtime.files import open_for_writing, refuse_link

SYNC_SECONDS: Final = 5.0
"""How many seconds of work a power failure may lose. A killed process loses no written line."""
_MOST_RECORD_BYTES: Final = 4 * MOST_BYTES
"""The maximum size of an output line, in bytes. The line contains an input line and a reply."""
_MOST_FINGERPRINT_BYTES: Final = 4_000_000
_NEAR_LINES: Final = 1 << 20
_LINE_BYTES: Final = 8
_RUN_FILE: Final = FileType(
    application_id=0x71746D72,  # "qtmr" in ASCII
    version=1,
    statements=("CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",),
    subject="{path}, the record of the output beside it,",
    busy="another run is writing to this output; wait until it ends, or name another --out",
    remedy="move the file and the output away, or name another --out",
)


class Journal:
    """The output file at *path*: one record per question, appended when the question is done.

    Opening an existing file removes records with an ``error``, and lines that are incomplete or
    unreadable, for example after a power failure. The run then transforms their questions again.
    With *overwrite*, the file is emptied. To detect changes of the input, eight bytes per finished
    question stay in memory. Not thread-safe. Use `open_journal` to open a journal.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        self._path = path
        # With a random key, no one can construct two questions with the same digest.
        self._key = secrets.token_bytes(hashlib.blake2b.MAX_KEY_SIZE)
        self._digests = array("Q")
        self._far_digests: dict[int, int] = {}
        with _convert_write_errors(self._path):
            if not overwrite and self._load_digests():
                replace_file(
                    path, (line for line, digest in self._read_output_lines() if digest is not None)
                )
            self._descriptor = open_for_writing(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            if overwrite:
                # The descriptor is used, because the path may be a link by now.
                os.ftruncate(self._descriptor, 0)
            self._size = os.fstat(self._descriptor).st_size
            self._synced_at = monotonic()

    def has_result(self, query: InputQuery) -> bool:
        """Return whether the output already has a result for *query*.

        Raises `ConfigError` if the output has the result of another question for this input line.
        """
        line = query.line
        digest = (
            self._digests[line] if line < len(self._digests) else self._far_digests.get(line, 0)
        )
        if digest and digest != self._compute_question_digest(query.to_record()):
            raise _build_output_error(
                f"line {line} of the input is not the question that {self._path} holds for it: the"
                " output is of another input, or of one that has changed"
            )
        return digest > 0

    def append_record(self, record: Mapping[str, Any]) -> None:
        """Append *record* to the output file as one line.

        If the line cannot be written, raises `StoreError` and leaves the file unchanged.
        """
        data = json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        with _convert_write_errors(self._path):
            try:
                written = os.write(self._descriptor, data)
                # An almost full disk may take only a part of the data. The second write then
                # raises.
                if written < len(data):
                    os.write(self._descriptor, data[written:])
            except OSError:
                os.ftruncate(self._descriptor, self._size)
                raise
            self._size += len(data)
            if monotonic() - self._synced_at >= SYNC_SECONDS:
                self._sync_to_disk()

    def close(self) -> None:
        """Write all remaining data to the disk, and close the output file."""
        with _convert_write_errors(self._path):
            try:
                self._sync_to_disk()
            finally:
                os.close(self._descriptor)

    def _sync_to_disk(self) -> None:
        os.fsync(self._descriptor)
        self._synced_at = monotonic()

    def _load_digests(self) -> bool:
        """Load the digests of all finished questions from the output file.

        Returns ``True`` if the file has lines without a result, such as records with an ``error``.
        """
        is_whole = True
        size = self._path.stat().st_size if self._path.exists() else 0
        # A huge line number must not allocate much memory. The array is at most about as large as
        # the file, and digests of later lines are stored in a dictionary.
        array_lines = max(_NEAR_LINES, size // _LINE_BYTES)
        for _, numbered_digest in self._read_output_lines():
            if numbered_digest is None:
                is_whole = False
                continue
            line, digest = numbered_digest
            if line >= array_lines:
                self._far_digests[line] = digest
                continue
            if line >= len(self._digests):
                self._digests.frombytes(bytes(_LINE_BYTES * (line + 1 - len(self._digests))))
            self._digests[line] = digest
        return not is_whole

    def _read_output_lines(self) -> Iterator[tuple[bytes, tuple[int, int] | None]]:
        """Yield each line of the output file with its (input line number, digest) pair.

        The digest identifies the line's question. The pair is ``None`` if the line has no result.
        """
        try:
            file = open_regular_file(self._path, follow_link=False)
        except FileNotFoundError:
            return
        with file:
            for line in read_lines(file, _MOST_RECORD_BYTES):
                yield line or b"", self._parse_line_number_and_digest(line or b"")

    def _parse_line_number_and_digest(self, output_line: bytes) -> tuple[int, int] | None:
        try:
            record = json.loads(output_line) if output_line.endswith(b"\n") else None
            if not _is_finished_record(record):
                return None
            return record["line"], self._compute_question_digest(record)
        except (ValueError, RecursionError):
            return None

    def _compute_question_digest(self, record: Mapping[str, Any]) -> int:
        """Return a hash of the question in *record*, as a number above 0."""
        identity = json.dumps([record.get("id"), record["query"], record.get("history")])
        digest = hashlib.blake2b(identity.encode(), digest_size=_LINE_BYTES, key=self._key).digest()
        return int.from_bytes(digest) or 1


def count_lines(path: Path) -> int:
    """Return the number of lines in the file at *path*; 0 if the file cannot be read."""
    try:
        with open_regular_file(path, follow_link=False) as file:
            return sum(chunk.count(b"\n") for chunk in iter(partial(file.read, 1 << 20), b""))
    except OSError:
        return 0


@contextmanager
def open_journal(
    path: Path, fingerprint: Mapping[str, Any], *, overwrite: bool = False
) -> Iterator[Journal]:
    """Open the output file of a bulk run, and lock it until the end of the ``with`` block.

    The lock is on a second file, ``<path>.run``, which also stores the fingerprint. If the process
    ends for any reason, the operating system releases the lock.

    Args:
        path: The path of the output file.
        fingerprint: The settings and prompt versions that affect the transformations.
        overwrite: Whether to replace an existing output.

    Raises:
        ConfigError: If *path* is not a file. Without *overwrite*, also if other settings produced
            the output, or if ``<path>.run`` is missing.
        StoreError: If the output is in use or cannot be written.
    """
    with _convert_write_errors(path):
        refuse_link(path)
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a file; name another --out", path="--out")
    run_path = Path(f"{path}.run")
    if not overwrite and _has_content(path) and not run_path.exists():
        raise _build_output_error(
            f"{path} exists, but {run_path.name}, which records how it was made, is missing"
        )
    with closing(
        open_file(str(run_path), _RUN_FILE, timeout_seconds=0, is_exclusive=True)
    ) as connection:
        # Another run may have written to the output until this run took the lock.
        is_continued = not overwrite and _has_content(path)
        if is_continued:
            _check_fingerprint(path, _read_run_fingerprint(connection, run_path), fingerprint)
        with closing(Journal(path, overwrite=not is_continued)) as journal:
            # Stored only now: with the old output, a new fingerprint would be wrong.
            if not is_continued:
                _store_run_fingerprint(connection, run_path, fingerprint)
            yield journal


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _read_run_fingerprint(connection: sqlite3.Connection, run_path: Path) -> Mapping[str, Any]:
    with _convert_run_file_errors(run_path):
        with limit_value_size(connection, _MOST_FINGERPRINT_BYTES):
            row = connection.execute("SELECT value FROM meta WHERE key = 'fingerprint'").fetchone()
        return parse_fingerprint(row[0] if row else None)


def _store_run_fingerprint(
    connection: sqlite3.Connection, run_path: Path, fingerprint: Mapping[str, Any]
) -> None:
    with _convert_run_file_errors(run_path):
        connection.execute(
            "INSERT OR REPLACE INTO meta VALUES ('fingerprint', ?)", (json.dumps(fingerprint),)
        )


@contextmanager
def _convert_run_file_errors(run_path: Path) -> Iterator[None]:
    try:
        yield
    except (*FAILURES, ValueError) as error:
        reason = describe_sqlite_error(error)
        raise StoreError(f"{run_path} cannot be used ({reason}); {_RUN_FILE.remedy}") from None


def _check_fingerprint(
    path: Path, old_fingerprint: Mapping[str, Any], new_fingerprint: Mapping[str, Any]
) -> None:
    changes = list(describe_changes(old_fingerprint, new_fingerprint))
    if changes:
        raise _build_output_error(f"{path} was started with another config: {', '.join(changes)}")


def _build_output_error(reason: str) -> ConfigError:
    return ConfigError(
        f"{reason}; name another --out, or replace it with --overwrite", path="--out"
    )


@contextmanager
def _convert_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if error.errno == errno.ELOOP:
            raise StoreError(f"{path} cannot be written: {reason}") from error
        raise StoreError(
            f"{path} cannot be written: {reason}; its lines are complete: free some disk space, and"
            " run the same command to continue"
        ) from error


def _is_finished_record(record: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether *record*, a line of the output, contains the result of a question.

    Returns ``False`` for invalid records and for records with an ``error``.
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
