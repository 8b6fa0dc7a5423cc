"""Every regular expression of the package, and texts made to bring each of them to its worst."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import regex

import qtmiddleware

# What is compiled while the package is imported and used, by the module that asked for it.
_OWN: Final = "qtmiddleware."
_LIBRARIES: Final = (re.__name__, regex.__name__)
_REGEX: Final[Any] = sys.modules[regex.compile.__module__]


@dataclass(frozen=True)
class Used:
    """A pattern of the package: the *module* that compiles it, its *source*, and the compiled *pattern* itself."""

    module: str
    source: str
    pattern: Any

    @property
    def name(self) -> str:
        """The module and the beginning of the pattern, on one line."""
        return f"{self.module.removeprefix(_OWN)}: {' '.join(self.source.split())[:60]}"


class Watching:
    """Within this block every pattern that a module of the package compiles is kept in *found*."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], Used] = {}

    def __enter__(self) -> Watching:
        self._compile, self._compile_more = re._compile, _REGEX._compile  # type: ignore[attr-defined]

        def compile_(pattern: Any, flags: Any) -> Any:
            return self._kept(self._compile(pattern, flags))

        def compile_more(*given: Any) -> Any:
            return self._kept(self._compile_more(*given))

        re._compile, _REGEX._compile = compile_, compile_more  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        re._compile, _REGEX._compile = self._compile, self._compile_more  # type: ignore[attr-defined]

    def _kept(self, made: Any) -> Any:
        frame: FrameType | None = sys._getframe(2)
        while (
            frame is not None
            and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
        ):
            frame = frame.f_back
        module = "" if frame is None else frame.f_globals.get("__name__", "")
        if module.startswith(_OWN) and isinstance(made.pattern, str):
            self.found[module, made.pattern, made.flags] = Used(module, made.pattern, made)
        return made


def import_everything() -> list[str]:
    """Import every module of the package; the names of those that need what is not installed."""
    missing = []
    for one in pkgutil.walk_packages(qtmiddleware.__path__, _OWN):
        try:
            importlib.import_module(one.name)
        except ImportError:
            missing.append(one.name)
    return missing


def held(seen: set[int] | None = None) -> Iterator[Used]:
    """The patterns that the imported modules hold by a name, also within tables."""
    seen = set() if seen is None else seen
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_OWN):
            for value in list(vars(module).values()):
                yield from _within(name, value, seen, 0)


def _within(module: str, value: Any, seen: set[int], depth: int) -> Iterator[Used]:
    if id(value) in seen or depth > 3:
        return
    if hasattr(value, "finditer") and isinstance(getattr(value, "pattern", None), str):
        seen.add(id(value))
        yield Used(module, value.pattern, value)
    elif isinstance(value, dict):
        for inner in list(value.values()):
            yield from _within(module, inner, seen, depth + 1)
    elif isinstance(value, tuple | list | set | frozenset):
        for inner in value:
            yield from _within(module, inner, seen, depth + 1)


# What ends a match early or keeps it from ending.
_BREAKS: Final = ("\x00", "!", "a", " ", "\n", "0", '"')
_PUMPS: Final = (
    *" \n\t\r\x0b\u00a0\u3000aA0_.,:;-'\"`*#<>()[]{}/\\|=+~@$&%?!^…\u200d\u0301é中あ한アبא\x00\ud800\U0001f600",
    "a ", " a", "A ", "a.", ". ", "1,", "1 ", "0.", "a-", "a'", "\n\n", " \n", "\n ", '",', '", ', '":', "[1", "[[",
    "{[", '{"', "<a", "</", "<|", "a@", "a=", "::", "->", "``", "`a", "**", "*a", "_a", "\\a", '\\"', "'a' ", "“a",
    "é ",     "A.", "Ab ", "AB ", "1a", "中a", "a中", "[1,", "[1]", " [", "1-", "1]", "¿", "a?", "#1", "<think>",
    "<b>", "Q1. ",
    "1. a ", "- a\n", "a: ", "a:\n", "query ", "NO_ANSWER", "no answer ", "www.", "a://", "https://", "the ", "not ",
    "\\u0041", "null,", "true ", '"a":', "\u202e", "\U000e0041", "a\u0301\u0302", "\u0627\u200d", "[text", "passage 1 ",
)  # fmt: skip


def attacks(source: str) -> list[tuple[str, str, str]]:
    """Beginnings, parts to be repeated and ends, as texts that come near to what *source* matches, again and again."""
    own = _samples(source)
    pumps = dict.fromkeys((*_PUMPS, *own, *(sample[:-1] for sample in own if len(sample) > 1)))
    starts = list(dict.fromkeys(("", *sorted((it for it in own if len(it) < 30), key=len)[:4])))
    found = []
    for place, pump in enumerate(pumps):
        for at, start in enumerate(starts):
            # Each part meets every beginning, and the ends in turn.
            found += [(start, pump, end) for end in ("", _BREAKS[(at + place) % len(_BREAKS)])]
    return list(dict.fromkeys(found))


def long(start: str, pump: str, end: str, length: int) -> str:
    """The attack as a text of about *length* characters."""
    return start + pump * max(1, (length - len(start) - len(end)) // len(pump)) + end


def _samples(source: str) -> list[str]:
    """Texts that parts of the pattern *source* match: literal runs in it, and samples of the whole."""
    literals = [it for it in re.findall(r"[^\\\[\](){}?*+|^$.]{2,24}", source) if not it.isspace()]
    found = dict.fromkeys(literals[:12])
    try:
        tree = re._parser.parse(source)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError):
        return list(found)
    for least in (0, 1, 2):
        if whole := _sample(tree, least):
            found[whole[:200]] = None
    for part in _repeated(tree):
        if text := _sample(part, 1):
            found[text[:60]] = None
    return list(found)


def _repeated(tree: Any) -> Iterator[Any]:
    """What stands under a repetition, outer ones first."""
    for op, value in tree:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            if value[1] > 8:
                yield value[2]
            yield from _repeated(value[2])
        else:
            for inner in _inner(name, value):
                yield from _repeated(inner)


def _inner(name: str, value: Any) -> list[Any]:
    if name == "SUBPATTERN":
        return [value[3]]
    if name == "BRANCH":
        return list(value[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    return [value] if name == "ATOMIC_GROUP" else []


_CATEGORIES: Final = {
    "CATEGORY_SPACE": " ",
    "CATEGORY_DIGIT": "1",
    "CATEGORY_WORD": "a",
    "CATEGORY_NOT_SPACE": "a",
    "CATEGORY_NOT_WORD": "-",
    "CATEGORY_NOT_DIGIT": "a",
}


def _sample(tree: Any, least: int) -> str:
    """One text that *tree* may match; what may be repeated is so *least* times."""
    made = []
    for op, value in tree:
        name = str(op)
        if name == "LITERAL":
            made.append(chr(value))
        elif name == "NOT_LITERAL":
            made.append("a" if value != 97 else "b")
        elif name == "IN":
            made.append(_one_of(value))
        elif name == "ANY":
            made.append("a")
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            made.append(_sample(value[2], least) * max(value[0], min(least, value[1])))
        elif name == "BRANCH":
            made.append(_sample(value[1][least % len(value[1])], least))
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            made.append("".join(_sample(inner, least) for inner in _inner(name, value)))
    return "".join(made)


def _one_of(allowed: Any) -> str:
    if str(allowed[0][0]) == "NEGATE":
        refused = {value for op, value in allowed[1:] if str(op) == "LITERAL"}
        return next(sign for sign in "a b1-.\x00" if ord(sign) not in refused)
    op, value = allowed[0]
    name = str(op)
    if name == "LITERAL":
        return chr(value)
    if name == "RANGE":
        return chr(value[0])
    return _CATEGORIES.get(str(value), "a")
