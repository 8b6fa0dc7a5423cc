"""Split a query into words, codes, numbers, addresses and quotes.

All repetitions in the patterns are possessive, so the time is linear in the length of the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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

ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]{1,15}+://|www\.|mailto:)\S++", re.IGNORECASE)
EMAIL = re.compile(r"[\w.+-]++@[\w-]++(?:\.[\w-]++)++")
WORD = re.compile(r"[^\W\d_]++(?:['-][^\W\d_]++)*+")
CODE = re.compile(
    r"[.$#@]?+\w++(?:(?:[=<>!~]=|[-.:/+#@&=\\~%?]|->|=>|::|:/{1,2}|[<>](?=\d))\w++)*+(?:\+\+?|#|\(\)|/)?+"
)
CALL = re.compile(r"\w[\w.:]*+(?:\([\w.,=:]*+\)|<[\w.,:*&]*+>)")
FLAG = re.compile(r"--?[^\W\d_][\w-]*+(?:=\S++)?+")
PATH = re.compile(
    r"(?:~|\.{1,2})?+(?:/[\w.@+%-]++)++/?+|(?:[A-Za-z]:)?(?:\\[\w.@+%-]++)++\\?+|(?:\*|\*\*/\*)\.\w++"
)
TAG = re.compile(r"</?[A-Za-z][\w-]*+/?>")
DOTTED = re.compile(r"(?:[^\W\d_]\.){2,}+")
STARRED = re.compile(r"[A-Z]\*")
"""Matches a letter with a star, such as the algorithm A*."""
PLURAL = re.compile(r"[A-Z]{2,}+(?:'?s|')?+")

SHORTEST_MIXED_CODE = 6
"""The minimum length of an identifier that begins with two capitals, such as DECnet.

In a shorter word, the second capital is a typing error (HOw).
"""

SLASHED_WORDS = frozenset(["w/o", "w/out"])
"""Words with a slash inside them."""

MOST_PIECE_CHARS = 24
"""The tokens of a chunk are cached if the chunk has at most this many characters."""
MOST_QUOTE_CHARS = 300
"""The maximum number of characters in a quote. The limit keeps the time linear."""
MOST_TEXT_CHARS = 300
"""`tokenise` caches the tokens of a text if the text has at most this many characters."""

CODE_SIGNS = frozenset("0123456789_.:#@+\\=<>()~%?$")
"""A word with one of these characters is an identifier.

Hyphens, slashes and ampersands also join ordinary words, so they are not included.
"""


class Token(NamedTuple):
    """One token of a query: a word, a code, a number, an address or a quoted phrase.

    Attributes:
        kind: One of the `TokenKind` words.
        text: The text of the token, ``query[start:end]``.
        folded_text: The text as the word lists spell it, in lower case.
        start: The position of the first character in the query.
        end: The position after the last character.
        opens_sentence: Whether the token is the first of a sentence.
        is_before_punctuation: Whether punctuation follows the token.
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
    return _tokenise_cached(text) if len(text) <= MOST_TEXT_CHARS else _tokenise_uncached(text)


def _tokenise_uncached(text: str) -> Sequence[Token]:
    """Return the tokens of *text* from left to right, without using the cache of `tokenise`."""
    tokens: list[Token] = []
    start, opens_sentence = 0, True
    for quote in find_quotes(text):
        opens_sentence = _append_tokens(text, start, quote.start(), opens_sentence, tokens)
        tokens.append(
            Token(
                "quote",
                quote[0],
                fold_case(quote[0]),
                quote.start(),
                quote.end(),
                opens_sentence,
                True,
            )
        )
        start, opens_sentence = quote.end(), False
    _append_tokens(text, start, len(text), opens_sentence, tokens)
    return tuple(tokens)


# The same question is tokenised several times: for its keywords, its protected spans and its
# language.
_tokenise_cached = lru_cache(64)(_tokenise_uncached)


def _append_tokens(
    text: str,
    start: int,
    end: int,
    opens_sentence: bool,
    tokens: list[Token],
) -> bool:
    """Append the tokens of ``text[start:end]``, which has no quotes, to *tokens*.

    *opens_sentence* says whether a sentence begins at *start*. Returns whether one begins at *end*.
    """
    for match in CHUNK.finditer(text, start, end):
        chunk, offset = match[0], match.start()
        if match["operator"]:
            tokens.append(Token("identifier", chunk, chunk, offset, match.end(), False, False))
            opens_sentence = False
            continue
        split = _split_chunk_cached if len(chunk) <= MOST_PIECE_CHARS else _split_chunk
        pieces, is_end = split(chunk)
        for kind, piece, folded_text, left, right, _, is_before_punctuation in pieces:
            tokens.append(
                Token(
                    kind,
                    piece,
                    folded_text,
                    offset + left,
                    offset + right,
                    opens_sentence,
                    is_before_punctuation,
                )
            )
            opens_sentence = False
        opens_sentence = opens_sentence or is_end
    return opens_sentence


def _split_chunk(chunk: str) -> tuple[Sequence[Token], bool]:
    """Split *chunk*, a match of `CHUNK`, into tokens.

    Returns:
        The tokens. Their positions are those in the chunk, and none of them opens a sentence.
        Whether a sentence ends after the last token.
    """
    tokens = [
        Token(
            kind,
            chunk[left:right],
            fold_case(chunk[left:right]),
            left,
            right,
            False,
            is_before_punctuation,
        )
        for kind, left, right, is_before_punctuation in _locate_tokens(chunk)
    ]
    is_end = not tokens or tokens[-1].end < len(chunk)
    return tokens, is_end and not SENTENCE_ENDS.isdisjoint(chunk[-3:])


def _locate_tokens(chunk: str) -> list[tuple[TokenKind, int, int, bool]]:
    """Return the tokens in *chunk*.

    Each token is a tuple: its kind, its start, its end, and whether punctuation follows.
    """
    # These consist of punctuation or begin with it, so they are checked before it is trimmed.
    if chunk in OPERATORS or TAG.fullmatch(chunk):
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
    left, right = _find_limits_without_punctuation(chunk)
    bare_text = chunk[left:right]
    kind = find_token_kind(bare_text)
    if kind is not None:
        return [(kind, left, right, right < len(chunk))]
    return [
        (find_token_kind(match.group()) or "word", left + match.start(), left + match.end(), True)
        for match in _compile_piece_pattern(bare_text.isascii()).finditer(bare_text)
    ]


# Questions repeat the same words, and so do the texts that a model writes for them.
_split_chunk_cached = lru_cache(4_096)(_split_chunk)


def _find_limits_without_punctuation(chunk: str) -> tuple[int, int]:
    """Return the start and end of the text in *chunk* between the outer punctuation."""
    left = len(chunk) - len(chunk.lstrip(LEADING_MARKS))
    # A mark stays if it begins a path: /etc, ~/.ssh, *.py.
    left = next((start for start in range(left) if PATH.match(chunk, start)), left)
    # A single dot before a letter or digit stays, as in .env. Other dots are punctuation.
    dot_count = len(chunk) - left - len(chunk[left:].lstrip("."))
    if (
        dot_count
        and not (dot_count == 1 and chunk[left + 1 : left + 2].isalnum())
        and not PATH.match(chunk, left)
    ):
        left += dot_count
    if chunk[left : left + 1] in "<>" and not chunk[left + 1 : left + 2].isdigit():
        left += 1
    right = max(left, len(chunk.rstrip(TRAILING_MARKS)))
    return left, right + _count_closing_marks(chunk, left, right)


def _count_closing_marks(chunk: str, left: int, right: int) -> int:
    """Return the number of marks after ``chunk[left:right]`` that belong to the token.

    Examples are the last marks of ``f()``, ``f(x)``, ``U.S.`` and ``/etc/``.
    """
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


def find_token_kind(bare_text: str) -> TokenKind | None:
    """Return the token kind of *bare_text*, or ``None`` if it is empty or has several tokens.

    *bare_text* must not contain spaces or outer punctuation.
    """
    # Most words end here, before any pattern is tried.
    if bare_text.isalpha():
        return _classify_letters(bare_text)
    straight = bare_text.translate(APOSTROPHES)
    owner = straight.removesuffix("'s")
    if owner != straight and find_token_kind(owner) == "identifier":
        return "identifier"
    if WORD.fullmatch(straight):
        return "acronym" if PLURAL.fullmatch(straight) else _classify_compound(straight)
    if ADDRESS.fullmatch(bare_text) or EMAIL.fullmatch(bare_text):
        return "url"
    if any(pattern.fullmatch(bare_text) for pattern in _compile_number_patterns()):
        return "number"
    if bare_text.casefold() in SLASHED_WORDS:
        return "word"
    if DOTTED.fullmatch(bare_text):
        # Unlike U.S., "e.g." and "p.m." need not stay as they are.
        return "word" if bare_text.islower() else "identifier"
    if STARRED.fullmatch(bare_text) or FLAG.fullmatch(bare_text) or CALL.fullmatch(bare_text):
        return "identifier"
    if PATH.fullmatch(bare_text) or (CODE.fullmatch(bare_text) and _is_code(bare_text)):
        return "identifier"
    return None


def _is_code(bare_text: str) -> bool:
    """Return whether *bare_text* is a code such as ``a.b`` or ``I/O``.

    Joined words such as "and/or" are no code. A code has a character of `CODE_SIGNS`, several
    slashes, or only capitals around a slash or an ampersand. *bare_text* must match `CODE`.
    """
    if not CODE_SIGNS.isdisjoint(bare_text) or bare_text.count("/") > 1:
        return True
    letters = bare_text.replace("/", "").replace("&", "").replace("-", "")
    return ("/" in bare_text or "&" in bare_text) and letters.isupper()


def _classify_letters(bare_text: str) -> TokenKind:
    """Return the token kind of *bare_text*, a run of letters.

    The kind depends on the capitals: "Word" is a word, "NASA" an acronym, "camelCase" an
    identifier.
    """
    rest = bare_text[1:]
    if rest == rest.lower():
        return "word"
    if bare_text.isupper() or PLURAL.fullmatch(bare_text):
        return "acronym"
    # WHat and HOw are typing errors for words. CamelCase, DECnet and PhD are identifiers.
    return (
        "word"
        if bare_text[:2].isupper()
        and bare_text[2:].islower()
        and len(bare_text) < SHORTEST_MIXED_CODE
        else "identifier"
    )


def _classify_compound(bare_text: str) -> TokenKind:
    """Return the token kind of *bare_text*, several words joined by hyphens or apostrophes.

    - ``word`` if each of the words has at most one capital, its first letter: "Jean-Paul".
    - ``acronym`` if all letters are capitals: "RS-CAN".
    - Otherwise, ``identifier`` if *bare_text* has a hyphen ("pre-GPT"), else ``word``.
    """
    if not any(map(_has_inner_capitals, re.split("['-]", bare_text))):
        return "word"
    if bare_text.isupper():
        return "acronym"
    return "identifier" if "-" in bare_text else "word"


def _has_inner_capitals(word_part: str) -> bool:
    """Return whether *word_part* has capitals after its first letter, as in an acronym or a code.

    Returns ``False`` for a typing error such as "HOw".
    """
    return _classify_letters(word_part) != "word"


@cache
def _compile_number_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a pattern for numbers with signs and units, and a pattern for rates (€100/month)."""
    # Compiling is slow and most questions have no number, so it waits until the first number.
    number = re.compile(
        r"[-+±−~≈<>≤≥]{0,2}+(?:[$€£¥₹₩₽¢]\s?)?+\.?\d++(?:\s\d{3}(?!\d))*+(?:[.,:/×'’–-]\d++)*+"
        r"(?:\s?[%‰°]|'?s|(?:st|nd|rd|th))?+(?:\s?[$€£¥₹₩₽¢])?+(?:[^\W\d_]{1,3}(?:/[^\W\d_]{1,3})?+[²³]?)?+[+]?+"
    )
    amount = re.compile(r"(?:[$€£¥₹₩₽¢]\d++(?:[.,]\d++)*+|\d++(?:[.,]\d++)*+[$€£¥₹₩₽¢])/[^\W\d_]++")
    return number, amount


@cache
def _compile_piece_pattern(is_ascii_only: bool) -> Any:
    """Return a pattern for the words and symbols in a text without spaces.

    If *is_ascii_only* is true, the pattern works only for ASCII texts and is simpler.
    """
    if is_ascii_only:
        return re.compile(r"\w++(?:['.-]\w++)*+")
    import regex

    # A combining mark belongs to its letter, a joiner to its word. A pictograph is a separate word.
    word = r"[\p{L}\p{M}\p{N}_\u200c\u200d\u00ad]++"
    return regex.compile(
        rf"(?=[\p{{L}}\p{{N}}_]){word}(?:['’.\-]{word})*+|\p{{So}}[\p{{So}}\p{{Sk}}\p{{M}}\u200d]*+"
    )


def find_quotes(text: str) -> Iterator[re.Match[str]]:
    """Return the quoted phrases in *text*, including the quotation marks.

    Quotes inside a quoted phrase, marks without a partner and apostrophes are ignored. A single
    quotation mark opens a quote only before a word, and closes a quote only after a word.
    """
    return _compile_quote_pattern().finditer(text)


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
