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

BLANKS = re.compile(r"\S+")

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
SUMS = frozenset("-+*/^=<>≤≥≠×÷±−")
"""The signs that are operators if they stand between spaces and next to a number: x > 5."""
AMOUNT_AHEAD = re.compile(r"\s++[$€£¥₹₩₽¢]?+\d")

ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]{1,15}+://|www\.|mailto:)\S++", re.IGNORECASE)
EMAIL = re.compile(r"[\w.+-]++@[\w-]++(?:\.[\w-]++)++")
WORD = re.compile(r"[^\W\d_]++(?:['-][^\W\d_]++)*+")
CURRENCIES = "$€£¥₹₩₽¢"
NUMBER_SIGN = re.compile(rf"(?:[{CURRENCIES}%‰]|°[CF]?)(?=[?!.,;:)]*+$)")
"""Matches the sign after a number and a space: 100 €, 5 %."""
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
    start, is_sentence_start = 0, True
    for left, right in find_quotes(text):
        is_sentence_start = _append_tokens(text, start, left, is_sentence_start, tokens)
        quote = text[left:right]
        tokens.append(Token("quote", quote, fold_case(quote), left, right, is_sentence_start, True))
        start, is_sentence_start = right, False
    _append_tokens(text, start, len(text), is_sentence_start, tokens)
    return tuple(tokens)


# The same question is tokenised several times: for its keywords, its protected spans and its
# language.
_tokenise_cached = lru_cache(64)(_tokenise_uncached)


def _append_tokens(
    text: str, start: int, end: int, is_sentence_start: bool, tokens: list[Token]
) -> bool:
    """Append the tokens of ``text[start:end]`` to *tokens*. Quoted phrases are not recognised.

    Args:
        text: The query.
        start: The position of the first character to read.
        end: The position after the last character to read.
        is_sentence_start: Whether a sentence begins at *start*.
        tokens: The tokens before *start*. The new tokens are added at the end.

    Returns:
        Whether a sentence begins at *end*.
    """
    for match in BLANKS.finditer(text, start, end):
        chunk, offset = match.group(), match.start()
        previous_token = tokens[-1] if tokens else None
        if (
            previous_token
            and previous_token.kind == "number"
            and _can_sign_follow(previous_token, offset)
            and (sign := NUMBER_SIGN.match(chunk))
        ):
            # "100 €" is one token, so the sign joins the number before it.
            sign_end = offset + sign.end()
            amount = text[previous_token.start : sign_end]
            is_before_punctuation = sign_end < match.end()
            tokens[-1] = Token(
                "number",
                amount,
                fold_case(amount),
                previous_token.start,
                sign_end,
                previous_token.opens_sentence,
                is_before_punctuation,
            )
            is_sentence_start = is_before_punctuation and not SENTENCE_ENDS.isdisjoint(chunk[-3:])
        elif (
            chunk in SUMS
            and previous_token is not None
            and _is_operator(text, previous_token, offset, match.end())
        ):
            tokens.append(Token("identifier", chunk, chunk, offset, match.end(), False, False))
            is_sentence_start = False
        else:
            pieces, is_end = (
                _split_chunk_cached(chunk)
                if len(chunk) <= MOST_PIECE_CHARS
                else _split_chunk(chunk)
            )
            for kind, piece, folded_text, left, right, is_before_punctuation in pieces:
                token = Token(
                    kind,
                    piece,
                    folded_text,
                    offset + left,
                    offset + right,
                    is_sentence_start,
                    is_before_punctuation,
                )
                # Only the first piece of a chunk can have a sign with a space before it.
                if kind == "number" and left == pieces[0].start and start <= token.start - 2:
                    token = _add_currency_sign(text, token, previous_token)
                tokens.append(token)
                is_sentence_start = False
            is_sentence_start = is_sentence_start or is_end
    return is_sentence_start


def _can_sign_follow(number_token: Token, sign_start: int) -> bool:
    """Return whether a sign at *sign_start* can belong to the number *number_token*, as in 100 €.

    The number must end in a digit, and a single character must separate the number and the sign.
    """
    return number_token.end + 1 == sign_start and number_token.text[-1].isdigit()


def _is_operator(text: str, previous_token: Token, start: int, end: int) -> bool:
    """Return whether the sign ``text[start:end]`` is an operator, as in 5 + 3 or x > 5.

    One space must separate the sign from *previous_token*. A number must stand on one side of the
    sign, or on both sides of a minus sign.
    """
    if previous_token.end + 1 != start or not text[end:].strip():
        return False
    # A hyphen between words is usually a dash, so a minus sign needs numbers on both sides.
    sides = previous_token.kind == "number", AMOUNT_AHEAD.match(text, end) is not None
    return all(sides) if text[start] in "-−" else any(sides)


def _add_currency_sign(text: str, number_token: Token, previous_token: Token | None) -> Token:
    """Return *number_token* with the currency sign before the number: "€ 100" instead of "100".

    Without a currency sign and a space before the number, *number_token* is returned unchanged.
    *previous_token* is the token before the number, or ``None`` if the number comes first.
    """
    start = number_token.start - 2
    is_sign = (
        number_token.text[0].isdigit() and text[start] in CURRENCIES and text[start + 1] == " "
    )
    if (
        not is_sign
        or (start and not text[start - 1].isspace())
        or (previous_token is not None and previous_token.end > start)
    ):
        return number_token
    amount = text[start : number_token.end]
    return number_token._replace(text=amount, folded_text=fold_case(amount), start=start)


class _Piece(NamedTuple):
    """A token in a chunk, a stretch of a query without spaces.

    The attributes have the same meaning as in `Token`, but *start* and *end* are positions in the
    chunk.
    """

    kind: TokenKind
    text: str
    folded_text: str
    start: int
    end: int
    is_before_punctuation: bool


def _split_chunk(chunk: str) -> tuple[Sequence[_Piece], bool]:
    """Split *chunk*, a stretch of a query without spaces, into tokens.

    Returns:
        The tokens.
        Whether a sentence ends after the last token.
    """
    pieces = [
        _Piece(
            kind,
            chunk[left:right],
            fold_case(chunk[left:right]),
            left,
            right,
            is_before_punctuation,
        )
        for kind, left, right, is_before_punctuation in _locate_tokens(chunk)
    ]
    return pieces, not SENTENCE_ENDS.isdisjoint(chunk[-3:]) and (
        not pieces or pieces[-1].end < len(chunk)
    )


def _locate_tokens(chunk: str) -> list[tuple[TokenKind, int, int, bool]]:
    """Return the tokens in *chunk*, a stretch of a query without spaces.

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
        r"[-+±−~≈<>≤≥]{0,2}+[$€£¥₹₩₽¢]?+\.?\d++(?:[.,:/×'’–-]\d++)*+(?:\s?[%‰°]|'?s|(?:st|nd|rd|th))?+"
        r"[$€£¥₹₩₽¢]?+(?:[^\W\d_]{1,3}(?:/[^\W\d_]{1,3})?+[²³]?)?+[+]?+"
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


def find_quotes(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of every quoted phrase in *text*, including the quotation marks.

    Quotes inside a quoted phrase, marks without a partner and apostrophes are ignored. A single
    quotation mark opens a quote only before a word, and closes a quote only after a word.
    """
    spans: list[tuple[int, int]] = []
    unclosed_marks: set[str] = set()
    positions = [match.start() for match in _compile_mark_pattern().finditer(text)]
    index = 0
    while index < len(positions):
        opening_mark = text[positions[index]]
        may_open = opening_mark not in unclosed_marks and _can_open_quote(text, positions[index])
        closing_index = _find_closing_mark(text, positions, index) if may_open else index
        if closing_index is None:
            # No later mark closes this one, so later marks of the same kind are not searched. This
            # keeps the time linear.
            unclosed_marks.add(opening_mark)
        elif closing_index > index:
            spans.append((positions[index], positions[closing_index] + 1))
            index = closing_index
        index += 1
    return spans


def _find_closing_mark(text: str, mark_positions: list[int], opening_index: int) -> int | None:
    """Return the index of the quotation mark that closes the quote.

    Args:
        text: The query.
        mark_positions: The positions of all quotation marks in *text*.
        opening_index: The index in *mark_positions* of the mark that opens the quote.

    Returns:
        The index in *mark_positions* of the closing mark, *opening_index* if the quote is empty, or
        ``None`` if no mark closes the quote.
    """
    start = mark_positions[opening_index]
    closers = CLOSERS[text[start]]
    for later in range(opening_index + 1, len(mark_positions)):
        position = mark_positions[later]
        if text[position] in closers and _can_close_quote(text, position):
            return later if text[start + 1 : position].strip() else opening_index
    return None


def _can_open_quote(text: str, mark_position: int) -> bool:
    """Return whether the quotation mark at *mark_position* in *text* can open a quote."""
    mark = text[mark_position]
    after = text[mark_position + 1 : mark_position + 2]
    if mark not in CLOSERS or (mark_position and text[mark_position - 1].isalnum()):
        return False
    # The mark before a digit is an apostrophe: '90s is a year without its century.
    return not (mark in SINGLE_MARKS and (after.isspace() or after.isdigit()))


def _can_close_quote(text: str, mark_position: int) -> bool:
    """Return whether the quotation mark at *mark_position* in *text* can close a quote."""
    if text[mark_position + 1 : mark_position + 2].isalnum():
        return False
    return text[mark_position] not in SINGLE_MARKS or not text[mark_position - 1].isspace()


@cache
def _compile_mark_pattern() -> re.Pattern[str]:
    """Return a pattern that matches a single quotation mark, opening or closing."""
    marks = set("".join(CLOSERS.values())) | set(CLOSERS)
    return re.compile("[" + re.escape("".join(sorted(marks))) + "]")
