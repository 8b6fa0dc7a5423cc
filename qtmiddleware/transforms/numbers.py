"""The numbers in a text by their value, however they are written."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final

from qtmiddleware.transforms.wording import folded, listed, words

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
    for word in listed(names)
}  # fmt: skip
_SIGNS: Final = {
    sign: listed(names)
    for sign, names in {
        "€": "eur euro euros евро 欧元 ユーロ 유로",
        "$": "usd dollar dollars buck bucks dolar dolares dollari доллар 美元 ドル 달러",
        "£": "gbp pound pounds sterling quid libra libras livre livres sterlina sterline pfund pond "
        "фунт 英镑 ポンド 파운드",
        "¥": "jpy cny rmb yen yuan renminbi иен юан 元 円 엔 위안",
        "₹": "inr rs rupee rupees rupia rupias rupie roupie roupies рупи 卢比",
        "₩": "krw won won вон 韩元 원",
        "₽": "rub ruble rubles rouble roubles rublo rublos rubel рубл 卢布",
        "¢": "cent cents",
        "%": "percent percentage cent pct prozent ciento porcentaje pourcent pourcentage cento percentuale porcentagem "
        "procent процент 百分 パーセント 퍼센트",
        "‰": "permille permil promille mille",
    }.items()
}
"""How else the sign beside a number is written: as a word, or in other scripts as a part of one."""
_HAN: Final = {char: Decimal(value) for value, char in enumerate("零一二三四五六七八九十")} | {"两": Decimal(2)}


def numbers(text: str) -> list[frozenset[Decimal]]:
    """The numbers written in digits in *text*, each as the values it may have: "1.000" is one or a thousand."""
    return [_values(match) for match in _NUMBER.finditer(folded(text))]


def has_numbers_of(span: str, text: str) -> bool:
    """Whether every number of *span* stands in *text* by value, in digits or as an English word, and its sign too."""
    if not all(_has_sign(sign, text) for sign in span if sign in _SIGNS):
        return False
    there: set[Decimal] = set().union(*numbers(text))
    there |= {_SPELLED[word] for word in words(folded(text)) if word in _SPELLED}
    there |= {_HAN[char] for char in text if char in _HAN}
    wanted = numbers(span) or [frozenset({_SPELLED[word]}) for word in words(folded(span)) if word in _SPELLED]
    if not wanted:
        return folded(span) in folded(text)
    return all(values & there for values in wanted)


def _has_sign(sign: str, text: str) -> bool:
    plain = folded(text)
    if sign in plain or not _SIGNS[sign].isdisjoint(words(plain)):
        return True
    return any(not name.isascii() and folded(name) in plain for name in _SIGNS[sign])


def _values(match: re.Match[str]) -> frozenset[Decimal]:
    written = re.sub(r"[\s']", "", match.group(1))
    readings = {written.replace(",", ""), written.replace(".", "").replace(",", ".")}
    values = {value for reading in readings if (value := _decimal(reading)) is not None}
    factor = _FACTORS.get(match.group(2) or "")
    if factor:
        values |= {value.scaleb(factor) for value in values}
    return frozenset(values)


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text[:50])
    except InvalidOperation:
        return None
