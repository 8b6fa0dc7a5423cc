"""A streamed completion, read without trusting any of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.openai.body import (
    CUT,
    STILL_SENDING,
    Collector,
    check_size,
    get,
    nothing_said,
    raise_refusal,
    raise_wrapped_error,
    read_reply,
    reasons,
    text_of,
    tokens_of,
    without_surrogates,
)
from qtmiddleware.providers.llms.time_left import time_left
from qtmiddleware.types import Deadline

MOST_BYTES: Final = 64 << 20
"""Most bytes that are read of one stream: each token comes in some hundred of them."""

_NO_STREAM: Final = "the model's answer is no stream of completions; is this the address of an API?"


def says_all(answer: Any) -> bool:
    """Whether *answer* of a client is a whole completion and no stream of pieces."""
    if isinstance(answer, str | bytes | Mapping) or hasattr(answer, "choices"):
        return True
    return not (hasattr(answer, "__iter__") or hasattr(answer, "__aiter__"))


class Events:
    """The data of server-sent events, out of bytes that may be cut anywhere; each byte is looked at once.

    Raises `ModelError` for a line or an event that is larger than any piece of an answer.
    """

    def __init__(self) -> None:
        self._line = Collector(Deadline())
        self._data = Collector(Deadline())
        self._has_data = False
        self._after_return = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that is complete now."""
        if not chunk:
            return
        # Of a line's end that was cut in two its first half has ended the line.
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        *ends, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for end in ends:
            self._line.add(end)
            yield from self._read(self._line.take())
        self._line.add(rest)

    def end(self) -> Iterator[bytes]:
        """The data of a last event that was not ended."""
        yield from self._read(self._line.take())
        yield from self._read(b"")

    def _read(self, line: bytes) -> Iterator[bytes]:
        name, _, value = line.partition(b":")
        if name == b"data":
            if self._has_data:
                self._data.add(b"\n")
            self._data.add(value.removeprefix(b" "))
            self._has_data = True
        elif not line and self._has_data:
            self._has_data = False
            yield self._data.take()


class StreamReader:
    """Puts one streamed reply together; a server that does not stream but answers at once is understood too.

    Chunks are bytes or the client's own objects. *is_done* says that nothing more will come, *is_whole* that the model
    has ended its answer. The *deadline* (none by default) is looked at after every piece: an answer that was ended by
    then is done, for any other that is an error.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.is_done = False
        self._deadline = deadline or Deadline()
        self._events = Events()
        self._size = 0
        self._body: Collector | None = None
        self._given: Any = None
        self._seen = b""
        self._texts: list[str] = []
        self._says = False
        self._half = ""
        self._finish = ""
        self._reasoned = False
        self._was_given = False
        self._heard = False
        self._usage: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the model has said that its answer ends here."""
        return self.is_done or bool(self._finish)

    def feed(self, chunk: Any) -> Iterator[str]:
        """The texts that came with *chunk*, each before what follows it is looked at; raises as `read_reply` does."""
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "replace")
        if not isinstance(chunk, bytes):
            text = self._completion(chunk)
            self._grow(len(text))
            yield text
            self._look_at_deadline()
            return
        self._grow(len(chunk))
        if not self._seen:
            self._seen = chunk.lstrip()[:1]
            self._body = Collector(self._deadline) if self._seen == b"{" else None
        if self._body is not None:
            self._body.add(chunk)
            return
        for data in self._events.feed(chunk):
            yield self._data(data)
            self._look_at_deadline()
        self._look_at_deadline()

    def _grow(self, size: int) -> None:
        self._size += size
        check_size(self._size, MOST_BYTES)

    def _look_at_deadline(self) -> None:
        if not self.is_whole:
            time_left(self._deadline, STILL_SENDING)
        elif self._deadline.passed:
            # Nothing is missing of the answer but, perhaps, what it cost.
            self.is_done = True

    def end(self) -> tuple[str, Reply]:
        """The text that was left, and the whole; raises `ModelError` where there is none or it broke off."""
        if self._body is not None or self._given is not None:
            reply = read_reply(self._given if self._body is None else self._body.take())
            return reply.text, reply
        left = "".join(self._data(data) for data in self._events.end()) + self._whole(last=True)
        text, cut = "".join(self._texts), self._finish in CUT
        if not self.is_whole:
            if self._heard:
                raise ModelError("unavailable", "the model's answer broke off in the middle")
            raise ModelError("unparsable", _NO_STREAM) if self._seen else ModelError("empty", "nothing was answered")
        if not text.strip():
            raise nothing_said(reasoned=self._reasoned, cut=cut)
        return left, self._reply(text)

    def ended(self) -> Reply | None:
        """The reply when the model has just ended it and what it cost is still to come; given once."""
        # In this order: the whole text is put together once, not for every chunk.
        if self._was_given or self.is_done or not (self._finish and self._says):
            return None
        self._was_given = True
        return self._reply("".join(self._texts))

    def _reply(self, text: str) -> Reply:
        read = tokens_of(self._usage, "prompt_tokens", "input_tokens")
        written = tokens_of(self._usage, "completion_tokens", "output_tokens")
        return Reply(text, read, written, truncated=self._finish in CUT)

    def _data(self, data: bytes) -> str:
        if self.is_done or not data.strip():
            return ""
        if data.startswith(b"[DONE]"):
            self.is_done = True
            return ""
        try:
            completion = json.loads(data)
        except (ValueError, RecursionError):
            # The decoder's error quotes what it read, so it does not become the cause.
            raise ModelError("unparsable", "a piece of the model's answer is not JSON") from None
        return self._completion(completion)

    def _completion(self, completion: Any) -> str:
        raise_wrapped_error(completion)
        self._heard = True
        if get(completion, "usage"):
            self._usage = completion
        choices = get(completion, "choices")
        if not isinstance(choices, list | tuple) or not choices or get(choices[0], "index"):
            return ""
        delta = get(choices[0], "delta")
        if delta is None and get(choices[0], "message") is not None:
            self._given = completion
            return ""
        finish = str(get(choices[0], "finish_reason") or "").lower()
        raise_refusal(delta, finish)
        self._finish = finish or self._finish
        self._reasoned = self._reasoned or reasons(delta)
        self._half += text_of(delta)
        return self._whole()

    def _whole(self, *, last: bool = False) -> str:
        """What has come, without half a character at its end: some servers cut between two surrogates."""
        text, self._half = self._half, ""
        if text and not last and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = without_surrogates(text)
        if text:
            self._texts.append(text)
            self._says = self._says or not text.isspace()
        return text
