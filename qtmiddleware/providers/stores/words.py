"""What a full-text index is given of a passage, and how it is asked for words."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from typing import Final

CATEGORIES: Final = "L* N* M* Co"
"""The Unicode categories a word is made of: letters, numbers, the marks that are written on them, private use."""

_WORD: Final = r"[\p{L}\p{N}\p{M}\p{Co}]+"
# Scripts without spaces between words, and Hangul, whose words carry their particles.
_UNSPACED: Final = (
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff"
    r"\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


_PLAIN_WORDS: Final = bytes(ord(chr(code).lower()) if chr(code).isalnum() else 32 for code in range(128)) + bytes(128)
"""What is no letter or number of a plain text is a gap between its words; the letters are small."""


def index_text(text: str, metadata: str) -> str:
    """The words of a passage with spaces between them: those of *text*, and of ``context`` in its *metadata* (JSON).

    Of scripts without spaces each character is a word, and so is each pair of neighbours. Case is folded, with ß for ss
    and one sigma for all; accents are left to the index.
    """
    if '"context"' in metadata:
        context = json.loads(metadata).get("context")
        if isinstance(context, str):
            text = f"{text}\n{context.encode('utf-8', 'replace').decode()}"
    if text.isascii():
        return text.encode().translate(_PLAIN_WORDS).decode()
    return " ".join(_words(text, singles=True))


def query_words(text: str) -> list[str]:
    """The words of a query, each once; of scripts without spaces the pairs, or the one character there is."""
    return list(dict.fromkeys(_words(text, singles=False)))


def _words(text: str, *, singles: bool) -> Iterator[str]:
    import regex

    for word in regex.findall(_WORD, unicodedata.normalize("NFKC", text).casefold()):
        last = 0
        for run in regex.finditer(_UNSPACED, word):
            start, end = run.span()
            if start > last:
                yield word[last:start]
            if singles or end - start == 1:
                yield from word[start:end]
            yield from (word[at : at + 2] for at in range(start, end - 1))
            last = end
        if last < len(word):
            yield word[last:]
