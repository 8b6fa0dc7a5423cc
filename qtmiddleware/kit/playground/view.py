"""Turn the results of the tiers into what the playground's page shows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.kit.check import describe_error
from qtmiddleware.kit.documents.pieces import describe_chunk_location
from qtmiddleware.kit.evaluation.formatting import format_dollars, format_duration, join_names
from qtmiddleware.kit.evaluation.side_by_side import AskedQuestion, SystemAnswer
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.kit.playground.tiers import Tier, Tiers
from qtmiddleware.kit.playground.words import Keywords, Segment
from qtmiddleware.preprocessing.hidden_characters import escape_hidden
from qtmiddleware.preprocessing.text import clean_text, format_count, shorten_text
from qtmiddleware.retrieval.movement import (
    Movement,
    Movements,
    build_search_labels,
    format_ordinal,
)
from qtmiddleware.types import Degradation, Match, Retrieval, Stage

MOST_SHOWN: Final = 4_000
"""The maximum number of characters that the page shows of a passage or a searched text."""
SAME: Final = "The same list"
_TITLE: Final = 90
_SNIPPET: Final = 150
_NOWHERE: Final = 1_000_000
_ADVICE: Final = {
    "empty": "the model's reply was not usable",
    "unrecorded": "no reply is recorded for this question; OPENAI_API_KEY lets a model answer it",
    "unreadable": (
        "the function's result has no list of passages; run qtm check to see how to fix that"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One passage in a tier's result.

    Attributes:
        key: Identifies the passage in all lists of the page.
        start: The rank in the plain list, or else in the search for the question.
        end: The rank in the result. If the passage dropped out, its last known rank.
        way: ``new``, ``up``, ``down``, ``same`` or ``gone``.
        snippet: The text's beginning; empty unless the passage is first shown here.
        is_answer: Whether the passage answers the question, according to the judgements.
    """

    key: str
    start: int | None
    end: int | None
    way: str
    badge: str
    why: str
    title: str
    source: str
    snippet: Sequence[Segment]
    text: Sequence[Segment]
    is_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A tier's result, prepared for the page.

    Attributes:
        config: The tier's config as JSON, for use outside the playground.
        took: How long the call took, or how much time the tier added to the plain search.
        rows: The passages of the result, and then those of the plain list that dropped out.
        texts: The label, the text and a remark for each search and each text of the model.
    """

    tier: Tier
    config: str
    summary: str = "No answer"
    took: str = ""
    calls: str = ""
    cost: str = ""
    problem: str = ""
    degradations: Sequence[str] = ()
    rows: Sequence[Row] = ()
    texts: Sequence[tuple[str, str, str]] = ()
    figures: Sequence[tuple[str, str]] = ()
    steps: Sequence[tuple[str, str]] = ()
    notes: Sequence[tuple[str, str]] = ()

    @property
    def is_baseline(self) -> bool:
        """``True`` for the plain search, with which all other results are compared."""
        return self.tier.name == BASELINE

    @property
    def shown(self) -> Sequence[Row]:
        """The rows of the result, without the passages that dropped out."""
        return [row for row in self.rows if row.way != "gone"]

    @property
    def answer(self) -> int:
        """The best rank of a passage that answers the question."""
        return min((row.end or _NOWHERE for row in self.shown if row.is_answer), default=_NOWHERE)

    @property
    def place(self) -> str:
        """The best rank of a passage that answers the question, in words."""
        return format_ordinal(self.answer) if self.answer < _NOWHERE else "not shown"


def build_cards(
    asked: AskedQuestion,
    tiers: Tiers,
    answer_ids: Collection[str],
) -> list[Card]:
    """Return a card per result. *answer_ids* are the ids of the passages that answer."""
    cards = []
    for answer in asked.systems:
        tier = tiers.all[answer.system]
        values = tiers.build_config(answer.system)
        config = json.dumps(values, indent=2, ensure_ascii=False)
        movements = asked.explain(answer.system)
        if answer.retrieval is None or movements is None:
            took = format_duration(answer.seconds * 1e3)
            problem = "" if answer.error is None else describe_error(answer.error)
            cards.append(Card(tier=tier, config=config, took=took, problem=problem))
        else:
            cards.append(
                _build_card(
                    answer,
                    answer.retrieval,
                    movements,
                    tier,
                    config,
                    asked.question.text,
                    answer_ids,
                )
            )
    return cards


def _build_card(
    answer: SystemAnswer,
    retrieval: Retrieval,
    movements: Movements,
    tier: Tier,
    config: str,
    question: str,
    answer_ids: Collection[str],
) -> Card:
    is_baseline = tier.name == BASELINE
    trace = retrieval.trace
    keywords = Keywords.of(question, retrieval)
    rows = [
        _build_row(movement, keywords, answer_ids, is_baseline=is_baseline)
        for movement in (*movements.passages, *movements.dropped)
    ]
    took = answer.seconds * 1e3 if is_baseline else trace.added_ms
    is_remembered = trace.cache_hits and not trace.llm_calls
    calls = "0, remembered" if is_remembered else str(trace.llm_calls)
    numbers = {"searches": str(trace.searches)}
    if retrieval.confidence is not None:
        numbers["confidence"] = f"{retrieval.confidence:.2f}"
    if trace.llm_calls:
        numbers["tokens"] = f"{trace.input_tokens:,} + {trace.output_tokens:,}"
    notes = list(trace.notes)
    if trace.decision is not None:
        verb = "called" if trace.decision.call else "not called"
        notes.insert(0, ("model", f"{verb}: {trace.decision.reason}"))
    summary = _summarise([row.way for row in rows])
    if is_baseline:
        summary = format_count(len(rows), "passage")
    return Card(
        tier=tier,
        config=config,
        summary=summary,
        took=f"{'' if is_baseline else '+'}{format_duration(took)}",
        calls=calls,
        cost="unknown" if trace.cost_usd is None else format_dollars(trace.cost_usd),
        degradations=[_describe_degradation(note) for note in retrieval.degradations],
        rows=rows,
        texts=list(_list_texts(retrieval)),
        figures=list(numbers.items()),
        steps=[(stage.name, _describe_stage(stage)) for stage in trace.stages],
        notes=notes,
    )


def _build_row(
    movement: Movement,
    keywords: Keywords,
    answer_ids: Collection[str],
    *,
    is_baseline: bool,
) -> Row:
    match, way = movement.match, _find_way(movement)
    steps = abs(movement.change or 0)
    badges = {"gone": "out", "new": "new", "same": "=", "up": f"▲ {steps}", "down": f"▼ {steps}"}
    title, source = _find_title_and_source(match)
    # An index may have stored the title at the start of the text.
    text = (match.text or "").removeprefix(f"{title}\n")
    cut = text[:MOST_SHOWN] + (" …" if len(text) > MOST_SHOWN else "")
    snippet = shorten_text(cut, _SNIPPET) if is_baseline or way == "new" else ""
    return Row(
        # An id may contain any characters, and this becomes an attribute.
        key=f"{crc32(repr(match.key).encode()):08x}",
        start=movement.before or movement.question_place,
        end=movement.place or movement.last_place,
        way=way,
        badge="" if is_baseline else badges[way],
        why="" if is_baseline or way == "same" else movement.why,
        title=title,
        source=source,
        snippet=keywords.mark(snippet),
        text=keywords.mark(escape_hidden(cut)),
        is_answer=match.id in answer_ids,
    )


def _find_way(movement: Movement) -> str:
    """Return how a passage moved, in the words of `Row.way`."""
    if movement.place is None:
        return "gone"
    if movement.before is None:
        return "new"
    if not movement.change:
        return "same"
    return "up" if movement.change > 0 else "down"


def _find_title_and_source(match: Match) -> tuple[str, str]:
    """Return the passage's title, or what replaces it, and where the passage comes from."""
    metadata = match.metadata
    values = (*(metadata.get(name) for name in ("title", "source", "url")), match.id, match.text)
    names = [clean_text(str(value)) for value in values if isinstance(value, str | int)]
    title = next(filter(None, names), "a passage without an id")
    others = [name for name in names[:-1] if name not in ("", title)]
    places = (*others[:1], describe_chunk_location(metadata))
    return shorten_text(title, _TITLE), shorten_text(", ".join(filter(None, places)), _TITLE)


def _summarise(ways: Sequence[str]) -> str:
    if not ways:
        return "Nothing was found"
    words = {"new": "new", "up": "up", "down": "down", "gone": "out"}
    counts = [f"{ways.count(way)} {word}" for way, word in words.items() if way in ways]
    return ", ".join(counts) or SAME


def _list_texts(retrieval: Retrieval) -> Iterator[tuple[str, str, str]]:
    """Yield a label, the text and a remark for each search and each other text of the model."""
    variants = [ranking.variant for ranking in retrieval.rankings]
    for variant, label in zip(variants, build_search_labels(variants), strict=True):
        name = "joined text" if variant.kind == JOINED else label.removeprefix("the ")
        yield name, variant.text[:MOST_SHOWN], f"weight {variant.weight:.2f}"
    searched = {variant.text for variant in variants}
    for name, row in TEXT_FIELDS.items():
        for text in retrieval.transformation.texts(name):
            if text not in searched:
                yield row.label, text[:MOST_SHOWN], "without a search of its own"


def _describe_degradation(degradation: Degradation) -> str:
    text = f"{degradation.stage}: {degradation.reason}"
    detail = _ADVICE.get(degradation.reason, degradation.detail)
    return f"{text} ({detail})" if detail else text


def _describe_stage(stage: Stage) -> str:
    time = format_duration(stage.ms)
    return time if stage.status == "ok" else f"{time}, {stage.status}"


def compare_places(card: Card, baseline: Card) -> str:
    """Return whether the answer is ``better``, ``worse`` or ``same``; ``none`` for no answer."""
    if card.is_baseline or card.problem:
        return "none"
    if card.answer == baseline.answer:
        return "same"
    return "better" if card.answer < baseline.answer else "worse"


def write_headline(cards: Sequence[Card], answer_count: int | None) -> str:
    """Return one to three short sentences on how the tiers' results differ.

    *answer_count* is the number of passages that answer the question; ``None`` if it is not known.
    """
    baseline, *others = cards
    others = [card for card in others if not card.problem]
    if not others:
        return "The plain list." if baseline.rows else "There is no plain list, so no tier ran."
    if answer_count:
        sentences = _describe_answer(baseline, others, answer_count)
    elif answer_count is None:
        sentences = _describe_changes(others)
    else:
        shown = format_count(len(baseline.rows), "passage")
        sentences = f"No passage answers this question. Every tier still returns {shown}."
    return sentences


def _describe_answer(
    baseline: Card,
    others: Sequence[Card],
    answer_count: int,
) -> str:
    subject = "The answer" if answer_count == 1 else f"The first of {answer_count} answers"
    ways: dict[str, list[str]] = {}
    for card in others:
        way = compare_places(card, baseline)
        ways.setdefault(way, []).append(f"{card.tier.name} ({card.place})")
    is_listed = baseline.answer < _NOWHERE
    if [*ways] == ["same"]:
        where = f"{baseline.place} in every list" if is_listed else "in none of the lists"
        return f"{subject} is {where}."
    where = f"{baseline.place} in the plain list" if is_listed else "not in the plain list"
    # Losses come before gains, because a reader must not miss them.
    changes = [f"{way} with {join_names(ways[way])}" for way in ("worse", "better") if way in ways]
    return f"{subject} is {where}: {', '.join(changes)}."


def _describe_changes(cards: Sequence[Card]) -> str:
    """Return how the lists differ from the plain list, without saying which one is better."""
    names: dict[str, list[str]] = {}
    for card in cards:
        new = sum(row.way == "new" for row in card.rows)
        change = "reorder{} the plain list"
        if new:
            change = f"replace{{}} {new} of the {format_count(len(card.shown), 'passage')}"
        elif card.summary == SAME:
            change = "give{} the plain list"
        names.setdefault(change, []).append(card.tier.name)
    clauses = [
        f"{join_names(tiers)} {change.format('s' if len(tiers) == 1 else '')}"
        for change, tiers in names.items()
    ]
    return f"{'; '.join(clauses)}. Nobody judged which passage answers."
