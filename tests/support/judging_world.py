"""Questions with reference answers, two systems that answer them, and judges of several minds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qtmiddleware.kit.evaluation import Question, SideBySide, ask_systems
from qtmiddleware.kit.evaluation.judge import CRITERIA
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.answering_service import rank_by_words
from tests.support.retrieval_world import search


def shown(prompt: Prompt) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(prompt.user)
    return given


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
