"""Reads a query into words and the things that must stay as they are written: codes, numbers, addresses, quotes.

Every piece between blanks is looked at once. All repetitions in the patterns are possessive, so nothing is tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from qtmiddleware.preprocessing.base import APOSTROPHES, Token, TokenKind

BLANKS = re.compile(r"\S+")

LEADING = "([{<¿¡\"'“”‘’‚„«»‹›,;:!?…—–―*~|`=&%/\\^\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；（「『《"
TRAILING = "?!.,;:…)]}>\"'“”‘’„«»‹›—–―-*~|`=&/\\^\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；）」』》"
ENDS = frozenset(".?!…:。？！：")

OPERATORS = frozenset(
    ["=>", "->", "<-", "::", "&&", "||", "!=", "==", "===", "!==", "<=", ">=", "<<", ">>", "++", "?.", "|>", ":=", "+="]
)  # fmt: skip

ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]{1,15}+://|www\.|mailto:)\S++", re.IGNORECASE)
EMAIL = re.compile(r"[\w.+-]++@[\w-]++(?:\.[\w-]++)++")
WORD = re.compile(r"[^\W\d_]++(?:['-][^\W\d_]++)*+")
NUMBER = re.compile(
    r"[-+±−~≈<>≤≥]{0,2}+[$€£¥₹₩₽¢]?+\.?\d++(?:[.,:/×'’–-]\d++)*+(?:\s?[%‰°]|'?s|(?:st|nd|rd|th))?+"
    r"[$€£¥₹₩₽¢]?+(?:[^\W\d_]{1,3}(?:/[^\W\d_]{1,3})?+[²³]?)?+[+]?+"
)
CURRENCIES = "$€£¥₹₩₽¢"
SIGN = re.compile(rf"(?:[{CURRENCIES}%‰]|°[CF]?)(?=[?!.,;:)]*+$)")
"""What stands behind a number, with a space between: 100 €, 5 %."""
# An amount for a time or a piece: €100/month.
AMOUNT = re.compile(r"(?:[$€£¥₹₩₽¢]\d++(?:[.,]\d++)*+|\d++(?:[.,]\d++)*+[$€£¥₹₩₽¢])/[^\W\d_]++")
CODE = re.compile(r"[.$#@]?+\w++(?:(?:[-.:/+#@&=\\~%?]|->|=>|::|:/{1,2})\w++)*+(?:\+\+?|#|\(\)|/)?+")
CALL = re.compile(r"[\w.:]++(?:\([\w.,=:]*+\)|<[\w.,:*&]*+>)")
FLAG = re.compile(r"--?[^\W\d_][\w-]*+(?:=\S++)?+")
PATH = re.compile(r"(?:~|\.{1,2})?+(?:/[\w.@+%-]++)++/?+|(?:[A-Za-z]:)?(?:\\[\w.@+%-]++)++\\?+|(?:\*|\*\*/\*)\.\w++")
TAG = re.compile(r"</?[A-Za-z][\w-]*+/?>")
DOTTED = re.compile(r"(?:[^\W\d_]\.){2,}+")
PLURAL = re.compile(r"[A-Z]{2,}+(?:'?s|')?+")

SHIFTED = 6
"""A word with two capitals at its start is a code from this length on, and a slip of the shift key below it."""

SHORTENED = frozenset(["w/o", "w/out"])
"""Words with a slash inside."""

SIGNS = frozenset("0123456789_.:#@+\\=>()~%?$")
"""What makes a piece of letters a code; the hyphen, the slash and the ampersand alone do not."""


def read(text: str, quotes: Sequence[tuple[int, int]]) -> list[Token]:
    """The pieces of *text* from left to right; *quotes* are the start and end of its quoted phrases."""
    tokens: list[Token] = []
    start, opens = 0, True
    for left, right in quotes:
        opens = _read_between(text, start, left, opens, tokens)
        tokens.append(Token("quote", text[left:right], left, right, opens, True))
        start, opens = right, False
    _read_between(text, start, len(text), opens, tokens)
    return tokens


def _read_between(text: str, start: int, end: int, opens: bool, tokens: list[Token]) -> bool:
    """Read ``text[start:end]`` into *tokens*; whether a sentence begins after it."""
    for match in BLANKS.finditer(text, start, end):
        chunk = match.group()
        if chunk.isalpha():
            kind: TokenKind = "word" if chunk.islower() else _letters(chunk)
            tokens.append(Token(kind, chunk, match.start(), match.end(), opens, False))
            opens = False
            continue
        sign = SIGN.match(chunk)
        if sign and tokens and tokens[-1].text[-1].isdigit() and _is_amount(tokens[-1], match.start()):
            last = tokens.pop()
            end = match.start() + sign.end()
            found = [Token("number", text[last.start : end], last.start, end, last.opens, end < match.end())]
        else:
            found = list(_read_chunk(chunk, match.start(), opens))
            if found and start <= found[0].start - 2:
                found[0] = _with_sign_before(text, found[0], tokens)
        tokens += found
        if ENDS & set(chunk[-3:]) and (not found or found[-1].end < match.end()):
            opens = True
        elif found:
            opens = False
    return opens


def _is_amount(token: Token, place: int) -> bool:
    """Whether *token* is a number that ends one blank before *place*."""
    return token.kind == "number" and token.end + 1 == place


def _with_sign_before(text: str, token: Token, before: Sequence[Token]) -> Token:
    """*token* with the sign of a currency that stands alone before it, if it is a number: € 100."""
    start = token.start - 2
    is_sign = (
        token.kind == "number" and token.text[0].isdigit() and text[start] in CURRENCIES and text[start + 1] == " "
    )
    if not is_sign or (start and not text[start - 1].isspace()) or (before and before[-1].end > start):
        return token
    return token._replace(text=text[start : token.end], start=start)


def _read_chunk(chunk: str, offset: int, opens: bool) -> Iterator[Token]:
    """The pieces of *chunk*, which stands at *offset* and holds more than letters."""
    if chunk in OPERATORS or TAG.fullmatch(chunk):
        yield Token("identifier", chunk, offset, offset + len(chunk), opens, False)
        return
    left, right = _core(chunk)
    core = chunk[left:right]
    closed = right < len(chunk)
    kind = kind_of(core)
    if kind is not None:
        yield Token(kind, core, offset + left, offset + right, opens, closed)
        return
    for match in _pieces(core.isascii()).finditer(core):
        kind = kind_of(match.group()) or "word"
        start = offset + left
        yield Token(kind, match.group(), start + match.start(), start + match.end(), opens, True)
        opens = False


def _core(chunk: str) -> tuple[int, int]:
    """Where *chunk* starts and ends without the punctuation around it."""
    left = len(chunk) - len(chunk.lstrip(LEADING))
    if chunk[left - 1 : left] in ("/", "~", "\\", "*", "<") and left == 1 and PATH.match(chunk):
        left = 0
    dots = len(chunk) - left - len(chunk[left:].lstrip("."))
    if dots and not (dots == 1 and chunk[left + 1 : left + 2].isalnum()) and not PATH.match(chunk, left):
        left += dots
    if chunk[left : left + 1] in "<>" and not chunk[left + 1 : left + 2].isdigit():
        left += 1
    right = max(left, len(chunk.rstrip(TRAILING)))
    return left, right + _closing(chunk, left, right)


def _closing(chunk: str, left: int, right: int) -> int:
    """How many of the marks at *right* belong to ``chunk[left:right]`` after all: f(), f(x), U.S., /etc/."""
    tail = chunk[right : right + 2]
    if tail == "()":
        return 2
    if tail[:1] == ")":
        return int("(" in chunk[left:right] and chunk.count("(") >= chunk.count(")"))
    if tail[:1] == ">":
        return int("<" in chunk[left:right])
    if tail[:1] == ".":
        return int(DOTTED.fullmatch(chunk, left, right + 1) is not None)
    if tail[:1] == "/":
        return int((ADDRESS.match(chunk, left) or PATH.match(chunk, left)) is not None)
    return 0


def kind_of(core: str) -> TokenKind | None:
    """What *core*, a piece without punctuation around it, is; ``None`` where it is several things or nothing."""
    if core.isalpha():
        return _letters(core)
    plain = core.translate(APOSTROPHES)
    if WORD.fullmatch(plain):
        return "acronym" if PLURAL.fullmatch(plain) else _compound(plain)
    if ADDRESS.fullmatch(core) or EMAIL.fullmatch(core):
        return "url"
    if NUMBER.fullmatch(core) or AMOUNT.fullmatch(core):
        return "number"
    if core.casefold() in SHORTENED:
        return "word"
    if DOTTED.fullmatch(core) or FLAG.fullmatch(core) or CALL.fullmatch(core):
        return "identifier"
    if PATH.fullmatch(core) or (CODE.fullmatch(core) and _is_code(core)):
        return "identifier"
    return None


def _is_code(core: str) -> bool:
    """Whether *core*, which has the form of a code, is more than words with a slash between them."""
    if not SIGNS.isdisjoint(core) or core.count("/") > 1:
        return True
    letters = core.replace("/", "").replace("&", "").replace("-", "")
    return ("/" in core or "&" in core) and letters.isupper()


def _letters(core: str) -> TokenKind:
    """What a run of letters is by its capitals."""
    if core.islower():
        return "word"
    rest = core[1:]
    if not rest or rest.islower() or rest == rest.lower():
        return "word"
    if core.isupper():
        return "acronym"
    if PLURAL.fullmatch(core):
        return "acronym"
    # WHat is a slip of the shift key; CamelCase and DECnet are names, and the word lists tell HOw from PhD.
    return "word" if core[:2].isupper() and core[2:].islower() and len(core) < SHIFTED else "identifier"


def _compound(plain: str) -> TokenKind:
    """What words joined by hyphens or apostrophes are: a code where a part has capitals inside, else a word."""
    if not any(map(_is_marked, re.split("['-]", plain))):
        return "word"
    if plain.isupper():
        return "acronym"
    return "identifier" if "-" in plain else "word"


def _is_marked(part: str) -> bool:
    """Whether *part* has two capitals at its start or one inside."""
    return _letters(part) != "word"


@lru_cache(2)
def _pieces(ascii_only: bool) -> Any:
    """A pattern for the words and symbols of a piece that is several things."""
    if ascii_only:
        return re.compile(r"\w++(?:['.-]\w++)*+")
    import regex

    # A mark belongs to its letter, joiners belong to their word, and a pictograph is a word of its own.
    word = r"[\p{L}\p{M}\p{N}_\u200c\u200d\u00ad]++"
    return regex.compile(rf"(?=[\p{{L}}\p{{N}}_]){word}(?:['’.\-]{word})*+|\p{{So}}[\p{{So}}\p{{Sk}}\p{{M}}\u200d]*+")
