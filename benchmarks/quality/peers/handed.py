"""What every peer is handed: passages, questions, recorded replies and vectors. Standard library and numpy only.

A worker makes its library's retrievers of it; `serve` asks them and writes down what they find.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

RETURNED = 10
"""Passages a system returns."""
LONG = 50
"""Length of the lists the library fuses; the peers' own are much shorter, so they are measured with both."""
MULTI_QUERY = ("sub-queries", "rewrite + sub-queries")
"""What the model of a multi-query retriever answers: each is measured."""
HYDE = ("hypothetical passage",)
NOTHING = ("",)


@dataclass
class Model:
    """What the language model answers at the moment, as lines or as one text."""

    queries: list[str] = field(default_factory=list)
    passage: str = ""

    @property
    def text(self) -> str:
        """A passage, or a query a line, as the peers' prompts ask for them."""
        return self.passage or "\n".join(self.queries)

    def set(self, question: dict[str, Any], reply: str) -> None:
        """Answer with that part of what was recorded for *question*."""
        rewrite = [question["rewrite"]] if reply == "rewrite + sub-queries" else []
        self.queries = rewrite + question["sub_queries"] if reply in MULTI_QUERY else []
        self.passage = question["hyde"] if reply in HYDE else ""


MODEL = Model()
"""The one model of this process."""


@dataclass
class Handed:
    """One data set: passages, questions and the vectors of all texts that may be searched; it counts *searches*."""

    name: str
    ids: list[str]
    texts: list[str]
    passages: Any
    questions: list[dict[str, Any]]
    vectors: dict[str, Any]
    searches: int = 0
    _found: dict[tuple[bytes, int], list[tuple[int, float]]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Handed:
        """The set that was written to *file* and the ``.npz`` beside it."""
        told = json.loads(file.read_text(encoding="utf-8"))
        with np.load(file.with_suffix(".npz")) as held:
            vectors = dict(zip(told["searched"], held["searched"], strict=True))
            return cls(
                told["name"],
                told["ids"],
                told["texts"],
                held["passages"],
                told["questions"],
                vectors,
            )

    def search(self, vector: Any, top_k: int) -> list[tuple[int, float]]:
        """Positions and cosines of the nearest passages, best first; of equal ones (six decimals) the smaller id."""
        self.searches += 1
        vector = np.asarray(vector, dtype=np.float32)
        key = (vector.tobytes(), top_k)
        if key not in self._found:
            cosines = self.passages @ (vector / np.linalg.norm(vector))
            near = np.argpartition(-cosines, min(4 * top_k, len(cosines) - 1))[: 4 * top_k]
            ordered = sorted((-round(float(cosines[at]), 6), self.ids[at], int(at)) for at in near)
            self._found[key] = [(at, -score) for score, _, at in ordered[:top_k]]
        return self._found[key]

    def nearest(self, text: str, top_k: int) -> list[tuple[int, float]]:
        """`search` for one of the texts whose vectors were handed over."""
        return self.search(self.vectors[text], top_k)


@dataclass(frozen=True)
class System:
    """One way a peer retrieves: *run* answers the ids of the passages, best first, however many there are.

    *lists* says how long the lists are that it merges, *replies* which recorded replies it is
    measured with.
    """

    name: str
    run: Callable[[str], Iterable[str]]
    lists: str = ""
    replies: Sequence[str] = NOTHING


def serve(peer: str, versions: dict[str, str], classes: Sequence[type | Any], systems: Any) -> None:
    """Ask what *systems* makes of each set in the folder of the first argument; write it to the second one."""
    folder, target = map(Path, sys.argv[1:])
    runs = []
    for file in sorted(folder.glob("*.json")):
        handed = Handed.read(file)
        for system in systems(handed):
            for reply in system.replies:
                for original in ("text", "standalone"):
                    if any(question[original] for question in handed.questions):
                        before = handed.searches
                        found = {
                            question["id"]: _asked(system, question, reply, original)
                            for question in handed.questions
                        }
                        told = {
                            "system": system.name,
                            "lists": system.lists,
                            "reply": reply,
                            "original": original,
                        }
                        told["searches"] = (handed.searches - before) / len(handed.questions)
                        runs.append({"set": handed.name, **told, "found": found})
    used = [f"{kind.__module__}.{kind.__qualname__}" for kind in classes]
    target.write_text(
        json.dumps({"peer": peer, "versions": versions, "classes": used, "runs": runs}),
        encoding="utf-8",
    )


def _asked(system: System, question: dict[str, Any], reply: str, original: str) -> list[str]:
    MODEL.set(question, reply)
    # The first question of a conversation stands alone.
    return list(dict.fromkeys(system.run(question[original] or question["text"])))[:RETURNED]
