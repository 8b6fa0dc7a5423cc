"""Interactive sessions: questions and commands from a terminal or a pipe, answered by the index."""

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
from qtmiddleware.kit.cli.show import explain_outcome, show_outcome, show_pieces
from qtmiddleware.kit.cli.terminal import note, say
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.files import open_for_writing

if TYPE_CHECKING:
    from prompt_toolkit.history import History

KINDS: Final[Mapping[TransformationType, str]] = {
    name: row.label for name, row in TRANSFORMS.items()
}
"""The label of each built-in transformation type, in the order of the types' numbers."""
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
    """Answers questions and runs commands, one per line of input.

    Args:
        ask: Asks a question; see `asking.ask`.
        config: The config. Its own transforms are listed after the built-in types.
        kind: The first transformation type.
        chat: Whether a question is asked together with the conversation so far.
        choose: Asks the user for a transformation type, given the current type; see `choose_kind`.
            ``None`` without a terminal.
        fixed: The reason why the type cannot be changed; empty if the type can be changed.
        streams: Whether an answer is written while the model generates it.
        names: Whether the question is written above its answer.
        as_json: Whether one JSON object is written per question, with everything else on stderr.
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
        message_count = config.settings.llm.history_messages if chat else 0
        self._messages: deque[dict[str, str]] = deque(maxlen=message_count)
        self._last: tuple[Outcome, TransformationType] | None = None

    def process_line(self, line: str) -> bool:
        """Process one line: a question, a command or the name of a transformation type.

        Returns ``False`` if the line ends the session.
        """
        text = line.strip()
        if self._awaits_kind and self._read_kind(text):
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
        """Ask *question* and show the outcome."""
        self.asked += 1
        # The question is kept even if Ctrl-C stops its answer, because the next question may refer
        # to it.
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
            show_outcome(outcome)
            say()

    def _choose_kind(self) -> bool:
        """Let the user choose a transformation type.

        If the user types another line instead, that line is processed. Returns ``False`` if it ends
        the session.
        """
        if self._fixed:
            note(self._fixed)
        if self._choose is None:
            if not self._fixed:
                show_kinds(self.own_kinds)
            self.await_kind()
        elif not self._fixed:
            kind, line = self._choose(self.kind)
            self._set_kind(kind)
            return self.process_line(line)
        return True

    def await_kind(self) -> None:
        """Treat the next line as a transformation type. Used in sessions without a terminal."""
        self._awaits_kind = True

    def _read_kind(self, text: str) -> bool:
        """Change the transformation type to the one that *text* names.

        Returns whether *text* is valid. A blank *text* is valid and keeps the current type.
        """
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
        """Run the command *name* with *argument*; the user typed ``:name argument``."""
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
                self._show_explanation()
            case _:
                note(f"There is no command :{name}; :help lists them.")

    def _show_config(self, *, everything: bool) -> None:
        """Show the settings that differ from the defaults. With *everything*, show all settings."""
        config = self._config.overridden(
            {"transformationType": self.kind}, origin="this conversation"
        )
        for key, value, origin in config.rows():
            if everything or origin != "default":
                self._write_line(f"{key}  {json.dumps(value, ensure_ascii=False)}  ({origin})")

    def _show_explanation(self) -> None:
        """Show how the last question's passages were found."""
        if self._last is None:
            note("No question has been asked yet.")
            return
        outcome, kind = self._last
        for row in explain_outcome(
            outcome, self._config.overridden({"transformationType": kind}).settings
        ):
            self._write_line(row)


def find_kind(text: str, own_kinds: Sequence[str] = ()) -> TransformationType | None:
    """Return the transformation type whose number or name is *text*, or ``None``.

    The user's *own_kinds* are numbered after the built-in types.
    """
    folded = fold(text.strip())
    for number, kind in enumerate((*KINDS, *own_kinds), start=1):
        if folded in (str(number), fold(kind)):
            return kind
    return None


def choose_kind(
    keyboard: Keyboard, default: TransformationType, own_kinds: Sequence[str] = ()
) -> tuple[TransformationType, str]:
    """Ask the user for a transformation type, and return the type and an empty string.

    If the user types a question or a command instead, *default* and the typed line are returned. If
    the line looks like a mistyped type, the user is asked again.
    """
    show_kinds(own_kinds)
    note("\nPress Enter to keep the type in brackets, or type your question.")
    while True:
        text = keyboard.read_choice(f"Select transformation type [{default}]: ")
        line = text.strip()
        kind = find_kind(line, own_kinds) if line else default
        if kind is not None:
            return kind, ""
        if line == "tt":
            show_kinds(own_kinds)
        elif line.isdecimal():
            note(
                f"This is not a type: enter a number from 1 to {len(KINDS) + len(own_kinds)}"
                " or a name."
            )
        elif (
            line.isidentifier()
            and line not in LEAVING
            and (near := find_nearest(line, [*KINDS, *own_kinds]))
        ):
            note(f"There is no type {line}: did you mean {near}?")
        else:
            keyboard.save_question(text)
            return default, text


def show_kinds(own_kinds: Sequence[str] = ()) -> None:
    """Write a numbered list of transformation types to stderr; the user's *own_kinds* come last."""
    note("\nAvailable transformation types:")
    labels = {**KINDS, **dict.fromkeys(own_kinds, "your own (transforms)")}
    for number, (kind, label) in enumerate(labels.items(), start=1):
        note(f"  {number}. {kind} - {label}")


class Keyboard:
    """Reads lines from the user, with the terminal's basic line editing.

    The ``read_*`` methods raise `EOFError` at the end of the input and `KeyboardInterrupt` on
    Ctrl-C.
    """

    def read_question(self) -> str:
        """Show the prompt, and return the line that the user types: a question or a command."""
        return self.read_choice(_PROMPT)

    def read_choice(self, prompt: str) -> str:
        """Show *prompt*, and return the line that the user types. The line is not saved."""
        # `input` would write its prompt to stdout, among the results if stdout is a file.
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line

    def save_question(self, question: str) -> None:
        """Do nothing. Subclasses save *question* for the up arrow."""


class EditingKeyboard(Keyboard):
    """Reads lines from the user, with full line editing. The up arrow shows earlier questions.

    Questions are saved in the file *history*. Without a file, they are kept until the process ends.
    """

    def __init__(self, history: Path | None) -> None:
        # prompt_toolkit asks the terminal for the cursor's position to place menus. There are no
        # menus here, and some terminals do not answer.
        os.environ.setdefault("PROMPT_TOOLKIT_NO_CPR", "1")
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.history import InMemoryHistory
            from prompt_toolkit.output import create_output
        except ImportError as error:
            raise MissingExtra("prompt_toolkit", "cli") from error
        # Prompts go to the terminal even if results go to a file.
        output = create_output(always_prefer_tty=True)
        storage = InMemoryHistory() if history is None else _make_history(history)
        self._questions: PromptSession[str] = PromptSession(history=storage, output=output)
        self._choices: PromptSession[str] = PromptSession(output=output)

    def read_question(self) -> str:
        """Show the prompt, and return the line that the user types: a question or a command."""
        return _replace_undecodable(self._questions.prompt(_PROMPT))

    def read_choice(self, prompt: str) -> str:
        """Show *prompt*, and return the line that the user types. The line is not saved."""
        return _replace_undecodable(self._choices.prompt(prompt))

    def save_question(self, question: str) -> None:
        """Save *question*, so that the up arrow shows it later."""
        self._questions.history.append_string(question)


def open_keyboard(*, saves_questions: bool) -> Keyboard:
    """Return a `Keyboard` for reading lines from this terminal.

    If *saves_questions* is true, questions are saved for the next session. A terminal without line
    editing saves no questions.
    """
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return Keyboard()
    return EditingKeyboard(make_history_file() if saves_questions else None)


def make_history_file() -> Path | None:
    """Create the file for saved questions if it does not exist, and return its path.

    The path is ``qtmiddleware/history`` in the user's state folder (XDG). Only the owner can read
    the file. If the file cannot be created, a note says so and ``None`` is returned.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        # The XDG specification says to ignore relative paths.
        path = (
            (state if state.is_absolute() else Path("~/.local/state").expanduser())
            / "qtmiddleware"
            / "history"
        )
        is_new = not path.exists()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_for_writing(path, os.O_RDWR | os.O_CREAT))
    except (OSError, RuntimeError) as error:
        note(f"Questions are not saved: {getattr(error, 'strerror', None) or error}.")
        return None
    if is_new:
        note(f"Questions are saved in {path} for the up arrow; --no-history turns this off.")
    return path


def _make_history(path: Path) -> History:
    """Return a prompt_toolkit history that saves lines to the file at *path*.

    The file is always valid UTF-8.
    """
    from prompt_toolkit.history import FileHistory

    class DecodableHistory(FileHistory):
        def store_string(self, string: str) -> None:
            super().store_string(_replace_undecodable(string))

    return DecodableHistory(str(path))


def _replace_undecodable(text: str) -> str:
    """Return *text* with a replacement character for each byte that is not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
