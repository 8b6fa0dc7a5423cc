"""Split a query into words, codes, numbers, addresses and quotes.

All repetitions in the patterns are possessive, so the time is linear in the length of the query.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from qtmiddleware.preprocessing.text import APOSTROPHES, fold_case, split_scripts

TokenKind = Literal["word", "acronym", "identifier", "number", "url", "quote"]
"""The kinds of tokens. Tokens of all kinds except ``word`` are kept unchanged."""

CLOSERS = {
    '"': '"”', "“": "”\"“", "„": "“”\"", "”": "”", "«": "»", "»": "«", "‹": "›",
    "'": "'’", "‘": "’'", "‚": "‘’", "`": "`", "「": "」", "『": "』", "《": "》",
}  # fmt: skip
"""Maps each opening quotation mark to the marks that can close the quote."""

SINGLE_MARKS = "'’‘"
"""Quotation marks that can also be apostrophes."""

LEADING_MARKS = (
    "([{<¿¡\"'“”‘’‚„«»‹›,;:!?…—–―*~|`=&%/\\^"
    "\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；（「『《"
)
"""The punctuation to remove from the start of a chunk, a stretch of text without spaces."""
TRAILING_MARKS = (
    "?!.,;:…)]}>\"'“”‘’„«»‹›—–―-*~|`=&/\\^"
    "\u200b\u200e\u200f\u202a\u202c\ufeff、。，？！：；）」』》"
)
"""The punctuation to remove from the end of a chunk, a stretch of text without spaces."""
SENTENCE_ENDS = frozenset(".?!…:。？！：")
"""The marks that end a sentence."""

OPERATORS = frozenset(
    ["=>", "->", "<-", "::", "&&", "||", "!=", "==", "===", "!==", "<=", ">=", "<<", ">>", "++",
     "?.", "|>", ":=", "+=", "&"]
)  # fmt: skip
"""The operators that count as tokens. Other punctuation does not."""
CURRENCIES = "$€£¥₹₩₽¢"
# A sign with spaces around it is an operator beside a number: x > 5. A hyphen between words is
# usually a dash, so a minus sign needs numbers on both sides. An amount may have spaces: 1 299 €.
CHUNK = re.compile(
    # Most chunks are words, and no other pattern fits them.
    r"[^\W\d_]++(?!\S)|"
    rf"(?P<operator>(?<=[\w%‰{CURRENCIES}]\s)[+*/^=<>≤≥≠×÷±](?=\s+[{CURRENCIES}]?\d)"
    rf"|(?<=[\d%‰{CURRENCIES}]\s)(?:[+*/^=<>≤≥≠×÷±](?=\s+\S)|[-−](?=\s+[{CURRENCIES}]?\d)))"
    rf"|(?<!\S)[{CURRENCIES}]?\d{{1,3}}(?:\s\d{{3}})++(?:[.,]\d++)?+(?:\s?[{CURRENCIES}%])?+"
    r"[?!.,;:)]*+(?!\S|\s\d)"
    rf"|[^\w\s]*+\d[\d.,'’–-]*(?<=\d)\s(?:[{CURRENCIES}%‰]|°[CF]?)[?!.,;:)]*+(?!\S)"
    rf"|(?<!\S)[{CURRENCIES}]\s(?=\d)\S++"
    r"|\S++"
)
"""Matches a stretch of text without spaces, an operator between spaces, or an amount."""

ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]{1,15}+://|www\.|mailto:)\S++|[\w.+-]++@[\w-]++(?:\.[\w-]++)++",
    re.IGNORECASE,
)
WORD = re.compile(r"[^\W\d_]++(?:['-][^\W\d_]++)*+")
CODE = re.compile(
    r"[.$#@]?+\w++"
    r"(?:(?:[=<>!~]=|[-.:/+#@&=\\~%?]|->|=>|::|:/{1,2}|[<>](?=\d))\w++)*+"
    r"(?:\+\+?|#|\(\)|/)?+"
)
CALL = re.compile(r"\w[\w.:]*+(?:\([\w.,=:]*+\)|<[\w.,:*&]*+>)")
FLAG = re.compile(r"--?[^\W\d_][\w-]*+(?:=\S++)?+")
PATH = re.compile(
    r"(?:~|\.{1,2})?+(?:/[\w.@+%-]++)++/?+"
    r"|(?:[A-Za-z]:)?(?:\\[\w.@+%-]++)++\\?+"
    r"|(?:\*|\*\*/\*)\.\w++"
)
DOTTED = re.compile(r"(?:[^\W\d_]\.){2,}+")
PLURAL = re.compile(r"[A-Z]{2,}+(?:'?s|')?+")

SHORTEST_MIXED_CODE = 6
"""The minimum length of an identifier that begins with two capitals, such as DECnet.

In a shorter word, the second capital is a typing error (HOw).
"""

SLASHED_WORDS = frozenset(["w/o", "w/out"])
"""Words with a slash inside them."""

MOST_QUOTE_CHARS = 300
"""The maximum number of characters in a quote. The limit keeps the time linear."""
MOST_TEXT_CHARS = 300
"""`tokenise` caches the tokens of a text if the text has at most this many characters."""

CODE_SIGNS = frozenset("0123456789_.:#@+\\=<>()~%?$")
"""A word with one of these characters is an identifier.

Hyphens, slashes and ampersands also join ordinary words, so they are not included.
"""


class Token(NamedTuple):
    """One token of a query.

    Attributes:
        kind: one of the `TokenKind` words.
        text: the text of the token, ``query[start:end]``.
        folded_text: the text as the word lists spell it, in lower case.
        start: the position of the first character in the query.
        end: the position after the last character.
        opens_sentence: whether the token is the first of a sentence.
        is_before_punctuation: whether punctuation follows the token.
    """

    kind: TokenKind
    text: str
    folded_text: str
    start: int
    end: int
    opens_sentence: bool
    is_before_punctuation: bool


def tokenise(text: str) -> Sequence[Token]:
    """Return the tokens of *text* from left to right. A quoted phrase is one token."""
    # Long texts are not cached, which limits the memory of the cache.
    read = _tokenise_cached if len(text) <= MOST_TEXT_CHARS else _tokenise
    return read(text)


def _tokenise(text: str) -> Sequence[Token]:
    tokens: list[Token] = []
    start, opens_sentence = 0, True
    for quote in (*_compile_quote_pattern().finditer(text), None):
        places: list[tuple[TokenKind, int, int, bool]]
        for match in CHUNK.finditer(text, start, quote.start() if quote else len(text)):
            chunk, at, end = match[0], match.start(), 0
            # Most words take this short way.
            if chunk.isascii() and chunk.isalpha():
                kind = _classify_letters(chunk)
                place = (at, at + len(chunk), opens_sentence, False)
                tokens.append(Token(kind, chunk, chunk.lower(), *place))
                opens_sentence = False
                continue
            if match["operator"]:
                places = [("identifier", 0, len(chunk), False)]
            else:
                places = _locate_tokens(chunk)
            for kind, left, end, is_before_punctuation in places:
                word = chunk[left:end]
                folded = fold_case(word)
                place = (at + left, at + end, opens_sentence, is_before_punctuation)
                tokens.append(Token(kind, word, folded, *place))
                opens_sentence = False
            has_marks = end < len(chunk)
            opens_sentence |= has_marks and not SENTENCE_ENDS.isdisjoint(chunk[-3:])
        if quote:
            start = quote.end()
            place = (quote.start(), start, opens_sentence, True)
            tokens.append(Token("quote", quote[0], fold_case(quote[0]), *place))
            opens_sentence = False
    return tuple(tokens)


# The same question is tokenised several times: for its keywords, its protected spans and its
# language.
_tokenise_cached = lru_cache(64)(_tokenise)


def _locate_tokens(chunk: str) -> list[tuple[TokenKind, int, int, bool]]:
    """Return the tokens in *chunk*: kind, start, end, and whether punctuation follows."""
    # Operators consist of punctuation, so they are checked before it is trimmed.
    if chunk in OPERATORS:
        return [("identifier", 0, len(chunk), False)]
    pieces = split_scripts(chunk)
    if len(pieces) > 1:
        # Scripts without spaces join everything: "2026年の健康診断" has a number and a word.
        starts = accumulate(map(len, pieces), initial=0)
        return [
            (kind, start + left, start + right, is_before_punctuation)
            for start, piece in zip(starts, pieces, strict=False)
            for kind, left, right, is_before_punctuation in _locate_tokens(piece)
        ]
    left, right = _trim_punctuation(chunk)
    bare = chunk[left:right]
    if kind := find_token_kind(bare):
        return [(kind, left, right, right < len(chunk))]
    return [
        (find_token_kind(match.group()) or "word", left + match.start(), left + match.end(), True)
        for match in _compile_piece_pattern(bare.isascii()).finditer(bare)
    ]


def _trim_punctuation(chunk: str) -> tuple[int, int]:
    """Return the start and end of the text in *chunk* between the outer punctuation."""
    left = len(chunk) - len(chunk.lstrip(LEADING_MARKS))
    # A mark stays if it begins a path: /etc, ~/.ssh, *.py.
    left = next((start for start in range(left) if PATH.match(chunk, start)), left)
    right = max(left, len(chunk.rstrip(TRAILING_MARKS)))
    # The last mark of f(x), List<int> and U.S. stays too.
    mark = chunk[right : right + 1]
    opener = {")": "(", ">": "<"}.get(mark, "\n")
    is_call = opener in chunk[left:right] and chunk.count(opener) >= chunk.count(mark)
    is_dotted = DOTTED.fullmatch(chunk, left, right + 1) is not None
    return left, right + (is_call or is_dotted)


def find_token_kind(bare: str) -> TokenKind | None:
    """Return the kind of a text without outer punctuation; ``None`` if it has several tokens."""
    # Most words end here, before any pattern is tried.
    if bare.isalpha():
        return _classify_letters(bare)
    straight = bare.translate(APOSTROPHES)
    owner = straight.removesuffix("'s")
    if owner != straight and find_token_kind(owner) == "identifier":
        return "identifier"
    if WORD.fullmatch(straight):
        return "acronym" if PLURAL.fullmatch(straight) else _classify_compound(straight)
    if ADDRESS.fullmatch(bare):
        return "url"
    if _compile_number_pattern().fullmatch(bare):
        return "number"
    if bare.casefold() in SLASHED_WORDS:
        return "word"
    if DOTTED.fullmatch(bare):
        # Unlike U.S., "e.g." and "p.m." need not stay as they are.
        return "word" if bare.islower() else "identifier"
    if any(pattern.fullmatch(bare) for pattern in (FLAG, CALL, PATH)):
        return "identifier"
    return "identifier" if CODE.fullmatch(bare) and _is_code(bare) else None


def _is_code(text: str) -> bool:
    """Return whether joined words are a code such as ``a.b`` or ``I/O``, unlike "and/or"."""
    if not CODE_SIGNS.isdisjoint(text) or text.count("/") > 1:
        return True
    return ("/" in text or "&" in text) and re.sub("[/&-]", "", text).isupper()


def _classify_letters(word: str) -> TokenKind:
    """Return the kind of a run of letters by its capitals: Word, NASA, camelCase."""
    if word[1:] == word[1:].lower():
        return "word"
    if word.isupper() or PLURAL.fullmatch(word):
        return "acronym"
    # WHat and HOw are typing errors for words. CamelCase, DECnet and PhD are identifiers.
    is_error = word[:2].isupper() and word[2:].islower() and len(word) < SHORTEST_MIXED_CODE
    return "word" if is_error else "identifier"


def _classify_compound(text: str) -> TokenKind:
    """Return the kind of words joined by hyphens or apostrophes: Jean-Paul, RS-CAN, pre-GPT."""
    # A capital after the first letter, as in an acronym or a code.
    if all(_classify_letters(part) == "word" for part in re.split("['-]", text)):
        return "word"
    if text.isupper():
        return "acronym"
    return "identifier" if "-" in text else "word"


@cache
def _compile_number_pattern() -> re.Pattern[str]:
    """Return a pattern for a number with its signs and unit, or a rate (€100/month)."""
    # Compiling is slow and most questions have no number, so it waits until the first number.
    return re.compile(
        r"[-+±−~≈<>≤≥]{0,2}+"
        r"(?:[$€£¥₹₩₽¢]\s?)?+"
        r"\.?\d++(?:\s\d{3}(?!\d))*+(?:[.,:/×'’–-]\d++)*+"
        r"(?:\s?[%‰°]|'?s|(?:st|nd|rd|th))?+"
        r"(?:\s?[$€£¥₹₩₽¢])?+"
        r"(?:[^\W\d_]{1,3}(?:/[^\W\d_]{1,3})?+[²³]?)?+"
        r"[+]?+"
        r"|(?:[$€£¥₹₩₽¢]\d++(?:[.,]\d++)*+|\d++(?:[.,]\d++)*+[$€£¥₹₩₽¢])/[^\W\d_]++"
    )


@cache
def _compile_piece_pattern(is_ascii_only: bool) -> Any:
    if is_ascii_only:
        return re.compile(r"\w++(?:['.-]\w++)*+")
    import regex

    # A combining mark belongs to its letter, a joiner to its word. A pictograph is a separate word.
    word = r"[\p{L}\p{M}\p{N}_\u200c\u200d\u00ad]++"
    return regex.compile(
        rf"(?=[\p{{L}}\p{{N}}_]){word}(?:['’.\-]{word})*+|\p{{So}}[\p{{So}}\p{{Sk}}\p{{M}}\u200d]*+"
    )


@cache
def _compile_quote_pattern() -> re.Pattern[str]:
    """Return a pattern for a quoted phrase of at most `MOST_QUOTE_CHARS` characters."""
    quotes = []
    for opener, closers in CLOSERS.items():
        # The mark before a digit is an apostrophe: '90s is a year without its century.
        is_single = opener in SINGLE_MARKS
        opening, closing = (r"(?![\s\d])", r"(?<!\s)") if is_single else ("", "")
        closing += f"[{closers}](?!\\w)"
        quotes.append(rf"{opener}{opening}(?!\s*{closing}).{{1,{MOST_QUOTE_CHARS}}}?{closing}")
    return re.compile(rf"(?<!\w)(?:{'|'.join(quotes)})", re.DOTALL)
