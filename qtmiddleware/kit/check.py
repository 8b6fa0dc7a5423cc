"""Report how qtmiddleware reads a function's calls and results, and what it changes.

A check makes ordinary calls through a middleware of its own. It compares their results with those
of the function alone, and leaves no trace in the caller's middleware.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.errors import ResponseShapeError, remove_credentials
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.retrieval import responses
from qtmiddleware.retrieval.call import PAGED, find_query_problem
from qtmiddleware.retrieval.fusion import find_score_direction, has_usable_scores
from qtmiddleware.retrieval.metadata_evidence import find_distinguishing_fields
from qtmiddleware.types import Degradation, Match, Operation, Passage, Ranking, Retrieval
from qtmiddleware.wrapping import clauses
from qtmiddleware.wrapping.binding import find_top_k_name, has_parameter

MOST_ASKED: Final = 10
"""The largest number of questions to ask. A longer list is sampled at even intervals."""
FEWEST_ASKED: Final = 3
"""The rules are advised against if they change the order for none of so many questions."""

_MOST_EXAMPLES: Final = 2
# A check waits at least this long for the model, so that a slow one is timed and not given up.
_PATIENCE_MS: Final = 20_000
_MOST_QUOTED: Final = 300
_ID_NAME: Final = re.compile(r"(?:id|key|ref|ur[il])$", re.IGNORECASE)

# The settings of a call without any change, and of a call with the rules alone.
_FREE: Final[Mapping[str, Any]] = {"transformationType": "none", "rerank": {"enabled": False}}
_PLAIN: Final = {**_FREE, "preprocess": {"enabled": False}, "keywordEvidence": {"enabled": False}}

_MEASURE: Final = (
    "measure whether that is better: qtm.evaluation.compare(fn, queries, qrels), or qtm bench"
    " --function app:search --data questions.csv"
)
_ASK_MORE: Final = "check 3 to 10 questions: check([...]), or qtm check --ask-file FILE"
_ASK_MODEL: Final = (
    'try the preset "words" or "balanced", which ask a model, or set keywordEvidence: false'
)
_NOT_TEXT: Final = (
    "pass the question's text; if the function takes a vector, wrap it with embed= (a function"
    " from a text to its vector); if the text is a field of the argument, name it with query_arg="
)
_MODEL_FIXES: Final = {
    "unauthorized": "set OPENAI_API_KEY to a valid key, or pass client=",
    "timeout": "choose a faster transformationModel, or check the network to the service",
    "unavailable": "start the service, or correct its address (llm.baseUrl or QTM_LLM_BASE_URL)",
    "over_budget": "raise budget.*",
}


class CheckState(StrEnum):
    """Whether a checked part works, has a problem, or is not used."""

    OK = "ok"
    PROBLEM = "problem"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check.

    Attributes:
        subject: the checked part, such as ``query`` or ``model``.
        state: whether the part works, has a problem, or is not used.
        text: a sentence for people. It may quote texts, and exceptions that the function raised.
        mend: what to do; ``""`` if there is nothing to do.
        values: data for programs: names, numbers and ids.
    """

    subject: str
    state: CheckState
    text: str = field(repr=False)
    mend: str = field(default="", repr=False)
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)


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
        return CheckState.OK in {states.get(name) for name in ("order", "model", "rerank")}

    def to_dict(self) -> dict[str, Any]:
        """Return the check's result, including ``helps``, as nested dicts ready for JSON."""
        return {"helps": self.helps, **asdict(self)}

    def __str__(self) -> str:
        texts = {"question": self.question, "keywords": self.keywords}
        rows = [_format_row("function", f"{self.function}()")]
        rows += [_format_row(name, shorten_text(text) or "(none)") for name, text in texts.items()]
        rows.append("")
        for finding in self.findings:
            mark = {CheckState.PROBLEM: "! ", CheckState.OFF: "off: "}.get(finding.state, "")
            rows.append(_format_row(finding.subject, mark + finding.text))
            if finding.mend:
                rows.append(_format_row("", f"-> {finding.mend}"))
        return "\n".join(rows)


def check(search: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Check:
    """Check the wrapped function *search* with the arguments of a call, as `Wrapped.check` says."""
    run = _CheckRun(search, args, kwargs)

    async def retrieve(*args: Any, **kwargs: Any) -> Retrieval:
        return run.search.retrieve(*args, **kwargs)  # type: ignore[no-any-return]

    with run.middleware:
        # Nothing that this coroutine awaits suspends, so it ends within one step.
        coroutine = run.perform(retrieve)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            coroutine.close()
    raise AssertionError("a check without an event loop was suspended")


async def acheck(search: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Check:
    """Check *search* as `check` does, without blocking the running event loop."""
    run = _CheckRun(search, args, kwargs)
    async with run.middleware:
        return await run.perform(run.search.aretrieve)


def configure_function(function: Any, *layers: Mapping[str, Any] | str, **options: Any) -> Any:
    """Return a copy of the wrapped *function* with the settings in *layers*; the last one wins.

    The copy has a middleware of its own, made by `QueryMiddleware.with_config` with *options*. It
    does not inherit what *function* learned from earlier calls, and no hook hears of its calls.
    """
    middleware = function.middleware.with_config(*layers, **options)
    return middleware.wrap(function.__wrapped__, **{**function.wrap_options, "on_retrieval": None})


class _Recorder:
    """An observer that keeps the operations of the latest call, in the order of their ends."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def on_start(self, operation: Operation) -> None:
        """Do nothing: an operation's numbers are known at its end."""

    def on_end(self, operation: Operation) -> None:
        self.operations.append(operation)

    def find(self, kind: str, name: str = "") -> Operation | None:
        """Return the latest operation of *kind* called *name*, or ``None``."""
        found = [it for it in self.operations if (it.kind, it.name) == (kind, name)]
        return found[-1] if found else None


class _CheckRun:
    """Performs one check. The methods are in the order in which they run."""

    def __init__(self, search: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = search.__wrapped__
        layers = [kwargs.pop("qtm_config", None)]
        if not has_parameter(self.function, "config"):
            layers.insert(0, kwargs.pop("config", None))
        # Several calls read the history, and an iterator can be read only once.
        if isinstance(history := kwargs.get("history"), Iterator):
            kwargs["history"] = list(history)
        traceless = {"cache": {"enabled": False}, "log": {"path": None}, "shadow": None}
        self.recorder = _Recorder()
        self.search = configure_function(
            search, *filter(None, layers), traceless, observers=[self.recorder], is_quiet=True
        )
        self.middleware = self.search.middleware
        self.settings = self.middleware.settings
        self.args, self.kwargs = args, kwargs
        self.questions, self.ask_with = _split_questions(search.query_argument, args, kwargs)
        given = {**getattr(self.function, "keywords", {}), **kwargs}.get(clauses.SCORE_BY)
        self.clauses: Sequence[Any] = given if isinstance(given, list | tuple) else ()
        self.argument = clauses.SCORE_BY if self.clauses else search.query_argument
        self.question: Any = ""
        self.has_text = False
        self.findings: list[Finding] = []
        self.retrieve: Callable[..., Awaitable[Retrieval]]

    async def perform(self, retrieve: Callable[..., Awaitable[Retrieval]]) -> Check:
        """Make the calls with *retrieve*, and return the report."""
        self.retrieve = retrieve
        plain = await self._ask(self.questions[0], _PLAIN)
        if self._add_call_findings(plain):
            free = await self._ask(self.questions[0], _FREE)
            if self._add_passage_findings(free):
                await self._add_order_findings(plain, free)
                await self._add_model_and_rerank_findings(free)
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        question, is_text = self.question, isinstance(self.question, str)
        return Check(
            name.rpartition("<locals>.")[2],
            question if is_text else type(question).__name__,
            self.middleware.preprocess(question) if is_text else "",
            tuple(self.findings),
        )

    async def _ask(self, question: Any, settings: Mapping[str, Any]) -> Any:
        """Return the `Retrieval` for *question* with *settings*, or the function's exception."""
        self.recorder.operations.clear()
        args, kwargs = self.ask_with(question)
        try:
            return await self.retrieve(*args, **kwargs, qtm_config=settings)
        except Exception as error:
            return error

    def _add(
        self, state: CheckState, subject: str, text: str, mend: str = "", **values: Any
    ) -> None:
        self.findings.append(Finding(subject, state, text, mend, values))

    # --- the call ---------------------------------------------------------------------------------

    def _add_call_findings(self, plain: Any) -> bool:
        """Add findings on the arguments of the call. Return whether the function can be used."""
        operation, embedding = self.recorder.find("retrieval"), self.recorder.find("embedding")
        self.question, top_k = (operation.content, operation.top_k) if operation else ("", None)
        failed = isinstance(plain, Exception)
        # A call that failed before its retrieval began says nothing about the question.
        problem = None if failed else _find_problem(plain, "query")
        if operation is not None and (problem := problem or find_query_problem(self.question)):
            self._add_query_problem(problem)
            return False
        if failed:
            return self._add_failed_call(plain)
        where, values = f"`{self.argument}`", {"argument": self.argument}
        if self.clauses:
            kinds = list(dict.fromkeys(map(clauses.read_clause_type, self.clauses)))
            values |= {"clauses": kinds, "fields": clauses.list_searched_fields(self.clauses)}
            where += f", in the {_quote(kinds, ' and ')} clause"
            where += f" over {_quote(values['fields'])}" if values["fields"] else ""
        text = f"passed as text in {where}"
        if embedding is not None and embedding.result:
            values["dimension"] = size = len(embedding.result[0])
            text = f"embedded as {size} numbers, passed in {where}"
        self._add(CheckState.OK, "query", text, **values)
        name, mend = self.search.top_k_argument or self.search.wrap_options.get("top_k_arg"), ""
        state, text = CheckState.OK, f"`{name or 'top_k'}`, {top_k} in this call"
        if top_k is None:
            state, text = CheckState.OFF, f"`{name}` is not a number"
            if not name:
                text = "no parameter sets the number, so qtmiddleware cannot ask for more"
                mend = "if there is such a parameter, name it with top_k_arg="
        self._add(state, "top_k", text, mend, argument=name, value=top_k)
        for note in _list_notes(plain, "query"):
            warnings = [it.detail for it in plain.degradations if it.reason == PAGED]
            mend, argument = "".join(warnings).partition("; ")[2], note.split("`")[1]
            self._add(CheckState.OK, "pages", note, mend, argument=argument, named=not mend)
        return True

    def _add_query_problem(self, problem: Degradation) -> None:
        text, _, mend = problem.detail.partition("; ")
        if problem.reason == "not_text":
            text, mend = f"`{self.argument}` must be text, not {problem.detail}", _NOT_TEXT
        elif problem.reason in ("blank", "too_long"):
            text = f"the question is {problem.reason.replace('_', ' ')}"
            mend = "ask another question"
        values = {"argument": self.argument, "reason": problem.reason}
        self._add(CheckState.PROBLEM, "query", text, mend, **values)

    def _add_failed_call(self, error: Exception) -> bool:
        """Add a finding on *error*, which the function or embed= raised. Return ``False``."""
        embedding, missing = self.recorder.find("embedding"), self._list_missing_arguments()
        subject, text = "call", f"the function raised {_describe_error(error)}"
        mend = "call the function without qtmiddleware, with the same arguments"
        if embedding is not None and embedding.outcome != "ok":
            subject, text = "query", f"embed= raised {_describe_error(error)}"
            mend = "embed= must be a function from a text to its vector"
        elif missing:
            given = [f"{name}={'5' if find_top_k_name([name]) else '...'}" for name in missing]
            text += f"; it needs {_quote(missing)} too"
            mend = f"call check(question, {', '.join(given)}), or on the command line add"
            mend += f" --arg {' --arg '.join(given)}"
        elif embedding is None:
            mend += "; if it takes a vector, wrap it with embed= (a function from a text to its"
            mend += " vector)"
        self._add(CheckState.PROBLEM, subject, text, mend, missing=missing)
        return False

    def _list_missing_arguments(self) -> list[str]:
        """Return the names of the required arguments that the caller did not pass."""
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # some builtins have no signature
            return []
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = {name: it for name, it in parameters.items() if it.kind not in variadic}
        by_position = [name for name, it in named.items() if it.kind is not it.KEYWORD_ONLY]
        given = {*by_position[: len(self.args)], *self.kwargs, self.argument.partition(".")[0]}
        return [name for name, it in named.items() if it.default is it.empty and name not in given]

    # --- the passages -----------------------------------------------------------------------------

    def _add_passage_findings(self, free: Any) -> bool:
        """Add findings on the passages of *free*. Return whether there are any."""
        if isinstance(free, Exception):
            return self._add_failed_call(free)
        options = self.settings.keyword_evidence
        if failed := _find_problem(free, "middleware"):
            text, mend = f"reading the passages raised {failed.detail}", responses.ADVICE
        elif failed := _find_problem(free, "response"):
            text, mend = f"no passages were found in {failed.detail}", responses.ADVICE
            try:
                responses.find_shape(free.response, options)
            except ResponseShapeError as error:
                text, _, mend = str(error).partition("; ")
        elif not free.rankings or not free.rankings[0].keys:
            text = "the function returned no passages"
            mend = "check the namespace, the filter and whether the index holds passages"
        else:
            self._describe_ranking(free, free.rankings[0])
            return True
        self._add(CheckState.PROBLEM, "passages", text, mend)
        return False

    def _describe_ranking(self, free: Retrieval, ranking: Ranking) -> None:
        passages, count = ranking.passages, len(ranking.passages)
        search = self.recorder.find("search", "original")
        asked = None if search is None else search.top_k
        notes = [it for it in _list_notes(free, "keyword_evidence") if "candidates" in it]
        returned = f"your function returned {f'{count} of {asked}' if asked else count}"
        text, mend = "; ".join([returned, *notes]), ""
        if "rejects" in text:
            mend = "set keywordEvidence.candidates to a number that the function accepts"
        self._add(CheckState.OK, "passages", text, mend, returned=count, asked=asked)
        self._add_text_finding(passages)
        ids = sum(passage.id is not None for passage in passages)
        text, mend = f"{ids} of {count} have an id", ""
        if not ids:
            text += "; qtmiddleware tells passages apart by their texts"
            mend = _advise_field("id", passages)
        self._add(CheckState.OK, "ids", text, mend, passages=ids)
        if fields := list(find_distinguishing_fields([it.metadata for it in passages])):
            text = f"fields that tell passages apart: {_quote(fields)}"
            self._add(CheckState.OK, "metadata", text, fields=fields)
        scores, mend, missing = ranking.scores, "", ranking.scores.count(None)
        directions = {1: "lower is better", -1: "higher is better", 0: "all are equal"}
        direction = directions[find_score_direction([ranking])]
        if has_usable_scores([ranking]):
            text = f"{direction}, from {scores[0]:.4g} to {scores[-1]:.4g}"
        else:
            text = f"{missing} of {count} have no score" if missing else "not in order"
            text += "; qtmiddleware uses the places in the list instead"
            mend = _advise_field("score", passages)
        values = {"direction": direction.replace(" ", "_"), "missing": missing}
        self._add(CheckState.OK, "scores", text, mend, **values)

    def _add_text_finding(self, passages: Sequence[Passage]) -> None:
        if with_text := list(filter(responses.has_text, passages)):
            self.has_text = True
            name = with_text[0].text_field
            where = f"in `{name}`" if name else "which is the passage itself"
            text = f"{len(with_text)} of {len(passages)} have a text, {where}"
            self._add(CheckState.OK, "text", text, field=name, passages=len(with_text))
            return
        text_field = self.settings.keyword_evidence.fields.get("text")
        text, mend = responses.describe_missing_text(passages, text_field)
        fields = clauses.list_searched_fields(self.clauses)
        if fields and clauses.read_clause_type(self.clauses[0]) not in clauses.VECTORS:
            mend = f'add "{fields[0]}" to include_fields, or set keywordEvidence.fields.text to it:'
            mend += " then it is requested and not returned"
        self._add(CheckState.PROBLEM, "text", text, mend, field=None, passages=0)

    # --- what changes -----------------------------------------------------------------------------

    async def _add_order_findings(self, plain: Retrieval, free: Retrieval) -> None:
        """Add findings on the questions for which the rules change the order, with examples."""
        settings = self.settings
        is_on = settings.keyword_evidence.enabled and settings.preprocess.apply_to == "keywords"
        if not (is_on and settings.fusion.row.merges):
            mend = 'set keywordEvidence: true, preprocess.applyTo: "keywords" and a fusion.method'
            mend += ' that merges, such as "anchored"'
            self._add(CheckState.OFF, "order", "the settings turn the rules off", mend)
        elif len(free.rankings[0].keys) < 2:
            mend = "let the function return more, or name the parameter with top_k_arg="
            self._add(CheckState.PROBLEM, "order", "a single passage cannot be reordered", mend)
        elif self.has_text:
            pairs = [(self.question, plain, free)]
            for question in self.questions[1:]:
                pair = [await self._ask(question, changes) for changes in (_PLAIN, _FREE)]
                if not any(isinstance(it, Exception) or _find_problem(it, "query") for it in pair):
                    pairs.append((question, *pair))
            self._compare_orders(pairs)

    def _compare_orders(self, pairs: Sequence[tuple[str, Retrieval, Retrieval]]) -> None:
        """Add findings on *pairs*: a question, its result without the rules, and with them."""
        changed = [pair for pair in pairs if _is_order_changed(*pair[1:])]
        led = [pair for pair in changed if pair[1].matches[0].key != pair[2].matches[0].key]
        failed = len(self.questions) - len(pairs)
        if len(self.questions) > 1:
            text = f"changes for {len(changed)} of {format_count(len(pairs), 'question')}"
            text += f"; another passage is first for {len(led)}" if changed else ""
            text += f"; {failed} more failed" if failed else ""
        else:
            text = "changes for this question" if changed else "does not change for this question"
            if reasons := _list_notes(pairs[0][2], "keyword_evidence"):
                text += f" ({reasons[-1].removeprefix('order kept: ')})"
        is_useless = not changed and len(pairs) >= FEWEST_ASKED
        mend = _ASK_MODEL if is_useless else _MEASURE if changed else _ASK_MORE
        values = {"asked": len(self.questions), "failed": failed, "other_first": len(led)}
        questions = [question for question, *_ in changed]
        state = CheckState.PROBLEM if is_useless else CheckState.OK
        self._add(state, "order", text, mend, **values, changed=len(changed), questions=questions)
        for question, before, after in led[:_MOST_EXAMPLES]:
            was, now = before.matches[0], after.matches[0]
            text = f"{_quote_match(now)} comes before {_quote_match(was)}"
            text = f"{shorten_text(question, 80)} {text}" if len(pairs) > 1 else text
            self._add(CheckState.OK, "example", text, first=now.id, was_first=was.id)

    async def _add_model_and_rerank_findings(self, free: Retrieval) -> None:
        """Retrieve with the model and the reranker if the settings use them, and add findings."""
        settings, limits = self.settings, self.settings.limits
        has_model = self.middleware.has_model
        asks = settings.transformation_type != "none" and settings.escalation.mode != "never"
        reranks = settings.rerank.enabled and settings.fusion.row.merges
        if not asks:
            mend = 'set transformationType: "combined" and escalation: "always", with a model'
            text = "the settings ask no model"
            self._add(CheckState.OFF, "model", text, mend, configured=has_model)
        elif not has_model:
            asks, mend = False, "pass client=, or set OPENAI_API_KEY or QTM_LLM_BASE_URL"
            self._add(CheckState.PROBLEM, "model", "not configured", mend, configured=False)
        best: Any = free
        if asks or reranks:
            patience = max(limits.llm_timeout_ms, _PATIENCE_MS)
            waits = {"llmTimeoutMs": patience, "deadlineMs": max(limits.deadline_ms, patience)}
            mode = {"escalation": {"mode": "always"}} if asks else {"transformationType": "none"}
            best = await self._ask(self.questions[0], {"limits": waits, **mode})
        if isinstance(best, Exception):
            self._add_failed_call(best)
            return
        if asks:
            self._add_model_finding(best, free)
        if reranks:
            failed = _find_problem(best, "rerank")
            state = CheckState.PROBLEM if failed or not best.reranked else CheckState.OK
            text = f"reranks {len(best.reranked)} candidates{_describe_change(free, best)}"
            text = f"failed: {_describe(failed)}" if failed else text
            self._add(state, "rerank", text, judged=len(best.reranked))
        for problem in best.degradations:
            stage = problem.stage.partition(".")[0]
            if problem.reason != PAGED and stage not in ("transform", "rerank"):
                text = f"{problem.stage} failed: {_describe(problem)}"
                mend = "name fields that the index declares with full_text_search"
                mend = mend if problem.stage == "search.text_clause" else ""
                self._add(CheckState.PROBLEM, "problem", text, mend, stage=problem.stage)

    def _add_model_finding(self, best: Retrieval, free: Retrieval) -> None:
        trace, name = best.trace, self.middleware.model.name
        failed, kinds = _find_problem(best, "transform"), [it.kind for it in best.variants[1:]]
        written = [it.label for it in TEXT_FIELDS.values() if best.transformation.texts(it.name)]
        ms = max((it.ms for it in trace.stages if it.name.startswith("transform")), default=0.0)
        tokens = trace.input_tokens + trace.output_tokens
        granted = round(1e3 * self.settings.limits.model_seconds)
        state, mend = CheckState.OK, ""
        text = f"{name} replied in {ms:,.0f} ms" + (f", {tokens} tokens" if tokens else "")
        if failed and not written:
            state, mend = CheckState.PROBLEM, _MODEL_FIXES.get(failed.reason, "")
            text = f"{name} gave no usable reply: {_describe(failed)}"
        elif not trace.llm_calls:
            # Some questions are searched without the model, whatever the settings.
            reason = trace.decision.reason.replace("_", " ") if trace.decision else ""
            state, mend = CheckState.OFF, "check with another question"
            text = f"{name} is not called for this kind of question ({reason})"
        elif ms > granted:
            state, text = CheckState.PROBLEM, f"{text}; the limit is {granted} ms"
            mend = "raise limits.llmTimeoutMs and limits.deadlineMs, or choose a faster model"
        else:
            text += f"; it wrote {', '.join(written) or 'nothing to search'}; "
            text += format_count(len(kinds), "more search", "more searches")
            text += _describe_change(free, best)
        values = {"name": name, "configured": True, "calls": trace.llm_calls, "tokens": tokens}
        values |= {"ms": round(ms, 3), "cost_usd": trace.cost_usd, "kinds": kinds}
        values["reason"] = failed.reason if failed else ""
        self._add(state, "model", text, mend, **values)


def _split_questions(
    query_argument: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Return the questions of a call, and a function that returns the arguments for a question.

    A list with a single text is no list of questions, because some functions take such a list.
    """
    name = query_argument.partition(".")[0]
    value: Any = kwargs.get(name, args[0] if args else None)
    questions = [value]
    is_list = isinstance(value, list | tuple) and len(value) > 1
    if is_list and all(isinstance(text, str) for text in value):
        count = min(len(value), MOST_ASKED)
        questions = [value[index * len(value) // count] for index in range(count)]

    def build_arguments(question: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if name in kwargs:
            return args, {**kwargs, name: question}
        return (question, *args[1:]) if args else (), kwargs

    return questions, build_arguments


def _find_problem(retrieval: Retrieval, stage: str) -> Degradation | None:
    found = [it for it in retrieval.degradations if it.stage.partition(".")[0] == stage]
    return next((it for it in found if it.reason != PAGED), None)


def _list_notes(retrieval: Retrieval, subject: str) -> list[str]:
    return [detail for name, detail in retrieval.trace.notes if name == subject]


def _is_order_changed(before: Retrieval, after: Retrieval) -> bool:
    """Return whether the passages of *before* do not come first, in the same order, in *after*."""
    keys = [match.key for match in before.matches]
    return [match.key for match in after.matches[: len(keys)]] != keys


def _describe_change(before: Retrieval, after: Retrieval) -> str:
    changes = "changes" if _is_order_changed(before, after) else "does not change"
    return f"; the order {changes} further"


def _advise_field(name: str, passages: Sequence[Passage]) -> str:
    """Return the advice to name the field of the *passages*' ids or scores in the settings.

    *name* is ``id`` or ``score``. Returns ``""`` if the passages have no fields.
    """
    rows = [responses.flatten_fields(passage.item, passage.metadata) for passage in passages]
    for field_name in rows[0]:
        column = [row.get(field_name) for row in rows]
        ids = {str(value) for value in column if responses.is_id(value)} - {""}
        are_ids = _ID_NAME.search(field_name) and len(ids) == len(column)
        are_scores = None not in column and responses.can_be_scores(column)
        if are_scores if name == "score" else are_ids:
            return f'set config={{"keywordEvidence": {{"fields": {{"{name}": "{field_name}"}}}}}}'
    advice = f"if a field holds them, name the field in keywordEvidence.fields.{name}"
    return advice if any(rows) else ""


def _describe(degradation: Degradation) -> str:
    return degradation.reason + (f" ({degradation.detail})" if degradation.detail else "")


def _describe_error(error: Exception) -> str:
    """Return the type of *error* and the beginning of its message, without credentials."""
    words = " ".join(remove_credentials(str(error)).split())[:_MOST_QUOTED]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _quote(names: Sequence[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def _quote_match(match: Match) -> str:
    text = shorten_text((match.text or "")[:320], 60)
    return f'{match.id}: "{text}"' if match.id else f'"{text}"'


def _format_row(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        80,
        initial_indent=f"{label:<10}",
        subsequent_indent=" " * 10,
        break_long_words=False,
        break_on_hyphens=False,
    )
