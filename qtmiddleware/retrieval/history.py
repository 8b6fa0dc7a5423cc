"""Read a conversation in any common format, and check whether a question continues it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.preprocessing.text import fold_words
from qtmiddleware.retrieval.fields import read_field
from qtmiddleware.retrieval.question_words import find_terms
from qtmiddleware.types import Degradation, Message, Query

# The names that libraries give to roles. "" drops the message: nobody said a tool's output.
_ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), ""),
}
# Messages of pydantic-ai hold parts of several roles.
_PART_ROLES: Final = {"user-prompt": "user", "system-prompt": "system", "text": "assistant"}
_CONTENTS: Final = ("content", "parts", "blocks", "text")
_TEXT_KINDS: Final = ("", "text", "input_text", "output_text")

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

    Args:
        history: messages, oldest first, or an object with ``messages``. A message is a message or
            item of OpenAI, Anthropic, Google, LangChain, LlamaIndex, Haystack or pydantic-ai, a
            (role, content) pair, or a (user, assistant) pair.
    """
    if history is None:
        return History()
    try:
        turns = _list_turns(history)
    except Exception as error:
        return History((), Degradation("history", "unreadable", type(error).__name__))
    messages: list[Message] = []
    unread_types: list[str] = []
    for turn in turns:
        try:
            messages += (part for part in _read_turn(turn) if part.role and part.content.strip())
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
    turns = history if messages is None else messages
    # A single message of LangChain is iterable too: over its fields.
    is_single = isinstance(turns, str | bytes | Mapping) or hasattr(turns, "content")
    return (turns,) if is_single else tuple(turns)


def _read_turn(turn: Any) -> list[Message]:
    """Return the messages of one *turn*. Raises an exception if the turn cannot be read."""
    if isinstance(turn, tuple | list):
        first, second = turn
        role = _ROLES.get(_read_name(first))
        if role is None:
            return [Message("user", _read_text(first)), Message("assistant", _read_text(second))]
        return [Message(role, _read_text(second))]
    if read_field(turn, "kind") in ("request", "response"):
        roles = ((part, _PART_ROLES.get(read_field(part, "part_kind"))) for part in turn.parts)
        return [
            Message(role, _read_text(read_field(part, "content"))) for part, role in roles if role
        ]
    role = _read_role(turn)
    contents = (read_field(turn, name) for name in _CONTENTS)
    content = next((content for content in contents if content is not None), None)
    # An assistant that calls a tool may say nothing.
    if content is None and role == "user":
        raise TypeError("the message has no content")
    return [Message(role, _read_text(content))] if role else []


def _read_role(turn: Any) -> str:
    """Return the role of *turn*, such as ``user``; ``""`` if nobody said it, as a tool's output."""
    if name := _read_name(read_field(turn, "role")):
        return _ROLES.get(name, name)
    # LangChain's type is "human" or "AIMessageChunk"; that of other items of OpenAI's Responses
    # API is "reasoning" or "function_call".
    if kind := _read_name(read_field(turn, "type")):
        return _ROLES.get(kind.removesuffix("chunk").removesuffix("message"), "")
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
        raise TypeError("the content is neither a text nor a list of parts")
    return "\n".join(filter(None, map(_read_part, content)))


def _read_part(part: Any) -> str:
    """Return the text of *part*; ``""`` for a part without text, such as an image or a call."""
    if isinstance(part, str):
        return part
    text = read_field(part, "text")
    kind = _read_name(read_field(part, "type") or read_field(part, "block_type"))
    # Google marks what the model thought.
    is_said = kind in _TEXT_KINDS and read_field(part, "thought") is not True
    return text if is_said and isinstance(text, str) else ""
