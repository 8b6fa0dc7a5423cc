"""How time grows with the length of a hostile text, for every pattern and every function that reads texts of others."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log
from time import thread_time
from typing import Final

from tests.robustness.fuzz.functions import FUNCTIONS, PUMPS, exercise
from tests.robustness.fuzz.patterns import Used, Watching, attacks, held, import_everything, long

MOST: Final = 6.0
"""For four times the length; linear is 4."""
FIRST: Final = 1_000
"""At this length a pattern that is not linear shows itself, and is not tried any longer."""
_COUNTS: Final = 0.002
_METHODS: Final = frozenset({"match", "fullmatch", "search", "finditer", "findall", "sub", "split"})
_THOROUGH: Final = 1
"""Of all texts so many, the one or those that took longest at a small length, are tried at full length."""


@dataclass(frozen=True)
class Growth:
    """The worst *ratio* of *attacks* texts for four times the length, and what the longest took; *kind* says what."""

    kind: str
    name: str
    attack: str
    ratio: float
    worst_ms: float
    attacks: int


Timed = Callable[[str], None]


def measured(lengths: Sequence[int], report: Callable[[Sequence[Growth]], None]) -> list[Growth]:
    """All patterns and functions on texts of these *lengths*, in order; *report* is told what there is so far."""
    found: list[Growth] = []
    for used, timed in patterns():
        found.append(_pattern(used, timed, lengths))
        _tell(found[-1])
        report(found)
    for name, timed in FUNCTIONS.items():
        taken = sorted(
            ((_time(timed, long(*attack, 4 * FIRST)), attack) for attack in PUMPS),
            key=lambda it: -it[0],
        )
        worst = _worst(
            [_grown("function", name, timed, attack, lengths) for _, attack in taken[:_THOROUGH]]
        )
        found.append(replace(worst, attacks=len(taken)))
        _tell(found[-1])
        report(found)
    return found


def patterns() -> list[tuple[Used, Timed]]:
    """Every pattern of the package, with a way to use it as the package does."""
    with Watching() as watching:
        import_everything()
        exercise()
    every = {(it.source, it.pattern.flags): it for it in (*watching.found.values(), *held())}
    return [(it, _used(it)) for it in every.values()]


def _used(it: Used) -> Timed:
    methods = _methods(it)
    longest = _longest(it)

    def run(text: str) -> None:
        text = text[-longest:]
        for name in methods:
            if name in ("search", "finditer", "findall", "sub", "split"):
                for _ in it.pattern.finditer(text):
                    pass
                return
        for name in methods:
            getattr(it.pattern, name)(text)

    return run


# Patterns that are given the end or the beginning of a text alone, with how many characters that
# is.
_GIVEN: Final = {
    "evaluation.testsets.passages._ENTRY": 20,
    "transforms.reply_rules._ASIDE": 200,
    "transforms.plain_text._GENERIC": 80,
    "answering.citing._INDEX_BEFORE": 200,
    "transforms.chatter._compile_noise_pattern": 300,
    "transforms.chatter._compile_refusal_pattern": 300,
}


def _names(it: Used) -> list[str]:
    """What its module calls the pattern: a constant, or a function that makes it once."""
    module = sys.modules.get(it.module)
    return (
        [name for name, value in vars(module).items() if it.pattern in (value, _made_by(value))]
        if module
        else []
    )


def _made_by(value: object) -> object:
    info = getattr(value, "cache_info", None)
    return (
        value()
        if callable(value)
        and info is not None
        and info().maxsize is None
        and not _parameters(value)
        else None
    )


def _parameters(function: Callable[..., object]) -> bool:
    return bool(inspect.signature(function).parameters)


def _longest(it: Used) -> int:
    """How many characters the package gives the pattern at most; 0 where that is not bounded."""
    names = _names(it)
    return max(
        (_GIVEN.get(f"{it.module.removeprefix('qtmiddleware.')}.{name}", 0) for name in names),
        default=0,
    )


def _methods(it: Used) -> frozenset[str]:
    """The methods its module calls on the name that it has there; all where it has none."""
    module = sys.modules.get(it.module)
    names = _names(it)
    if not names or module is None:
        return _METHODS
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            held = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(held, ast.Name) and held.id in names:
                found.add(node.attr)
    return frozenset(found & _METHODS) or _METHODS


def screened(it: Used, timed: Timed) -> list[tuple[float, tuple[str, str, str]]]:
    """The time each text takes at a small length, longest first; ends at once at one that is out of all proportion."""
    taken = []
    for attack in attacks(it.source):
        if _time(timed, long(*attack, FIRST // 4)) > 0.05:
            return [(float("inf"), attack)]
        taken.append((_time(timed, long(*attack, FIRST)), attack))
    return sorted(taken, key=lambda it: -it[0])


def _pattern(it: Used, timed: Timed, lengths: Sequence[int]) -> Growth:
    taken = screened(it, timed)
    if taken[0][0] == float("inf"):
        return Growth("pattern", it.name, _shown(taken[0][1]), 99.0, 0.0, 1)
    tried = [_grown("pattern", it.name, timed, attack, lengths) for _, attack in taken[:_THOROUGH]]
    worst = _worst(tried)
    return replace(worst, attacks=len(taken))


def _grown(
    kind: str, name: str, timed: Timed, attack: tuple[str, str, str], lengths: Sequence[int]
) -> Growth:
    before, ratio, last, shorter = 0.0, 0.0, 0.0, 0
    # From a small length on, so that what is not linear is met where it does not take minutes yet.
    for length in (FIRST, 4 * FIRST, *lengths):
        text = long(*attack, length)
        last = _time(timed, text)
        if last > _COUNTS:
            # Somebody else may have been at work: the shorter of two is rather the text's own.
            last = min(last, _time(timed, text))
        if before > _COUNTS / 4 and last > _COUNTS:
            # Between the lengths there may lie more than one step of four.
            ratio = max(ratio, (last / before) ** (log(4) / log(length / shorter)))
        if ratio >= MOST or last > 30:
            break
        before, shorter = last, length
    return Growth(kind, name, _shown(attack), ratio, 1e3 * last, 1)


def _worst(tried: Sequence[Growth]) -> Growth:
    worst = max(tried, key=lambda it: it.ratio)
    longest = max(it.worst_ms for it in tried)
    return Growth(worst.kind, worst.name, worst.attack, worst.ratio, longest, len(tried))


def _time(timed: Timed, text: str) -> float:
    # Not the clock's: others may be at work on the same machine.
    began = thread_time()
    timed(text)
    return thread_time() - began


def _shown(attack: tuple[str, str, str]) -> str:
    start, pump, end = (
        ascii(part)[1:-1].replace("`", "´").replace("|", "¦")[:40] for part in attack
    )
    return f"{start} ({pump})* {end}"


def _tell(found: Growth) -> None:
    with suppress(OSError):
        print(
            f"{found.ratio:6.1f} {found.worst_ms:9.1f} ms  {found.kind} {found.name!a}  {found.attack}",
            flush=True,
        )
