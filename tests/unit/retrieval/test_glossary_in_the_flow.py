"""What a glossary changes in a whole retrieval: the order, the prompt, the guard, the cache and the searches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.transforms import guard_transformation
from qtmiddleware.types import Transformation

TERMS: Mapping[str, str] = {"CR": "change request", "HOW": "hot works order"}
PASSAGES = {
    "vacation": "Who approves a vacation: your team lead, within two days.",
    "change": "A change request needs the approval of the architecture board, which approves it.",
    "printer": "The printer on floor two takes A3.",
    "lunch": "Lunch is served from noon in the hall.",
}


class Search:
    """Passages in a fixed order, and the texts that were searched."""

    def __init__(self) -> None:
        self.searched: list[str] = []

    def __call__(self, query: str, top_k: int = 2) -> list[dict[str, Any]]:
        self.searched.append(query)
        rows = [
            {"id": id_, "score": 0.9 - at / 100, "text": text}
            for at, (id_, text) in enumerate(PASSAGES.items())
        ]
        return rows[:top_k]


def retrieve(question: str, *, client: Any = None, **settings: Any) -> tuple[qtm.Retrieval, Search]:
    search = Search()
    return qtm.QueryMiddleware(settings, client=client).wrap(search).retrieve(
        question, top_k=2
    ), search


def notes(retrieval: qtm.Retrieval) -> list[str]:
    return [said for stage, said in retrieval.trace.notes if stage == "glossary"]


def test_a_passage_with_the_other_form_counts_as_one_with_the_question_s() -> None:
    plain, _ = retrieve("Who approves a CR?")
    found, search = retrieve("Who approves a CR?", glossary={"terms": TERMS})
    assert plain.matches[0].id == "vacation"
    assert found.matches[0].id == "change"
    assert notes(found) == ["CR = change request"]
    assert search.searched == ["Who approves a CR?"]


@pytest.mark.parametrize(
    "question",
    ["Who approves a cr?", "How long is lunch?", "Where is the printer?", "HOW long is lunch?"],
)
def test_a_question_without_a_term_gets_what_it_gets_without_a_glossary(question: str) -> None:
    plain, _ = retrieve(question)
    found, _ = retrieve(question, glossary={"terms": TERMS})
    assert [(match.id, match.score) for match in found.matches] == [
        (match.id, match.score) for match in plain.matches
    ]


@pytest.mark.parametrize("broken", ["find_terms", "add_glossary_terms"])
def test_a_glossary_that_fails_leaves_the_result_of_the_rules_and_says_so(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    owner = "Glossary." if broken == "find_terms" else ""
    monkeypatch.setattr(f"qtmiddleware.retrieval.glossary.{owner}{broken}", fail)
    question = "How long is the CR lunch, from noon?"
    plain, _ = retrieve(question)
    found, _ = retrieve(question, glossary={"terms": TERMS})
    assert [match.id for match in found.matches] == [match.id for match in plain.matches]
    assert found.degradations == (qtm.Degradation("glossary", "failed", "RuntimeError"),)


def test_the_model_is_told_the_forms_of_the_terms_in_the_question_and_of_no_others() -> None:
    prompts: list[Prompt] = []

    def reply(prompt: Prompt) -> Mapping[str, Any]:
        prompts.append(prompt)
        return {"rewrite": "Which people approve a change request?"}

    settings = {"transformationType": "rewrite", "glossary": {"terms": TERMS}}
    middleware = qtm.QueryMiddleware(settings, client=ScriptedModel(reply))
    assert (
        middleware.transform("Who approves a CR?").rewrite
        == "Which people approve a change request?"
    )
    middleware.transform("Who approves a vacation?")
    assert json.loads(prompts[0].user) == {
        "glossary": {"CR": ["change request"]},
        "query": "Who approves a CR?",
    }
    assert '"glossary"' in prompts[0].system
    assert json.loads(prompts[1].user) == {"query": "Who approves a vacation?"}
    assert '"glossary"' not in prompts[1].system


def test_another_glossary_is_another_key_of_the_cache_for_questions_with_its_terms_alone() -> None:
    asked: list[str] = []

    def reply(prompt: Prompt) -> Mapping[str, Any]:
        asked.append(prompt.query)
        return {"rewrite": f"{prompt.query} please explain"}

    middleware = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=ScriptedModel(reply))
    for terms in ({}, TERMS, TERMS, {"CR": "credit rating"}):
        for question in ("Who approves a CR?", "Where is lunch?"):
            middleware.transform(question, config={"glossary": {"terms": terms}})
    assert asked == [
        "Who approves a CR?",
        "Where is lunch?",
        "Who approves a CR?",
        "Who approves a CR?",
    ]


@pytest.mark.parametrize(
    ("query", "rewrite"),
    [
        ("Who approves the DRB?", "Who approves the drawing release board?"),
        ("Who sits in the Drawing Release Board?", "Who sits in the DRB?"),
        ("Is the DRB Lunnick open?", "Is the Lunnick drawing release board open?"),
    ],
)
def test_a_text_that_has_a_term_in_another_form_lost_nothing(query: str, rewrite: str) -> None:
    facts = (("DRB", ("drawing release board",)), ("drawing release board", ("DRB",)))
    spans = [(span.kind, span.text) for span in find_protected_spans(query, language="en")]
    kept = guard_transformation(
        Transformation(rewrite=rewrite), query=query, required_spans=spans, glossary=facts
    )
    assert kept == Transformation(rewrite=rewrite)


def test_a_file_is_read_once_for_a_middleware_and_again_by_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "terms.txt"
    path.write_text("CR, change request")
    search = Search()
    middleware = qtm.QueryMiddleware({"glossary": str(path)})
    wrapped = middleware.wrap(search)
    path.write_text("CR, credit rating")
    assert notes(wrapped.retrieve("Who approves a CR?")) == ["CR = change request"]
    middleware.reload({"glossary": str(path)})
    assert notes(wrapped.retrieve("Who approves a CR?")) == ["CR = credit rating"]


def test_a_file_that_cannot_be_read_is_told_when_the_middleware_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"glossary file .*missing.* cannot be read"):
        qtm.QueryMiddleware({"glossary": {"path": str(tmp_path / "missing.txt")}})
