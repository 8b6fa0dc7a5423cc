"""What a reasoning model says to itself before it answers."""

from __future__ import annotations

import re
from typing import Final

_LOOKED_AT: Final = 1_000_000
_OPEN: Final = re.compile(
    r"\s*(?:<(?:think|thinking|thought|thoughts|reasoning|scratchpad)>|\[THINK\]|◁think▷|<\|channel\|>\s*analysis)",
    re.IGNORECASE,
)
_CLOSE: Final = re.compile(
    r"</(?:think|thinking|thought|thoughts|reasoning|scratchpad)>|\[/THINK\]|◁/think▷"
    r"|<\|channel\|>\s*final\s*<\|message\|>",
    re.IGNORECASE,
)
# White space is looked through from its beginning alone, or a run of it would be read from each of its places.
_EDGE: Final = re.compile(r"^(?:\s|<\|\w+\|>|<s>)+|(?<!\s)\s*+(?:(?:<\|\w+\|>|</s>)\s*+){0,16}$")


def without_thoughts(text: str) -> tuple[str, bool]:
    """The answer in *text*, and whether *text* ended before the thinking did.

    Some models leave out the opening mark; a reply that begins as JSON is taken as the answer even so, for the mark may
    stand in one of its texts. Of an enormous reply only the beginning is looked at.
    """
    place = 0
    text = text[:_LOOKED_AT]
    while _OPEN.match(text, place):
        end = _CLOSE.search(text, place)
        if not end:
            return "", True
        place = end.end()
    text = text[place:]
    if not text.lstrip().startswith(("{", "[", '"', "```")):
        end = _CLOSE.search(text)
        text = text[end.end() :] if end else text
    if text and text[0] in "{[" and text[-1] in "}]":
        return text, False
    return _EDGE.sub("", text), False
