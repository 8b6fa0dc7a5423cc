"""What one tier found, ready to be shown: its passages with what moved them, its searches, times and costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.kit.documents.place import describe_place
from qtmiddleware.kit.evaluation.movement import (
    Movement,
    Movements,
    drop_function_words,
    explain_movement,
    find_language,
    label_searches,
)
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.kit.playground import drawing, reasons
from qtmiddleware.kit.playground.asked import Asked
from qtmiddleware.kit.playground.drawing import Bar, Moves, Segment
from qtmiddleware.kit.playground.tiers import Tier, TierAnswer
from qtmiddleware.preprocessing import prepare, preprocess
from qtmiddleware.preprocessing.text import clean, shorten
from qtmiddleware.types import Degradation, Match, Retrieval

MOST_SHOWN: Final = 4_000
"""Characters of a passage, or of a searched text, that are shown."""
SAME: Final = "The same list"
"""What is said of a tier that moves nothing."""
_TITLE: Final = 90
_REASONS: Final = {
    "empty": "the model's reply was not usable",
    "unreadable": (
        "the function's result has no list of passages; run qtm check to see how to fix that"
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One passage of a list: where it stands, what it is called, what moved it, and its text with the words marked."""

    key: str
    place: int | None
    title: str
    source: str
    way: str
    badge: str
    spoken: str
    why: str
    words: tuple[Segment, ...]
    snippet: tuple[Segment, ...]
    text: tuple[Segment, ...]
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """One search: what was searched for, with what weight, and what it brought for the result."""

    label: str
    text: str
    weight: float
    found: int
    moves: Moves
    spoken: str


@dataclass(frozen=True, slots=True)
class Card:
    """What one tier found, ready to be shown.

    *answers* counts the passages that are judged to answer the question, ``None`` for a question
    that nobody judged.
    *answer* is the best place of them among the *rows*, *lost* the one behind these that the best
    of them fell to.
    *took*, *calls* and *cost* are what the verdict says of it. *is_unsure*: the search probably
    found no answer.
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
    moves: Moves | None = None
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
        """Whether it is the plain list, which nothing moves in."""
        return self.tier.name == BASELINE


def describe(
    answer: TierAnswer,
    asked: Asked,
    baseline: Retrieval | None,
    answers: Collection[str] | None,
    config: str,
) -> Card:
    """Return what *answer* has to show beside the plain list of *baseline*.

    *answers* are the passages that answer the question, ``None`` if nobody judged; *config* is the
    tier's.
    """
    found = answer.retrieval
    if found is None:
        took = figures.format_duration(answer.seconds * 1e3)
        return Card(answer.tier, "No answer", problem=answer.problem, config=config, took=took)
    moves = explain_movement(found, None if baseline is None else baseline.matches)
    is_baseline = answer.tier.name == BASELINE
    write = _RowWriter(moves, found, asked, answers or (), is_baseline=is_baseline)
    rows = tuple(map(write, moves.passages))
    judged, trace = answers or (), found.trace
    return Card(
        tier=answer.tier,
        answers=None if answers is None else len(answers),
        answer=_find_first(moved.place for moved in moves.passages if moved.match.id in judged),
        lost=_find_first(
            drawing.find_place(moved) for moved in moves.dropped if moved.match.id in judged
        ),
        took=(
            figures.format_duration(answer.seconds * 1e3)
            if is_baseline
            else f"+{figures.format_duration(trace.added_ms)}"
        ),
        calls="0, remembered" if trace.cache_hits and not trace.llm_calls else str(trace.llm_calls),
        cost=_format_cost(found),
        headline=count_things(len(found.matches), "passage") if is_baseline else _sum_up(moves),
        is_unsure=found.is_unsure,
        rows=rows,
        dropped=tuple(map(write, moves.dropped)),
        moves=None if is_baseline or not rows else drawing.draw_moves(moves),
        searches=tuple(_describe_searches(found, moves)) if len(found.rankings) > 1 else (),
        texts=tuple(_list_texts(found)),
        figures=tuple(_list_figures(found, answer.seconds)),
        degradations=tuple(map(_describe_degradation, found.degradations)),
        # Around the plain call there are steps that do nothing.
        bars=tuple(bar for bar in drawing.draw_trace(trace) if not is_baseline or bar.is_work),
        overlap=drawing.measure_overlap(trace),
        total_ms=trace.total_ms,
        decision=_describe_decision(found),
        notes=tuple(trace.notes),
        config=config,
    )


class _RowWriter:
    """Describes the passages of one answer, of which *answers* answer the question.

    A tier shows the text of those passages alone that the plain list does not have.
    """

    def __init__(
        self,
        moves: Movements,
        found: Retrieval,
        asked: Asked,
        answers: Collection[str],
        *,
        is_baseline: bool,
    ) -> None:
        self._moves = moves
        self._found = found
        self._answers = answers
        self._is_baseline = is_baseline
        self._language = "" if found.evidence is None else found.evidence.language
        self._own, self._models = _find_keywords(asked, found)

    def __call__(self, moved: Movement) -> Row:
        match, way, is_baseline = moved.match, drawing.find_way(moved), self._is_baseline
        title, source = _name_passage(match)
        # Whatever made the index may have put the title before the text.
        text = (match.text or "").removeprefix(f"{title}\n")
        shown = text[:MOST_SHOWN] + (" …" if len(text) > MOST_SHOWN else "")
        snippet = self._cut(text[: 4 * MOST_SHOWN]) if is_baseline or way == "new" else ""
        words = () if is_baseline else self._list_words(moved)
        change = abs(moved.change or 0)
        badge, spoken = {
            "new": ("new", "new here"),
            "up": (f"▲ {change}", f"up {change}"),
            "down": (f"▼ {change}", f"down {change}"),
            "same": ("=", "unmoved"),
            "gone": ("out", "dropped out"),
        }[way]
        return Row(
            key=drawing.name_key(match),
            place=moved.place,
            title=title,
            source=source,
            way="same" if is_baseline else way,
            badge="" if is_baseline else badge,
            spoken="" if is_baseline else spoken,
            why=(
                ""
                if is_baseline
                else reasons.explain_move(moved, self._found, has_words=bool(words))
            ),
            words=words,
            snippet=self._mark(snippet),
            text=self._mark(hide_unseen(shown)),
            is_answer=match.id in self._answers,
        )

    def _list_words(self, moved: Movement) -> tuple[Segment, ...]:
        if not reasons.is_raised_by_words(moved, self._found):
            return ()
        return tuple(
            reasons.list_words(moved, self._moves, self._own, self._models, self._language)
        )

    def _mark(self, text: str) -> tuple[Segment, ...]:
        return tuple(drawing.mark_words(text, self._own, self._models, self._language))

    def _cut(self, text: str) -> str:
        return drawing.cut_snippet(text, self._own, self._models, language=self._language)


def _name_passage(match: Match) -> tuple[str, str]:
    """What a passage is called, and where it stands."""
    held = match.metadata
    names = [held.get("title"), held.get("source"), held.get("url"), match.id]
    known = [name for name in (clean(str(it)) for it in names if isinstance(it, str | int)) if name]
    title = known[0] if known else clean(match.text or "") or "a passage without an id"
    where = [it for it in known[1:] if it != title][:1] + [
        it for it in [describe_place(held)] if it
    ]
    return shorten(title, _TITLE), shorten(", ".join(where), _TITLE)


def _find_keywords(asked: Asked, found: Retrieval) -> tuple[str, str]:
    """The keywords of the question, and those that the model brought, both without function words."""
    texts = [*found.transformation.keywords]
    texts += [
        text
        for name, row in TEXT_FIELDS.items()
        if row.is_evidence
        for text in found.transformation.texts(name)
    ]
    # A question full of slips is in no known language, and what the model made of it is.
    language = find_language(found) or next(
        filter(None, (prepare(text).language for text in texts)), ""
    )
    return _join_telling([preprocess(asked.question)], language), _join_telling(
        map(preprocess, texts), language
    )


def _join_telling(keywords: Iterable[str], language: str) -> str:
    parts = [
        part for words in keywords for word in words.split() for part in drawing.split_word(word)
    ]
    return " ".join(drop_function_words(parts, language))


def _sum_up(moves: Movements) -> str:
    ways = [drawing.find_way(it) for it in (*moves.passages, *moves.dropped)]
    said: dict[drawing.Way, str] = {"new": "new", "up": "up", "down": "down", "gone": "out"}
    listed = ", ".join(f"{ways.count(way)} {word}" for way, word in said.items() if way in ways)
    if not moves.passages:
        return "Nothing was found"
    return listed or SAME


def _describe_searches(found: Retrieval, moves: Movements) -> Iterator[Search]:
    labels = label_searches(ranking.variant for ranking in found.rankings)
    for at, (ranking, label) in enumerate(zip(found.rankings, labels, strict=True)):
        places = {
            it.place: hit.place for it in moves.passages for hit in it.hits if hit.search == at
        }
        spoken = (
            "; ".join(f"result {place} was at {was}" for place, was in places.items())
            or "not in the result"
        )
        yield Search(
            label="joined text" if ranking.variant.kind == JOINED else label.removeprefix("the "),
            text=shorten(ranking.variant.text, 400),
            weight=ranking.variant.weight,
            found=len(ranking.keys),
            moves=drawing.draw_search(moves, at),
            spoken=f"In the list of {label}: {spoken}.",
        )


def _list_texts(found: Retrieval) -> Iterator[tuple[str, str]]:
    """What the model wrote, and what became of it where its list is not among those that were merged."""
    merged = {ranking.variant.text for ranking in found.rankings}
    searched = {variant.text for variant in found.variants}
    for name, row in TEXT_FIELDS.items():
        for text in found.transformation.texts(name):
            what = "" if text in merged or not row.variant else ", without a search of its own"
            if what and text in searched:
                what = ", searched, with weight 0"
            yield row.label + what, text[:MOST_SHOWN]


def _list_figures(found: Retrieval, seconds: float) -> Iterator[tuple[str, str]]:
    trace = found.trace
    if found.confidence is not None:
        yield "confidence", f"{found.confidence:.2f}{', unsure' if found.is_unsure else ''}"
    yield "took", figures.format_duration(seconds * 1e3)
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


def _format_cost(found: Retrieval) -> str:
    """What the model, and the reads where their price is known, cost."""
    trace = found.trace
    if trace.cost_usd is None:
        return "unknown"
    return figures.format_dollars(trace.cost_usd + (trace.read_cost_usd or 0.0))


def _describe_degradation(degradation: Degradation) -> str:
    why = _REASONS.get(degradation.reason, degradation.detail)
    return f"{degradation.stage}: {degradation.reason}" + (f" ({why})" if why else "")


def _describe_decision(found: Retrieval) -> str:
    decision = found.trace.decision
    if decision is None:
        return ""
    return (
        ("The model was called: " if decision.call else "The model was not called: ")
        + decision.reason
        + "."
    )


def _find_first(places: Iterable[int | None]) -> int | None:
    return min((place for place in places if place is not None), default=None)


def count_things(number: int, what: str) -> str:
    """Return *number* and *what* is counted."""
    return f"{number} {what}{'' if number == 1 else 's'}"


_UNSEEN: Final = {
    **dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "�"),
    # What turns the direction of what follows; a text's own direction is found out by the browser.
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
}


def hide_unseen(text: str) -> str:
    """Return *text* without what turns or hides it, and with a sign for what controls a terminal."""
    return text.translate(_UNSEEN)
