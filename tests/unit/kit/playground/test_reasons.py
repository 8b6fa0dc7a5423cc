"""Why a passage moved: one short sentence that is true, and words that count."""

from __future__ import annotations

from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.playground.asked import PageState
from qtmiddleware.kit.playground.cards import Card, build_card
from qtmiddleware.kit.playground.tiers import TierAnswer, Tiers
from qtmiddleware.retrieval.movement import explain_movement
from qtmiddleware.testing import ScriptedModel
from tests.support import playground_app as app
from tests.support.retrieval_world import QUERY

FILLER = tuple(f"Nothing of it here, number {number}." for number in range(6))


def find_card(fn: Any, name: str, question: str = QUERY) -> Card:
    """What the tier called *name* shows of *question*, beside the plain list."""
    tiers = Tiers(fn)
    tier, plain = (next(it for it in tiers.all if it.name == wanted) for wanted in (name, "raw"))
    before, found = plain.function.retrieve(question), tier.function.retrieve(question)
    return build_card(TierAnswer(tier, found), PageState(question=question), before, None, "")


def wrap_list(*texts: str, weight: float | None = None) -> Any:
    """A function that finds *texts* in this order, with a *weight* of the words where one is set."""
    rows = [{"id": str(at), "score": 0.9 - at / 100, "text": text} for at, text in enumerate(texts)]
    evidence = {} if weight is None else {"keywordEvidence": {"weight": weight}}
    return qtm.QueryMiddleware(evidence).wrap(lambda query, top_k=3: rows[:top_k])


def test_the_language_of_a_misspelt_question_is_that_of_what_the_model_wrote() -> None:
    reply = {
        "rewrite": "What happens if the payment by card is declined and we try it again after a week?"
    }
    texts = (
        "A cat.",
        "A dog.",
        "A hen.",
        "After the payment is declined, we try it again and again.",
    )
    rows = [{"id": str(at), "score": 0.9 - at / 100, "text": text} for at, text in enumerate(texts)]
    wrapped = qtm.QueryMiddleware(client=ScriptedModel(reply)).wrap(
        lambda query, top_k=3: rows[:top_k]
    )
    card = find_card(wrapped, "rewrite", "paymant declind agen")
    marked = {piece for row in card.rows for piece, whose in row.text if whose}
    assert {"payment", "declined"} <= marked
    assert not marked & {"the", "we", "and", "is", "it", "After"}


def test_no_reason_is_named_where_words_have_no_weight() -> None:
    card = find_card(wrap_list(*FILLER[:3], "Does Jaco have health concerns?", weight=0.0), "rules")
    assert card.headline == "The same list"
    assert all(row.why == "" for row in card.rows)


@pytest.mark.parametrize("name", ["rules", "rewrite", "combined", "decompose", "all", "thorough"])
def test_every_passage_that_moves_has_the_reason_that_everybody_gets_and_no_other_has_any(
    name: str,
) -> None:
    card = find_card(app.search, name)
    assert card.rows
    tiers = Tiers(app.search)
    plain, tier = tiers.all[0], next(tier for tier in tiers.all if tier.name == name)
    moved = explain_movement(tier.function.retrieve(QUERY), plain.function.retrieve(QUERY).matches)
    for row, movement in zip(
        (*card.rows, *card.dropped), (*moved.passages, *moved.dropped), strict=True
    ):
        assert row.why == ("" if row.way == "same" else movement.why)


@pytest.mark.parametrize(
    ("texts", "question", "whys"),
    [
        (
            ("A dog.", "A cat.", "Jaco has health concerns."),
            QUERY,
            ["from 3rd to 1st: holds 'jaco', 'health' and 'concerns'"]
            + [f"from {old} to {new}: passed by the passage now 1st; holds no keyword"
               for old, new in (("1st", "2nd"), ("2nd", "3rd"))],
        ),
        (
            (*FILLER[:3], "L-15 means this. It takes 15 minutes."),
            "What is L-15?",
            ["new at 1st, from 4th in the question's own search: holds 'l-15'"]
            + [f"from {old} to {new}: passed by the passage now 1st; holds no keyword"
               for old, new in (("1st", "2nd"), ("2nd", "3rd"))]
            + ["was 3rd, now 4th and out of the 3 shown: passed by the passage now 1st; holds no keyword"],
        ),
        (
            (*FILLER[:2], "How much for that?"),
            "And how much for that?",
            ["from 3rd to 1st: holds 'for' and 'that'"]
            + [f"from {old} to {new}: passed by the passage now 1st; holds no keyword"
               for old, new in (("1st", "2nd"), ("2nd", "3rd"))],
        ),
    ],
)  # fmt: skip
def test_the_reasons_say_what_moved_a_passage(
    texts: tuple[str, ...], question: str, whys: list[str]
) -> None:
    card = find_card(wrap_list(*texts, weight=0.9), "rules", question)
    assert [row.why for row in (*card.rows, *card.dropped)] == whys
