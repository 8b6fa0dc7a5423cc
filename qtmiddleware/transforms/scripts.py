"""Whether a text is written in the script its query is written in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from qtmiddleware.transforms.wording import listed

# One language is written in several of these, so they pass for one another.
_KIN: Final = listed("han hani hans hant cjk japanese jpan hiragana hira katakana kana")
_SHARE_OF_TEXT: Final = 0.2
_SHARE_OF_QUERY: Final = 0.1


def is_other_script(text: str, query: str, script_of: Callable[[str], str]) -> bool:
    """Whether *text* is in another script than *query*.

    A text that mixes scripts passes where a fifth of its letters are of the query's script, or any if the query mixes
    the same. A text in a script that is a part of the query passes too, unless that part is Latin: there it is the
    technical terms.
    """
    if text.isascii() and query.isascii():
        return False  # Both are Latin, or without letters.
    asked, given = _script(query, script_of), _script(text, script_of)
    if not asked or not given or asked == given:
        return False
    in_text, in_query = _share(text, asked, script_of), _share(query, given, script_of)
    if in_text >= _SHARE_OF_TEXT or (in_text and in_query):
        return False
    return given == "latin" or in_query < _SHARE_OF_QUERY


def _script(text: str, script_of: Callable[[str], str]) -> str:
    """The script of *text*, where long technical terms in Latin letters do not outvote the words around them."""
    script = _name(script_of(text))
    if script != "latin" or text.isascii():
        return script
    others = Counter(_name(script_of(char)) for char in text if char.isalpha() and not char.isascii())
    del others["latin"]
    likeliest, letters = max(others.items(), key=lambda item: item[1], default=("", 0))
    # A character of Han is about a word; elsewhere a word has some five.
    weight = letters if likeliest in {"han", "hangul"} else letters / 5
    return likeliest if weight and weight >= len(re.findall("[A-Za-z]+", text)) else script


def _name(script: str) -> str:
    plain = script.casefold()
    return "han" if plain in _KIN else plain


def _share(text: str, script: str, script_of: Callable[[str], str]) -> float:
    letters = [char for char in text if char.isalpha()]
    of_script = {char for char in set(letters) if _name(script_of(char)) == script}
    return sum(char in of_script for char in letters) / max(1, len(letters))
