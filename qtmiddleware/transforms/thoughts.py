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
_EDGE: Final = re.compile(r"^(?:\s|<\|\w+\|>|<s>)+|(?:\s|<\|\w+\|>|</s>){1,50}$")


def without_thoughts(text: str) -> tuple[str, bool]:
    """The answer in *text*, and whether *text* ended before the thinking did.

    Some models leave out the opening mark; a reply that begins as JSON is taken as the answer even so, for the mark may
    stand in one of its texts. Of an enormous reply only the beginning is looked at.
    """
    text = text[:_LOOKED_AT]
    while _OPEN.match(text):
        end = _CLOSE.search(text)
        if not end:
            return "", True
        text = text[end.end() :]
    if not text.lstrip().startswith(("{", "[", '"', "```")):
        end = _CLOSE.search(text)
        text = text[end.end() :] if end else text
    if text and text[0] in "{[" and text[-1] in "}]":
        return text, False
    return _EDGE.sub("", text), False
