"""The data types of a retrieval. Printing them never shows the texts that they hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from time import monotonic, perf_counter
from typing import Any, ClassVar, Final, Literal, NamedTuple

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.catalogue import (
    Transformation as Transformation,
)  # one of the nouns too; it is defined beside the catalogue of its fields

NEVER: Final = float("inf")


class Deadline:
    """The moment when callers stop waiting: *at*, in seconds on the monotonic clock."""

    __slots__ = ("at",)

    def __init__(self, at: float = NEVER) -> None:
        self.at = at

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a deadline *seconds* from now."""
        return cls(monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left: 0 if the deadline has passed, infinite if there is no limit."""
        return max(0.0, self.at - monotonic()) if self.at != NEVER else NEVER

    @property
    def passed(self) -> bool:
        """Whether the deadline has passed or was cancelled."""
        return monotonic() >= self.at

    def sooner(self, seconds: float) -> Deadline:
        """Return a deadline *seconds* from now, or at this deadline if that is earlier."""
        return Deadline(min(self.at, monotonic() + seconds))

    def cancel(self) -> None:
        """Make the deadline pass now."""
        self.at = 0.0


class FrozenDataclass:
    """The base class of frozen dataclasses: it compares, hashes and prints them.

    Inheriting these methods is faster than letting `dataclass` generate them at each start.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(_get_compared_values(self) == _get_compared_values(other))

    def __hash__(self) -> int:
        return hash(_get_compared_values(self))

    def __repr__(self) -> str:
        shown = (
            f"{shown_field.name}={getattr(self, shown_field.name)!r}"
            for shown_field in fields(self)
            if shown_field.repr
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _get_compared_values(instance: Any) -> Any:
    return _make_field_reader(instance.__class__)(instance)


@cache
def _make_field_reader(cls: Any) -> Callable[[Any], Any]:
    return attrgetter(
        *(compared_field.name for compared_field in fields(cls) if compared_field.compare)
    )


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Stage(FrozenDataclass):
    """One stage of a retrieval.

    Attributes:
        name: What the stage does, such as ``preprocess`` or ``search.original``.
        started_ms: Its start, in milliseconds since the retrieval began.
        ms: Its duration, in milliseconds.
        status: ``ok``, ``skipped``, ``degraded`` or ``failed``.
        detail: The reason for the status, without any query text.
    """

    name: str
    started_ms: float
    ms: float
    status: str = "ok"
    detail: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Decision(FrozenDataclass):
    """Whether the model was asked, the reason in one word, and the numbers behind it."""

    call: bool
    reason: str
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Trace:
    """The record of one retrieval, without texts of queries or passages.

    Attributes:
        query_id: A random id of 16 hex digits.
        llm_calls: The number of requests to language models.
        input_tokens, output_tokens: The tokens that the models read and wrote.
        cost_usd: What the model calls cost in US dollars; ``None`` if a price is unknown.
        cache_hits: How many transformations came from the cache, or from the model call of an
            identical question.
        searches: The number of calls of the wrapped function.
        replayed_ms: For replayed model replies, how long the original replies took.
        original_ms, total_ms: How long the original query's search and the whole retrieval took.
        decision: Whether the model was asked, and why; ``None`` if no decision was made.
        notes: Facts that are not failures, as ``(subject, detail)``.
    """

    query_id: str = field(default_factory=lambda: os.urandom(8).hex())
    llm_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    cache_hits: int = 0
    searches: int = 0
    replayed_ms: float = 0.0
    original_ms: float = 0.0
    total_ms: float = 0.0
    decision: Decision | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    _stages: list[tuple[str, float, float, str, str]] = field(default_factory=list)
    """The fields of each stage. The property `stages` makes `Stage` objects of them on demand."""
    _began: float = field(default_factory=perf_counter)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order in which they were recorded."""
        return tuple(Stage(*values) for values in self._stages)

    @property
    def added_ms(self) -> float:
        """The milliseconds that this retrieval added to the search for the original query."""
        return max(0.0, self.total_ms - self.original_ms)

    def measure_elapsed(self) -> float:
        """Return the seconds since the retrieval began."""
        return perf_counter() - self._began

    def record_stage(
        self,
        name: str,
        seconds: float,
        status: str = "ok",
        detail: str = "",
        *,
        began: float | None = None,
    ) -> None:
        """Record that the stage *name* took *seconds*, by default until now.

        *began* is its start as `time.perf_counter` returned it.
        """
        started = self.measure_elapsed() - seconds if began is None else began - self._began
        # A duration longer than the retrieval would give a start before the retrieval.
        self._stages.append((name, max(0.0, started) * 1e3, seconds * 1e3, status, detail))

    def note(self, subject: str, detail: str) -> None:
        """Record the note *detail* on *subject*. A note does not mark the result as degraded."""
        self.notes.append((subject, detail))

    def record_usage(
        self, calls: int, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        """Add model calls, their tokens and their cost, which stays ``None`` once it is unknown."""
        self.llm_calls += calls
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost_usd = (
            None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd
        )

    def finish(self) -> None:
        """Record the total time of the retrieval."""
        self.total_ms = self.measure_elapsed() * 1e3

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as a dict, ready for JSON."""
        stages = [asdict(stage) for stage in self.stages]
        values = {
            **asdict(self),
            "added_ms": self.added_ms,
            "notes": [list(note) for note in self.notes],
            "stages": stages,
        }
        del values["_stages"], values["_began"]
        for holder in (values, *stages):
            for name in holder:
                if name.endswith("ms"):
                    holder[name] = round(holder[name], 3)
        return values

    def __repr__(self) -> str:
        return (
            f"Trace(total_ms={self.total_ms:.1f}, searches={self.searches},"
            f" llm_calls={self.llm_calls})"
        )


VariantKind = str
"""The kind of a searched text: ``original``, ``joined``, or the ``variant`` of a `TextField`."""

DEFAULT_NAMESPACE = "__default__"
"""Pinecone's name for the namespace that callers write as ``""`` or ``None``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Message(FrozenDataclass):
    """One message of a conversation; *role* is ``user``, ``assistant`` or ``system``."""

    role: str
    content: str = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Query(FrozenDataclass):
    """A question, and the texts that are made from it for searching.

    Attributes:
        original: The user's text, unchanged.
        text: The text to embed.
        keywords: The words for keyword evidence.
        language: The code of the word list that was used; ``""`` if none was.
    """

    original: str = field(repr=False)
    text: str = field(repr=False)
    keywords: str = field(repr=False)
    language: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Variant(FrozenDataclass):
    """One text to search for. Its *kind* is ``original``, ``rewrite`` or the like.

    *weight* is the weight of this search's ranking in the fusion.
    """

    kind: VariantKind
    text: str = field(repr=False)
    weight: float = 1.0


Key = tuple[str, str]
"""The key of a passage: its namespace and id, or its namespace and text if it has no id."""


Path = Sequence[str | int]
"""The names and positions of nested fields, the outermost first."""


class Passage(NamedTuple):
    """One passage of a response, read once.

    Attributes:
        key: Equal keys in different rankings mean the same passage.
        item: What the wrapped function returned for it, or a dict of its values in columns.
        id: The passage's id, or else the id of its document; ``None`` if it has none.
        score: The backend's score; ``None`` if there is no finite number.
        text: The passage's text; ``None`` if there is none.
        title: The passage's title; ``""`` if it has none.
        metadata: Its other fields. Without separate metadata, all fields of the item.
        text_field: The name of the field with the text; ``""`` if the item itself is the text.
        score_paths: The places in *item* that may hold the score, the likeliest first.
    """

    key: Key
    item: Any
    id: str | None = None
    score: float | None = None
    text: str | None = None
    title: str = ""
    metadata: Mapping[str, Any] = {}
    text_field: str | None = None
    score_paths: Sequence[Path] = ()

    def __repr__(self) -> str:
        return f"Passage(score={self.score!r})"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Match(FrozenDataclass):
    """One passage that was found.

    Attributes:
        id: The passage's id; ``None`` if it has none.
        namespace: The namespace that contains it.
        score: The backend's score for the question (or its standalone form). ``None`` if only
            variants found the passage. With the ``concat`` fusion, the score in the passage's list.
        fused_score: Qtmiddleware's score, by which the result is sorted; higher is better.
        text: The passage's text; ``None`` if the response does not contain it.
        metadata: The passage's metadata.
        found_by: The kinds of the variants that found it, in the order of their searches.
        rerank_score: The reranker's score; ``None`` if it did not score this passage.
        raw: The object that the wrapped function returned for the passage.
        key: The passage's key in the lists of its `Retrieval`.
    """

    id: str | None
    namespace: str
    score: float | None
    fused_score: float | None = None
    text: str | None = field(default=None, repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    found_by: tuple[str, ...] = ()
    rerank_score: float | None = None
    raw: Any = field(default=None, repr=False, compare=False)
    key: Key = field(default=("", ""), repr=False, compare=False)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Ranking(FrozenDataclass):
    """The result of one variant's search, as three lists of equal length, best passage first.

    *scores* are the backend's, ``None`` if missing. *initial* holds the lists that a `Hybrid`
    search merged, under ``vector`` and ``bm25``.
    """

    variant: Variant
    keys: Sequence[Key] = field(repr=False)
    scores: Sequence[float | None]
    passages: Sequence[Passage] = field(repr=False)
    initial: Mapping[str, Ranking] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Degradation(FrozenDataclass):
    """One problem that made a result differ from what was requested, without any query text.

    *stage* is where the problem happened, *reason* is one word, and *detail* describes it.
    """

    stage: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Evidence(FrozenDataclass):
    """How keywords changed the order of the leading passages after the fusion.

    Attributes:
        keywords: The groups of words with their weights, those of the question first.
        weight: The weight of the keywords, from 0 to 1.
        keys, scores: The leading passages in their new order, and their new scores.
        shares: What keywords added to each of these scores.
        language: The language whose rules match different forms of a word; ``""`` for none.
        coverage: The fraction of the question's content words in the first three passages before
            the order changed; ``None`` if it was not measured.
        matched: The fraction of the dates and other values named in the question that the metadata
            of each leading passage have; empty if the question names none.
    """

    keywords: tuple[tuple[str, float], ...] = field(repr=False)
    weight: float
    keys: tuple[Key, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)
    shares: tuple[float, ...] = field(repr=False)
    language: str = ""
    coverage: float | None = None
    matched: tuple[float, ...] = ()


_STANDING_SENTENCES: Final = {
    "best_score": "the best score is better than in {percentile} of the last {seen} questions",
    "lead": "its lead over the tenth is larger than in {percentile}",
    "coverage": (
        "the first three passages hold {signal} of the question's keywords: more than in"
        " {percentile}"
    ),
}


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Standing(FrozenDataclass):
    """The confidence in a result, compared with the function's earlier results.

    Attributes:
        confidence: The weighted mean of the *percentiles*, from 0 to 1; not a probability. ``None``
            if there is a *problem*.
        signals: ``best_score``, ``lead`` and ``coverage``, as far as measured; higher is better.
        percentiles: For each signal, the fraction of earlier questions whose signal was lower.
        seen: The number of earlier questions in the comparison, at most 512.
        is_unsure: Whether the function probably has no answer, because its signals are unusually
            low.
        problem: The reason why there are no *percentiles*; ``""`` if there are some.
    """

    confidence: float | None
    signals: Mapping[str, float] = field(default_factory=dict)
    percentiles: Mapping[str, float] = field(default_factory=dict)
    seen: int = 0
    is_unsure: bool = False
    problem: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence per signal, without query text; or why there is no confidence."""
        if self.problem:
            return (self.problem,)
        return tuple(
            _STANDING_SENTENCES[name].format(
                percentile=f"{share:.0%}", signal=f"{self.signals[name]:.0%}", seen=self.seen
            )
            for name, share in self.percentiles.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the confidence, its reasons and its signals as a dict, ready for JSON."""
        return {
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "is_unsure": self.is_unsure,
            "confidence_reasons": list(self.reasons),
            "confidence_signals": {name: round(signal, 6) for name, signal in self.signals.items()},
        }


NOT_JUDGED: Final = Standing(None, problem="the call was passed through, so nothing was measured")


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Retrieval(FrozenDataclass):
    """The result of one retrieval.

    Attributes:
        original_query: The query exactly as it was passed; ``""`` if the call had none.
        matches: The passages of *response*, best first.
        response: The result in the wrapped function's own type and shape.
        variants: The texts that were searched, the original query first.
        status: ``full``, or ``degraded`` if something did not go as requested.
        degradations: The problems that made the result differ from what was requested.
        trace: The record of the retrieval: times, calls, costs and notes.
        transformation: The texts that the model wrote; empty if no model was asked.
        rankings: The result of each variant's search.
        fused, fused_scores: The passages' keys and scores after the fusion; higher is better.
        reranked, rerank_scores: The candidates that a reranker scored, in its order, and its
            scores.
        keywords: The question's keywords, as `qtmiddleware.preprocess` returns them. ``""`` if
            ``preprocess`` is off, or if the query is passed through unchanged.
        evidence: The effect of keywords on the order; ``None`` if keywords were not used.
        standing: The confidence in the result, and the signals behind it.
    """

    original_query: str = field(repr=False)
    matches: tuple[Match, ...]
    response: Any = field(repr=False)
    variants: tuple[Variant, ...]
    status: Literal["full", "degraded"]
    degradations: tuple[Degradation, ...]
    trace: Trace
    transformation: Transformation = NOTHING
    rankings: tuple[Ranking, ...] = field(default=(), repr=False)
    fused: tuple[Key, ...] = field(default=(), repr=False)
    reranked: tuple[Key, ...] = field(default=(), repr=False)
    keywords: str = field(default="", repr=False)
    fused_scores: tuple[float, ...] = field(default=(), repr=False)
    rerank_scores: tuple[float | None, ...] = field(default=(), repr=False)
    evidence: Evidence | None = field(default=None, repr=False)
    standing: Standing = field(default=NOT_JUDGED, repr=False)

    @property
    def confidence(self) -> float | None:
        """The confidence in this result, from 0 (worse than earlier results) to 1 (better).

        A percentile among the function's earlier results; ``None`` for the first 20 questions, and
        0 for a result without passages.
        """
        return self.standing.confidence

    @property
    def confidence_reasons(self) -> tuple[str, ...]:
        """Sentences that explain the confidence, or why it is ``None``."""
        return self.standing.reasons

    @property
    def is_unsure(self) -> bool:
        """Whether the function probably has no answer to this question.

        True if there are no passages, or if the best score is far below this function's usual ones
        and the first three passages contain at most a third of the question's keywords.
        """
        return self.standing.is_unsure

    def __repr__(self) -> str:
        problems = ", ".join(f"{problem.stage} {problem.reason}" for problem in self.degradations)
        confidence = "None" if self.confidence is None else f"{self.confidence:.2f}"
        return (
            f"Retrieval(matches={len(self.matches)}, status={self.status!r},"
            f" degradations=[{problems}], confidence={confidence}, trace={self.trace!r})"
        )

    def _repr_html_(self) -> str:
        # Imported here so that only a notebook pays for it.
        from qtmiddleware.retrieval.movement import render_html

        return render_html(self)


def add_degradation(retrieval: Retrieval, degradation: Degradation) -> Retrieval:
    """Return *retrieval* with one more degradation."""
    return replace(
        retrieval, status="degraded", degradations=(*retrieval.degradations, degradation)
    )


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Citation(FrozenDataclass):
    """One citation in an answer's text, such as ``[1]``.

    *number* counts the passages from 1. ``text[start:end]`` includes the brackets.
    """

    number: int
    start: int
    end: int
    match: Match


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class SubAnswer(FrozenDataclass):
    """The answer to one sub-query, based on the passages that the sub-query's search found.

    Attributes:
        question: The sub-query.
        text: The answer's text.
        citations: The citations in *text*; their numbers refer to *matches*.
        matches: The passages that the model was shown.
        found: Whether the passages contain the answer; false if the model failed, too.
        reason: The reason why *found* is false; ``""`` if *found* is true.
    """

    question: str = field(repr=False)
    text: str = field(repr=False)
    citations: tuple[Citation, ...] = ()
    matches: tuple[Match, ...] = field(default=(), repr=False)
    found: bool = True
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Answer(FrozenDataclass):
    """The answer to a question, with the passages that it cites.

    Attributes:
        text: The answer. If the passages do not contain an answer, *text* says so.
        citations: The citations in *text*.
        matches: The passages that the model was shown; number n in *text* means ``matches[n - 1]``.
        retrieval: The retrieval that found them. Its trace also counts the answer's model calls.
        found: Whether the passages contain the answer.
        sub_answers: The answers to the sub-queries, in the ``synthesis`` mode.
        status: ``full``, or ``degraded`` if something did not go as requested.
        degradations: The problems in the retrieval and in the answer.
        context: The texts of the passages as the model saw them, each under ``PASSAGE n``.
        transformation_type: The transform of the question, as in the settings.
    """

    text: str = field(repr=False)
    citations: tuple[Citation, ...]
    matches: tuple[Match, ...] = field(repr=False)
    retrieval: Retrieval
    found: bool = True
    sub_answers: tuple[SubAnswer, ...] = ()
    status: Literal["full", "degraded"] = "full"
    degradations: tuple[Degradation, ...] = ()
    context: str = field(default="", repr=False)
    transformation_type: str = "none"


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Operation(FrozenDataclass):
    """One operation of the middleware, as an `Observer` receives it at its start and at its end.

    Attributes:
        id: The same number at the start and at the end.
        kind: ``retrieval``, ``answer`` or ``transform``, or a part of one of these: ``search``,
            ``embedding``, ``model`` or ``rerank``.
        name: For a search, the kind of its variant; for a model call, the mode of its prompt.
        parent: The operation that includes this one; ``None`` for an outermost operation.
        model: The name of the language model, embedding model or reranker; ``""`` if not known.
        provider: As in OpenTelemetry's conventions, such as ``openai``; ``""`` if not known.
        weight: For a search, the weight of its variant in the fusion.
        top_k: The number of passages that a retrieval or search asks for; ``None`` if not known.
        began: The start, in seconds since the epoch.
        seconds: The duration in seconds.
        outcome: ``running``, then ``ok``, ``failed``, ``late`` (the caller stopped waiting) or
            ``cancelled``.
        reason: The reason of a `ModelError`, or else the type of the exception.
        content: The input, such as a query's text or a `Prompt`. It is never printed.
        result: The output, such as a `Retrieval`, a `Reply` or a response. It is never printed.
    """

    id: int
    kind: Literal["retrieval", "answer", "transform", "search", "embedding", "model", "rerank"]
    name: str = ""
    parent: Operation | None = field(default=None, repr=False)
    model: str = ""
    provider: str = ""
    weight: float = 1.0
    top_k: int | None = None
    began: float = 0.0
    seconds: float = 0.0
    outcome: Literal["running", "ok", "failed", "late", "cancelled"] = "running"
    reason: str = ""
    content: Any = field(default=None, repr=False, compare=False)
    result: Any = field(default=None, repr=False, compare=False)
