"""Words that stand for what is private, and everything the package emits while they are in use."""

from __future__ import annotations

import json
import logging
import pickle
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from qtmiddleware.errors import QtMiddlewareError

OPENAI_KEY: Final = "sk-markopenai0123456789abcdef"
PINECONE_KEY: Final = "pcsk_markpinecone_0123456789abcdef"
KEYS: Final = (OPENAI_KEY, PINECONE_KEY)
QUERY: Final = "Does qmarkzebulon have any health concerns?"
HISTORY: Final = (
    {"role": "user", "content": "Tell me about hmarkogilvy, please."},
    {"role": "assistant", "content": "hmarkogilvy is a dog of the shelter."},
)
PASSAGE: Final = "The vet found pmarkquillan without any health concerns in May"
METADATA: Final = "mmarkfenwick"
REPLY: Final = "rmarktibbles"
ANSWER: Final = "amarkwhitlow"
TEXTS: Final = ("qmarkzebulon", "hmarkogilvy", "pmarkquillan", METADATA, REPLY, ANSWER)


class Emitted:
    """What was emitted, each with where; `check` fails where a text or key is in it that should not be."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str]] = []
        """What anybody may see."""
        self.guarded: list[tuple[str, str]] = []
        """What holds texts on purpose, and never a key."""

    def say(self, where: str, text: str) -> None:
        self.open.append((where, text))

    def show(self, *objects: Any) -> None:
        """How objects of ours print, with what they are made of as far as that prints, and their pickles."""
        for it in objects:
            name = type(it).__name__
            self.say(f"repr of {name}", repr(it))
            self.say(f"str of {name}", str(it))
            self.say(f"format of {name}", f"{it}")

    def pickle(self, it: Any) -> None:
        """Texts that an object holds are the data itself, and are in its pickle; a key is in none."""
        self.guarded.append((f"pickle of {type(it).__name__}", pickle.dumps(it).decode("latin-1")))

    def raised(self, error: BaseException | None) -> None:
        """An error and what led to it, as far as it is ours; what others raised passes as it is."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen and isinstance(error, QtMiddlewareError):
            seen.add(id(error))
            self.show(error)
            self.say("arguments of an error", repr(error.args))
            self.say("notes of an error", repr(getattr(error, "__notes__", ())))
            self.say("attributes of an error", repr(vars(error)))
            alone = traceback.TracebackException(
                type(error), error, error.__traceback__, capture_locals=False
            )
            alone.__cause__ = alone.__context__ = None
            self.say("traceback of an error", "".join(alone.format(chain=False)))
            self.pickle(error)
            if error.__cause__ is None:
                # What shows the locals of tracebacks walks this also where `raise ... from None`
                # hides it.
                self._while_handling(error.__context__)
            error = error.__cause__ or error.__context__
            if error is not None and not _is_raised_by_us(error):
                return

    def _while_handling(self, error: BaseException | None) -> None:
        while error is not None:
            held = vars(error) if hasattr(error, "__dict__") else ""
            self.say(
                "what an error was raised while handling", f"{error!r} {error.args!r} {held!r}"
            )
            error = error.__cause__ or error.__context__

    def retrieval(self, found: Any) -> None:
        self.show(
            found,
            *found.matches,
            *found.variants,
            *found.rankings,
            found.transformation,
            found.trace,
        )
        self.say("trace", json.dumps(found.trace.to_dict()))
        self.say("degradations", repr(found.degradations))
        # The response and the passages may be of any class of the caller's.
        self.guarded.append(
            ("pickle of Retrieval", pickle.dumps((found.variants, found.trace)).decode("latin-1"))
        )

    def check(self) -> None:
        found = [
            (mark, where, text)
            for marks, emitted in (((*TEXTS, *KEYS), self.open), (KEYS, self.guarded))
            for where, text in emitted
            for mark in marks
            if mark.lower() in text.lower()
        ]
        told = "\n".join(f"{mark} in {where}: {text[:400]!r}" for mark, where, text in found[:20])
        if found:
            raise AssertionError(
                f"{len(found)} of {len(self.open) + len(self.guarded)} emitted:\n{told}"
            )


def _is_raised_by_us(error: BaseException) -> bool:
    """Whether it was, and not by a user's function, which may raise errors of our classes."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not frames or str(frames[-1].f_globals.get("__name__")).startswith("qtmiddleware")


class _Listening(logging.Handler):
    """Every record of ours, with the traceback it is printed with."""

    def __init__(self, emitted: Emitted) -> None:
        super().__init__(logging.NOTSET)
        self._emitted = emitted
        self._as_printed = logging.Formatter("%(name)s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        text = (
            self._as_printed.format(record) + repr(record.args) + repr(getattr(record, "meta", ""))
        )
        # What it says for programs holds no text at any level.
        self._emitted.say("qtm of a record", repr(getattr(record, "qtm", "")))
        kept = self._emitted.open if record.levelno > logging.DEBUG else self._emitted.guarded
        kept.append((f"{record.levelname} of {record.name}", text))


@contextmanager
def listening() -> Iterator[Emitted]:
    """Logs of this package and of asyncio, which tells of what nobody waited for, and warnings; checked at the end."""
    emitted = Emitted()
    handler = _Listening(emitted)
    loggers = [
        logging.getLogger(name) for name in ("qtmiddleware", "asyncio", "concurrent.futures")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield emitted
        for one in warned:
            emitted.say("warning", str(one.message))
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
    emitted.check()
