"""The Batch API of OpenAI, and of services that speak it, through OpenAI's own client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.bulk.batch.parts import ENDPOINT
from qtmiddleware.kit.bulk.batch.state import ENDED, read_batch
from qtmiddleware.providers.llms.openai.clients import Clients
from qtmiddleware.providers.llms.openai.requests import is_openai
from qtmiddleware.providers.openai_client import (
    is_async_client,
    is_vendor_client,
    read_client_error,
    read_host,
    status_of,
)
from qtmiddleware.runtime.files import open_document

MOST_LINE_BYTES: Final = 8 << 20
"""A line of an output file that is longer is none: a reply of a megabyte may take six where it is written as JSON."""
SHARE: Final = 0.5
"""What OpenAI charges of the price by batch (https://help.openai.com/en/articles/9197833-batch-api-faq)."""
RETRIES: Final = 5
"""How often the client repeats a call that is safe to repeat, after half a second and up to 8 s, or as it is told."""
WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before a batch whose making failed is looked for, and made again where it is not there."""
PAGE: Final = 100
"""Batches of one page of their list, the most the API gives."""
MOST_PAGES: Final = 50
TRANSIENT: Final = frozenset({"rate_limited", "unavailable", "timeout"})
"""The reasons of a `ModelError` after which a call may do better another time."""
_NO_API: Final = frozenset({404, 405, 501})


class BatchService:
    """The files and batches at ``llm.baseUrl`` of *settings*, or those of a *client*, an ``openai.OpenAI``.

    Calls that are safe to repeat are repeated where the service is busy or down. Raises
    `ModelError`, and `ConfigError` for a *client* that has no batches.
    """

    def __init__(self, settings: Settings, client: Any = None) -> None:
        if client is not None and (
            is_async_client(client) or not is_vendor_client(client, "chat.completions")
        ):
            raise ConfigError(
                f"{type(client).__name__} cannot be used with --batch; use an openai.OpenAI client,"
                " or no client and OPENAI_API_KEY",
                path="client",
            )
        self._clients = Clients(client, settings.llm.base_url)
        self._once = self._clients.sync()
        self._client = self._once.with_options(max_retries=RETRIES)
        self.address = str(self._client.base_url)
        self.host = read_host(self.address)

    @property
    def share(self) -> float | None:
        """What of the price one by one a batch costs; ``None`` where that is not known."""
        return SHARE if is_openai(self.host) else None

    def close(self) -> None:
        """Close the connections; a client that was given stays open."""
        self._clients.close()

    def upload(self, path: Path, name: str) -> str:
        """Upload the file at *path*, to be called *name*; returns its id there."""
        with self._explained("/files"), open_document(path, follow_link=False) as content:
            return str(self._client.files.create(file=(name, content), purpose="batch").id)

    def create(self, file: str, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Make the batch of *file*; one that was made already, though nobody heard of it, is found again.

        The client repeats nothing here: a batch may have been made by a call that failed.
        """
        for wait in (*WAITS, None):
            try:
                with self._explained("/batches"):
                    batch = self._once.batches.create(
                        completion_window="24h",
                        endpoint=ENDPOINT,
                        input_file_id=file,
                        metadata=dict(metadata),
                    )
                    return self._read(batch)
            except ModelError as error:
                if wait is None or error.reason not in TRANSIENT:
                    raise
                time.sleep(wait if error.retry_after is None else error.retry_after)
            if (found := self.find(file)) is not None:
                return found
        raise AssertionError  # the last round has returned or raised

    def find(self, file: str) -> dict[str, Any] | None:
        """The batch of the uploaded *file*, if there is one."""
        with self._explained("/batches"):
            page = self._client.batches.list(limit=PAGE)
            for _ in range(MOST_PAGES):
                for batch in page.data:
                    if batch.input_file_id == file:
                        return self._read(batch)
                if not page.data or not page.has_next_page():
                    break
                page = page.get_next_page()
        return None

    def find_file(self, name: str) -> str | None:
        """The id of a file that was uploaded as *name*, if the service lists it."""
        with self._explained("/files"):
            page = self._client.files.list(purpose="batch", limit=PAGE)
            return next((str(file.id) for file in page.data if file.filename == name), None)

    def retrieve(self, batch: str) -> dict[str, Any]:
        """What the service says of *batch* now."""
        with self._explained("/batches", of=batch):
            return self._read(self._client.batches.retrieve(batch))

    def cancel(self, batch: str) -> dict[str, Any]:
        """Stop *batch*; returns what is said of it then, as of one that had ended before."""
        now = self.retrieve(batch)
        if now.get("status") in ENDED:
            return now
        with self._explained("/batches", of=batch):
            return self._read(self._client.batches.cancel(batch))

    def read_lines(self, file: str, *, lines: int, size: int) -> Iterator[bytes]:
        """The lines of *file*, as they come; raises where it breaks off, but for a last line without an end.

        Raises `ModelError` (``too_long``) after so many *lines*, or *size* bytes: a file need not
        have an end.
        """
        with (
            self._explained("/files", of=file),
            self._client.files.with_streaming_response.content(file) as response,
        ):
            for number, line in enumerate(split_lines(limit_size(response.iter_bytes(), size))):
                if number == lines:
                    raise ModelError(
                        "too_long", f"it has more than {lines:,} lines, and the rest was not read"
                    )
                yield line

    def _read(self, batch: Any) -> dict[str, Any]:
        read = read_batch(batch.to_dict(mode="json", warnings=False))
        if not read:
            raise ModelError(
                "unparsable", f"the Batch API of {self.host} sent a batch without an id"
            )
        return read

    @contextmanager
    def _explained(self, path: str, *, of: str = "") -> Iterator[None]:
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            status = status_of(error)
            if status in _NO_API:
                what = f"knows no {of}: is this its key and project?" if of else "has no Batch API"
                raise ModelError(
                    "rejected", f"{self.host} {what} (HTTP {status} for {path})"
                ) from None
            raise read_client_error(
                error, f"the Batch API of {self.host}", timeout="the client's timeout"
            ) from None


def limit_size(chunks: Iterable[bytes], most: int) -> Iterator[bytes]:
    """*chunks* as they come; raises `ModelError` (``too_long``) where they are more than *most* bytes."""
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise ModelError(
                "too_long", f"it is larger than {most:,} bytes, and the rest was not read"
            )
        yield chunk


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of what comes in *chunks*; of one that is longer than `MOST_LINE_BYTES` only the beginning."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        rest = rest[: MOST_LINE_BYTES + 1]
    if rest:
        yield rest
