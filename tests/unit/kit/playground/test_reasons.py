"""Why a passage moved: one short sentence that is true, and words that count."""

from __future__ import annotations

from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation.movement import explain_movement
from qtmiddleware.kit.playground.asked import PageState
from qtmiddleware.kit.playground.cards import Card, build_card
from qtmiddleware.kit.playground.tiers import TierAnswer, Tiers
from qtmiddleware.preprocessing.lexicon import load_lexicon
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


def test_a_passage_that_words_raise_has_the_words_that_tell_it_apart() -> None:
    card = find_card(
        wrap_list("A dog and its day.", *FILLER[:3], "Does Jaco have health concerns?", weight=0.9),
        "rules",
    )
    row = card.rows[0]
    assert row.why == "It holds more of the question’s words."
    assert [piece for piece, _ in row.words] == ["Jaco", "health", "concerns"]


def test_a_word_stands_there_once_whatever_its_forms() -> None:
    card = find_card(
        wrap_list(*FILLER[:3], "Concerns: a concern of Jaco. Jaco concerned us.", weight=0.9),
        "rules",
    )
    assert sorted(piece.casefold() for piece, _ in card.rows[0].words) == ["concerns", "jaco"]


def test_a_code_is_one_word() -> None:
    texts = (*FILLER[:3], "L-15 means this. It takes 15 minutes.")
    card = find_card(wrap_list(*texts, weight=0.9), "rules", "What is L-15?")
    assert [piece for piece, _ in card.rows[0].words] == ["L-15"]


@pytest.mark.parametrize("name", ["rules", "combined", "decompose"])
def test_no_function_word_is_among_the_words(name: str) -> None:
    card = find_card(app.search, name)
    lexicon = load_lexicon("en")
    words = {piece.casefold() for row in (*card.rows, *card.dropped) for piece, _ in row.words}
    assert not words & {
        *lexicon.stop,
        *lexicon.function_words,
        *lexicon.pronouns,
        *lexicon.conjunctions,
    }


def test_a_passage_that_function_words_raise_is_said_to_be_raised_by_nothing_much() -> None:
    row = find_card(
        wrap_list(*FILLER[:3], "How much for that?", weight=0.9), "rules", "And how much for that?"
    ).rows[0]
    assert row.words == ()
    assert row.why == "It holds more of the question’s words, none of which says much."


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


def test_no_word_is_named_where_words_have_no_weight() -> None:
    card = find_card(wrap_list(*FILLER[:3], "Does Jaco have health concerns?", weight=0.0), "rules")
    assert card.headline == "The same list"
    assert all(row.why == "" and row.words == () for row in card.rows)


@pytest.mark.parametrize("name", ["rules", "rewrite", "combined", "decompose", "all", "thorough"])
def test_every_passage_that_moves_has_one_short_sentence_and_no_other_has_any(name: str) -> None:
    card = find_card(app.search, name)
    assert card.rows
    for row in (*card.rows, *card.dropped):
        assert bool(row.why) == (row.way != "same")
        assert row.why.count(".") == bool(row.why)
        assert len(row.why) <= 100


def test_what_a_search_of_the_model_found_says_at_which_place() -> None:
    card = find_card(app.search, "decompose")
    tiers = Tiers(app.search)
    found = next(tier for tier in tiers.all if tier.name == "decompose").function.retrieve(QUERY)
    moves = explain_movement(found, tiers.all[0].function.retrieve(QUERY).matches)
    said = [
        (row, moved)
        for row, moved in zip(card.rows, moves.passages, strict=True)
        if "in the search" in row.why
    ]
    assert said
    for row, moved in said:
        places = [hit.place for hit in moved.hits if hit.kind != "original"]
        assert int(row.why[: row.why.index(" ") - 2]) == min(places)


def test_a_passage_that_falls_names_those_that_passed_it() -> None:
    card = find_card(
        wrap_list("A dog.", "A cat.", "Jaco has health concerns.", weight=0.9), "rules"
    )
    assert [row.why for row in card.rows[1:]] == [
        "Passed by the passage now 1st, which holds more of the question’s words."
    ] * 2


def test_a_passage_that_leaves_the_list_says_where_it_is() -> None:
    card = find_card(wrap_list(*FILLER[:3], "Jaco has health concerns.", weight=0.9), "rules")
    assert [row.why for row in card.dropped] == ["Falls to 4th, so it is not among the 3 shown."]
