"""The nouns that flow through the pipeline, each printed without the texts it holds: time, trace, query, results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from time import monotonic, perf_counter, time
from typing import Any, ClassVar, Final, Literal

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.catalogue import (
    Transformation as Transformation,
)  # one of these nouns, with its fields' catalogue

NEVER: Final = float("inf")


class Deadline:
    """A moment after which nobody waits any more.

    It can also be cancelled, which makes it pass at once for whoever looks. With *seconds* it draws
    nearer when it is
    begun: that many seconds are left then. Times are seconds on the monotonic clock.
    """

    __slots__ = ("_at", "_seconds")

    def __init__(self, at: float = NEVER, seconds: float = NEVER) -> None:
        self._at = at
        self._seconds = seconds

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline *seconds* from now."""
        return cls(monotonic() + seconds)

    @property
    def at(self) -> float:
        """The moment itself, on the monotonic clock."""
        return self._at

    def remaining(self) -> float:
        """The seconds that are left; 0 once it has passed, infinite where there is no deadline."""
        return max(0.0, self._at - monotonic()) if self._at != NEVER else NEVER

    @property
    def passed(self) -> bool:
        """Whether the moment is over or the work was cancelled."""
        return monotonic() >= self._at

    def sooner(self, seconds: float) -> Deadline:
        """The nearer of this deadline and *seconds* from now."""
        return Deadline(min(self._at, monotonic() + seconds))

    def copy(self) -> Deadline:
        """One like this, that is begun and cancelled alone."""
        return Deadline(self._at, self._seconds)

    def begin(self) -> None:
        """Let no more than the *seconds* it was made with be left from now on."""
        if self._seconds != NEVER:
            self._at = min(self._at, monotonic() + self._seconds)

    def cancel(self) -> None:
        """Let the moment be now."""
        self._at = 0.0


class Noun:
    """What frozen dataclasses of this package share: how they are compared, hashed and printed, by their fields.

    Written once, as the methods that a dataclass generates are compiled for each class whenever a
    process starts.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        return (
            bool(_read_compared(self) == _read_compared(other))
            if type(other) is type(self)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(_read_compared(self))

    def __repr__(self) -> str:
        shown = (f"{it.name}={getattr(self, it.name)!r}" for it in fields(self) if it.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _read_compared(noun: Any) -> Any:
    """Return the values of *noun* that are compared."""
    return _reader_of(noun.__class__)(noun)


@cache
def _reader_of(cls: Any) -> Callable[[Any], Any]:
    """What reads the fields of *cls* that are compared, all at once."""
    return attrgetter(*(it.name for it in fields(cls) if it.compare))


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Stage(Noun):
    """One stage of the flow: when it began and how long it took, in milliseconds, and how it ended.

    *status* is ``ok``, ``skipped``, ``degraded`` or ``failed``; *detail* says why, in words without
    any query text.
    """

    name: str
    started_ms: float
    ms: float
    status: str = "ok"
    detail: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Decision(Noun):
    """Whether the model was asked, the one-word *reason*, and the numbers it was decided on."""

    call: bool
    reason: str
    signals: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False, repr=False)
class Trace:
    """The account of one retrieval, written while it runs.

    It holds no query or passage text, but for the dates and versions that a question names.

    *query_id* is a random name. *added_ms* is the time beyond the original's own search;
    *replayed_ms* what model replies that were replayed took when they were first had. *cost_usd* is
    what the model cost, *read_cost_usd* what the searches did; either is ``None`` where a price is
    not known.
    """

    query_id: str = field(default_factory=lambda: os.urandom(8).hex())
    llm_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    cache_hits: int = 0
    searches: int = 0
    read_price: float | None = None
    replayed_ms: float = 0.0
    original_ms: float = 0.0
    total_ms: float = 0.0
    decision: Decision | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    _stages: list[tuple[str, float, float, str, str]] = field(default_factory=list)
    """The fields of each stage: most accounts are never read."""
    _more_read_units: float = 0
    _began: float = field(default_factory=perf_counter)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages in the order they were noted; each tells when it began."""
        return tuple(Stage(*it) for it in self._stages)

    @property
    def added_ms(self) -> float:
        """Milliseconds this retrieval took beyond the original's own search."""
        return max(0.0, self.total_ms - self.original_ms)

    @property
    def read_units(self) -> float:
        """What the responses say their searches read (``usage.read_units``), and 1 for each that says nothing.

        Pinecone bills by it, by the size of the namespace; its responses round each search up to a
        whole unit.
        """
        return self.searches + self._more_read_units

    @property
    def read_cost_usd(self) -> float | None:
        """US dollars that the searches cost, by ``store.readPrice``; ``None`` where that is not set."""
        return None if self.read_price is None else self.read_units * self.read_price / 1e6

    @property
    def started_at(self) -> float:
        """When the retrieval began, in seconds since the epoch."""
        return time() - (perf_counter() - self._began)

    def clock(self) -> float:
        """Seconds since the retrieval began."""
        return perf_counter() - self._began

    def stage(
        self,
        name: str,
        seconds: float,
        status: str = "ok",
        detail: str = "",
        *,
        began: float | None = None,
    ) -> None:
        """Write down that stage *name* took *seconds*; it ended just now, unless *began* is given.

        *began* is on the clock of `time.perf_counter`.
        """
        started = self.clock() - seconds if began is None else began - self._began
        self._stages.append((name, max(0.0, started) * 1e3, seconds * 1e3, status, detail))

    def note(self, subject: str, what: str) -> None:
        """Write down something worth knowing that is no failure."""
        self.notes.append((subject, what))

    def spent(
        self, *, calls: int, input_tokens: int, output_tokens: int, cost_usd: float | None
    ) -> None:
        """Add what one model reply cost."""
        self.llm_calls += calls
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost_usd = (
            None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd
        )

    def count_search(self, calls: int, units: Sequence[float] = ()) -> None:
        """Count a search that took *calls* of the function, the last of which read *units* if its response says so."""
        self.searches += calls
        if units:
            self._more_read_units += sum(units) - 1

    def add_searches(self, other: Trace) -> None:
        """Count the searches of *other* here too."""
        self.searches += other.searches
        self._more_read_units += other._more_read_units

    def finish(self) -> None:
        """Write down the whole time."""
        self.total_ms = self.clock() * 1e3

    def to_dict(self) -> dict[str, Any]:
        """The account as plain JSON-ready values."""
        return {
            "query_id": self.query_id,
            "total_ms": round(self.total_ms, 3),
            "original_ms": round(self.original_ms, 3),
            "added_ms": round(self.added_ms, 3),
            "replayed_ms": round(self.replayed_ms, 3),
            "searches": self.searches,
            "read_units": self.read_units,
            "read_cost_usd": self.read_cost_usd,
            "llm_calls": self.llm_calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
            "cache_hits": self.cache_hits,
            "decision": None if self.decision is None else asdict(self.decision),
            "stages": [
                {**asdict(it), "started_ms": round(it.started_ms, 3), "ms": round(it.ms, 3)}
                for it in self.stages
            ],
            "notes": [list(note) for note in self.notes],
        }

    def __repr__(self) -> str:
        return (
            f"Trace(total_ms={self.total_ms:.1f}, searches={self.searches},"
            f" llm_calls={self.llm_calls})"
        )


VariantKind = str
"""What a searched text is to the question: ``original``, or what a row of the catalogue says."""

DEFAULT_NAMESPACE = "__default__"
"""The name Pinecone gives the namespace that callers write as ``""`` or ``None``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Message(Noun):
    """One turn of a conversation; *role* is ``user``, ``assistant`` or ``system``."""

    role: str
    content: str = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Query(Noun):
    """A question in its two faces: *text* for the embedding, *keywords* for lexical evidence.

    *original* is what the user wrote, byte for byte. *language* is the code of the word list that
    was used, or ``""`` where none was.
    """

    original: str = field(repr=False)
    text: str = field(repr=False)
    keywords: str = field(repr=False)
    language: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Variant(Noun):
    """One text that is searched, with its *weight* in the fusion."""

    kind: VariantKind
    text: str = field(repr=False)
    weight: float = 1.0


Key = tuple[str, str]
"""What makes two matches the same passage: namespace and id; the text stands in only where there is no id."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Match(Noun):
    """One passage that was found.

    *score* is the backend's own number for the user's question (or for its standalone form, if
    searched), ``None`` where only variants found the passage, which have numbers of their own; with
    the ``concat`` fusion it is that of the list the passage stands in. *fused_score* is ours:
    higher is better, and it falls with the order. *found_by* names the kinds of variant that found
    it, in the order they were searched. *rerank_score* is the reranker's, where it judged this one.
    *raw* is the very object the wrapped function returned for it. *key* is what it is called in the
    lists of its `Retrieval`.
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
class Ranking(Noun):
    """What one variant found, best first, as three lists of one length.

    *keys* say which passage, *scores* hold the backend's own numbers (``None`` where it gave none)
    and *items* the very objects it returned, or a mapping for each plain tuple and for each row of
    columns. Columns, because most of what is found is weighed and never shown. *initial* holds, by
    their names ``vector`` and ``bm25``, the lists it was merged from where a `Hybrid` made it.
    """

    variant: Variant
    keys: Sequence[Key] = field(repr=False)
    scores: Sequence[float | None]
    items: Sequence[Any] = field(repr=False)
    initial: Mapping[str, Ranking] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Degradation(Noun):
    """Something that did not go as asked: the *stage*, a one-word *reason* and a *detail* without any query text."""

    stage: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Evidence(Noun):
    """What keywords said of the leading passages after the fusion.

    *keywords* are the words that were looked for, each group with its weight: the question's first,
    then those of its variants. *keys* are those passages in their order after it and *scores* their
    sums, higher is better, of which
    *shares* is owed to keywords. *weight*, from 0 to 1, is how much keywords counted. *language* is
    the code of the language whose forms of words were taken for one, empty if none were. *coverage*
    is the share of the question's content words that the first three passages held before, ``None``
    if it was not measured.
    """

    keywords: tuple[tuple[str, float], ...] = field(repr=False)
    weight: float
    keys: tuple[Key, ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)
    shares: tuple[float, ...] = field(repr=False)
    language: str = ""
    coverage: float | None = None


_STANDING_SAYS: Final = {
    "best_score": "the best score is better than in {percentile} of the last {seen} questions",
    "lead": "its lead over the tenth is larger than in {percentile}",
    "coverage": (
        "the first three passages hold {signal} of the question's keywords: more than in"
        " {percentile}"
    ),
}


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Standing(Noun):
    """Where a question's signals stand among those of earlier questions of the same function.

    - *confidence*: the weighted mean of the *percentiles*, from 0 to 1; ``None`` if there is none,
      and *problem* says
      why. It is a percentile, not a probability.
    - *signals*: what was measured (``best_score``, ``lead``, ``coverage``); higher is better in
      each.
    - *percentiles*: the share of earlier questions whose signal was lower, by the same names.
    - *seen*: how many earlier questions that were, at most 512.
    - *is_unsure*: whether the signals are low for this function in absolute terms.
    """

    confidence: float | None
    signals: Mapping[str, float] = field(default_factory=dict)
    percentiles: Mapping[str, float] = field(default_factory=dict)
    seen: int = 0
    is_unsure: bool = False
    problem: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """What each signal says, or why there is no confidence, as sentences without any text of the query."""
        if self.problem:
            return (self.problem,)
        return tuple(
            _STANDING_SAYS[name].format(
                percentile=f"{share:.0%}", signal=f"{self.signals[name]:.0%}", seen=self.seen
            )
            for name, share in self.percentiles.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the confidence, its reasons and its signals as plain JSON-ready values."""
        return {
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "is_unsure": self.is_unsure,
            "confidence_reasons": list(self.reasons),
            "confidence_signals": {name: round(signal, 6) for name, signal in self.signals.items()},
        }


NOT_JUDGED: Final = Standing(None, problem="the call was passed through, so nothing was measured")


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Retrieval(Noun):
    """The outcome of one retrieval.

    *original_query* is the query as it was passed, byte for byte; where that was no text, the very
    object, and ``""`` where there was none. *keywords* is what the rules made of it, as
    `qtmiddleware.preprocess` gives it, and ``""`` where they did not run: with ``preprocess`` off,
    and for a query that cannot be worked with. *response* has the wrapped function's own shape;
    *matches* is the same result, read.

    *rankings* and *fused* are what it was made of: each variant's own list, and their keys after
    fusion, before any evidence, with *fused_scores*, higher is better. *gains* holds, for methods
    that add up, what each place of each ranking added to that score; a passage that stands in a
    list twice has the first. *evidence* is what the keywords then changed, ``None`` where they were
    not weighed. *standing* tells how sure the result looks beside earlier ones.
    *reranked* holds the candidates a reranker judged, in its order, and *rerank_scores* what it
    gave each, ``None`` where that has no text. *offsets* holds, with the ``concat`` fusion, where
    each list begins in *matches*, in the order of *rankings*.
    """

    original_query: str = field(repr=False)
    matches: tuple[Match, ...]
    response: Any = field(repr=False)
    variants: tuple[Variant, ...]
    status: Literal["full", "degraded"]
    degradations: tuple[Degradation, ...]
    trace: Trace
    transformation: Transformation = NOTHING
    offsets: tuple[int, ...] = ()
    rankings: tuple[Ranking, ...] = field(default=(), repr=False)
    fused: tuple[Key, ...] = field(default=(), repr=False)
    reranked: tuple[Key, ...] = field(default=(), repr=False)
    keywords: str = field(default="", repr=False)
    fused_scores: tuple[float, ...] = field(default=(), repr=False)
    rerank_scores: tuple[float | None, ...] = field(default=(), repr=False)
    gains: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    evidence: Evidence | None = field(default=None, repr=False)
    standing: Standing = field(default=NOT_JUDGED, repr=False)

    @property
    def confidence(self) -> float | None:
        """How this question's result stands among the function's earlier ones, from 0 to 1.

        A percentile, not a probability; ``None`` until 20 questions were seen, and
        `confidence_reasons` says so.
        """
        return self.standing.confidence

    @property
    def confidence_reasons(self) -> tuple[str, ...]:
        """What the confidence rests on, or why there is none, as sentences."""
        return self.standing.reasons

    @property
    def is_unsure(self) -> bool:
        """Whether the function probably holds nothing for this question.

        True if its best score is far below the usual ones of this function and its first passages
        hold at most a third of the question's keywords, or if there are no passages at all.
        """
        return self.standing.is_unsure

    def __repr__(self) -> str:
        # Only who prints a result, or has a notebook show it, waits for this module.
        from qtmiddleware.notebook import describe

        return f"Retrieval({describe(self)})"

    def _repr_html_(self) -> str:
        from qtmiddleware.notebook import render_html

        return render_html(self)


def add_degradation(retrieval: Retrieval, degradation: Degradation) -> Retrieval:
    """*retrieval*, degraded by one thing more."""
    return replace(
        retrieval, status="degraded", degradations=(*retrieval.degradations, degradation)
    )


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Citation(Noun):
    """One place of an answer that rests on a passage.

    *number* is what stands in the answer's text in brackets, counted from 1; ``text[start:end]`` is
    that mark, and
    *match* the passage it means.
    """

    number: int
    start: int
    end: int
    match: Match


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class SubAnswer(Noun):
    """The answer to one sub-query from its own passages; its citations count within *matches*, what it was shown.

    *found* is false where the passages do not hold the answer or none came; *reason* then says why.
    """

    question: str = field(repr=False)
    text: str = field(repr=False)
    citations: tuple[Citation, ...] = ()
    matches: tuple[Match, ...] = field(default=(), repr=False)
    found: bool = True
    reason: str = ""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Answer(Noun):
    """An answer to a question, with the passages it rests on.

    *found* is false where the passages do not hold the answer; *text* then says so. *matches* are
    the passages the model was shown; the number n in *text* and *citations* means ``matches[n -
    1]``. *retrieval* tells how they were found, and its trace counts every model call of the answer
    too. *sub_answers* are those of the ``synthesis`` mode.
    *context* is what the model was shown of the passages, each under ``PASSAGE n``, and
    *transformation_type* how the question was transformed.
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
class Operation(Noun):
    """Something the middleware does, as an `Observer` hears of it: when it starts and, with the same *id*, at its end.

    *kind* is ``retrieval``, ``answer`` or ``transform``, or what is done within these: ``search``,
    ``embedding``, ``model`` or ``rerank``. *parent* is the operation it is part of. *name* is a
    search's kind of variant, whose
    *weight* is that in the fusion, or the mode of a model's prompt. *model* is the name of the
    model that is asked, embeds or reranks, and *provider* who serves it, as OpenTelemetry's
    conventions call them (``openai``, ``azure.ai.openai``, ...); both are empty where they are not
    known. *server* is the host and port that are asked, ``None`` where they are not known. *top_k*
    is how many passages a retrieval or search asks for, ``None`` where that is not known. *began*
    is in seconds since the epoch, *seconds* how long it took.

    *outcome* is ``running``, then ``ok``, ``failed``, ``late`` (nobody waits for it any more) or
    ``cancelled``.
    *reason* is why it failed, in one word: that of a `ModelError`, else the type of what was
    raised. *counts* holds, where they apply, ``passages``, ``searches``, ``degradations``,
    ``texts``, ``llm_calls``, ``input_tokens``, ``output_tokens`` and ``citations``.

    *content* is what the operation works on (a query's text, texts, a `Prompt`) and *result* what
    came of it (a `Retrieval`, an `Answer`, the function's response, a `Reply`, ...). They hold what
    users and passages say: nothing prints them, and an observer looks at them on purpose alone.
    """

    id: int
    kind: Literal["retrieval", "answer", "transform", "search", "embedding", "model", "rerank"]
    name: str = ""
    parent: Operation | None = field(default=None, repr=False)
    model: str = ""
    provider: str = ""
    server: tuple[str, int] | None = None
    weight: float = 1.0
    top_k: int | None = None
    began: float = 0.0
    seconds: float = 0.0
    outcome: Literal["running", "ok", "failed", "late", "cancelled"] = "running"
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    content: Any = field(default=None, repr=False, compare=False)
    result: Any = field(default=None, repr=False, compare=False)
