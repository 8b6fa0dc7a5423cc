"""What a provider sent back, read without trusting any of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.time_left import time_left
from qtmiddleware.runtime.budget import MOST_TOKENS
from qtmiddleware.types import Deadline

MOST_BYTES: Final = 1 << 20
"""Largest body, and largest event of a stream, that is read: an answer is a few kilobytes, so this is none."""

CUT: Final = frozenset({"length", "max_tokens"})
"""The reasons to end that mean the token limit."""

STILL_SENDING: Final = "the model was still sending"


class Collector:
    """Gathers the chunks of one body, or of one line, and stops where it grows too large or the time is over."""

    __slots__ = ("_chunks", "_deadline", "_size")

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Keep *chunk*; raises `ModelError` (``too_long``, ``timeout``, ``cancelled``) where that was one too many."""
        self._size += len(chunk)
        check_size(self._size, MOST_BYTES)
        time_left(self._deadline, STILL_SENDING)
        self._chunks.append(chunk)

    def take(self) -> bytes:
        """All of it; what is added next begins another."""
        whole = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return whole


def check_size(size: int, most: int) -> None:
    """Raise `ModelError` where *size* bytes of an answer are more than *most*."""
    if size > most:
        raise ModelError("too_long", f"the model's answer is larger than {most} bytes and was not read on")


def read_reply(raw: Any) -> Reply:
    """The reply that *raw* holds: the bytes of a body, a mapping, or a client's own response object.

    Raises `ModelError`: ``unparsable`` where it is not a chat completion, ``empty`` where it says nothing,
    ``refused`` where the model or a filter declined, ``truncated`` where the token limit left no text at all, and
    the reason of the status where a gateway wraps a failure into a success.
    """
    completion = _decoded(raw) if isinstance(raw, bytes | bytearray | str) else raw
    raise_wrapped_error(completion)
    choice = _first_choice(completion)
    message = get(choice, "message")
    if message is None:
        raise ModelError("unparsable", "the model's answer holds no message")
    text = text_of(message)
    finish = str(get(choice, "finish_reason") or "").lower()
    raise_refusal(message, finish)
    cut = finish in CUT
    if not text.strip():
        raise nothing_said(reasoned=reasons(message), cut=cut)
    read = tokens_of(completion, "prompt_tokens", "input_tokens")
    written = tokens_of(completion, "completion_tokens", "output_tokens")
    return Reply(without_surrogates(text), read, written, truncated=cut)


def _decoded(raw: bytes | bytearray | str) -> Any:
    if not raw.strip():
        raise ModelError("empty", "the model's answer is empty")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        # The decoder's error quotes what it read, so it does not become the cause.
        raise ModelError("unparsable", "the model's answer is not JSON; is this the address of an API?") from None


def get(holder: Any, name: str) -> Any:
    """The value *name* of a mapping or an object, ``None`` where there is none."""
    if isinstance(holder, Mapping):
        return holder.get(name)
    return None if isinstance(holder, str | bytes) else getattr(holder, name, None)


def raise_wrapped_error(completion: Any) -> None:
    """Raise the failure that a gateway wraps into a success, if *completion* is one."""
    error = get(completion, "error")
    if not error or not isinstance(error, Mapping | str):
        return
    code = get(error, "code")
    reasons = {401: "unauthorized", 403: "unauthorized", 429: "rate_limited", 400: "rejected", 404: "rejected"}
    reason = reasons.get(code, "unavailable") if isinstance(code, int) else "unavailable"
    raise ModelError(reason, "the provider answered with an error in place of a completion")


def _first_choice(completion: Any) -> Any:
    known = "choices" in completion if isinstance(completion, Mapping) else hasattr(completion, "choices")
    choices = get(completion, "choices")
    if known and (choices is None or choices in ([], ())):
        raise ModelError("empty", "the model gave no answer to choose from")
    if not isinstance(choices, list | tuple):
        raise ModelError("unparsable", "the model's answer is no chat completion")
    return choices[0]


def raise_refusal(message: Any, finish: str) -> None:
    """Raise what *message*, which ended for the reason *finish*, says in place of an answer."""
    refusal = get(message, "refusal")
    parts = get(message, "content")
    declined = isinstance(parts, list | tuple) and any(get(part, "type") == "refusal" for part in parts)
    if declined or (isinstance(refusal, str) and refusal.strip()):
        raise ModelError("refused", "the model refused to answer")
    if finish == "content_filter":
        raise ModelError("refused", "the provider's content filter withheld the answer")
    if finish == "error":
        raise ModelError("unavailable", "the provider failed while the model was answering")


def text_of(message: Any) -> str:
    """The text of *message*, also where it comes in parts; ``""`` where there is none."""
    content = get(message, "content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part if isinstance(part, str) else get(part, "text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def reasons(message: Any) -> bool:
    """Whether *message* holds what the model says to itself."""
    return any(isinstance(get(message, name), str) for name in ("reasoning_content", "reasoning"))


def nothing_said(*, reasoned: bool, cut: bool) -> ModelError:
    """Why there is no answer in a reply."""
    if cut:
        advice = "raise llm.maxTokens, for answers answer.maxTokens"
        return ModelError("truncated", f"the token limit was reached before the answer began; {advice}")
    said = "the model reasoned and answered nothing" if reasoned else "the model's answer is empty"
    return ModelError("empty", said)


def tokens_of(completion: Any, *names: str) -> int:
    """The first count of these *names*, 0 where none is a positive number, of which a call can come to so many."""
    usage = get(completion, "usage")
    counts = (get(usage, name) for name in names)
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MOST_TOKENS), 0)


def without_surrogates(text: str) -> str:
    """*text* without lone surrogates, which JSON can hold and no encoder can write."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
