"""A live retrieval function under several settings, measured on judged questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Unpack

from qtmiddleware.errors import ConfigError, WrapError
from qtmiddleware.evaluation.comparison import Comparison
from qtmiddleware.evaluation.dataset import HIGHEST_GRADE, Dataset, Qrels, Question
from qtmiddleware.evaluation.measures import DEPTH, TOP_K
from qtmiddleware.evaluation.measuring import Progress, measure
from qtmiddleware.evaluation.runs import Run, run_of
from qtmiddleware.evaluation.systems import BASELINE, FREE, MEASURED, SYSTEMS, USUAL, chosen
from qtmiddleware.wrapping.query_middleware import QueryMiddleware, WrapOptions
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

OWN: Final = "yours"


def compare(
    fn: Callable[..., Any],
    queries: Mapping[str, str] | Iterable[Question],
    qrels: Qrels,
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None = None,
    *,
    client: Any = None,
    arguments: Mapping[str, Any] | None = None,
    top_k: int | None = TOP_K,
    deep: bool = False,
    name: str = "live function",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Unpack[WrapOptions],
) -> Comparison:
    """Measure the retrieval function *fn* as it is and under each of the *systems*, on judged questions.

    *fn* is a plain function as it would be wrapped, with `WrapOptions` for *options*, or one that is wrapped already:
    then every system's settings are laid over its own, and ``yours`` is what it does by itself. It is called with the
    question first, *top_k* where its signature has a parameter for that, and *arguments*. *queries* are texts by id, or
    `Question`s, which may have a history; *qrels* the grades of passages, by question and passage. *systems* are
    settings by name, or names out of `SYSTEMS`; by default those that need no model and, with a *client* or a wrapped
    *fn*, the others too. ``raw`` is always among them, and all are measured against it. With *deep* every system is
    asked once more, for a hundred passages, which R@100 is measured by.

    Raises `ConfigError` for unknown systems, impossible settings, questions or judgements that do not fit, or results
    without ids; `WrapError` for a function that cannot be wrapped, or an asynchronous one where an event loop runs
    already; `MissingExtra` without ir-measures or scipy; and whatever *fn* raises.
    """
    data = _dataset(name, queries, qrels)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    if is_wrapped and (client is not None or options):
        raise ConfigError("fn is wrapped already; give the client and the options to what wraps it", path="fn")
    base: Any = fn if is_wrapped else QueryMiddleware({}, client=client).wrap(fn, **options)
    if base.is_async:
        refuse_running_loop("compare")
    settings = _settings(systems, asks=client is not None or is_wrapped, is_wrapped=is_wrapped)
    with ExitStack() as open_until_measured:
        runner = open_until_measured.enter_context(asyncio.Runner()) if base.is_async else None
        ask = partial(_ask, runner=runner, arguments=dict(arguments or {}))
        functions = {name: _configured(_configured(base, MEASURED), given) for name, given in settings.items()}
        return measure(
            {name: partial(ask, function, top_k) for name, function in functions.items()},
            data,
            baseline=BASELINE,
            # Their own memories: what the gate learns from these is not to count for those.
            deep={name: partial(ask, _configured(it, {}), DEPTH) for name, it in functions.items()} if deep else None,
            seed=seed,
            progress=progress,
        )


def _configured(function: Any, given: Mapping[str, Any]) -> Any:
    """The wrapped function or method under these settings, with a memory of its own."""
    found = function.configured(given)
    return Bound(found, function.__self__) if isinstance(function, Bound) else found


def refuse_running_loop(name: str) -> None:
    """Raise `WrapError` with the way out where *name* is called inside a running event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrapError(
        "an event loop runs here already (as in a notebook), so nothing asynchronous can be waited for; "
        f"use `await asyncio.to_thread({name}, ...)`"
    )


def _ask(
    function: Any,
    top_k: int | None,
    question: Question,
    *,
    runner: asyncio.Runner | None,
    arguments: Mapping[str, Any],
) -> Run:
    wanted = dict(arguments)
    if top_k is not None and function.top_k_argument is not None:
        wanted[function.top_k_argument] = top_k
    if runner is None:
        return run_of(function.retrieve(question.text, history=question.history, **wanted))
    return run_of(runner.run(function.aretrieve(question.text, history=question.history, **wanted)))


def _settings(
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] | None, *, asks: bool, is_wrapped: bool
) -> dict[str, Mapping[str, Any]]:
    """The systems to compare, the baseline first."""
    if isinstance(systems, Mapping):
        ours = {BASELINE, OWN} if is_wrapped else {BASELINE}
        if taken := [name for name in systems if name in ours and systems[name] != SYSTEMS.get(name)]:
            raise ConfigError(f"the name {taken[0]!r} has a meaning of its own here; rename the system", path="systems")
        found = {**chosen(()), **systems}
    elif isinstance(systems, str):
        found = chosen([systems])
    else:
        found = chosen(systems if systems is not None else USUAL if asks else FREE)
    return {**found, OWN: {}} if is_wrapped else found


def _dataset(name: str, queries: Mapping[str, str] | Iterable[Question], qrels: Qrels) -> Dataset:
    """The questions that are judged; raises `ConfigError` where a judgement is about none of them, or is none."""
    given = [Question(*one) for one in queries.items()] if isinstance(queries, Mapping) else list(queries)
    for number, one in enumerate(given, 1):
        if not _is_question(one):
            raise ConfigError(f"query {number} is no Question, or no text under an id that is text", path="queries")
    known = {question.id for question in given}
    if len(known) < len(given):
        raise ConfigError("two of the queries have the same id", path="queries")
    if unknown := [id_ for id_ in qrels if id_ not in known]:
        raise ConfigError(
            f"{len(unknown)} judged questions are not among the queries, the first is {unknown[0]!r}", path="qrels"
        )
    asked = tuple(question for question in given if question.id in qrels)
    return Dataset(name, (), asked, {question.id: _grades(question.id, qrels[question.id]) for question in asked})


def _grades(question: str, given: Any) -> dict[str, int]:
    """The judgements of one *question*, read once; raises `ConfigError` for what is none."""
    if not isinstance(given, Mapping) or not all(isinstance(id_, str) and _is_grade(it) for id_, it in given.items()):
        raise ConfigError(
            f"the judgements of {question!r} are not whole numbers of at most {HIGHEST_GRADE:,} by the ids of "
            "passages, which are text",
            path="qrels",
        )
    return dict(given)


def _is_question(found: Any) -> bool:
    return isinstance(found, Question) and all(isinstance(it, str) for it in (found.id, found.text))


def _is_grade(found: Any) -> bool:
    return isinstance(found, int) and abs(found) <= HIGHEST_GRADE
