"""Answer the questions of a command line, a pipe or an interactive session from the index."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.errors import fold_name
from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.cli.output import notes, out, write_json
from qtmiddleware.kit.cli.show import Outcome, show_outcome
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.transforms.prompt import MAX_MESSAGES
from qtmiddleware.types import Answer, Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware


class Session:
    """Answers questions, and obeys the commands that a user may type between them.

    Args:
        middleware: Searches the index.
        generates: Whether the model answers the questions.
        is_typed: Whether a person types at a terminal. Then a question may refer to earlier ones.
        names_questions: Whether to write each question above its answer.
        as_json: Whether to write one JSON object per question, and all else to stderr.
        options: ``top_k`` and ``filter`` of each search.
    """

    def __init__(
        self,
        middleware: QueryMiddleware,
        *,
        generates: bool,
        is_typed: bool,
        names_questions: bool,
        as_json: bool,
        options: Mapping[str, Any],
    ) -> None:
        settings = middleware.settings
        self.kind = settings.transformation_type
        self.asked = 0
        self.errors: list[Exception] = []
        self.expects_type = False
        labels = {name: row.label for name, row in TRANSFORMS.items()}
        self._labels = labels | dict.fromkeys(settings.transforms, "your own (transforms)")
        self._middleware = middleware
        self._generates = generates
        self._is_typed = is_typed
        self._names_questions = names_questions and not as_json
        self._as_json = as_json
        self._options = options
        # The deque drops the oldest messages; without a conversation it holds none.
        count = MAX_MESSAGES if is_typed else 0
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
        if text in ("exit", "quit"):
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
        self.asked += 1
        # A spinner in ASCII, because some terminals have no other characters.
        with notes.status("working", spinner="line"):
            outcome = self._search(question, history)
        if outcome.error is not None:
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
        self,
        question: str,
        history: list[dict[str, str]],
    ) -> Outcome:
        # Without a model, every result would report the missing model as a degradation.
        kind = self.kind if self._middleware.engine.has_model else "none"
        arguments = {
            **self._options,
            "history": history,
            "config": {"transformationType": kind},
        }
        retrieval: Retrieval | None = None
        answer: Answer | None = None
        error: Exception | None = None
        started = perf_counter()
        try:
            validate_query(question, "query")
            if self._generates:
                answer = self._middleware.retriever.answer(question, **arguments)
                retrieval = answer.retrieval
            else:
                retrieval = self._middleware.retriever.retrieve(question, **arguments)
        except QtMiddlewareError as failure:
            # A failed answer carries its retrieval, so the passages can be shown all the same.
            error, retrieval = failure, getattr(failure, "retrieval", None)
        return Outcome(
            question=question,
            retrieval=retrieval,
            answer=answer,
            error=error,
            seconds=perf_counter() - started,
        )

    def ask_for_type(self) -> None:
        """Let the next line be the number or name of a transformation type."""
        self.expects_type = True
        notes.write("\nAvailable transformation types:")
        for number, (kind, label) in enumerate(self._labels.items(), start=1):
            notes.write(f"  {number}. {kind} - {label}")
        notes.write("\nPress Enter to keep the type in brackets, or type your question.")

    def _choose_type(self, text: str) -> bool:
        """Change the type if *text* names one. Return whether the line is done with."""
        kind = None if text else self.kind
        for number, name in enumerate(self._labels, start=1):
            if fold_name(text) in (str(number), fold_name(name)):
                kind = name
        self.expects_type = kind is None and text.isdecimal()
        if kind is not None:
            self.kind = kind
            notes.write(f"Transformation type set to: {kind}")
        elif self.expects_type:
            notes.write(
                f"This is not a type: enter a number from 1 to {len(self._labels)} or a name."
            )
        return kind is not None or self.expects_type


def run_terminal(session: Session, *, asks_type: bool) -> None:
    """Read lines from the terminal until the user leaves. If *asks_type*, ask first for a type.

    Ctrl-C clears the current line or stops the current answer.
    """
    with suppress(ImportError):
        # The import alone gives `input` line editing, and the up arrow for earlier lines.
        import readline  # noqa: F401
    if asks_type:
        session.ask_for_type()
    has_greeted = False
    # Ctrl-D ends the input.
    with suppress(EOFError):
        while True:
            line = ""
            if not (has_greeted or session.expects_type):
                has_greeted = True
                notes.write(f"\nCurrent transformation type: {session.kind}")
                notes.write("Type 'tt' to change transformation type, 'exit' to quit.\n")
            try:
                line = input(session.prompt)
                if not session.process_line(line):
                    return
            except KeyboardInterrupt:
                notes.write("\nStopped." if line else "")


def run_pipe(session: Session, *, asks_type: bool) -> None:
    """Process the lines of stdin. If *asks_type*, the first line may name a type."""
    # A session at a terminal begins with the choice of a type.
    session.expects_type = asks_type
    for line in sys.stdin:
        # Some Windows programs begin their output with a byte order mark.
        if not session.process_line(line.removeprefix("\ufeff")):
            break
