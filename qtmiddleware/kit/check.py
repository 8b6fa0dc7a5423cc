"""Report how qtmiddleware reads a function's calls and results, and what it changes.

A check makes ordinary calls through a middleware of its own. It compares the order of their results
with the function's own order, and leaves no trace in the caller's middleware.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.preprocessing.text import format_count, shorten_text, split_terms
from qtmiddleware.retrieval import responses
from qtmiddleware.retrieval.call import PAGED, find_query_problem
from qtmiddleware.retrieval.fusion import (
    find_score_direction,
    has_usable_scores,
)
from qtmiddleware.retrieval.question_words import find_matching_words, is_code
from qtmiddleware.types import (
    Degradation,
    Match,
    Operation,
    Passage,
    Ranking,
    Retrieval,
)
from qtmiddleware.wrapping import clauses
from qtmiddleware.wrapping.binding import (
    find_top_k_name,
    read_parameters_of_any,
)

MOST_ASKED: Final = 10
"""The largest number of questions to ask, the first ones of a list."""
FEWEST_ASKED: Final = 3
"""The rules are advised against if they change the order for none of so many questions."""

_MOST_EXAMPLES: Final = 2
# A check waits at least this long for the model, so that a slow one is timed and not given up.
_PATIENCE_MS: Final = 20_000
_MOST_QUOTED: Final = 300

# The settings of a call with the rules alone.
_FREE: Final[Mapping[str, Any]] = {
    "transformationType": "none",
    "rerank": {"enabled": False},
}

_MEASURE: Final = (
    "measure whether that is better: qtm.evaluation.compare(fn, queries, qrels), or qtm bench"
    " --function MODULE:NAME --data questions.csv"
)
# No change is no problem if the search is right already.
_ASK_MORE: Final = (
    "if the right passage is first, nothing needs to change; otherwise check 3 to 10 questions:"
    " check([...]), or qtm check --ask-file FILE"
)
_ASK_MODEL: Final = (
    "if the right passages are first, nothing needs to change; otherwise try the preset"
    ' "words" or "balanced", which ask a model'
)
_TURN_ON: Final = (
    'set keywordEvidence: true, preprocess.applyTo: "keywords" and a fusion.method that merges,'
    ' such as "anchored"'
)
_EMBED: Final = "wrap it with embed= (a function from a text to its vector)"
_NOT_TEXT: Final = (
    f"pass the question's text; if the function takes a vector, {_EMBED}; if the text is a field,"
    " name it with query_arg="
)
MODEL_FIXES: Final = {
    "unauthorized": "set OPENAI_API_KEY to a valid key, or pass client=",
    "rejected": "check transformationModel and llm.baseUrl",
    "rate_limited": "wait, or check your account's quota",
    "timeout": "choose a faster transformationModel, or raise limits.llmTimeoutMs",
    "truncated": "raise llm.maxTokens",
    "unavailable": "start the service, or correct llm.baseUrl or QTM_LLM_BASE_URL",
    "over_budget": "raise budget.*",
    "off_topic": "choose a stronger transformationModel",
}
_NAME_FIELD: Final = "if a field holds them, name the field in keywordEvidence.fields.{}"
_DIRECTIONS: Final = {
    1: "lower is better",
    -1: "higher is better",
    0: "all are equal",
}
# The stages whose problems have findings of their own.
_REPORTED: Final = ("transform", "rerank")


class CheckState(StrEnum):
    """Whether a checked part works, has a problem, or is not used."""

    OK = "ok"
    PROBLEM = "problem"
    OFF = "off"


OK, PROBLEM, OFF = CheckState


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check.

    Attributes:
        subject: the checked part, such as ``query`` or ``model``.
        state: whether the part works, has a problem, or is not used.
        text: a sentence for people. It may quote texts, and exceptions that the function raised.
        fix: what to do; ``""`` if there is nothing to do.
    """

    subject: str
    state: CheckState
    text: str = field(repr=False)
    fix: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking a wrapped function. Print it to see a report.

    Attributes:
        function: the name of the checked function.
        question: the question that was asked; the first question of a list.
        keywords: the question's keywords.
        findings: what the check found, in the order of a call.
    """

    function: str
    question: str = field(repr=False)
    keywords: str = field(repr=False)
    findings: tuple[Finding, ...]

    @property
    def helps(self) -> bool:
        """Whether qtmiddleware can change the order of this function's passages.

        False if no part of it works, or if the rules changed the order for none of three or more
        questions and nothing else works.
        """
        states = {finding.subject: finding.state for finding in self.findings}
        return OK in {states.get(name) for name in ("order", "model", "rerank")}

    def to_dict(self) -> dict[str, Any]:
        """Return the check's result, including ``helps``, as nested dicts ready for JSON."""
        return {"helps": self.helps, **asdict(self)}

    def __str__(self) -> str:
        texts = {"question": self.question, "keywords": self.keywords}
        rows = [_format_row("function", f"{self.function}()")]
        for name, text in texts.items():
            rows.append(_format_row(name, shorten_text(text) or "(none)"))
        rows.append("")
        for finding in self.findings:
            mark = {PROBLEM: "! ", OFF: "off: "}.get(finding.state, "")
            rows.append(_format_row(finding.subject, mark + finding.text))
            if finding.fix:
                rows.append(_format_row("", f"-> {finding.fix}"))
        return "\n".join(rows)


def check(
    search: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Check:
    """Check the wrapped function *search* with the arguments of a call, as `Wrapped.check` says."""
    run = _CheckRun(search, args, kwargs)

    async def retrieve(*args: Any, **kwargs: Any) -> Retrieval:
        return run.search.retrieve(*args, **kwargs)  # type: ignore[no-any-return]

    with run.middleware:
        # Nothing that this coroutine awaits suspends, so it ends within one step.
        try:
            run.perform(retrieve).send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a check without an event loop was suspended")


async def acheck(
    search: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Check:
    """Check *search* as `check` does, without blocking the running event loop."""
    run = _CheckRun(search, args, kwargs)
    async with run.middleware:
        return await run.perform(run.search.aretrieve)


def describe_error(error: Exception) -> str:
    """Return the type of *error* and the beginning of its message, without credentials."""
    words = " ".join(hide_secrets(str(error)).split())[:_MOST_QUOTED]
    return f"{type(error).__name__}: {words}".removesuffix(": ")


def configure_function(
    function: Any,
    *layers: Mapping[str, Any] | str,
    **options: Any,
) -> Any:
    """Return a copy of the wrapped *function* with the settings in *layers*; the last one wins.

    The copy inherits nothing that *function* learned, and no hook hears of its calls.
    """
    middleware = function.middleware.with_config(*layers, **options)
    return middleware.wrap(
        function.__wrapped__,
        **{**function.wrap_options, "on_retrieval": None},
    )


class _Recorder:
    def __init__(self) -> None:
        self.latest: dict[tuple[str, str], Operation] = {}

    def on_start(self, operation: Operation) -> None:
        """Do nothing: an operation's numbers are known at its end."""

    def on_end(self, operation: Operation) -> None:
        self.latest[operation.kind, operation.name] = operation

    def find(self, kind: str, name: str = "") -> Operation | None:
        return self.latest.get((kind, name))


class _CheckRun:
    """Performs one check. The methods are in the order in which they run."""

    def __init__(
        self,
        search: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.function, self.checked = search.__wrapped__, search.middleware
        layers = [kwargs.pop("qtm_config", None)]
        if "config" not in read_parameters_of_any(self.function):
            layers.insert(0, kwargs.pop("config", None))
        traceless = {
            "cache": {"enabled": False},
            "log": {"path": None},
            "shadow": None,
        }
        self.recorder = _Recorder()
        self.search = configure_function(
            search,
            *filter(None, layers),
            traceless,
            observers=[self.recorder],
            is_quiet=True,
        )
        self.middleware = self.search.middleware
        self.settings = self.middleware.settings
        self.args, self.kwargs = args, kwargs
        self.query_name = search.query_argument.partition(".")[0]
        questions = _list_questions(kwargs.get(self.query_name, args[0] if args else None))
        self.questions, self.given = questions[:MOST_ASKED], len(questions)
        given = {**getattr(self.function, "keywords", {}), **kwargs}.get(clauses.SCORE_BY)
        self.clauses: Sequence[Any] = given if isinstance(given, list | tuple) else ()
        self.argument = clauses.SCORE_BY if self.clauses else search.query_argument
        self.question: Any = ""
        self.findings: list[Finding] = []
        self.retrieve: Callable[..., Awaitable[Retrieval]]

    async def perform(self, retrieve: Callable[..., Awaitable[Retrieval]]) -> Check:
        self.retrieve = retrieve
        free = await self._ask(self.questions[0], _FREE)
        if self._add_call_findings(free) and self._add_passages_finding(free):
            has_text = self._add_field_findings(free.rankings[0])
            await self._add_order_findings(free, has_text=has_text)
            await self._add_model_and_rerank_findings(free)
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        question, keywords = type(self.question).__name__, ""
        if isinstance(self.question, str):
            question = self.question
            keywords = self.middleware.preprocess(question)
        return Check(
            name.rpartition(">.")[2],
            question,
            keywords,
            tuple(self.findings),
        )

    async def _ask(self, question: Any, settings: Mapping[str, Any]) -> Any:
        """Return the `Retrieval` for *question* with *settings*, or the function's exception."""
        self.recorder.latest.clear()
        args, kwargs = self.args, {**self.kwargs, "qtm_config": settings}
        if self.query_name in kwargs:
            kwargs[self.query_name] = question
        elif args:
            args = (question, *args[1:])
        try:
            return await self.retrieve(*args, **kwargs)
        except Exception as error:
            return error

    def _add(self, state: CheckState, subject: str, text: str, fix: str = "") -> None:
        self.findings.append(Finding(subject, state, text, fix))

    # --- the call ---------------------------------------------------------------------------------

    def _add_call_findings(self, free: Any) -> bool:
        """Add findings on the arguments of the call. Return whether the function can be used."""
        operation = self.recorder.find("retrieval")
        embedding = self.recorder.find("embedding")
        problem = None
        if not isinstance(free, Exception):
            problem = _find_problem(free, "query")
        # A call that failed before its retrieval began says nothing about the question.
        if operation is not None:
            self.question = operation.content
            problem = problem or find_query_problem(self.question)
        if problem is not None and operation is not None:
            self._add_query_problem(problem)
            return False
        if isinstance(free, Exception):
            self._add_failed_call(free)
            return False
        where = f"`{self.argument}`"
        if self.clauses:
            kinds = list(dict.fromkeys(map(clauses.read_clause_type, self.clauses)))
            fields = clauses.list_searched_fields(self.clauses)
            where += f", in the {_quote(kinds, ' and ')} clause"
            where += f" over {_quote(fields)}" if fields else ""
        text = f"passed as text in {where}"
        if embedding is not None and embedding.result:
            text = f"embedded as {len(embedding.result[0])} numbers, passed in {where}"
        self._add(OK, "query", text)
        self._add_top_k_finding(None if operation is None else operation.top_k)
        return True

    def _add_top_k_finding(self, top_k: int | None) -> None:
        name = self.search.top_k_argument or self.search.wrap_options.get("top_k_arg")
        if top_k is not None:
            self._add(OK, "top_k", f"`{name or 'top_k'}`, {top_k} in this call")
        elif name:
            self._add(OFF, "top_k", f"`{name}` is not a number")
        else:
            text = "no parameter sets the number, so qtmiddleware cannot ask for more"
            fix = "if there is such a parameter, name it with top_k_arg="
            self._add(OFF, "top_k", text, fix)

    def _add_query_problem(self, problem: Degradation) -> None:
        text, _, fix = problem.detail.partition("; ")
        if problem.reason == "not_text":
            text, fix = f"`{self.argument}` must be text, not {problem.detail}", _NOT_TEXT
        elif problem.reason == "blank" and str(self.questions[0]).strip():
            text = f"the call has no question in `{self.argument}`"
            fix = f"pass the question as {self.argument}="
            if self.argument == clauses.SCORE_BY:
                text = "the call lacks the clause that holds the question"
                fix = 'pass one with a placeholder: score_by=[{"type": "embed", "query": "-"}]'
        elif problem.reason in ("blank", "too_long"):
            text = f"the question is {problem.reason.replace('_', ' ')}"
            fix = "ask another question"
        self._add(PROBLEM, "query", text, fix)

    def _add_failed_call(self, error: Exception) -> None:
        embedding = self.recorder.find("embedding")
        if embedding is not None and embedding.outcome != "ok":
            self._add(
                PROBLEM,
                "query",
                f"embed= raised {describe_error(error)}",
                "embed= must be a function from a text to its vector",
            )
            return
        text = f"the function raised {describe_error(error)}"
        fix = "call the function without qtmiddleware, with the same arguments"
        if missing := self._list_missing_arguments():
            text += f"; it needs {_quote(missing)} too"
            given = [f"{name}={'5' if find_top_k_name([name]) else '...'}" for name in missing]
            fix = f"call check(question, {', '.join(given)}), or on the command line add"
            fix += f" --arg {' --arg '.join(given)}"
        elif embedding is None:
            fix += f"; if it takes a vector, {_EMBED}"
        self._add(PROBLEM, "call", text, fix)

    def _list_missing_arguments(self) -> list[str]:
        try:
            signature = inspect.signature(self.function)
            positional = signature.bind_partial(*self.args).arguments
        except (TypeError, ValueError):  # some builtins have no signature
            return []
        given = {*positional, *self.kwargs, self.argument.partition(".")[0]}
        return [
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and name not in given
        ]

    # --- the passages -----------------------------------------------------------------------------

    def _add_passages_finding(self, free: Retrieval) -> bool:
        """Add a finding on the passages of *free*. Return whether there are any."""
        if not (free.rankings and free.rankings[0].keys):
            self._add_missing_passages(free)
            return False
        passages, fix = free.rankings[0].passages, ""
        search = self.recorder.find("search", "original")
        text = f"your function returned {len(passages)}"
        if search is not None and search.top_k:
            text += f" of {search.top_k}"
        for note in _list_notes(free, "keyword_evidence"):
            text += f"; {note}" if "candidates" in note else ""
        if "rejects" in text:
            fix = "set keywordEvidence.candidates to a number that the function accepts"
        codes = _find_missing_codes(free, passages)
        if codes and search is not None and search.top_k and len(passages) >= search.top_k:
            text += f"; none has {_quote(codes)} in its text or metadata"
            fix = f"raise keywordEvidence.candidates above {search.top_k} to look further down"
        self._add(OK, "passages", text, fix)
        return True

    def _add_missing_passages(self, free: Retrieval) -> None:
        text = "the function returned no passages"
        fix = "check the namespace, the filter and whether the index holds passages"
        if failed := _find_problem(free, "middleware"):
            text = f"reading the passages raised {failed.detail}"
            fix = responses.ADVICE
        elif failed := _find_problem(free, "response"):
            text = f"no passages were found in {failed.detail}"
            fix = responses.ADVICE
            try:
                responses.find_shape(free.response)
            except ResponseShapeError as error:
                text, _, fix = str(error).partition("; ")
        self._add(PROBLEM, "passages", text, fix)

    def _add_field_findings(self, ranking: Ranking) -> bool:
        """Add findings on texts, ids and scores. Return whether there are texts."""
        passages, scores, count = ranking.passages, ranking.scores, len(ranking.passages)
        with_text = list(filter(responses.has_text, passages))
        if with_text:
            name = with_text[0].text_field
            where = f"in `{name}`" if name else "which is the passage itself"
            self._add(OK, "text", f"{len(with_text)} of {count} have a text, {where}")
        else:
            text_field = self.settings.keyword_evidence.fields.get("text")
            text, fix = responses.describe_missing_text(passages, text_field)
            fields = clauses.list_searched_fields(self.clauses)
            if fields and clauses.read_clause_type(self.clauses[0]) not in clauses.VECTOR_CLAUSES:
                fix = f'add "{fields[0]}" to include_fields'
            self._add(PROBLEM, "text", text, fix)
        ids = sum(passage.id is not None for passage in passages)
        text, fix = f"{ids} of {count} have an id", ""
        if not ids:
            text += "; qtmiddleware tells passages apart by their texts"
            fix = _NAME_FIELD.format("id")
        self._add(OK, "ids", text, fix)
        if has_usable_scores([ranking]):
            direction = _DIRECTIONS[find_score_direction([ranking])]
            span = f"from {scores[0]:.4g} to {scores[-1]:.4g}"
            self._add(OK, "scores", f"{direction}, {span}")
        else:
            text = "not in order"
            if missing := scores.count(None):
                text = f"{missing} of {count} have no score"
            text += "; qtmiddleware uses the places in the list instead"
            self._add(OK, "scores", text, _NAME_FIELD.format("score"))
        return bool(with_text)

    # --- what changes -----------------------------------------------------------------------------

    async def _add_order_findings(self, free: Retrieval, *, has_text: bool) -> None:
        """Add findings on the questions for which the rules change the order, with examples."""
        settings = self.settings
        if not (settings.uses_keywords and settings.fusion.row.merges):
            self._add(OFF, "order", "the settings turn the rules off", _TURN_ON)
        elif len(free.rankings[0].keys) < 2:
            fix = "let the function return more, or name the parameter with top_k_arg="
            self._add(
                PROBLEM,
                "order",
                "a single passage cannot be reordered",
                fix,
            )
        elif has_text:
            results = {self.question: free}
            for question in self.questions[1:]:
                result = await self._ask(question, _FREE)
                if not isinstance(result, Exception) and result.rankings:
                    results[question] = result
            self._compare_orders(results)

    def _compare_orders(self, results: Mapping[str, Retrieval]) -> None:
        """Add findings on the results of the rules by question. The function's order is in them."""
        changed = {
            question: result
            for question, result in results.items()
            if _is_order_changed(result.rankings[0].keys, result)
        }
        led = [
            (question, result.matches[0], result.rankings[0].passages[0])
            for question, result in changed.items()
            if result.matches[0].key != result.rankings[0].keys[0]
        ]
        failed = len(self.questions) - len(results)
        if len(self.questions) > 1:
            total = format_count(len(results), "question")
            text = f"changes for {len(changed)} of {total}"
            if changed:
                text += f"; another passage is first for {len(led)}"
            if failed:
                text += f"; {failed} more failed"
            asked = len(self.questions)
            if self.given > asked:
                text += f"; only the first {asked} of {self.given} were asked"
        else:
            verb = "changes" if changed else "does not change"
            text = f"{verb} for this question"
            if reasons := _list_notes(results[self.question], "keyword_evidence"):
                text += f" ({reasons[-1].removeprefix('order kept: ')})"
        is_useless = not changed and len(results) >= FEWEST_ASKED
        fix = _ASK_MODEL if is_useless else _MEASURE if changed else _ASK_MORE
        self._add(PROBLEM if is_useless else OK, "order", text, fix)
        for question, now, was in led[:_MOST_EXAMPLES]:
            text = f"{_quote_passage(now)} comes before {_quote_passage(was)}"
            if len(results) > 1:
                text = f"{shorten_text(question, 80)} {text}"
            self._add(OK, "example", text)

    async def _add_model_and_rerank_findings(self, free: Retrieval) -> None:
        settings, limits = self.settings, self.settings.limits
        asks = settings.transformation_type != "none" and settings.escalation.mode != "never"
        reranks = settings.rerank.enabled and settings.fusion.row.merges
        if not asks:
            fix = 'if the rules are not enough, use the preset "balanced", with a model'
            self._add(OFF, "model", "the settings ask no model", fix)
        elif not self.middleware.engine.has_model:
            fix = "pass client=, or set OPENAI_API_KEY or QTM_LLM_BASE_URL"
            self._add(PROBLEM, "model", "not configured", fix)
            asks = False
        best: Any = free
        if asks or reranks:
            patience = max(limits.llm_timeout_ms, _PATIENCE_MS)
            waits = {
                "llmTimeoutMs": patience,
                "deadlineMs": max(limits.deadline_ms, patience),
            }
            settings_of_call: dict[str, Any] = {
                "limits": waits,
                "escalation": {"mode": "always"},
            }
            if not asks:
                settings_of_call["transformationType"] = "none"
            # The time of the imports is not the model's.
            self.middleware.engine.load()
            best = await self._ask(self.questions[0], settings_of_call)
        if isinstance(best, Exception):
            self._add_failed_call(best)
            return
        if asks:
            self._add_model_finding(best)
        if reranks:
            self._add_rerank_finding(best)
        for problem in best.degradations:
            stage = problem.stage.partition(".")[0]
            if problem.reason != PAGED and stage not in _REPORTED:
                text = f"{problem.stage} failed: {_describe(problem)}"
                self._add(PROBLEM, "problem", text)

    def _add_rerank_finding(self, best: Retrieval) -> None:
        state = OK if best.reranked else PROBLEM
        text = f"reranks {len(best.reranked)} candidates"
        if failed := _find_problem(best, "rerank"):
            state = PROBLEM
            text = f"failed: {_describe(failed)}"
        self._add(state, "rerank", text)

    def _add_model_finding(self, best: Retrieval) -> None:
        trace = best.trace
        name = self.middleware.engine.model.name
        failed = _find_problem(best, "transform")
        written = [row.label for row in TEXT_FIELDS.values() if best.transformation.texts(row.name)]
        if failed and not written:
            text = f"{name} gave no usable reply: {_describe(failed)}"
            self._add(PROBLEM, "model", text, MODEL_FIXES.get(failed.reason, ""))
            return
        if not trace.llm_calls:
            # Some questions are searched without the model, whatever the settings.
            reason = trace.decision.reason.replace("_", " ") if trace.decision else ""
            text = f"{name} is not called for this kind of question ({reason})"
            self._add(OFF, "model", text, "check with another question")
            return
        times = [stage.ms for stage in trace.stages if stage.name.startswith("transform")]
        ms = max(times, default=0.0)
        text = f"{name} replied in {ms:,.0f} ms"
        granted = round(1e3 * self.settings.limits.model_seconds)
        # The check's own middleware has seen too few replies.
        relevance = self.checked.engine.model.relevance
        if relevance.is_low:
            text += f"; its latest replies keep {relevance.mean:.0%} of their questions'"
            text += " words, so its texts are not used"
            self._add(PROBLEM, "model", text, MODEL_FIXES["off_topic"])
        elif ms > granted:
            text += f"; the limit is {granted} ms"
            fix = "raise limits.llmTimeoutMs and limits.deadlineMs, or choose a faster model"
            self._add(PROBLEM, "model", text, fix)
        else:
            searches = format_count(len(best.variants) - 1, "more search", "more searches")
            text += f"; it wrote {', '.join(written) or 'nothing to search'}; {searches}"
            self._add(OK, "model", text)


def _list_questions(value: Any) -> list[Any]:
    is_list = isinstance(value, list | tuple) and len(value) > 1
    if is_list and all(isinstance(text, str) for text in value):
        return list(dict.fromkeys(value))
    return [value]


def _find_missing_codes(free: Retrieval, passages: Sequence[Passage]) -> list[str]:
    """Return the codes and numbers of the question that no passage holds."""
    codes = list(filter(is_code, split_terms(free.keywords)))
    held: set[str] = set()
    for passage in passages:
        values = map(str, passage.metadata.values())
        text = "\n".join((passage.title, passage.text or "", *values))
        held.update(find_matching_words(" ".join(codes), text))
    return [code for code in codes if code not in held]


def _find_problem(retrieval: Retrieval, stage: str) -> Degradation | None:
    for problem in retrieval.degradations:
        if problem.stage.partition(".")[0] == stage and problem.reason != PAGED:
            return problem
    return None


def _list_notes(retrieval: Retrieval, subject: str) -> list[str]:
    return [detail for name, detail in retrieval.trace.notes if name == subject]


def _is_order_changed(keys: Sequence[Any], after: Retrieval) -> bool:
    """Return whether the passages of *after* differ from *keys* before one of the two ends."""
    return any(key != match.key for key, match in zip(keys, after.matches, strict=False))


def _describe(degradation: Degradation) -> str:
    if degradation.detail:
        return f"{degradation.reason} ({degradation.detail})"
    return degradation.reason


def _quote(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def _quote_passage(passage: Match | Passage) -> str:
    text = shorten_text((passage.text or "")[:320], 60)
    return f'{passage.id}: "{text}"' if passage.id else f'"{text}"'


def _format_row(label: str, text: str) -> str:
    lines = textwrap.wrap(text, 70, break_long_words=False, break_on_hyphens=False)
    return f"{label:<10}" + f"\n{'':<10}".join(lines)
