"""The vectors in an answer of the service, read without trusting any of it."""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from qtmiddleware.errors import EmbeddingError


def vectors_in(answer: Any, count: int, name: str) -> list[Any]:
    """The *count* vectors of *answer*, by their index: the bytes of a body, a mapping or a client's own object.

    Raises `EmbeddingError` where it is none, or has another number of vectors.
    """
    try:
        held = json.loads(answer) if isinstance(answer, bytes) else answer
        items = list(_get(held, "data"))
        by_index = {_index(item, at): _vector(_get(item, "embedding")) for at, item in enumerate(items)}
    except (TypeError, ValueError, RecursionError):
        # What was read may quote a text, so it does not become the cause.
        raise EmbeddingError(f"{name} sent an answer that cannot be read; is this the address of an API?") from None
    if len(items) != count or by_index.keys() != set(range(count)):
        raise EmbeddingError(f"{name} sent {len(items)} vectors for {count} texts, or not one for each")
    return [by_index[at] for at in range(count)]


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _index(item: Any, at: int) -> int:
    """The position of the text *item* belongs to; some servers leave it out and keep the order."""
    index = _get(item, "index")
    return index if isinstance(index, int) else at


def _vector(held: Any) -> Any:
    """The numbers themselves, or those in base64: 32-bit floats, the least significant byte first."""
    if not isinstance(held, str):
        return held
    numbers = array("f", b64decode(held, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
