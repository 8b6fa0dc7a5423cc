"""Conversations as people keep them, read as messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.retrieval.call import prepare_query
from qtmiddleware.retrieval.history import is_new_topic, read_history
from qtmiddleware.types import Message

HI = (Message("user", "Hi"),)


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "Hi"},
        ("human", "Hi"),
        Message("user", "Hi"),
        SimpleNamespace(role="user", content=["Hi"]),
        ("Hi", None),
    ],
    ids=repr,
)
def test_a_message_may_have_any_usual_form(turn: Any) -> None:
    read = read_history([turn])
    assert (read.messages, read.problem) == (HI, None)
    assert read_history([["Hi", "Hello"]]).messages == (*HI, Message("assistant", "Hello"))


QUESTION = "What did Nike earn this year?"
ANSWER = "12 billion."
SAID = (Message("user", QUESTION), Message("assistant", ANSWER))


def langchain() -> list[Any]:
    lc = pytest.importorskip("langchain_core.messages")
    chunks = lc.AIMessageChunk(content="12 ") + lc.AIMessageChunk(content="billion.")
    call = {"name": "search", "args": {}, "id": "1"}
    tool = lc.ToolMessage("found", tool_call_id="1")
    messages = [lc.HumanMessage(QUESTION), lc.AIMessage("", tool_calls=[call]), tool, chunks]
    return [messages]


def llama_index() -> list[Any]:
    llms = pytest.importorskip("llama_index.core.llms")
    asked = llms.ChatMessage(QUESTION, role=llms.MessageRole.USER)
    picture = llms.ImageBlock(url="https://example.org/shoe.png")
    blocks = [llms.TextBlock(text=ANSWER), picture]
    return [[asked, llms.ChatMessage(role="assistant", blocks=blocks)]]


def pydantic_ai() -> list[Any]:
    ai = pytest.importorskip("pydantic_ai.messages")
    picture = ai.ImageUrl("https://example.org/shoe.png")
    run = [
        ai.ModelRequest(parts=[ai.UserPromptPart([QUESTION, picture])]),
        ai.ModelResponse(parts=[ai.ThinkingPart("Let me see."), ai.ToolCallPart("search", {})]),
        ai.ModelRequest(parts=[ai.ToolReturnPart("search", "found", tool_call_id="1")]),
        ai.ModelResponse(parts=[ai.TextPart(ANSWER)]),
    ]
    return [run]


def haystack() -> list[Any]:
    chat = pytest.importorskip("haystack.dataclasses").ChatMessage
    return [[chat.from_user(QUESTION), chat.from_assistant(ANSWER)]]


def openai_items() -> list[Any]:
    responses, chat = pytest.importorskip("openai.types.responses"), openai.types.chat
    text = responses.ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
    call = {"name": "search", "arguments": "{}", "call_id": "1", "type": "function_call"}
    output = [
        responses.ResponseReasoningItem(id="r", summary=[], type="reasoning"),
        responses.ResponseFunctionToolCall(**call),
        responses.ResponseOutputMessage(
            id="m", content=[text], role="assistant", status="completed", type="message"
        ),
    ]
    returned = {"type": "function_call_output", "call_id": "1", "output": "found"}
    asked = {"type": "message", "role": "user", "content": [input_text(QUESTION)]}
    dumped = [item.model_dump() for item in output]
    answered = chat.ChatCompletionMessage(role="assistant", content=ANSWER)
    calling = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "search"}}]}
    tool = {"role": "tool", "tool_call_id": "1", "content": "found"}
    return [
        [asked, *output[:2], returned, output[2]],
        [asked, *dumped[:2], returned, dumped[2]],
        [{"role": "user", "content": QUESTION}, calling, tool, answered],
    ]


def input_text(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def written_as_dicts() -> list[Any]:
    """Messages of packages that are not installed, as their SDKs send and return them."""
    picture = {"type": "image", "source": {"type": "base64", "data": ""}}
    use = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    anthropic = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}, picture]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm"}, use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "x"}]},
        {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
    ]
    bedrock = [
        {"role": "user", "content": [{"text": QUESTION}, {"image": {"format": "png"}}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "1", "name": "search"}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "1", "content": []}}]},
        {"role": "assistant", "content": [{"reasoningContent": {}}, {"text": ANSWER}]},
    ]
    google = [
        {"role": "user", "parts": [{"text": QUESTION}, {"inline_data": {"data": b""}}]},
        {"role": "model", "parts": [{"function_call": {"name": "search"}}]},
        {"role": "function", "parts": [{"function_response": {"name": "search"}}]},
        {"role": "model", "parts": [{"text": "Hm", "thought": True}, {"text": ANSWER}]},
    ]
    return [anthropic, bedrock, google]


MAKERS = [langchain, llama_index, haystack, pydantic_ai, openai_items, written_as_dicts]


@pytest.mark.parametrize("make", MAKERS)
def test_the_messages_of_a_package_are_what_was_said_without_calls_tools_and_pictures(
    make: Any,
) -> None:
    for history in make():
        read = read_history(history)
        assert (read.messages, read.problem) == (SAID, None)


class Awkward:
    """Something that fails when it is looked at."""

    def __repr__(self) -> str:
        return "Awkward()"

    @property
    def role(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "turn",
    ["Hi there", None, ("user",), ("user", 7), {"role": 1, "content": "x"}, Awkward()],
    ids=repr,
)
def test_what_is_no_message_is_skipped_and_told_without_its_text(turn: Any) -> None:
    read = read_history([turn, ("user", "Hi")])
    assert read.messages == HI
    assert read.problem is not None
    assert (read.problem.stage, read.problem.reason) == ("history", "unreadable")
    assert read.problem.detail == f"1 of 2 messages could not be read ({type(turn).__name__})"


TALK = (
    Message("user", "What group did Frank Zappa break up in 1969?"),
    Message(
        "assistant", "Frank Zappa broke up the Mothers of Invention, citing the financial strain."
    ),
)


def asks_anew(question: str, history: tuple[Message, ...] = TALK) -> bool:
    return is_new_topic(prepare_query(question, Settings()), history)


@pytest.mark.parametrize(
    "question",
    [
        "What is the boiling point of liquid nitrogen at sea level?",
        "how do vaccines protect children against measles",
        "Which rivers flow through Hamburg, Dresden and Prague?",
    ],
)
def test_a_question_whose_words_were_not_said_before_opens_a_new_topic(question: str) -> None:
    assert asks_anew(question)


@pytest.mark.parametrize(
    "question",
    [
        "What other famous bands did break up that decade?",  # points back
        "And the drummer?",  # says too little
        "Did Frank Zappa ever regret the break up of the Mothers of Invention?",  # goes on with the topic
        "Welche Flüsse fließen durch Hamburg, Dresden und Prag?",  # a language without a list of references
        "ハンブルクを流れる川は何ですか",
        "",
    ],
)
def test_a_question_that_may_go_on_with_the_conversation_opens_no_new_topic(question: str) -> None:
    assert not asks_anew(question)
