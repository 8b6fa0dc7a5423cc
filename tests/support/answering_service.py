"""A model that transforms questions and answers them from the passages it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pytest_httpserver import HTTPServer

from qtmiddleware.kit.evaluation.judge import CRITERIA
from tests.support.model_server import ModelServer, Said, failure

TRANSFORMED: Final = {
    "rewrite": "Which conditions does the dog Jaco suffer from?",
    "step_back": "How healthy is Jaco?",
    "sub_queries": [
        "Which health concerns did the vet find in May?",
        "Which health concerns do older dogs have?",
    ],
    "paraphrases": ["Is Jaco ill?"],
    "hyde": "Jaco is healthy according to the vet.",
    "keywords": ["vet", "arthritis"],
}


class AnsweringService(ModelServer):
    """Answers with the words of the first passage and ``[1]``, or with *text*, and transforms into *transformation*.

    Asked to rank answers it prefers the one of more words. While it *pauses* an answer waits after
    its first words. The questions in *refused* fail.
    """

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server, self._say)
        self.text = ""
        self.transformation: dict[str, Any] = {**TRANSFORMED}
        self.pauses = False
        self.refused: set[str] = set()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What it was asked, read from the user messages."""
        return [_asked(body) for body in self.bodies]

    @property
    def answered(self) -> list[dict[str, Any]]:
        """The questions that were to be answered."""
        return [it for it in self.requests if "question" in it]

    @property
    def transformed(self) -> list[dict[str, Any]]:
        """The questions that were to be transformed."""
        return [it for it in self.requests if "query" in it]

    def _say(self, body: dict[str, Any]) -> Said:
        asked = _asked(body)
        if "reference" in asked:
            return rank_by_words(asked)
        if "question" in asked:
            return failure(503) if asked["question"] in self.refused else self._answer(asked)
        if not asked.get("history"):
            return self.transformation
        # As a model would: the subject comes out of the question before.
        return {**self.transformation, "standalone": f"{asked['query'].rstrip('?')} of Jaco?"}

    def _answer(self, asked: dict[str, Any]) -> Iterator[str]:
        words = (self.text or f"{asked['passages'][0]['text']} [1]").split(" ")
        for at, word in enumerate(words):
            yield word if at == 0 else f" {word}"
            if at == 1 and self.pauses:
                self.wait()


def rank_by_words(asked: dict[str, Any]) -> dict[str, str]:
    """What a judge replies who prefers the answer of more different words; equals have as many."""
    lengths = {name: len(set(text.split())) for name, text in asked.items() if len(name) == 1}
    ordered = sorted(lengths, key=lambda name: -lengths[name])
    ranking = "".join(
        name if not at else f" {'=' if lengths[name] == lengths[ordered[at - 1]] else '>'} {name}"
        for at, name in enumerate(ordered)
    )
    said = {"ranking": ranking, "reason": f"{ordered[0]} says most."}
    for name, length in lengths.items():
        said |= {f"{name.lower()}_{it}": str(min(10, 1 + length)) for it in CRITERIA}
        said |= {
            f"{name.lower()}_strengths": "brief" if length < 6 else "full",
            f"{name.lower()}_weaknesses": "",
        }
    return said


def _asked(body: dict[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(body["messages"][-1]["content"])
    return asked
