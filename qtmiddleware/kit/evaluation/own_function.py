"""Build the systems of a comparison from your own retrieval function."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.errors import ConfigError, MissingExtra, WrapError
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.dataset import Qrels, Question
from qtmiddleware.kit.evaluation.systems import MEASURED, Run, System, run_of
from qtmiddleware.protocols import LanguageModel

ASKED_FOR_IDS: Final = 20
"""At least one of this many first questions must find a judged passage."""


@dataclass(slots=True)
class IdCheck:
    """Checks that the judgements use the passage ids that the function returns.

    Attributes:
        judged: The passage ids in the judgements.
        questions: The number of questions after which the check fails if the function has not
            returned any judged id.
    """

    judged: Set[str] = field(repr=False)
    questions: int = ASKED_FOR_IDS
    _asked: int = 0
    _example: str | None = None
    _is_over: bool = False

    @classmethod
    def from_qrels(cls, qrels: Qrels) -> IdCheck:
        """Create a check against the passage ids in *qrels*."""
        # A dictionary keeps the order, so the example in the message is the first judged id.
        return cls({id_: None for grades in qrels.values() for id_ in grades}.keys())

    def check_run(self, run: Run) -> None:
        """Check the passage ids in *run*, the result for one question.

        Raises `ConfigError` after `questions` questions if the function has returned passage ids,
        but no judged id.
        """
        if self._is_over or run.error is not None:
            return
        self._asked += 1
        self._example = run.ids[0] if run.ids else self._example
        self._is_over = not self.judged.isdisjoint(run.ids)
        if self._asked >= self.questions:
            self.require_judged_id()

    def require_judged_id(self) -> None:
        """Raise `ConfigError` if the function has returned passage ids, but no judged id.

        The message quotes a returned id and a judged id.
        """
        if self._is_over or self._example is None:
            return
        raise ConfigError(
            "the judgements must name passages by the ids that the function returns. They name"
            f" {next(iter(self.judged))!r}, for example; the function returned {self._example!r},"
            f" and in {self._asked:,} {'answer' if self._asked == 1 else 'answers'} no id that is"
            " judged. Write the function's ids into the judgements, or name the field of its"
            " results that holds theirs (keywordEvidence.fields.id)",
            path="qrels",
        )


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """Builds the systems of a comparison from your own wrapped retrieval function.

    Attributes:
        base: The wrapped function. A system's settings override the function's settings.
        arguments: The arguments of every call, apart from the question.
        top_k: The number of passages to ask for. ``None``: the function's own default.
        runner: Runs the function if it is asynchronous.
        ids: Checks the passage ids that the function returns.
        model: The model whose replies are recorded; ``None`` if the function asks its own model.
    """

    base: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    top_k: int | None = None
    runner: asyncio.Runner | None = field(default=None, repr=False)
    ids: IdCheck | None = None
    model: LanguageModel | None = None

    def build_wrapped_function(self, settings: Mapping[str, Any]) -> Any:
        """Return a copy of the wrapped function with *settings*.

        The copy does not inherit what the function learned from earlier calls.
        """
        # In this order, a system may override the settings for measuring, such as the cache.
        return configure_function(self.base, MEASURED, settings)

    def build_system(self, settings: Mapping[str, Any], top_k: int | None = None) -> System:
        """Return a system with *settings*: a function that returns the result for a question.

        If your function raises an exception, the exception becomes `Run.error`.

        Args:
            settings: The system's settings.
            top_k: The number of passages to ask for. ``None``: the attribute `top_k`.
        """
        function = self.build_wrapped_function(settings)
        arguments = dict(self.arguments)
        passage_count = self.top_k if top_k is None else top_k
        if passage_count is not None and function.top_k_argument is not None:
            arguments[function.top_k_argument] = passage_count

        def run_question(question: Question) -> Run:
            result = self._ask_function(function, question, arguments)
            if self.ids is not None:
                self.ids.check_run(result)
            return result

        return run_question

    def _ask_function(self, function: Any, question: Question, arguments: Mapping[str, Any]) -> Run:
        """Return the result of *function* for *question*; an exception becomes `Run.error`."""
        keywords: dict[str, Any] = {"history": question.history, **arguments}
        try:
            if self.runner is None:
                retrieval = function.retrieve(question.text, **keywords)
            else:
                retrieval = self.runner.run(function.aretrieve(question.text, **keywords))
        except (ConfigError, MissingExtra, WrapError):
            # Wrong settings would fail for every question.
            raise
        except Exception as error:
            return Run((), error=error)
        try:
            return run_of(retrieval)
        except ConfigError as error:
            # Only this question's result is unusable. The next result may have ids.
            return Run((), error=error)


def hash_settings(settings: Mapping[str, Any]) -> str:
    """Return the sha256 of *settings*, in hex."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode()).hexdigest()


@contextmanager
def open_runner(function: Any, caller_name: str) -> Iterator[asyncio.Runner | None]:
    """Yield an `asyncio.Runner` if the wrapped *function* is asynchronous, otherwise ``None``.

    Raises `WrapError` if *function* is asynchronous and an event loop is running. The message
    advises you to call the function named *caller_name* in a thread.
    """
    if not function.is_async:
        yield None
        return
    refuse_running_loop(caller_name)
    with asyncio.Runner() as runner:
        yield runner


def refuse_running_loop(caller_name: str) -> None:
    """Raise `WrapError` if an event loop is running, as in a notebook.

    The message advises you to call the function named *caller_name* in a thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrapError(
        "an event loop runs here already (as in a notebook), so nothing asynchronous can be waited"
        f" for; use `await asyncio.to_thread({caller_name}, ...)`"
    )
