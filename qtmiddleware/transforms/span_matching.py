"""Whether a text still holds a span of the query: a quote, an identifier, a number, a name, a link or a negation.

Numbers are compared by value, however they are written; a negation is kept by any word or form that
denies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

from qtmiddleware.preprocessing import LANGUAGES
from qtmiddleware.preprocessing.lexicon import load, load_all
from qtmiddleware.preprocessing.text import fold_accents, fold_words, normalise, split_words

_QUOTE_MARKS: Final = "\"'“”‘’«»„`「」『』 "
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*://(?:www\.)?|^www\.")
# Between these an identifier may be written with a hyphen, an underscore, a space, or nothing.
_JOINT: Final = re.compile(r"[\s_-]+|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_SMALL_WORDS: Final = frozenset(
    "the a an of and de la le du der die das von van el los las in on for st dr mr mrs ms".split()  # noqa: SIM905
)

_NUMBER: Final = re.compile(
    r"(\d{1,3}(?:[,.'\u00a0\u202f ]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)?)"
    r"\s?(k\b|m\b|bn\b|thousand|million|billion)?"
)
_FACTORS: Final = {"k": 3, "thousand": 3, "m": 6, "million": 6, "bn": 9, "billion": 9}
_SPELLED: Final = {
    word: Decimal(value)
    for value, names in {
        0: "zero zeroth", 1: "one first once single january", 2: "two second twice double both ii february",
        3: "three third triple iii march", 4: "four fourth iv april", 5: "five fifth may", 6: "six sixth vi june",
        7: "seven seventh vii july", 8: "eight eighth viii august", 9: "nine ninth ix september",
        10: "ten tenth october", 11: "eleven eleventh november", 12: "twelve twelfth dozen december",
        13: "thirteen thirteenth", 14: "fourteen fourteenth", 15: "fifteen fifteenth", 16: "sixteen sixteenth",
        17: "seventeen seventeenth", 18: "eighteen eighteenth", 19: "nineteen nineteenth", 20: "twenty twentieth",
        30: "thirty", 40: "forty", 50: "fifty half", 60: "sixty", 70: "seventy", 80: "eighty", 90: "ninety",
        100: "hundred", 1_000: "thousand", 1_000_000: "million", 1_000_000_000: "billion",
    }.items()
    for word in names.split()
}  # fmt: skip
_SIGNS: Final = {
    sign: frozenset(names.split())
    for sign, names in {
        "€": "eur euro euros евро 欧元 ユーロ 유로",
        "$": "usd dollar dollars buck bucks dolar dolares dollari доллар 美元 ドル 달러",
        "£": (
            "gbp pound pounds sterling quid libra libras livre livres sterlina sterline pfund pond "
            "фунт 英镑 ポンド 파운드"
        ),
        "¥": "jpy cny rmb yen yuan renminbi иен юан 元 円 엔 위안",
        "₹": "inr rs rupee rupees rupia rupias rupie roupie roupies рупи 卢比",
        "₩": "krw won won вон 韩元 원",
        "₽": "rub ruble rubles rouble roubles rublo rublos rubel рубл 卢布",
        "¢": "cent cents",
        "%": (
            "percent percentage cent pct prozent ciento porcentaje pourcent pourcentage cento"
            " percentuale porcentagem procent процент 百分 パーセント 퍼센트"
        ),
        "‰": "permille permil promille mille",
    }.items()
}
"""How else the sign beside a number is written: as a word, or in other scripts as a part of one."""
_HAN: Final = {char: Decimal(value) for value, char in enumerate("零一二三四五六七八九十")} | {
    "两": Decimal(2)
}

_PREFIXED: Final = re.compile(r"^(?:un|non|in|im|ir|il|dis|a)-?(\w{4,})$")
_WORKING: Final = re.compile(r"\bwork")
_TROUBLE: Final = re.compile(
    r"\b(?:problems?|issues?|errors?|troubles?|faults?|malfunction\w*|troubleshoot\w*)\b"
)
_COMPOUND: Final = re.compile(r"\b(?:non?|not|never)-\w+(?:-\w+)*")
_MOST_COMPOUNDS: Final = 20


def keeps_span(kind: str, span: str, text: str, *, query: str) -> bool:
    """Whether *text* holds *span* of *query* in a form that says the same; *kind* is one of those named above."""
    if kind == "negation":
        return _keeps_negation(text, query, span)
    if kind == "number":
        return _has_numbers(span, text)
    if kind == "quote":
        return _has_phrase(span.strip(_QUOTE_MARKS), text)
    if kind == "url":
        return _SCHEME.sub("", fold_accents(span)).rstrip("/") in fold_accents(text)
    if _has_identifier(span, text):
        return True
    return kind == "name" and _has_name(span, text)


def write_span(kind: str, span: str) -> str:
    """Returns *span* as it is put back into a text: a quote in its quotes, anything else as it is."""
    bare = span.strip(_QUOTE_MARKS)
    return f'"{bare}"' if kind == "quote" else span.strip()


def _has_phrase(phrase: str, text: str) -> bool:
    wanted = fold_words(phrase)
    if not wanted:
        return phrase in text
    return f" {' '.join(wanted)} " in f" {' '.join(fold_words(text))} " and (
        not re.search(r"[^\w\s,.;:!?'’\"-]", phrase) or normalise(phrase) in normalise(text)
    )


def _has_identifier(span: str, text: str) -> bool:
    return bool(_identifier_pattern(span).search(fold_accents(text)))


@lru_cache(maxsize=256)
def _identifier_pattern(span: str) -> re.Pattern[str]:
    plain = fold_accents(span).strip().removesuffix("'s").removesuffix("'")
    joined = r"[\s_-]*".join(re.escape(part) for part in _JOINT.split(plain) if part)
    # No part of a longer word or number: E-40 is not kept by E-4042, nor v1.2 by v1.2.3.
    before = r"(?<!\w)" if re.match(r"\w", plain) and plain.isascii() else ""
    after = r"(?!\w|\.\d)(?:'?s)?" if plain[-1:].isalnum() and plain.isascii() else ""
    plural = "s?" if plain[-1:].isalpha() and plain.isascii() else ""
    return re.compile(before + joined + plural + after)


def _has_name(span: str, text: str) -> bool:
    """Whether the words of a name are all there, in any order, or its initials, or what its initials stand for."""
    said = [word.removesuffix("'s") for word in fold_words(text)]
    full, _, short = span.partition("(")
    # A text may leave out a title or an initial.
    full = " ".join(word for word in full.split() if not _is_title_or_initial(word))
    parts = [word.removesuffix("'s") for word in fold_words(full) if word not in _SMALL_WORDS]
    if (
        parts
        and all(_is_said(part, said) for part in parts)
        and _are_common_ones_beside(parts, said)
    ):
        return True
    letters = re.sub(r"[\W_]", "", full)
    if letters.isupper() and 2 <= len(letters) <= 6:
        return letters.lower() in "".join(word[0] for word in said if word not in _SMALL_WORDS)
    initials = {"".join(part[0] for part in parts), *fold_words(short)}
    undotted = re.sub(r"(?<=\b\w)\.", "", fold_accents(text)).strip("?!.")
    return len(parts) > 1 and not initials.isdisjoint(undotted.split())


def _are_common_ones_beside(parts: list[str], said: list[str]) -> bool:
    """Whether words of a name that are verbs too (May, Will, Can) stand beside another word of it."""
    pairs = set(pairwise(parts))
    beside = {
        word
        for one, other in pairwise(said)
        if {(one, other), (other, one)} & pairs
        for word in (one, other)
    }
    return not pairs or all(part in beside for part in parts if part in load("en").verbs)


def _is_title_or_initial(word: str) -> bool:
    return word.endswith(".") and (len(word) == 2 or fold_accents(word[:-1]) in _titles())


@cache
def _titles() -> frozenset[str]:
    return frozenset(fold_accents(title) for code in LANGUAGES for title in load(code).titles)


def _is_said(part: str, said: list[str]) -> bool:
    """Whether a word of a name is among the words of a text, as it is, in the plural, or opening a longer one."""
    if part in said or part.rstrip("s") in said:
        return True
    return any(word == f"{part}s" or (len(part) > 4 and word.startswith(part)) for word in said)


def _find_numbers(text: str) -> list[frozenset[Decimal]]:
    """The numbers written in digits in *text*, each as the values it may have: "1.000" is one or a thousand."""
    return [_find_values(match) for match in _NUMBER.finditer(fold_accents(text))]


def _has_numbers(span: str, text: str) -> bool:
    """Whether every number of *span* stands in *text* by value, in digits or as an English word, and its sign too."""
    if not all(_has_sign(sign, text) for sign in span if sign in _SIGNS):
        return False
    there: set[Decimal] = set().union(*_find_numbers(text))
    there |= {_SPELLED[word] for word in fold_words(text) if word in _SPELLED}
    there |= {_HAN[char] for char in text if char in _HAN}
    spelled = [frozenset({_SPELLED[word]}) for word in fold_words(span) if word in _SPELLED]
    wanted = _find_numbers(span) or spelled
    if not wanted:
        return fold_accents(span) in fold_accents(text)
    return all(values & there for values in wanted)


def _has_sign(sign: str, text: str) -> bool:
    plain = fold_accents(text)
    if sign in plain or not _SIGNS[sign].isdisjoint(split_words(plain)):
        return True
    return any(not name.isascii() and fold_accents(name) in plain for name in _SIGNS[sign])


def _find_values(match: re.Match[str]) -> frozenset[Decimal]:
    written = re.sub(r"[\s']", "", match.group(1))
    readings = {written.replace(",", ""), written.replace(".", "").replace(",", ".")}
    values = {value for reading in readings if (value := _to_decimal(reading)) is not None}
    factor = _FACTORS.get(match.group(2) or "")
    if factor:
        values |= {value.scaleb(factor) for value in values}
    return frozenset(values)


def _to_decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text[:50])
    except InvalidOperation:
        return None


def is_negated(text: str) -> bool:
    """Whether *text* has a word, contraction or character that denies, in any of some twenty languages."""
    return bool(_find_denials(fold_accents(text)))


def _keeps_negation(text: str, query: str, span: str = "") -> bool:
    """Whether *text* still denies what *query* denies: by any word or contraction that does, or a prefix ("uncovered").

    *span* is one denial of *query*. What the query says beside its denials is none: "aren't
    non-stop" is not kept by "are non-stop", nor "doesn't fail" by "fails". Of a question that has
    both a "not" and a "without", a text must hold two denials.
    """
    asked, plain = fold_accents(query), fold_accents(text)
    for compound in _COMPOUND.findall(asked)[:_MOST_COMPOUNDS]:
        for form in (compound, compound.replace("-", ""), compound.replace("-", " ")):
            plain = plain.replace(form, " ")
    denials = _find_denials(asked)
    protected = _negation_words() | set(fold_words(span))
    own = {denial for denial in denials if denial in _denying_words() and denial not in protected}
    count = _count_denials(denial for denial in _find_denials(plain) if denial not in own)
    count += _count_rephrased_denials(plain, asked)
    meant = [denial for denial in denials if denial not in own]
    excluding = _exclusion_words().intersection(meant)
    is_double = excluding and _count_denials(denial for denial in meant if denial not in excluding)
    return count > 1 if is_double else count > 0


def _count_denials(denials: Iterable[str]) -> int:
    """How many *denials* there are, where "ne" and "n'" are half of one."""
    found = list(denials)
    return len(
        [one for one in found if one != "ne" and (one == "n't" or not one.startswith("n'"))]
    ) or len(found[:1])


def _find_denials(plain: str) -> list[str]:
    """The words, contractions and characters that deny in a folded text."""
    return _denial_pattern().findall(plain) + [
        word for word in split_words(plain) if word in _denying_words()
    ]


def _count_rephrased_denials(plain: str, asked: str) -> int:
    known = set(re.findall(r"[\w-]+", asked))
    stems = {word[:5] for word in split_words(asked) if len(word) > 3}
    new = (
        word
        for word in re.findall(r"[\w-]+", plain)
        if word not in known and word not in _denying_words()
    )
    prefixed = map(_PREFIXED.match, new)
    is_trouble = bool(_WORKING.search(asked) and _TROUBLE.search(plain))
    return is_trouble + sum(match is not None and match.group(1)[:5] in stems for match in prefixed)


@cache
def _negation_words() -> frozenset[str]:
    return frozenset(fold_accents(word) for one in load_all() for word in one.negations)


@cache
def _denying_words() -> frozenset[str]:
    return frozenset(fold_accents(word) for one in load_all() for word in one.denials)


@cache
def _exclusion_words() -> frozenset[str]:
    return frozenset(word for one in load_all() for word in one.exclusions)


@cache
def _denial_pattern() -> re.Pattern[str]:
    """In some scripts a denial is part of a longer run of characters; in the others, part of a contraction."""
    return re.compile("|".join(pattern for one in load_all() for pattern in one.denial_patterns))
