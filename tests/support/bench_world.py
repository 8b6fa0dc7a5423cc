"""A small judged collection about bridges, in files and in memory, and what a model replies that is asked of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.protocols import Passage, Prompt
from qtmiddleware.types import Message
from tests.support.testset_world import NAMES, bridge, writer

QUESTIONS = {name: f"When was {name} Bridge opened to traffic?" for name in NAMES[:6]}
FOLLOW_UP = "And who inspects it?"
HISTORY = (Message("user", "When was Arlo Bridge opened?"), Message("assistant", "In 1850."))


def passages(count: int = 12) -> tuple[Passage, ...]:
    return tuple(bridge(name) for name in NAMES[:count])


def bridges_data(*, history: bool = False) -> Dataset:
    questions = [
        Question(name, text, metadata={"answer": "In 1850."}) for name, text in QUESTIONS.items()
    ]
    if history:
        questions.append(Question("later", FOLLOW_UP, HISTORY))
    qrels = {one.id: {f"{one.id if one.id != 'later' else 'Arlo'}#0": 1} for one in questions}
    return Dataset("bridges", passages(), tuple(questions), qrels)


def write_data(folder: Path, data: Dataset) -> Path:
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": it.id, "text": it.text, "metadata": dict(it.metadata)} for it in data.passages
    ]
    for name, records in {
        "corpus": corpus,
        "queries": [one.to_record() for one in data.questions],
    }.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
    lines = [
        f"{question}\t{id_}\t{grade}\n"
        for question, found in data.qrels.items()
        for id_, grade in found.items()
    ]
    (folder / "qrels" / "test.tsv").write_text("".join(lines))
    return folder


def write_recording(path: Path, data: Dataset, *fields: str) -> Path:
    """A recording of some *fields* of every question."""
    said = {
        "rewrite": "When did {0} open?",
        "step_back": "What is known of {0}?",
        "hyde": "{0} opened in 1850.",
        "sub_queries": ["When did {0} open?", "Who built {0}?"],
        "paraphrases": ["Since when is {0} open?"],
    }
    records = []
    for question in data.questions:
        given = json.loads(
            json.dumps({name: said[name] for name in fields}).replace(
                "{0}", f"{question.id} Bridge"
            )
        )
        records.append({"_id": question.id, **given})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class CountingEmbedder:
    """Vectors out of a text's hash; counts the texts it embedded."""

    name = "counting"
    dimension = 8

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts.extend(texts)
        digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
        return [[byte / 255 for byte in digest[:8]] for digest in digests]


def mode_of(body: dict[str, Any]) -> str:
    """What a request is for."""
    mode: str = body.get("response_format", {}).get("json_schema", {}).get("name", "text")
    return mode


def reply(body: dict[str, Any]) -> Any:
    """Questions, verdicts, answers and transformed questions, as the prompt asks."""
    mode, user = mode_of(body), body["messages"][-1]["content"]
    if mode.startswith("test_"):
        return writer(Prompt(mode, "1", "", user, (), user))
    if mode == "rank":
        marks = {
            f"{name}_{what}": "7"
            for name in "ab"
            for what in ("accuracy", "completeness", "relevance")
        }
        return {"reason": "They say the same.", **marks, "ranking": "A = B"}
    asked = json.loads(user)
    if "passages" in asked:
        return f"{asked['passages'][0]['text'][:60]} [1]"
    query = asked["query"].rstrip("?")
    last = query.split()[-2:]
    return {
        "standalone": asked["query"],
        "rewrite": f"{query} exactly?",
        "step_back": f"What is known about {' '.join(last)}?",
        "sub_queries": [f"{query} at first?", f"{query} at last?"],
        "paraphrases": [f"Tell me: {query}?"],
        "hyde": f"It is known that {query}.",
        "keywords": last,
    }
