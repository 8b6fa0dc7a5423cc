"""Requests as the lines of files, and which file each of them goes into."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.errors import ConfigError

ENDPOINT: Final = "/v1/chat/completions"
MOST_REQUESTS: Final = 50_000
"""Most requests of a batch (https://developers.openai.com/api/reference/resources/batches/methods/create)."""
MOST_BYTES: Final = 200_000_000
"""Largest file of a batch, from the same place: 200 MB."""


# What is wrong with the request itself. All else, as a key or a model that is not allowed, somebody
# may mend.
_REFUSED: Final = frozenset({400, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class Limits:
    """How many *requests* and bytes one file may have."""

    requests: int = MOST_REQUESTS
    size: int = MOST_BYTES


LIMITS: Final = Limits()


def is_transient(status: int | None) -> bool:
    """Whether a request that got this HTTP *status*, or none at all, may do better another time."""
    return status is None or (status >= 400 and status not in _REFUSED)


Line = tuple[str, bytes]
"""The ``custom_id`` of a request, and its line of a file with the line break."""


def write_line(id_: str, request: Mapping[str, Any]) -> Line:
    """The line of *request*."""
    line = {"custom_id": id_, "method": "POST", "url": ENDPOINT, "body": request}
    # A lone half of a character stays as JSON escapes it: UTF-8 has no form for it.
    return id_, json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


@dataclass(frozen=True, slots=True)
class Read:
    """What a line of an output or error file says of the request *id*: an HTTP *status* with a *body*, or a *failure*.

    *status* is ``None`` where no request was made, as in a batch that expired. *body* is JSON.
    """

    id: str
    status: int | None
    body: str
    failure: str

    @property
    def is_final(self) -> bool:
        """Whether asking once more would bring the same; what nobody asked, or a busy service, is asked again."""
        return not is_transient(self.status)


def read_line(line: bytes) -> Read | None:
    """What *line* of an output or error file says; ``None`` where it is none."""
    try:
        return _read(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _read(said: Any) -> Read | None:
    if not isinstance(said, dict) or not isinstance(id_ := said.get("custom_id"), str):
        return None
    response, error = said.get("response"), said.get("error")
    status = response.get("status_code") if isinstance(response, dict) else None
    if (
        isinstance(response, dict)
        and isinstance(status, int)
        and not isinstance(status, bool)
        and 0 <= status < 1_000
    ):
        return Read(
            id_, status, json.dumps(response.get("body")), "" if status < 400 else f"HTTP {status}"
        )
    code = error.get("code") if isinstance(error, dict) else None
    # Services like to quote texts in all that is no code.
    if isinstance(code, str) and code.isidentifier() and len(code) <= 40:
        return Read(id_, None, "null", code)
    return Read(id_, None, "null", "no response")


def split(lines: Iterable[Line], limits: Limits) -> Iterator[tuple[int, Line]]:
    """Each of *lines*, in their order, with the number of its file from 0 on, so that all are within *limits*.

    Raises `ConfigError` for a line that is larger than a file may be.
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
