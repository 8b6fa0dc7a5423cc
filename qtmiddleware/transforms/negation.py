"""Whether a text denies something."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from qtmiddleware.preprocessing.lexicon import load_all
from qtmiddleware.transforms.wording import folded, words

_PREFIXED: Final = re.compile(r"^(?:un|non|in|im|ir|il|dis|a)-?(\w{4,})$")
_WORKING: Final = re.compile(r"\bwork")
_TROUBLE: Final = re.compile(r"\b(?:problems?|issues?|errors?|troubles?|faults?|malfunction\w*|troubleshoot\w*)\b")


_COMPOUND: Final = re.compile(r"\b(?:non?|not|never)-\w+(?:-\w+)*")
_MOST_COMPOUNDS: Final = 20


def is_negated(text: str) -> bool:
    """Whether *text* has a word, contraction or character that denies, in any of some twenty languages."""
    return bool(_denials(folded(text)))


def keeps_negation(text: str, query: str, span: str = "") -> bool:
    """Whether *text* still denies what *query* denies: by any word or contraction that does, or a prefix ("uncovered").

    *span* is one denial of *query*. What the query says beside its denials is none: "aren't non-stop" is not kept by
    "are non-stop", nor "doesn't fail" by "fails". Of a question that has both a "not" and a "without", a text must hold
    two denials.
    """
    asked, plain = folded(query), folded(text)
    for compound in _COMPOUND.findall(asked)[:_MOST_COMPOUNDS]:
        for form in (compound, compound.replace("-", ""), compound.replace("-", " ")):
            plain = plain.replace(form, " ")
    denials = _denials(asked)
    protected = _negations() | set(words(folded(span)))
    own = {denial for denial in denials if denial in _denying() and denial not in protected}
    count = _count(denial for denial in _denials(plain) if denial not in own) + _count_in_other_words(plain, asked)
    meant = [denial for denial in denials if denial not in own]
    excluding = _exclusions().intersection(meant)
    is_double = excluding and _count(denial for denial in meant if denial not in excluding)
    return count > 1 if is_double else count > 0


def _count(denials: Iterable[str]) -> int:
    """How many *denials* there are, where "ne" and "n'" are half of one."""
    found = list(denials)
    return len([one for one in found if one != "ne" and (one == "n't" or not one.startswith("n'"))]) or len(found[:1])


def _denials(plain: str) -> list[str]:
    """The words, contractions and characters that deny in a folded text."""
    # In ASCII only a contraction or a slash can hide a denial inside a run.
    hidden = not plain.isascii() or "'" in plain or "/" in plain
    found = _inside().findall(plain) if hidden else []
    return found + [word for word in words(plain) if word in _denying()]


def _count_in_other_words(plain: str, asked: str) -> int:
    known = set(re.findall(r"[\w-]+", asked))
    stems = {word[:5] for word in words(asked) if len(word) > 3}
    prefixed = (
        _PREFIXED.match(word) for word in re.findall(r"[\w-]+", plain) if word not in known and word not in _denying()
    )
    is_trouble = bool(_WORKING.search(asked) and _TROUBLE.search(plain))
    return is_trouble + sum(match is not None and match.group(1)[:5] in stems for match in prefixed)


@cache
def _negations() -> frozenset[str]:
    return frozenset(folded(word) for one in load_all() for word in one.negations)


@cache
def _denying() -> frozenset[str]:
    return frozenset(folded(word) for one in load_all() for word in one.denials)


@cache
def _exclusions() -> frozenset[str]:
    return frozenset(word for one in load_all() for word in one.exclusions)


@cache
def _inside() -> re.Pattern[str]:
    """In some scripts a denial is part of a longer run of characters; in the others, part of a contraction."""
    return re.compile("|".join(pattern for one in load_all() for pattern in one.denial_patterns))
