"""MTRAG-UN: conversations of people with a retrieval assistant (Rosenthal et al. 2026, arXiv 2602.23184)."""

from __future__ import annotations

import json
from typing import Final

from benchmarks.outside.collection import Collection, clean
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "IBM/mt-rag-benchmark", "cc5b1d481b391181b89f7ced860308482e785463", "Apache-2.0"
)
TASKS: Final = "mtragun-human/generation_tasks/reference.jsonl"
OTHERS: Final = "mtrag-human/evaluations/reference_subset_with_human_evaluations.json"
QRELS: Final = tuple(
    f"mtragun-human/retrieval_tasks/qrels/{part}.tsv"
    for part in ("clapnq", "cloud", "fiqa", "govt")
)
ROLES: Final = {"user": "user", "agent": "assistant"}


def last_turns(sources: Sources) -> Collection:
    """The last turn of the user is the question, the turns before it are its history.

    The passages are those that any task names as its reference, and those of the subset that people
    evaluated; of all four domains in one. The full corpora are much larger, and harder.
    """
    made = Collection()
    tasks = [json.loads(line) for line in sources.read(REPOSITORY, TASKS).splitlines()]
    for task in tasks:
        for passage in task["contexts"]:
            made.passages[passage["document_id"]] = (
                clean(passage.get("title") or ""),
                clean(passage["text"]),
            )
    for passage in json.loads(sources.read(REPOSITORY, OTHERS))["documents"]:
        made.passages.setdefault(passage["document_id"], ("", clean(passage["text"])))
    grades: dict[str, dict[str, int]] = {}
    for file in QRELS:
        for line in sources.read(REPOSITORY, file).splitlines()[1:]:
            question, passage_id, grade = line.split("\t")
            if passage_id in made.passages and int(grade) > 0:
                grades.setdefault(question, {})[passage_id] = int(grade)
    for task in tasks:
        if task["task_id"] in grades:
            *before, last = task["input"]
            history = [
                {"role": ROLES[turn["speaker"]], "content": clean(turn["text"])} for turn in before
            ]
            made.ask(task["task_id"], clean(last["text"]), grades[task["task_id"]], history)
    return made
