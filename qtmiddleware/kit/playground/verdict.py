"""Compare each tier's rank of the answer with the plain search's rank, and show the costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from qtmiddleware.kit.playground.cards import SAME, Card
from qtmiddleware.preprocessing.text import format_count
from qtmiddleware.retrieval.movement import format_ordinal

_SIGNS: Final = {"better": "▲", "worse": "▼", "same": "=", "none": ""}
_BEYOND: Final = 1_000_000
"""The assumed rank of an answer that the page does not show, below all shown passages."""


@dataclass(frozen=True, slots=True)
class TierVerdict:
    """The verdict on one tier's result.

    Attributes:
        name: The tier's name.
        outcome: The answer's rank as text. If no answer is known, the number of moved passages.
        way: ``better``, ``worse``, ``same``, or ``none`` if there is nothing to compare.
        sign: The symbol for `way`, such as ``▲``.
        change: A phrase for `way`, for screen readers.
        took: The duration of the call, as text.
        calls: The number of model calls, as text.
        cost: The cost of the call, as text.
    """

    name: str
    outcome: str
    way: str
    sign: str
    change: str
    took: str
    calls: str
    cost: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdicts on all tiers' results for one question.

    Attributes:
        is_judged: Whether judgements say which passages answer the question.
        tiers: One verdict per tier.
    """

    is_judged: bool
    tiers: tuple[TierVerdict, ...]


def judge_tiers(cards: Sequence[Card]) -> Verdict:
    """Return the verdict on each tier's result in *cards*. The plain search must come first."""
    is_judged = bool(cards[0].answers)
    judge_tier = _build_rank_verdict if is_judged else _build_movement_verdict
    return Verdict(is_judged, tuple(judge_tier(card, cards[0]) for card in cards))


def format_headline(cards: Sequence[Card]) -> str:
    """Return one to three short sentences on how the tiers' results in *cards* differ."""
    tier_cards = [card for card in cards if not card.is_baseline and not card.problem]
    if not tier_cards:
        return (
            "There is no plain list, so no tier ran."
            if cards and not cards[0].rows
            else "The plain list."
        )
    # The text of a degradation begins with its stage.
    failed_tiers = sum(
        any(reason.startswith("transform") for reason in card.degradations) for card in tier_cards
    )
    remark = (
        f" The model gave nothing usable to {format_count(failed_tiers, 'tier')}."
        if failed_tiers
        else ""
    )
    baseline = cards[0]
    if baseline.answers:
        return f"{_describe_answer_ranks(baseline, tier_cards)}{remark}"
    if baseline.answers is not None:
        shown = format_count(len(baseline.rows), "passage")
        return f"No passage answers this question. Every tier still returns {shown}.{remark}"
    return f"{' '.join(_describe_list_changes(tier_cards))}{remark}"


def _describe_answer_ranks(baseline: Card, cards: Sequence[Card]) -> str:
    """Return a sentence on the answer's rank in the plain search and in the other tiers.

    The sentence omits tiers that rank the answer as the plain search does.
    """
    subject = "The answer" if baseline.answers == 1 else f"The first of {baseline.answers} answers"
    ways: dict[str, list[str]] = {}
    for card in cards:
        verdict = _build_rank_verdict(card, baseline)
        ways.setdefault(verdict.way, []).append(f"{verdict.name} ({verdict.outcome})")
    if [*ways] == ["same"]:
        where = "none of the lists" if baseline.answer is None else "every list"
        return (
            f"{subject} is "
            f"{'' if baseline.answer is None else f'{format_ordinal(baseline.answer)} '}"
            f"in {where}."
        )
    # Losses come before gains, because a reader must not miss them.
    changes = [f"{way} with {_join_names(ways[way])}" for way in ("worse", "better") if way in ways]
    place = (
        "not in the plain list"
        if baseline.answer is None
        else f"{_format_answer_rank(baseline)} in the plain list"
    )
    return f"{subject} is {': '.join(filter(None, (place, ', '.join(changes))))}."


def _describe_list_changes(cards: Sequence[Card]) -> Iterator[str]:
    """Yield sentences on how the tiers' lists differ from the plain list.

    The sentences do not say which list is better, because the answer is not known.
    """
    changes: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        change = (
            ("give", "the plain list") if card.headline == SAME else ("reorder", "the plain list")
        )
        if new := sum(row.way == "new" for row in card.rows):
            change = ("replace", f"{new} of the {format_count(len(card.rows), 'passage')}")
        changes.setdefault(change, []).append(card.tier.name)
    clauses = (
        f"{_join_names(names)} {verb}{'s' if len(names) == 1 else ''} {complement}"
        for (verb, complement), names in changes.items()
    )
    yield f"{'; '.join(clauses)}."
    if any(card.is_unsure for card in cards):
        yield (
            "The passages probably do not hold the answer: the best one fits far worse than usual."
        )
    else:
        yield "Nobody judged which passage answers."


def _build_rank_verdict(card: Card, baseline: Card) -> TierVerdict:
    """Return whether *card* ranks the answer better or worse than *baseline*, as a verdict."""
    way = "none"
    if not card.is_baseline and not card.problem:
        place, before = card.answer or _BEYOND, baseline.answer or _BEYOND
        way = "better" if place < before else "worse" if place > before else "same"
    meanings = {
        "better": "better than the plain list",
        "worse": "worse than the plain list",
        "same": "as in the plain list",
    }
    return _build_tier_verdict(
        card,
        "no answer" if card.problem else _format_answer_rank(card),
        way,
        meanings.get(way, ""),
    )


def _format_answer_rank(card: Card) -> str:
    """Return the answer's rank in *card* as text, or ``not shown`` if no row is an answer."""
    if card.answer is not None:
        return format_ordinal(card.answer)
    is_known = card.lost is not None and card.lost > len(card.rows)
    return f"not shown, {format_ordinal(card.lost or 0)}" if is_known else "not shown"


def _build_movement_verdict(card: Card, baseline: Card) -> TierVerdict:  # noqa: ARG001  (as its twin)
    """Return a verdict that counts the moved passages in *card*, without "better" or "worse"."""
    return _build_tier_verdict(card, "no answer" if card.problem else card.headline, "none", "")


def _build_tier_verdict(card: Card, outcome: str, way: str, change: str) -> TierVerdict:
    return TierVerdict(
        card.tier.name, outcome, way, _SIGNS[way], change, card.took, card.calls, card.cost
    )


def _join_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
