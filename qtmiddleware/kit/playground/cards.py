"""Prepare a tier's result for the page: passages, movements, searches, times and costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.kit.documents.place import describe_chunk_location
from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.kit.playground import drawing
from qtmiddleware.kit.playground.asked import PageState
from qtmiddleware.kit.playground.drawing import Bar, MovementDrawing, Segment
from qtmiddleware.kit.playground.tiers import Tier, TierAnswer
from qtmiddleware.preprocessing import extract_keywords, preprocess
from qtmiddleware.preprocessing.text import clean_text, format_count, shorten_text
from qtmiddleware.retrieval.movement import (
    Movement,
    Movements,
    build_search_labels,
    drop_function_words,
    explain_movement,
    find_question_language,
)
from qtmiddleware.runtime.control_characters import escape_hidden
from qtmiddleware.types import Degradation, Match, Retrieval

MOST_SHOWN: Final = 4_000
"""The maximum number of characters that the page shows of a passage or a searched text."""
SAME: Final = "The same list"
"""The summary of a tier whose result equals that of the plain search."""
_TITLE: Final = 90
_REASONS: Final = {
    "empty": "the model's reply was not usable",
    "unreadable": (
        "the function's result has no list of passages; run qtm check to see how to fix that"
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One passage in a tier's result, as the page shows it.

    Attributes:
        key: Identifies the passage on the page.
        place: The passage's rank in the result; ``None`` if the passage dropped out.
        title: The passage's title.
        source: The document, address or page that the passage comes from.
        way: The direction in which the passage moved.
        badge: The movement as a short label, such as ``▲ 2``.
        spoken: The movement as a phrase for screen readers.
        why: The reason for the movement, in one sentence.
        snippet: A short excerpt of the passage's text, with the keywords marked.
        text: The passage's text, with the keywords marked.
        is_answer: Whether the passage answers the question, according to the judgements.
    """

    key: str
    place: int | None
    title: str
    source: str
    way: str
    badge: str
    spoken: str
    why: str
    snippet: tuple[Segment, ...]
    text: tuple[Segment, ...]
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """One search of a tier.

    Attributes:
        label: The search's name on the page.
        text: The searched text.
        weight: The weight of the search's list in the fusion.
        found: The number of passages that the search returned.
        moves: A drawing that connects each passage's ranks in the search and in the result.
        spoken: A description of the drawing for screen readers.
    """

    label: str
    text: str
    weight: float
    found: int
    moves: MovementDrawing
    spoken: str


@dataclass(frozen=True, slots=True)
class Card:
    """A tier's result, prepared for the page.

    Attributes:
        tier: The tier that returned the result.
        headline: A short summary of the result.
        is_unsure: Whether the search probably found no answer.
        answers: The number of passages that answer the question; ``None`` without judgements.
        answer: The best rank of a passage in `rows` that answers the question; ``None`` if there
            is no such passage.
        lost: The best last known rank of a passage that answers the question but dropped out;
            ``None`` if there is no such passage.
        took: The duration of the call as text, for the verdict.
        calls: The number of model calls as text, for the verdict.
        cost: The cost as text, for the verdict.
        problem: A description of the error; empty if the tier returned a result.
        rows: The passages of the result.
        dropped: The passages of the plain search that dropped out.
        moves: The drawing of all movements.
        searches: The tier's searches, if there were several.
        texts: The model's texts, each with its label.
        figures: The name and the value of each time and cost.
        degradations: One line per step that failed or was skipped.
        bars: The bars of the timeline, one per stage.
        overlap: How long the question's search and a model call overlapped, in milliseconds.
        total_ms: The duration of the whole call, in milliseconds.
        decision: The reason why the model was called or not called.
        notes: The notes in the result's trace.
        config: The tier's config as JSON, for use outside the playground.
    """

    tier: Tier
    headline: str
    is_unsure: bool = False
    answers: int | None = None
    answer: int | None = None
    lost: int | None = None
    took: str = ""
    calls: str = ""
    cost: str = ""
    problem: str = ""
    rows: tuple[Row, ...] = ()
    dropped: tuple[Row, ...] = ()
    moves: MovementDrawing | None = None
    searches: tuple[Search, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    degradations: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    overlap: float = 0.0
    total_ms: float = 0.0
    decision: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    config: str = ""

    @property
    def is_baseline(self) -> bool:
        """``True`` for the plain search, with which the page compares all other results."""
        return self.tier.name == BASELINE


def build_card(
    answer: TierAnswer,
    state: PageState,
    baseline: Retrieval | None,
    answer_ids: Collection[str] | None,
    config_json: str,
) -> Card:
    """Return a tier's *answer* prepared for the page.

    Args:
        answer: The tier's result.
        state: The question and its settings.
        baseline: The result of the plain search, for the comparison; ``None`` if the plain search
            failed.
        answer_ids: The ids of the passages that answer the question; ``None`` without judgements.
        config_json: The tier's config as JSON.
    """
    retrieval = answer.retrieval
    if retrieval is None:
        duration = figures.format_duration(answer.seconds * 1e3)
        return Card(
            answer.tier, "No answer", problem=answer.problem, config=config_json, took=duration
        )
    movements = explain_movement(retrieval, None if baseline is None else baseline.matches)
    is_baseline = answer.tier.name == BASELINE
    build_row = _RowBuilder(retrieval, state, answer_ids or (), is_baseline=is_baseline)
    rows = tuple(map(build_row, movements.passages))
    relevant_ids, trace = answer_ids or (), retrieval.trace
    return Card(
        tier=answer.tier,
        answers=None if answer_ids is None else len(answer_ids),
        answer=_find_best_rank(
            movement.place for movement in movements.passages if movement.match.id in relevant_ids
        ),
        lost=_find_best_rank(
            drawing.find_last_rank(movement)
            for movement in movements.dropped
            if movement.match.id in relevant_ids
        ),
        took=(
            figures.format_duration(answer.seconds * 1e3)
            if is_baseline
            else f"+{figures.format_duration(trace.added_ms)}"
        ),
        calls="0, remembered" if trace.cache_hits and not trace.llm_calls else str(trace.llm_calls),
        cost=_format_cost(retrieval),
        headline=format_count(len(retrieval.matches), "passage")
        if is_baseline
        else _summarize_movements(movements),
        is_unsure=retrieval.is_unsure,
        rows=rows,
        dropped=tuple(map(build_row, movements.dropped)),
        moves=None if is_baseline or not rows else drawing.draw_movements(movements),
        searches=tuple(_build_searches(retrieval, movements))
        if len(retrieval.rankings) > 1
        else (),
        texts=tuple(_list_model_texts(retrieval)),
        figures=tuple(_list_figures(retrieval, answer.seconds)),
        degradations=tuple(map(_describe_degradation, retrieval.degradations)),
        # Around the plain call, some stages do nothing and are not shown.
        bars=tuple(bar for bar in drawing.build_timeline(trace) if not is_baseline or bar.is_work),
        overlap=drawing.measure_overlap(trace),
        total_ms=trace.total_ms,
        decision=_describe_decision(retrieval),
        notes=tuple(trace.notes),
        config=config_json,
    )


class _RowBuilder:
    """Builds the row of each passage in one tier's result.

    A row has a snippet only in the plain search's result, or if the passage is new in the result.
    """

    def __init__(
        self,
        retrieval: Retrieval,
        state: PageState,
        answer_ids: Collection[str],
        *,
        is_baseline: bool,
    ) -> None:
        """Create a builder of rows for one tier's result.

        Args:
            retrieval: The tier's result.
            state: The question and its settings.
            answer_ids: The ids of the passages that answer the question.
            is_baseline: Whether *retrieval* is the result of the plain search.
        """
        self._retrieval = retrieval
        self._answer_ids = answer_ids
        self._is_baseline = is_baseline
        self._language = "" if retrieval.evidence is None else retrieval.evidence.language
        self._question_words, self._model_words = _find_question_and_model_words(state, retrieval)

    def __call__(self, movement: Movement) -> Row:
        """Return the row of the passage in *movement*."""
        match, way, is_baseline = (
            movement.match,
            drawing.find_direction(movement),
            self._is_baseline,
        )
        title, source = _find_title_and_source(match)
        # An index may have stored the title at the start of the text.
        text = (match.text or "").removeprefix(f"{title}\n")
        shown_text = text[:MOST_SHOWN] + (" …" if len(text) > MOST_SHOWN else "")
        # A text may be very long, so only its beginning is searched for a snippet.
        snippet = self._cut_snippet(text[: 4 * MOST_SHOWN]) if is_baseline or way == "new" else ""
        change = abs(movement.change or 0)
        badge, spoken = {
            "new": ("new", "new here"),
            "up": (f"▲ {change}", f"up {change}"),
            "down": (f"▼ {change}", f"down {change}"),
            "same": ("=", "unmoved"),
            "gone": ("out", "dropped out"),
        }[way]
        return Row(
            key=drawing.make_passage_key(match),
            place=movement.place,
            title=title,
            source=source,
            way="same" if is_baseline else way,
            badge="" if is_baseline else badge,
            spoken="" if is_baseline else spoken,
            why="" if is_baseline or way == "same" else movement.why,
            snippet=self._mark_words(snippet),
            text=self._mark_words(escape_hidden(shown_text)),
            is_answer=match.id in self._answer_ids,
        )

    def _mark_words(self, text: str) -> tuple[Segment, ...]:
        return tuple(
            drawing.mark_words(text, self._question_words, self._model_words, self._language)
        )

    def _cut_snippet(self, text: str) -> str:
        return drawing.cut_snippet(
            text, self._question_words, self._model_words, language=self._language
        )


def _find_title_and_source(match: Match) -> tuple[str, str]:
    """Return the title and the source of the passage in *match*, shortened for the page.

    If the metadata have no title, the source, the id or the text replaces the title.
    """
    metadata = match.metadata
    values = [metadata.get("title"), metadata.get("source"), metadata.get("url"), match.id]
    names = [
        name
        for name in (clean_text(str(value)) for value in values if isinstance(value, str | int))
        if name
    ]
    title = names[0] if names else clean_text(match.text or "") or "a passage without an id"
    source_names = [name for name in names[1:] if name != title][:1] + [
        place for place in [describe_chunk_location(metadata)] if place
    ]
    return shorten_text(title, _TITLE), shorten_text(", ".join(source_names), _TITLE)


def _find_question_and_model_words(state: PageState, retrieval: Retrieval) -> tuple[str, str]:
    """Return two strings: the question's keywords, and the keywords of the model's texts.

    Spaces separate the keywords. Both strings omit function words such as "the".
    """
    texts = [*retrieval.transformation.keywords]
    texts += [
        text
        for name, row in TEXT_FIELDS.items()
        if row.is_evidence
        for text in retrieval.transformation.texts(name)
    ]
    # If a question has too many typos to tell its language, the model's texts tell it.
    language = find_question_language(retrieval) or next(
        filter(None, (extract_keywords(text).language for text in texts)), ""
    )
    return _join_content_words([preprocess(state.question)], language), _join_content_words(
        map(preprocess, texts), language
    )


def _join_content_words(keywords: Iterable[str], language: str) -> str:
    """Join *keywords* with spaces, without function words such as "the"."""
    parts = [
        part for words in keywords for word in words.split() for part in drawing.split_word(word)
    ]
    return " ".join(drop_function_words(parts, language))


def _summarize_movements(movements: Movements) -> str:
    """Return how many passages moved, such as ``2 new, 1 up, 3 down, 2 out``."""
    ways = [
        drawing.find_direction(movement) for movement in (*movements.passages, *movements.dropped)
    ]
    words: dict[drawing.Way, str] = {"new": "new", "up": "up", "down": "down", "gone": "out"}
    summary = ", ".join(f"{ways.count(way)} {word}" for way, word in words.items() if way in ways)
    if not movements.passages:
        return "Nothing was found"
    return summary or SAME


def _build_searches(retrieval: Retrieval, movements: Movements) -> Iterator[Search]:
    """Yield each search of *retrieval*, with a drawing of the passages' ranks in that search."""
    labels = build_search_labels(ranking.variant for ranking in retrieval.rankings)
    for search, (ranking, label) in enumerate(zip(retrieval.rankings, labels, strict=True)):
        places = {
            movement.place: hit.place
            for movement in movements.passages
            for hit in movement.hits
            if hit.search == search
        }
        spoken = (
            "; ".join(f"result {place} was at {before}" for place, before in places.items())
            or "not in the result"
        )
        yield Search(
            label="joined text" if ranking.variant.kind == JOINED else label.removeprefix("the "),
            text=shorten_text(ranking.variant.text, 400),
            weight=ranking.variant.weight,
            found=len(ranking.keys),
            moves=drawing.draw_search_movements(movements, search),
            spoken=f"In the list of {label}: {spoken}.",
        )


def _list_model_texts(retrieval: Retrieval) -> Iterator[tuple[str, str]]:
    """Yield a label for each text that the model wrote, together with the text.

    The label says if the text had no separate search, or a search with weight 0.
    """
    merged_texts = {ranking.variant.text for ranking in retrieval.rankings}
    searched_texts = {variant.text for variant in retrieval.variants}
    for name, row in TEXT_FIELDS.items():
        for text in retrieval.transformation.texts(name):
            remark = (
                "" if text in merged_texts or not row.variant else ", without a search of its own"
            )
            # A variant with weight 0 is searched, but its list is not merged.
            if remark and text in searched_texts:
                remark = ", searched, with weight 0"
            yield row.label + remark, text[:MOST_SHOWN]


def _list_figures(retrieval: Retrieval, call_seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each figure on the page, such as a time or a cost.

    *call_seconds* is the duration of the whole call, in seconds.
    """
    trace = retrieval.trace
    if retrieval.confidence is not None:
        yield "confidence", f"{retrieval.confidence:.2f}{', unsure' if retrieval.is_unsure else ''}"
    yield "took", figures.format_duration(call_seconds * 1e3)
    yield "added", figures.format_duration(trace.added_ms)
    yield "searches", str(trace.searches)
    if trace.read_units != trace.searches:
        yield "units read", f"{trace.read_units:g}"
    if trace.read_cost_usd is not None:
        yield "reads", figures.format_dollars(trace.read_cost_usd)
    yield (
        "calls",
        "0, remembered" if trace.cache_hits and not trace.llm_calls else str(trace.llm_calls),
    )
    if trace.llm_calls:
        yield "tokens", f"{trace.input_tokens:,} + {trace.output_tokens:,}"
        yield (
            "model",
            "unknown" if trace.cost_usd is None else figures.format_dollars(trace.cost_usd),
        )


def _format_cost(retrieval: Retrieval) -> str:
    """Return the total cost of the model calls and the store's reads, as text.

    Returns ``unknown`` if the cost of the model calls is not known.
    """
    trace = retrieval.trace
    if trace.cost_usd is None:
        return "unknown"
    return figures.format_dollars(trace.cost_usd + (trace.read_cost_usd or 0.0))


def _describe_degradation(degradation: Degradation) -> str:
    """Return a line with the stage, the reason and the explanation of *degradation*."""
    explanation = _REASONS.get(degradation.reason, degradation.detail)
    return f"{degradation.stage}: {degradation.reason}" + (
        f" ({explanation})" if explanation else ""
    )


def _describe_decision(retrieval: Retrieval) -> str:
    """Return a sentence on why the model was called or not called.

    Returns an empty string if the call ended before that decision.
    """
    decision = retrieval.trace.decision
    if decision is None:
        return ""
    return (
        ("The model was called: " if decision.call else "The model was not called: ")
        + decision.reason
        + "."
    )


def _find_best_rank(ranks: Iterable[int | None]) -> int | None:
    return min((rank for rank in ranks if rank is not None), default=None)
