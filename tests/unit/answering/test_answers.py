"""One answer from what was found, in every way of asking for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from tests.support.answer_world import Telling, every_telling
from tests.support.retrieval_world import PASSAGES, QUERY, ids, transforming

FIT = "Jaco has no health concerns [1]."
NOTHING = "The passages do not hold enough information for an answer."


@every_telling
def test_an_answer_has_its_text_its_citations_and_what_it_rests_on(telling: Telling) -> None:
    told = telling.ask(answer=FIT, options={"top_k": 3})
    answer = told.answer
    assert (answer.text, answer.found, answer.status) == (FIT, True, "full")
    assert [it.id for it in answer.matches] == ids(answer.retrieval)
    assert len(answer.matches) == 3
    (citation,) = answer.citations
    assert answer.text[citation.start : citation.end] == "[1]"
    assert citation.match is answer.matches[0]
    assert answer.context.startswith(f"PASSAGE 1:\n{PASSAGES['health']}\n\nPASSAGE 2:")
    assert told.stages[-1] == ("answer", "ok")
    assert answer.retrieval.trace.llm_calls == 1


@every_telling
@pytest.mark.parametrize("mode", ["plain", "synthesis"])
def test_matches_without_a_text_are_not_taken_for_ignorance(telling: Telling, mode: str) -> None:
    textless = [{"id": "a", "score": 0.5}, {"id": "b", "score": 0.4}]
    told = telling.ask(respond=lambda *_: textless, config={"answer": {"mode": mode}})
    assert (told.answer.found, told.answer.status) == (False, "degraded")
    assert ("passages", "no_text") in told.troubles


@every_telling
@pytest.mark.parametrize(
    ("query", "text"),
    [
        (QUERY, NOTHING),
        ("Welche gesundheitlichen Probleme hat der Hund meines Nachbarn?", "Die Textstellen"),
    ],
)
def test_without_passages_the_answer_says_so_in_the_language_of_the_question(
    telling: Telling, query: str, text: str
) -> None:
    told = telling.ask(query, respond=lambda *_: [])
    assert told.answer.text.startswith(text)
    assert (told.answer.found, told.answer.status) == (False, "full")
    assert told.searched.model.prompts == []


@every_telling
@pytest.mark.parametrize(
    ("said", "text", "found", "troubles"),
    [
        ("NO_ANSWER: His age is missing [1].", "His age is missing [1].", False, []),
        ("NO_ANSWER", NOTHING, False, []),
        ("Fit [1, 77] and well [78].", "Fit [1] and well.", True, [("citations", "invented")]),
    ],
)
def test_the_marker_and_invented_citations_are_not_shown(
    telling: Telling, said: str, text: str, found: bool, troubles: list[Any]
) -> None:
    told = telling.ask(answer=said)
    assert (told.answer.text, told.answer.found) == (text, found)
    assert [it.number for it in told.answer.citations] == [1] * ("[1" in said)
    assert told.troubles == troubles


@every_telling
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ModelError("rate_limited"), "rate_limited"),
        (ZeroDivisionError("secret"), "failed"),
        ([30.0, "Fit."], "timeout"),
        ("[77]", "empty"),
        ("<think>He is fit.</think>", "empty"),
    ],
    ids=["model error", "foreign error", "silence", "invention", "thought"],
)
def test_a_model_without_an_answer_is_an_error_that_holds_what_was_found(
    telling: Telling, said: Any, reason: str
) -> None:
    limit = 60 if reason == "timeout" else 50_000
    with pytest.raises(ModelError) as caught:
        telling.ask(answer=said, config={"answer": {"timeoutMs": limit}})
    assert caught.value.reason == reason
    assert "secret" not in str(caught.value)
    assert ids(caught.value.retrieval)[0] == "health"
    assert caught.value.retrieval.trace.llm_calls == 1


@every_telling
def test_a_blank_question_is_refused_before_anything_is_called(telling: Telling) -> None:
    calls: list[str] = []
    with pytest.raises(qtm.InvalidQuery):
        telling.ask("  ", respond=lambda query, _: calls.append(query))
    assert calls == []


@every_telling
def test_the_log_has_one_line_with_all_that_was_spent(telling: Telling, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    answer = telling.ask(answer=FIT, config=transforming("rewrite", log={"path": str(path)})).answer
    (line,) = path.read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert record["query_id"] == answer.retrieval.trace.query_id
    assert record["trace"]["llm_calls"] == 2
    assert "answer" in [stage["name"] for stage in record["trace"]["stages"]]
    assert not any(text in line for text in PASSAGES.values())
