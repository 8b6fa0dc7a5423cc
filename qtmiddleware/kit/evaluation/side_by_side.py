"""Ask several systems the same questions, and show their results side by side.

No judgements are needed. If a question has an ideal answer, a model ranks the systems' answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Unpack

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.compare import Progress
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.judge import RankedAnswers, RankedSystems, rank
from qtmiddleware.kit.evaluation.systems import (
    BASELINE,
    MEASURED,
    OWN,
    Settings,
    System,
    chosen,
    open_system,
)
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.retrieval.movement import Movements, explain_movement
from qtmiddleware.types import Answer, Match, Retrieval
from qtmiddleware.wrapping.engine import check_options
from qtmiddleware.wrapping.query_middleware import WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

# The default systems. Without a model, only the first two are asked.
SHOWN: Final = (
    BASELINE,
    "rules",
    *(name for name, row in TRANSFORMS.items() if len(row.fields) == 1),
    "balanced",
)
# Every system answers in the same way.
_PLAIN: Final[Settings] = {"answer": {"mode": "plain"}}


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """The result of one system for one question, and the seconds of the whole call.

    *retrieval* is ``None`` if the search failed. *answer* is ``None`` if no answer was asked for,
    or if the model failed. *error* is the exception of the search or the model.
    """

    system: str
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def matches(self) -> tuple[Match, ...]:
        """The passages, best first; empty if the search failed."""
        return () if self.retrieval is None else self.retrieval.matches


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with the results of all systems, ``off`` first."""

    question: Question
    systems: tuple[SystemAnswer, ...]

    def __getitem__(self, name: str) -> SystemAnswer:
        return {result.system: result for result in self.systems}[name]

    def explain(self, name: str) -> Movements | None:
        """Return how and why passages moved compared with ``off``; ``None`` without passages."""
        retrieval = self[name].retrieval
        return None if retrieval is None else explain_movement(retrieval, self[BASELINE].matches)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The results for all questions; *ranked* has the judge's rankings if there are any."""

    questions: tuple[AskedQuestion, ...]
    ranked: RankedSystems | None = None

    def ranking(self, question: Question) -> RankedAnswers | None:
        """Return the judge's ranking for *question*; ``None`` if the judge was not asked."""
        rankings = self.ranked.questions if self.ranked is not None else ()
        return next((ranking for ranking in rankings if ranking.question == question.id), None)


def ask_systems(
    fn: Callable[..., Any],
    questions: str | Question | Iterable[Question],
    systems: Mapping[str, Settings] | Sequence[str] | None = None,
    *,
    answers: bool = False,
    judge: LanguageModel | None = None,
    client: Any = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[WrapOptions],
) -> SideBySide:
    """Ask each of *systems* every question, and return the results side by side.

    If a question has an ideal answer (``answer`` in its metadata), the model answers it from each
    system's passages, and then ranks the answers. A system that fails has its exception as
    `SystemAnswer.error`.

    Args:
        fn: Your retrieval function, wrapped or not, or the retriever of an index.
        questions: One or several questions.
        systems: Settings by the system's name, or names from `SYSTEMS` and ``yours``. Default: the
            single transformations, or without a model only ``off`` and ``rules``.
        answers: Whether the model answers each question from each system's passages.
        judge: The model that ranks answers. Default: the model that answers.
        client: The model client for a plain *fn*.
        arguments: Other keyword arguments for every call of *fn*.
        top_k: The number of passages to ask for. Default: the default of *fn*.
        progress: Receives the system's name, the number of questions done and the total number.
        options: Options for wrapping a plain *fn*, as in `WrapOptions`.

    Raises:
        InvalidQuery: A question is blank or too long.
        ConfigError: A system is unknown, settings are not valid, or two questions have the same id.
        WrapError: *fn* cannot be wrapped.
        Exception: The exception that *fn* raises on the first question.
    """
    check_options("ask_systems", options, WrapOptions.__optional_keys__)
    if isinstance(questions, str):
        questions = Question("question", questions)
    listed = [questions] if isinstance(questions, Question) else list(questions)
    if len({question.id for question in listed}) < len(listed):
        raise ConfigError("two of the questions have the same id", path="questions")
    for question in listed:
        validate_query(question.text, "question")
    if systems is None:
        systems = SHOWN if client is not None or isinstance(fn, Wrapped) else SHOWN[:2]
    names = systems if isinstance(systems, Mapping) else ()
    settings = {
        name: own if name == OWN or name in names else {**own, **_PLAIN}
        for name, own in chosen(systems).items()
    }
    with open_system(fn, client=client, arguments=arguments, top_k=top_k, **options) as base:
        functions = {name: base.with_settings(own) for name, own in settings.items()}
        # The first system does not pay for what the first question loads.
        base.function.middleware.warm_up()
        for question in listed[:1]:
            functions[BASELINE].retrieve(question)
        results: dict[str, list[SystemAnswer]] = {question.id: [] for question in listed}
        for name, system in functions.items():
            for done, question in enumerate(listed, start=1):
                wants_answer = answers or bool(question.reference)
                result = _ask_system(name, system, question, wants_answer=wants_answer)
                results[question.id].append(result)
                if progress is not None:
                    progress(name, done, len(listed))
        asked = tuple(AskedQuestion(question, tuple(results[question.id])) for question in listed)
        if not any(question.reference for question in listed):
            return SideBySide(asked)
        if judge is None:
            # A ranking of many answers is longer than an answer.
            long = {**MEASURED, "answer": {"maxTokens": 4_000}}
            judge = configure_function(base.function, long).middleware.engine.chat_model
        texts = {
            name: {
                row.question.id: answer.text
                for row in asked
                if (answer := row[name].answer) is not None
            }
            for name in functions
        }
        tell = None if progress is None else partial(progress, "judging answers")
        return SideBySide(asked, rank(listed, texts, judge, progress=tell))


def _ask_system(
    name: str,
    system: System,
    question: Question,
    *,
    wants_answer: bool,
) -> SystemAnswer:
    start, retrieval, answer, problem = perf_counter(), None, None, None
    try:
        if wants_answer:
            answer = system.answer(question)
            retrieval = answer.retrieval
        else:
            retrieval = system.retrieve(question)
    except Exception as error:
        # Wrong settings would fail for every question.
        if isinstance(error, QtMiddlewareError) and not isinstance(error, ModelError):
            raise
        # If only the model failed, the error has the passages.
        retrieval, problem = getattr(error, "retrieval", None), error
    return SystemAnswer(name, retrieval, answer, problem, perf_counter() - start)
