"""A retrieval function of the user's own, of which any system can be made and measured."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from qtmiddleware.errors import ConfigError, MissingExtra, WrapError
from qtmiddleware.kit.evaluation.dataset import Qrels, Question
from qtmiddleware.kit.evaluation.systems import MEASURED, Run, System, run_of
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.wrapping.wrapped import Bound

ASKED_FOR_IDS: Final = 20
"""So many questions may find no judged passage before the ids are taken to be of another kind."""


class RunMemory(Protocol):
    """What remembers the runs of a measurement that may be interrupted."""

    def recall(self, system: str, question: str) -> Run | None:
        """Return what *system* found for the question of this id, ``None`` if that is not known."""

    def remember(self, system: str, question: str, run: Run) -> None:
        """Keep what *system* found for it."""


@dataclass(slots=True)
class IdCheck:
    """Notices judgements that name passages by other ids than the function returns.

    *judged* are the ids of the judgements, *questions* is how many questions may find none of them.
    """

    judged: Set[str] = field(repr=False)
    questions: int = ASKED_FOR_IDS
    _asked: int = 0
    _example: str | None = None
    _is_over: bool = False

    @classmethod
    def of(cls, qrels: Qrels) -> IdCheck:
        """Return the check of these judgements."""
        # In their order, so that the example is the first one.
        return cls({id_: None for grades in qrels.values() for id_ in grades}.keys())

    def look(self, run: Run) -> None:
        """Look at what one question found; raises `ConfigError` after so many questions without a judged id."""
        if self._is_over or run.error is not None:
            return
        self._asked += 1
        self._example = run.ids[0] if run.ids else self._example
        self._is_over = not self.judged.isdisjoint(run.ids)
        if self._asked >= self.questions:
            self.finish()

    def finish(self) -> None:
        """Raise `ConfigError` with an id of each side if ids were returned and none of them is judged."""
        if self._is_over or self._example is None:
            return
        raise ConfigError(
            "the judgements must name passages by the ids that the function returns. They name"
            f" {next(iter(self.judged))!r}, for example; the function returned {self._example!r},"
            f" and in {self._asked:,} {'answer' if self._asked == 1 else 'answers'} no id that is"
            " judged. Write the function's ids into the judgements, or name the field of its"
            " results that holds theirs (keywordEvidence.idField)",
            path="qrels",
        )


@dataclass(frozen=True, slots=True)
class OwnFunction:
    """A wrapped function (*base*) that any system can be made of.

    Attributes:
        base: The function, wrapped; every system's settings are laid over its own.
        arguments: What it is called with beside the question.
        top_k: How many passages it is asked for where no other number is, ``None`` for its own
        number.
        runner: What runs it if it is asynchronous.
        ids: What looks at the ids it returns.
        memory: What remembers finished runs, if they are kept.
        model: The model whose replies are kept, ``None`` if the function asks one of its own.
    """

    base: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    top_k: int | None = None
    runner: asyncio.Runner | None = field(default=None, repr=False)
    ids: IdCheck | None = None
    memory: RunMemory | None = None
    model: LanguageModel | None = None

    def wrap(self, settings: Mapping[str, Any]) -> Any:
        """Return the function under *settings*; its gate and caches are its own."""
        return configure(configure(self.base, MEASURED), settings)

    def system(self, settings: Mapping[str, Any], top_k: int | None = None) -> System:
        """Return the system of *settings*, to be measured one question at a time.

        If the function raises for a question, that is the run's ``error``. A remembered run is not
        made again; those of a gate are always made, as it learns from every question.
        """
        function = self.wrap(settings)
        given = dict(self.arguments)
        wanted = self.top_k if top_k is None else top_k
        if wanted is not None and function.top_k_argument is not None:
            given[function.top_k_argument] = wanted
        in_force = function._context.settings
        is_gated = in_force.transformation_type != "none" and in_force.escalation.mode == "auto"
        memory = None if is_gated else self.memory
        name = describe_system(settings, wanted)

        def run(question: Question) -> Run:
            found = None if memory is None else memory.recall(name, question.id)
            if found is None:
                found = self._ask(function, question, given)
                if memory is not None and found.error is None:
                    memory.remember(name, question.id, found)
            if self.ids is not None:
                self.ids.look(found)
            return found

        return run

    def _ask(self, function: Any, question: Question, given: Mapping[str, Any]) -> Run:
        asked: dict[str, Any] = {"history": question.history, **given}
        try:
            if self.runner is None:
                retrieval = function.retrieve(question.text, **asked)
            else:
                retrieval = self.runner.run(function.aretrieve(question.text, **asked))
        except (ConfigError, MissingExtra, WrapError):
            # Wrong settings fail for every question.
            raise
        except Exception as error:
            return Run((), error=error)
        try:
            return run_of(retrieval)
        except ConfigError as error:
            return Run((), error=error)


def describe_system(settings: Mapping[str, Any], top_k: int | None) -> str:
    """Return what tells the system of *settings* from others in a memory of runs."""
    return json.dumps([settings, top_k], sort_keys=True, default=repr)


def hash_settings(settings: Mapping[str, Any]) -> str:
    """Return the sha256 of *settings*."""
    return hashlib.sha256(describe_system(settings, None).encode()).hexdigest()


def configure(function: Any, settings: Mapping[str, Any]) -> Any:
    """Return the wrapped function or method under these settings; its gate and caches are its own."""
    configured = function.configured(settings)
    return Bound(configured, function.__self__) if isinstance(function, Bound) else configured


@contextmanager
def open_runner(function: Any, caller: str) -> Iterator[asyncio.Runner | None]:
    """Yield what runs the wrapped *function* if it is asynchronous, else ``None``.

    Raises `WrapError` with the way out where *caller* is called inside a running event loop.
    """
    if not function.is_async:
        yield None
        return
    refuse_running_loop(caller)
    with asyncio.Runner() as runner:
        yield runner


def refuse_running_loop(name: str) -> None:
    """Raise `WrapError` with the way out where *name* is called inside a running event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrapError(
        "an event loop runs here already (as in a notebook), so nothing asynchronous can be waited"
        f" for; use `await asyncio.to_thread({name}, ...)`"
    )
