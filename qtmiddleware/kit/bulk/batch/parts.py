"""Build the lines of batches' request files, and parse the lines of their result files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.errors import ConfigError

ENDPOINT: Final = "/v1/chat/completions"
MOST_REQUESTS: Final = 50_000
"""The maximum number of requests in a batch.

Source: https://developers.openai.com/api/reference/resources/batches/methods/create
"""
MOST_BYTES: Final = 200_000_000
"""The maximum size of a batch's request file in bytes: 200 MB.

Source: https://developers.openai.com/api/reference/resources/batches/methods/create
"""


# These statuses mean that the request itself is wrong. Other causes can be fixed, such as a missing
# permission for a model.
_REFUSED: Final = frozenset({400, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request file, which contains all requests of one batch.

    Attributes:
        requests: The maximum number of requests.
        size: The maximum size in bytes.
    """

    requests: int = MOST_REQUESTS
    size: int = MOST_BYTES


LIMITS: Final = Limits()


def is_transient_status(status: int | None) -> bool:
    """Return whether a request with the HTTP *status* may succeed if it is repeated.

    True if *status* is ``None``, because the service did not run the request. False if the request
    succeeded or is itself wrong.
    """
    return status is None or (status >= 400 and status not in _REFUSED)


Line = tuple[str, bytes]
"""The ``custom_id`` of a request, and its line in a request file, with the line break."""


def build_request_line(request_id: str, request: Mapping[str, Any]) -> Line:
    """Return a pair: *request_id*, and the line for *request* in a batch's request file."""
    line = {"custom_id": request_id, "method": "POST", "url": ENDPOINT, "body": request}
    # A lone surrogate stays escaped as in JSON, because UTF-8 cannot encode it.
    return request_id, json.dumps(line, ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    ) + b"\n"


@dataclass(frozen=True, slots=True)
class RequestResult:
    """The result of one request, read from a batch's output or error file.

    Attributes:
        id: The id that the request has in its batch.
        status: The HTTP status; ``None`` if the service did not run the request, for example
            because the batch expired.
        body: The body of the response, as JSON text.
        failure: The failure, such as ``HTTP 400`` or ``batch_expired``; ``""`` if there is none.
    """

    id: str
    status: int | None
    body: str
    failure: str

    @property
    def is_final(self) -> bool:
        """Whether it is useless to repeat the request, because it succeeded or is itself wrong.

        False if the service did not run the request, or was busy.
        """
        return not is_transient_status(self.status)


def parse_result_line(line: bytes) -> RequestResult | None:
    """Return the request's result in a *line* of a batch's output or error file.

    Returns ``None`` if the line is invalid.
    """
    try:
        return _parse_result_entry(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _parse_result_entry(entry: Any) -> RequestResult | None:
    if not isinstance(entry, dict) or not isinstance(id_ := entry.get("custom_id"), str):
        return None
    response, error = entry.get("response"), entry.get("error")
    status = response.get("status_code") if isinstance(response, dict) else None
    if (
        isinstance(response, dict)
        and isinstance(status, int)
        and not isinstance(status, bool)
        and 0 <= status < 1_000
    ):
        return RequestResult(
            id_, status, json.dumps(response.get("body")), "" if status < 400 else f"HTTP {status}"
        )
    code = error.get("code") if isinstance(error, dict) else None
    # An error's message may quote texts of the request, but its code does not.
    if isinstance(code, str) and code.isidentifier() and len(code) <= 40:
        return RequestResult(id_, None, "null", code)
    return RequestResult(id_, None, "null", "no response")


def assign_file_numbers(lines: Iterable[Line], limits: Limits) -> Iterator[tuple[int, Line]]:
    """Divide *lines* among files that do not exceed *limits*; yield (file number, line) pairs.

    Keeps the order of the lines. File numbers begin at 0. Raises `ConfigError` for a line that is
    too large for a file.
    """
    number = count = size = 0
    for line in lines:
        length = len(line[1])
        if length > limits.size:
            raise ConfigError(
                f"a request must be at most {limits.size:,} bytes for a batch, not {length:,};"
                " shorten the question"
            )
        if count == limits.requests or size + length > limits.size:
            number, count, size = number + 1, 0, 0
        count, size = count + 1, size + length
        yield number, line
