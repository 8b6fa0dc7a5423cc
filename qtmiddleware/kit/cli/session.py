"""A conversation with the index: what is typed at a terminal or comes through a pipe, questions and commands alike."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.config.errors import find_nearest, fold
from qtmiddleware.config.settings import TransformationType
from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.console import format_question_heading
from qtmiddleware.kit.cli.show import explain, present, show_pieces
from qtmiddleware.kit.cli.terminal import note, say
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.files import open_itself

if TYPE_CHECKING:
    from prompt_toolkit.history import History

KINDS: Final[Mapping[TransformationType, str]] = {
    name: row.label for name, row in TRANSFORMS.items()
}
"""Every transformation type with what it does, in the order they are numbered."""
LEAVING: Final = frozenset({"exit", "quit", ":q", ":quit", ":exit"})
HELP: Final = """\
tt            choose the transformation type
:type NAME    set the transformation type
:explain      show how the passages of the last question were found
:config       show the settings that differ from the defaults; ':config all' shows all
:clear        forget the conversation
:help         this list
exit          leave, as do quit, :q and Ctrl-D
Ctrl-C stops an answer, or clears the line."""

_PROMPT: Final = "> "


class Session:
    """Takes lines, questions and commands alike, one after the other.

    *ask* asks a question (see `asking.ask`). *chat* asks each with the conversation so far.
    *choose* asks for a transformation type, given the current one, if somebody is there to be asked
    (see `choose_kind`). *fixed* says why the type cannot be changed, if so. *streams* writes
    answers while they come, *names* the question above each, and
    *as_json* writes a JSON object a question; all else goes to stderr then.
    """

    def __init__(
        self,
        ask: Callable[..., Outcome],
        config: Config,
        kind: TransformationType,
        *,
        chat: bool,
        choose: Callable[[TransformationType], tuple[TransformationType, str]] | None = None,
        fixed: str = "",
        streams: bool = False,
        names: bool = False,
        as_json: bool = False,
    ) -> None:
        self.kind = kind
        self.own_kinds = tuple(config.settings.transforms)
        self.asked = self.failed = 0
        self._ask = ask
        self._config = config
        self._choose = choose
        self._fixed = fixed
        self._streams = streams and not as_json
        self._names = names and not as_json
        self._as_json = as_json
        self._awaits_kind = False
        self._write_line = note if as_json else say
        most = config.settings.llm.history_messages if chat else 0
        self._messages: deque[dict[str, str]] = deque(maxlen=most)
        self._last: tuple[Outcome, TransformationType] | None = None

    def take(self, line: str) -> bool:
        """Ask *line*, or do what it says where it is a command. Returns whether the session goes on."""
        text = line.strip()
        if self._awaits_kind and self._take_kind(text):
            return True
        if text in LEAVING:
            return False
        if text == "tt":
            return self._choose_kind()
        if text.startswith(":"):
            self._run_command(*text[1:].split(maxsplit=1))
        elif text:
            self.ask(text)
        return True

    def ask(self, question: str) -> None:
        """Ask *question* and show what came of it."""
        self.asked += 1
        # Whatever comes of it, also where it is stopped: what follows may refer to it.
        history = list(self._messages)
        self._messages.append({"role": "user", "content": question})
        if self._names:
            say(format_question_heading(question))
        with show_pieces() as write:
            outcome = self._ask(
                question, kind=self.kind, history=history, write=write if self._streams else None
            )
        self._last = outcome, self.kind
        self.failed += outcome.error is not None
        if outcome.answer is not None:
            self._messages.append({"role": "assistant", "content": outcome.answer.text})
        if self._as_json:
            say(escape_json(json.dumps(outcome.to_dict())), wraps=False)
        else:
            present(outcome)
            say()

    def _choose_kind(self) -> bool:
        """Choose a type, and take what was typed in its place. Returns whether the session goes on."""
        if self._fixed:
            note(self._fixed)
        if self._choose is None:
            if not self._fixed:
                show_kinds(self.own_kinds)
            self.await_kind()
        elif not self._fixed:
            kind, line = self._choose(self.kind)
            self._set_kind(kind)
            return self.take(line)
        return True

    def await_kind(self) -> None:
        """Take the next line as a transformation type, where nobody is there to be asked for one."""
        self._awaits_kind = True

    def _take_kind(self, text: str) -> bool:
        """Whether *text* is a type, blank for the one there is; what is none is no answer, and a line as any other."""
        self._awaits_kind = False
        kind = find_kind(text, self.own_kinds) if text else self.kind
        if kind is None:
            note(f"The line after tt is not a type; the type stays {self.kind}.")
        elif not self._fixed:
            self._set_kind(kind)
        return kind is not None

    def _set_kind(self, kind: TransformationType) -> None:
        self.kind = kind
        note(f"Transformation type set to: {kind}")

    def _run_command(self, name: str = "", argument: str = "") -> None:
        match name:
            case "help" | "h" | "?":
                self._write_line(HELP)
            case "type":
                kind = find_kind(argument, self.own_kinds)
                if self._fixed:
                    note(self._fixed)
                elif kind is None:
                    note(
                        f"Write :type and one of: {', '.join((*KINDS, *self.own_kinds))}. The type"
                        f" is {self.kind} now."
                    )
                else:
                    self._set_kind(kind)
            case "config":
                self._show_config(everything=argument == "all")
            case "clear":
                self._messages.clear()
                note("The conversation was cleared.")
            case "explain":
                self._explain()
            case _:
                note(f"There is no command :{name}; :help lists them.")

    def _show_config(self, *, everything: bool) -> None:
        config = self._config.overridden(
            {"transformationType": self.kind}, origin="this conversation"
        )
        for key, value, origin in config.rows():
            if everything or origin != "default":
                self._write_line(f"{key}  {json.dumps(value, ensure_ascii=False)}  ({origin})")

    def _explain(self) -> None:
        if self._last is None:
            note("No question has been asked yet.")
            return
        outcome, kind = self._last
        for row in explain(outcome, self._config.overridden({"transformationType": kind}).settings):
            self._write_line(row)


def find_kind(text: str, own: Sequence[str] = ()) -> TransformationType | None:
    """The transformation type meant by a number or a name, ``None`` where there is none such.

    Those of the user's *own* follow the built-in ones.
    """
    wanted = fold(text.strip())
    for number, kind in enumerate((*KINDS, *own), start=1):
        if wanted in (str(number), fold(kind)):
            return kind
    return None


def choose_kind(
    keyboard: Keyboard, default: TransformationType, own: Sequence[str] = ()
) -> tuple[TransformationType, str]:
    """Return the transformation type that is typed, and an empty line.

    A question or command comes back as the line it is, with the *default*. A number or word that is
    no type, but may have been meant for one, asks again.
    """
    show_kinds(own)
    note("\nPress Enter to keep the type in brackets, or type your question.")
    while True:
        text = keyboard.read_choice(f"Select transformation type [{default}]: ")
        line = text.strip()
        kind = find_kind(line, own) if line else default
        if kind is not None:
            return kind, ""
        if line == "tt":
            show_kinds(own)
        elif line.isdecimal():
            note(f"This is not a type: enter a number from 1 to {len(KINDS) + len(own)} or a name.")
        elif (
            line.isidentifier()
            and line not in LEAVING
            and (near := find_nearest(line, [*KINDS, *own]))
        ):
            note(f"There is no type {line}: did you mean {near}?")
        else:
            keyboard.keep(text)
            return default, text


def show_kinds(own: Sequence[str] = ()) -> None:
    """List the transformation types with their numbers, those of the user's *own* last, on stderr."""
    note("\nAvailable transformation types:")
    labels = {**KINDS, **dict.fromkeys(own, "your own (transforms)")}
    for number, (kind, label) in enumerate(labels.items(), start=1):
        note(f"  {number}. {kind} - {label}")


class Keyboard:
    """Reads lines with the terminal's own editing.

    Raises `EOFError` at the end of the input and `KeyboardInterrupt` for Ctrl-C.
    """

    def read_question(self) -> str:
        """Returns a question or command."""
        return self.read_choice(_PROMPT)

    def read_choice(self, prompt: str) -> str:
        """Returns an answer to *prompt*, which is no question and is not kept."""
        # Not with `input`, which writes its prompt among the results where those go to a file.
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    def keep(self, question: str) -> None:
        """Keep a *question* that was typed elsewhere, if questions are kept."""


class EditingKeyboard(Keyboard):
    """Line editing and the up arrow; questions are kept in the file *history*, or only until the end."""

    def __init__(self, history: Path | None) -> None:
        # Where the cursor stands need not be asked for: there are no menus to place.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.history import InMemoryHistory
            from prompt_toolkit.output import create_output
        except ImportError as error:
            raise MissingExtra("prompt_toolkit", "cli") from error
        # Results may go to a file while questions are typed.
        output = create_output(always_prefer_tty=True)
        kept = InMemoryHistory() if history is None else _open_history(history)
        self._questions: PromptSession[str] = PromptSession(history=kept, output=output)
        self._choices: PromptSession[str] = PromptSession(output=output)

    def read_question(self) -> str:
        """Returns a question or command."""
        return _replace_undecodable(self._questions.prompt(_PROMPT))

    def read_choice(self, prompt: str) -> str:
        """Returns an answer to *prompt*."""
        return _replace_undecodable(self._choices.prompt(prompt))

    def keep(self, question: str) -> None:
        """Keep a *question* for the up arrow."""
        self._questions.history.append_string(question)


def open_keyboard(*, keep: bool) -> Keyboard:
    """Returns what reads this terminal; with *keep* questions are kept for the next time."""
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return Keyboard()
    return EditingKeyboard(make_history_file() if keep else None)


def make_history_file() -> Path | None:
    """The file that keeps the questions, ``qtmiddleware/history`` in the user's state folder (XDG).

    It is made for its owner alone where there is none. Returns ``None``, with a note, where that
    cannot be.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        # The specification has relative paths ignored.
        path = (
            (state if state.is_absolute() else Path("~/.local/state").expanduser())
            / "qtmiddleware"
            / "history"
        )
        is_new = not path.exists()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_itself(path, os.O_RDWR | os.O_CREAT))
    except (OSError, RuntimeError) as error:
        note(f"Questions are not saved: {getattr(error, 'strerror', None) or error}.")
        return None
    if is_new:
        note(f"Questions are saved in {path} for the up arrow; --no-history turns this off.")
    return path


def _open_history(path: Path) -> History:
    from prompt_toolkit.history import FileHistory

    class DecodableHistory(FileHistory):
        def store_string(self, string: str) -> None:
            super().store_string(_replace_undecodable(string))

    return DecodableHistory(str(path))


def _replace_undecodable(text: str) -> str:
    """*text* with what was typed and is no UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
