"""The small collection keeps the promises of its README, and its questions show what they are called by."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from qtmiddleware.kit.demo import EXAMPLES, has_recording, load_dataset, load_recorded_model
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.kit.playground.view import build_cards, compare_places
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

SMALL = load_dataset("small")


@pytest.mark.parametrize("folder", EXAMPLES)
def test_every_kind_of_example_is_a_judged_question_with_a_recorded_reply(folder: str) -> None:
    data, model = load_dataset(folder), load_recorded_model(folder)
    assert [*EXAMPLES[folder]] == [
        "gains",
        "loses",
        "code",
        "conversation",
        "nothing found",
        "typo",
    ]
    for id_ in EXAMPLES[folder].values():
        (question,) = data.only({id_}).questions
        assert has_recording(model, question.text, question.history)
    assert not has_recording(model, "a question that nobody has asked", ())


@pytest.mark.thorough
@pytest.mark.parametrize("folder", EXAMPLES)
def test_an_example_shows_what_its_kind_says(folder: str, tmp_path: Path) -> None:
    data = load_dataset(folder)
    embedder = find_embedder("all-MiniLM-L6-v2")
    with open_index(data, tmp_path, embedder) as store:
        opened = QueryMiddleware(
            {"topK": 5}, client=load_recorded_model(folder), store=store, embedder=embedder
        )
        with opened as middleware:
            tiers = Tiers(middleware.retriever, has_recorded_reply=lambda *_: True)
            for kind, id_ in EXAMPLES[folder].items():
                (question,) = data.only({id_}).questions
                best = max(data.qrels[id_].values())
                answers = [id_ for id_, grade in data.qrels[id_].items() if grade == best > 0]
                state = PageState(
                    question=question.text, history=question.history, tiers=tiers.shown
                )
                cards = build_cards(asyncio.run(tiers.ask(state)), tiers, state, answers)
                ways = [compare_places(card, cards[0]) for card in cards]
                if kind == "loses":
                    assert "worse" in ways
                elif kind == "nothing found":
                    assert {*ways[1:]} <= {"same", "none"}
                else:
                    assert "worse" not in ways
                    assert "better" in ways or kind == "code"
