"""Questions with reference answers, two systems that answer them, and judges of several minds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qtmiddleware.evaluation import Question
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel

QUESTIONS = tuple(Question(f"q{n}", f"What is number {n}?", metadata={"answer": f"It is {n}."}) for n in range(8))


def short(question: Question) -> str:
    return f"It is {question.id[1:]}, I think."


def long(question: Question) -> str:
    return f"It is {question.id[1:]}. " * 3


def shown(prompt: Prompt) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(prompt.user)
    return given


def verdict(better: str, a: int = 5, b: int = 5, **changed: Any) -> dict[str, Any]:
    """What a judge replies."""
    scores = {
        f"{name}_{it}": score
        for name, score in (("a", a), ("b", b))
        for it in ("accuracy", "completeness", "relevance")
    }
    return {"reason": "For one reason or another.", **scores, "better": better, **changed}


def by_length(prompt: Prompt) -> Mapping[str, Any]:
    """Prefers the longer answer."""
    a, b = len(shown(prompt)["A"]), len(shown(prompt)["B"])
    return verdict("A" if a > b else "B" if b > a else "neither", 9 if a > b else 4, 9 if b > a else 4)


def always(better: str) -> Callable[[Prompt], Mapping[str, Any]]:
    """Prefers whatever stands in one place."""
    return lambda prompt: verdict(better, 9 if better == "A" else 4, 9 if better == "B" else 4)


def judge_of(script: Any) -> ScriptedModel:
    return ScriptedModel(script, name="judge-1")
