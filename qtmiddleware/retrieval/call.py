"""Describe one question in one call, and check and prepare its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from qtmiddleware.catalogue import OWN_FUSION, TEXT_FIELDS, FusionMethod
from qtmiddleware.config.settings import FusionSettings, Settings
from qtmiddleware.errors import InvalidQuery, ModelError
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.protocols import Clock, FuseFunction, Reranker, RetrievalHook
from qtmiddleware.retrieval.learned import Learned, ReplyRelevance
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.logs import LogSampler, SafeLogger
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.types import Degradation, Message, Query, Trace, Transformation

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Glossary

PAGED: Final = "paged"
"""The problem's reason if a call asks for a page of results. Such a page is only reordered."""

MAX_QUERY_CHARS: Final = 8_000
"""The maximum length of a question. Longer questions go to the user's function unchanged."""

# The kinds of variant whose words are likely to occur in passages that answer the question.
EVIDENT: Final = frozenset(row.variant for row in TEXT_FIELDS.values() if row.is_evidence)


class Model(Protocol):
    """What a call needs to know of the model that transforms its question."""

    name: str
    relevance: ReplyRelevance

    def find_blocking_error(self) -> ModelError | None:
        """Return the error that a model call would raise now; ``None`` if it may be called."""


class Engine(Protocol):
    """What a call uses of its engine, `qtmiddleware.wrapping.engine.Engine`."""

    cache: TransformationCache
    sampler: LogSampler
    fuse: FuseFunction | None
    clock: Clock | None
    glossary: Glossary | None
    reranker: Reranker | None


@dataclass(eq=False, repr=False, slots=True)
class Call:
    """One question in one call of a wrapped function.

    Attributes:
        original: The query as the caller passed it.
        history: The conversation before the query, oldest message first.
        settings: The settings of this call.
        learned: Facts about the function, learned from earlier calls.
        engine: What is built from the settings.
        model: The model that transforms the question; ``None`` if the settings use none.
        top_k: How many passages the caller asks for; ``None`` if unknown.
        problem: Why the query cannot be used; ``None`` if it can be used. If there is a problem,
            the call is passed through unchanged.
        history_problem: How many messages of the history could not be read; ``None`` if all were
            read.
        page: The name of the argument that selects a page of results; ``""`` if there is none.
        page_is_known: Whether the user declared that the argument named in *page* selects a page.
        shape: The user's functions to read and rebuild responses; ``None`` to detect the structure.
        embedder: Turns texts into vectors; ``None`` if the function takes texts.
        has_parts: Whether the caller searches for the sub-queries, each by a call of its own. If
            the model returns at least two of them, this call does not search for them.
        observation: The operation that this retrieval is part of.
        hooks: The user's functions that receive the finished `Retrieval`.
        uses_keywords: Whether the candidates are scored by keywords.
        uses_reranker: Whether a reranker scores the first candidates.
    """

    original: Any
    history: tuple[Message, ...]
    settings: Settings
    learned: Learned
    engine: Engine
    model: Model | None = None
    top_k: int | None = None
    problem: Degradation | None = None
    history_problem: Degradation | None = None
    page: str = ""
    page_is_known: bool = False
    shape: Shape | None = None
    embedder: Any = None
    has_parts: bool = False
    observation: Observation = NOT_OBSERVED
    hooks: tuple[RetrievalHook, ...] = ()
    uses_keywords: bool = field(init=False)
    uses_reranker: bool = field(init=False)

    def __post_init__(self) -> None:
        """Set `uses_keywords` and `uses_reranker` from the settings."""
        settings = self.settings
        merges = self.fusion_row.merges
        self.uses_keywords = merges and settings.uses_keywords
        self.uses_reranker = merges and settings.rerank.enabled

    @property
    def max_searches(self) -> int | None:
        """The most searches, with the question's own; ``None`` for one per variant."""
        settings = self.settings
        if (limit := settings.limits.max_searches) is not None:
            return limit
        weighs_words = self.uses_keywords and settings.keyword_evidence.variants > 0
        if not weighs_words or settings.llm.sub_query_style != "simple":
            return None
        return settings.transform.max_searches

    @property
    def fusion_settings(self) -> FusionSettings:
        """The fusion settings. A user-defined transform may override their weights."""
        fusion = self.settings.fusion
        weights = self.settings.transform.weights
        return replace(fusion, weights={**fusion.weights, **dict(weights)}) if weights else fusion

    @property
    def fusion_row(self) -> FusionMethod:
        """The fusion method: the user's function, or else the method in the settings."""
        return self.settings.fusion.row if self.engine.fuse is None else OWN_FUSION

    @property
    def known_problems(self) -> list[Degradation]:
        """The problems that are known before the first search."""
        problems = [] if self.history_problem is None else [self.history_problem]
        if self.page and not self.page_is_known:
            problems.append(Degradation("query", PAGED, build_paging_warning(self.page)))
        return problems

    @property
    def search_width(self) -> int | None:
        """How many passages a search asks for; ``None`` for as many as the caller asked for.

        A search usually asks for more passages than the caller, to have candidates for reranking.
        If the passages have no texts and there are no variants, it does not.
        """
        has_no_text = self.learned.holds_text is False
        if (
            self.page
            or self.top_k is None
            or self.learned.is_unreadable
            or (has_no_text and self.settings.transformation_type == "none")
        ):
            return None
        settings = self.settings
        width = max(
            settings.keyword_evidence.candidates if self.uses_keywords else 0,
            settings.rerank.rerank_top_k if self.uses_reranker else 0,
        )
        return width if self.top_k < width and self.learned.widening.is_allowed else None

    def log_degradations(
        self, logger: SafeLogger, operation: str, trace: Trace, degradations: Sequence[Degradation]
    ) -> None:
        """Log the *degradations* of *operation*, unless they were logged recently."""
        # Every call for a page has this reason. It is logged once per function, elsewhere.
        degradations = [problem for problem in degradations if problem.reason != PAGED]
        if not degradations:
            return
        reasons: dict[str, str] = {}
        for problem in degradations:
            # A detail that only repeats the reason is left out.
            detail = "" if problem.detail == problem.reason else problem.detail
            reasons.setdefault(f"{problem.stage} {problem.reason}", detail)
        self.engine.sampler.log(
            logger,
            f"{operation}_degraded",
            reasons,
            message=f"{operation} {trace.query_id} degraded",
            query_id=trace.query_id,
            stage=degradations[0].stage,
            reason=degradations[0].reason,
            seconds=round(trace.total_ms / 1e3, 6),
            searches=trace.searches,
            llm_calls=trace.llm_calls,
        )


def build_paging_warning(argument_name: str) -> str:
    """Return a warning that the argument *argument_name* selects a page, and what to set if not."""
    return (
        f"`{argument_name}` selects a page, so the passages of the plain call are only reordered;"
        " wrap with page_arg=False if it does not select a page"
    )


def find_query_problem(query: Any) -> Degradation | None:
    """Return why *query* cannot be used (no text, too long, blank); ``None`` if it can."""
    if not isinstance(query, str):
        return Degradation("query", "not_text", type(query).__name__)
    if len(query) > MAX_QUERY_CHARS:
        return Degradation(
            "query", "too_long", f"{len(query):,} characters; the limit is {MAX_QUERY_CHARS:,}"
        )
    if not query or query.isspace():
        return Degradation("query", "blank")
    return None


def validate_query(query: Any, argument_name: str) -> str:
    """Return *query* if it can be used. Raises `InvalidQuery`, which names *argument_name*."""
    if (problem := find_query_problem(query)) is not None:
        raise build_query_error(problem, argument_name)
    return str(query)


def build_query_error(problem: Degradation, argument_name: str) -> InvalidQuery:
    """Return the error for *problem* with the query that was passed as *argument_name*."""
    messages = {
        "not_text": f"{argument_name} must be text, not {problem.detail}",
        "too_long": f"{argument_name} has {problem.detail}",
        "blank": f"{argument_name} must not be blank",
        "missing": f"{argument_name} is missing",
    }
    return InvalidQuery(messages.get(problem.reason, problem.detail), argument=argument_name)


def prepare_query(query_text: str, settings: Settings) -> Query:
    """Return *query_text* with its keywords, its language and the text to search for."""
    options = settings.preprocess
    if not options.enabled:
        return Query(query_text, query_text, query_text)
    preprocessed = extract_keywords(
        query_text,
        language=options.language,
        keep_words=options.keep_words,
        extra_words=options.extra_words,
    )
    text = query_text if options.apply_to == "keywords" else preprocessed.keywords
    return Query(query_text, text, preprocessed.keywords, preprocessed.language)


def find_question_keywords(query: Query, transformation: Transformation, settings: Settings) -> str:
    """Return the keywords of the question or, in a conversation, of its standalone form."""
    standalone = transformation.standalone
    return prepare_query(standalone, settings).keywords if standalone else query.keywords
