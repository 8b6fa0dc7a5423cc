"""What a converter makes: passages, questions and judgements, written in the layout of BEIR."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Collection:
    """Passages, each with title and text, questions, each with text and history, and grades, all by their ids."""

    passages: dict[str, tuple[str, str]] = field(default_factory=dict)
    questions: dict[str, tuple[str, Sequence[Mapping[str, str]]]] = field(default_factory=dict)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)

    def ask(
        self,
        id_: str,
        text: str,
        grades: Mapping[str, int],
        history: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Add one question with its judgements."""
        self.questions[id_] = (text, history)
        self.qrels[id_] = dict(grades)

    def write(self, folder: Path) -> None:
        """Into *folder*, over what an earlier run left there."""
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        passages = (
            {"_id": id_, "title": title, "text": text}
            for id_, (title, text) in self.passages.items()
        )
        _write_lines(folder / "corpus.jsonl", map(_json, passages))
        _write_lines(folder / "queries.jsonl", map(_json, self._records()))
        judged = (
            f"{one}\t{other}\t{grade}"
            for one, grades in self.qrels.items()
            for other, grade in grades.items()
        )
        _write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore", *judged])

    def _records(self) -> Iterable[dict[str, Any]]:
        for id_, (text, history) in self.questions.items():
            yield {
                "_id": id_,
                "text": text,
                **({"metadata": {"history": history}} if history else {}),
            }


def clean(text: str) -> str:
    """*text* with one space between words and no empty lines."""
    return re.sub(r"[ \t\u00a0]+", " ", re.sub(r"\s*\n\s*", "\n", text)).strip()


def flat(text: str) -> str:
    """*text* on one line."""
    return " ".join(text.split())


def _json(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)


def _write_lines(file: Path, lines: Iterable[str]) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in lines)
