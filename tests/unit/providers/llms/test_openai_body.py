from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.openai.replies import (
    MOST_BYTES,
    Collector,
    StreamReader,
    read_reply,
)
from qtmiddleware.types import Deadline
from tests.support.completions import MODEL, USAGE, chunks, completion, stream

KEYS = [
    *(
        "choices",
        "message",
        "content",
        "refusal",
        "finish_reason",
        "usage",
        "prompt_tokens",
        "completion_tokens",
    ),
    *("error", "code", "text", "type", "reasoning_content", "model", "id"),
]
find_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["length", "refusal"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=8,
)
completions = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries({"message": st.dictionaries(st.sampled_from(KEYS), find_json)})
        )
    },
    optional={"usage": find_json, "error": find_json, "model": find_json, "id": find_json},
)


def read(raw: Any) -> Reply | None:
    try:
        return read_reply(raw)
    except ModelError:
        return None


@given(find_json | completions)
def test_any_json_is_a_reply_or_a_model_error(value: Any) -> None:
    reply = read(json.dumps(value).encode())
    assert (reply is None) == (read(value) is None)
    if reply is not None:
        assert reply.text.strip()
        reply.text.encode()
        assert reply.input_tokens >= 0
        assert reply.output_tokens >= 0
        assert all(
            re.fullmatch(r"[\w.:/@+-]{0,200}", name, re.ASCII) for name in (reply.model, reply.id)
        )


@given(st.binary() | st.text())
@example(b"\xef\xbb\xbf{}")
@example(b"{" * 100_000)
@example(b"\x00")
def test_any_bytes_are_a_reply_or_a_model_error(raw: bytes | str) -> None:
    read(raw)


@given(st.text())
def test_a_text_comes_through_as_it_was_sent(text: str) -> None:
    reply = read(json.dumps({"choices": [{"message": {"content": text}}]}).encode())
    assert (reply.text if reply else "") == (text if text.strip() else "")


def test_the_client_s_own_object_is_read_like_its_bytes() -> None:
    body = completion("{", finish="length")
    expected = Reply("{", 100, 20, truncated=True, model=MODEL, id="c")
    assert read_reply(ChatCompletion.model_validate(body)) == expected
    assert read_reply(json.dumps(body).encode()) == expected
    assert (
        read_reply(
            SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="x"))])
        ).text
        == "x"
    )


@pytest.mark.parametrize("usage", [None, USAGE])
def test_a_streamed_reply_has_the_names_of_its_first_chunk(usage: Any) -> None:
    reader = StreamReader()
    events = [
        {**it, "model": "" if at else it["model"]}
        for at, it in enumerate(chunks("one two", usage=usage))
    ]
    for piece in stream(events):
        list(reader.read_chunk(piece.encode()))
    *_, reply = reader.yield_rest_and_reply()
    assert (reply.text, reply.model, reply.id) == ("one two", MODEL, "c")


@pytest.mark.parametrize(
    "name", ["Does Jaco have any health concerns?", "", 7, None, ["m"], "m" * 201, "naïve"]
)
def test_a_text_in_the_place_of_a_name_is_no_name(name: Any) -> None:
    reply = read_reply({**completion("text"), "model": name, "id": name})
    assert (reply.model, reply.id) == ("", "")


@pytest.mark.parametrize(
    "raw", [None, 7, object(), "text", SimpleNamespace(), SimpleNamespace(choices=None)]
)
def test_what_a_wrapped_client_might_return_is_a_model_error(raw: Any) -> None:
    with pytest.raises(ModelError):
        read_reply(raw)


def test_a_body_is_collected_up_to_its_limit() -> None:
    collector = Collector(Deadline())
    collector.add_chunk(b"x" * MOST_BYTES)
    assert len(collector.take_bytes()) == MOST_BYTES
    collector.add_chunk(b"x" * MOST_BYTES)
    with pytest.raises(ModelError) as caught:
        collector.add_chunk(b"x")
    assert caught.value.reason == "too_long"


def test_collecting_stops_at_the_deadline_and_when_it_is_cancelled() -> None:
    deadline = Deadline.after(60)
    collector = Collector(deadline)
    collector.add_chunk(b"x")
    deadline.cancel()
    with pytest.raises(ModelError) as caught:
        collector.add_chunk(b"x")
    assert caught.value.reason == "cancelled"
    with pytest.raises(ModelError) as caught:
        Collector(Deadline.after(0)).add_chunk(b"x")
    assert caught.value.reason == "timeout"
