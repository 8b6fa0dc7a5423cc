"""Store the requests and replies of batches in an SQLite file."""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.bulk.batch.parts import RequestResult
from qtmiddleware.kit.stores.sqlite.files import (
    FAILURES,
    FileType,
    describe_sqlite_error,
    is_damage_error,
    open_file,
)
from qtmiddleware.providers.llms.openai.replies import read_token_counts
from qtmiddleware.runtime.budget import MOST_TOKENS

# A request's "id" is a hash of its body. A request is in progress while its part is not settled. It
# is open if it has no reply and is not in progress. "batch" is the service's last description of a
# part, as JSON.
STATE_FILE: Final = FileType(
    application_id=0x71746D70,  # "qtmp" in ASCII
    version=1,
    statements=(
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
        """CREATE TABLE parts (
            number INTEGER PRIMARY KEY,
            requests INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            file TEXT,
            batch TEXT,
            settled INTEGER NOT NULL DEFAULT 0
        )""",
        (
            "CREATE TABLE requests (id TEXT PRIMARY KEY, part INTEGER NOT NULL REFERENCES parts)"
            " WITHOUT ROWID"
        ),
        (
            "CREATE TABLE replies (id TEXT PRIMARY KEY, status INTEGER NOT NULL, body TEXT NOT"
            " NULL) WITHOUT ROWID"
        ),
    ),
    subject="{path}, the record of the batches,",
    busy="another command is working with these batches; wait until it ends",
    remedy="move the file away to send everything again",
)

MOST_VALUE_BYTES: Final = 64 << 20
"""The maximum size of a value in the file, in bytes.

A reply has at most 8 MB, or three times as much if all characters are escaped in ASCII.
"""
_MOST_ID: Final = 200
_MOST_MESSAGE: Final = 300
_MOST_ERRORS: Final = 100
_MOST_COUNT: Final = 10**12
_RUN: Final = re.compile("[0-9a-f]{16}")

ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
"""The final statuses of a batch, which do not change any more."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of all requests, with one batch and one request file.

    Attributes:
        number: The part's number, which identifies it in the state file.
        requests: The number of requests in the part.
        size: The size of the request file in bytes.
        file: The id of the uploaded request file; ``None`` until the upload has succeeded.
        batch: The service's last description of the batch; empty until the batch is created.
        settled: Whether the part is finished, because its replies are stored, or because its batch
            could not be created.
    """

    number: int
    requests: int
    size: int
    file: str | None
    batch: Mapping[str, Any]
    settled: bool

    @property
    def status(self) -> str:
        """The batch's status, such as ``"completed"``; ``"not sent"`` if there is no batch yet."""
        status: str = self.batch.get("status", "unknown") if self.batch else "not sent"
        return status

    @property
    def completed(self) -> int:
        """The number of answered requests, according to the service."""
        return self._read_request_count("completed")

    @property
    def failed(self) -> int:
        """The number of failed requests, according to the service."""
        return self._read_request_count("failed")

    @property
    def errors(self) -> list[str]:
        """The service's reasons for rejecting the whole batch, each as ``code: message``."""
        errors: list[dict[str, str]] = self.batch.get("errors", {}).get("data", [])
        return [
            ": ".join(filter(None, (error.get("code"), error.get("message")))) for error in errors
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return this part's counts, status and errors as JSON values."""
        names = ("id", "created_at", "expires_at", "output_file_id", "error_file_id")
        counts = {"requests": self.requests, "completed": self.completed, "failed": self.failed}
        facts = {
            "part": self.number,
            "status": self.status,
            **counts,
            "bytes": self.size,
            "collected": self.settled,
        }
        return {**facts, "errors": self.errors, **{name: self.batch.get(name) for name in names}}

    def _read_request_count(self, request_status: str) -> int:
        count: int = self.batch.get("request_counts", {}).get(request_status, 0)
        return count


def parse_batch_description(description: Any) -> dict[str, Any]:
    """Return the valid fields of *description*, which the service sent for a batch.

    Drops values of undocumented types, and truncates long error messages. The result is empty if
    *description* has no id.
    """
    raw = description if isinstance(description, Mapping) else {}
    texts = ("id", "status", "input_file_id", "output_file_id", "error_file_id")
    batch: dict[str, Any] = {
        name: raw[name] for name in texts if _is_valid_short_text(raw.get(name))
    }
    batch |= {
        name: raw[name]
        for name in ("created_at", "expires_at")
        if _is_valid_timestamp(raw.get(name))
    }
    counts = raw.get("request_counts")
    if isinstance(counts, Mapping):
        names = ("total", "completed", "failed")
        batch["request_counts"] = {
            name: counts[name] for name in names if _is_valid_count(counts.get(name))
        }
    errors = raw.get("errors")
    error_list = errors.get("data") if isinstance(errors, Mapping) else None
    if isinstance(error_list, list):
        checked_errors = (
            _parse_batch_error(error)
            for error in error_list[:_MOST_ERRORS]
            if isinstance(error, Mapping)
        )
        batch["errors"] = {"data": [error for error in checked_errors if error]}
    return batch if "id" in batch else {}


def _is_valid_short_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_ID


def _is_valid_count(value: Any) -> bool:
    return _is_whole_number(value) and value <= _MOST_COUNT


def _is_valid_timestamp(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT
    )


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parse_batch_error(error: Mapping[Any, Any]) -> dict[str, str]:
    texts = {name: error[name] for name in ("code", "message") if isinstance(error.get(name), str)}
    return {
        name: text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}..."
        for name, text in texts.items()
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of replies, as reported by the service.

    Attributes:
        read: The number of input tokens.
        written: The number of output tokens.
        uncounted: The number of replies without a token count.
    """

    read: int = 0
    written: int = 0
    uncounted: int = 0

    def add_reply(self, status: int, body: str) -> Usage:
        """Return a new `Usage` that also counts the tokens of one more reply.

        A reply without token counts increases `uncounted`, unless its request failed. *status* is
        the reply's HTTP status, and *body* is its JSON text.
        """
        try:
            read, written = read_token_counts(json.loads(body))
        except (ValueError, RecursionError):
            read = written = 0
        if 0 < read + written <= MOST_TOKENS:
            return Usage(self.read + read, self.written + written, self.uncounted)
        # A failed request costs nothing.
        return Usage(self.read, self.written, self.uncounted + (status < 400))


class BatchState:
    """The SQLite file at *path* that stores the requests and replies of batches.

    Only one command at a time can open the file. Raises `StoreError` if the file is in use or
    damaged. Thread-safe.

    Attributes:
        path: The path of the file.
        run: A random name, which the files and batches at the service carry.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        meta_values = {"run": secrets.token_hex(8)}
        self._connection = open_file(
            str(path), STATE_FILE, timeout_seconds=0, is_exclusive=True, meta_values=meta_values
        )
        # A value in a damaged file must not fill the memory.
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        self.run = self.read_state_value("run") or ""
        # The name is part of file names at the service.
        if not _RUN.fullmatch(self.run):
            self.close()
            raise self.build_file_error("its name is damaged")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the state file; you can call this more than once."""
        with self._lock:
            self._connection.close()

    def build_file_error(self, reason: str) -> StoreError:
        """Return the error to raise if this file cannot be used, with *reason* as the cause."""
        return StoreError(f"{self.path} cannot be used ({reason}); {STATE_FILE.remedy}")

    def read_state_value(self, key: str) -> str | None:
        """Return the value stored under *key*; ``None`` if nothing is stored under it."""
        rows = self._execute_statement("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def store_state_value(self, key: str, value: str) -> None:
        """Store *value* under *key*, replacing any earlier value."""
        self._execute_statement("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def list_parts(self) -> list[Part]:
        """Return all parts, the oldest first."""
        rows = self._execute_statement(
            "SELECT number, requests, bytes, file, batch, settled FROM parts ORDER BY number"
        )
        return [self._build_part(*row) for row in rows]

    def _build_part(
        self,
        number: Any,
        request_count: Any,
        size: Any,
        file_id: Any,
        batch_json: Any,
        is_settled: Any,
    ) -> Part:
        # The file may be damaged, so any column may have any value.
        try:
            description = (
                parse_batch_description(json.loads(batch_json))
                if isinstance(batch_json, str)
                else {}
            )
        except (ValueError, RecursionError):
            description = {}
        is_valid = all(map(_is_valid_count, (number, request_count, size))) and (
            file_id is None or _is_valid_short_text(file_id)
        )
        if not is_valid or (batch_json is not None and not description):
            raise self.build_file_error("a part of it is damaged")
        return Part(number, request_count, size, file_id, description, settled=bool(is_settled))

    def add_part(self, request_ids: Sequence[str], file_bytes: int) -> Part:
        """Store and return a new part, which consists of a batch and its request file.

        From now on, the part's requests count as sent.

        Args:
            request_ids: The ids of the requests.
            file_bytes: The size of the request file in bytes.
        """
        with self._open_transaction() as connection:
            insert = "INSERT INTO parts (requests, bytes) VALUES (?, ?) RETURNING number"
            number: int = self._execute_statement(insert, (len(request_ids), file_bytes))[0][0]
            # A request that got no reply in an earlier part now belongs to this part.
            connection.executemany(
                "INSERT OR REPLACE INTO requests VALUES (?, ?)",
                ((id_, number) for id_ in request_ids),
            )
        return Part(number, len(request_ids), file_bytes, None, {}, settled=False)

    def store_file_id(self, part: Part, file_id: str) -> None:
        """Store the id of the uploaded file of *part*."""
        self._execute_statement(
            "UPDATE parts SET file = ? WHERE number = ?", (file_id, part.number)
        )

    def store_batch(self, part: Part, batch: Mapping[str, Any]) -> None:
        """Store *batch*, the service's description of the batch of *part*."""
        self._execute_statement(
            "UPDATE parts SET batch = ? WHERE number = ?", (json.dumps(batch), part.number)
        )

    def settle_part(self, part: Part) -> None:
        """Mark *part* as finished: its replies are stored, or its batch could not be created.

        The part's requests without a reply no longer count as sent, so they can be sent again.
        """
        self._execute_statement("UPDATE parts SET settled = 1 WHERE number = ?", (part.number,))

    def is_request_sent(self, request_id: str) -> bool:
        """Return whether a part that is not finished yet contains this request."""
        statement = (
            "SELECT 1 FROM requests JOIN parts ON part = number WHERE id = ? AND NOT settled"
        )
        return bool(self._execute_statement(statement, (request_id,)))

    def is_request_known(self, request_id: str) -> bool:
        """Return whether the request *request_id* was ever added to a part."""
        return bool(self._execute_statement("SELECT 1 FROM requests WHERE id = ?", (request_id,)))

    def add_replies(self, replies: Iterable[RequestResult]) -> None:
        """Store the *replies* that are not stored yet, and add their tokens to the total."""
        usage = self.sum_usage()
        with self._open_transaction() as connection:
            for reply in replies:
                row = (reply.id, reply.status or 0, reply.body)
                # A repeated download has replies that are stored already. Their tokens must not
                # count twice.
                if connection.execute(
                    "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", row
                ).rowcount:
                    usage = usage.add_reply(row[1], reply.body)
            self.store_state_value("usage", json.dumps(astuple(usage)))

    def find_reply_status_and_body(self, request_id: str) -> tuple[int, str] | None:
        """Return the stored reply to a request, as its HTTP status and its JSON body.

        Returns ``None`` if there is no reply yet.
        """
        rows = self._execute_statement(
            "SELECT status, body FROM replies WHERE id = ?", (request_id,)
        )
        if not rows:
            return None
        status, body = rows[0]
        if not isinstance(status, int) or not isinstance(body, str):
            raise self.build_file_error("a reply in it is damaged")
        return status, body

    def sum_usage(self) -> Usage:
        """Return the token counts of all stored replies, as reported by the service."""
        try:
            counts = json.loads(self.read_state_value("usage") or "null")
        except (ValueError, RecursionError):
            counts = None
        if (
            isinstance(counts, list)
            and len(counts) == len(fields(Usage))
            and all(map(_is_whole_number, counts))
        ):
            return Usage(*counts)
        # Files of earlier versions do not store the sum.
        usage = Usage()
        with self._use_connection() as connection:
            for status, body in connection.execute("SELECT status, body FROM replies"):
                if isinstance(status, int) and isinstance(body, str):
                    usage = usage.add_reply(status, body)
        return usage

    def _execute_statement(
        self, statement: str, sql_values: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        with self._use_connection() as connection:
            return connection.execute(statement, sql_values).fetchall()

    @contextmanager
    def _open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Save all changes of the ``with`` block at its end, or no change if the block raises."""
        with self._use_connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _use_connection(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except FAILURES as error:
                # The cause of damage may quote a text of the file.
                cause = None if is_damage_error(error) else error
                raise StoreError(
                    f"{STATE_FILE.subject.format(path=self.path)} failed:"
                    f" {describe_sqlite_error(error)}"
                ) from cause
