"""What the API of models writes: completions, whole and in the chunks of a stream, embeddings, refusals."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

MODEL: Final = "gpt-6-luna"
USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def completion(
    content: Any,
    *,
    finish: str | None = "stop",
    usage: Any = USAGE,
    model: str = MODEL,
    **message: Any,
) -> dict[str, Any]:
    """The body that says *content*; *message* is what else stands in the message."""
    choice = {"message": {"role": "assistant", "content": content, "refusal": None, **message}}
    return _body("chat.completion", [{"index": 0, **choice, "finish_reason": finish}], usage, model)


def chunk(
    content: Any = ...,
    *,
    finish: str | None = None,
    usage: Any = None,
    model: str = MODEL,
    **delta: Any,
) -> dict[str, Any]:
    """One event of a stream; *delta* is what else stands in it."""
    said = {} if content is ... else {"content": content}
    choices = [{"index": 0, "delta": {**delta, **said}, "finish_reason": finish}]
    return _body("chat.completion.chunk", choices, usage, model)


def chunks(
    pieces: str | Iterable[str], *, usage: Any = USAGE, model: str = MODEL
) -> Iterator[dict[str, Any]]:
    """The events of a whole stream, a text's word by word; *usage* comes last, unless it is None."""
    if isinstance(pieces, str):
        first, *rest = pieces.split(" ")
        pieces = [first, *(f" {word}" for word in rest)]
    yield chunk("", role="assistant", model=model)
    for piece in pieces:
        yield chunk(piece, model=model)
    yield chunk(finish="stop", model=model)
    if usage is not None:
        yield {**chunk(usage=usage, model=model), "choices": []}


def stream(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Server-sent *events* as they are written, and that they are done."""
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"
    yield "data: [DONE]\n\n"


def embeddings(
    vectors: Sequence[Sequence[float]], *, encoding: str = "float", model: str = MODEL
) -> dict[str, Any]:
    """The body of *vectors*, which come in any order, here the last one first."""
    coded = [
        base64.b64encode(struct.pack(f"<{len(it)}f", *it)).decode() if encoding == "base64" else it
        for it in vectors
    ]
    data = [{"object": "embedding", "index": at, "embedding": it} for at, it in enumerate(coded)]
    return {
        "object": "list",
        "model": model,
        "data": data[::-1],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    }


def error(message: str = "no luck", *, code: str | None = None, **more: Any) -> dict[str, Any]:
    """The body of a refusal."""
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": code,
            **more,
        }
    }


def _body(kind: str, choices: list[dict[str, Any]], usage: Any, model: str) -> dict[str, Any]:
    return {
        "id": "c",
        "object": kind,
        "created": 0,
        "model": model,
        "choices": choices,
        "usage": usage,
    }
