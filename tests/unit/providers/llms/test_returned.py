"""What functions return in place of a text is read, whoever's form it has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.completion import Completion
from openai.types.responses import Response

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, ReplyField
from qtmiddleware.providers.llms.callable import read_answer
from qtmiddleware.providers.llms.openai.prices import Prices
from tests.support import completions

PROMPT = Prompt("rewrite", "1", "s", "u", (ReplyField("rewrite", "line", "the question"),), "q")
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
USED = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


def completion(**more: Any) -> dict[str, Any]:
    return completions.completion(
        more.pop("content", "said"), usage=None, model="gpt-4o-mini", **more
    )


def response(**more: Any) -> Response:
    parts = [{"type": "output_text", "text": "said", "annotations": []}]
    output = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": parts,
        },
    ]
    fixed = {
        "id": "r",
        "created_at": 0,
        "model": "gpt-4o-mini",
        "object": "response",
        "tools": [],
        "error": None,
    }
    return Response.model_construct(
        **Response.model_validate(
            {**fixed, "output": output, "tool_choice": "auto", "parallel_tool_calls": False, **more}
        ).__dict__
    )


AN_AI_MESSAGE = SimpleNamespace(
    content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "sa"}, "id"],
    usage_metadata=USED,
    response_metadata={"model_name": "gpt-4o-mini-2024-07-18", "finish_reason": "stop"},
)
RETURNED: dict[str, tuple[Any, tuple[int, int]]] = {
    "text": ("said", (0, 0)),
    "chat completion": (ChatCompletion.model_validate({**completion(), "usage": USAGE}), (3, 4)),
    "the same as a dict": ({**completion(), "usage": USAGE}, (3, 4)),
    "one of litellm": (
        SimpleNamespace(**{**completion(), "usage": SimpleNamespace(**USAGE)}),
        (3, 4),
    ),
    "old completion": (
        Completion.model_validate(
            {
                **completion(),
                "object": "text_completion",
                "usage": USAGE,
                "choices": [
                    {"index": 0, "text": "said", "finish_reason": "stop", "logprobs": None}
                ],
            }
        ),
        (3, 4),
    ),
    "response": (response(), (0, 0)),
    "message of LangChain": (AN_AI_MESSAGE, (3, 4)),
    "its text alone": (SimpleNamespace(content="said", usage_metadata=None), (0, 0)),
    "message of Anthropic": (
        {"content": [{"type": "text", "text": "said"}], "usage": USED},
        (3, 4),
    ),
    "response of LlamaIndex": (
        SimpleNamespace(message=SimpleNamespace(content="said"), raw={"usage": USAGE}),
        (3, 4),
    ),
    "converse of Bedrock": (
        {
            "output": {"message": {"content": [{"text": "said"}]}},
            "usage": {"inputTokens": 3, "outputTokens": 4},
        },
        (3, 4),
    ),
    "chat of Ollama": (
        {"message": {"role": "assistant", "content": "said"}, "done_reason": "stop"},
        (0, 0),
    ),
    **{
        f"dict with {name}": ({name: "said"}, (0, 0))
        for name in ("text", "content", "output", "response", "message")
    },
}


def read(answer: Any) -> Any:
    return read_answer(answer, PROMPT, "fn", Prices)


@pytest.mark.parametrize("name", RETURNED)
def test_every_form_of_an_answer_is_read_with_its_tokens(name: str) -> None:
    answer, tokens = RETURNED[name]
    reply = read(answer)
    assert (reply.text, reply.truncated, (reply.input_tokens, reply.output_tokens)) == (
        "said",
        False,
        tokens,
    )


def test_the_names_of_an_answer_are_those_of_the_service() -> None:
    message = SimpleNamespace(**vars(AN_AI_MESSAGE) | {"id": "lc_run--1"})
    message.response_metadata = {**message.response_metadata, "id": "chatcmpl-7"}
    raw = {"model": "gpt-4o-mini", "id": "chatcmpl-8"}
    for answer, names in [
        ("said", ("", "")),
        (RETURNED["response"][0], ("gpt-4o-mini", "r")),
        (message, ("gpt-4o-mini-2024-07-18", "chatcmpl-7")),
        (
            SimpleNamespace(message=SimpleNamespace(content="said"), raw=raw),
            ("gpt-4o-mini", "chatcmpl-8"),
        ),
    ]:
        reply = read(answer)
        assert (reply.model, reply.id) == names


def test_what_it_cost_is_told_where_the_answer_names_its_model() -> None:
    for name in ("chat completion", "message of LangChain"):
        assert read(RETURNED[name][0]).cost_usd == pytest.approx((3 * 0.15 + 4 * 0.6) / 1e6)
    assert (
        read(SimpleNamespace(content="said", _hidden_params={"response_cost": 0.25})).cost_usd
        == 0.25
    )
    assert read({**completion(), "usage": USAGE, "model": "unknown"}).cost_usd is None


@pytest.mark.parametrize(
    "answer",
    [
        {"content": [{"type": "text", "text": "sa"}], "stop_reason": "max_tokens"},
        SimpleNamespace(content="sa", response_metadata={"finish_reason": "length"}),
        {"message": {"content": "sa"}, "done_reason": "length"},
        response(status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        {**completion(), "choices": [{"message": {"content": "sa"}, "finish_reason": "length"}]},
    ],
)
def test_an_answer_that_was_cut_off_says_so(answer: Any) -> None:
    assert read(answer).truncated


def test_the_fields_that_were_asked_for_may_come_as_a_dict() -> None:
    assert json.loads(read({"rewrite": "Héllo", "text": "x"}).text) == {
        "rewrite": "Héllo",
        "text": "x",
    }


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "unparsable"),
        (7, "unparsable"),
        (b"x", "unparsable"),
        (["said"], "unparsable"),
        ({"a": 1}, "unparsable"),
        ({}, "unparsable"),
        ("  ", "empty"),
        ({"content": []}, "empty"),
        ({"choices": []}, "empty"),
        ({**completion(content=None)}, "empty"),
        ({**completion(content=None, refusal="no")}, "refused"),
        ({"content": [], "stop_reason": "refusal"}, "refused"),
        ({"error": {"code": 429}}, "rate_limited"),
        ({"content": "", "stop_reason": "max_tokens"}, "truncated"),
    ],
)
def test_what_holds_no_text_says_why(answer: Any, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(answer)
    assert caught.value.reason == reason
    if reason == "unparsable":
        assert "fn returned" in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "content",
                    "text",
                    "message",
                    "output",
                    "usage",
                    "type",
                    "error",
                    "model",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(answer=JSON)
def test_whatever_is_returned_is_a_text_that_can_be_written_or_a_model_error(answer: Any) -> None:
    try:
        reply = read(answer)
    except ModelError:
        return
    assert reply.text.strip()
    reply.text.encode()
