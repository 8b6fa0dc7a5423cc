"""The shipped data sets keep the promises of their README, and their examples show what they are called by."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest

from qtmiddleware.kit.demo import EXAMPLES, load_dataset, load_recorded_model
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.kit.playground.view import build_cards, compare_places
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

FOLDER: Final = files("qtmiddleware") / "kit" / "demo" / "data"
DATA: Final = load_dataset()
QUESTIONS: Final = {question.id: question for question in DATA.questions}
PASSAGES: Final = {passage.id: passage.text for passage in DATA.passages}
LINES: Final = (FOLDER / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
RECORDINGS: Final[dict[str, dict[str, Any]]] = {row["_id"]: row for row in map(json.loads, LINES)}
SINGLE: Final = ("standalone", "rewrite", "step_back", "hyde")
SEVERAL: Final = ("sub_queries", "paraphrases", "keywords")
# What no rewrite may lose: quoted phrases, the names of models and plans, spelled-out numbers.
KEPT: Final = re.compile(
    r'"[^"]+"|Harbor \d|Ridge \d|Drift F|Barge L|\b(?:Flex|Steady|Family|Business|Care)\b'
    r"|(?i:\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)\b)"
)


def tokens(text: str) -> list[str]:
    return [token.lower() for token in re.findall(r"\w[\w.\-]*\w|\w", text)]


def numbers(text: str) -> set[str]:
    return {token for token in tokens(text) if any(character.isdigit() for character in token)}


def test_the_readme_tells_the_true_counts() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    told = {kind: int(n) for kind, n in re.findall(r"^\| (\w+) \| (\d+) \|", readme, re.MULTILINE)}
    assert told == Counter(question.metadata["type"] for question in DATA.questions)
    grades = [list(grades.values()) for grades in DATA.qrels.values()]
    for said in (
        f"{len(PASSAGES)} passages",
        f"{len(QUESTIONS)} questions",
        f"{sum(map(len, grades))} graded judgements",
    ):
        assert said in readme
    assert all(2 in of_one and {*of_one} <= {1, 2} for of_one in grades)


def test_every_question_has_a_complete_recording_that_loses_nothing() -> None:
    assert {key: row["query"] for key, row in RECORDINGS.items()} == {
        key: question.text for key, question in QUESTIONS.items()
    }
    for id_, recording in RECORDINGS.items():
        question = QUESTIONS[id_]
        assert set(recording) == {"_id", "query", *SINGLE, *SEVERAL}
        assert (recording["standalone"] is not None) == bool(question.history), id_
        assert 1 <= len(recording["sub_queries"]) <= 4, id_
        assert len(recording["paraphrases"]) == 3, id_
        assert 3 <= len(recording["keywords"]) <= 8, id_
        for name in SEVERAL:
            assert len({text for text in recording[name] if text.strip()}) == len(recording[name])
        for variant in (recording["rewrite"], recording["standalone"], *recording["paraphrases"]):
            if variant is not None:
                lost = {
                    it for it in KEPT.findall(question.text) if it.lower() not in variant.lower()
                }
                assert not lost | (numbers(question.text) - numbers(variant)), id_


@pytest.mark.thorough
def test_an_example_shows_what_its_kind_says(tmp_path: Path, embedder: CallableEmbedder) -> None:
    data, model = DATA, load_recorded_model()
    options: Any = {"client": model, "embedder": embedder}
    with (
        open_index(data, tmp_path, embedder) as store,
        QueryMiddleware({"topK": 5}, store=store, **options) as middleware,
    ):
        tiers = Tiers(middleware.retriever)
        for id_, kind in EXAMPLES.items():
            (question,) = data.only({id_}).questions
            best = max(data.qrels[id_].values())
            answers = [id_ for id_, grade in data.qrels[id_].items() if grade == best > 0]
            asked: Any = {"question": question.text, "history": question.history}
            state = PageState(tiers=tiers.shown, **asked)
            cards = build_cards(asyncio.run(tiers.ask(state)), tiers, answers)
            ways = [compare_places(card, cards[0]) for card in cards]
            if kind == "nothing found":
                assert {*ways[1:]} <= {"same", "none"}
            else:
                assert ("worse" in ways) == (kind == "loses")
                assert "better" in ways or kind in ("code", "loses")
