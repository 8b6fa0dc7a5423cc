"""What is understood of a wrapped function and what the middleware changes, found out with one question or a few.

The function is called as its caller calls it and as the middleware would call it, a few times each.
What it remembers, its query log and its observers are left alone.
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
from qtmiddleware.errors import InvalidQuery, ResponseShapeError, without_credentials
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.retrieval.fusion import find_direction, has_scores
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.metadata_evidence import find_telling_fields
from qtmiddleware.retrieval.pipeline import retrieval_flow
from qtmiddleware.retrieval.request import Request, find_query_problem, prepare_query
from qtmiddleware.retrieval.responses import (
    ADVICE,
    SearchResult,
    describe_missing_text,
    find_text_field,
    get_raw,
    holds_text,
    list_fields,
    read_all_metadata,
    read_id,
    read_metadata,
    read_response,
    read_usage,
    suggest_id_field,
    suggest_score_field,
)
from qtmiddleware.retrieval.result import read_matches
from qtmiddleware.retrieval.searching import count_most_searches
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.runtime.observing import NOT_OBSERVED
from qtmiddleware.runtime.steps import Embed, Flow, Leaf, Outcome, Search
from qtmiddleware.types import Degradation, Key, Ranking, Retrieval, Variant
from qtmiddleware.wrapping.call_context import Warned
from qtmiddleware.wrapping.clauses import VECTORS, can_add_text, read_type
from qtmiddleware.wrapping.clauses import list_fields as list_clause_fields
from qtmiddleware.wrapping.invocation import Invocation
from qtmiddleware.wrapping.order_sample import (
    FEWEST_ASKED,
    MOST_ASKED,
    Advice,
    Matches,
    OrderSample,
    SamplePassage,
    SampleQuestion,
    choose_evenly,
    sample_orders,
)

ROUNDS: Final = 3
"""How often each kind of call is measured, after one call that only warms up."""
LONGEST: Final = 5.0
"""Seconds after which a slow function is measured no more."""
# What a check waits for a model and a reranker at least, so that a slow one is measured rather than
# given up.
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
_SAYS_BY_ADVICE: Final = {
    Advice.KEEP: "helps",
    Advice.MEASURE: "may help or harm, so measure it",
    Advice.LEAVE_OFF: "leave it off",
    Advice.UNSEEN: "had no effect here",
}
# What says that the model replied, though nothing of it could be used.
_REPLIED: Final = frozenset(
    {"dropped", "language_mismatch", "empty", "refused", "unparsable", "truncated"}
)
_CLAUSE_MENDS: Final = {
    "lucene": (
        "use a text clause for questions; qtmiddleware leaves query strings with Lucene syntax"
        " unchanged"
    ),
    "several_questions": "pass the same text in every clause, or make one search per question",
}
_MENDS: Final = {
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
    """How one thing stands: it works, it does not work or should be left off, or it takes no part."""

    OK = "ok"
    PROBLEM = "problem"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found out: about what, how it stands, in a sentence, and how to *mend* it.

    *values* are the same for programs: names, numbers, lists of texts. A sentence may quote what
    the function raised. A verdict on a part that was tried has its ``advice`` there: ``keep``,
    ``measure``, ``leave_off`` or ``unseen``.
    """

    subject: str
    state: CheckState
    text: str = field(repr=False)
    mend: str = field(default="", repr=False)
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """What is understood of one wrapped function, and what the middleware changes; printed, it is a report.

    *keywords* are those of the *question* it was tried with, the first of several. *findings* say
    what was seen, in the order it was looked at; *verdicts* say of each part of the middleware
    whether to keep it, to measure it or to leave it off, and how to mend what does nothing.
    *sample* is how the rules change the order for several questions, ``None`` if one was asked or
    the rules take no part.
    """

    function: str
    question: str = field(repr=False)
    keywords: str = field(repr=False)
    findings: tuple[Finding, ...]
    verdicts: tuple[Finding, ...]
    sample: OrderSample | None = None

    @property
    def helps(self) -> bool:
        """Whether any part of the middleware works with this function and need not be left off."""
        return any(verdict.state is CheckState.OK for verdict in self.verdicts)

    def to_dict(self) -> dict[str, Any]:
        """The same in nested dicts that `json.dumps` takes, with whether it ``helps``; a state is its text."""
        return {"helps": self.helps, **asdict(self)}

    def __str__(self) -> str:
        head = {
            "function": f"{self.function}()",
            "question": self.question,
            "keywords": self.keywords or "(none)",
        }
        rows = [*(_write_row(name, shorten(text, _MOST_QUOTED)) for name, text in head.items()), ""]
        mends = {verdict.mend for verdict in self.verdicts}
        for finding in self.findings:
            mark = "! " if finding.state is CheckState.PROBLEM else ""
            rows.append(_write_row(finding.subject, mark + finding.text))
            if finding.mend and finding.mend not in mends:
                rows.append(_write_row("", f"-> {finding.mend}"))
        for example in () if self.sample is None else self.sample.examples:
            rows += ["", _write_row("example", example.question)]
            rows += [
                _write_row("  first", _name(example.before)),
                _write_row("  would be first", _name(example.after)),
            ]
        rows.append("")
        shown = set[str]()
        for verdict in self.verdicts:
            says = "has no effect" if verdict.state is CheckState.PROBLEM else "is off"
            says = _SAYS_BY_ADVICE.get(verdict.values.get("advice", ""), says)
            rows.append(_write_row(verdict.subject, f"{says}: {verdict.text}"))
            if verdict.mend and verdict.mend not in shown:
                rows.append(_write_row("", f"-> {verdict.mend}"))
                shown.add(verdict.mend)
        return "\n".join(rows)


def check(
    request: Request, call: Invocation, questions: Sequence[SampleQuestion] = ()
) -> Flow[Check]:
    """Find out how *call*, which *request* was made of, can be improved; raises nothing of the function's own.

    *questions* are all that the caller asked if there were several; the one of *request* is the
    first of them.
    """
    return _Checkup(request, call, questions).run()


class _Obstacle(Exception):
    """What keeps every part of the middleware from helping, as a finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self.finding = finding


class _Checkup:
    """One check under way; its methods stand in the order they run."""

    def __init__(
        self, request: Request, call: Invocation, questions: Sequence[SampleQuestion]
    ) -> None:
        settings = replace(
            request.settings, cache=replace(request.settings.cache, enabled=False, redis_url=None)
        )
        # Nothing that the check sees is remembered, logged or warned of.
        apart: dict[str, Any] = {
            "learned": Learned(),
            "cache": TransformationCache(settings),
            "sampler": LogSampler(),
        }
        call.context = replace(call.context, **apart, warned=Warned())
        self.call = call
        self.name, self.argument = call.signature.function_name, call.signature.argument
        self.clauses = call.signature.read_clauses(call.args, call.kwargs)
        self.settings = settings
        self.request = replace(
            request,
            settings=settings,
            **apart,
            response_only=False,
            shares=False,
            observation=NOT_OBSERVED,
        )
        self.keywords = ""
        self.findings: list[Finding] = []
        self.questions = questions
        self.sample: OrderSample | None = None
        self.vector: Sequence[float] | None = None

    def run(self) -> Flow[Check]:
        """The whole check."""
        request, question = self.request, self.request.original
        if isinstance(question, str) and request.problem is None:
            self.keywords = prepare_query(question, self.settings).keywords
        verdicts = yield from self._judge()
        if not any(finding.subject == "model" for finding in self.findings):
            has_model = self.call.context.components.has_model
            text = (
                "configured, but not called"
                if has_model
                else "not configured (no client, key or address)"
            )
            self._note(_off("model", text, configured=has_model))
        asked = question if isinstance(question, str) else type(question).__name__
        return Check(
            self.name, asked, self.keywords, tuple(self.findings), tuple(verdicts), self.sample
        )

    def _judge(self) -> Flow[list[Finding]]:
        """The verdict on each part of the middleware."""
        parts = [_KEYWORDS, _VARIANTS, *([_RERANK] if self.settings.rerank.enabled else [])]
        try:
            plain, candidates = yield from self._search_both_ways()
            self._note_passages(candidates)
            yield from self._try_text_clause(plain)
            self._note_searches(plain.response)
        except Exception as error:
            # A response may raise at whatever is read of it.
            text = f"reading the passages raised {_describe_error(error)}"
            why = (
                error if isinstance(error, _Obstacle) else self._stop("passages", text, ADVICE)
            ).finding
            return [self._find_switch(part) or _problem(part, why.text, why.mend) for part in parts]
        verdicts: list[Finding] = []
        before = plain.ranking.keys
        for part in parts:
            verdict = self._find_switch(part)
            if verdict is None and part == _KEYWORDS:
                verdict, before = yield from self._try_keywords(plain, candidates)
            elif verdict is None:
                verdict = yield from (
                    self._try_variants(before) if part == _VARIANTS else self._try_reranker(before)
                )
            verdicts.append(verdict)
        return verdicts

    def _note(self, finding: Finding) -> Finding:
        self.findings.append(finding)
        return finding

    def _find_switch(self, part: str) -> Finding | None:
        """The verdict on a *part* that the settings leave out, ``None`` where it takes part."""
        settings = self.settings
        if part == _VARIANTS:
            if settings.transformation_type == "none":
                mend = 'set transformationType: "combined" and give it a model'
                return _off(part, "transformationType is none", mend)
            if (
                settings.escalation.mode == "never"
                or not settings.escalation.max_llm_calls_per_query
            ):
                return _off(
                    part, "escalation allows no model calls", 'set escalation: "auto" or "always"'
                )
        elif part == _KEYWORDS and not settings.keyword_evidence.enabled:
            return _off(part, "keywordEvidence is false", "set keywordEvidence: true")
        elif part == _KEYWORDS and settings.preprocess.apply_to == "text":
            return _off(part, "preprocess.applyTo is text", 'set preprocess.applyTo: "keywords"')
        elif not (
            self.request.uses_keyword_evidence if part == _KEYWORDS else self.request.uses_reranker
        ):
            return _off(
                part,
                f"fusion.method {settings.fusion.method} does not merge lists",
                'set it to "anchored"',
            )
        return None

    # --- the call and its response
    # ------------------------------------------------------------------------------------

    def _search_both_ways(self) -> Flow[tuple[SearchResult, SearchResult]]:
        """What the caller's own call finds and what the widened one does, the same where none is made; raises."""
        self._check_query()
        if self.request.embeds:
            yield from self._embed()
        self._note_top_k()
        outcome = yield from self._search(None)
        if outcome.error is not None:
            mend = "call the function without qtmiddleware, with the same arguments"
            if not self.request.embeds:
                mend += (
                    "; if it takes a vector, wrap it with embed= (a function from a text to its"
                    " vector)"
                )
            raise self._stop("call", f"{self.name}() raised {_describe_error(outcome.error)}", mend)
        try:
            plain = self._read(outcome.value)
            return plain, (yield from self._measure(plain, outcome))
        except ResponseShapeError as error:
            what, _, mend = str(error).partition("; ")
            raise self._stop("response", what, mend, shape=error.shape) from error

    def _stop(self, subject: str, text: str, mend: str, **values: Any) -> _Obstacle:
        return _Obstacle(self._note(_problem(subject, text, mend, **values)))

    def _check_query(self) -> None:
        problem, argument = self.request.problem, self.argument
        if problem is None:
            if not self.request.embeds:
                self._note(
                    _ok("query", f"passed as text in {self._where}", **self._place, travels="text")
                )
            return
        text, mend = problem.detail, "name the parameter that holds the question with query_arg="
        if problem.reason == "not_text":
            text = f"{self._where} must be text, not {problem.detail}"
            mend = (
                "pass the question's text; if the function takes a vector, wrap it with embed= (a"
                " function from a text"
                " to its vector); if the text is a field of the argument, use"
                f' query_arg="{argument}.<name>"'
            )
        elif problem.reason in _CLAUSE_MENDS:
            mend = _CLAUSE_MENDS[problem.reason]
        elif problem.reason != "missing":
            text, mend = (
                f"the question is {problem.reason.replace('_', ' ')}",
                "ask another question",
            )
        raise self._stop("query", text, mend, argument=argument, reason=problem.reason)

    @property
    def _where(self) -> str:
        """Where the question is passed, for people: the argument and, in a document search, the clause."""
        kinds = " and ".join(f"`{kind}`" for kind in self._place.get("clauses", ()))
        searched = ", ".join(f"`{name}`" for name in list_clause_fields(self.clauses))
        within = (
            f", in the {kinds} clause" + (f" over {searched}" if searched else "") if kinds else ""
        )
        return f"`{self.argument}`{within}"

    @property
    def _place(self) -> dict[str, Any]:
        """The same for programs."""
        if not self.clauses:
            return {"argument": self.argument}
        kinds = list(dict.fromkeys(map(read_type, self.clauses)))
        return {
            "argument": self.argument,
            "clauses": kinds,
            "fields": list_clause_fields(self.clauses),
        }

    def _embed(self) -> Flow[None]:
        argument = self.argument
        outcome = yield from self._perform(Embed([self.request.original]))
        if outcome.ok:
            # The first time a model is loaded, or how the function wants its texts is found out.
            outcome = yield from self._perform(Embed([self.request.original]))
        if outcome.error is not None:
            mend = (
                "embed= must be a function from a text to its vector, or from a list of texts to a"
                " list of vectors"
            )
            raise self._stop(
                "query", f"embed= raised {_describe_error(outcome.error)}", mend, argument=argument
            )
        vector: Sequence[float] = outcome.value[0]
        self.vector, size, ms = vector, len(vector), outcome.seconds * 1e3
        text = f"embedded as {size} numbers in {_write_ms(ms)}, passed in {self._where}"
        self._note(
            _ok("query", text, **self._place, travels="vector", dimension=size, embed_ms=_round(ms))
        )

    def _note_top_k(self) -> None:
        name, value = self.call.signature.top_k_argument, self.request.top_k
        if page := self.request.page:
            self._note_page(page)
        if value is not None:
            self._note(
                _ok(
                    "top_k",
                    f"`{name or 'top_k'}`, {value} in this call",
                    argument=name,
                    value=value,
                )
            )
            return
        text = f"`{name}` is not a number" if name else "no parameter sets the number of passages"
        mend = "" if name else "if there is such a parameter, name it with top_k_arg="
        self._note(
            _off(
                "top_k",
                f"{text}, so qtmiddleware does not ask for more",
                mend,
                argument=name,
                value=None,
            )
        )

    def _note_page(self, page: str) -> None:
        is_named = self.request.page_is_known
        mend = (
            ""
            if is_named
            else (
                f"wrap with page_arg=False if `{page}` does not select a page, else with"
                f" page_arg={page!r}"
            )
        )
        text = (
            f"`{page}` selects a page: qtmiddleware reorders the passages of your call and adds"
            " none"
        )
        self._note(replace(_ok("pages", text, argument=page, named=is_named), mend=mend))

    def _perform(self, step: Leaf) -> Flow[Outcome]:
        """What came of *step*, which is waited for however long it takes."""
        began = perf_counter()
        try:
            value = yield step
        except Exception as error:
            return Outcome(error=error, seconds=perf_counter() - began, began=began)
        return Outcome(value, seconds=perf_counter() - began, began=began)

    def _search(self, top_k: int | None) -> Flow[Outcome]:
        return (yield from self._perform(Search(self.request.original, top_k, self.vector)))

    def _read(self, response: Any) -> SearchResult:
        variant, options = (
            Variant("original", self.request.original),
            self.settings.keyword_evidence,
        )
        return read_response(variant, response, self.request.shape, options=options)

    def _measure(self, plain: SearchResult, first: Outcome) -> Flow[SearchResult]:
        """What the widened call finds, *plain* where none is made or it fails; notes what over-fetching costs."""
        count = len(plain.ranking.keys)
        self.request.learned.record_passages(plain.ranking.items)
        asked, full = self.request.width, self.request.full_width
        calls = yield from self._time_calls(asked, first)
        chars, long, mend = round(self.request.learned.passage_chars), "", ""
        if asked != full:
            long, mend = (
                f", because passages have about {chars:,} characters",
                "raise keywordEvidence.maxChars",
            )
        if asked is None:
            text = f"{count} in your call; qtmiddleware does not ask for more{long}"
            self._note(
                replace(
                    _ok("candidates", text, plain=count, asked=None, passage_chars=chars), mend=mend
                )
            )
        candidates, texts, values = plain, list[str](), dict[str, Any]()
        for width, outcomes in calls.items():
            response, ms = outcomes[-1].value, median(it.seconds * 1e3 for it in outcomes)
            name, said = (
                ("plain", "your call") if width is None else ("widened", f"with {width} candidates")
            )
            size = _measure_bytes(response)
            values |= {
                f"{name}_calls": len(outcomes),
                f"{name}_ms": _round(ms),
                f"{name}_bytes": size,
            }
            texts.append(f"{said} {_write_ms(ms)} and {_write_bytes(size)}")
            if width is not None:
                candidates = self._read(response)
                got = len(candidates.ranking.keys)
                text = f"{count} in your call, {got} if qtmiddleware asks for {asked}"
                text += long if got > count else "; the function has no more"
                about = {"plain": count, "asked": asked, "widened": got, "passage_chars": chars}
                self._note(replace(_ok("candidates", text, **about), mend=mend))
                if asked is not None and 1 < got < asked:
                    self._note_small_collection(got)
        self._note(
            _ok(
                "cost",
                f"{', '.join(texts)} as JSON (median of {values['plain_calls']} calls)",
                **values,
            )
        )
        return candidates

    def _note_small_collection(self, count: int) -> None:
        """Note what helps a function that has no more than *count* passages, unless a model is asked already."""
        has_model = self.call.context.components.has_model
        if has_model and self.settings.transformation_type != "none":
            return
        text = (
            f"the collection has only {count} passages; small collections gain most from one model"
            " call"
        )
        mend = 'try the preset "words", or "balanced", which makes one more search'
        mend += "" if has_model else ", with client= or OPENAI_API_KEY"
        self._note(replace(_ok("collection", text, passages=count), mend=mend))

    def _time_calls(
        self, asked: int | None, first: Outcome
    ) -> Flow[dict[int | None, list[Outcome]]]:
        """Calls as the caller makes them, under ``None``, and by turns with them some that ask for *asked*."""
        calls: dict[int | None, list[Outcome]] = {None: [], asked: []}
        spent = first.seconds
        for turn in range(ROUNDS):
            if turn and spent > LONGEST:
                break
            for width in tuple(calls):
                outcome = yield from self._search(width)
                spent += outcome.seconds
                if outcome.ok:
                    calls[width].append(outcome)
                elif width is not None and not calls[width]:
                    del calls[width]
                    self.request.learned.refuses_widening = True
                    why = _describe_error(outcome.error)
                    text = (
                        f"asked for {asked}, the function raised {why}; qtmiddleware asks for your"
                        " own number"
                    )
                    mend = "set keywordEvidence.candidates to a number that the function accepts"
                    self._note(_off("candidates", text, mend, asked=asked, refused=True))
        return calls | {None: calls[None] or [first]}

    def _note_passages(self, found: SearchResult) -> None:
        items, text_field = found.ranking.items, self.settings.keyword_evidence.text_field
        count = len(items)
        if not count:
            mend = (
                "check that the index holds passages, check the namespace and filter, or ask"
                " another question"
            )
            text = (
                "the function returned None"
                if found.response is None
                else "the response holds no passages"
            )
            raise self._stop("response", text, mend, passages=0)
        kind, shape = type(get_raw(items[0])).__name__, found.shape.name
        self._note(
            _ok(
                "response",
                f"{shape}, {count} of type {kind}",
                shape=shape,
                item=kind,
                passages=count,
            )
        )
        if holding := [item for item in items if holds_text(item, text_field)]:
            name = find_text_field(holding[0], text_field)
            text = f"{len(holding)} of {count} have a text, " + (
                f"in `{name}`" if name else "which is the passage itself"
            )
            self._note(_ok("text", text, field=name, passages=len(holding)))
        else:
            self._note(
                _problem("text", *self._describe_missing_text(items), field=None, passages=0)
            )
            # As a first query would find out.
            self.request.learned.holds_text = False
        having = sum(
            read_id(item, self.settings.keyword_evidence.id_field) is not None for item in items
        )
        text = (
            f"{having} of {count} have an id"
            if having
            else "none; qtmiddleware tells passages apart by their texts"
        )
        mend = "" if having else _name_field("idField", suggest_id_field(items))
        self._note(replace(_ok("ids", text, passages=having), mend=mend))
        if fields := find_telling_fields(read_all_metadata(items)):
            text = f"fields that tell passages apart: {', '.join(f'`{name}`' for name in fields)}"
            self._note(_ok("metadata", text, fields=list(fields)))
        self._note_scores(found.ranking)

    def _describe_missing_text(self, items: Sequence[Any]) -> tuple[str, str]:
        """What stands in place of the text, and for a document search exactly what to write."""
        what, mend = describe_missing_text(items, self.settings.keyword_evidence.text_field)
        signature, call = self.call.signature, self.call
        fields = [
            name
            for name in list_clause_fields(self.clauses)
            if read_type(self.clauses[0]) not in VECTORS
            and signature.find_missing_field(call.args, call.kwargs, name)
        ]
        if fields:
            mend = (
                f'add "{fields[0]}" to include_fields, or set config={{"keywordEvidence":'
                f' {{"textField": "{fields[0]}"}}}} to request the field without returning it'
            )
        elif self.clauses and not any(map(read_metadata, items)):
            mend = (
                "add the field that holds the text to include_fields, or name that field in"
                " keywordEvidence.textField"
            )
        return what, mend

    def _try_text_clause(self, plain: SearchResult) -> Flow[None]:
        """Note whether a search by words may go beside the clause of this call, and what it costs."""
        if not can_add_text(self.clauses):
            return
        chosen = self.settings.hybrid.text_fields
        fields = list(chosen) or self._guess_text_fields(plain)
        named = ", ".join(f"`{name}`" for name in fields)
        subject, values = "text clause", {"fields": fields, "chosen": bool(chosen)}
        if not fields or not self.keywords:
            text = "the text fields are not known" if not fields else "the question has no keywords"
            self._note(
                _off(
                    subject,
                    text,
                    'name the text fields in hybrid.textFields, for example ["title", "body"]',
                    **values,
                )
            )
            return
        step = Search(self.keywords, self.request.width or self.request.top_k, fields=fields)
        outcome = yield from self._perform(step)
        if outcome.error is not None:
            make, mend = (
                (_problem, "name fields that the index declares with full_text_search")
                if chosen
                else (_off, "")
            )
            why = f"a keyword search of {named} raised {_describe_error(outcome.error)}"
            self._note(make(subject, why, mend, **values))
            self.request.learned.refuses_words = True
            return
        found, units = self._read(outcome.value), read_usage(outcome.value)
        new = len(set(found.ranking.keys) - set(plain.ranking.keys))
        values |= {
            "ms": _round(outcome.seconds * 1e3),
            "read_units": units,
            "passages": len(found.ranking.keys),
        }
        cost = (
            f"1 more search per question, {_write_ms(outcome.seconds * 1e3)} in parallel with the"
            " first"
        )
        cost += "" if units is None else f", reads {units:g} units"
        text = (
            f"searches {named} by keywords: {len(found.ranking.keys)} passages, {new} of them new;"
            f" {cost}"
        )
        if chosen:
            self._note(_ok(subject, text, **values))
        else:
            listed = json.dumps(fields)
            mend = f'set config={{"hybrid": {{"textFields": {listed}}}}} and measure'
            self._note(_off(subject, f"could be added; it {text}", mend, **values))

    def _guess_text_fields(self, plain: SearchResult) -> list[str]:
        """The fields that a search by words may know: that of a clause that embeds texts, else that of the passages."""
        if read_type(self.clauses[0]) not in VECTORS:
            return list_clause_fields(self.clauses)
        field = self.settings.keyword_evidence.text_field
        names = (find_text_field(item, field) for item in plain.ranking.items)
        return [name for name in [next(filter(None, names), None)] if name]

    def _note_scores(self, ranking: Ranking) -> None:
        direction, missing, mend = find_direction([ranking]), ranking.scores.count(None), ""
        first, last = ranking.scores[0], ranking.scores[-1]
        if not has_scores([ranking]):
            what = (
                "scores do not match the order"
                if not missing
                else f"{missing} of {len(ranking.scores)} have no score"
            )
            text = f"{what}; qtmiddleware uses the places in the list instead"
            mend = _name_field("scoreField", suggest_score_field(ranking.items))
        elif not direction:
            text = f"all scores are {first:.4g}, so they do not rank the passages"
        else:
            text = (
                f"{'lower' if direction > 0 else 'higher'} is better, from {first:.4g} to"
                f" {last:.4g}"
            )
        named = {1: "lower_is_better", -1: "higher_is_better", 0: "unknown"}[direction]
        self._note(replace(_ok("scores", text, direction=named, missing=missing), mend=mend))

    def _note_searches(self, response: Any) -> None:
        """Note how many searches a question makes under these settings, and what they read and cost."""
        by_words = int(self.request.why_not_by_words is None)
        most = (
            count_most_searches(self.request)
            if self.call.context.components.has_model
            else 1 + by_words
        )
        units, price = read_usage(response), self.settings.store.read_price
        values: dict[str, Any] = {"most": most, "mean": float(most), "read_units": units}
        at_most = "at most " if most > 1 + by_words else ""
        text = (
            "1 per question, as without qtmiddleware"
            if most == 1
            else f"{at_most}{most} per question"
        )
        if most > 1 and self.settings.escalation.mode == "auto":
            rate, sure = self.settings.escalation.target_call_rate, 1 + by_words
            values["mean"] = sure + rate * (most - sure)
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
        self._note(_ok("searches", text, **values))

    # --- the parts of the middleware
    # ----------------------------------------------------------------------------------

    def _retrieve(self, before: Sequence[Key], **changes: Any) -> Flow[tuple[Retrieval, _Change]]:
        """A retrieval under changed settings, and what it changed; raises what the function raises this time."""
        request = replace(self.request, settings=replace(self.settings, **changes))
        if request.settings.transformation_type == "none":
            # What words change in the order of the call is told apart from what a text clause
            # brings.
            request = replace(request, text_fields=())
        retrieval = yield from retrieval_flow(request)
        return retrieval, _Change(before, self._read(retrieval.response).ranking.keys)

    def _try_keywords(
        self, plain: SearchResult, candidates: SearchResult
    ) -> Flow[tuple[Finding, Sequence[Key]]]:
        """The verdict, and the order that the words of the question alone give."""
        before, count = plain.ranking.keys, len(candidates.ranking.keys)
        for finding in self.findings:
            if finding.subject == "text" and finding.state is CheckState.PROBLEM:
                return _problem(_KEYWORDS, finding.text, finding.mend), before
        if count < 2:
            mend = (
                "let the function return more, or name the parameter that sets the number with"
                " top_k_arg="
            )
            return _problem(_KEYWORDS, "a single passage cannot be reordered", mend), before
        rerank = replace(self.settings.rerank, enabled=False)
        try:
            retrieval, change = yield from self._retrieve(
                before, transformation_type="none", rerank=rerank
            )
        except Exception as error:
            return self._note_later_failure(_KEYWORDS, error), before
        noted = next(
            (what for stage, what in retrieval.trace.notes if stage == "keyword_evidence"), ""
        )
        why = str(change) if change.is_any else self._explain_order(noted)
        said = f"{'changed' if change.is_any else 'not changed'} for this question: {why}"
        self._note(_ok("order", said, changed=change.is_any))
        text = f"the question's keywords rerank {count} candidates"
        if count <= len(before):
            text += ", which is all that the function returns, so no passage is new"
        text += _in_brackets(noted)
        if len(self.questions) > 1 or any(question.relevant for question in self.questions):
            yield from self._sample_orders()
        return self._advise_on_keywords(text, is_changed=change.is_any), change.after

    def _sample_orders(self) -> Flow[None]:
        """Compare the plain order with that of the rules for all questions, and note what they show."""
        asked = choose_evenly(self.questions)
        left_out = len(self.questions) - len(asked)
        sample = yield from sample_orders(
            asked, self._compare_orders, _describe_error, left_out=left_out
        )
        self.sample, judged = sample, sample.judged
        make = _ok if sample.compared else _problem
        counts = {"asked": sample.asked, "left_out": left_out, "failed": sample.failed}
        self._note(
            make(
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
            self._note(_ok("judged", str(judged), **asdict(judged)))
        else:
            text = f"no relevant passage was found for any of {judged.questions} questions"
            self._note(
                _problem(
                    "judged",
                    text,
                    "compare your ids with the ids of the passages",
                    **asdict(judged),
                )
            )

    def _compare_orders(self, question: str) -> Flow[tuple[Matches, Matches]]:
        """The passages of one more *question* in the plain order and under the rules; raises what the function does."""
        if (problem := find_query_problem(question, self.settings)) is not None:
            raise InvalidQuery(f"the question is {problem.reason.replace('_', ' ')}")
        rules = replace(
            self.settings,
            transformation_type="none",
            rerank=replace(self.settings.rerank, enabled=False),
        )
        request = replace(self.request, original=question, settings=rules, text_fields=())
        variant = Variant("original", question)
        plain = read_matches(variant, (yield Search(question, None)), request)
        retrieval = yield from retrieval_flow(request)
        return plain, read_matches(variant, retrieval.response, request)

    def _advise_on_keywords(self, text: str, *, is_changed: bool) -> Finding:
        """The verdict on the words of the question, whose work *text* describes."""
        if self.sample is None:
            return _describe_effect(_KEYWORDS, text, _ASK_MORE, is_changed=is_changed)
        advice, why = self.sample.advise()
        values = {"advice": advice, "changed": bool(self.sample.changed)}
        if advice is Advice.LEAVE_OFF:
            asks_model = (
                self.settings.transformation_type != "none"
                and self.call.context.components.has_model
            )
            mend = "set keywordEvidence: false"
            if asks_model:
                mend = (
                    'keywords help more together with the model\'s words: set escalation: "always"'
                )
            return _problem(_KEYWORDS, why, mend, **values)
        mend = {Advice.MEASURE: _MEASURE, Advice.UNSEEN: _ASK_MORE}.get(advice, "")
        return replace(_ok(_KEYWORDS, why or text, **values), mend=mend)

    def _note_later_failure(self, part: str, error: Exception) -> Finding:
        finding = self._note(
            _problem("call", f"{self.name}() raised {_describe_error(error)} in a later call")
        )
        return _problem(part, finding.text)

    def _explain_order(self, noted: str) -> str:
        """Why the words of the question leave the order as it is; *noted* is what the trace says of them."""
        if not self.keywords:
            return "the question has no keywords"
        if noted.startswith("no keyword"):
            return "no candidate holds any keyword of the question"
        return noted.removeprefix("order kept: ") or "the scores count for more than the keywords"

    def _try_variants(self, before: Sequence[Key]) -> Flow[Finding]:
        if not self.call.context.components.has_model:
            mend = "pass client=, or set OPENAI_API_KEY or QTM_LLM_BASE_URL"
            return self._note_model(_problem("model", "not configured", mend, configured=False))
        settings, limits = self.settings, self.settings.limits
        try:
            retrieval, change = yield from self._retrieve(
                before,
                escalation=replace(settings.escalation, mode="always"),
                limits=_extend(limits),
                rerank=replace(settings.rerank, enabled=False),
            )
        except Exception as error:
            return self._note_later_failure(_VARIANTS, error)
        trace, name = retrieval.trace, self.request.model
        values: dict[str, Any] = {"name": name, "configured": True, "calls": trace.llm_calls}
        failed = _find_failure(retrieval, "transform")
        if failed is not None and failed.reason not in _REPLIED:
            text = f"{name} gave no reply: {failed.reason}{_in_brackets(failed.detail)}"
            mend = _MENDS.get(failed.reason, "")
            return self._note_model(_problem("model", text, mend, **values, reason=failed.reason))
        if not trace.llm_calls:
            reason = "" if trace.decision is None else trace.decision.reason.replace("_", " ")
            text = f"{name} is not called for this kind of question{_in_brackets(reason)}"
            return self._note_model(_off("model", text, "check with another question", **values))
        ms = max((it.ms for it in trace.stages if it.name.startswith("transform")), default=0.0)
        tokens, granted = (
            trace.input_tokens + trace.output_tokens,
            round(1e3 * limits.model_seconds),
        )
        values |= {"ms": _round(ms), "tokens": tokens, "cost_usd": trace.cost_usd}
        text = f"{name} replied in {_write_ms(ms)}" + (f", {tokens} tokens" if tokens else "")
        if ms > granted:
            mend = (
                f"set limits.llmTimeoutMs and limits.deadlineMs well above {ms:.0f}, or choose a"
                " faster model"
            )
            return self._note_model(
                _problem("model", f"{text}; the limit is {granted} ms", mend, **values)
            )
        self._note(_ok("model", text, **values))
        if (failed := failed or _find_failure(retrieval, "search", "embed")) is not None:
            return _problem(
                _VARIANTS, f"{failed.stage} {failed.reason}{_in_brackets(failed.detail)}"
            )
        kinds = [variant.kind for variant in retrieval.variants[1:]]
        weighed = [name for name in TEXT_FIELDS for _ in retrieval.transformation.texts(name)]
        if kinds:
            text = f"searches {len(kinds)} more texts ({', '.join(dict.fromkeys(kinds))}); {change}"
        elif weighed and self.request.uses_keyword_evidence:
            labels = ", ".join(TEXT_FIELDS[name].label for name in dict.fromkeys(weighed))
            text = (
                f"makes no more searches, reranks by the words of {len(weighed)} texts ({labels});"
                f" {change}"
            )
        else:
            return _off(
                _VARIANTS, "the model's reply left nothing more to search for this question"
            )
        return _describe_effect(_VARIANTS, text, is_changed=change.is_any, kinds=kinds)

    def _note_model(self, finding: Finding) -> Finding:
        """Note *finding* on the model, which is the verdict on its variants too."""
        self._note(finding)
        return Finding(_VARIANTS, finding.state, finding.text, finding.mend)

    def _try_reranker(self, before: Sequence[Key]) -> Flow[Finding]:
        try:
            retrieval, change = yield from self._retrieve(
                before, transformation_type="none", limits=_extend(self.settings.limits)
            )
        except Exception as error:
            return self._note_later_failure(_RERANK, error)
        noted = next((what for stage, what in retrieval.trace.notes if stage == "rerank"), "")
        if (failed := _find_failure(retrieval, "rerank")) is not None:
            mend = "raise rerank.timeoutMs" if failed.reason == "timeout" else ""
            return _problem(_RERANK, f"{failed.reason}{_in_brackets(noted or failed.detail)}", mend)
        if not retrieval.reranked:
            return _problem(_RERANK, noted or "there are no passages to rerank")
        judged, ms = (
            len(retrieval.reranked),
            sum(it.ms for it in retrieval.trace.stages if it.name == "rerank"),
        )
        text = f"reranks {judged} candidates in {_write_ms(ms)}; {change}"
        return _describe_effect(
            _RERANK, text, is_changed=change.is_any, ms=_round(ms), judged=judged
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """What became of the order *before*, in words."""

    before: Sequence[Key]
    after: Sequence[Key]

    @property
    def is_any(self) -> bool:
        return list(self.before[: len(self.after)]) != list(self.after)

    def __str__(self) -> str:
        if not self.is_any:
            return "the order does not change for this question"
        new = len(set(self.after) - set(self.before))
        first = (
            "the same passage is first"
            if self.before[:1] == self.after[:1]
            else "another passage is first"
        )
        return (
            f"{new or 'none'} of {len(self.after)} passages {'is' if new < 2 else 'are'} new,"
            f" {first}"
        )


def _ok(subject: str, text: str, /, **values: Any) -> Finding:
    return Finding(subject, CheckState.OK, text, values=values)


def _describe_effect(
    part: str, text: str, unseen_mend: str = "", /, *, is_changed: bool, **values: Any
) -> Finding:
    """The verdict on a *part* that was tried without judgements."""
    advice = Advice.MEASURE if is_changed else Advice.UNSEEN
    mend = _MEASURE if is_changed else unseen_mend
    return Finding(
        part, CheckState.OK, text, mend, {"advice": advice, "changed": is_changed, **values}
    )


def _off(subject: str, text: str, mend: str = "", /, **values: Any) -> Finding:
    return Finding(subject, CheckState.OFF, text, mend, values)


def _problem(subject: str, text: str, mend: str = "", /, **values: Any) -> Finding:
    return Finding(subject, CheckState.PROBLEM, text, mend, values)


def _name_field(option: str, field: str | None) -> str:
    """How to name the *field* in *option* of ``keywordEvidence``; ``""`` if passages have no fields."""
    if not field:
        return (
            ""
            if field is None
            else f"if a field holds them, name the field in keywordEvidence.{option}"
        )
    return f'set config={{"keywordEvidence": {{"{option}": "{field}"}}}}'


def _extend(limits: LimitSettings) -> LimitSettings:
    """The *limits* of a check, in which a slow model is measured rather than given up."""
    patience = max(limits.llm_timeout_ms, _PATIENCE_MS)
    return replace(
        limits, llm_timeout_ms=patience, deadline_ms=max(limits.deadline_ms, 2 * patience)
    )


def _find_failure(retrieval: Retrieval, *stages: str) -> Degradation | None:
    return next((it for it in retrieval.degradations if it.stage.partition(".")[0] in stages), None)


def _describe_error(error: BaseException | None) -> str:
    """The type of *error* and the beginning of what it says, on one line and without passwords of addresses."""
    words = " ".join(without_credentials(str(error)).split())[:_MOST_QUOTED]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _measure_bytes(response: Any) -> int | None:
    """About how many bytes *response* takes as JSON; ``None`` where it cannot be written so."""
    try:
        if hasattr(response, "iloc"):
            return len(str(response.to_json()).encode())
        return len(json.dumps(response, default=_as_plain, skipkeys=True).encode())
    except Exception:
        return None


def _as_plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return dict(value if isinstance(value, Mapping) else list_fields(value)) or str(value)


def _write_ms(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 100 else f"{ms:,.0f} ms"


def _write_bytes(count: int | None) -> str:
    if count is None:
        return "an unknown size"
    return f"{count} B" if count < 1_000 else f"{count / 1e3:,.1f} kB"


def _round(ms: float) -> float:
    return round(ms, 3)


def _in_brackets(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _name(passage: SamplePassage) -> str:
    return f"{passage.id}: {passage.text}" if passage.id else passage.text


def _write_row(label: str, text: str) -> str:
    lines = textwrap.wrap(
        text, _WIDTH - _LABEL, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return f"{label:<{_LABEL}}" + f"\n{'':<{_LABEL}}".join(lines)
