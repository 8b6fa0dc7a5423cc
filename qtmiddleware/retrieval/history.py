"""Read a conversation in any common format, and check whether a question continues it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.preprocessing.text import fold_words
from qtmiddleware.retrieval.bm25 import find_terms
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.types import Degradation, Message, Query

# The names that libraries give to roles. "" drops the message: nobody said a tool's output.
_ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "bot", "chatbot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "remove"), ""),
}
_PART_ROLES: Final = {"user-prompt": "user", "system-prompt": "system", "text": "assistant"}
_CONTENTS: Final = ("content", "parts", "blocks", "text", "message")
_TOOL_CALLS: Final = ("tool_calls", "function_call")
_TEXT_KINDS: Final = frozenset({"text", "input_text", "output_text", "text-content"})

# A question opens a new topic if at least this many of its keywords, and at least this fraction of
# them, do not occur in the conversation.
NEW_WORDS: Final = 4
NEW_SHARE: Final = 2 / 3
# Shorter words tell little about the topic: if, so, up.
_MIN_LETTERS: Final = 3


@dataclass(frozen=True, slots=True)
class History:
    """The messages of a conversation that could be read, and how many could not."""

    messages: tuple[Message, ...] = ()
    problem: Degradation | None = None


def read_history(history: Any) -> History:
    """Return the messages of *history*, and a problem if some messages cannot be read.

    Blank messages, tool calls, tool outputs and unreadable messages are left out. Never raises.

            - a mapping or object with a role and a content, such as a message or item of OpenAI,
              LangChain, LlamaIndex, pydantic-ai, Anthropic, Bedrock or Google
            - a (role, content) pair
            - a (user, assistant) pair
    """
    try:
        turns = _list_turns(history)
    except Exception as error:
        return History((), Degradation("history", "unreadable", type(error).__name__))
    messages: list[Message] = []
    unread_types: list[str] = []
    for turn in turns:
        try:
            messages += (it for it in _read_turn(turn) if it.role and it.content.strip())
        # Reading somebody else's object may raise anything.
        except Exception:
            unread_types.append(type(turn).__name__)
    if not unread_types:
        return History(tuple(messages))
    kinds = ", ".join(dict.fromkeys(unread_types[:3]))
    detail = f"{len(unread_types)} of {len(turns)} messages could not be read ({kinds})"
    return History(tuple(messages), Degradation("history", "unreadable", detail))


def is_new_topic(query: Query, history: Sequence[Message]) -> bool:
    """Return whether *query* clearly starts a new topic.

    Both conditions must be met:

    - *query* has no word that refers back to something, such as "he", "this" or "other".
    - At least `NEW_WORDS` of its keywords, and at least the fraction `NEW_SHARE` of them, do not
      occur in *history*.

    False only means that the words of *query* do not show a new topic. The result is always false
    if the language is unknown, or if its word list has no ``references``.
    """
    references = load_lexicon(query.language).references if query.language else frozenset()
    if not references or not references.isdisjoint(
        word.partition("'")[0] for word in fold_words(query.original)
    ):
        return False
    words = {word for word in find_terms(query.keywords) if len(word) >= _MIN_LETTERS}
    if len(words) < NEW_WORDS:
        return False
    new_words = words - find_terms(" ".join(message.content for message in history))
    return len(new_words) >= max(NEW_WORDS, NEW_SHARE * len(words))


def _list_turns(history: Any) -> tuple[Any, ...]:
    messages = read_field(history, "messages")
    turns = messages if isinstance(messages, Iterable) else history
    if turns is None:
        return ()
    # A single message of LangChain or LlamaIndex is iterable too: over its fields.
    is_single = isinstance(turns, str | bytes | Mapping) or not isinstance(turns, Iterable)
    return (turns,) if is_single or hasattr(turns, "content") else tuple(turns)


def _read_turn(turn: Any) -> list[Message]:
    """Return the messages of one *turn*. Raises an exception if the turn cannot be read."""
    if isinstance(turn, tuple | list):
        first, second = turn
        role = _ROLES.get(_read_name(first))
        if role is not None:
            return [Message(role, _read_text(second))]
        return [Message("user", _read_text(first)), Message("assistant", _read_text(second))]
    content = next(filter(None, (read_field(turn, name) for name in _CONTENTS)), None)
    for wrapper in ("data", "kwargs", "raw_item"):
        # LangChain's own JSON (two kinds), and the items of a run in OpenAI's Agents SDK
        if content is None and (inner := read_field(turn, wrapper)) is not None:
            return _read_turn(inner)
    # A request of pydantic-ai holds the parts of several roles.
    if read_field(turn, "kind") in ("request", "response"):
        roles = ((part, _PART_ROLES.get(read_field(part, "part_kind"))) for part in content or ())
        return [Message(it, _read_text(read_field(part, "content"))) for part, it in roles if it]
    role = _read_role(turn, content)
    has_content = any(
        name in turn if isinstance(turn, Mapping) else hasattr(turn, name)
        for name in (*_CONTENTS, *_TOOL_CALLS)
    )
    if role and not has_content:
        raise TypeError("the message has no content")
    return [Message(role, _read_text(content))] if role else []


def _read_role(turn: Any, content: Any) -> str:
    """Return the role of *turn*, such as ``user``; ``""`` if nobody said it, as a tool's output."""
    if (role := read_field(turn, "role")) is not None:
        if name := _read_name(role):
            return _ROLES.get(name, name)
        raise TypeError("the role is no text")
    kind = _read_name(read_field(turn, "type"))
    # Chunks of a LangChain stream say "AIMessageChunk".
    role = _ROLES.get(kind.removesuffix("chunk").removesuffix("message"))
    if role is not None:
        return role
    # AutoGen's messages and Google's events name the agent.
    if speaker := _read_name(read_field(turn, "source") or read_field(turn, "author")):
        return _ROLES.get(speaker, "assistant")
    # Reasoning and tool calls are items of OpenAI's Responses API.
    if kind not in ("", "message") and not isinstance(content, str):
        return ""
    if isinstance(turn, Mapping):
        return "user"
    raise TypeError("the message has no role")


def _read_name(value: Any) -> str:
    """Return the name *value*, a text or an enum's member, in lower case; ``""`` for others."""
    value = getattr(value, "value", value)
    return value.casefold() if isinstance(value, str) else ""


def _read_text(content: Any) -> str:
    """Return the text of *content*, a text or a list of parts, such as texts and images."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        content = read_field(content, "parts")
    return "\n".join(filter(None, map(_read_part, content)))


def _read_part(part: Any) -> str:
    """Return the text of *part*; ``""`` for a part without text, such as an image or a call."""
    if isinstance(part, str):
        return part
    kinds = (_read_name(read_field(part, name)) for name in ("type", "block_type", "kind"))
    kind = next(filter(None, kinds), "")
    text = read_field(part, "content" if kind == "text-content" else "text")
    if isinstance(text, str) and (not kind or kind in _TEXT_KINDS):
        # Google marks what the model thought.
        return "" if read_field(part, "thought") is True else text
    # A part of Bedrock or Google is named by its only key, such as {"image": {...}}. AutoGen's
    # calls have only a name.
    is_keyed = isinstance(part, Mapping) and not any(isinstance(it, str) for it in part.values())
    if kind or is_keyed or hasattr(part, "text") or read_field(part, "name"):
        return ""
    raise TypeError("the part is of unknown kind")
