"""Whether a text is written in the script its query is written in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from qtmiddleware.transforms.wording import listed

# One language is written in several of these, so they pass for one another.
_KIN: Final = listed("han hani hans hant cjk japanese jpan hiragana hira katakana kana")
_SHARE_OF_TEXT: Final = 0.2
_SHARE_OF_QUERY: Final = 0.1


def is_other_script(text: str, query: str, script_of: Callable[[str], str]) -> bool:
    """Whether *text* is in another script than *query*.

    A text that mixes scripts passes where a fifth of its letters are of the query's script, or where the query itself
    mixes them: technical terms in Latin letters are part of how people write in other scripts.
    """
    asked, given = _name(script_of(query)), _name(script_of(text))
    if not asked or not given or asked == given:
        return False
    if _share(text, asked, script_of) >= _SHARE_OF_TEXT:
        return False
    return _share(query, given, script_of) < _SHARE_OF_QUERY


def _name(script: str) -> str:
    plain = script.casefold()
    return "han" if plain in _KIN else plain


def _share(text: str, script: str, script_of: Callable[[str], str]) -> float:
    letters = [char for char in text if char.isalpha()]
    of_script = {char for char in set(letters) if _name(script_of(char)) == script}
    return sum(char in of_script for char in letters) / max(1, len(letters))
