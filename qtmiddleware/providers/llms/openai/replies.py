"""Read a provider's answer, whole or streamed. Any field of the answer may be malformed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.llms.calls import require_seconds_left
from qtmiddleware.providers.openai_client import find_reason_for_status
from qtmiddleware.runtime.budget import MOST_TOKENS
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.types import Deadline

MOST_BYTES: Final = 1 << 20
"""The maximum size in bytes of a body or of one stream event. Real answers take a few kilobytes."""

_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
"""The finish reasons of answers that reached the token limit."""
_DECLINED: Final = frozenset({"content_filter", "refusal"})
_INPUT_TOKEN_FIELDS: Final = ("prompt_tokens", "input_tokens", "inputTokens")
_OUTPUT_TOKEN_FIELDS: Final = ("completion_tokens", "output_tokens", "outputTokens")

_IDENTIFIER: Final = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)
"""A model's name or a completion's id. A user's text does not match."""

_STILL_SENDING: Final = "the model was still sending"


class Collector:
    """Collects the chunks of one body or line, with a maximum size and a deadline."""

    __slots__ = ("_chunks", "_deadline", "_size")

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._chunks: list[bytes] = []
        self._size = 0

    def add_chunk(self, chunk: bytes) -> None:
        """Add *chunk* to the collected bytes.

        Raises `ModelError`. The reason is ``too_long`` if the total exceeds `MOST_BYTES`, and
        ``timeout`` or ``cancelled`` if no time is left.
        """
        self._size += len(chunk)
        check_answer_size(self._size, MOST_BYTES)
        require_seconds_left(self._deadline, _STILL_SENDING)
        self._chunks.append(chunk)

    def take_bytes(self) -> bytes:
        """Return all chunks as one `bytes` object, and empty the collector."""
        whole = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return whole


def check_answer_size(byte_count: int, max_bytes: int) -> None:
    """Raise `ModelError` if an answer's *byte_count* exceeds *max_bytes*."""
    if byte_count > max_bytes:
        raise ModelError(
            "too_long", f"the model's answer is larger than {max_bytes} bytes, the limit"
        )


def read_reply(raw_completion: Any) -> Reply:
    """Return the reply in *raw_completion*, a chat completion.

    The completion is the response body in bytes, a mapping, or the client's response object.

    Raises `ModelError` with one of these reasons:

    - ``unparsable`` if *raw_completion* is not a chat completion,
    - ``empty`` if the reply has no text,
    - ``refused`` if the model or a content filter refused to answer,
    - ``truncated`` if the token limit was reached before the first text,
    - the reason for the status in the error, if a gateway sent an error with HTTP status 200.
    """
    completion = (
        _parse_json(raw_completion)
        if isinstance(raw_completion, bytes | bytearray | str)
        else raw_completion
    )
    raise_if_gateway_error(completion)
    choice = _find_first_choice(completion)
    message = read_field(choice, "message")
    if message is None:
        raise ModelError("unparsable", "the model's answer holds no message")
    finish_reason = str(read_field(choice, "finish_reason") or "").lower()
    raise_if_refused(message, finish_reason)
    return make_reply(
        read_text(message),
        completion,
        finish_reason=finish_reason,
        has_reasoned=has_reasoning(message),
    )


def make_reply(
    text: str,
    completion: Any,
    *,
    finish_reason: str = "",
    has_reasoned: bool = False,
    id_source: Any = None,
) -> Reply:
    """Return a reply with *text*; raise `ModelError` if *text* is blank.

    Args:
        text: The text that the model wrote.
        completion: The object that contains the token counts.
        finish_reason: The provider's reason for the end of the answer.
        has_reasoned: Whether the model reasoned before its answer.
        id_source: The object that contains the model's name and the completion's id. The default is
            *completion*.
    """
    is_cut = finish_reason in _CUT_OFF
    if text.strip():
        read, written = read_token_counts(completion)
        model, id_ = read_model_and_id(completion if id_source is None else id_source)
        return Reply(replace_surrogates(text), read, written, truncated=is_cut, model=model, id=id_)
    if is_cut:
        advice = "raise llm.maxTokens (for answers, answer.maxTokens)"
        raise ModelError(
            "truncated", f"the token limit was reached before the answer began; {advice}"
        )
    raise ModelError(
        "empty",
        "the model reasoned but gave no answer" if has_reasoned else "the model's answer is empty",
    )


def read_token_counts(completion: Any) -> tuple[int, int]:
    """Return the numbers of input and output tokens that *completion* reports.

    A number that is missing, or is not from 1 to `MOST_TOKENS`, becomes 0.
    """
    usage = _find_token_usage(completion)
    return _find_token_count(usage, _INPUT_TOKEN_FIELDS), _find_token_count(
        usage, _OUTPUT_TOKEN_FIELDS
    )


def read_model_and_id(completion: Any) -> tuple[str, str]:
    """Return the model's name and the id of *completion*; an unknown name or id is ``""``.

    LangChain stores the service's values in ``response_metadata``, and LlamaIndex in ``raw``.
    """
    # The `id` of LangChain's message is LangChain's own.
    metadata = read_field(completion, "response_metadata")
    holder = metadata or read_field(completion, "raw") or completion
    names = (read_field(holder, "model_name" if metadata else "model"), read_field(holder, "id"))
    model, id_ = (
        name if isinstance(name, str) and _IDENTIFIER.fullmatch(name) else "" for name in names
    )
    return model, id_


def _find_token_usage(completion: Any) -> Any:
    """Return the object in *completion* that contains the token counts."""
    raw = read_field(completion, "raw")
    return (
        read_field(completion, "usage")
        or read_field(completion, "usage_metadata")
        or read_field(raw, "usage")
    )


def _find_token_count(usage: Any, field_names: Sequence[str]) -> int:
    """Return the first valid token count among *field_names* in *usage*; 0 if there is none.

    A count is valid if it is from 1 to `MOST_TOKENS`.
    """
    counts = (read_field(usage, name) for name in field_names)
    return next(
        (
            count
            for count in counts
            if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MOST_TOKENS
        ),
        0,
    )


def _parse_json(json_text: bytes | bytearray | str) -> Any:
    if not json_text.strip():
        raise ModelError("empty", "the model's answer is empty")
    try:
        return json.loads(json_text)
    except (ValueError, RecursionError):
        # The decoder's error quotes what it read, so it does not become the cause.
        raise ModelError(
            "unparsable",
            "the model's answer is not JSON; check that llm.baseUrl is the address of an API",
        ) from None


def raise_if_gateway_error(completion: Any) -> None:
    """Raise `ModelError` if *completion* is an error that a gateway sent with HTTP status 200."""
    error = read_field(completion, "error")
    if not error or not isinstance(error, Mapping | str):
        return
    code = read_field(error, "code")
    reason = find_reason_for_status(code) if isinstance(code, int) else "unavailable"
    raise ModelError(reason, "the provider sent an error instead of a completion")


def _find_first_choice(completion: Any) -> Any:
    has_choices = (
        "choices" in completion
        if isinstance(completion, Mapping)
        else hasattr(completion, "choices")
    )
    choices = read_field(completion, "choices")
    if has_choices and (choices is None or choices in ([], ())):
        raise ModelError("empty", "the model's response holds no choices")
    if not isinstance(choices, list | tuple):
        raise ModelError("unparsable", "the model's response is not a chat completion")
    return choices[0]


def raise_if_refused(message: Any, finish_reason: str) -> None:
    """Raise `ModelError` if *message* or *finish_reason* reports a refusal or a failure.

    The reason is ``refused`` if the model or a content filter refused, and ``unavailable`` if the
    provider failed.
    """
    refusal = read_field(message, "refusal")
    content = read_field(message, "content")
    declined = isinstance(content, list | tuple) and any(
        read_field(part, "type") == "refusal" for part in content
    )
    if declined or (isinstance(refusal, str) and refusal.strip()):
        raise ModelError("refused", "the model refused to answer")
    if finish_reason in _DECLINED:
        raise ModelError("refused", "the provider's content filter withheld the answer")
    if finish_reason == "error":
        raise ModelError("unavailable", "the provider failed while the model was answering")


def read_text(message: Any) -> str:
    """Return the text of *message*, or all its texts joined; ``""`` if there is no text."""
    content = read_field(message, "content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        return ""
    texts = (part if isinstance(part, str) else read_field(part, "text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def has_reasoning(message: Any) -> bool:
    """Return whether *message* contains the model's reasoning."""
    return any(
        isinstance(read_field(message, name), str) for name in ("reasoning_content", "reasoning")
    )


MOST_STREAM_BYTES: Final = 64 << 20
"""The maximum number of bytes to read from one stream. Each token takes a few hundred bytes."""

_NO_STREAM: Final = (
    "the model's response is not a stream of completions; check that llm.baseUrl is the address of"
    " an API"
)


def is_whole_completion(answer: Any) -> bool:
    """Return whether *answer* is a whole completion rather than a stream."""
    if isinstance(answer, str | bytes | Mapping) or hasattr(answer, "choices"):
        return True
    return not (hasattr(answer, "__iter__") or hasattr(answer, "__aiter__"))


class EventReader:
    """Reads server-sent events from chunks of bytes. A chunk may end within an event.

    Raises `ModelError` if a line or an event is larger than `MOST_BYTES`.
    """

    def __init__(self) -> None:
        self._line = Collector(Deadline())
        self._event = Collector(Deadline())
        self._has_data = False
        self._ends_with_return = False

    def read_events(self, chunk: bytes) -> Iterator[bytes]:
        """Read *chunk*, and yield the data of each event that *chunk* completes."""
        if not chunk:
            return
        # If a line break "\r\n" was cut in two, its first half has ended the line already.
        if self._ends_with_return:
            chunk = chunk.removeprefix(b"\n")
        self._ends_with_return = chunk.endswith(b"\r")
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line.add_chunk(line)
            yield from self._read_line(self._line.take_bytes())
        self._line.add_chunk(rest)

    def read_last_event(self) -> Iterator[bytes]:
        """Yield the data of the last event, unless a blank line already ended it."""
        yield from self._read_line(self._line.take_bytes())
        yield from self._read_line(b"")

    def _read_line(self, line: bytes) -> Iterator[bytes]:
        name, _, value = line.partition(b":")
        if name == b"data":
            if self._has_data:
                self._event.add_chunk(b"\n")
            self._event.add_chunk(value.removeprefix(b" "))
            self._has_data = True
        elif not line and self._has_data:
            self._has_data = False
            yield self._event.take_bytes()


class StreamReader:
    """Builds one reply from the chunks of a model's answer.

    Chunks are bytes or the client's own objects. The reader also accepts a whole completion,
    because some servers ignore the request for a stream.

    Args:
        deadline: The time limit; by default there is none. If the deadline passes before the text
            is complete, `read_chunk` raises `ModelError`. If only the token counts are missing, the
            reader returns the reply without them.
        is_stream: Whether the request asked for a stream. If false, the chunks form one completion.

    Attributes:
        is_done: Whether the stream has ended.
        is_whole: Whether the text is complete.
    """

    def __init__(self, deadline: Deadline | None = None, *, is_stream: bool = True) -> None:
        self.is_done = False
        self._deadline = deadline or Deadline()
        self._events = EventReader()
        self._size = 0
        self._is_stream = is_stream
        self._body = None if is_stream else Collector(self._deadline)
        self._completion: Any = None
        self._first_byte = b""
        self._texts: list[str] = []
        self._has_text = False
        self._cut_surrogate = ""
        self._finish = ""
        self._reasoned = False
        self._has_given_reply = False
        self._has_begun = False
        self._usage: Any = None
        self._id_source: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether the text is complete. The token counts may still be missing."""
        return self.is_done or bool(self._finish)

    def read_chunk(self, chunk: Any) -> Iterator[str | Reply]:
        """Read *chunk*, and yield the texts in it.

        When the text is complete but the stream has not ended, also yields the `Reply`, once, with
        the token counts received so far. Raises the errors of `read_reply`.
        """
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "replace")
        if not isinstance(chunk, bytes):
            yield from self._read_completion_chunk(chunk)
        else:
            yield from self._read_bytes_chunk(chunk)
        # The cheap checks come first, so that the whole text is joined once, not for every chunk.
        if not self._has_given_reply and not self.is_done and self._finish and self._has_text:
            self._has_given_reply = True
            yield self._make_reply()

    def _read_completion_chunk(self, completion: Any) -> Iterator[str]:
        if not self._is_stream:
            self._completion = completion
            return
        text = self._read_completion_text(completion)
        self._limit_total_size(len(text))
        if text:
            yield text
        self._check_deadline()

    def _read_bytes_chunk(self, chunk: bytes) -> Iterator[str]:
        self._limit_total_size(len(chunk))
        # A stream of events never begins with "{", so this server sends a whole completion.
        if self._body is None and not self._first_byte:
            self._first_byte = chunk.lstrip()[:1]
            self._body = Collector(self._deadline) if self._first_byte == b"{" else None
        if self._body is not None:
            self._body.add_chunk(chunk)
            return
        for event_data in self._events.read_events(chunk):
            if text := self._read_event_text(event_data):
                yield text
            self._check_deadline()
        self._check_deadline()

    def _limit_total_size(self, chunk_size: int) -> None:
        self._size += chunk_size
        check_answer_size(self._size, MOST_STREAM_BYTES)

    def _check_deadline(self) -> None:
        if not self.is_whole:
            require_seconds_left(self._deadline, _STILL_SENDING)
        elif self._deadline.passed:
            # The answer is complete; at most its cost is missing.
            self.is_done = True

    def yield_rest_and_reply(self) -> Iterator[str | Reply]:
        """Yield the rest of the text, then the whole `Reply`.

        Raises `ModelError` if there is no text or the stream was cut off.
        """
        if self._body is not None and self._completion is None:
            self._completion = self._body.take_bytes()
        if self._completion is not None:
            reply = read_reply(self._completion)
            yield reply.text
            yield reply
            return
        rest = "".join(
            self._read_event_text(event_data) for event_data in self._events.read_last_event()
        ) + self._take_text(is_last=True)
        if not self.is_whole:
            if self._has_begun:
                raise ModelError("unavailable", "the model's answer was cut off")
            raise (
                ModelError("unparsable", _NO_STREAM)
                if self._first_byte
                else ModelError("empty", "the answer was empty")
            )
        reply = self._make_reply()
        if rest:
            yield rest
        yield reply

    def _make_reply(self) -> Reply:
        text = "".join(self._texts)
        return make_reply(
            text,
            self._usage,
            finish_reason=self._finish,
            has_reasoned=self._reasoned,
            id_source=self._id_source,
        )

    def _read_event_text(self, event_data: bytes) -> str:
        if self.is_done or not event_data.strip():
            return ""
        if event_data.startswith(b"[DONE]"):
            self.is_done = True
            return ""
        try:
            completion = json.loads(event_data)
        except (ValueError, RecursionError):
            # The decoder's error quotes what it read, so it does not become the cause.
            raise ModelError("unparsable", "a piece of the model's answer is not JSON") from None
        return self._read_completion_text(completion)

    def _read_completion_text(self, completion: Any) -> str:
        raise_if_gateway_error(completion)
        self._has_begun = True
        if read_field(completion, "usage"):
            self._usage = completion
        # Most services name the model in each chunk, some only in the first.
        if self._id_source is None and read_field(completion, "model"):
            self._id_source = completion
        choices = read_field(completion, "choices")
        # A chunk with the token counts has no choices. Only the first choice (index 0) is the
        # answer.
        if not isinstance(choices, list | tuple) or not choices or read_field(choices[0], "index"):
            return ""
        delta = read_field(choices[0], "delta")
        if delta is None and read_field(choices[0], "message") is not None:
            self._completion = completion
            return ""
        finish = str(read_field(choices[0], "finish_reason") or "").lower()
        raise_if_refused(delta, finish)
        self._finish = finish or self._finish
        self._reasoned = self._reasoned or has_reasoning(delta)
        self._cut_surrogate += read_text(delta)
        return self._take_text()

    def _take_text(self, *, is_last: bool = False) -> str:
        """Return the text that was read but not yet returned.

        Some servers split a character between its two surrogates. So if the text ends with the
        first of two surrogates, that surrogate is kept for the next call, unless *is_last* is true.
        """
        text, self._cut_surrogate = self._cut_surrogate, ""
        if text and not is_last and "\ud800" <= text[-1] <= "\udbff":
            text, self._cut_surrogate = text[:-1], text[-1]
        text = replace_surrogates(text)
        if text:
            self._texts.append(text)
            self._has_text = self._has_text or not text.isspace()
        return text
