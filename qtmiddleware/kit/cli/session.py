"""Run an interactive session: read questions and commands, and answer them from the index."""

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
from qtmiddleware.config.errors import find_nearest_name, fold_name
from qtmiddleware.config.settings import TransformationType
from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.console import format_question_heading
from qtmiddleware.kit.cli.show import explain_outcome, open_piece_writer, show_outcome
from qtmiddleware.kit.cli.terminal import write_note, write_output
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
    """An interactive session, in which each input line is a question or a command.

    Args:
        ask_index: Sends a question to the index, as `asking.ask_index` does.
        config: The settings. The transforms in *config* follow the built-in transformation types.
        transformation_type: The transformation type at the start.
        is_chat: Whether to send each question together with the conversation so far.
        choose_transformation_type: Asks the user for another transformation type, as
            `choose_transformation_type_or_line` does. ``None`` without a terminal.
        lock_reason: Why the transformation type is locked; empty if the user can change the type.
        should_stream_answers: Whether to write each answer while the model generates the answer.
        should_show_questions: Whether to write each question above its answer.
        should_write_json: Whether to write one JSON object per question. If true, all other output
            goes to stderr.
    """

    def __init__(
        self,
        ask_index: Callable[..., Outcome],
        config: Config,
        transformation_type: TransformationType,
        *,
        is_chat: bool,
        choose_transformation_type: Callable[[TransformationType], tuple[TransformationType, str]]
        | None = None,
        lock_reason: str = "",
        should_stream_answers: bool = False,
        should_show_questions: bool = False,
        should_write_json: bool = False,
    ) -> None:
        self.transformation_type = transformation_type
        self.own_types = tuple(config.settings.transforms)
        self.question_count = self.failure_count = 0
        self._ask_index = ask_index
        self._config = config
        self._choose_transformation_type_or_line = choose_transformation_type
        self._lock_reason = lock_reason
        self._streams_answers = should_stream_answers and not should_write_json
        self._shows_questions = should_show_questions and not should_write_json
        self._writes_json = should_write_json
        self._expects_transformation_type = False
        self._write_line = write_note if should_write_json else write_output
        message_count = config.settings.llm.history_messages if is_chat else 0
        # The deque drops the oldest messages; without a chat it holds none.
        self._messages: deque[dict[str, str]] = deque(maxlen=message_count)
        self._last: tuple[Outcome, TransformationType] | None = None

    def process_line(self, line: str) -> bool:
        """Process a question, a command or the name of a transformation type.

        Returns whether the session continues; ``False`` after a command such as ``exit``.
        """
        text = line.strip()
        # A line that names no type falls through: it is a question or a command.
        if self._expects_transformation_type and self._change_transformation_type(text):
            return True
        if text in LEAVING:
            return False
        if text == "tt":
            return self._choose_transformation_type()
        if text.startswith(":"):
            self._run_command(*text[1:].split(maxsplit=1))
        elif text:
            self.ask_question(text)
        return True

    def ask_question(self, question: str) -> None:
        """Send *question* to the index, and show the answer or the passages."""
        self.question_count += 1
        # The question is kept even if Ctrl-C stops its answer, because the next question may refer
        # to it.
        history = list(self._messages)
        self._messages.append({"role": "user", "content": question})
        if self._shows_questions:
            write_output(format_question_heading(question))
        with open_piece_writer() as write_piece:
            outcome = self._ask_index(
                question,
                transformation_type=self.transformation_type,
                history=history,
                write_piece=write_piece if self._streams_answers else None,
            )
        self._last = outcome, self.transformation_type
        self.failure_count += outcome.error is not None
        if outcome.answer is not None:
            self._messages.append({"role": "assistant", "content": outcome.answer.text})
        if self._writes_json:
            write_output(escape_json(json.dumps(outcome.to_dict())), should_wrap=False)
        else:
            show_outcome(outcome)
            write_output()

    def _choose_transformation_type(self) -> bool:
        """Let the user choose a transformation type, and return whether the session continues.

        If the user types a question or a command instead, processes it. Returns ``False`` if the
        command ends the session.
        """
        if self._lock_reason:
            write_note(self._lock_reason)
        if self._choose_transformation_type_or_line is None:
            if not self._lock_reason:
                show_transformation_types(self.own_types)
            self.expect_transformation_type_next()
        elif not self._lock_reason:
            kind, line = self._choose_transformation_type_or_line(self.transformation_type)
            self._set_transformation_type(kind)
            return self.process_line(line)
        return True

    def expect_transformation_type_next(self) -> None:
        """Make `process_line` read the next line as the number or name of a transformation type.

        A session without a terminal has no other way to choose a type.
        """
        self._expects_transformation_type = True

    def _change_transformation_type(self, number_or_name: str) -> bool:
        """Change the transformation type, and return whether *number_or_name* is valid.

        An empty *number_or_name* is valid and keeps the current type.
        """
        self._expects_transformation_type = False
        kind = (
            find_transformation_type(number_or_name, self.own_types)
            if number_or_name
            else self.transformation_type
        )
        if kind is None:
            write_note(
                f"The line after tt is not a type; the type stays {self.transformation_type}."
            )
        elif not self._lock_reason:
            self._set_transformation_type(kind)
        return kind is not None

    def _set_transformation_type(self, transformation_type: TransformationType) -> None:
        self.transformation_type = transformation_type
        write_note(f"Transformation type set to: {transformation_type}")

    def _run_command(self, command_name: str = "", argument: str = "") -> None:
        """Run the command that the user typed, such as ``:type hyde``.

        Writes a note if there is no such command.
        """
        match command_name:
            case "help" | "h" | "?":
                self._write_line(HELP)
            case "type":
                kind = find_transformation_type(argument, self.own_types)
                if self._lock_reason:
                    write_note(self._lock_reason)
                elif kind is None:
                    write_note(
                        f"Write :type and one of: {', '.join((*KINDS, *self.own_types))}. The type"
                        f" is {self.transformation_type} now."
                    )
                else:
                    self._set_transformation_type(kind)
            case "config":
                self._show_config(should_include_defaults=argument == "all")
            case "clear":
                self._messages.clear()
                write_note("The conversation was cleared.")
            case "explain":
                self._show_explanation()
            case _:
                write_note(f"There is no command :{command_name}; :help lists them.")

    def _show_config(self, *, should_include_defaults: bool) -> None:
        """Show the settings that differ from the defaults, or all settings."""
        config = self._config.overridden(
            {"transformationType": self.transformation_type}, origin="this conversation"
        )
        for key, value, origin in config.rows():
            if should_include_defaults or origin != "default":
                self._write_line(f"{key}  {json.dumps(value, ensure_ascii=False)}  ({origin})")

    def _show_explanation(self) -> None:
        """Explain how the search for the last question found the passages."""
        if self._last is None:
            write_note("No question has been asked yet.")
            return
        outcome, kind = self._last
        for row in explain_outcome(
            outcome, self._config.overridden({"transformationType": kind}).settings
        ):
            self._write_line(row)


def find_transformation_type(
    number_or_name: str, own_types: Sequence[str] = ()
) -> TransformationType | None:
    """Return the transformation type with *number_or_name*, or ``None`` if there is no such type.

    Numbers count the built-in types first, and then the user's *own_types*.
    """
    folded = fold_name(number_or_name.strip())
    for number, kind in enumerate((*KINDS, *own_types), start=1):
        if folded in (str(number), fold_name(kind)):
            return kind
    return None


def choose_transformation_type_or_line(
    keyboard: Keyboard, default_type: TransformationType, own_types: Sequence[str] = ()
) -> tuple[TransformationType, str]:
    """Ask the user for a transformation type, and return the type and an empty string.

    If the user types a question or a command instead, returns *default_type* and the typed line.
    Asks again if the line looks like a mistyped type.
    """
    show_transformation_types(own_types)
    write_note("\nPress Enter to keep the type in brackets, or type your question.")
    while True:
        text = keyboard.read_choice(f"Select transformation type [{default_type}]: ")
        line = text.strip()
        kind = find_transformation_type(line, own_types) if line else default_type
        if kind is not None:
            return kind, ""
        if line == "tt":
            show_transformation_types(own_types)
        elif line.isdecimal():
            write_note(
                f"This is not a type: enter a number from 1 to {len(KINDS) + len(own_types)}"
                " or a name."
            )
        elif (
            line.isidentifier()
            and line not in LEAVING
            and (nearest_type := find_nearest_name(line, [*KINDS, *own_types]))
        ):
            write_note(f"There is no type {line}: did you mean {nearest_type}?")
        else:
            # `read_choice` saves nothing, but this line is a question.
            keyboard.save_question(text)
            return default_type, text


def show_transformation_types(own_types: Sequence[str] = ()) -> None:
    """Write a numbered list of transformation types to stderr. The user's *own_types* come last."""
    write_note("\nAvailable transformation types:")
    labels = {**KINDS, **dict.fromkeys(own_types, "your own (transforms)")}
    for number, (kind, label) in enumerate(labels.items(), start=1):
        write_note(f"  {number}. {kind} - {label}")


class Keyboard:
    """Reads the lines that the user types, with the terminal's basic line editing.

    The reading methods raise `EOFError` at the end of the input, and `KeyboardInterrupt` on Ctrl-C.
    """

    def read_question(self) -> str:
        """Show the prompt, and return the question or command that the user types."""
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
        """Do nothing. A subclass saves *question*, so that the up arrow shows it later."""


class EditingKeyboard(Keyboard):
    """Reads lines with full line editing. The up arrow shows earlier questions.

    Args:
        history_file: The file for the questions; ``None`` to keep the questions in memory only.
    """

    def __init__(self, history_file: Path | None) -> None:
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
        storage = InMemoryHistory() if history_file is None else _make_prompt_history(history_file)
        # Two sessions, so that the up arrow shows questions only, and not choices of a type.
        self._questions: PromptSession[str] = PromptSession(history=storage, output=output)
        self._choices: PromptSession[str] = PromptSession(output=output)

    def read_question(self) -> str:
        """Show the prompt, and return the question or command that the user types."""
        return _replace_undecodable_bytes(self._questions.prompt(_PROMPT))

    def read_choice(self, prompt: str) -> str:
        """Show *prompt*, and return the line that the user types. The line is not saved."""
        return _replace_undecodable_bytes(self._choices.prompt(prompt))

    def save_question(self, question: str) -> None:
        """Save *question*, so that the up arrow shows it later."""
        self._questions.history.append_string(question)


def open_keyboard(*, should_save_questions: bool) -> Keyboard:
    """Return a reader for the lines that the user types at this terminal.

    If *should_save_questions* is true, the reader saves questions for the next session. On a
    terminal that cannot edit lines, the reader saves nothing.
    """
    if os.environ.get("TERM") in ("dumb", "unknown"):
        return Keyboard()
    return EditingKeyboard(create_history_file() if should_save_questions else None)


def create_history_file() -> Path | None:
    """Create the file for saved questions if it does not exist, and return its path.

    The path is ``qtmiddleware/history`` in the user's state folder (XDG). Only the owner can read
    the file. If the file cannot be created, writes a note to stderr and returns ``None``.
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
        write_note(f"Questions are not saved: {getattr(error, 'strerror', None) or error}.")
        return None
    if is_new:
        write_note(f"Questions are saved in {path} for the up arrow; --no-history turns this off.")
    return path


def _make_prompt_history(path: Path) -> History:
    """Return a prompt_toolkit history that saves the user's lines to *path*, as valid UTF-8."""
    from prompt_toolkit.history import FileHistory

    class DecodableHistory(FileHistory):
        def store_string(self, string: str) -> None:
            # prompt_toolkit fails to encode a typed byte that is not UTF-8.
            super().store_string(_replace_undecodable_bytes(string))

    return DecodableHistory(str(path))


def _replace_undecodable_bytes(text: str) -> str:
    """Return *text* with a replacement character for each byte that is not valid UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
