"""Whether a text denies something."""

from __future__ import annotations

import re
from typing import Final

from qtmiddleware.transforms.wording import folded, listed, words

# By line: English, Spanish, German, French, Italian, Portuguese, Dutch, Slavic in Latin letters, Nordic, Turkish,
# Greek, Russian and Ukrainian, Hebrew, Arabic, Vietnamese, Indonesian; all without accents.
_WORDS: Final = listed(
    """
    no not non none nor neither never nothing nobody nowhere cannot without except excepting excluding exclude excludes
    excluded exclusion lack lacks lacking absent absence missing unable impossible fail fails failed failing failure
    refuse refuses refused deny denies denied reject rejected avoid avoids avoiding prevent prevents prohibited
    forbidden banned ineligible unless insufficient stopped stops broken dont doesnt didnt isnt arent wasnt werent cant
    couldnt wont wouldnt shouldnt hasnt havent hadnt aint
    sin nunca jamas ningun ninguna ninguno nada nadie tampoco ni excepto salvo
    nicht kein keine keinen keinem keiner keines ohne nie niemals nichts niemand weder ausser
    ne pas sans jamais aucun aucune rien personne sauf hormis
    senza mai nessun nessuna nessuno niente nulla eccetto tranne
    nao sem nenhum nenhuma ninguem exceto
    niet geen zonder nooit niets behalve
    nie bez nigdy zaden oprocz neni nejsou nikdy
    inte ej ingen inget utan aldrig ikke uden uten aldri
    degil yok olmadan hayir haric
    δεν μη μην χωρις ουτε
    не нет без никогда ни кроме нельзя ничего никто нема немає
    לא אין בלי ללא
    لا لم لن ليس ليست غير بدون دون
    khong chua tidak bukan tanpa jangan
    """
)
# In these scripts a denial is part of a longer run of characters; in the others, part of a contraction.
_INSIDE: Final = re.compile(
    r"[不没沒无無未非勿]|别|除了|以外|ない|なし|ません"
    r"|なかった|なく|ずに|नहीं|बिना|않|안 |못|없|아니|제외|ไม่|n't\b|\bn'\w|\bd'aucun"
)
_PREFIXED: Final = re.compile(r"^(?:un|non|in|im|ir|il|dis|a)-?(\w{4,})$")
_WORKING: Final = re.compile(r"\bwork")
_TROUBLE: Final = re.compile(r"\b(?:problems?|issues?|errors?|troubles?|faults?|malfunction\w*|troubleshoot\w*)\b")


def is_negated(text: str) -> bool:
    """Whether *text* has a word, contraction or character that denies, in any of some twenty languages."""
    plain = folded(text)
    # In ASCII only a contraction can hide a denial inside a run.
    hidden = not plain.isascii() or "'" in plain
    return (hidden and bool(_INSIDE.search(plain))) or not _WORDS.isdisjoint(words(plain))


def keeps_negation(text: str, query: str) -> bool:
    """Whether *text* still denies what *query* denies: by any such word, or by a prefix ("uncovered")."""
    if is_negated(text):
        return True
    asked, plain = folded(query), folded(text)
    if _WORKING.search(asked) and _TROUBLE.search(plain):
        return True
    stems = {word[:5] for word in words(asked) if len(word) > 3}
    prefixed = (_PREFIXED.match(word) for word in re.findall(r"[\w-]+", plain))
    return any(match and match.group(1)[:5] in stems for match in prefixed)
