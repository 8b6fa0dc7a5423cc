"""Check whether qtmiddleware can improve a wrapped function, and show what it changes.

The check calls the function a few times with the middleware's changes and a few times without. The
middleware learns nothing from these calls, writes no query log and notifies no observer.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from statistics import median
from time import perf_counter
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config.settings import LimitSettings
from qtmiddleware.errors import InvalidQuery, ResponseShapeError, remove_credentials
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.retrieval.fusion import find_score_direction, has_usable_scores
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.metadata_evidence import find_distinguishing_fields
from qtmiddleware.retrieval.pipeline import build_retrieval_flow
from qtmiddleware.retrieval.request import Request, find_query_problem, prepare_query
from qtmiddleware.retrieval.responses import (
    ADVICE,
    SearchResult,
    describe_missing_text_and_fix,
    find_text_field,
    get_raw_item,
    get_read_units,
    has_text,
    list_fields,
    read_all_metadata,
    read_id,
    read_metadata,
    read_response,
    suggest_id_field,
    suggest_score_field,
)
from qtmiddleware.retrieval.result import read_matches
from qtmiddleware.retrieval.searching import compute_max_searches
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.runtime.observing import NOT_OBSERVED
from qtmiddleware.runtime.steps import Embed, Flow, Leaf, Outcome, Search
from qtmiddleware.types import Degradation, Key, Ranking, Retrieval, Variant
from qtmiddleware.wrapping.call_context import IssuedWarnings
from qtmiddleware.wrapping.clauses import VECTORS, can_add_text_clause, read_clause_type
from qtmiddleware.wrapping.clauses import list_searched_fields as list_clause_fields
from qtmiddleware.wrapping.invocation import Invocation
from qtmiddleware.wrapping.order_sample import (
    FEWEST_ASKED,
    MOST_ASKED,
    Advice,
    Matches,
    OrderSample,
    SamplePassage,
    SampleQuestion,
    choose_sample_questions,
    compare_orders,
)

ROUNDS: Final = 3
"""How many times to time each of two calls: the caller's call, and a call for more passages.

An untimed call comes first, to warm up.
"""
LONGEST: Final = 5.0
"""The check stops timing calls after this total call time, in seconds."""
# A check waits at least this long for a model and a reranker, so that a slow one is measured and
# not abandoned.
_PATIENCE_MS: Final = 20_000
_MOST_QUOTED: Final = 300
_LABEL: Final = 18
_WIDTH: Final = 80

_KEYWORDS, _VARIANTS, _RERANK = "keyword evidence", "model's variants", "rerank"
_MEASURE: Final = (
    "measure: qtm.evaluation.compare(fn, queries, qrels), or qtm bench --function app:search --data"
    " questions.csv"
)
_ASK_MORE: Final = (
    f"check {FEWEST_ASKED} to {MOST_ASKED} questions: check([...]), or qtm check --ask-file FILE"
)
_SENTENCE_BY_ADVICE: Final = {
    Advice.KEEP: "helps",
    Advice.MEASURE: "may help or harm, so measure it",
    Advice.LEAVE_OFF: "leave it off",
    Advice.UNSEEN: "had no effect here",
}
# With these reasons, the model replied, but the reply could not be used.
_REPLIED_REASONS: Final = frozenset(
    {"dropped", "language_mismatch", "empty", "refused", "unparsable", "truncated"}
)
_CLAUSE_FIXES: Final = {
    "lucene": (
        "use a text clause for questions; qtmiddleware leaves query strings with Lucene syntax"
        " unchanged"
    ),
    "several_questions": "pass the same text in every clause, or make one search per question",
}
_FIXES_BY_REASON: Final = {
    "unauthorized": "set OPENAI_API_KEY to a valid key, or pass client=",
    "timeout": (
        "choose a faster transformationModel, or check that this machine can reach the service"
    ),
    "unavailable": (
        "check that the service is running and that llm.baseUrl or QTM_LLM_BASE_URL is its address"
    ),
    "over_budget": "raise budget.*",
    "circuit_open": "try again in a minute; recent calls to the model failed",
}


class CheckState(StrEnum):
    """The state of one checked item: the item works, has a problem, or is not used.

    A feature that works but should be turned off also counts as a problem.
    """

    OK = "ok"
    PROBLEM = "problem"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of a check.

    Attributes:
        subject: the name of the checked item, such as ``query`` or ``model``.
        state: whether the item works, has a problem, or is not used.
        text: a sentence for people. It may quote an exception that the function raised.
        mend: how to fix the problem; ``""`` if there is nothing to do.
        values: data for programs: names, numbers and lists of texts. If the check tried a feature,
            ``advice`` is ``keep``, ``measure``, ``leave_off`` or ``unseen``.
    """

    subject: str
    state: CheckState
    text: str = field(repr=False)
    mend: str = field(default="", repr=False)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking a wrapped function. Print it to see a report.

    Attributes:
        function: the name of the checked function.
        question: the question that was tried; the first question of a list.
        keywords: the question's keywords.
        findings: what the check found out, in the order of its steps.
        verdicts: one finding per feature (keywords, the model's variants, reranking): whether to
            keep the feature, measure its effect or leave it off.
        sample: how the keyword rules change the order for several questions; ``None`` if there was
            only one question, or if the rules were not tried.
    """

    function: str
    question: str = field(repr=False)
    keywords: str = field(repr=False)
    findings: tuple[Finding, ...]
    verdicts: tuple[Finding, ...]
    sample: OrderSample | None = None

    @property
    def helps(self) -> bool:
        """Whether at least one feature of the middleware works and may stay on."""
        return any(verdict.state is CheckState.OK for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """Return the check's result, including ``helps``, as nested dicts ready for JSON."""
        return {"helps": self.helps, **asdict(self)}

    def __str__(self) -> str:
        head = {
            "function": f"{self.function}()",
            "question": self.question,
            "keywords": self.keywords or "(none)",
        }
        rows = [
            *(
                _format_report_row(name, shorten_text(text, _MOST_QUOTED))
                for name, text in head.items()
            ),
            "",
        ]
        # Advice that a verdict repeats below is shown only there.
        fixes = {verdict.mend for verdict in self.verdicts}
        for finding in self.findings:
            mark = "! " if finding.state is CheckState.PROBLEM else ""
            rows.append(_format_report_row(finding.subject, mark + finding.text))
            if finding.mend and finding.mend not in fixes:
                rows.append(_format_report_row("", f"-> {finding.mend}"))
        for example in () if self.sample is None else self.sample.examples:
            rows += ["", _format_report_row("example", example.question)]
            rows += [
                _format_report_row("  first", _format_passage(example.before)),
                _format_report_row("  would be first", _format_passage(example.after)),
            ]
        rows.append("")
        shown = set[str]()
        for verdict in self.verdicts:
            effect = "has no effect" if verdict.state is CheckState.PROBLEM else "is off"
            effect = _SENTENCE_BY_ADVICE.get(verdict.values.get("advice", ""), effect)
            rows.append(_format_report_row(verdict.subject, f"{effect}: {verdict.text}"))
            if verdict.mend and verdict.mend not in shown:
                rows.append(_format_report_row("", f"-> {verdict.mend}"))
                shown.add(verdict.mend)
        return "\n".join(rows)


def build_check_flow(
    request: Request, invocation: Invocation, questions: Sequence[SampleQuestion] = ()
) -> Flow[Check]:
    """Return a flow that checks the wrapped function with the question of *request*.

    The flow reports the function's exceptions as findings and does not raise them.

    Args:
        request: the request built from the user's arguments.
        invocation: the invocation that performs the searches.
        questions: all questions if the user passed a list, beginning with the question of
            *request*.
    """
    return _CheckRun(request, invocation, questions).run()


class _Obstacle(Exception):
    """Raised to end a check early, because *finding* prevents every feature from working."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self.finding = finding


class _CheckRun:
    """Performs one check. The methods are in the order in which they run."""

    def __init__(
        self, request: Request, invocation: Invocation, questions: Sequence[SampleQuestion]
    ) -> None:
        settings = replace(request.settings, cache=replace(request.settings.cache, enabled=False))
        # Use new objects, so that the check's calls are not remembered, logged or warned about.
        fresh_parts: dict[str, Any] = {
            "learned": Learned(),
            "cache": TransformationCache(settings),
            "sampler": LogSampler(),
        }
        invocation.context = replace(
            invocation.context, **fresh_parts, issued_warnings=IssuedWarnings()
        )
        self.invocation = invocation
        self.name, self.argument = invocation.signature.function_name, invocation.signature.argument
        self.clauses = invocation.signature.read_clauses(invocation.args, invocation.kwargs)
        self.settings = settings
        self.request = replace(
            request,
            settings=settings,
            **fresh_parts,
            can_share_reply=False,
            observation=NOT_OBSERVED,
        )
        self.keywords = ""
        self.findings: list[Finding] = []
        self.questions = questions
        self.sample: OrderSample | None = None
        self.vector: Sequence[float] | None = None

    def run(self) -> Flow[Check]:
        """Run the whole check, and return its result."""
        request, question = self.request, self.request.original
        if isinstance(question, str) and request.problem is None:
            self.keywords = prepare_query(question, self.settings).keywords
        verdicts = yield from self._judge_features()
        # The report always says whether there is a model.
        if not any(finding.subject == "model" for finding in self.findings):
            has_model = self.invocation.context.components.has_model
            text = (
                "configured, but not called"
                if has_model
                else "not configured (no client, key or address)"
            )
            self._add_finding(_build_off_finding("model", text, configured=has_model))
        question_text = question if isinstance(question, str) else type(question).__name__
        return Check(
            self.name,
            question_text,
            self.keywords,
            tuple(self.findings),
            tuple(verdicts),
            self.sample,
        )

    def _judge_features(self) -> Flow[list[Finding]]:
        """Return a verdict on each feature: keywords, the model's variants and the reranker.

        If the settings do not enable reranking, there is no verdict on the reranker.
        """
        features = [_KEYWORDS, _VARIANTS, *([_RERANK] if self.settings.rerank.enabled else [])]
        try:
            plain_result, widened_result = yield from self._get_plain_and_widened_results()
            self._add_passage_findings(widened_result)
            yield from self._try_text_clause(plain_result)
            self._add_search_finding(plain_result.response)
        except Exception as error:
            # Reading a user's response may raise any exception.
            text = f"reading the passages raised {_describe_error(error)}"
            obstacle = (
                error
                if isinstance(error, _Obstacle)
                else self._add_obstacle("passages", text, ADVICE)
            ).finding
            return [
                self._build_disabled_verdict(feature)
                or _build_problem_finding(feature, obstacle.text, obstacle.mend)
                for feature in features
            ]
        verdicts: list[Finding] = []
        before = plain_result.ranking.keys
        for feature in features:
            verdict = self._build_disabled_verdict(feature)
            if verdict is None and feature == _KEYWORDS:
                verdict, before = yield from self._judge_keywords_and_list_keys(
                    plain_result, widened_result
                )
            elif verdict is None:
                verdict = yield from (
                    self._judge_variants(before)
                    if feature == _VARIANTS
                    else self._judge_reranker(before)
                )
            verdicts.append(verdict)
        return verdicts

    def _add_finding(self, finding: Finding) -> Finding:
        """Add *finding* to the findings, and return it."""
        self.findings.append(finding)
        return finding

    def _build_disabled_verdict(self, feature: str) -> Finding | None:
        """Return a verdict if a setting turns *feature* off, else ``None``."""
        settings = self.settings
        if feature == _VARIANTS:
            if settings.transformation_type == "none":
                fix = 'set transformationType: "combined" and give it a model'
                return _build_off_finding(feature, "transformationType is none", fix)
            if settings.escalation.mode == "never":
                return _build_off_finding(
                    feature,
                    "escalation allows no model calls",
                    'set escalation: "auto" or "always"',
                )
        elif feature == _KEYWORDS and not settings.keyword_evidence.enabled:
            return _build_off_finding(
                feature, "keywordEvidence is false", "set keywordEvidence: true"
            )
        elif feature == _KEYWORDS and settings.preprocess.apply_to == "text":
            return _build_off_finding(
                feature, "preprocess.applyTo is text", 'set preprocess.applyTo: "keywords"'
            )
        elif not (
            self.request.uses_keyword_evidence
            if feature == _KEYWORDS
            else self.request.uses_reranker
        ):
            return _build_off_finding(
                feature,
                f"fusion.method {settings.fusion.method} does not merge lists",
                'set it to "anchored"',
            )
        return None

    # --- the call and its response ----------------------------------------------------------------

    def _get_plain_and_widened_results(self) -> Flow[tuple[SearchResult, SearchResult]]:
        """Return the result of the caller's call, and the result of a call for more passages.

        If there is no call for more passages, or if it fails, both results are that of the
        caller's call. Raises `_Obstacle` if the function fails or its response cannot be read.
        """
        self._check_query()
        if self.request.embeds:
            yield from self._embed_question()
        self._add_top_k_findings()
        outcome = yield from self._search_question(None)
        if outcome.error is not None:
            fix = "call the function without qtmiddleware, with the same arguments"
            if not self.request.embeds:
                fix += (
                    "; if it takes a vector, wrap it with embed= (a function from a text to its"
                    " vector)"
                )
            raise self._add_obstacle(
                "call", f"{self.name}() raised {_describe_error(outcome.error)}", fix
            )
        try:
            plain_result = self._read_result(outcome.value)
            return plain_result, (
                yield from self._measure_calls_and_get_widened_result(plain_result, outcome)
            )
        except ResponseShapeError as error:
            text, _, fix = str(error).partition("; ")
            raise self._add_obstacle("response", text, fix, shape=error.shape) from error

    def _add_obstacle(self, subject: str, problem: str, fix: str, **values: Any) -> _Obstacle:
        """Add a problem to the findings, and return the exception that ends the check."""
        return _Obstacle(self._add_finding(_build_problem_finding(subject, problem, fix, **values)))

    def _check_query(self) -> None:
        """Add a finding on how the call passes the question.

        Raises `_Obstacle` if the question cannot be read.
        """
        problem, argument = self.request.problem, self.argument
        if problem is None:
            if not self.request.embeds:
                self._add_finding(
                    _build_ok_finding(
                        "query",
                        f"passed as text in {self._query_location_text}",
                        **self._query_location,
                        travels="text",
                    )
                )
            return
        text, fix = problem.detail, "name the parameter that holds the question with query_arg="
        if problem.reason == "not_text":
            text = f"{self._query_location_text} must be text, not {problem.detail}"
            fix = (
                "pass the question's text; if the function takes a vector, wrap it with embed= (a"
                " function from a text"
                " to its vector); if the text is a field of the argument, use"
                f' query_arg="{argument}.<name>"'
            )
        elif problem.reason in _CLAUSE_FIXES:
            fix = _CLAUSE_FIXES[problem.reason]
        elif problem.reason != "missing":
            text, fix = (
                f"the question is {problem.reason.replace('_', ' ')}",
                "ask another question",
            )
        raise self._add_obstacle("query", text, fix, argument=argument, reason=problem.reason)

    @property
    def _query_location_text(self) -> str:
        """A phrase that names the question's argument, and its clauses' types and fields."""
        kinds = " and ".join(f"`{kind}`" for kind in self._query_location.get("clauses", ()))
        searched = ", ".join(f"`{name}`" for name in list_clause_fields(self.clauses))
        within = (
            f", in the {kinds} clause" + (f" over {searched}" if searched else "") if kinds else ""
        )
        return f"`{self.argument}`{within}"

    @property
    def _query_location(self) -> dict[str, Any]:
        """Data for programs: the question's argument, and its clauses' types and fields, if any."""
        if not self.clauses:
            return {"argument": self.argument}
        kinds = list(dict.fromkeys(map(read_clause_type, self.clauses)))
        return {
            "argument": self.argument,
            "clauses": kinds,
            "fields": list_clause_fields(self.clauses),
        }

    def _embed_question(self) -> Flow[None]:
        """Embed the question, store the vector, and add a finding on the embedding.

        Raises `_Obstacle` if the embedding function fails.
        """
        argument = self.argument
        outcome = yield from self._perform_step(Embed([self.request.original]))
        if outcome.has_succeeded:
            # Measure the second call: the first one may load a model, or try out in what form the
            # function takes its texts.
            outcome = yield from self._perform_step(Embed([self.request.original]))
        if outcome.error is not None:
            fix = (
                "embed= must be a function from a text to its vector, or from a list of texts to a"
                " list of vectors"
            )
            raise self._add_obstacle(
                "query", f"embed= raised {_describe_error(outcome.error)}", fix, argument=argument
            )
        vector: Sequence[float] = outcome.value[0]
        self.vector, size, ms = vector, len(vector), outcome.seconds * 1e3
        text = (
            f"embedded as {size} numbers in {_format_duration(ms)}, passed in"
            f" {self._query_location_text}"
        )
        self._add_finding(
            _build_ok_finding(
                "query",
                text,
                **self._query_location,
                travels="vector",
                dimension=size,
                embed_ms=_round_duration(ms),
            )
        )

    def _add_top_k_findings(self) -> None:
        """Add findings on the parameters that set the number of passages and select a page."""
        name, value = self.invocation.signature.top_k_argument, self.request.top_k
        if page := self.request.page:
            self._add_page_finding(page)
        if value is not None:
            self._add_finding(
                _build_ok_finding(
                    "top_k",
                    f"`{name or 'top_k'}`, {value} in this call",
                    argument=name,
                    value=value,
                )
            )
            return
        text = f"`{name}` is not a number" if name else "no parameter sets the number of passages"
        fix = "" if name else "if there is such a parameter, name it with top_k_arg="
        self._add_finding(
            _build_off_finding(
                "top_k",
                f"{text}, so qtmiddleware does not ask for more",
                fix,
                argument=name,
                value=None,
            )
        )

    def _add_page_finding(self, page_argument: str) -> None:
        is_named = self.request.page_is_known
        fix = (
            ""
            if is_named
            else (
                f"wrap with page_arg=False if `{page_argument}` does not select a page, else with"
                f" page_arg={page_argument!r}"
            )
        )
        text = (
            f"`{page_argument}` selects a page: qtmiddleware reorders the passages of your call and"
            " adds none"
        )
        self._add_finding(
            replace(
                _build_ok_finding("pages", text, argument=page_argument, named=is_named), mend=fix
            )
        )

    def _perform_step(self, step: Leaf) -> Flow[Outcome]:
        """Perform *step* without a time limit, and return its outcome."""
        began = perf_counter()
        try:
            value = yield step
        except Exception as error:
            return Outcome(error=error, seconds=perf_counter() - began, began=began)
        return Outcome(value, seconds=perf_counter() - began, began=began)

    def _search_question(self, top_k: int | None) -> Flow[Outcome]:
        return (yield from self._perform_step(Search(self.request.original, top_k, self.vector)))

    def _read_result(self, response: Any) -> SearchResult:
        variant, options = (
            Variant("original", self.request.original),
            self.settings.keyword_evidence,
        )
        return read_response(variant, response, self.request.shape, options=options)

    def _measure_calls_and_get_widened_result(
        self, plain_result: SearchResult, first_outcome: Outcome
    ) -> Flow[SearchResult]:
        """Time calls with and without more passages, and return the result with more passages.

        Adds findings on the number of passages and on the cost. If there is no call for more
        passages, or if it fails, returns *plain_result*.

        Args:
            plain_result: the result of the caller's call.
            first_outcome: the outcome of the caller's call.
        """
        count = len(plain_result.ranking.keys)
        self.request.learned.update_average_length(plain_result.ranking.items)
        requested, full_search_width = self.request.search_width, self.request.full_search_width
        calls = yield from self._time_calls(requested, first_outcome)
        chars, because = round(self.request.learned.passage_chars), ""
        if requested != full_search_width:
            because = f", because passages have about {chars:,} characters"
        if requested is None:
            text = f"{count} in your call; qtmiddleware does not ask for more{because}"
            self._add_finding(
                _build_ok_finding("candidates", text, plain=count, asked=None, passage_chars=chars)
            )
        widened_result, texts, values = plain_result, list[str](), dict[str, Any]()
        for width, outcomes in calls.items():
            response, ms = outcomes[-1].value, median(outcome.seconds * 1e3 for outcome in outcomes)
            name, description = (
                ("plain", "your call") if width is None else ("widened", f"with {width} candidates")
            )
            size = _measure_json_bytes(response)
            values |= {
                f"{name}_calls": len(outcomes),
                f"{name}_ms": _round_duration(ms),
                f"{name}_bytes": size,
            }
            texts.append(f"{description} {_format_duration(ms)} and {_format_byte_count(size)}")
            if width is not None:
                widened_result = self._read_result(response)
                widened_count = len(widened_result.ranking.keys)
                text = f"{count} in your call, {widened_count} if qtmiddleware asks for {requested}"
                text += because if widened_count > count else "; the function has no more"
                about = {
                    "plain": count,
                    "asked": requested,
                    "widened": widened_count,
                    "passage_chars": chars,
                }
                self._add_finding(_build_ok_finding("candidates", text, **about))
                if requested is not None and 1 < widened_count < requested:
                    self._recommend_model_for_small_collection(widened_count)
        self._add_finding(
            _build_ok_finding(
                "cost",
                f"{', '.join(texts)} as JSON (median of {values['plain_calls']} calls)",
                **values,
            )
        )
        return widened_result

    def _recommend_model_for_small_collection(self, passage_count: int) -> None:
        """Recommend a language model for a small collection, unless the settings use a model."""
        has_model = self.invocation.context.components.has_model
        if has_model and self.settings.transformation_type != "none":
            return
        text = (
            f"the collection has only {passage_count} passages; small collections gain most from"
            " one model call"
        )
        fix = 'try the preset "words", or "balanced", which makes one more search'
        fix += "" if has_model else ", with client= or OPENAI_API_KEY"
        self._add_finding(
            replace(_build_ok_finding("collection", text, passages=passage_count), mend=fix)
        )

    def _time_calls(
        self, widened_top_k: int | None, first_outcome: Outcome
    ) -> Flow[dict[int | None, list[Outcome]]]:
        """Time calls for the caller's number of passages and for *widened_top_k* passages.

        The two types of call alternate, so that a change in load affects both.

        Args:
            widened_top_k: the larger number of passages; ``None`` to time only the caller's call.
            first_outcome: the outcome of an earlier call for the caller's number.

        Returns:
            The outcomes of the calls, by the number of passages requested. The key ``None`` stands
            for the caller's number.
        """
        calls: dict[int | None, list[Outcome]] = {None: [], widened_top_k: []}
        spent = first_outcome.seconds
        for turn in range(ROUNDS):
            # Time a slow function once, so that a check does not take minutes.
            if turn and spent > LONGEST:
                break
            for width in tuple(calls):
                outcome = yield from self._search_question(width)
                spent += outcome.seconds
                if outcome.has_succeeded:
                    calls[width].append(outcome)
                # A failure after a success does not mean that the function rejects the number.
                elif width is not None and not calls[width]:
                    del calls[width]
                    self.request.learned.refuses_widening = True
                    reason = _describe_error(outcome.error)
                    text = (
                        f"asked for {widened_top_k}, the function raised {reason}; qtmiddleware"
                        " asks for your own number"
                    )
                    fix = "set keywordEvidence.candidates to a number that the function accepts"
                    self._add_finding(
                        _build_off_finding(
                            "candidates", text, fix, asked=widened_top_k, refused=True
                        )
                    )
        return calls | {None: calls[None] or [first_outcome]}

    def _add_passage_findings(self, result: SearchResult) -> None:
        """Add findings on the passages' shape, texts, ids, metadata and scores.

        Raises `_Obstacle` if there are no passages.
        """
        items, text_field = result.ranking.items, self.settings.keyword_evidence.text_field
        count = len(items)
        if not count:
            fix = (
                "check that the index holds passages, check the namespace and filter, or ask"
                " another question"
            )
            text = (
                "the function returned None"
                if result.response is None
                else "the response holds no passages"
            )
            raise self._add_obstacle("response", text, fix, passages=0)
        kind, shape = type(get_raw_item(items[0])).__name__, result.shape.name
        self._add_finding(
            _build_ok_finding(
                "response",
                f"{shape}, {count} of type {kind}",
                shape=shape,
                item=kind,
                passages=count,
            )
        )
        if items_with_text := [item for item in items if has_text(item, text_field)]:
            name = find_text_field(items_with_text[0], text_field)
            text = f"{len(items_with_text)} of {count} have a text, " + (
                f"in `{name}`" if name else "which is the passage itself"
            )
            self._add_finding(
                _build_ok_finding("text", text, field=name, passages=len(items_with_text))
            )
        else:
            self._add_finding(
                _build_problem_finding(
                    "text", *self._explain_missing_text_and_fix(items), field=None, passages=0
                )
            )
            # A first retrieval would learn the same from these passages.
            self.request.learned.holds_text = False
        id_count = sum(
            read_id(item, self.settings.keyword_evidence.id_field) is not None for item in items
        )
        text = (
            f"{id_count} of {count} have an id"
            if id_count
            else "none; qtmiddleware tells passages apart by their texts"
        )
        fix = "" if id_count else _format_field_advice("id", suggest_id_field(items))
        self._add_finding(replace(_build_ok_finding("ids", text, passages=id_count), mend=fix))
        if fields := find_distinguishing_fields(read_all_metadata(items)):
            text = f"fields that tell passages apart: {', '.join(f'`{name}`' for name in fields)}"
            self._add_finding(_build_ok_finding("metadata", text, fields=list(fields)))
        self._add_score_finding(result.ranking)

    def _explain_missing_text_and_fix(self, items: Sequence[Any]) -> tuple[str, str]:
        """Return why the passages have no text, and how to fix the problem."""
        text, fix = describe_missing_text_and_fix(items, self.settings.keyword_evidence.text_field)
        signature, invocation = self.invocation.signature, self.invocation
        fields = [
            name
            for name in list_clause_fields(self.clauses)
            if read_clause_type(self.clauses[0]) not in VECTORS
            and signature.find_unrequested_field(invocation.args, invocation.kwargs, name)
        ]
        if fields:
            fix = (
                f'add "{fields[0]}" to include_fields, or set config={{"keywordEvidence":'
                f' {{"fields": {{"text": "{fields[0]}"}}}}}} to request the field without returning'
                " it"
            )
        elif self.clauses and not any(map(read_metadata, items)):
            fix = (
                "add the field that holds the text to include_fields, or name that field in"
                " keywordEvidence.fields.text"
            )
        return text, fix

    def _try_text_clause(self, plain_result: SearchResult) -> Flow[None]:
        """Add a finding on whether this call can include a keyword search, and at what cost."""
        if not can_add_text_clause(self.clauses):
            return
        chosen = self.settings.hybrid.text_fields
        fields = list(chosen) or self._guess_text_fields(plain_result)
        field_list = ", ".join(f"`{name}`" for name in fields)
        subject, values = "text clause", {"fields": fields, "chosen": bool(chosen)}
        if not fields or not self.keywords:
            text = "the text fields are not known" if not fields else "the question has no keywords"
            self._add_finding(
                _build_off_finding(
                    subject,
                    text,
                    'name the text fields in hybrid.textFields, for example ["title", "body"]',
                    **values,
                )
            )
            return
        step = Search(self.keywords, self.request.search_width or self.request.top_k, fields=fields)
        outcome = yield from self._perform_step(step)
        if outcome.error is not None:
            make_finding, fix = (
                (
                    _build_problem_finding,
                    "name fields that the index declares with full_text_search",
                )
                if chosen
                else (_build_off_finding, "")
            )
            text = f"a keyword search of {field_list} raised {_describe_error(outcome.error)}"
            self._add_finding(make_finding(subject, text, fix, **values))
            # The number of searches, and the retrievals below, then leave the keyword search out.
            self.request.learned.refuses_words = True
            return
        result, units = self._read_result(outcome.value), get_read_units(outcome.value)
        new = len(set(result.ranking.keys) - set(plain_result.ranking.keys))
        values |= {
            "ms": _round_duration(outcome.seconds * 1e3),
            "read_units": units,
            "passages": len(result.ranking.keys),
        }
        cost = (
            f"1 more search per question, {_format_duration(outcome.seconds * 1e3)} in parallel"
            " with the first"
        )
        cost += "" if units is None else f", reads {units:g} units"
        text = (
            f"searches {field_list} by keywords: {len(result.ranking.keys)} passages, {new} of them"
            f" new; {cost}"
        )
        if chosen:
            self._add_finding(_build_ok_finding(subject, text, **values))
        else:
            listed = json.dumps(fields)
            fix = f'set config={{"hybrid": {{"textFields": {listed}}}}} and measure'
            self._add_finding(
                _build_off_finding(subject, f"could be added; it {text}", fix, **values)
            )

    def _guess_text_fields(self, plain_result: SearchResult) -> list[str]:
        """Return the fields for a keyword search if the settings name none.

        If the index embeds the query, return the fields that the call's clause searches. Otherwise,
        return the passages' text field, or an empty list if this field is unknown.
        """
        if read_clause_type(self.clauses[0]) not in VECTORS:
            return list_clause_fields(self.clauses)
        field = self.settings.keyword_evidence.text_field
        names = (find_text_field(item, field) for item in plain_result.ranking.items)
        return [name for name in [next(filter(None, names), None)] if name]

    def _add_score_finding(self, ranking: Ranking) -> None:
        direction, missing, fix = find_score_direction([ranking]), ranking.scores.count(None), ""
        first_score, last_score = ranking.scores[0], ranking.scores[-1]
        if not has_usable_scores([ranking]):
            problem = (
                "scores do not match the order"
                if not missing
                else f"{missing} of {len(ranking.scores)} have no score"
            )
            text = f"{problem}; qtmiddleware uses the places in the list instead"
            fix = _format_field_advice("score", suggest_score_field(ranking.items))
        elif not direction:
            text = f"all scores are {first_score:.4g}, so they do not rank the passages"
        else:
            text = (
                f"{'lower' if direction > 0 else 'higher'} is better, from {first_score:.4g} to"
                f" {last_score:.4g}"
            )
        direction_name = {1: "lower_is_better", -1: "higher_is_better", 0: "unknown"}[direction]
        self._add_finding(
            replace(
                _build_ok_finding("scores", text, direction=direction_name, missing=missing),
                mend=fix,
            )
        )

    def _add_search_finding(self, response: Any) -> None:
        """Add a finding on the number and the cost of the searches per question."""
        by_words = int(self.request.keyword_search_skip_reason is None)
        most_searches = (
            compute_max_searches(self.request)
            if self.invocation.context.components.has_model
            else 1 + by_words
        )
        units, price = get_read_units(response), self.settings.store.read_price
        values: dict[str, Any] = {
            "most": most_searches,
            "mean": float(most_searches),
            "read_units": units,
        }
        at_most = "at most " if most_searches > 1 + by_words else ""
        text = (
            "1 per question, as without qtmiddleware"
            if most_searches == 1
            else f"{at_most}{most_searches} per question"
        )
        if most_searches > 1 and self.settings.escalation.mode == "auto":
            rate, certain = self.settings.escalation.target_call_rate, 1 + by_words
            values["mean"] = certain + rate * (most_searches - certain)
            text += (
                f", {values['mean']:.1f} on average, because {rate:.0%} of the questions call the"
                " model"
            )
        if units is not None:
            text += f"; each reads {units:g} units"
        if price is not None:
            usd = values["mean"] * (1 if units is None else units) * price / 1e3
            values["read_usd_per_thousand"] = usd
            text += f"; {at_most}${usd:.2g} per 1,000 questions"
        self._add_finding(_build_ok_finding("searches", text, **values))

    # --- the features of the middleware -----------------------------------------------------------

    def _retrieve_and_compare_order(
        self, order_before: Sequence[Key], **changed_settings: Any
    ) -> Flow[tuple[Retrieval, _OrderChange]]:
        """Retrieve with changed settings, and compare the new order with *order_before*.

        Exceptions from the wrapped function pass through.

        Args:
            order_before: the passage keys of the result to compare with.
            **changed_settings: the settings to change, by name.

        Returns:
            The retrieval, and the change of the order.
        """
        request = replace(self.request, settings=replace(self.settings, **changed_settings))
        if request.settings.transformation_type == "none":
            # Leave the text clause out, so that the change shows the effect of the keywords alone.
            request = replace(request, text_fields=())
        retrieval = yield from build_retrieval_flow(request)
        return retrieval, _OrderChange(
            order_before, self._read_result(retrieval.response).ranking.keys
        )

    def _judge_keywords_and_list_keys(
        self, plain_result: SearchResult, widened_result: SearchResult
    ) -> Flow[tuple[Finding, Sequence[Key]]]:
        """Try the keyword rules. Return the verdict on them, and the passage keys in the new order.

        If the rules cannot be tried, return the passage keys of the plain result.
        """
        before, count = plain_result.ranking.keys, len(widened_result.ranking.keys)
        for finding in self.findings:
            if finding.subject == "text" and finding.state is CheckState.PROBLEM:
                return _build_problem_finding(_KEYWORDS, finding.text, finding.mend), before
        if count < 2:
            fix = (
                "let the function return more, or name the parameter that sets the number with"
                " top_k_arg="
            )
            return _build_problem_finding(
                _KEYWORDS, "a single passage cannot be reordered", fix
            ), before
        rerank = replace(self.settings.rerank, enabled=False)
        try:
            retrieval, change = yield from self._retrieve_and_compare_order(
                before, transformation_type="none", rerank=rerank
            )
        except Exception as error:
            return self._add_late_failure_finding(_KEYWORDS, error), before
        note = next(
            (detail for stage, detail in retrieval.trace.notes if stage == "keyword_evidence"), ""
        )
        reason = str(change) if change.is_changed else self._explain_unchanged_order(note)
        sentence = (
            f"{'changed' if change.is_changed else 'not changed'} for this question: {reason}"
        )
        self._add_finding(_build_ok_finding("order", sentence, changed=change.is_changed))
        text = f"the question's keywords rerank {count} candidates"
        if count <= len(before):
            text += ", which is all that the function returns, so no passage is new"
        text += _parenthesize(note)
        if len(self.questions) > 1 or any(question.relevant for question in self.questions):
            yield from self._compare_sample_orders()
        return self._build_keywords_verdict(text, is_order_changed=change.is_changed), change.after

    def _compare_sample_orders(self) -> Flow[None]:
        """Compare the plain order and the keyword rules' order for a sample of the questions.

        Adds findings on how the two orders differ.
        """
        sampled = choose_sample_questions(self.questions)
        left_out = len(self.questions) - len(sampled)
        sample = yield from compare_orders(
            sampled, self._get_plain_and_rules_orders, _describe_error, unasked_count=left_out
        )
        self.sample, judged = sample, sample.judged
        make_finding = _build_ok_finding if sample.compared else _build_problem_finding
        counts = {"asked": sample.asked, "left_out": left_out, "failed": sample.failed}
        self._add_finding(
            make_finding(
                "sample",
                str(sample),
                **counts,
                other_first=sample.other_first,
                changed=sample.changed,
            )
        )
        if judged is None:
            return
        if judged.found:
            self._add_finding(_build_ok_finding("judged", str(judged), **asdict(judged)))
        else:
            text = f"no relevant passage was found for any of {judged.questions} questions"
            self._add_finding(
                _build_problem_finding(
                    "judged",
                    text,
                    "compare your ids with the ids of the passages",
                    **asdict(judged),
                )
            )

    def _get_plain_and_rules_orders(self, question: str) -> Flow[tuple[Matches, Matches]]:
        """Return a question's passages in the plain order, and in the keyword rules' order.

        Exceptions from the wrapped function pass through.
        """
        # The first question was checked already, but not the others of the list.
        if (problem := find_query_problem(question)) is not None:
            raise InvalidQuery(f"the question is {problem.reason.replace('_', ' ')}")
        rules = replace(
            self.settings,
            transformation_type="none",
            rerank=replace(self.settings.rerank, enabled=False),
        )
        request = replace(self.request, original=question, settings=rules, text_fields=())
        variant = Variant("original", question)
        plain = read_matches(variant, (yield Search(question, None)), request)
        retrieval = yield from build_retrieval_flow(request)
        return plain, read_matches(variant, retrieval.response, request)

    def _build_keywords_verdict(self, effect: str, *, is_order_changed: bool) -> Finding:
        """Return the verdict on the keywords.

        Args:
            effect: What the keywords change, in words.
            is_order_changed: Whether the keywords changed the order for the first question.
        """
        if self.sample is None:
            return _build_effect_verdict(
                _KEYWORDS, effect, _ASK_MORE, is_order_changed=is_order_changed
            )
        advice, reason = self.sample.advise()
        values = {"advice": advice, "changed": bool(self.sample.changed)}
        if advice is Advice.LEAVE_OFF:
            asks_model = (
                self.settings.transformation_type != "none"
                and self.invocation.context.components.has_model
            )
            fix = "set keywordEvidence: false"
            if asks_model:
                fix = (
                    'keywords help more together with the model\'s words: set escalation: "always"'
                )
            return _build_problem_finding(_KEYWORDS, reason, fix, **values)
        fix = {Advice.MEASURE: _MEASURE, Advice.UNSEEN: _ASK_MORE}.get(advice, "")
        return replace(_build_ok_finding(_KEYWORDS, reason or effect, **values), mend=fix)

    def _add_late_failure_finding(self, feature: str, error: Exception) -> Finding:
        """Add a finding that the call made to check *feature* raised *error*.

        Returns the verdict on *feature*. The first call of the function was successful.
        """
        finding = self._add_finding(
            _build_problem_finding(
                "call", f"{self.name}() raised {_describe_error(error)} in a later call"
            )
        )
        return _build_problem_finding(feature, finding.text)

    def _explain_unchanged_order(self, trace_note: str) -> str:
        """Return why the keywords do not change the order.

        *trace_note* is the trace's note on the keywords' effect, or ``""`` if there is none.
        """
        if not self.keywords:
            return "the question has no keywords"
        if trace_note.startswith("no keyword"):
            return "no candidate holds any keyword of the question"
        return (
            trace_note.removeprefix("order kept: ") or "the scores count for more than the keywords"
        )

    def _judge_variants(self, order_before: Sequence[Key]) -> Flow[Finding]:
        """Retrieve once with the language model, and return the verdict on its variants."""
        if not self.invocation.context.components.has_model:
            fix = "pass client=, or set OPENAI_API_KEY or QTM_LLM_BASE_URL"
            return self._add_model_finding(
                _build_problem_finding("model", "not configured", fix, configured=False)
            )
        settings, limits = self.settings, self.settings.limits
        try:
            retrieval, change = yield from self._retrieve_and_compare_order(
                order_before,
                escalation=replace(settings.escalation, mode="always"),
                limits=_extend_limits(limits),
                rerank=replace(settings.rerank, enabled=False),
            )
        except Exception as error:
            return self._add_late_failure_finding(_VARIANTS, error)
        trace, name = retrieval.trace, self.request.model
        values: dict[str, Any] = {"name": name, "configured": True, "calls": trace.llm_calls}
        failed = _find_degradation(retrieval, "transform")
        if failed is not None and failed.reason not in _REPLIED_REASONS:
            text = f"{name} gave no reply: {failed.reason}{_parenthesize(failed.detail)}"
            fix = _FIXES_BY_REASON.get(failed.reason, "")
            return self._add_model_finding(
                _build_problem_finding("model", text, fix, **values, reason=failed.reason)
            )
        # Even with escalation set to "always", some questions are searched without the model.
        if not trace.llm_calls:
            reason = "" if trace.decision is None else trace.decision.reason.replace("_", " ")
            text = f"{name} is not called for this kind of question{_parenthesize(reason)}"
            return self._add_model_finding(
                _build_off_finding("model", text, "check with another question", **values)
            )
        ms = max(
            (stage.ms for stage in trace.stages if stage.name.startswith("transform")), default=0.0
        )
        tokens, granted = (
            trace.input_tokens + trace.output_tokens,
            round(1e3 * limits.model_seconds),
        )
        values |= {"ms": _round_duration(ms), "tokens": tokens, "cost_usd": trace.cost_usd}
        text = f"{name} replied in {_format_duration(ms)}" + (
            f", {tokens} tokens" if tokens else ""
        )
        # The check has waited longer than a question would.
        if ms > granted:
            fix = (
                f"set limits.llmTimeoutMs and limits.deadlineMs well above {ms:.0f}, or choose a"
                " faster model"
            )
            return self._add_model_finding(
                _build_problem_finding("model", f"{text}; the limit is {granted} ms", fix, **values)
            )
        self._add_finding(_build_ok_finding("model", text, **values))
        if (failed := failed or _find_degradation(retrieval, "search", "embed")) is not None:
            return _build_problem_finding(
                _VARIANTS, f"{failed.stage} {failed.reason}{_parenthesize(failed.detail)}"
            )
        kinds = [variant.kind for variant in retrieval.variants[1:]]
        text_names = [name for name in TEXT_FIELDS for _ in retrieval.transformation.texts(name)]
        if kinds:
            text = f"searches {len(kinds)} more texts ({', '.join(dict.fromkeys(kinds))}); {change}"
        elif text_names and self.request.uses_keyword_evidence:
            labels = ", ".join(TEXT_FIELDS[name].label for name in dict.fromkeys(text_names))
            text = (
                f"makes no more searches, reranks by the words of {len(text_names)} texts"
                f" ({labels}); {change}"
            )
        else:
            return _build_off_finding(
                _VARIANTS, "the model's reply left nothing more to search for this question"
            )
        return _build_effect_verdict(
            _VARIANTS, text, is_order_changed=change.is_changed, kinds=kinds
        )

    def _add_model_finding(self, finding: Finding) -> Finding:
        """Add *finding* about the model, and return it as the verdict on the model's variants."""
        self._add_finding(finding)
        return Finding(_VARIANTS, finding.state, finding.text, finding.mend)

    def _judge_reranker(self, order_before: Sequence[Key]) -> Flow[Finding]:
        """Retrieve once with the reranker, and return the verdict on the reranker."""
        try:
            retrieval, change = yield from self._retrieve_and_compare_order(
                order_before,
                transformation_type="none",
                limits=_extend_limits(self.settings.limits),
            )
        except Exception as error:
            return self._add_late_failure_finding(_RERANK, error)
        note = next((detail for stage, detail in retrieval.trace.notes if stage == "rerank"), "")
        if (failed := _find_degradation(retrieval, "rerank")) is not None:
            fix = "raise limits.deadlineMs" if failed.reason == "timeout" else ""
            return _build_problem_finding(
                _RERANK, f"{failed.reason}{_parenthesize(note or failed.detail)}", fix
            )
        if not retrieval.reranked:
            return _build_problem_finding(_RERANK, note or "there are no passages to rerank")
        judged, ms = (
            len(retrieval.reranked),
            sum(stage.ms for stage in retrieval.trace.stages if stage.name == "rerank"),
        )
        text = f"reranks {judged} candidates in {_format_duration(ms)}; {change}"
        return _build_effect_verdict(
            _RERANK, text, is_order_changed=change.is_changed, ms=_round_duration(ms), judged=judged
        )


@dataclass(frozen=True, slots=True)
class _OrderChange:
    """The passage keys of a result before and after a change of the settings."""

    before: Sequence[Key]
    after: Sequence[Key]

    @property
    def is_changed(self) -> bool:
        """Whether the order changed."""
        return list(self.before[: len(self.after)]) != list(self.after)

    def __str__(self) -> str:
        if not self.is_changed:
            return "the order does not change for this question"
        new = len(set(self.after) - set(self.before))
        leader = (
            "the same passage is first"
            if self.before[:1] == self.after[:1]
            else "another passage is first"
        )
        return (
            f"{new or 'none'} of {len(self.after)} passages {'is' if new < 2 else 'are'} new,"
            f" {leader}"
        )


def _build_ok_finding(subject: str, message: str, /, **values: Any) -> Finding:
    return Finding(subject, CheckState.OK, message, values=values)


def _build_effect_verdict(
    feature: str,
    effect: str,
    no_effect_advice: str = "",
    /,
    *,
    is_order_changed: bool,
    **values: Any,
) -> Finding:
    """Return the verdict on a *feature* that was tried without relevance judgements.

    *effect* describes what the feature changed. *no_effect_advice* is the advice for a feature that
    did not change the order.
    """
    advice = Advice.MEASURE if is_order_changed else Advice.UNSEEN
    fix = _MEASURE if is_order_changed else no_effect_advice
    return Finding(
        feature,
        CheckState.OK,
        effect,
        fix,
        {"advice": advice, "changed": is_order_changed, **values},
    )


def _build_off_finding(subject: str, message: str, fix: str = "", /, **values: Any) -> Finding:
    return Finding(subject, CheckState.OFF, message, fix, values)


def _build_problem_finding(subject: str, message: str, fix: str = "", /, **values: Any) -> Finding:
    return Finding(subject, CheckState.PROBLEM, message, fix, values)


def _format_field_advice(name: str, field_name: str | None) -> str:
    """Return the advice to set *name* in ``keywordEvidence.fields`` to *field_name*.

    If *field_name* is ``""``, the advice names no field. If *field_name* is ``None``, the passages
    have no fields, and the advice is ``""``.
    """
    if not field_name:
        return (
            ""
            if field_name is None
            else f"if a field holds them, name the field in keywordEvidence.fields.{name}"
        )
    return f'set config={{"keywordEvidence": {{"fields": {{"{name}": "{field_name}"}}}}}}'


def _extend_limits(limits: LimitSettings) -> LimitSettings:
    """Return *limits* with timeouts that are long enough to measure a slow model."""
    patience = max(limits.llm_timeout_ms, _PATIENCE_MS)
    return replace(
        limits, llm_timeout_ms=patience, deadline_ms=max(limits.deadline_ms, 2 * patience)
    )


def _find_degradation(retrieval: Retrieval, *stages: str) -> Degradation | None:
    return next(
        (
            degradation
            for degradation in retrieval.degradations
            if degradation.stage.partition(".")[0] in stages
        ),
        None,
    )


def _describe_error(error: BaseException | None) -> str:
    """Return the type of *error* and the beginning of its message, on one line.

    Removes user names and passwords from addresses.
    """
    words = " ".join(remove_credentials(str(error)).split())[:_MOST_QUOTED]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _measure_json_bytes(response: Any) -> int | None:
    """Return the approximate size of *response* as JSON, in bytes.

    Returns ``None`` if the response cannot be written as JSON.
    """
    # Reading a user's response may raise any exception, and the size is not essential.
    try:
        if hasattr(response, "iloc"):
            return len(str(response.to_json()).encode())
        return len(json.dumps(response, default=_convert_to_json_value, skipkeys=True).encode())
    except Exception:
        return None


def _convert_to_json_value(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        return value.tolist()
    return dict(value if isinstance(value, Mapping) else list_fields(value)) or str(value)


def _format_duration(duration_ms: float) -> str:
    return f"{duration_ms:.1f} ms" if duration_ms < 100 else f"{duration_ms:,.0f} ms"


def _format_byte_count(byte_count: int | None) -> str:
    if byte_count is None:
        return "an unknown size"
    return f"{byte_count} B" if byte_count < 1_000 else f"{byte_count / 1e3:,.1f} kB"


def _round_duration(duration_ms: float) -> float:
    return round(duration_ms, 3)


def _parenthesize(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _format_passage(passage: SamplePassage) -> str:
    return f"{passage.id}: {passage.text}" if passage.id else passage.text


def _format_report_row(label: str, text: str) -> str:
    lines = textwrap.wrap(
        text, _WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return f"{label:<{_LABEL}}" + f"\n{'':<{_LABEL}}".join(lines)
