"""Conversations as people keep them, read as messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import Settings
from qtmiddleware.retrieval.history import is_new_topic, read_history
from qtmiddleware.retrieval.request import prepare_query
from qtmiddleware.types import Message

HI = (Message("user", "Hi"),)


class Role(StrEnum):
    """A role as LlamaIndex has it."""

    USER = "user"


@dataclass
class Turn:
    """A message as some libraries have it."""

    role: Any
    content: Any


@dataclass
class HumanMessage:
    """A message as LangChain has it: its type says who speaks."""

    content: Any
    type: str = "human"
    additional_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class TextBlock:
    """A part of a message as LlamaIndex has it."""

    text: str
    block_type: str = "text"


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {}}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"type": "human", "data": {"content": "Hi", "type": "human"}},
        {"content": "Hi"},
        ("user", "Hi"),
        ("human", "Hi"),
        ["user", "Hi"],
        Turn("user", "Hi"),
        Turn(Role.USER, "Hi"),
        Turn(Role.USER, [TextBlock("Hi")]),
        SimpleNamespace(role=Role.USER, blocks=[TextBlock("Hi")]),
        Message("user", "Hi"),
        HumanMessage("Hi"),
        HumanMessage(["Hi"]),
        HumanMessage([{"type": "text", "text": "Hi"}]),
        ("Hi", None),
    ],
    ids=repr,
)
def test_a_message_may_have_any_usual_form(turn: Any) -> None:
    read = read_history([turn])
    assert (read.messages, read.problem) == (HI, None)


@pytest.mark.parametrize("pair", [("Hi", "Hello"), ["Hi", "Hello"]])
def test_a_pair_without_a_role_is_what_the_user_and_what_the_assistant_said(pair: Any) -> None:
    assert read_history([pair]).messages == (*HI, Message("assistant", "Hello"))


def test_roles_have_one_name_each_whatever_a_library_calls_them() -> None:
    names = ["user", "human", "assistant", "ai", "model", "system", "developer", "moderator"]
    told = [
        message.role
        for message in read_history([{"role": name, "content": "x"} for name in names]).messages
    ]
    assert told == [
        "user",
        "user",
        "assistant",
        "assistant",
        "assistant",
        "system",
        "system",
        "moderator",
    ]


def test_what_a_tool_gave_is_nothing_anybody_said() -> None:
    calls = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "function": {"name": "search"}}],
    }
    read = read_history(
        [calls, {"role": "tool", "tool_call_id": "1", "content": "{}"}, ("user", "Hi")]
    )
    assert (read.messages, read.problem) == (HI, None)


@pytest.mark.parametrize(
    "turn", [{"role": "user", "content": None}, ("assistant", ""), ("user", " \n")]
)
def test_a_blank_message_goes(turn: Any) -> None:
    read = read_history([turn, ("user", "Hi")])
    assert (read.messages, read.problem) == (HI, None)


class Awkward:
    """Something that fails when it is looked at."""

    def __repr__(self) -> str:
        return "Awkward()"

    @property
    def role(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "turn",
    [
        *(
            "Hi there",
            7,
            None,
            ("user",),
            ("a", "b", "c"),
            {"role": 1, "content": "x"},
            ("user", 7),
        ),
        *({"role": "user", "content": [1]}, {"role": "user"}, Awkward()),
    ],
    ids=repr,
)
def test_what_is_no_message_is_skipped_and_told_without_its_text(turn: Any) -> None:
    read = read_history([turn, ("user", "Hi")])
    assert read.messages == HI
    assert read.problem is not None
    assert (read.problem.stage, read.problem.reason) == ("history", "unreadable")
    assert read.problem.detail == f"1 of 2 messages could not be read ({type(turn).__name__})"


def broken() -> Iterator[Any]:
    yield ("user", "Hi")
    raise OSError("gone")


@pytest.mark.parametrize(
    "history", ["Hi there", b"Hi", 7, broken()], ids=["text", "bytes", "number", "broken"]
)
def test_what_is_no_history_is_told_and_not_raised(history: Any) -> None:
    read = read_history(history)
    assert read.messages == ()
    assert read.problem is not None


@pytest.mark.parametrize("nothing", [None, (), [], iter(())])
def test_no_history_is_no_conversation(nothing: Any) -> None:
    read = read_history(nothing)
    assert (read.messages, read.problem) == ((), None)


def test_a_history_may_be_kept_by_an_object() -> None:
    assert read_history(SimpleNamespace(messages=[HumanMessage("Hi")])).messages == HI
    assert read_history({"messages": [HumanMessage("Hi")]}).messages == HI
    assert read_history({"role": "user", "content": "Hi"}).messages == HI


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(
            st.sampled_from(["role", "type", "content", "parts", "text", "data", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_anything_is_read_or_told(history: Any) -> None:
    read = read_history(history)
    assert all(isinstance(it, Message) and it.content.strip() for it in read.messages)


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
        "Why did he think musicians lacked effort and discipline?",
        "it's known for which albums, singles and tours?",
        "And the drummer?",  # says too little
        "Why?",
        "Did Frank Zappa ever regret the break up of the Mothers of Invention?",  # goes on with the topic
        "Welche Flüsse fließen durch Hamburg, Dresden und Prag?",  # a language without a list of references
        "ハンブルクを流れる川は何ですか",
        "",
    ],
)
def test_a_question_that_may_go_on_with_the_conversation_opens_no_new_topic(question: str) -> None:
    assert not asks_anew(question)


def test_a_question_that_stands_in_the_history_itself_opens_no_new_topic() -> None:
    question = "What is the boiling point of liquid nitrogen at sea level?"
    assert not asks_anew(question, (*TALK, Message("user", question)))


@given(st.text(max_size=80), st.lists(st.text(max_size=80), max_size=3))
def test_no_text_stops_the_look_for_a_new_topic(question: str, said: list[str]) -> None:
    assert asks_anew(question, tuple(Message("user", text) for text in said)) in (True, False)
