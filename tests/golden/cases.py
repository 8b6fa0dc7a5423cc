"""The questions, passages and recorded replies that golden orders are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tests.support.shared_data import DEMO, SHARED

DATA: Final = Path(__file__).parent / "data"
TEXTS_OF_A_REPLY: Final = ("standalone", "rewrite", "step_back", "sub_queries", "hyde")


@dataclass(frozen=True)
class Case:
    """So many questions of one data set, and as many passages: those that answer, then those that stand first.

    A case with a recording has only questions that a reply was recorded for.
    """

    name: str
    questions: int
    passages: int
    is_recorded: bool = True

    @property
    def folder(self) -> Path:
        return DEMO if self.name == "demo" else SHARED / "data" / self.name

    @property
    def recording(self) -> Path:
        if self.name == "demo":
            return DEMO / "recordings.jsonl"
        return SHARED / "recordings" / f"{self.name}.jsonl"

    def path(self, ending: str) -> Path:
        """The kept file of this case with that *ending*."""
        return DATA / f"{self.name.replace('/', '-')}.{ending}"


CASES: Final = (
    Case("demo", 16, 97),
    Case("small/gym_faq", 12, 40),
    Case("canard_dev", 12, 80),
    Case("small/catalogue_es", 8, 40),
    Case("covid_faq", 8, 60),
    Case("hotpotqa_small", 8, 60),
    Case("anthropic_docs", 6, 40),
    Case("codebase_small", 8, 60, is_recorded=False),
    Case("xquad/zh", 6, 40, is_recorded=False),
)
"""One of each kind: shipped, small, conversations, typed without accents, a gap of words, two hops, documentation,
code, and a script without spaces."""


@dataclass(frozen=True)
class Passage:
    id: str
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    history: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Collection:
    """What a case consists of. The recorded replies are kept by question id, and may be none."""

    case: Case
    passages: tuple[Passage, ...]
    questions: tuple[Question, ...]
    replies: Mapping[str, Mapping[str, Any]]

    def texts(self) -> Iterator[str]:
        """Each text that a search over this collection may need a vector for: passages, questions, replies."""
        yield from (passage.text for passage in self.passages)
        yield from (question.text for question in self.questions)
        for reply in self.replies.values():
            for field in TEXTS_OF_A_REPLY:
                value = reply.get(field) or ()
                yield from (value,) if isinstance(value, str) else value


@cache
def load(case: Case) -> Collection:
    """Read the collection of *case* from its data set."""
    replies = {}
    if case.is_recorded:
        replies = {record["_id"]: record for record in _read_lines(case.recording)}
    judgements = [
        line.split("\t")[:2]
        for file in sorted((case.folder / "qrels").glob("*.tsv"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    judged = {question_id for question_id, _ in judgements}
    records = [
        record
        for record in _read_lines(case.folder / "queries.jsonl")
        if record["_id"] in judged and (record["_id"] in replies or not case.is_recorded)
    ][: case.questions]
    questions = tuple(
        Question(record["_id"], record["text"], tuple(_read_metadata(record).get("history") or ()))
        for record in records
    )
    ids = {question.id for question in questions}
    answering = {passage_id for question_id, passage_id in judgements if question_id in ids}
    # Not by name: the first passages of a set belong together, as those of one collection do.
    passages = sorted(
        map(_build_passage, _read_lines(case.folder / "corpus.jsonl")),
        key=lambda passage: passage.id not in answering,
    )
    return Collection(
        case,
        tuple(passages[: case.passages]),
        questions,
        {id_: reply for id_, reply in replies.items() if id_ in ids},
    )


def _build_passage(record: Mapping[str, Any]) -> Passage:
    metadata = _read_metadata(record)
    if title := record.get("title"):
        return Passage(record["_id"], f"{title}\n{record['text']}", {**metadata, "title": title})
    return Passage(record["_id"], record["text"], metadata)


def _read_metadata(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return record.get("metadata") or {}


def _read_lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())
