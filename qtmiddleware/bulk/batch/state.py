"""What was sent in batches and what came back, in a file that a killed process leaves whole."""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.sqlite.files import FAILURES, FileKind, describe_error, is_damage, open_file

# A request's "id" is a hash of its body. It is on its way while its part is not settled, and open where there is no
# reply to it and it is not on its way. "batch" is what the service last said of a part, as JSON.
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
        "CREATE TABLE requests (id TEXT PRIMARY KEY, part INTEGER NOT NULL REFERENCES parts) WITHOUT ROWID",
        "CREATE TABLE replies (id TEXT PRIMARY KEY, status INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID",
    ),
    subject="{path}, which keeps what was sent in batches,",
    busy="another command is at work with these batches; wait until it has ended",
    remedy="move it away, and everything is sent anew",
)

ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
"""The statuses of a batch that will not change any more."""


@dataclass(frozen=True, slots=True)
class Part:
    """One batch: its *number*, how many requests and bytes it has, and what the service last said of it (*batch*).

    *file* is the id of its uploaded file, ``None`` before that was seen to end; *batch* is empty before there was one.
    A *settled* part has ended, and what it brought is here.
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
        return str(self.batch.get("status") or "unknown") if self.batch else "not sent"

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
        errors = (self.batch.get("errors") or {}).get("data") or []
        return [": ".join(filter(None, (it.get("code"), it.get("message")))) for it in errors]

    def to_dict(self) -> dict[str, Any]:
        """What is known of it, as JSON takes it."""
        kept = ("id", "created_at", "expires_at", "output_file_id", "error_file_id")
        counts = {"requests": self.requests, "completed": self.completed, "failed": self.failed}
        about = {"part": self.number, "status": self.status, **counts, "bytes": self.size, "collected": self.settled}
        return {**about, "errors": self.errors, **{name: self.batch.get(name) for name in kept}}

    def _count(self, name: str) -> int:
        return (self.batch.get("request_counts") or {}).get(name) or 0


class BatchState:
    """The file at *path*, for one command at a time; *run* names it at the service. Thread-safe.

    Raises `StoreError` for whatever goes wrong with it, also where another command has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        facts = {"run": secrets.token_hex(8)}
        self._connection = open_file(str(path), STATE_FILE, timeout=0, exclusive=True, facts=facts)
        self.run = str(self.read_fact("run"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        with self._lock:
            self._connection.close()

    def read_fact(self, key: str) -> str | None:
        """What was kept as *key*, ``None`` where nothing was."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def keep_fact(self, key: str, value: str) -> None:
        """Keep *value* as *key*, in place of what was there."""
        self._rows("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def parts(self) -> list[Part]:
        """Every part, in the order they were sent."""
        rows = self._rows("SELECT number, requests, bytes, file, batch, settled FROM parts ORDER BY number")
        return [
            Part(number, requests, size, file, json.loads(batch or "{}"), settled=bool(settled))
            for number, requests, size, file, batch, settled in rows
        ]

    def add_part(self, ids: Sequence[str], size: int) -> Part:
        """Add a part of the requests *ids*, of *size* bytes; they are on their way from here on."""
        with self._transaction():
            insert = "INSERT INTO parts (requests, bytes) VALUES (?, ?) RETURNING number"
            number: int = self._rows(insert, (len(ids), size))[0][0]
            self._connection.executemany(
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
        statement = "SELECT 1 FROM requests JOIN parts ON part = number WHERE id = ? AND NOT settled"
        return bool(self._rows(statement, (id_,)))

    def is_known(self, id_: str) -> bool:
        """Whether a request *id_* was ever sent."""
        return bool(self._rows("SELECT 1 FROM requests WHERE id = ?", (id_,)))

    def add_replies(self, replies: Iterable[tuple[str, int, Any]]) -> None:
        """Keep *replies*, each an id, an HTTP status and a body; one that is there stays as it is."""
        # In ASCII, as no text of SQLite's holds half a character.
        rows = ((id_, status, json.dumps(body)) for id_, status, body in replies)
        with self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", rows)

    def find_reply(self, id_: str) -> tuple[int, str] | None:
        """The status and body, as JSON, of the reply to the request *id_*; ``None`` where there is none yet."""
        rows = self._rows("SELECT status, body FROM replies WHERE id = ?", (id_,))
        return rows[0] if rows else None

    def sum_tokens(self) -> tuple[int, int]:
        """How many tokens the service says it read and wrote."""
        names = ("prompt_tokens", "completion_tokens")
        sums = ", ".join(f"total(json_extract(body, '$.usage.{name}'))" for name in names)
        read, written = self._rows(f"SELECT {sums} FROM replies")[0]
        return int(read), int(written)

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._use() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All that is written inside, or nothing."""
        with self._use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
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
