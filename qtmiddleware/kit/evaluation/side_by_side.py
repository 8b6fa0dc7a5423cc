"""Ask several systems the same questions, and collect their passages, answers, times and costs.

No judgements are needed. If a question has a reference answer, a language model ranks the systems'
answers by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Unpack, cast

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.check import configure_function
from qtmiddleware.kit.evaluation.compare import OWN, Progress
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.own_function import open_runner
from qtmiddleware.kit.evaluation.ranking import RankedAnswers, RankedSystems, rank
from qtmiddleware.kit.evaluation.systems import BASELINE, MEASURED, SYSTEMS, chosen
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.retrieval.movement import Movements, explain_movement
from qtmiddleware.types import Answer, Match, Retrieval
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

SHOWN: Final = (
    BASELINE,
    "rules",
    *(name for name, row in TRANSFORMS.items() if len(row.fields) == 1),
    "combined",
)
"""The default systems. Without a model, only the first two are asked."""
JUDGING: Final = "judging answers"
"""The name that a progress callback receives while the judge ranks the answers."""
_ONE: Final = "question"
# Plain answers only: a synthesis would decompose the question under every system.
_PLAIN: Final[Mapping[str, Any]] = {"answer": {"mode": "plain"}}
# The judge writes more than an answer needs, and no user waits for it.
_JUDGING: Final[Mapping[str, Any]] = {**MEASURED, "answer": {"maxTokens": 4_000}}


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """The result of one system for one question.

    Attributes:
        system: The system's name.
        retrieval: The system's retrieval; ``None`` if the system failed.
        answer: The model's answer; ``None`` if no answer was requested or there is an error.
        error: The exception that the model or the function raised, if any.
        seconds: The duration of the whole call, in seconds.
    """

    system: str
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def matches(self) -> tuple[Match, ...]:
        """The passages that the system found, best first; empty if the system failed."""
        return () if self.retrieval is None else self.retrieval.matches


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """One question with the results of all systems.

    Attributes:
        question: The question.
        systems: One result per system, in the order in which the systems were asked.
    """

    question: Question
    systems: tuple[SystemAnswer, ...]

    def __getitem__(self, name: str) -> SystemAnswer:
        """Return the result of the system called *name*; raises `KeyError` if there is none."""
        return {result.system: result for result in self.systems}[name]

    def explain(self, name: str) -> Movements | None:
        """Return how the ranks of the passages differ between the system called *name* and ``raw``.

        Returns ``None`` if the system failed.
        """
        retrieval = self[name].retrieval
        return None if retrieval is None else explain_movement(retrieval, self[BASELINE].matches)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """The results of all systems for all questions, and a judge's ranking of the answers.

    Attributes:
        questions: The questions with their results.
        ranked: The judge's ranking of the systems; ``None`` if no question has a reference answer.
    """

    questions: tuple[AskedQuestion, ...]
    ranked: RankedSystems | None = None

    def ranking(self, question: Question) -> RankedAnswers | None:
        """Return the judge's ranking of the answers to *question*; ``None`` if there is none."""
        rankings = self.ranked.questions if self.ranked is not None else ()
        return next((ranking for ranking in rankings if ranking.question == question.id), None)


def ask_systems(
    fn: Callable[..., Any],
    questions: str | Question | Iterable[Question],
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    *,
    answers: bool = False,
    reference: str = "",
    judge: LanguageModel | None = None,
    client: Any = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = None,
    repeats: int = 2,
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[WrapOptions],
) -> SideBySide:
    """Ask *fn* all *questions*, first unchanged, then with the settings of each of *systems*.

    The unchanged *fn* is the system ``raw``, and is always included. Calls run one at a time, after
    one call to warm up, so that the times are comparable. If the model or *fn* fails, the
    exception is in `SystemAnswer.error`. If the judge fails, the reason is in
    `RankedAnswers.error`.

    Args:
        fn: Your retrieval function, wrapped or not, as for `compare`.
        questions: A text, a `Question`, or several `Question`s.
        systems: Settings by the system's name, or names from `SYSTEMS`. The name ``yours`` is a
            wrapped *fn* with its own settings. Default: ``raw`` and ``rules``; with *client* or
            a wrapped *fn*, also each transformation and ``combined``.
        answers: Whether the model answers from the passages that each system finds. Questions with
            a reference answer are always answered.
        reference: The reference answer, if *questions* is a text. A `Question` has its own.
        judge: The model that ranks the answers against the reference answer. Default: the model
            that answers.
        client: The model client for a plain *fn*.
        arguments: Other keyword arguments for every call of *fn*.
        top_k: The number of passages to ask for, if *fn* has a parameter for it.
        repeats: The number of orders in which the judge sees the answers.
        seed: The seed that draws the orders.
        progress: Receives the system's name, the number of questions done and the total number.
        options: Options for wrapping a plain *fn*, as in `WrapOptions`.

    Raises:
        ConfigError: A system is unknown, or settings or questions are not valid.
        InvalidQuery: A question is not valid, such as a blank question.
        WrapError: *fn* cannot be wrapped, or is asynchronous while an event loop is running.
        Exception: Any exception that *fn* raises in the first plain call.
    """
    check_options(ask_systems, options, WrapOptions.__optional_keys__)
    is_wrapped = isinstance(fn, Wrapped)
    if is_wrapped and (client is not None or options):
        raise ConfigError(
            "fn is already wrapped; set the client and the options where you wrap it", path="fn"
        )
    base: Any = (
        fn if is_wrapped else QueryMiddleware({}, client=client).wrap(fn, **cast(Any, options))
    )
    listed = _list_questions(questions, reference)
    for question in listed:
        validate_query(question.text, "question")
    call_arguments = dict(arguments or {})
    if top_k is not None and base.top_k_argument is not None:
        call_arguments[base.top_k_argument] = top_k
    chosen_systems = _choose_systems(systems, has_model=client is not None or is_wrapped)
    functions = {
        name: configure_function(base, MEASURED, settings)
        for name, settings in chosen_systems.items()
    }
    results: list[list[SystemAnswer]] = [[] for _ in listed]
    with open_runner(base, "ask_systems") as runner:
        if listed:
            # The very first call loads models; that time must not count for the first system.
            base.middleware.warm_up()
            for function in functions.values():
                _load_models(
                    function.middleware,
                    wants_answers=answers or any(question.reference for question in listed),
                )
            # A copy: what it learns from its first call must not change the measured function.
            plain = configure_function(functions[BASELINE], {})
            warm_up_answer = _ask_system(
                BASELINE, plain, listed[0], runner, wants_answer=False, arguments=call_arguments
            )
            if warm_up_answer.error is not None:
                raise warm_up_answer.error
        for name, function in functions.items():
            for done, (question, row) in enumerate(zip(listed, results, strict=True), start=1):
                wants_answer = answers or bool(question.reference)
                row.append(
                    _ask_system(
                        name,
                        function,
                        question,
                        runner,
                        wants_answer=wants_answer,
                        arguments=call_arguments,
                    )
                )
                if progress is not None:
                    progress(name, done, len(listed))
    rows = tuple(
        AskedQuestion(question, tuple(row)) for question, row in zip(listed, results, strict=True)
    )
    if not any(question.reference for question in listed):
        return SideBySide(rows)
    model = judge if judge is not None else configure_function(base, _JUDGING).middleware.chat_model
    return SideBySide(rows, _rank_answers(rows, model, repeats, seed, progress))


def _load_models(middleware: QueryMiddleware, *, wants_answers: bool) -> None:
    """Load the models of *middleware*, if they can be loaded in advance.

    The model for answers is loaded only if *wants_answers* is true.
    """
    asks = middleware.settings.transformation_type != "none"
    # The call of a model that cannot be loaded raises the same error, and then it is reported.
    with suppress(Exception):
        for model in ([middleware.chat_model] if wants_answers else []) + (
            [middleware.model] if asks else []
        ):
            inner: Any = getattr(model, "inner", None)
            if hasattr(inner, "warm_up"):
                inner.warm_up()


def _list_questions(
    questions: str | Question | Iterable[Question], reference: str
) -> list[Question]:
    """Return *questions* as a list.

    If *questions* is a text, *reference* becomes its reference answer. Raises `ConfigError` if two
    questions have the same id, or if *reference* is set although *questions* is not a text.
    """
    if isinstance(questions, str):
        return [Question(_ONE, questions, metadata={"answer": reference} if reference else {})]
    listed = [questions] if isinstance(questions, Question) else list(questions)
    if reference:
        raise ConfigError(
            'set the reference of a Question as "answer" in its metadata', path="reference"
        )
    if len({question.id for question in listed}) < len(listed):
        raise ConfigError("two of the questions have the same id", path="questions")
    return listed


def _choose_systems(
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None, *, has_model: bool
) -> dict[str, Mapping[str, Any]]:
    """Return the settings of the systems to ask, by the system's name, baseline first."""
    if isinstance(systems, Mapping):
        return {BASELINE: {**SYSTEMS[BASELINE], **_PLAIN}, **systems}
    if systems is None:
        systems = SHOWN if has_model else SHOWN[:2]
    names = [systems] if isinstance(systems, str) else list(systems)
    settings = chosen([name for name in names if name != OWN])
    return {
        name: {} if name == OWN else {**settings[name], **_PLAIN}
        for name in dict.fromkeys((BASELINE, *names))
    }


def _ask_system(
    system_name: str,
    function: Any,
    question: Question,
    runner: asyncio.Runner | None,
    *,
    wants_answer: bool,
    arguments: Mapping[str, Any],
) -> SystemAnswer:
    """Ask *function* one question, and return the result for the system called *system_name*.

    If the function or a model fails, the exception becomes `SystemAnswer.error`.
    """
    call_arguments = {**arguments, "history": question.history}
    start = perf_counter()
    try:
        if not wants_answer:
            retrieval = (
                function.retrieve(question.text, **call_arguments)
                if runner is None
                else runner.run(function.aretrieve(question.text, **call_arguments))
            )
            return SystemAnswer(system_name, retrieval, seconds=perf_counter() - start)
        answer = (
            function.answer(question.text, **call_arguments)
            if runner is None
            else runner.run(function.aanswer(question.text, **call_arguments))
        )
    except Exception as error:
        # Wrong settings would fail for every question.
        if isinstance(error, QtMiddlewareError) and not isinstance(error, ModelError):
            raise
        # If only the answer failed, the error contains the retrieval.
        retrieval_before_error = getattr(error, "retrieval", None)
        return SystemAnswer(
            system_name, retrieval_before_error, error=error, seconds=perf_counter() - start
        )
    return SystemAnswer(system_name, answer.retrieval, answer, seconds=perf_counter() - start)


def _rank_answers(
    asked_questions: Sequence[AskedQuestion],
    model: LanguageModel,
    repeats: int,
    seed: int,
    progress: Progress | None,
) -> RankedSystems:
    """Ask *model* to rank the answers in *asked_questions*, and return the ranking.

    If the model fails on every question, the reason is in each `RankedAnswers.error`.
    """
    answers: dict[str, dict[str, str]] = {}
    for row in asked_questions:
        for result in row.systems:
            if result.answer is not None:
                answers.setdefault(result.system, {})[row.question.id] = result.answer.text
    questions = [row.question for row in asked_questions]
    try:
        return rank(
            questions,
            answers,
            model,
            repeats=repeats,
            seed=seed,
            timeout=120.0,
            progress=None
            if progress is None
            else lambda done, total: progress(JUDGING, done, total),
        )
    except ModelError as error:
        judged = [question for question in questions if question.reference]
        failed = tuple(RankedAnswers(question.id, error=error.reason) for question in judged)
        return RankedSystems(model.name, failed, len(questions) - len(judged))
