"""A conversation with the own store: questions with what was said before, and commands between them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from qtmiddleware.cli.asked import Asked, Asker
from qtmiddleware.cli.explain import explained
from qtmiddleware.cli.harmless import harmless_json
from qtmiddleware.cli.kinds import NAMES, kind_named
from qtmiddleware.cli.records import record
from qtmiddleware.cli.show import Pieces, note, present, say
from qtmiddleware.config import Config
from qtmiddleware.config.settings import TransformationType

LEAVING: Final = frozenset({"exit", "quit", ":q", ":quit", ":exit"})

HELP: Final = """\
tt            choose the transformation type
:type NAME    set the transformation type
:explain      how the passages of the last question were found
:config       the settings that differ from the defaults; ':config all' shows every one
:clear        forget the conversation
:help         this list
exit          leave, as do quit, :q and Ctrl-D
Ctrl-C stops an answer, or clears the line."""


class Session:
    """Takes lines, questions and commands alike, one after the other.

    *chat* asks each question with the conversation so far. *choose* asks for a transformation type, given the current
    one, where somebody is there to be asked. *fixed* says why the type cannot be changed, if so. *streams* writes
    answers while they come and *as_json* writes a JSON object a question; all else goes to stderr then.
    """

    def __init__(
        self,
        asker: Asker,
        config: Config,
        kind: TransformationType,
        *,
        chat: bool,
        choose: Callable[[TransformationType], TransformationType] | None = None,
        fixed: str = "",
        streams: bool = False,
        as_json: bool = False,
    ) -> None:
        self.kind = kind
        self.asked = self.failed = 0
        self._asker = asker
        self._config = config
        self._choose = choose
        self._fixed = fixed
        self._streams = streams and not as_json
        self._as_json = as_json
        self._tell = note if as_json else say
        kept = config.settings.llm.history_messages if chat else 0
        self._turns: deque[dict[str, str]] = deque(maxlen=kept)
        self._last: tuple[Asked, TransformationType] | None = None

    def take(self, line: str) -> bool:
        """Ask *line*, or do what it says where it is a command; whether the session goes on."""
        text = line.strip()
        if text in LEAVING:
            return False
        if text == "tt":
            self._change()
        elif text.startswith(":"):
            self._command(*text[1:].split(maxsplit=1))
        elif text:
            self.ask(text)
        return True

    def ask(self, question: str) -> None:
        """Ask *question* and show what came of it."""
        self.asked += 1
        # Whatever comes of it, also where it is stopped: what follows may refer to it.
        history = list(self._turns)
        self._turns.append({"role": "user", "content": question})
        with Pieces() as pieces:
            asked = self._asker.ask(
                question, kind=self.kind, history=history, write=pieces.write if self._streams else None
            )
        self._last = asked, self.kind
        self.failed += asked.error is not None
        if asked.answer is not None:
            self._turns.append({"role": "assistant", "content": asked.answer.text})
        if self._as_json:
            say(harmless_json(json.dumps(record(asked))))
        else:
            present(asked)
            say()

    def _change(self) -> None:
        if self._fixed:
            note(self._fixed)
        elif self._choose is None:
            note("tt asks at a terminal; here write: :type NAME")
        else:
            self._set(self._choose(self.kind))

    def _set(self, kind: TransformationType) -> None:
        self.kind = kind
        note(f"Transformation type set to: {kind}")

    def _command(self, name: str = "", argument: str = "") -> None:
        match name:
            case "help" | "h" | "?":
                self._tell(HELP)
            case "type":
                self._type(argument)
            case "config":
                self._show_config(everything=argument == "all")
            case "clear":
                self._turns.clear()
                note("The conversation is forgotten.")
            case "explain":
                self._explain()
            case _:
                note(f"There is no command :{name}; :help lists them.")

    def _type(self, argument: str) -> None:
        kind = kind_named(argument)
        if self._fixed:
            note(self._fixed)
        elif kind is None:
            note(f"Write :type and one of: {NAMES}. It is {self.kind} now.")
        else:
            self._set(kind)

    def _show_config(self, *, everything: bool) -> None:
        config = self._config.overridden({"transformationType": self.kind}, origin="this conversation")
        rows: list[tuple[str, Any, str]] = [row for row in config.rows() if everything or row[2] != "default"]
        for key, value, origin in rows:
            self._tell(f"{key}  {json.dumps(value, ensure_ascii=False)}  ({origin})")

    def _explain(self) -> None:
        if self._last is None:
            note("Nothing was asked yet.")
            return
        asked, kind = self._last
        for row in explained(asked, self._config.overridden({"transformationType": kind}).settings):
            self._tell(row)
