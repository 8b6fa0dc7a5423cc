"""Reads a query into words and the things that must stay as they are written: codes, numbers, addresses, quotes.

Every piece between blanks is looked at once. All repetitions in the patterns are possessive, so
nothing is tried twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from qtmiddleware.preprocessing.text import APOSTROPHES, fold

TokenKind = Literal["word", "acronym", "identifier", "number", "url", "quote"]
"""What a piece of a query is; everything but a word is kept as it is written."""

CLOSERS = {
    '"': '"”', "“": "”\"“", "„": "“”\"", "”": "”", "«": "»", "»": "«", "‹": "›",
    "'": "'’", "‘": "’'", "‚": "‘’", "`": "`", "「": "」", "『": "』", "《": "》",
}  # fmt: skip
"""Every opening mark with the marks that may close it."""

SINGLE = "'’‘"
"""Marks that are apostrophes too."""

BLANKS = re.compile(r"\S+")

LEADING = "([{<¿¡\"'“”‘’‚„«»‹›,;:!?…—–―*~|`=&%/\\^\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；（「『《"
TRAILING = "?!.,;:…)]}>\"'“”‘’„«»‹›—–―-*~|`=&/\\^\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；）」』》"
ENDS = frozenset(".?!…:。？！：")

OPERATORS = frozenset(
    ["=>", "->", "<-", "::", "&&", "||", "!=", "==", "===", "!==", "<=", ">=", "<<", ">>", "++", "?.", "|>", ":=", "+=",
     "&"]
)  # fmt: skip
SUMS = frozenset("-+*/^=<>≤≥≠×÷±−")
"""Signs that stand alone and belong to a number beside them: 5 + 3, x > 5."""
AMOUNT_AHEAD = re.compile(r"\s++[$€£¥₹₩₽¢]?+\d")

ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]{1,15}+://|www\.|mailto:)\S++", re.IGNORECASE)
EMAIL = re.compile(r"[\w.+-]++@[\w-]++(?:\.[\w-]++)++")
WORD = re.compile(r"[^\W\d_]++(?:['-][^\W\d_]++)*+")
CURRENCIES = "$€£¥₹₩₽¢"
SIGN = re.compile(rf"(?:[{CURRENCIES}%‰]|°[CF]?)(?=[?!.,;:)]*+$)")
"""What stands behind a number, with a space between: 100 €, 5 %."""
CODE = re.compile(
    r"[.$#@]?+\w++(?:(?:[=<>!~]=|[-.:/+#@&=\\~%?]|->|=>|::|:/{1,2}|[<>](?=\d))\w++)*+(?:\+\+?|#|\(\)|/)?+"
)
CALL = re.compile(r"[\w.:]++(?:\([\w.,=:]*+\)|<[\w.,:*&]*+>)")
FLAG = re.compile(r"--?[^\W\d_][\w-]*+(?:=\S++)?+")
PATH = re.compile(
    r"(?:~|\.{1,2})?+(?:/[\w.@+%-]++)++/?+|(?:[A-Za-z]:)?(?:\\[\w.@+%-]++)++\\?+|(?:\*|\*\*/\*)\.\w++"
)
TAG = re.compile(r"</?[A-Za-z][\w-]*+/?>")
DOTTED = re.compile(r"(?:[^\W\d_]\.){2,}+")
STARRED = re.compile(r"[A-Z]\*")
"""A* is an algorithm."""
PLURAL = re.compile(r"[A-Z]{2,}+(?:'?s|')?+")

SHIFTED = 6
"""A word with two capitals at its start is a code from this length on, and a slip of the shift key below it."""

SHORTENED = frozenset(["w/o", "w/out"])
"""Words with a slash inside."""

LONGEST_KNOWN = 24
LONGEST_KNOWN_TEXT = 300
"""How many characters a piece may have to be remembered."""

SIGNS = frozenset("0123456789_.:#@+\\=<>()~%?$")
"""What makes a piece of letters a code; the hyphen, the slash and the ampersand alone do not."""


class Token(NamedTuple):
    """One piece of a query: ``query[start:end] == text``.

    *key* is the text as word lists hold it. *opens* says that a sentence begins with it, *closed*
    that punctuation stands between it and the next one.
    """

    kind: TokenKind
    text: str
    key: str
    start: int
    end: int
    opens: bool
    closed: bool


def tokenise(text: str) -> Sequence[Token]:
    """The tokens of *text* from left to right; a quoted phrase is one."""
    return _tokenise_known(text) if len(text) <= LONGEST_KNOWN_TEXT else _tokenise(text)


def _tokenise(text: str) -> Sequence[Token]:
    tokens: list[Token] = []
    start, opens = 0, True
    for left, right in find_quotes(text):
        opens = _read_between(text, start, left, opens, tokens)
        quote = text[left:right]
        tokens.append(Token("quote", quote, fold(quote), left, right, opens, True))
        start, opens = right, False
    _read_between(text, start, len(text), opens, tokens)
    return tuple(tokens)


# A question is read for its keywords, for what a rewrite must keep and for its language.
_tokenise_known = lru_cache(64)(_tokenise)


def _read_between(text: str, start: int, end: int, opens: bool, tokens: list[Token]) -> bool:
    """Add the tokens of ``text[start:end]`` to *tokens*; return whether a sentence begins after them."""
    for match in BLANKS.finditer(text, start, end):
        chunk, place = match.group(), match.start()
        before = tokens[-1] if tokens else None
        if (
            before
            and before.kind == "number"
            and _is_amount(before, place)
            and (sign := SIGN.match(chunk))
        ):
            after = place + sign.end()
            amount = text[before.start : after]
            is_closed = after < match.end()
            tokens[-1] = Token(
                "number", amount, fold(amount), before.start, after, before.opens, is_closed
            )
            opens = is_closed and not ENDS.isdisjoint(chunk[-3:])
        elif (
            chunk in SUMS
            and before is not None
            and _belongs_to_number(text, before, place, match.end())
        ):
            tokens.append(Token("identifier", chunk, chunk, place, match.end(), False, False))
            opens = False
        else:
            pieces, is_end = (
                _split_known_chunk(chunk) if len(chunk) <= LONGEST_KNOWN else _split_chunk(chunk)
            )
            for kind, piece, key, left, right, closed in pieces:
                token = Token(kind, piece, key, place + left, place + right, opens, closed)
                if kind == "number" and left == pieces[0].start and start <= token.start - 2:
                    token = _add_sign_before(text, token, before)
                tokens.append(token)
                opens = False
            opens = opens or is_end
    return opens


def _is_amount(token: Token, place: int) -> bool:
    """Whether the number *token* ends in a digit, one blank before *place*."""
    return token.end + 1 == place and token.text[-1].isdigit()


def _belongs_to_number(text: str, before: Token, start: int, end: int) -> bool:
    """Whether the sign ``text[start:end]`` stands between *before* and something else, one of which is a number.

    For a dash both must be.
    """
    if before.end + 1 != start or not text[end:].strip():
        return False
    sides = before.kind == "number", AMOUNT_AHEAD.match(text, end) is not None
    return all(sides) if text[start] in "-−" else any(sides)


def _add_sign_before(text: str, token: Token, before: Token | None) -> Token:
    """The number *token* with the sign of a currency that stands alone before it, behind the token *before*: € 100."""
    start = token.start - 2
    is_sign = token.text[0].isdigit() and text[start] in CURRENCIES and text[start + 1] == " "
    if (
        not is_sign
        or (start and not text[start - 1].isspace())
        or (before is not None and before.end > start)
    ):
        return token
    amount = text[start : token.end]
    return token._replace(text=amount, key=fold(amount), start=start)


class _Piece(NamedTuple):
    """One piece of a chunk, which is the *text* from *start* to *end* of it; the others are those of `Token`."""

    kind: TokenKind
    text: str
    key: str
    start: int
    end: int
    closed: bool


def _split_chunk(chunk: str) -> tuple[Sequence[_Piece], bool]:
    """What *chunk* is made of, and whether a sentence ends behind the last piece."""
    pieces = [
        _Piece(kind, chunk[a:b], fold(chunk[a:b]), a, b, closed)
        for kind, a, b, closed in _find_pieces(chunk)
    ]
    return pieces, not ENDS.isdisjoint(chunk[-3:]) and (not pieces or pieces[-1].end < len(chunk))


def _find_pieces(chunk: str) -> list[tuple[TokenKind, int, int, bool]]:
    """The kind of each piece of *chunk*, where it starts and ends, and whether punctuation follows."""
    if chunk in OPERATORS or TAG.fullmatch(chunk):
        return [("identifier", 0, len(chunk), False)]
    left, right = _trim(chunk)
    core = chunk[left:right]
    kind = find_kind(core)
    if kind is not None:
        return [(kind, left, right, right < len(chunk))]
    return [
        (find_kind(match.group()) or "word", left + match.start(), left + match.end(), True)
        for match in _piece_pattern(core.isascii()).finditer(core)
    ]


# Questions repeat the same words, and so do the texts that a model makes of them.
_split_known_chunk = lru_cache(4_096)(_split_chunk)


def _trim(chunk: str) -> tuple[int, int]:
    """Where *chunk* starts and ends without the punctuation around it."""
    left = len(chunk) - len(chunk.lstrip(LEADING))
    if chunk[left - 1 : left] in ("/", "~", "\\", "*", "<") and left == 1 and PATH.match(chunk):
        left = 0
    dots = len(chunk) - left - len(chunk[left:].lstrip("."))
    if (
        dots
        and not (dots == 1 and chunk[left + 1 : left + 2].isalnum())
        and not PATH.match(chunk, left)
    ):
        left += dots
    if chunk[left : left + 1] in "<>" and not chunk[left + 1 : left + 2].isdigit():
        left += 1
    right = max(left, len(chunk.rstrip(TRAILING)))
    return left, right + _count_closing(chunk, left, right)


def _count_closing(chunk: str, left: int, right: int) -> int:
    """How many of the marks at *right* belong to ``chunk[left:right]`` after all: f(), f(x), U.S., /etc/."""
    tail = chunk[right : right + 2]
    if tail == "()":
        return 2
    if tail[:1] == ")":
        return int("(" in chunk[left:right] and chunk.count("(") >= chunk.count(")"))
    if tail[:1] == ">":
        return int("<" in chunk[left:right])
    if tail[:1] == "*":
        return int(STARRED.fullmatch(chunk, left, right + 1) is not None)
    if tail[:1] == ".":
        return int(DOTTED.fullmatch(chunk, left, right + 1) is not None)
    if tail[:1] == "/":
        return int((ADDRESS.match(chunk, left) or PATH.match(chunk, left)) is not None)
    return 0


def find_kind(core: str) -> TokenKind | None:
    """What *core*, a piece without punctuation around it, is; ``None`` where it is several things or nothing."""
    if core.isalpha():
        return _kind_of_letters(core)
    plain = core.translate(APOSTROPHES)
    if WORD.fullmatch(plain):
        return "acronym" if PLURAL.fullmatch(plain) else _kind_of_compound(plain)
    if ADDRESS.fullmatch(core) or EMAIL.fullmatch(core):
        return "url"
    if any(pattern.fullmatch(core) for pattern in _number_patterns()):
        return "number"
    if core.casefold() in SHORTENED:
        return "word"
    if (
        DOTTED.fullmatch(core)
        or STARRED.fullmatch(core)
        or FLAG.fullmatch(core)
        or CALL.fullmatch(core)
    ):
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


def _kind_of_letters(core: str) -> TokenKind:
    """What a run of letters is by its capitals."""
    rest = core[1:]
    if rest == rest.lower():
        return "word"
    if core.isupper() or PLURAL.fullmatch(core):
        return "acronym"
    # WHat is a slip of the shift key; CamelCase and DECnet are names, and the word lists tell HOw
    # from PhD.
    return (
        "word"
        if core[:2].isupper() and core[2:].islower() and len(core) < SHIFTED
        else "identifier"
    )


def _kind_of_compound(plain: str) -> TokenKind:
    """What words joined by hyphens or apostrophes are: a code where a part has capitals inside, else a word."""
    if not any(map(_is_marked, re.split("['-]", plain))):
        return "word"
    if plain.isupper():
        return "acronym"
    return "identifier" if "-" in plain else "word"


def _is_marked(part: str) -> bool:
    """Whether *part* has two capitals at its start or one inside."""
    return _kind_of_letters(part) != "word"


@cache
def _number_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """The patterns of a number with its signs and units, and of an amount for a time or a piece: €100/month.

    They take longer to compile than all others here, and most questions hold no number.
    """
    number = re.compile(
        r"[-+±−~≈<>≤≥]{0,2}+[$€£¥₹₩₽¢]?+\.?\d++(?:[.,:/×'’–-]\d++)*+(?:\s?[%‰°]|'?s|(?:st|nd|rd|th))?+"
        r"[$€£¥₹₩₽¢]?+(?:[^\W\d_]{1,3}(?:/[^\W\d_]{1,3})?+[²³]?)?+[+]?+"
    )
    amount = re.compile(r"(?:[$€£¥₹₩₽¢]\d++(?:[.,]\d++)*+|\d++(?:[.,]\d++)*+[$€£¥₹₩₽¢])/[^\W\d_]++")
    return number, amount


@cache
def _piece_pattern(ascii_only: bool) -> Any:
    """A pattern for the words and symbols of a piece that is several things."""
    if ascii_only:
        return re.compile(r"\w++(?:['.-]\w++)*+")
    import regex

    # A mark belongs to its letter, joiners belong to their word, and a pictograph is a word of its
    # own.
    word = r"[\p{L}\p{M}\p{N}_\u200c\u200d\u00ad]++"
    return regex.compile(
        rf"(?=[\p{{L}}\p{{N}}_]){word}(?:['’.\-]{word})*+|\p{{So}}[\p{{So}}\p{{Sk}}\p{{M}}\u200d]*+"
    )


def find_quotes(text: str) -> list[tuple[int, int]]:
    """Start and end of every quoted phrase of *text*, marks included, from left to right, none inside another.

    A mark without its partner is no quote. An apostrophe is none either: a single mark opens only
    before and closes only after a word.
    """
    found: list[tuple[int, int]] = []
    hopeless: set[str] = set()
    places = [match.start() for match in _mark_pattern().finditer(text)]
    index = 0
    while index < len(places):
        mark = text[places[index]]
        may_open = mark not in hopeless and _can_open(text, places[index])
        partner = _find_partner(text, places, index) if may_open else index
        if partner is None:
            # Nothing further on closes this mark, so the search need not be made again: that keeps
            # it linear.
            hopeless.add(mark)
        elif partner > index:
            found.append((places[index], places[partner] + 1))
            index = partner
        index += 1
    return found


def _find_partner(text: str, places: list[int], index: int) -> int | None:
    """Which of *places* closes the quote that opens at ``places[index]``; the same *index* for an empty one."""
    start = places[index]
    closers = CLOSERS[text[start]]
    for later in range(index + 1, len(places)):
        place = places[later]
        if text[place] in closers and _can_close(text, place):
            return later if text[start + 1 : place].strip() else index
    return None


def _can_open(text: str, place: int) -> bool:
    """Whether the mark at *place* can open a quote."""
    mark, after = text[place], text[place + 1 : place + 2]
    if mark not in CLOSERS or (place and text[place - 1].isalnum()):
        return False
    # '90s and 'tis: a year without its century is no quote.
    return not (mark in SINGLE and (after.isspace() or after.isdigit()))


def _can_close(text: str, place: int) -> bool:
    """Whether the mark at *place* can close a quote."""
    if text[place + 1 : place + 2].isalnum():
        return False
    return text[place] not in SINGLE or not text[place - 1].isspace()


@cache
def _mark_pattern() -> re.Pattern[str]:
    """A pattern for one quotation mark."""
    marks = set("".join(CLOSERS.values())) | set(CLOSERS)
    return re.compile("[" + re.escape("".join(sorted(marks))) + "]")
