"""Call the Batch API of OpenAI, or of services with the same API, through OpenAI's client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.bulk.batch.parts import ENDPOINT
from qtmiddleware.kit.bulk.batch.state import ENDED, parse_batch_description
from qtmiddleware.providers.llms.openai.clients import Clients
from qtmiddleware.providers.llms.openai.requests import is_openai_host
from qtmiddleware.providers.openai_client import (
    convert_client_error,
    is_async_client,
    is_vendor_client,
    read_host,
    read_status,
)
from qtmiddleware.runtime.files import open_regular_file

MOST_LINE_BYTES: Final = 8 << 20
"""The maximum size of a line in an output file, in bytes.

In JSON, a reply of 1 MB may need 6 MB.
"""
SHARE: Final = 0.5
"""OpenAI's batch price as a fraction of the normal price.

Source: https://help.openai.com/en/articles/9197833-batch-api-faq
"""
RETRIES: Final = 5
"""How often the client retries a call that is safe to repeat.

The client waits half a second at first and at most 8 seconds, or as long as the service says.
"""
WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""The seconds to wait after each failed attempt to create a batch, before the next attempt."""
PAGE: Final = 100
"""The number of batches per page of a list, which is the maximum of the API."""
MOST_PAGES: Final = 50
TRANSIENT: Final = frozenset({"rate_limited", "unavailable", "timeout"})
"""The reasons of a `ModelError` after which a retry may succeed."""
_NO_API: Final = frozenset({404, 405, 501})


class BatchService:
    """Calls the Batch API of OpenAI, or of a service with the same API.

    Uses *client*, an ``openai.OpenAI``. Without a *client*, calls the URL in the setting
    ``llm.baseUrl``. If the service is busy or down, retries the calls that are safe to repeat.
    Methods raise `ModelError`. The constructor raises `ConfigError` if *client* cannot be used for
    batches.
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
        # This client does not retry, because a retry could create a batch twice.
        self._client_without_retries = self._clients.get_sync_client()
        self._client = self._client_without_retries.with_options(max_retries=RETRIES)
        self.address = str(self._client.base_url)
        self.host = read_host(self.address)

    @property
    def price_factor(self) -> float | None:
        """The batch price as a fraction of the normal price; ``None`` if unknown."""
        return SHARE if is_openai_host(self.host) else None

    def close(self) -> None:
        """Close the connections to the service. A client that you passed in stays open."""
        self._clients.close()

    def upload_file(self, path: Path, file_name: str) -> str:
        """Upload the file at *path* under *file_name*, and return the id of the uploaded file."""
        with (
            self._convert_client_errors("/files"),
            open_regular_file(path, follow_link=False) as content,
        ):
            return str(self._client.files.create(file=(file_name, content), purpose="batch").id)

    def create_batch(self, file_id: str, metadata: Mapping[str, str]) -> dict[str, Any]:
        """Create a batch from the uploaded file *file_id*, and return the batch's description.

        If the service is busy or down, retries the call, unless the failed call has created the
        batch.
        """
        for wait in (*WAITS, None):
            try:
                with self._convert_client_errors("/batches"):
                    batch = self._client_without_retries.batches.create(
                        completion_window="24h",
                        endpoint=ENDPOINT,
                        input_file_id=file_id,
                        metadata=dict(metadata),
                    )
                    return self._build_batch_description(batch)
            except ModelError as error:
                if wait is None or error.reason not in TRANSIENT:
                    raise
                time.sleep(wait if error.retry_after is None else error.retry_after)
            # The batch may exist although the call failed, for example after a timeout.
            if (earlier_batch := self.find_batch(file_id)) is not None:
                return earlier_batch
        raise AssertionError  # the last round has returned or raised

    def find_batch(self, file_id: str) -> dict[str, Any] | None:
        """Return the description of the batch that was created from the uploaded file *file_id*.

        Returns ``None`` if there is no such batch.
        """
        with self._convert_client_errors("/batches"):
            page = self._client.batches.list(limit=PAGE)
            for _ in range(MOST_PAGES):
                for batch in page.data:
                    if batch.input_file_id == file_id:
                        return self._build_batch_description(batch)
                if not page.data or not page.has_next_page():
                    break
                page = page.get_next_page()
        return None

    def find_file(self, file_name: str) -> str | None:
        """Return the id of the file uploaded under *file_name*; ``None`` if there is none."""
        with self._convert_client_errors("/files"):
            page = self._client.files.list(purpose="batch", limit=PAGE)
            return next((str(file.id) for file in page.data if file.filename == file_name), None)

    def retrieve_batch(self, batch_id: str) -> dict[str, Any]:
        """Return the service's current description of the batch *batch_id*."""
        with self._convert_client_errors("/batches", resource_id=batch_id):
            return self._build_batch_description(self._client.batches.retrieve(batch_id))

    def cancel_batch(self, batch_id: str) -> dict[str, Any]:
        """Cancel the batch *batch_id*, unless it has ended, and return the batch's description."""
        description = self.retrieve_batch(batch_id)
        if description.get("status") in ENDED:
            return description
        with self._convert_client_errors("/batches", resource_id=batch_id):
            return self._build_batch_description(self._client.batches.cancel(batch_id))

    def download_lines(self, file_id: str, *, lines: int, size: int) -> Iterator[bytes]:
        """Download the file *file_id*, and yield each line as it arrives.

        *lines* is the maximum number of lines, and *size* the maximum size in bytes. Raises
        `ModelError` if the file is larger (reason ``too_long``) or the download fails.
        """
        # A faulty service may send an endless file.
        with (
            self._convert_client_errors("/files", resource_id=file_id),
            self._client.files.with_streaming_response.content(file_id) as response,
        ):
            for number, line in enumerate(
                split_lines(limit_total_bytes(response.iter_bytes(), size))
            ):
                if number == lines:
                    raise ModelError(
                        "too_long", f"it has more than {lines:,} lines, and the rest was not read"
                    )
                yield line

    def _build_batch_description(self, batch: Any) -> dict[str, Any]:
        # Services with the same API may send values of other types, which the parser drops.
        description = parse_batch_description(batch.to_dict(mode="json", warnings=False))
        if not description:
            raise ModelError(
                "unparsable", f"the Batch API of {self.host} sent a batch without an id"
            )
        return description

    @contextmanager
    def _convert_client_errors(self, url_path: str, *, resource_id: str = "") -> Iterator[None]:
        try:
            yield
        except ModelError:
            raise
        except Exception as error:
            status = read_status(error)
            if status in _NO_API:
                problem = (
                    f"knows no {resource_id}: is this its key and project?"
                    if resource_id
                    else "has no Batch API"
                )
                raise ModelError(
                    "rejected", f"{self.host} {problem} (HTTP {status} for {url_path})"
                ) from None
            raise convert_client_error(
                error, f"the Batch API of {self.host}", timeout="the client's timeout"
            ) from None


def limit_total_bytes(chunks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    """Yield *chunks* until their total size exceeds *max_bytes*.

    At the first chunk beyond this limit, raises `ModelError` (``too_long``).
    """
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise ModelError(
                "too_long", f"it is larger than {max_bytes:,} bytes, and the rest was not read"
            )
        yield chunk


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Join *chunks*, split the result into lines, and yield the lines without line breaks.

    Lines that are much longer than `MOST_LINE_BYTES` are truncated.
    """
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        rest = rest[: MOST_LINE_BYTES + 1]
    if rest:
        yield rest
