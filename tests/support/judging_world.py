"""Questions with reference answers, two systems that answer them, and judges of several minds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qtmiddleware.kit.evaluation import Question, SideBySide, ask_systems
from qtmiddleware.kit.evaluation.judging import CRITERIA
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.answering_service import rank_by_words
from tests.support.retrieval_world import search

QUESTIONS = tuple(
    Question(f"q{n}", f"What is number {n}?", metadata={"answer": f"It is {n}."}) for n in range(8)
)


def short(question: Question) -> str:
    return f"It is {question.id[1:]}, I think."


def long(question: Question) -> str:
    return f"It is {question.id[1:]}. " * 3


def shown(prompt: Prompt) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(prompt.user)
    return given


RANKINGS = {"A": "A > B", "B": "B > A", "neither": "A = B"}


def verdict(better: str, a: int = 5, b: int = 5, **changed: Any) -> dict[str, Any]:
    """What a judge replies about two answers."""
    scores = {
        f"{name}_{it}": score
        for name, score in (("a", a), ("b", b))
        for it in ("accuracy", "completeness", "relevance")
    }
    return {
        "reason": "For one reason or another.",
        **scores,
        "ranking": RANKINGS.get(better, better),
        **changed,
    }


def by_length(prompt: Prompt) -> Mapping[str, Any]:
    """Prefers the longer answer."""
    a, b = len(shown(prompt)["A"]), len(shown(prompt)["B"])
    return verdict(
        "A" if a > b else "B" if b > a else "neither", 9 if a > b else 4, 9 if b > a else 4
    )


def always(better: str) -> Callable[[Prompt], Mapping[str, Any]]:
    """Prefers whatever stands in one place."""
    return lambda prompt: verdict(better, 9 if better == "A" else 4, 9 if better == "B" else 4)


def judge_of(script: Any) -> ScriptedModel:
    return ScriptedModel(script, name="judge-1")


def ranked_side_by_side(*, words: str = "", prefers_longer: bool = False) -> SideBySide:
    """Three systems asked six questions; rewrite is answered best, and the others alike. *words* are everywhere."""

    def reply(prompt: Prompt) -> Mapping[str, Any] | str:
        asked = shown(prompt)
        if prompt.mode == "answer":
            return f"{words} {asked['passages'][0]['text']} [1]"
        if prompt.mode != "rank":
            return {
                "rewrite": f"{asked['query']} The vet checks hips, heart and teeth of every dog once a year."
            }
        said = {
            name: value + words for name, value in rank_by_words(asked).items() if name != "ranking"
        }
        said |= {
            name: value.removesuffix(words) for name, value in said.items() if name[2:] in CRITERIA
        }
        lengths = {name: len(text) for name, text in asked.items() if len(name) == 1}
        longest = " > ".join(sorted(lengths, key=lambda name: -lengths[name]))
        return {**said, "ranking": longest if prefers_longer else rank_by_words(asked)["ranking"]}

    questions = [
        Question(
            f"q{at}",
            f"Walks with Jaco at number {at}? {words}",
            metadata={"answer": f"It is number {at}. {words}"},
        )
        for at in range(6)
    ]
    config = {"fusion": {"weights": {"original": 0}}, "keywordEvidence": {"enabled": False}}
    wrapped = QueryMiddleware(config, client=ScriptedModel(reply, name="judge-1")).wrap(search)
    return ask_systems(wrapped, questions, ["rules", "rewrite"], top_k=1)
