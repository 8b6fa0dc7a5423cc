"""A conversation as messages, out of whatever form people keep it in, and whether a question goes on with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qtmiddleware.preprocessing.lexicon import load
from qtmiddleware.preprocessing.text import fold_words
from qtmiddleware.retrieval.bm25 import find_terms
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.types import Degradation, Message, Query

# What libraries call those who speak. A tool's output is nothing anybody said.
_ROLES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "bot", "chatbot"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), ""),
}
_TEXT_PARTS: Final = frozenset({"", "text", "input_text", "output_text"})

# So many content words of a question that opens a new topic were not said before, and so large a
# share of them.
NEW_WORDS: Final = 4
NEW_SHARE: Final = 2 / 3
# Shorter words tell little: if, so, up.
_MIN_LETTERS: Final = 3


@dataclass(frozen=True, slots=True)
class History:
    """The *messages* that could be read, oldest first; *problem* says how many could not, without any text."""

    messages: tuple[Message, ...] = ()
    problem: Degradation | None = None


def read_history(history: Any) -> History:
    """Returns *history* as messages; raises nothing.

    It is an iterable of mappings or objects with a role and a content, of (role, content) pairs or
    of (user, assistant) pairs, or an object that keeps such as its ``messages``: those of OpenAI
    with content parts, of LangChain and of LlamaIndex among them. Blank messages and the output of
    tools are left out; what cannot be read is skipped, and
    *problem* says how much.
    """
    try:
        turns = _list_turns(history)
    except Exception as error:
        return History((), Degradation("history", "unreadable", type(error).__name__))
    messages: list[Message] = []
    unread: list[str] = []
    for turn in turns:
        try:
            read = _read_turn(turn)
        except Exception:
            # Somebody else's object, which may do anything when it is looked at.
            read = None
        if read is None:
            unread.append(type(turn).__name__)
        else:
            messages.extend(
                it for it in read if it.role and it.content and not it.content.isspace()
            )
    if not unread:
        return History(tuple(messages))
    kinds = ", ".join(dict.fromkeys(unread[:3]))
    detail = f"{len(unread)} of {len(turns)} messages could not be read ({kinds})"
    return History(tuple(messages), Degradation("history", "unreadable", detail))


def opens_new_topic(query: Query, history: Sequence[Message]) -> bool:
    """Returns whether *query* stands alone, by its words: it points to nothing, and most of them were not said before.

    True where no word refers to something else (he, this, other), and at least `NEW_WORDS`
    keywords, and `NEW_SHARE` of all, stand nowhere in *history*. That is seldom wrong and often
    silent: false says nothing. Where the language of the query is unknown or its word list has no
    ``references`` it is false.
    """
    references = load(query.language).references if query.language else frozenset[str]()
    if not references or not references.isdisjoint(
        word.partition("'")[0] for word in fold_words(query.original)
    ):
        return False
    words = {word for word in find_terms(query.keywords) if len(word) >= _MIN_LETTERS}
    if len(words) < NEW_WORDS:
        return False
    new = words - find_terms(" ".join(message.content for message in history))
    return len(new) >= max(NEW_WORDS, NEW_SHARE * len(words))


def _list_turns(history: Any) -> Sequence[Any]:
    if history is None:
        return ()
    if isinstance(history, str | bytes):
        return (history,)
    kept = read_field(history, "messages")
    if isinstance(kept, Iterable):
        return tuple(kept)
    return (
        (history,)
        if isinstance(history, Mapping) or not isinstance(history, Iterable)
        else tuple(history)
    )


def _read_turn(turn: Any) -> list[Message] | None:
    """The messages of one turn: one, or two of a (user, assistant) pair; ``None`` where it cannot be read."""
    if isinstance(turn, tuple | list):
        return _read_pair(turn) if len(turn) == 2 else None
    data = read_field(turn, "data")  # LangChain's own JSON keeps the message one level down
    holder = data if isinstance(data, Mapping) and read_field(turn, "content") is None else turn
    role = _read_role(turn)
    named = (read_field(holder, name) for name in ("content", "parts", "blocks", "text"))
    content = next((it for it in named if it is not None), None)
    if role is None or (content is None and not _has_content(holder)):
        return None
    text = _read_text(content)
    return None if text is None else [Message(role, text)]


def _read_pair(turn: Sequence[Any]) -> list[Message] | None:
    first, second = turn
    role = _ROLES.get(first.casefold()) if isinstance(first, str) else None
    if role is None and isinstance(getattr(first, "value", None), str):
        role = _ROLES.get(first.value.casefold())
    if role is not None:
        text = _read_text(second)
        return None if text is None else [Message(role, text)]
    asked, answered = _read_text(first), _read_text(second)
    if asked is None or answered is None:
        return None
    return [Message("user", asked), Message("assistant", answered)]


def _read_role(turn: Any) -> str | None:
    """Who speaks, by the names the prompts know; ``None`` where that is no name."""
    role = read_field(turn, "role")
    if role is None:
        kind = read_field(turn, "type")
        role = kind if isinstance(kind, str) and kind.casefold() in _ROLES else None
        if role is None:
            # A message that says nothing of who speaks is the user's.
            return "user" if isinstance(turn, Mapping) else None
    role = getattr(role, "value", role)
    return _ROLES.get(role.casefold(), role) if isinstance(role, str) and role else None


def _has_content(holder: Any) -> bool:
    return "content" in holder if isinstance(holder, Mapping) else hasattr(holder, "content")


def _read_text(content: Any) -> str | None:
    """The text of a message's content, or of its parts; ``None`` where that is neither."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        return None
    texts = [_read_part(part) for part in content]
    return None if None in texts else "\n".join(text for text in texts if text)


def _read_part(part: Any) -> str | None:
    """The text of one part; ``""`` for a picture and the like."""
    if isinstance(part, str):
        return part
    text = read_field(part, "text")
    kind = read_field(part, "type") or read_field(part, "block_type") or ""
    if isinstance(text, str) and str(getattr(kind, "value", kind)) in _TEXT_PARTS:
        return text
    return "" if kind or isinstance(text, str) else None
