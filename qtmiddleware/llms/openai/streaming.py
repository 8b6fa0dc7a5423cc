"""A streamed completion, read without trusting any of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.llms.openai.body import (
    CUT,
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
from qtmiddleware.ports import Reply

MOST_BYTES: Final = 64 << 20
"""Most bytes that are read of one stream: each token comes in some hundred of them."""

_NO_STREAM: Final = "the model's answer is no stream of completions; is this the address of an API?"


def says_all(answer: Any) -> bool:
    """Whether *answer* of a client is a whole completion and no stream of pieces."""
    if isinstance(answer, str | bytes | Mapping) or hasattr(answer, "choices"):
        return True
    return not (hasattr(answer, "__iter__") or hasattr(answer, "__aiter__"))


class Events:
    """The data of server-sent events, out of bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of each event that is complete now."""
        # A carriage return at the end may be half of a line's end.
        text = (self._rest + chunk).replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")
        *lines, self._rest = (text[:-1] if held else text).replace(b"\r", b"\n").split(b"\n")
        self._rest += b"\r" if held else b""
        for line in lines:
            yield from self._line(line)

    def end(self) -> Iterator[bytes]:
        """The data of a last event that was not ended."""
        yield from self._line(self._rest.rstrip(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[bytes]:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            yield data


class StreamReader:
    """Puts one streamed reply together; a server that does not stream but answers at once is understood too.

    Chunks are bytes or the client's own objects. *is_done* says that nothing more will come, *is_whole* that the model
    has ended its answer.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._events = Events()
        self._size = 0
        self._body: list[bytes] | None = None
        self._given: Any = None
        self._seen = b""
        self._texts: list[str] = []
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
            yield self._completion(chunk)
            return
        self._size += len(chunk)
        if self._size > MOST_BYTES:
            raise ModelError("too_long", f"the model's answer is larger than {MOST_BYTES} bytes and was not read on")
        if not self._seen:
            self._seen = chunk.lstrip()[:1]
            self._body = [] if self._seen == b"{" else None
        if self._body is not None:
            self._body.append(chunk)
            return
        for data in self._events.feed(chunk):
            yield self._data(data)

    def end(self) -> tuple[str, Reply]:
        """The text that was left, and the whole; raises `ModelError` where there is none or it broke off."""
        if self._body is not None or self._given is not None:
            reply = read_reply(self._given if self._body is None else b"".join(self._body))
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
        text = "".join(self._texts)
        if self._was_given or self.is_done or not (self._finish and text.strip()):
            return None
        self._was_given = True
        return self._reply(text)

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
        return text
