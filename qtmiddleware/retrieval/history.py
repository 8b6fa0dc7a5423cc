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

# The names that libraries give to roles. "" drops the message: a tool's output is not a message.
_ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "bot", "chatbot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), ""),
}
_TEXT_PARTS: Final = frozenset({"", "text", "input_text", "output_text"})

# A question opens a new topic if at least this many of its keywords, and at least this fraction of
# them, do not occur in the conversation.
NEW_WORDS: Final = 4
NEW_SHARE: Final = 2 / 3
# Shorter words tell little about the topic: if, so, up.
_MIN_LETTERS: Final = 3


@dataclass(frozen=True, slots=True)
class History:
    """The messages of a conversation that could be read.

    Attributes:
        messages: The messages, oldest first.
        problem: How many messages could not be read, and their types; ``None`` if all were read.
    """

    messages: tuple[Message, ...] = ()
    problem: Degradation | None = None


def read_history(history: Any) -> History:
    """Return the messages of *history*, and a problem if some messages cannot be read.

    Blank messages, tool outputs and unreadable messages are left out. Never raises.

    Args:
        history: An iterable of turns, or an object with turns in its ``messages``. A turn is one
            of:

            - a mapping or object with a role and a content, such as a message from OpenAI,
              LangChain or LlamaIndex
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
            turn_messages = _read_turn(turn)
        except Exception:
            # Reading somebody else's object may raise anything.
            turn_messages = None
        if turn_messages is None:
            unread_types.append(type(turn).__name__)
        else:
            messages.extend(
                message
                for message in turn_messages
                if message.role and message.content and not message.content.isspace()
            )
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
    references = load_lexicon(query.language).references if query.language else frozenset[str]()
    if not references or not references.isdisjoint(
        word.partition("'")[0] for word in fold_words(query.original)
    ):
        return False
    words = {word for word in find_terms(query.keywords) if len(word) >= _MIN_LETTERS}
    if len(words) < NEW_WORDS:
        return False
    new_words = words - find_terms(" ".join(message.content for message in history))
    return len(new_words) >= max(NEW_WORDS, NEW_SHARE * len(words))


def _list_turns(history: Any) -> Sequence[Any]:
    """Return the turns of *history*, which may have any format that `read_history` accepts."""
    if history is None:
        return ()
    if isinstance(history, str | bytes):
        return (history,)
    messages = read_field(history, "messages")
    if isinstance(messages, Iterable):
        return tuple(messages)
    return (
        (history,)
        if isinstance(history, Mapping) or not isinstance(history, Iterable)
        else tuple(history)
    )


def _read_turn(turn: Any) -> list[Message] | None:
    """Return the messages of one *turn*; ``None`` if the turn cannot be read.

    A (user, assistant) pair gives two messages. Any other turn gives one message.
    """
    if isinstance(turn, tuple | list):
        return _read_pair(turn) if len(turn) == 2 else None
    data = read_field(turn, "data")  # LangChain's own JSON nests the message in "data".
    holder = data if isinstance(data, Mapping) and read_field(turn, "content") is None else turn
    role = _read_role(turn)
    contents = (read_field(holder, name) for name in ("content", "parts", "blocks", "text"))
    content = next((content for content in contents if content is not None), None)
    if role is None or (content is None and not _has_content(holder)):
        return None
    text = _read_text(content)
    return None if text is None else [Message(role, text)]


def _read_pair(turn: Sequence[Any]) -> list[Message] | None:
    """Return the messages of a (role, content) or (user, assistant) pair.

    Returns ``None`` if the pair cannot be read.
    """
    first, second = turn
    role = _ROLES.get(first.casefold()) if isinstance(first, str) else None
    if role is None and isinstance(getattr(first, "value", None), str):
        role = _ROLES.get(first.value.casefold())
    if role is not None:
        text = _read_text(second)
        return None if text is None else [Message(role, text)]
    question, answer = _read_text(first), _read_text(second)
    if question is None or answer is None:
        return None
    return [Message("user", question), Message("assistant", answer)]


def _read_role(turn: Any) -> str | None:
    """Return the role of *turn*, such as ``user``.

    - If *turn* is a tool's output, the role is ``""``.
    - If *turn* is a mapping without a role, the role is ``user``.
    - If *turn* is any other object without a role, ``None`` is returned.
    """
    role = read_field(turn, "role")
    if role is None:
        kind = read_field(turn, "type")
        role = kind if isinstance(kind, str) and kind.casefold() in _ROLES else None
        if role is None:
            return "user" if isinstance(turn, Mapping) else None
    role = getattr(role, "value", role)
    return _ROLES.get(role.casefold(), role) if isinstance(role, str) and role else None


def _has_content(holder: Any) -> bool:
    """Return whether *holder* has a field ``content``, even if its value is ``None``."""
    return "content" in holder if isinstance(holder, Mapping) else hasattr(holder, "content")


def _read_text(content: Any) -> str | None:
    """Return the text of a message's *content*; ``None`` if it cannot be read.

    *content* is a string or a list of content parts, such as texts and images.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        return None
    texts = [_read_content_part(part) for part in content]
    return None if None in texts else "\n".join(text for text in texts if text)


def _read_content_part(part: Any) -> str | None:
    """Return the text of *part*, one of the content parts of a message.

    Returns ``""`` for a part that is not text, such as an image, and ``None`` for a part that
    cannot be read.
    """
    if isinstance(part, str):
        return part
    text = read_field(part, "text")
    kind = read_field(part, "type") or read_field(part, "block_type") or ""
    if isinstance(text, str) and str(getattr(kind, "value", kind)) in _TEXT_PARTS:
        return text
    return "" if kind or isinstance(text, str) else None
