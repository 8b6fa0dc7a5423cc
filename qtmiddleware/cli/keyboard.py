"""Lines that are typed at a terminal, with editing and with the earlier ones at hand where it can do that."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from qtmiddleware.cli.show import note
from qtmiddleware.errors import MissingExtra
from qtmiddleware.runtime.files import open_itself

if TYPE_CHECKING:
    from prompt_toolkit.history import History

PROMPT: Final = "> "

# Terminals that obey no escape sequences.
_PLAIN: Final = frozenset({"", "dumb", "unknown"})


class Keyboard(Protocol):
    """Reads lines. Raises `EOFError` at the end of the input and `KeyboardInterrupt` for Ctrl-C."""

    def question(self) -> str:
        """A question or command."""

    def choice(self, prompt: str) -> str:
        """An answer to *prompt*, which is no question and is not kept."""


class PlainKeyboard:
    """The terminal's own line editing."""

    def question(self) -> str:
        """A question or command."""
        return self.choice(PROMPT)

    def choice(self, prompt: str) -> str:
        """An answer to *prompt*."""
        # Not with `input`, which writes its prompt among the results where those go to a file.
        print(prompt, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            note()
            raise
        if not line:
            # The cursor still stands behind the prompt.
            note()
            raise EOFError
        return line


class EditingKeyboard:
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
        kept = InMemoryHistory() if history is None else _kept_in(history)
        self._questions: PromptSession[str] = PromptSession(history=kept, output=output)
        self._choices: PromptSession[str] = PromptSession(output=output)

    def question(self) -> str:
        """A question or command."""
        return _readable(self._questions.prompt(PROMPT))

    def choice(self, prompt: str) -> str:
        """An answer to *prompt*."""
        return _readable(self._choices.prompt(prompt))


def _readable(text: str) -> str:
    """*text* with what was typed and is no UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _kept_in(path: Path) -> History:
    from prompt_toolkit.history import FileHistory

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            # A full disk is no reason to leave a question unanswered.
            with suppress(OSError):
                super().store_string(_readable(string))

    return Kept(str(path))


def keyboard(*, keep: bool) -> Keyboard:
    """What reads this terminal; with *keep* questions are kept for the next time."""
    if os.name != "nt" and os.environ.get("TERM", "") in _PLAIN:
        return PlainKeyboard()
    return EditingKeyboard(_history_file() if keep else None)


def history_path() -> Path:
    """The file that keeps the questions: ``qtmiddleware/history`` in the user's state folder (XDG)."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()
    return base / "qtmiddleware" / "history"


def _history_file() -> Path | None:
    """The file, made for its owner alone where there is none; ``None``, with a note, where that cannot be."""
    try:
        path = history_path()
        is_new = not path.exists()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_itself(path, os.O_RDWR | os.O_CREAT))
    except (OSError, RuntimeError) as error:
        note(f"Questions are not kept: {getattr(error, 'strerror', None) or error}.")
        return None
    if is_new:
        note(f"Questions are kept in {path} for the up arrow; --no-history keeps none.")
    return path
