"""One query with everything that decides how it is retrieved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config.settings import FusionSettings, Settings
from qtmiddleware.errors import ConfigError, InvalidQuery, ModelError
from qtmiddleware.preprocessing import prepare
from qtmiddleware.protocols import Clock, RetrievalHook
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.logs import LogSampler, SafeLogger
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation
from qtmiddleware.types import Degradation, Message, Query, Trace, Transformation, Variant

if TYPE_CHECKING:
    from qtmiddleware.retrieval.glossary import Glossary

PAGED: Final = "paged"
"""Why the passages of a call stay those of the plain call: it asks for one page of them."""

# Whose words are those of passages that answer the question.
EVIDENT: Final = frozenset(row.variant for row in TEXT_FIELDS.values() if row.is_evidence)


@dataclass(eq=False, repr=False, slots=True)
class Request:
    """What the flow is given.

    - *original*: the query as it was passed. If *problem* is set, it cannot be worked with, and the
      call is made as it
      was.
    - *history_problem*: what of the history could not be read.
    - *learned*: what earlier calls of the function have shown. *cache* keeps transformations and
      *sampler* logs
      degradations, both for a whole middleware.
    - *top_k*: how many passages the caller's call asks for; ``None`` if that cannot be known.
    - *page*: the argument that asks for a page, ``""`` if none does. *page_is_known*: the user
      named it.
    - *model*: the language model's name, ``""`` if there is none. *models*: what observers are told
      the names of
      (`steps.Models`). *reason_to_wait* returns why the model would not be asked just now.
    - *embeds*: the function takes vectors. *text_fields*: the fields that a text clause may search
      beside the call.
    - *response_only*: the caller looks at the response alone. *reranker_is_unloaded*: its model
      must be read first.
    - *shares*: the request may wait for an equal question under way, which work in step with others
      must not.
    - *bulkhead*: the threads for whatever runs beside the original's own search.
    - *glossary*: the team's own terms, if there are any.
    - *observation*: the operation that the retrieval is part of. *hooks* are told of the result.
    - *clock* returns what words such as "last year" lean on; ``None`` is the time of this machine.

    It *uses_keyword_evidence* if the candidates are weighed by keywords, and *uses_reranker* if a
    reranker scores the leading ones.
    """

    original: Any
    history: tuple[Message, ...]
    settings: Settings
    learned: Learned
    cache: TransformationCache
    sampler: LogSampler = field(default_factory=LogSampler)
    top_k: int | None = None
    problem: Degradation | None = None
    history_problem: Degradation | None = None
    page: str = ""
    page_is_known: bool = False
    shape: Shape | None = None
    model: str = ""
    models: Mapping[str, Any] = field(default_factory=dict)
    embeds: bool = False
    text_fields: tuple[str, ...] = ()
    response_only: bool = False
    reranker_is_unloaded: bool = False
    shares: bool = True
    reason_to_wait: Callable[[], ModelError | None] = lambda: None
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    glossary: Glossary | None = None
    observation: Observation = NOT_OBSERVED
    hooks: tuple[RetrievalHook, ...] = ()
    clock: Clock | None = None
    uses_keyword_evidence: bool = field(init=False)
    uses_reranker: bool = field(init=False)

    def __post_init__(self) -> None:
        """Note what is asked at every stage."""
        settings = self.settings
        merges = settings.fusion.row.merges
        weighs = settings.keyword_evidence.enabled and settings.preprocess.apply_to != "text"
        self.uses_keyword_evidence = merges and weighs
        self.uses_reranker = merges and settings.rerank.enabled

    @property
    def skip_reason(self) -> str:
        """Why the model need not be asked, in one word: what it says could not change a page; ``""`` if it may."""
        settings = self.settings
        if not self.page or settings.transformation_type == "none":
            return ""
        row = settings.transform
        texts = [*row.fields, *(name for part in row.parts for name in TRANSFORMS[part].fields)]
        has_words = settings.keyword_evidence.variants > 0 and any(
            TEXT_FIELDS[it].is_evidence for it in texts
        )
        # A follow-up's standalone form gives the question its words.
        return "" if self.uses_keyword_evidence and (has_words or self.history) else PAGED

    @property
    def max_searches(self) -> int | None:
        """How many searches the question may cost, its own counted; ``None``: one for every variant.

        Unless the settings say otherwise a variant goes without a search only where its words are
        weighed instead. A page has the passages that its own search finds, so no variant of it is
        searched.
        """
        settings = self.settings
        if self.page:
            return 1
        if (most := settings.limits.max_searches) is not None:
            return max(1, most - int(self.why_not_by_words is None))
        weighs_words = self.uses_keyword_evidence and settings.keyword_evidence.variants > 0
        if not weighs_words or settings.llm.sub_query_style != "simple":
            return None
        return settings.transform.max_searches

    @property
    def fusion_settings(self) -> FusionSettings:
        """How lists become one, with the weights that a transformation of the user's own brings."""
        fusion, weights = self.settings.fusion, self.settings.transform.weights
        return (
            replace(fusion, weights=replace(fusion.weights, **dict(weights))) if weights else fusion
        )

    @property
    def why_not_by_words(self) -> str | None:
        """Why the keywords are not searched in `text_fields`, in a sentence; ``None`` if they are."""
        settings = self.settings
        row, most = settings.fusion.row, settings.limits.max_searches
        if not self.text_fields or self.page or not settings.preprocess.enabled:
            return ""
        if self.learned.refuses_words:
            return "not searched: the function rejected a text clause"
        if not row.merges or (row.needs_scores and not row.weighs):
            return (
                f"not searched: fusion.method {settings.fusion.method} cannot combine two kinds of"
                " scores"
            )
        if most is not None and most < 2:
            return "not searched: limits.maxSearches allows one search"
        # The words of a follow-up are seldom those of what it asks for.
        return "not searched: the question is a follow-up" if self.history else None

    @property
    def known_problems(self) -> list[Degradation]:
        """What does not go as asked, as far as that is known before anything is searched."""
        problems = [] if self.history_problem is None else [self.history_problem]
        if self.page and not self.page_is_known:
            problems.append(Degradation("query", PAGED, describe_page(self.page)))
        return problems

    @property
    def width(self) -> int | None:
        """How many passages a search asks for, so that there is something to weigh; ``None`` as the caller asks.

        A function whose passages never held a text is not asked for more of them, unless variants
        are fused; and one whose passages are long for no more than
        `KeywordEvidenceSettings.max_chars` hold.
        """
        options, chars = self.settings.keyword_evidence, self.learned.passage_chars
        return self._find_width(
            min(options.candidates, int(options.max_chars / chars)) if chars else options.candidates
        )

    @property
    def full_width(self) -> int | None:
        """The `width` if passages were short."""
        return self._find_width(self.settings.keyword_evidence.candidates)

    def _find_width(self, candidates: int) -> int | None:
        if self.page or (
            self.learned.holds_text is False and self.settings.transformation_type == "none"
        ):
            return None
        evidence = candidates if self.uses_keyword_evidence else 0
        wide = max(evidence, self.settings.rerank.rerank_top_k if self.uses_reranker else 0)
        return (
            None
            if self.top_k is None or self.top_k >= wide or self.learned.refuses_widening
            else wide
        )

    def log_degradations(
        self, logger: SafeLogger, of: str, trace: Trace, degradations: Sequence[Degradation]
    ) -> None:
        """Log that a retrieval or an answer, named by *of* and told of by *trace*, is degraded, if that is due."""
        # That a function has pages is logged once.
        degradations = [it for it in degradations if it.reason != PAGED]
        about: dict[str, Any] = {}
        if degradations:
            first = degradations[0]
            about = {
                "query_id": trace.query_id,
                "stage": first.stage,
                "reason": first.reason,
                "seconds": round(trace.total_ms / 1e3, 6),
                "searches": trace.searches,
                "llm_calls": trace.llm_calls,
            }
        # A reason in place of a sentence says nothing more.
        details = {
            f"{it.stage} {it.reason}": it.detail
            for it in reversed(degradations)
            if it.detail != it.reason
        }
        kinds = [f"{it.stage} {it.reason}" for it in degradations]
        said = f"{of} {trace.query_id} degraded"
        self.sampler.log(
            logger, f"{of} degraded", kinds, said=said, details=details, stacklevel=2, **about
        )


def read_clock(clock: Clock | None) -> date:
    """Return the day by *clock*, in its time zone; raises what the clock raises, and `TypeError` for no datetime."""
    now = datetime.now().astimezone() if clock is None else clock()
    if not isinstance(now, datetime):
        raise TypeError("clock= must return a datetime")
    return now.date()


def validate_clock(clock: Clock | None) -> Clock | None:
    """Returns *clock* itself; raises `ConfigError` where it cannot be called."""
    if clock is None or callable(clock):
        return clock
    what = f"clock must be a function that returns a datetime, not {type(clock).__name__}"
    raise ConfigError(f"{what}; pass lambda: datetime.now(zone)", path="clock")


def describe_page(argument: str) -> str:
    """Return what an *argument* that asks for a page means for the result, and how to say that it does not."""
    return (
        f"`{argument}` selects a page, so the passages of the plain call are only reordered;"
        " wrap with page_arg=False if it does not select a page"
    )


def find_query_problem(query: Any, settings: Settings) -> Degradation | None:
    """Returns why *query* cannot be worked with, ``None`` where it can: not text, longer than the limit, or blank."""
    if not isinstance(query, str):
        return Degradation("query", "not_text", type(query).__name__)
    longest = settings.limits.max_query_chars
    if len(query) > longest:
        return Degradation(
            "query", "too_long", f"{len(query):,} characters; limits.maxQueryChars is {longest:,}"
        )
    if not query or query.isspace():
        return Degradation("query", "blank")
    return None


def validate_query(query: Any, argument: str, settings: Settings) -> str:
    """Returns *query* itself; raises `InvalidQuery` that names *argument* where it cannot be worked with."""
    problem = find_query_problem(query, settings)
    if problem is None:
        return query  # type: ignore[no-any-return]
    raise build_invalid_query(problem, argument)


def build_invalid_query(problem: Degradation, argument: str) -> InvalidQuery:
    """Returns *problem*, one of `find_query_problem` or that the query is missing, as an error about *argument*."""
    why = {
        "not_text": f"{argument} must be text, not {problem.detail}",
        "too_long": f"{argument} has {problem.detail}",
        "blank": f"{argument} must not be blank",
        "missing": f"{argument} is missing",
    }
    return InvalidQuery(why.get(problem.reason, problem.detail), argument=argument)


def prepare_query(original: str, settings: Settings) -> Query:
    """Returns the question in its two faces, text and keywords, by the rules of ``preprocess``."""
    options = settings.preprocess
    if not options.enabled:
        return Query(original, original, original)
    rules = prepare(
        original,
        language=options.language,
        keep_words=options.keep_words,
        extra_words=options.extra_words,
    )
    text = original if options.apply_to == "keywords" else rules.keywords
    return Query(original, text, rules.keywords, rules.language)


def find_question_keywords(query: Query, transformation: Transformation, settings: Settings) -> str:
    """Returns the keywords of the question or, in a conversation, of its standalone form."""
    standalone = transformation.standalone
    return prepare_query(standalone, settings).keywords if standalone else query.keywords


def collect_keywords(
    own: str, transformation: Transformation, variants: Iterable[Variant], settings: Settings
) -> list[tuple[str, float]]:
    """Returns the keywords that count as evidence, each group with its weight.

    First the question's *own*, with the keywords the model named; then those of the *variants*,
    searched or not, by a share of their weight in the fusion. A step back is about more than the
    question and says nothing of it.
    """
    keywords = [(" ".join((own, *transformation.keywords)), 1.0)]
    share = settings.keyword_evidence.variants
    if share:
        keywords.extend(
            (prepare_query(it.text, settings).keywords, share * it.weight)
            for it in variants
            if it.weight > 0 and it.kind in EVIDENT
        )
    return keywords
