"""Questions put to several systems, side by side: what each finds and answers, how long it takes, what it costs.

It needs no judgements. Where the ideal answer is known, a language model ranks the answers against
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Unpack

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.errors import ConfigError, ModelError, QtMiddlewareError
from qtmiddleware.kit.evaluation.compare import OWN, Progress
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.movement import Movements, explain_movement
from qtmiddleware.kit.evaluation.own_function import configure, open_runner
from qtmiddleware.kit.evaluation.ranking import RankedAnswers, RankedSystems, rank
from qtmiddleware.kit.evaluation.systems import BASELINE, MEASURED, SYSTEMS, chosen
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.retrieval.request import validate_query
from qtmiddleware.types import Answer, Match, Retrieval
from qtmiddleware.wrapping.options import check_options
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

SHOWN: Final = (
    BASELINE,
    "rules",
    *(name for name, row in TRANSFORMS.items() if len(row.fields) == 1),
    "combined",
)
"""The systems that are put side by side where none are named and there is a model; else the first two."""
JUDGING: Final = "judging answers"
"""What is under way, as progress is told, when all systems have answered."""
_ONE: Final = "question"
# A synthesis would decompose the question whatever the system is.
_PLAIN: Final[Mapping[str, Any]] = {"answer": {"mode": "plain"}}
# The judge writes more than an answer has, and no question waits for it.
_JUDGING: Final[Mapping[str, Any]] = {**MEASURED, "answer": {"maxTokens": 4_000}}


@dataclass(frozen=True, slots=True)
class SystemAnswer:
    """What one *system* made of a question.

    *retrieval* is the answer's where there is one. *answer* is ``None`` where none was asked for,
    or *error*, the model's or the function's own, says why there is none. *seconds* is the whole
    time of the call.
    """

    system: str
    retrieval: Retrieval | None
    answer: Answer | None = None
    error: Exception | None = None
    seconds: float = 0.0

    @property
    def matches(self) -> tuple[Match, ...]:
        """The passages that were found, the best first."""
        return () if self.retrieval is None else self.retrieval.matches


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """What every system made of one *question*, in the order they were asked."""

    question: Question
    systems: tuple[SystemAnswer, ...]

    def __getitem__(self, name: str) -> SystemAnswer:
        """What the system called *name* made of it; raises `KeyError`."""
        return {one.system: one for one in self.systems}[name]

    def explain(self, name: str) -> Movements | None:
        """Where the system called *name* has each passage, beside `raw`, and why; ``None`` where it found none."""
        found = self[name].retrieval
        return None if found is None else explain_movement(found, self[BASELINE].matches)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """What every system made of every question, and the judge's ranking of the answers, where there is one."""

    questions: tuple[AskedQuestion, ...]
    ranked: RankedSystems | None = None

    def ranking(self, question: Question) -> RankedAnswers | None:
        """Return the ranking of the answers to *question*, where there is one."""
        asked = self.ranked.questions if self.ranked is not None else ()
        return next((one for one in asked if one.question == question.id), None)


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
    """Put *questions* to the retrieval function *fn* as it is and under each of the *systems*.

    *fn*, *client*, *arguments* and *options* are those of `compare`. *systems* are settings by
    name, or names out of `SYSTEMS` (``yours`` is what a wrapped *fn* does by itself); by default
    ``raw``, ``rules`` and, with a *client* or a wrapped *fn*, each transformation and ``combined``.
    ``raw`` is always among them. *top_k* is passed on where *fn* has a parameter for it. One call
    at a time, after a plain one that is not counted, so that times mean something.

    With *answers* the model answers from what each system found. Where a question has an ideal
    answer, its `Question.reference` or, of a single text, *reference*, the answers are asked for
    and ranked against it by *judge*, by default the model that answers, *repeats* times; *seed*
    draws in which orders it sees them. A model, or a *fn*, that fails leaves the ``error`` of that
    system, and a judge that fails that of the ranking. *progress* receives the system's name and
    how many of the questions are done.

    Raises `ConfigError` for unknown systems, impossible settings or questions, `InvalidQuery` for a
    question that cannot be answered, `WrapError` for a function that cannot be wrapped, or an
    asynchronous one where an event loop runs already, and whatever *fn* raises at that first plain
    call.
    """
    check_options(ask_systems, options, WrapOptions.__optional_keys__)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    if is_wrapped and (client is not None or options):
        raise ConfigError(
            "fn is already wrapped; set the client and the options where you wrap it", path="fn"
        )
    base: Any = fn if is_wrapped else QueryMiddleware({}, client=client).wrap(fn, **options)
    asked = _list_questions(questions, reference)
    for question in asked:
        validate_query(question.text, "question", base.middleware.settings)
    given = dict(arguments or {})
    if top_k is not None and base.top_k_argument is not None:
        given[base.top_k_argument] = top_k
    chosen_systems = _choose_systems(systems, has_model=client is not None or is_wrapped)
    functions = {
        name: configure(configure(base, MEASURED), laid) for name, laid in chosen_systems.items()
    }
    found: list[list[SystemAnswer]] = [[] for _ in asked]
    with open_runner(base, "ask_systems") as runner:
        if asked:
            # What the first call of all has to load is no part of the time of the first system.
            base.middleware.warm_up()
            for function in functions.values():
                _load_models(
                    function._context, answers=answers or any(one.reference for one in asked)
                )
            plain = configure(functions[BASELINE], {})
            first = _ask(BASELINE, plain, asked[0], runner, wants_answer=False, arguments=given)
            if first.error is not None:
                raise first.error
        for name, function in functions.items():
            for done, (question, row) in enumerate(zip(asked, found, strict=True), start=1):
                wants_answer = answers or bool(question.reference)
                row.append(
                    _ask(
                        name, function, question, runner, wants_answer=wants_answer, arguments=given
                    )
                )
                if progress is not None:
                    progress(name, done, len(asked))
    rows = tuple(
        AskedQuestion(question, tuple(row)) for question, row in zip(asked, found, strict=True)
    )
    if not any(question.reference for question in asked):
        return SideBySide(rows)
    model = judge if judge is not None else configure(base, _JUDGING)._context.chat
    return SideBySide(rows, _rank(rows, model, repeats, seed, progress))


def _load_models(runtime: Any, *, answers: bool) -> None:
    """Load what the models of *runtime* need; what is wrong with one is told when it is asked."""
    asks = runtime.settings.transformation_type != "none"
    with suppress(Exception):
        for model in ([runtime.chat] if answers else []) + ([runtime.model] if asks else []):
            if hasattr(model.inner, "warm_up"):
                model.inner.warm_up()


def _list_questions(
    questions: str | Question | Iterable[Question], reference: str
) -> list[Question]:
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
    if isinstance(systems, Mapping):
        return {BASELINE: {**SYSTEMS[BASELINE], **_PLAIN}, **systems}
    if systems is None:
        systems = SHOWN if has_model else SHOWN[:2]
    names = [systems] if isinstance(systems, str) else list(systems)
    known = chosen([name for name in names if name != OWN])
    return {
        name: {} if name == OWN else {**known[name], **_PLAIN}
        for name in dict.fromkeys((BASELINE, *names))
    }


def _ask(
    name: str,
    function: Any,
    question: Question,
    runner: asyncio.Runner | None,
    *,
    wants_answer: bool,
    arguments: Mapping[str, Any],
) -> SystemAnswer:
    given = {**arguments, "history": question.history}
    began = perf_counter()
    try:
        if not wants_answer:
            retrieval = (
                function.retrieve(question.text, **given)
                if runner is None
                else runner.run(function.aretrieve(question.text, **given))
            )
            return SystemAnswer(name, retrieval, seconds=perf_counter() - began)
        answer = (
            function.answer(question.text, **given)
            if runner is None
            else runner.run(function.aanswer(question.text, **given))
        )
    except Exception as error:
        # What is wrong with the settings is wrong for every question.
        if isinstance(error, QtMiddlewareError) and not isinstance(error, ModelError):
            raise
        found = getattr(error, "retrieval", None)
        return SystemAnswer(name, found, error=error, seconds=perf_counter() - began)
    return SystemAnswer(name, answer.retrieval, answer, seconds=perf_counter() - began)


def _rank(
    rows: Sequence[AskedQuestion],
    model: LanguageModel,
    repeats: int,
    seed: int,
    progress: Progress | None,
) -> RankedSystems:
    answers: dict[str, dict[str, str]] = {}
    for row in rows:
        for one in row.systems:
            if one.answer is not None:
                answers.setdefault(one.system, {})[row.question.id] = one.answer.text
    questions = [row.question for row in rows]
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
