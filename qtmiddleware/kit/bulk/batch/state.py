"""What was sent in batches and what came back, in a file that a killed process leaves whole."""

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
from qtmiddleware.kit.bulk.batch.parts import Read
from qtmiddleware.kit.stores.sqlite.files import (
    FAILURES,
    FileKind,
    describe_error,
    is_damage,
    open_file,
)
from qtmiddleware.providers.llms.openai.replies import count_tokens
from qtmiddleware.runtime.budget import MOST_TOKENS

# A request's "id" is a hash of its body. It is on its way while its part is not settled, and open
# where there is no reply to it and it is not on its way. "batch" is what the service last said of a
# part, as JSON.
STATE_FILE: Final = FileKind(
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
"""A longer value in the file was written by nobody here: a reply has at most 8 MB, and three times that in ASCII."""
_MOST_ID: Final = 200
_MOST_MESSAGE: Final = 300
_MOST_ERRORS: Final = 100
_MOST_COUNT: Final = 10**12
_RUN: Final = re.compile("[0-9a-f]{16}")

ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
"""The statuses of a batch that will not change any more."""


@dataclass(frozen=True, slots=True)
class Part:
    """One batch: its *number*, how many requests and bytes it has, and what the service last said of it (*batch*).

    *file* is the id of its uploaded file, ``None`` before that was seen to end; *batch* is empty
    before there was one. A *settled* part has ended, and what it brought is here.
    """

    number: int
    requests: int
    size: int
    file: str | None
    batch: Mapping[str, Any]
    settled: bool

    @property
    def status(self) -> str:
        """The batch's status, ``"not sent"`` where there is none yet."""
        status: str = self.batch.get("status", "unknown") if self.batch else "not sent"
        return status

    @property
    def completed(self) -> int:
        """How many of its requests are answered, as far as the service says."""
        return self._count("completed")

    @property
    def failed(self) -> int:
        """How many of its requests have failed, as far as the service says."""
        return self._count("failed")

    @property
    def errors(self) -> list[str]:
        """Why the whole of it was not taken: the service's codes and words."""
        errors: list[dict[str, str]] = self.batch.get("errors", {}).get("data", [])
        return [": ".join(filter(None, (it.get("code"), it.get("message")))) for it in errors]

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, as JSON takes it."""
        kept = ("id", "created_at", "expires_at", "output_file_id", "error_file_id")
        counts = {"requests": self.requests, "completed": self.completed, "failed": self.failed}
        about = {
            "part": self.number,
            "status": self.status,
            **counts,
            "bytes": self.size,
            "collected": self.settled,
        }
        return {**about, "errors": self.errors, **{name: self.batch.get(name) for name in kept}}

    def _count(self, name: str) -> int:
        count: int = self.batch.get("request_counts", {}).get(name, 0)
        return count


def read_batch(said: Any) -> dict[str, Any]:
    """Return what is used of a batch that a service describes; empty where it has no id.

    What is of another type than the API documents is left out, and texts are cut.
    """
    found = said if isinstance(said, Mapping) else {}
    texts = ("id", "status", "input_file_id", "output_file_id", "error_file_id")
    batch: dict[str, Any] = {name: found[name] for name in texts if _is_name(found.get(name))}
    batch |= {
        name: found[name] for name in ("created_at", "expires_at") if _is_time(found.get(name))
    }
    counts = found.get("request_counts")
    if isinstance(counts, Mapping):
        names = ("total", "completed", "failed")
        batch["request_counts"] = {
            name: counts[name] for name in names if _is_count(counts.get(name))
        }
    errors = found.get("errors")
    listed = errors.get("data") if isinstance(errors, Mapping) else None
    if isinstance(listed, list):
        read = (_read_error(it) for it in listed[:_MOST_ERRORS] if isinstance(it, Mapping))
        batch["errors"] = {"data": [it for it in read if it]}
    return batch if "id" in batch else {}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_ID


def _is_count(value: Any) -> bool:
    return _is_whole(value) and value <= _MOST_COUNT


def _is_time(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_COUNT
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_error(error: Mapping[Any, Any]) -> dict[str, str]:
    texts = {name: error[name] for name in ("code", "message") if isinstance(error.get(name), str)}
    return {
        name: it if len(it) <= _MOST_MESSAGE else f"{it[:_MOST_MESSAGE]}..."
        for name, it in texts.items()
    }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the service says it *read* and *wrote*, and how many replies it said nothing of (*uncounted*)."""

    read: int = 0
    written: int = 0
    uncounted: int = 0

    def add(self, status: int, body: str) -> Usage:
        """The same with a reply, read as one that comes live."""
        try:
            read, written = count_tokens(json.loads(body))
        except (ValueError, RecursionError):
            read = written = 0
        if 0 < read + written <= MOST_TOKENS:
            return Usage(self.read + read, self.written + written, self.uncounted)
        return Usage(self.read, self.written, self.uncounted + (status < 400))


class BatchState:
    """The file at *path*, for one command at a time; *run* names it at the service. Thread-safe.

    Raises `StoreError` for whatever goes wrong with it, also where another command has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        facts = {"run": secrets.token_hex(8)}
        self._connection = open_file(str(path), STATE_FILE, timeout=0, exclusive=True, facts=facts)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
        self.run = self.read_fact("run") or ""
        if not _RUN.fullmatch(self.run):
            self.close()
            raise self.refuse("its name is damaged")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()

    def refuse(self, why: str) -> StoreError:
        """The error for a file that cannot be used."""
        return StoreError(f"{self.path} cannot be used ({why}); {STATE_FILE.remedy}")

    def read_fact(self, key: str) -> str | None:
        """What was kept as *key*, ``None`` where nothing was."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def keep_fact(self, key: str, value: str) -> None:
        """Keep *value* as *key*, in place of what was there."""
        self._rows("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def parts(self) -> list[Part]:
        """Every part, in the order they were sent."""
        rows = self._rows(
            "SELECT number, requests, bytes, file, batch, settled FROM parts ORDER BY number"
        )
        return [self._read_part(*row) for row in rows]

    def _read_part(
        self, number: Any, requests: Any, size: Any, file: Any, batch: Any, settled: Any
    ) -> Part:
        try:
            said = read_batch(json.loads(batch)) if isinstance(batch, str) else {}
        except (ValueError, RecursionError):
            said = {}
        is_read = all(map(_is_count, (number, requests, size))) and (file is None or _is_name(file))
        if not is_read or (batch is not None and not said):
            raise self.refuse("a part of it is damaged")
        return Part(number, requests, size, file, said, settled=bool(settled))

    def add_part(self, ids: Sequence[str], size: int) -> Part:
        """Add a part of the requests *ids*, of *size* bytes; they are on their way from here on."""
        with self._transaction() as connection:
            insert = "INSERT INTO parts (requests, bytes) VALUES (?, ?) RETURNING number"
            number: int = self._rows(insert, (len(ids), size))[0][0]
            connection.executemany(
                "INSERT OR REPLACE INTO requests VALUES (?, ?)", ((id_, number) for id_ in ids)
            )
        return Part(number, len(ids), size, None, {}, settled=False)

    def set_file(self, part: Part, file: str) -> None:
        """Remember the id of the uploaded *file* of *part*."""
        self._rows("UPDATE parts SET file = ? WHERE number = ?", (file, part.number))

    def set_batch(self, part: Part, batch: Mapping[str, Any]) -> None:
        """Remember what the service says of *part*."""
        self._rows("UPDATE parts SET batch = ? WHERE number = ?", (json.dumps(batch), part.number))

    def settle(self, part: Part) -> None:
        """All that *part* will bring is here: what it did not answer is open again."""
        self._rows("UPDATE parts SET settled = 1 WHERE number = ?", (part.number,))

    def is_sent(self, id_: str) -> bool:
        """Whether the request *id_* is on its way."""
        statement = (
            "SELECT 1 FROM requests JOIN parts ON part = number WHERE id = ? AND NOT settled"
        )
        return bool(self._rows(statement, (id_,)))

    def is_known(self, id_: str) -> bool:
        """Whether a request *id_* was ever sent."""
        return bool(self._rows("SELECT 1 FROM requests WHERE id = ?", (id_,)))

    def add_replies(self, replies: Iterable[Read]) -> None:
        """Keep *replies*, and count their tokens; one that is there stays as it is."""
        usage = self.sum_usage()
        with self._transaction() as connection:
            for reply in replies:
                row = (reply.id, reply.status or 0, reply.body)
                if connection.execute(
                    "INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", row
                ).rowcount:
                    usage = usage.add(row[1], reply.body)
            self.keep_fact("usage", json.dumps(astuple(usage)))

    def find_reply(self, id_: str) -> tuple[int, str] | None:
        """The status and body, as JSON, of the reply to the request *id_*; ``None`` where there is none yet."""
        rows = self._rows("SELECT status, body FROM replies WHERE id = ?", (id_,))
        if not rows:
            return None
        status, body = rows[0]
        if not isinstance(status, int) or not isinstance(body, str):
            raise self.refuse("a reply in it is damaged")
        return status, body

    def sum_usage(self) -> Usage:
        """What the service says it read and wrote for the replies so far."""
        try:
            counts = json.loads(self.read_fact("usage") or "null")
        except (ValueError, RecursionError):
            counts = None
        if (
            isinstance(counts, list)
            and len(counts) == len(fields(Usage))
            and all(map(_is_whole, counts))
        ):
            return Usage(*counts)
        # Files of before this was kept.
        usage = Usage()
        with self._use() as connection:
            for status, body in connection.execute("SELECT status, body FROM replies"):
                if isinstance(status, int) and isinstance(body, str):
                    usage = usage.add(status, body)
        return usage

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._use() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing."""
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._connection
            except FAILURES as error:
                # The cause may quote a text of the file.
                cause = None if is_damage(error) else error
                raise StoreError(
                    f"{STATE_FILE.subject.format(path=self.path)} failed: {describe_error(error)}"
                ) from cause
