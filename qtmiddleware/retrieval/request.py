"""One query with everything that decides how it is retrieved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from qtmiddleware.catalogue import FUSION_METHODS, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import InvalidQuery, ModelError
from qtmiddleware.preprocessing import prepare
from qtmiddleware.retrieval.gate import Gate
from qtmiddleware.retrieval.responses import Shape
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.logs import LogSampler
from qtmiddleware.types import Degradation, Message, Query, Transformation, Variant

# Whose words are those of passages that answer the question.
_EVIDENT: Final = frozenset(row.variant for row in TEXT_FIELDS.values() if row.is_evidence)


def _asked_at_once() -> None:
    """No reason to wait."""


class Memory:
    """What one wrapped function remembers between calls; *cache* and *sampler* are shared by all of a middleware."""

    __slots__ = ("cache", "gate", "refuses_widening", "rising", "sampler", "warned_of_shape")

    def __init__(self, cache: TransformationCache, sampler: LogSampler | None = None) -> None:
        self.cache = cache
        self.sampler = sampler or LogSampler()
        self.gate = Gate()
        self.refuses_widening = False
        # Whether lower scores are better, as the lists seen so far have shown.
        self.rising = False
        self.warned_of_shape = False


@dataclass(frozen=True, slots=True)
class Request:
    """What the flow is given.

    *original* is the query as it was passed, and *problem* says why it cannot be worked with: the call is then made as
    it was. *unread* says what of the history could not be read. *top_k* is what the caller's call asks for, ``None``
    where that cannot be known. *model* names the language model, ``""`` where there is none, and *reason_to_wait* says
    why it would not be asked just now. *embeds* says that the wrapped function takes vectors, *brief* that the caller
    looks at the response alone, *awaits_model* that the reranker will read its model first, *shares* that it may wait
    for an equal question under way: what is performed in step with others must not. *bulkhead* has the threads for what
    is performed beside the original's own search.
    """

    original: Any = field(repr=False)
    history: tuple[Message, ...]
    settings: Settings
    memory: Memory
    top_k: int | None = None
    problem: Degradation | None = None
    unread: Degradation | None = None
    shape: Shape | None = None
    model: str = ""
    embeds: bool = False
    brief: bool = False
    awaits_model: bool = False
    shares: bool = True
    reason_to_wait: Callable[[], ModelError | None] = _asked_at_once
    bulkhead: Bulkhead = field(default_factory=Bulkhead, repr=False)

    @property
    def weighs(self) -> bool:
        """Whether the candidates are weighed by keywords."""
        settings = self.settings
        return (
            settings.keyword_evidence.enabled
            and settings.preprocess.apply_to != "text"
            and FUSION_METHODS[settings.fusion.method].merges
        )

    @property
    def reranks(self) -> bool:
        """Whether the leading candidates are judged by a reranker."""
        return self.settings.rerank.enabled and FUSION_METHODS[self.settings.fusion.method].merges

    @property
    def candidates(self) -> int:
        """How many passages a search should bring so that there is something to weigh; 0 where nothing is weighed."""
        evidence = self.settings.keyword_evidence.candidates if self.weighs else 0
        return max(evidence, self.settings.rerank.rerank_top_k if self.reranks else 0)


def unsearchable(query: Any, settings: Settings) -> Degradation | None:
    """Why *query* cannot be worked with, ``None`` where it can: not text, longer than the limit, or blank."""
    if not isinstance(query, str):
        return Degradation("query", "not_text", type(query).__name__)
    longest = settings.limits.max_query_chars
    if len(query) > longest:
        return Degradation("query", "too_long", f"{len(query):,} characters; limits.maxQueryChars allows {longest:,}")
    if not query or query.isspace():
        return Degradation("query", "blank")
    return None


def validated(query: Any, argument: str, settings: Settings) -> str:
    """*query* itself, if it can be worked with; raises `InvalidQuery` that names *argument* otherwise."""
    problem = unsearchable(query, settings)
    if problem is None:
        return query  # type: ignore[no-any-return]
    raise invalid_query(problem, argument)


def invalid_query(problem: Degradation, argument: str) -> InvalidQuery:
    """*problem*, as `unsearchable` tells it, as an error that names *argument*."""
    why = {
        "not_text": f"{argument} must be text, not {problem.detail}",
        "too_long": f"{argument} has {problem.detail}",
        "blank": f"{argument} is blank",
        "missing": f"there is no {argument} to be answered",
    }
    return InvalidQuery(why[problem.reason], argument=argument)


def prepared(original: str, settings: Settings) -> Query:
    """The question in its two faces."""
    options = settings.preprocess
    if not options.enabled:
        return Query(original, original, original)
    made = prepare(original, language=options.language, keep_words=options.keep_words, extra_words=options.extra_words)
    text = original if options.apply_to == "keywords" else made.keywords
    return Query(original, text, made.keywords, made.language)


def evidence(
    query: Query, made: Transformation, variants: Iterable[Variant], settings: Settings
) -> list[tuple[str, float]]:
    """The words that count as evidence, each group with its weight.

    First the question's own, or its standalone form's, with the keywords the model named; then those of the *variants*
    that were searched, a share of their voice in the fusion each. A step back is about more than the question and says
    nothing of it.
    """
    own = prepared(made.standalone, settings).keywords if made.standalone else query.keywords
    found = [(" ".join((own, *made.keywords)), 1.0)]
    share = settings.keyword_evidence.variants
    if share:
        found.extend(
            (prepared(it.text, settings).keywords, share * it.weight)
            for it in variants
            if it.weight > 0 and it.kind in _EVIDENT
        )
    return found
