"""Answer the questions of a command line, a pipe or an interactive session from the index."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.config.errors import fold_name
from qtmiddleware.config.settings import TransformationType
from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.cli.output import notes, out, write_json
from qtmiddleware.kit.cli.show import Outcome, open_piece_writer, show_outcome
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.types import Answer, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_LEAVING: Final = ("exit", "quit")


class Session:
    """Answers questions, and obeys the commands that a user may type between them.

    Args:
        middleware: Searches the index.
        config: The settings.
        kind: The transformation type at the start.
        lock_reason: Why there is no model to ask; empty if there is one.
        generates: Whether the model answers the questions.
        is_typed: Whether a person types at a terminal. Then a question may refer to earlier ones.
        names_questions: Whether to write each question above its answer.
        as_json: Whether to write one JSON object per question, and all else to stderr.
        options: ``top_k`` and ``filter`` of each search.
    """

    def __init__(
        self,
        middleware: QueryMiddleware,
        config: Config,
        kind: TransformationType,
        *,
        lock_reason: str,
        generates: bool,
        is_typed: bool,
        names_questions: bool,
        as_json: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.kind = kind
        self.errors: list[Exception | None] = []
        self.expects_type = False
        labels = {name: row.label for name, row in TRANSFORMS.items()}
        self._labels = labels | dict.fromkeys(config.settings.transforms, "your own (transforms)")
        self._middleware = middleware
        self._lock_reason = lock_reason
        self._generates = generates
        self._is_typed = is_typed
        self._names_questions = names_questions and not as_json
        self._as_json = as_json
        self._options = options
        self._has_greeted = False
        # The deque drops the oldest messages; without a conversation it holds none.
        count = config.settings.llm.history_messages if is_typed and not lock_reason else 0
        self._messages: deque[dict[str, str]] = deque(maxlen=count)

    @property
    def prompt(self) -> str:
        """The prompt for the next line."""
        return f"Select transformation type [{self.kind}]: " if self.expects_type else "> "

    def process_line(self, line: str) -> bool:
        """Process a question, a command or the name of a type. Returns whether to go on."""
        text = line.strip()
        # A line that names no type falls through: it is a question or a command.
        if self.expects_type and self._choose_type(text):
            return True
        if text in _LEAVING:
            return False
        if text == "tt":
            self.ask_for_type()
        elif text:
            self.ask(text)
        return True

    def ask(self, question: str) -> None:
        """Send *question* to the index, and show the answer or the passages."""
        # The question is kept even if Ctrl-C stops its answer, because the next question may refer
        # to it.
        history = list(self._messages)
        self._messages.append({"role": "user", "content": question})
        if self._names_questions:
            out.write(f"Question: {' '.join(question.split())}")
        with open_piece_writer() as write_piece:
            outcome = self._search(question, history, write_piece)
        self.errors.append(outcome.error)
        if outcome.answer is not None:
            self._messages.append({"role": "assistant", "content": outcome.answer.text})
        if self._as_json:
            write_json(outcome.to_dict(), indent=None)
            return
        show_outcome(outcome)
        if self._is_typed or self._names_questions:
            out.write()

    def _search(
        self, question: str, history: list[dict[str, str]], write_piece: Callable[[str], None]
    ) -> Outcome:
        arguments = {
            **self._options,
            "history": history,
            "config": {"transformationType": self.kind},
        }
        retrieval: Retrieval | None = None
        answer: Answer | None = None
        error: Exception | None = None
        streamed = ""
        started = perf_counter()
        try:
            validate_query(question, "query")
            if not self._generates:
                retrieval = self._middleware.retriever.retrieve(question, **arguments)
            elif self._as_json or not out.is_terminal:
                answer = self._middleware.answer(question, **arguments)
            else:
                with self._middleware.stream_answer(question, **arguments) as stream:
                    for piece in stream:
                        streamed += piece
                        write_piece(piece)
                    answer = stream.answer
        except QtMiddlewareError as failure:
            # A failed answer carries its retrieval, so the passages can be shown all the same.
            error, retrieval = failure, getattr(failure, "retrieval", None)
        return Outcome(
            question=question,
            retrieval=answer.retrieval if answer else retrieval,
            answer=answer,
            error=error,
            seconds=perf_counter() - started,
            streamed=streamed,
        )

    def ask_for_type(self) -> None:
        """Let the next line be the number or name of a transformation type."""
        if self._lock_reason:
            notes.write(self._lock_reason)
            # Nobody at a terminal types a number after this. A recorded session has the number.
            self.expects_type = not self._is_typed
            return
        self.expects_type = True
        notes.write("\nAvailable transformation types:")
        for number, (kind, label) in enumerate(self._labels.items(), start=1):
            notes.write(f"  {number}. {kind} - {label}")
        if self._is_typed:
            notes.write("\nPress Enter to keep the type in brackets, or type your question.")

    def find_type(self, number_or_name: str) -> TransformationType | None:
        """Return the transformation type with *number_or_name*, or ``None`` if there is none."""
        folded = fold_name(number_or_name.strip())
        for number, kind in enumerate(self._labels, start=1):
            if folded in (str(number), fold_name(kind)):
                return kind
        return None

    def _choose_type(self, text: str) -> bool:
        """Change the transformation type, and return whether the line *text* is done with."""
        kind = self.find_type(text) if text else self.kind
        if kind is None and self._is_typed and text.isdecimal():
            notes.write(
                f"This is not a type: enter a number from 1 to {len(self._labels)} or a name."
            )
            return True
        self.expects_type = False
        if kind is not None and not self._lock_reason:
            self.kind = kind
            notes.write(f"Transformation type set to: {kind}")
        elif kind is None and not self._is_typed:
            notes.write(f"The line after tt is not a type; the type stays {self.kind}.")
        if text not in _LEAVING:
            self.greet()
        return kind is not None

    def greet(self) -> None:
        """Tell a person at the terminal, once, which type is used and how to change it."""
        if self._is_typed and not self._has_greeted:
            self._has_greeted = True
            notes.write(f"\nCurrent transformation type: {self.kind}")
            notes.write("Type 'tt' to change transformation type, 'exit' to quit.\n")


def run_terminal(session: Session, *, asks_type: bool) -> None:
    """Read lines from the terminal until the user leaves. If *asks_type*, ask first for a type.

    Ctrl-C clears the current line or stops the current answer.
    """
    with suppress(ImportError):
        # The import alone gives `input` line editing, and the up arrow for earlier lines.
        import readline  # noqa: F401
    if asks_type:
        session.ask_for_type()
    if not session.expects_type:
        session.greet()
    # Ctrl-D ends the input.
    with suppress(EOFError):
        while True:
            line = ""
            try:
                line = _read_line(session.prompt)
                if not session.process_line(line):
                    return
            except KeyboardInterrupt:
                notes.write("\nStopped." if line else "")


def run_pipe(session: Session, *, asks_type: bool) -> None:
    """Process the lines of stdin. If *asks_type*, the first line may be the number of a type."""
    for line in sys.stdin:
        # Some Windows programs begin their output with a byte order mark.
        text = line.removeprefix("\ufeff").strip()
        # A session at a terminal begins with the choice of a type.
        if asks_type and text.isdecimal() and session.find_type(text) is not None:
            session.expects_type = True
        asks_type = asks_type and not text
        if not session.process_line(text):
            break


def _read_line(prompt: str) -> str:
    """Return the line that the user types. Raises `EOFError` at the end of the input."""
    if sys.stdout.isatty():
        return input(prompt)
    # `input` would write its prompt to stdout, among the results.
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
