"""Reading the reply that nearly every call gets, and no other: the JSON that was asked for, in plain English letters.

Nearly all of what `parse` looks for cannot stand in such a reply, and looking costs more than everything else a call
does beside waiting. So this answers only where each of those rules is known to have nothing to say, exactly as they
would all together; whatever is out of the ordinary in the slightest, it leaves to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from qtmiddleware.ports import Prompt, Reply, ReplyField
from qtmiddleware.transforms.filling import filled
from qtmiddleware.transforms.limits import MAX_CHARS, MAX_KEYWORD_CHARS, MOST_TEXTS, READ_CHARS
from qtmiddleware.transforms.noise import LEAD_INS, STATEMENT_WORDS, TALK, chatter_end
from qtmiddleware.transforms.references import points_elsewhere
from qtmiddleware.transforms.refusals import REFUSALS
from qtmiddleware.transforms.salvage import MAX_DEPTH
from qtmiddleware.transforms.wording import normal, opening_of
from qtmiddleware.types import Transformation

# Beside what is said instead of an answer, the list marks that begin with a letter.
_NO_ANSWER: Final = opening_of((*TALK, *REFUSALS, *LEAD_INS, r"[a-h]\)", r"q\d"))
_OPENING_CHARS: Final = 300
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
# As pairs, for a dictionary would not show that a key came twice.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=list)


def read_swiftly(prompt: Prompt, reply: Reply) -> Transformation | None:
    """What `parse` would make of *reply*, if that is a matter of course, else ``None``."""
    given = _members(reply)
    if not given:
        return None
    texts: dict[str, list[str]] = {}
    notes: list[tuple[str, str]] = []
    original, instructions = normal(prompt.query), _normal_system(prompt.system)
    for field in prompt.fields:
        value = given.pop(field.name, ())
        found = _texts(field, value)
        if found is None or not _are_ordinary(field, found, prompt.query, original, instructions):
            return None
        if found:
            texts[field.name] = found
        else:
            is_settled = field.name == "sub_queries" and field.min_items == 0 and value == []
            notes.append((field.name, "none needed" if is_settled else "missing"))
    made = filled(texts, notes)
    return None if given or made.is_empty else made


def _members(reply: Reply) -> dict[str, Any] | None:
    """The members of the one JSON object that *reply* is."""
    given: object = reply.text
    if reply.truncated or not isinstance(given, str) or not given.isascii():
        return None
    text = given.strip()
    if not text.startswith("{") or len(given) > READ_CHARS or text.count("{") + text.count("[") > MAX_DEPTH:
        return None
    try:
        pairs, end = _DECODER.raw_decode(text)
    except ValueError:
        return None
    members = dict(pairs)
    return members if end == len(text) and len(members) == len(pairs) else None


def _texts(field: ReplyField, value: Any) -> list[str] | None:
    """The texts that *value* holds in the very shape of *field*, none where the field is not there."""
    if value == ():
        return []
    found = value if field.shape == "list" else [value]
    if not isinstance(found, list) or len(found) > (min(field.max_items, MOST_TEXTS) if field.shape == "list" else 1):
        return None
    # A single key term may be several, with commas between them.
    return None if field.name == "keywords" and len(found) == 1 else found


def _are_ordinary(field: ReplyField, texts: Sequence[Any], query: str, original: str, instructions: str) -> bool:
    """Whether *texts* are to be searched as they are, all of them."""
    limit = MAX_KEYWORD_CHARS if field.name == "keywords" else MAX_CHARS[field.shape]
    seen = {original}
    for text in texts:
        if not isinstance(text, str) or not _is_ordinary(text, limit, field.shape):
            return False
        key = normal(text)
        if key in seen or (key in instructions and key.count(" ") >= 3):
            return False
        seen.add(key)
        if field.name == "sub_queries" and points_elsewhere(text, query):
            return False
    return True


def _is_ordinary(text: str, limit: int, shape: str) -> bool:
    """Whether no rule about marks, labels, quotes, remarks, refusals and length has anything to do with *text*."""
    return (
        text[:1] in _LETTERS
        and len(text) <= limit
        and text.isascii()
        and text.isprintable()
        and "  " not in text
        and text[-1] not in " :"
        # A short statement may be talk.
        and (text[-1] not in ".!\"'*" or text.count(" ") >= STATEMENT_WORDS[shape])
        # A colon may end a label, a bracket a remark; in a passage they are punctuation.
        and (shape == "passage" or (":" not in text and text[-1] not in ")]"))
        and not _NO_ANSWER.match(text[:_OPENING_CHARS].rstrip(" ").lower())
        and not chatter_end(text, "")
    )


@lru_cache(maxsize=32)
def _normal_system(system: str) -> str:
    return normal(system)
