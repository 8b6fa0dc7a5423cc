"""What a provider sent back, whole or streamed, read without trusting any of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.llms.calls import check_time_left
from qtmiddleware.providers.openai_client import choose_reason
from qtmiddleware.runtime.budget import MOST_TOKENS
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.types import Deadline

MOST_BYTES: Final = 1 << 20
"""Largest body, and largest event of a stream, that is read: an answer is a few kilobytes, so this is none."""

_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
"""The reasons to end that mean the token limit."""
_DECLINED: Final = frozenset({"content_filter", "refusal"})
_READ: Final = ("prompt_tokens", "input_tokens", "inputTokens")
_WRITTEN: Final = ("completion_tokens", "output_tokens", "outputTokens")

_NAME: Final = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)
"""What a name of a model or of a completion looks like; no text of anybody's does."""

_STILL_SENDING: Final = "the model was still sending"


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
        check_time_left(self._deadline, _STILL_SENDING)
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
        raise ModelError("too_long", f"the model's answer is larger than {most} bytes, the limit")


def read_reply(raw: Any) -> Reply:
    """The reply that *raw* holds: the bytes of a body, a mapping, or a client's own response object.

    Raises `ModelError`: ``unparsable`` where it is not a chat completion, ``empty`` where it says
    nothing, ``refused`` where the model or a filter declined, ``truncated`` where the token limit
    left no text at all, and the reason of the status where a gateway wraps a failure into a
    success.
    """
    completion = _parse_json(raw) if isinstance(raw, bytes | bytearray | str) else raw
    raise_wrapped_error(completion)
    choice = _first_choice(completion)
    message = read_field(choice, "message")
    if message is None:
        raise ModelError("unparsable", "the model's answer holds no message")
    finish = str(read_field(choice, "finish_reason") or "").lower()
    raise_refusal(message, finish)
    return make_reply(
        read_text(message), completion, finish=finish, reasoned=has_reasoning(message)
    )


def make_reply(
    text: str, completion: Any, *, finish: str = "", reasoned: bool = False, named: Any = None
) -> Reply:
    """The reply of this *text*, which ended for the reason *finish*, with the tokens that *completion* counts.

    The names of its model and of the completion are those that *named* gives, or *completion*.
    Raises `ModelError` where the text is blank; *reasoned* says that the model said something to
    itself.
    """
    cut = finish in _CUT_OFF
    if text.strip():
        read, written = count_tokens(completion)
        model, id_ = read_names(completion if named is None else named)
        return Reply(replace_surrogates(text), read, written, truncated=cut, model=model, id=id_)
    if cut:
        advice = "raise llm.maxTokens (for answers, answer.maxTokens)"
        raise ModelError(
            "truncated", f"the token limit was reached before the answer began; {advice}"
        )
    raise ModelError(
        "empty",
        "the model reasoned but gave no answer" if reasoned else "the model's answer is empty",
    )


def count_tokens(completion: Any) -> tuple[int, int]:
    """Return how many tokens *completion* says were read and written; 0 for a number that cannot be."""
    usage = _find_usage(completion)
    return _count(usage, _READ), _count(usage, _WRITTEN)


def read_names(completion: Any) -> tuple[str, str]:
    """Return what *completion* calls its model and itself; ``""`` for what it does not name by a plain word.

    LangChain gives a message an id of its own and keeps the service's in the metadata, LlamaIndex
    in ``raw``.
    """
    metadata = read_field(completion, "response_metadata")
    holder = metadata or read_field(completion, "raw") or completion
    names = (read_field(holder, "model_name" if metadata else "model"), read_field(holder, "id"))
    model, id_ = (it if isinstance(it, str) and _NAME.fullmatch(it) else "" for it in names)
    return model, id_


def _find_usage(completion: Any) -> Any:
    """What *completion* says of its tokens: as OpenAI, LangChain or LlamaIndex keep it."""
    raw = read_field(completion, "raw")
    return (
        read_field(completion, "usage")
        or read_field(completion, "usage_metadata")
        or read_field(raw, "usage")
    )


def _count(usage: Any, names: Sequence[str]) -> int:
    """The first count of these *names*, 0 where none is a positive number, of which a call can come to so many."""
    counts = (read_field(usage, name) for name in names)
    return next(
        (
            n
            for n in counts
            if isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MOST_TOKENS
        ),
        0,
    )


def _parse_json(raw: bytes | bytearray | str) -> Any:
    if not raw.strip():
        raise ModelError("empty", "the model's answer is empty")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        # The decoder's error quotes what it read, so it does not become the cause.
        raise ModelError(
            "unparsable",
            "the model's answer is not JSON; check that llm.baseUrl is the address of an API",
        ) from None


def raise_wrapped_error(completion: Any) -> None:
    """Raise the failure that a gateway wraps into a success, if *completion* is one."""
    error = read_field(completion, "error")
    if not error or not isinstance(error, Mapping | str):
        return
    code = read_field(error, "code")
    reason = choose_reason(code) if isinstance(code, int) else "unavailable"
    raise ModelError(reason, "the provider sent an error instead of a completion")


def _first_choice(completion: Any) -> Any:
    known = (
        "choices" in completion
        if isinstance(completion, Mapping)
        else hasattr(completion, "choices")
    )
    choices = read_field(completion, "choices")
    if known and (choices is None or choices in ([], ())):
        raise ModelError("empty", "the model's response holds no choices")
    if not isinstance(choices, list | tuple):
        raise ModelError("unparsable", "the model's response is not a chat completion")
    return choices[0]


def raise_refusal(message: Any, finish: str) -> None:
    """Raise what *message*, which ended for the reason *finish*, says in place of an answer."""
    refusal = read_field(message, "refusal")
    parts = read_field(message, "content")
    declined = isinstance(parts, list | tuple) and any(
        read_field(part, "type") == "refusal" for part in parts
    )
    if declined or (isinstance(refusal, str) and refusal.strip()):
        raise ModelError("refused", "the model refused to answer")
    if finish in _DECLINED:
        raise ModelError("refused", "the provider's content filter withheld the answer")
    if finish == "error":
        raise ModelError("unavailable", "the provider failed while the model was answering")


def read_text(message: Any) -> str:
    """The text of *message*, also where it comes in parts; ``""`` where there is none."""
    content = read_field(message, "content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part if isinstance(part, str) else read_field(part, "text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def has_reasoning(message: Any) -> bool:
    """Whether *message* holds what the model says to itself."""
    return any(
        isinstance(read_field(message, name), str) for name in ("reasoning_content", "reasoning")
    )


MOST_STREAM_BYTES: Final = 64 << 20
"""Most bytes that are read of one stream: each token comes in some hundred of them."""

_NO_STREAM: Final = (
    "the model's response is not a stream of completions; check that llm.baseUrl is the address of"
    " an API"
)


def is_whole_completion(answer: Any) -> bool:
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
        self._read_event = Collector(Deadline())
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
                self._read_event.add(b"\n")
            self._read_event.add(value.removeprefix(b" "))
            self._has_data = True
        elif not line and self._has_data:
            self._has_data = False
            yield self._read_event.take()


class StreamReader:
    """Puts one reply together as it comes; a server that is asked to stream but answers at once is understood too.

    Chunks are bytes or the client's own objects; without *streams* they are one completion.
    *is_done* says that nothing more will come, *is_whole* that the model has ended its answer. The
    *deadline* (none by default) is looked at after every piece: an answer that was ended by then is
    done, for any other that is an error.
    """

    def __init__(self, deadline: Deadline | None = None, *, streams: bool = True) -> None:
        self.is_done = False
        self._deadline = deadline or Deadline()
        self._events = Events()
        self._size = 0
        self._streams = streams
        self._body = None if streams else Collector(self._deadline)
        self._completion: Any = None
        self._seen = b""
        self._texts: list[str] = []
        self._has_text = False
        self._half = ""
        self._finish = ""
        self._reasoned = False
        self._has_given_reply = False
        self._has_begun = False
        self._usage: Any = None
        self._named: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the model has said that its answer ends here."""
        return self.is_done or bool(self._finish)

    def feed(self, chunk: Any) -> Iterator[str | Reply]:
        """Yields the texts that came with *chunk*, each before what follows it is looked at.

        Where the model has just ended its answer and what that cost is still to come, the reply
        follows, once. Raises as `read_reply` does.
        """
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "replace")
        if not isinstance(chunk, bytes):
            yield from self._feed_completion(chunk)
        else:
            yield from self._feed_bytes(chunk)
        # In this order: the whole text is put together once, not for every chunk.
        if not self._has_given_reply and not self.is_done and self._finish and self._has_text:
            self._has_given_reply = True
            yield self._make_reply()

    def _feed_completion(self, completion: Any) -> Iterator[str]:
        if not self._streams:
            self._completion = completion
            return
        text = self._read_completion(completion)
        self._add_size(len(text))
        if text:
            yield text
        self._check_deadline()

    def _feed_bytes(self, chunk: bytes) -> Iterator[str]:
        self._add_size(len(chunk))
        if self._body is None and not self._seen:
            self._seen = chunk.lstrip()[:1]
            self._body = Collector(self._deadline) if self._seen == b"{" else None
        if self._body is not None:
            self._body.add(chunk)
            return
        for data in self._events.feed(chunk):
            if text := self._read_event(data):
                yield text
            self._check_deadline()
        self._check_deadline()

    def _add_size(self, size: int) -> None:
        self._size += size
        check_size(self._size, MOST_STREAM_BYTES)

    def _check_deadline(self) -> None:
        if not self.is_whole:
            check_time_left(self._deadline, _STILL_SENDING)
        elif self._deadline.passed:
            # Nothing is missing of the answer but, perhaps, what it cost.
            self.is_done = True

    def end(self) -> Iterator[str | Reply]:
        """Yields the text that was left, and the whole; raises `ModelError` where there is none or it broke off."""
        if self._body is not None and self._completion is None:
            self._completion = self._body.take()
        if self._completion is not None:
            reply = read_reply(self._completion)
            yield reply.text
            yield reply
            return
        left = "".join(self._read_event(data) for data in self._events.end()) + self._take_text(
            last=True
        )
        if not self.is_whole:
            if self._has_begun:
                raise ModelError("unavailable", "the model's answer was cut off")
            raise (
                ModelError("unparsable", _NO_STREAM)
                if self._seen
                else ModelError("empty", "the answer was empty")
            )
        reply = self._make_reply()
        if left:
            yield left
        yield reply

    def _make_reply(self) -> Reply:
        text = "".join(self._texts)
        return make_reply(
            text, self._usage, finish=self._finish, reasoned=self._reasoned, named=self._named
        )

    def _read_event(self, data: bytes) -> str:
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
        return self._read_completion(completion)

    def _read_completion(self, completion: Any) -> str:
        raise_wrapped_error(completion)
        self._has_begun = True
        if read_field(completion, "usage"):
            self._usage = completion
        # Each chunk names them, of some services the first alone.
        if self._named is None and read_field(completion, "model"):
            self._named = completion
        choices = read_field(completion, "choices")
        if not isinstance(choices, list | tuple) or not choices or read_field(choices[0], "index"):
            return ""
        delta = read_field(choices[0], "delta")
        if delta is None and read_field(choices[0], "message") is not None:
            self._completion = completion
            return ""
        finish = str(read_field(choices[0], "finish_reason") or "").lower()
        raise_refusal(delta, finish)
        self._finish = finish or self._finish
        self._reasoned = self._reasoned or has_reasoning(delta)
        self._half += read_text(delta)
        return self._take_text()

    def _take_text(self, *, last: bool = False) -> str:
        """What has come, without half a character at its end: some servers cut between two surrogates."""
        text, self._half = self._half, ""
        if text and not last and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        text = replace_surrogates(text)
        if text:
            self._texts.append(text)
            self._has_text = self._has_text or not text.isspace()
        return text
